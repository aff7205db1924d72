"""Gymnasium ids to environments.

Imported only after the settings were checked, and only where gymnasium is installed.
"""

import difflib
import importlib
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from ersac.config import SettingsError
from ersac.envs.base import HostEnv, error_line
from ersac.envs.gym import minigrid
from ersac.envs.gym.host import EnvFactory, in_process_env
from ersac.envs.gym.workers import worker_env
from ersac.packages import require_package


def env_factory(name: str, **options: Any) -> EnvFactory:
    """The function that creates the environment of a Gymnasium id; `options` go to gymnasium.make.

    A module before the id ('package.module:Id-v0') is imported first. MiniGrid and BabyAI ids
    import minigrid, and their observations are encoded by `minigrid.symbolic`.
    """
    module, _, env_id = name.rpartition(":")
    is_grid = env_id.startswith(minigrid.ID_PREFIXES)
    if is_grid:
        require_package(name, "minigrid", "gym")
    if is_grid or module:
        module = module or "minigrid"
        try:
            importlib.import_module(module)
        except Exception as error:
            raise SettingsError(
                f"{name}: {module} cannot be imported: {error_line(error)}"
            ) from error
    if env_id not in gymnasium.registry:
        close = difflib.get_close_matches(env_id, gymnasium.registry, n=3)
        hint = (
            f"did you mean {' or '.join(close)}?"
            if close
            else "if a package registers it, write package.module:Id-v0"
        )
        raise SettingsError(f"unknown environment '{name}'; {hint}")
    # The factory carries the registered spec, because a worker process may not have registered it.
    return partial(_make_registered, gymnasium.registry[env_id], is_grid, **options)


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
