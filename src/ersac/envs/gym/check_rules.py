"""The rules that `check` applies to a Gymnasium environment. No jax here.

A rule returns a `Finding` or None. STEP_RULES see one reset or step, PLAY_RULES all of them.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from ersac.config import truncate
from ersac.envs.gym.probe import (
    NUMERIC,
    ObsArray,
    StepRecord,
    StepResult,
    count_steps,
    describe_value,
    named_entries,
    to_number,
)
from ersac.envs.gym.spaces import MASK_KEY, choice_sizes

ROUNDING = 1e-5  # relative error of single precision, by which a number may exceed its bounds
REWARD_LARGE, REWARD_SMALL = 1e3, 1e-4
MIN_EPISODES, MIN_RECORDS = 3, 10  # before equal episodes or observations are reported

FIX_NON_FINITE = "look for a division, root or logarithm, and return a finite number"


class Finding(NamedTuple):
    """Something about an environment, and what to change, in one line."""

    fatal: bool  # training would fail or learn from wrong data; else it is a warning
    text: str


def check_action_space(space: spaces.Space) -> Iterator[Finding]:
    """Action spaces that ersac does not support, and entries that do nothing."""
    match space:
        case spaces.Discrete():
            if int(space.n) < 2:
                yield Finding(
                    True, "action_space is Discrete(1): give it at least two actions to choose from"
                )
        case spaces.Box():
            yield from check_action_box(space)
        case _ if not (sizes := choice_sizes(space)):
            yield Finding(
                True,
                f"action_space is {type(space).__name__}, but ersac supports only Discrete, "
                "MultiDiscrete, MultiBinary, a Dict or Tuple of these, and Box: convert it",
            )
        case _ if max(sizes) < 2:
            yield Finding(True, "action_space has a single action: give it at least two")


def check_action_box(space: spaces.Box) -> Iterator[Finding]:
    """Boxes that are not vectors of bounded floats, and entries with a single value."""
    if not np.issubdtype(space.dtype, np.floating):
        yield Finding(
            True,
            f"action_space is a Box of {space.dtype}, but ersac supports only floats in a Box: "
            "declare it with dtype=np.float32, or number the actions and use Discrete",
        )
    elif len(space.shape) != 1 or not space.shape[0]:
        yield Finding(
            True,
            f"action_space is a Box of shape {space.shape}, but ersac supports only vectors: "
            "use shape (n,)",
        )
    elif not space.is_bounded():
        index = int(np.argmin(space.bounded_below & space.bounded_above))
        low, high = space.low[index], space.high[index]
        yield Finding(
            True, f"action[{index}] has the bounds {low:g} and {high:g}: make both of them finite"
        )
    elif (fixed := space.low >= space.high).any():
        index = int(np.argmax(fixed))
        yield Finding(
            False,
            f"action[{index}] can only be {space.low[index]:g}, because low equals high in "
            "action_space: remove it",
        )


def check_observation_space(space: spaces.Space) -> Iterator[Finding]:
    """Observation spaces that have no numbers, or entries that have none."""
    leaves = list(space_leaves(space))
    numeric = [(name, leaf) for name, leaf in leaves if isinstance(leaf, NUMERIC)]
    others = [(name, leaf) for name, leaf in leaves if not isinstance(leaf, NUMERIC)]
    if not numeric:
        known = ", ".join(cls.__name__ for cls in NUMERIC)
        yield Finding(
            True,
            f"observation_space is {type(space).__name__}, which has no numbers: "
            f"use {known}, or a Dict or Tuple of them",
        )
    elif others:
        ignored = [f"{name} ({type(leaf).__name__})" for name, leaf in others]
        yield Finding(
            False, f"not numeric, so ignored by the agent: {truncate('; '.join(ignored))}"
        )
    if empty := [(name, leaf.shape) for name, leaf in numeric if 0 in (leaf.shape or ())]:
        name, shape = empty[0]
        yield Finding(True, f"{name} has no entries, shape {shape}: give its space a size")


def space_leaves(
    space: spaces.Space, name: str = "observation"
) -> Iterator[tuple[str, spaces.Space]]:
    """The spaces that are not a Dict or Tuple, with the names of their entries."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for entry, sub in named_entries(space, name):
            yield from space_leaves(sub, entry)
    else:
        yield name, space


def wrong_shape(obs: ObsArray, where: str) -> Finding | None:
    """An observation whose shape is not that of its space."""
    given, expected = obs.array.shape, obs.space.shape
    if given == expected:
        return None
    return Finding(
        True,
        f"{obs.name} has shape {given} {where}, but its space has shape {expected}: "
        f"return it as {expected}, or change observation_space",
    )


def incompatible_dtype(obs: ObsArray, where: str) -> Finding | None:
    """Numbers that cannot be cast to the dtype of their space without loss."""
    given, expected = obs.array.dtype, obs.space.dtype
    if np.can_cast(given, expected, "same_kind"):
        return None
    return Finding(
        True,
        f"{obs.name} is {given} {where}, but its space is {expected}: "
        f"return {expected}, or declare the space with dtype=np.{given}",
    )


def cast_dtype(obs: ObsArray, where: str) -> Finding | None:
    """Numbers that are cast to the dtype of their Box; in other spaces all integers are equal."""
    given, expected = obs.array.dtype, obs.space.dtype
    if not isinstance(obs.space, spaces.Box) or incompatible_dtype(obs, where):
        return None
    if not isinstance(obs.raw, np.ndarray | np.generic):
        cls = type(obs.raw).__name__
        change = f"return np.asarray({obs.name}, np.{expected})"
        return Finding(False, f"{obs.name} is a {cls} {where}, not an array: {change}")
    if given != expected:
        change = f"return it with .astype(np.{expected})"
        return Finding(
            False, f"{obs.name} is {given} {where}, but its space is {expected}: {change}"
        )
    return None


def non_finite_observation(obs: ObsArray, where: str) -> Finding | None:
    """NaN or infinity in an observation."""
    bad = ~np.isfinite(obs.array)
    if not bad.any():
        return None
    index = np.unravel_index(int(np.argmax(bad)), bad.shape)
    name = f"{obs.name}{index_text(index)}"
    return Finding(True, f"{name} is {obs.array[index]} {where}: {FIX_NON_FINITE}")


def out_of_bounds(obs: ObsArray, where: str) -> Finding | None:
    """An observation outside its space; the entry that is farthest outside is reported."""
    low, high = limits(obs.space)
    x = obs.array
    if x.shape != obs.space.shape or ((x >= low) & (x <= high)).all():
        return None
    # NaN and infinity have a rule of their own.
    x = np.where(np.isfinite(x), x, np.clip(0.0, low, high)).astype(np.float64)
    rounding = ROUNDING * np.maximum(1.0, np.abs(x)) if obs.space.dtype.kind == "f" else 0.0
    excess = np.maximum(low - x, x - high) - rounding
    index = np.unravel_index(int(np.argmax(excess)), excess.shape)
    if not excess[index] > 0:
        return None
    if x[index] < low[index]:
        bound, side = low[index], "below the low"
    else:
        bound, side = high[index], "above the high"
    distance = f"{abs(x[index] - bound):.6g} {side} of its space, {bound:.6g}"
    return Finding(
        True,
        f"{obs.name}{index_text(index)} is {x[index]:.6g} {where}, {distance}: "
        "widen observation_space, or clip it",
    )


def limits(space: Any) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest value of each entry of a numeric space."""
    match space:
        case spaces.Box():
            return space.low, space.high
        case spaces.MultiBinary():
            return np.zeros(space.shape), np.ones(space.shape)
        case spaces.MultiDiscrete():
            return np.asarray(space.start), np.asarray(space.start + space.nvec - 1)
    return np.asarray(space.start), np.asarray(space.start + space.n - 1)


def index_text(index: tuple[Any, ...]) -> str:
    """An index as it is written in Python, empty for a scalar."""
    return f"[{', '.join(str(i) for i in index)}]" if index else ""


def reward_not_a_number(result: StepResult) -> Finding | None:
    """A reward that is not one number."""
    if to_number(result.reward) is not None:
        return None
    given, where = describe_value(result.reward), result.record.where
    return Finding(True, f"reward must be one number, but is {given} {where}: return float(reward)")


def non_finite_reward(result: StepResult) -> Finding | None:
    """NaN or infinity as a reward."""
    value = to_number(result.reward)
    if value is None or np.isfinite(value):
        return None
    return Finding(True, f"reward is {value} {result.record.where}: {FIX_NON_FINITE}")


def changed_observation(result: StepResult) -> Finding | None:
    """A step that changes the observation returned before it."""
    if not result.previous_changed:
        return None
    return Finding(
        False,
        f"the previous observation was changed in place {result.record.where}: "
        "return a copy, observation.copy()",
    )


def changed_action(result: StepResult) -> Finding | None:
    """A step that changes the action passed to it."""
    if not result.action_changed:
        return None
    return Finding(
        False,
        f"step() changed the action passed to it {result.record.where}: "
        "work on a copy, action = action.copy()",
    )


def truncation_in_info(result: StepResult) -> Finding | None:
    """A time limit that is reported only in the info, as in the old gym."""
    if result.info.get("TimeLimit.truncated") is not True or result.record.truncated:
        return None
    return Finding(
        False,
        f"info has TimeLimit.truncated {result.record.where}, but truncated is False: "
        "return truncated=True at a time limit",
    )


def mask_after_reset(result: StepResult) -> Finding | None:
    """A mask that step() returns and reset() does not: agents look for it at a reset."""
    if not result.new_mask:
        return None
    return Finding(
        True,
        f"info has {MASK_KEY} {result.record.where}, but not at the first reset: "
        "return it from reset() too",
    )


def reward_scale(records: list[StepRecord]) -> Finding | None:
    """Rewards that are very large or very small."""
    sizes = [abs(record.reward) for record in records if np.isfinite(record.reward)]
    largest = max(sizes, default=0.0)
    if not largest or REWARD_SMALL <= largest <= REWARD_LARGE:
        return None
    return Finding(
        False,
        f"the largest absolute reward is {largest:.3g}: --scale-rewards, on by default, scales "
        f"returns to about 1; without it, divide rewards by about {largest:.0e}",
    )


def terminated_and_truncated(records: list[StepRecord]) -> Finding | None:
    """Episodes that all end with both flags; one such episode may be a coincidence."""
    ends = [record for record in records if record.ended]
    if not ends or not all(record.terminated and record.truncated for record in ends):
        return None
    return Finding(
        False,
        "terminated and truncated are both True at the end of every episode "
        f"(first {ends[0].where}): return truncated=True only at a time limit, and "
        "terminated=True only in a terminal state",
    )


def one_step_episodes(records: list[StepRecord]) -> Finding | None:
    """Episodes that all end at their first step."""
    starts = [i for i, record in enumerate(records) if record.is_reset]
    ends = [*starts[1:], len(records)]
    lengths = [end - start - 1 for start, end in zip(starts, ends, strict=True)]
    later = lengths[1:-1]  # the last episode may be unfinished
    if len(later) < MIN_EPISODES or set(later) != {1}:
        return None
    if lengths[0] > 1:
        which = f"{len(later)} episodes after the first, which had {lengths[0]} steps,"
    else:
        which = f"{len(lengths) - 1} episodes"
    return Finding(
        False,
        f"all {which} ended at their first step: unless the task is like that, "
        "let reset() set all state",
    )


def constant_observation(records: list[StepRecord]) -> Finding | None:
    """An observation that never changes."""
    digests = {record.observation for record in records}
    if len(records) < MIN_RECORDS or len(digests) > 1 or "" in digests:
        return None
    return Finding(
        False,
        f"the observation never changes, over {count_steps(records)} steps: "
        "include the state that the agent acts on",
    )


def for_each_array(
    rule: Callable[[ObsArray, str], Finding | None],
) -> Callable[[StepResult], Finding | None]:
    """The rule of a step that returns the first finding in the arrays of its observation."""

    def first_finding(result: StepResult) -> Finding | None:
        where = result.record.where
        return next(filter(None, (rule(array, where) for array in result.arrays)), None)

    return first_finding


STEP_RULES: tuple[Callable[[StepResult], Finding | None], ...] = (
    for_each_array(wrong_shape),
    for_each_array(incompatible_dtype),
    for_each_array(cast_dtype),
    for_each_array(non_finite_observation),
    for_each_array(out_of_bounds),
    reward_not_a_number,
    non_finite_reward,
    changed_observation,
    changed_action,
    truncation_in_info,
    mask_after_reset,
)
PLAY_RULES: tuple[Callable[[list[StepRecord]], Finding | None], ...] = (
    reward_scale,
    terminated_and_truncated,
    one_step_episodes,
    constant_observation,
)
