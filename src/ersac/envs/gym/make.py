"""Gymnasium ids to environments.

Imported only after the settings were checked, and only where gymnasium is installed.
"""

import difflib
import functools
import importlib
import json
import sys
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from ersac import config
from ersac.config import SettingsError
from ersac.envs.base import HostEnv, error_line
from ersac.envs.gym import minigrid
from ersac.envs.gym.host import EnvFactory, in_process_env
from ersac.envs.gym.workers import worker_env
from ersac.packages import require_package

# Packages that register ids which begin so, with the extra of ersac that installs them.
REGISTERED_BY = {
    **{prefix: ("minigrid", "gym") for prefix in minigrid.ID_PREFIXES},
    "ALE/": ("ale_py", "atari"),
}


def factory_of(settings: config.Gym) -> EnvFactory:
    """The function that creates the environment that the settings describe."""
    options = json.loads(settings.env_kwargs or "{}")
    if settings.make is None:
        return env_factory(settings.id, **options)
    make = env_class(settings.make) if isinstance(settings.make, str) else settings.make
    return partial(make, **options) if options else make


def env_factory(name: str, **options: Any) -> EnvFactory:
    """The function that creates an environment by its Gymnasium id or as `module:Class`.

    options: keyword arguments of gymnasium.make or of the class. A module before an id
    ('package.module:Id-v0') is imported first. MiniGrid, BabyAI and ALE ids import their package;
    the observations of the first two are encoded by `minigrid.symbolic`.
    """
    module, _, env_id = name.rpartition(":")
    for prefix, (package, extra) in REGISTERED_BY.items():
        if env_id.startswith(prefix):
            require_package(name, package, extra)
            module = module or package
    if module:
        loaded = _import_module(name, module)
        if env_id not in gymnasium.registry and hasattr(loaded, env_id.partition(".")[0]):
            make = env_class(name)
            return partial(make, **options) if options else make
    if env_id not in gymnasium.registry:
        close = difflib.get_close_matches(env_id, gymnasium.registry, n=3)
        hint = (
            f"did you mean {' or '.join(close)}?"
            if close
            else "if a package registers it, write package.module:Id-v0; a class is module:Class"
        )
        raise SettingsError(f"unknown environment '{name}'; {hint}")
    is_grid = env_id.startswith(minigrid.ID_PREFIXES)
    # The factory carries the registered spec, because a worker process may not have registered it.
    return partial(_make_registered, gymnasium.registry[env_id], is_grid, **options)


def env_class(path: str) -> EnvFactory:
    """The class of environments at `module:Class`; modules of the current directory count.

    Only classes: a path may come from a file, and a function could do anything when called.
    """
    module, _, name = path.partition(":")
    loaded = _import_module(path, module)
    try:
        found = functools.reduce(getattr, name.split("."), loaded)
    except AttributeError:
        raise SettingsError(f"{path}: {module} has no {name}") from None
    if not (isinstance(found, type) and issubclass(found, gymnasium.Env)):
        raise SettingsError(f"{path} is not a class of Gymnasium environments")
    return found


def _import_module(name: str, module: str) -> Any:
    if "" not in sys.path:  # a console script does not look into the current directory
        sys.path.insert(0, "")
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise SettingsError(f"{name}: {module} cannot be imported: {error_line(error)}") from error


def _make_registered(spec: EnvSpec, is_grid: bool, **options: Any) -> gymnasium.Env:
    """The environment of a registered spec, without Gymnasium's checker: ersac has its own."""
    env = gymnasium.make(spec, disable_env_checker=True, **options)
    return minigrid.symbolic(env) if is_grid else env


def reward_threshold(name: str) -> float | None:
    """The mean return at which a registered environment counts as solved, or None."""
    spec = gymnasium.registry.get(name.rpartition(":")[2])
    return None if spec is None else spec.reward_threshold


def host_env(make: EnvFactory, name: str, envs: int, workers: int = 0, frames: int = 1) -> HostEnv:
    """N environments stepped together: in this process, or shared evenly among worker processes.

    The number of workers changes neither the seed of an environment nor anything it returns.
    frames: how many consecutive observations are stacked into one, the oldest first.
    """
    if workers == 0:
        return in_process_env(make, name, envs, frames)
    return worker_env(make, name, envs, min(workers, envs), frames)
