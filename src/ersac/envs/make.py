"""Settings to environments. No jax before a pure one is made."""

from collections.abc import Callable

from ersac import config
from ersac.envs.base import Env, HostEnv
from ersac.packages import require_package

EXTRAS = {
    config.Gymnax: ("gymnax", "gymnax"),
    config.Gym: ("gymnasium", "gym"),
}  # the package of a kind, and the extra that has it


def require_env_package(settings: config.Environment) -> None:
    """SettingsError where an environment's package is missing."""
    if type(settings) in EXTRAS:
        require_package(config.env_name(settings), *EXTRAS[type(settings)])


def check_fits(settings: config.Environment, tell: Callable[[str], None]) -> None:
    """SettingsError where an environment's package is missing, or random play finds it broken; what else it finds is told."""
    require_env_package(settings)
    if isinstance(settings, config.Gymnax):
        make_env(settings)
    if isinstance(settings, config.Gym):
        from ersac.envs.gym.check import check_env
        from ersac.envs.gym.make import env_factory

        check_env(settings.make or env_factory(settings.id), tell)


def make_env(settings: config.DeepSea | config.Gymnax) -> Env:
    """The pure environment that some settings describe."""
    match settings:
        case config.DeepSea(depth, stochastic, mapping_seed):
            from ersac.envs.deep_sea import deep_sea

            return deep_sea(depth, stochastic, mapping_seed)
        case config.Gymnax(name, envs, target):
            from ersac.envs.gymnax import gymnax_env  # an extra

            return gymnax_env(name, envs, target)


def make_host_env(settings: config.Gym) -> HostEnv:
    """The environments on the host that some settings describe."""
    from ersac.envs.gym.make import env_factory, host_env, reward_threshold  # an extra

    make = settings.make or env_factory(settings.id)
    env = host_env(make, settings.id, settings.envs, settings.workers, settings.frames)
    target = reward_threshold(settings.id) if settings.target is None else settings.target
    return env._replace(target=target)
