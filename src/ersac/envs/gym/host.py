"""N Gymnasium environments stepped together in this process.

As in Gymnasium's vector environments, an environment is reset on the step after an episode's last
one, terminated or truncated: that step is the fake one of `HostStep`.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from ersac.config import SettingsError
from ersac.envs.base import HostEnv, HostStep, error_line
from ersac.envs.gym.spaces import (
    MASK_KEY,
    action_codec,
    choice_sizes,
    frame_stack,
    mask_codec,
    observation_codec,
    read_mask,
)
from ersac.runs.exits import Resumable

SUCCESS_KEYS = ("is_success", "success")  # of an info: whether the episode reached its goal

EnvFactory = Callable[[], gymnasium.Env]


def in_process_env(make: EnvFactory, name: str, envs: int, frames: int) -> HostEnv:
    """N environments in this process, stepped one after the other.

    Gymnasium's SyncVectorEnv is not used: with a few CartPoles a third of its time is overhead.
    """
    try:
        instances = [make() for _ in range(envs)]
    except Exception as error:
        raise SettingsError(f"{name} cannot be created: {error_line(error)}") from error
    space = instances[0].observation_space
    single, encode = observation_codec(space)
    actions, decode = action_codec(instances[0].action_space)
    sizes = mask_sizes(make) if choice_sizes(instances[0].action_space) else None
    masks = None if sizes is None else mask_codec(single, sizes)
    stack = frame_stack(single if masks is None else masks.space, frames, name)
    ended = np.zeros(envs, bool)  # [N]   whether the last step ended an episode: the next is fake
    window = np.zeros(0)  # [N, ...]      the newest observations, stacked

    def encode_batch(
        obs: Sequence[Any], infos: Sequence[dict[str, Any]], ended: np.ndarray
    ) -> np.ndarray:
        array, shape = encode(_batch(space, obs)), getattr(single, "shape", ())
        if array.shape[1:] != shape:
            raise ValueError(
                f"an observation has shape {array.shape[1:]}, but its space has shape {shape}"
            )
        if masks is None or sizes is None:
            return array
        read = [read_mask(info, sizes, end) for info, end in zip(infos, ended, strict=True)]
        return masks.add(array, np.array(read))

    def reset(seed: int) -> np.ndarray:
        nonlocal ended, window
        try:
            for i, env in enumerate(instances):
                env.action_space.seed(seed + i)
            first = [env.reset(seed=seed + i) for i, env in enumerate(instances)]
            obs, infos = zip(*first, strict=True)
            encoded = encode_batch(obs, infos, np.zeros(envs, bool))
        except Exception as error:
            raise Resumable(f"{name} failed in reset(): {error_line(error)}") from error
        ended, window = np.zeros(envs, bool), stack.reset(encoded)
        return window

    def step(actions: np.ndarray) -> HostStep:
        nonlocal ended, window
        decoded, fake = decode(actions), ended
        try:
            obs, reward, terminated, truncated, info = zip(
                *map(_step_or_reset, instances, fake.tolist(), decoded), strict=True
            )
            over = np.array(terminated, bool)
            ends = over | np.array(truncated, bool)
            encoded = encode_batch(obs, info, ends)
        except Exception as error:
            raise Resumable(f"{name} failed in step(): {error_line(error)}") from error
        ended, window = ends, stack.push(window, encoded, fake)
        return HostStep(
            obs=window,
            reward=np.array(reward, np.float32).reshape(envs),
            discount=(~(over | fake)).astype(np.float32),
            mask=(~fake).astype(np.float32),
            ended=ended,
            goal=_reached_goal(info, ended),
        )

    def close() -> None:
        for env in instances:
            with contextlib.suppress(Exception):  # nothing can be lost any more
                env.close()

    return HostEnv(
        name=name,
        observations=stack.space,
        actions=actions,
        envs=envs,
        reset=reset,
        step=step,
        close=close,
    )


def mask_sizes(make: EnvFactory) -> tuple[int, ...] | None:
    """The choices of each factor of an action, if the environment returns masks; else None.

    Only reset() shows it. Environments of training are not reset for it: one more episode could
    change what a wrapper has counted. Errors are those of the environments of training.
    """
    with contextlib.suppress(Exception):
        env = make()
        try:
            sizes = choice_sizes(env.action_space)
            return sizes if sizes and MASK_KEY in env.reset(seed=0)[1] else None
        finally:
            env.close()
    return None


def _batch(space: gymnasium.Space, obs: Sequence[Any]) -> Any:
    """The observations of N environments as Gymnasium's vector environments return them.

    For single arrays numpy takes a third of the time of Gymnasium's `concatenate`.
    """
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return np.array(obs, space.dtype)
    return concatenate(space, obs, create_empty_array(space, len(obs)))


def _step_or_reset(
    env: gymnasium.Env, starts: bool, action: Any
) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
    """Step an environment, or reset it and ignore the action where an episode has to start."""
    if starts:
        obs, info = env.reset()
        return obs, 0.0, False, False, info
    return env.step(action)


def _reached_goal(infos: Sequence[dict[str, Any]], ended: np.ndarray) -> np.ndarray:
    """Which episodes ended in success, according to their infos [N]."""
    if not any(infos):  # most environments return empty infos
        return np.zeros(len(ended), bool)
    return ended & np.array(
        [any(np.any(info[key]) for key in SUCCESS_KEYS if key in info) for info in infos]
    )
