"""Settings to environments. jax is imported only where a pure environment is created."""

from collections.abc import Callable

from ersac import config
from ersac.envs.base import Env, HostEnv
from ersac.packages import require_package

# The package that the settings' class needs, and the extra of ersac that installs it.
EXTRAS = {
    config.Gymnax: ("gymnax", "gymnax"),
    config.Gym: ("gymnasium", "gym"),
    config.Atari: ("ale_py", "atari"),
}


def require_env_package(settings: config.Environment) -> None:
    """SettingsError where the package of an environment is missing."""
    if type(settings) in EXTRAS:
        require_package(config.env_name(settings), *EXTRAS[type(settings)])


def check_env(settings: config.Environment, on_warning: Callable[[str], None]) -> None:
    """SettingsError where an environment cannot be trained on; `on_warning` gets the rest."""
    require_env_package(settings)
    if isinstance(settings, config.Gymnax):
        make_env(settings)
    if isinstance(settings, config.Gym):
        from ersac.envs.gym.check import check_gym_env
        from ersac.envs.gym.make import factory_of

        check_gym_env(factory_of(settings), on_warning)


def make_env(settings: config.DeepSea | config.Gymnax) -> Env:
    """The pure environment that the settings describe."""
    match settings:
        case config.DeepSea(depth, stochastic, mapping_seed):
            from ersac.envs.deep_sea import deep_sea

            return deep_sea(depth, stochastic, mapping_seed)
        case config.Gymnax(name, envs, target):
            from ersac.envs.gymnax import gymnax_env  # an extra

            return gymnax_env(name, envs, target)


def make_host_env(settings: config.Gym | config.Atari) -> HostEnv:
    """The environments on the host that the settings describe."""
    if isinstance(settings, config.Atari):
        from ersac.envs.atari import atari_env  # an extra

        return atari_env(settings)
    from ersac.envs.gym.make import factory_of, host_env, reward_threshold  # an extra

    make = factory_of(settings)
    env = host_env(make, settings.id, settings.envs, settings.workers, settings.frames)
    target = reward_threshold(settings.id) if settings.target is None else settings.target
    return env._replace(target=target)
