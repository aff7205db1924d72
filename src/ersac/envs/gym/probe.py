"""Play a Gymnasium environment with random actions, and record what it returns. No jax here.

`InvalidEnv` is raised where an environment cannot be played any further.
"""

import copy
import hashlib
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from ersac.config import short_repr, truncate
from ersac.envs.base import ANY_ERROR, error_source
from ersac.envs.gym.spaces import MASK_KEY, choice_sizes, from_choices, read_mask, to_choices

NUMERIC = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
MAX_SECONDS = 5.0  # of play in one environment: a slow one is checked for fewer steps

RESET_RETURNS = "reset() must return (observation, info)"
STEP_VALUES = "(observation, reward, terminated, truncated, info)"
STEP_RETURNS = f"step() must return {STEP_VALUES}"


class InvalidEnv(Exception):
    """An environment that cannot be played any further; the text says why and what to change."""


class ObsArray(NamedTuple):
    """The numbers of an observation, or of an entry of a dict or tuple."""

    name: str  # as in Python: observation['position']
    space: Any
    raw: Any  # as the environment returned it
    array: np.ndarray


class StepRecord(NamedTuple):
    """What is stored of a reset or a step: enough to compare two plays."""

    where: str  # 'at step 3'
    is_reset: bool
    observation: str  # a digest, empty if the observation has no numbers
    reward: float = 0.0  # NaN if it is not a number
    terminated: bool = False
    truncated: bool = False

    @property
    def ended(self) -> bool:
        """Whether the episode ended."""
        return self.terminated or self.truncated


class StepResult(NamedTuple):
    """All that a reset or a step returned."""

    record: StepRecord
    arrays: list[ObsArray]
    reward: Any = 0.0
    info: Mapping[Any, Any] = {}
    previous_changed: bool = False  # the observation before it was changed in place
    action_changed: bool = False  # the action was
    new_mask: bool = False  # it has a mask of allowed actions, unlike the first reset


def count_steps(records: list[StepRecord]) -> int:
    """The number of steps, without resets."""
    return sum(not record.is_reset for record in records)


def play_steps(env: gymnasium.Env, actions: Iterable[Any], seed: int) -> Iterator[StepResult]:
    """Reset an environment, and step it with the actions; it is reset again after each episode.

    Where the environment returns masks, an action that is not allowed is replaced by one that is.
    """
    deadline = time.monotonic() + MAX_SECONDS
    space = env.observation_space

    def start(observation: Any, info: Mapping, where: str) -> StepResult:
        arrays = read_arrays(space, observation, where)
        record = StepRecord(where, True, observation_digest(arrays))
        return StepResult(record, arrays, info=info)

    observation, info = reset(env, seed=seed, options=None)
    is_discrete, has_mask = choice_sizes(env.action_space) is not None, MASK_KEY in info
    result = start(observation, info, "at the first reset")
    yield result
    for number, action in enumerate(actions, 1):
        if number > 1 and time.monotonic() > deadline:
            return
        if result.record.ended:
            observation, info = reset(env)
            result = start(observation, info, f"at the reset after step {number - 1}")
            yield result
        if is_discrete and has_mask:
            action = allowed_action(env.action_space, action, info, result.record.where)
        where, passed, before = f"at step {number}", copy.deepcopy(action), observation
        observation, reward, terminated, truncated, info = step(env, passed, where)
        arrays, value = read_arrays(space, observation, where), to_number(reward)
        previous = observation_digest(read_arrays(space, before, where))
        result = StepResult(
            record=StepRecord(
                where=where,
                is_reset=False,
                observation=observation_digest(arrays),
                reward=np.nan if value is None else value,
                terminated=terminated,
                truncated=truncated,
            ),
            arrays=arrays,
            reward=reward,
            info=info,
            previous_changed=previous != result.record.observation,
            action_changed=isinstance(action, np.ndarray) and not np.array_equal(passed, action),
            new_mask=is_discrete and MASK_KEY in info and not has_mask,
        )
        yield result


def random_actions(env: gymnasium.Env, steps: int, seed: int) -> list[Any]:
    """The two extreme actions first, then samples of a copy of the action space."""
    try:
        space = copy.deepcopy(env.action_space)
        space.seed(seed)
        ends: list[Any] = []
        if isinstance(space, spaces.Discrete):
            last = int(space.start) + int(space.n) - 1
            ends = [np.int64(space.start), np.int64(last)]  # the type that sample() returns
        elif isinstance(space, spaces.Box) and space.is_bounded():
            ends = [space.low.copy(), space.high.copy()]
        return [*ends, *(space.sample() for _ in range(steps))][:steps]
    except ANY_ERROR as error:
        raise InvalidEnv(error_text("action_space.sample()", error)) from None


def allowed_action(space: spaces.Space, action: Any, info: Mapping, where: str) -> Any:
    """The action, with an allowed choice instead of each that is not; InvalidEnv if none is."""
    sizes = choice_sizes(space) or ()
    try:
        factors = np.split(read_mask(info, sizes), np.cumsum(sizes)[:-1])
    except ValueError as error:
        raise InvalidEnv(f"{error} ({where})") from None
    choices = [
        choice if factor[choice] else np.flatnonzero(factor)[choice % factor.sum()]
        for choice, factor in zip(to_choices(space, action), factors, strict=True)
    ]
    return from_choices(space, np.array(choices))


def reset(env: gymnasium.Env, **arguments: Any) -> tuple[Any, Mapping]:
    """The first observation of an episode, and its info."""
    try:
        observation, info = call(env, lambda env: env.reset(**arguments), "reset()", reset_fault)
        return observation, info
    except InvalidEnv:
        if text := signature_fault(env) or signature_fault(env.unwrapped):
            raise InvalidEnv(text) from None
        raise


def step(env: gymnasium.Env, action: Any, where: str) -> tuple[Any, Any, bool, bool, Mapping]:
    """The five values that step() returns, the two flags as bool."""
    observation, reward, terminated, truncated, info = call(
        env,
        lambda env: env.step(action),
        f"step({short_repr(action)}) {where}",
        lambda result: step_fault(result, where),
    )
    return observation, reward, bool(terminated), bool(truncated), info


def call(
    env: gymnasium.Env,
    method: Callable[[gymnasium.Env], Any],
    name: str,
    find_fault: Callable[[Any], str | None],
) -> Any:
    """The result of a method; InvalidEnv where it raises, or where `find_fault` returns a text."""
    try:
        result = method(env)
    except ANY_ERROR as error:
        fault = unwrapped_fault(env, method, find_fault)
        raise InvalidEnv(fault or error_text(name, error)) from None
    if text := find_fault(result):
        raise InvalidEnv(text)
    return result


def unwrapped_fault(
    env: gymnasium.Env,
    method: Callable[[gymnasium.Env], Any],
    find_fault: Callable[[Any], str | None],
) -> str | None:
    """The fault of the environment inside its wrappers, whose own errors say less."""
    try:
        return find_fault(method(env.unwrapped)) if env.unwrapped is not env else None
    except ANY_ERROR:
        return None


def reset_fault(result: Any) -> str | None:
    """What is wrong with the form of what reset() returned."""
    change = "return observation, {}"
    if not isinstance(result, tuple) or len(result) != 2:
        return f"{RESET_RETURNS}, but returned {describe_value(result)}: {change}"
    if not isinstance(result[1], Mapping):
        info = describe_value(result[1])
        return f"{RESET_RETURNS} with a dict as info, but info is {info}: {change}"
    return None


def step_fault(result: Any, where: str) -> str | None:
    """What is wrong with the form of what step() returned."""
    if isinstance(result, tuple) and len(result) == 4:
        change = "return done as terminated, and truncated=True only at a time limit"
        return f"{STEP_RETURNS}, but returned the 4 values of the old gym {where}: {change}"
    if not isinstance(result, tuple) or len(result) != 5:
        returned = describe_value(result)
        return f"{STEP_RETURNS}, but returned {returned} {where}: return a tuple of these five"
    if not isinstance(result[4], Mapping):
        info, change = describe_value(result[4]), "return {} if there is nothing to report"
        return f"{STEP_RETURNS} with a dict as info, but info is {info} {where}: {change}"
    for name, flag in zip(("terminated", "truncated"), result[2:4], strict=True):
        if not is_flag(flag):
            change = f"return bool({name}), in the order {STEP_VALUES}"
            return f"{name} must be True or False, but is {describe_value(flag)} {where}: {change}"
    return None


def signature_fault(env: gymnasium.Env) -> str | None:
    """What is wrong with the parameters of reset()."""
    try:
        signature = inspect.signature(env.reset)
    except (TypeError, ValueError):  # not written in Python
        return None
    try:
        signature.bind(seed=0, options=None)
        signature.bind()
    except TypeError:
        declared = truncate(f"reset{signature}")
        change = "write def reset(self, *, seed=None, options=None) and return observation, {}"
        return f"{declared} must accept seed= and options=, both optional: {change}"
    return None


def read_arrays(
    space: spaces.Space, observation: Any, where: str, name: str = "observation"
) -> list[ObsArray]:
    """The numbers of an observation; InvalidEnv where its structure is not that of its space."""
    match space:
        case spaces.Dict():
            if not isinstance(observation, Mapping):
                raise InvalidEnv(
                    f"{name} must be a dict, but is {describe_value(observation)} {where}: "
                    "return a dict, or change observation_space"
                )
            if missing := [key for key in space.spaces if key not in observation]:
                raise InvalidEnv(
                    f"{name} has no {missing[0]!r} {where}, but its space has: "
                    "add it, or remove it from observation_space"
                )
            values = [observation[key] for key in space.spaces]
        case spaces.Tuple():
            n = len(space.spaces)
            if not isinstance(observation, tuple | list) or len(observation) != n:
                raise InvalidEnv(
                    f"{name} must be a tuple of {n}, but is {describe_value(observation)} {where}: "
                    f"return {n} values, or change observation_space"
                )
            values = list(observation)
        case _:
            is_numeric = isinstance(space, NUMERIC)
            return [read_array(space, observation, where, name)] if is_numeric else []
    pairs = zip(named_entries(space, name), values, strict=True)
    return [array for (entry, sub), raw in pairs for array in read_arrays(sub, raw, where, entry)]


def read_array(space: spaces.Space, raw: Any, where: str, name: str) -> ObsArray:
    """The entry of an observation whose space is numeric."""
    try:
        array = np.asarray(raw)
    except ANY_ERROR:
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise InvalidEnv(
            f"{name} must be numeric, but is {describe_value(raw)} {where}: "
            "return what observation_space.sample() returns"
        )
    return ObsArray(name, space, raw, array)


def named_entries(
    space: spaces.Dict | spaces.Tuple, name: str
) -> Iterator[tuple[str, spaces.Space]]:
    """The spaces in a dict or tuple, with the names of their entries."""
    items = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    return ((f"{name}[{key!r}]", sub) for key, sub in items)


def observation_digest(arrays: list[ObsArray]) -> str:
    """A digest of an observation, empty if it has no numbers."""
    state = hashlib.blake2b(digest_size=16)
    for name, _, _, array in arrays:
        state.update(f"{name} {array.dtype} {array.shape} ".encode())
        state.update(array.tobytes())
    return state.hexdigest() if arrays else ""


def to_number(value: Any) -> float | None:
    """A number as a float, or None if the value is something else."""
    try:
        array = np.asarray(value)
    except ANY_ERROR:
        return None
    return float(array) if array.shape == () and array.dtype.kind in "biuf" else None


def is_flag(value: Any) -> bool:
    """Whether a value is a bool of Python or of another library, or 0 or 1."""
    return isinstance(value, bool) or (
        to_number(value) in (0.0, 1.0) and np.asarray(value).dtype.kind in "biu"
    )


def describe_value(value: Any) -> str:
    """A value as it reads after 'but is'."""
    match value:
        case np.ndarray():
            return f"an array of shape {value.shape}"
        case tuple():
            return f"{len(value)} value{'' if len(value) == 1 else 's'}"
    return short_repr(value)


def error_text(action: str, error: BaseException) -> str:
    """An exception in one line: its type, the first line of its text, and where it was raised."""
    try:
        text = next(iter(str(error).strip().splitlines()), "")
    except ANY_ERROR:  # an environment's exception may fail in __str__
        text = ""
    source = error_source(error, Path(__file__).parent)
    return f"{action} raised {type(error).__name__}{': ' if text else ''}{truncate(text)}{source}"
