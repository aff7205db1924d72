"""N Gymnasium environments stepped together in this process.

As in Gymnasium's vector environments, an environment is reset on the step after an episode's last
one, terminated or truncated: that step is the fake one of `HostStep`.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from ersac.config import SettingsError, short_repr
from ersac.envs.base import ANY_ERROR, HostEnv, HostStep, error_line, error_source
from ersac.envs.gym.check_rules import index_text, limits
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
    except ANY_ERROR as error:
        raise SettingsError(f"{name} cannot be created: {_locate(error)}") from error
    space = instances[0].observation_space
    ranges = list(_integer_ranges(space))
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
        batch = _batch(space, obs)
        for integer_range in ranges:
            _check_integers(batch, *integer_range)
        array, shape = encode(batch), getattr(single, "shape", ())
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
        except ANY_ERROR as error:
            raise Resumable(f"{name} failed in reset(): {_locate(error)}") from error
        ended, window = np.zeros(envs, bool), stack.reset(encoded)
        return window

    def step(actions: np.ndarray) -> HostStep:
        nonlocal ended, window
        # Integers of numpy, as the space's sample() returns and the checker sends.
        decoded = [np.int64(a) if type(a) is int else a for a in decode(actions)]
        fake = ended
        try:
            obs, reward, terminated, truncated, info = zip(
                *map(_step_or_reset, instances, fake.tolist(), decoded), strict=True
            )
            over = np.array(terminated, bool).reshape(envs)
            now_ended = over | np.array(truncated, bool).reshape(envs)
            encoded = encode_batch(obs, info, now_ended)
            rewards, goal = _reward_array(reward), _reached_goal(info, now_ended)
        except ANY_ERROR as error:
            raise Resumable(f"{name} failed in step(): {_locate(error)}") from error
        ended, window = now_ended, stack.push(window, encoded, fake)
        return HostStep(
            obs=window,
            reward=rewards,
            discount=(~(over | fake)).astype(np.float32),
            mask=(~fake).astype(np.float32),
            ended=ended,
            goal=goal,
        )

    def close() -> None:
        for env in instances:
            with contextlib.suppress(*ANY_ERROR):  # nothing can be lost any more
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


def _locate(error: BaseException) -> str:
    """An exception in one line, with its place unless that is in this package."""
    return error_line(error) + error_source(error, Path(__file__).parent)


def _reward_array(rewards: Sequence[Any]) -> np.ndarray:
    """The rewards of N environments; ValueError where one is not a number."""
    array = np.array(rewards)
    if array.size != len(rewards) or array.dtype.kind not in "biuf":
        odd = next((r for r in rewards if not isinstance(r, int | float | np.number)), rewards[0])
        raise ValueError(f"a reward must be one number, but is {short_repr(odd)}")
    return array.reshape(len(rewards)).astype(np.float32)


def _integer_ranges(
    space: gymnasium.Space, path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], np.ndarray, np.ndarray]]:
    """The path, the least and the largest value of every integer in an observation space."""
    match space:
        case spaces.Dict():
            for key, sub in space.spaces.items():
                yield from _integer_ranges(sub, (*path, key))
        case spaces.Tuple():
            for index, sub in enumerate(space.spaces):
                yield from _integer_ranges(sub, (*path, index))
        case spaces.Discrete() | spaces.MultiDiscrete() | spaces.MultiBinary():
            low, high = limits(space)
            yield path, low, high


def _check_integers(batch: Any, path: tuple[Any, ...], low: np.ndarray, high: np.ndarray) -> None:
    """ValueError where an integer is outside its range: an index outside a table is not noticed."""
    for key in path:
        batch = batch[key]
    if batch.shape[1:] != low.shape:
        raise ValueError(f"an observation has shape {batch.shape[1:]} instead of {low.shape}")
    bad = (batch < low) | (batch > high)
    if bad.any():
        at = tuple(np.argwhere(bad)[0])
        name = "observation" + "".join(f"[{key!r}]" for key in path) + index_text(at[1:])
        raise ValueError(
            f"{name} is {batch[at]}, "
            f"but its space is from {int(low[at[1:]])} to {int(high[at[1:]])}"
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
        array = np.array(obs)
        if not np.can_cast(array.dtype, np.dtype(space.dtype), "same_kind"):
            raise ValueError(f"an observation is {array.dtype}, but its space is {space.dtype}")
        return array.astype(space.dtype, copy=False)
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
