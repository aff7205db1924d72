"""What is wrong with a Gymnasium environment, and what to change, before anything is trained on it. No jax here.

A check is a function that finds one kind of thing or None: those of CHECKS see every answer, those of REVIEWS a whole play.
"""

import contextlib
import copy
import hashlib
import inspect
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from ersac.config import SettingsError, short_repr, truncate

ANY = (Exception, SystemExit)  # what an environment may throw; a KeyboardInterrupt is the person's
NUMBERS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
PATIENCE_SECONDS = (
    5.0  # for each of two plays: a slow environment is looked at for as many steps as fit
)
ROUNDING = (
    1e-5  # how far outside its bounds a number may be by single precision alone, relative to it
)
REWARD_LARGE, REWARD_SMALL = 1e3, 1e-4
TELLING_EPISODES, TELLING_ANSWERS = 3, 10  # as many alike are no accident

RETURN_RESET = "reset() must return (observation, info)"
RETURN_STEP = "step() must return (observation, reward, terminated, truncated, info)"
NON_FINITE = "look for a division, root or logarithm, and return a finite number"
SEEDING = "call super().reset(seed=seed) in reset and draw from self.np_random only"


class Finding(NamedTuple):
    """Something about an environment, and what to change, in one line."""

    fatal: bool  # training on it would fail or learn nonsense; else it is worth knowing only
    text: str


class Broken(Exception):
    """An environment that cannot be played any further; its text is a fatal finding."""


class Part(NamedTuple):
    """Numbers of an observation, under one space."""

    name: str  # as one would write it: observation['position']
    space: Any
    given: Any
    array: np.ndarray


class Fact(NamedTuple):
    """What is kept of an answer: enough to compare two plays, however large observations are."""

    where: str  # as it reads after 'is nan'
    is_reset: bool
    observation: str  # a digest, empty where there are no numbers
    reward: float = 0.0  # NaN where it is no number
    terminated: bool = False
    truncated: bool = False

    @property
    def ended(self) -> bool:
        """Whether the episode did."""
        return self.terminated or self.truncated


class Answer(NamedTuple):
    """One answer of an environment."""

    fact: Fact
    parts: list[Part]
    reward: Any = 0.0
    info: Mapping[Any, Any] = {}
    stale: bool = False  # the observation before it has changed since it was given
    meddled: bool = False  # the action has


def check_gym_env(make: Callable[[], gymnasium.Env], tell: Callable[[str], None]) -> None:
    """SettingsError with all that makes an environment unfit for training; whatever else is worth knowing is told."""
    found = findings(make)
    for finding in found:
        if not finding.fatal:
            tell(finding.text)
    if fatal := [finding.text for finding in found if finding.fatal]:
        raise SettingsError("; ".join(fatal))


def findings(make: Callable[[], gymnasium.Env], steps: int = 200, seed: int = 0) -> list[Finding]:
    """What random play finds in the environments that a factory makes, fatal things first; never raises for what these do."""
    facts: list[Fact] = []  # of the first environment, for the second to be compared with
    fresh = anew(make)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter(
            "ignore"
        )  # Gymnasium's own checker warns of some of this, at greater length
        found = visit(fresh, "the environment", lambda env: examine(env, steps, seed, facts))
        if not any(finding.fatal for finding in found):
            found += visit(fresh, "a second environment", lambda env: repeat(env, facts, seed))
    return sorted(dict.fromkeys(found), key=lambda finding: not finding.fatal)


def anew(make: Callable[[], gymnasium.Env]) -> Callable[[], gymnasium.Env]:
    """The factory, which is Broken where it gives what it has given before."""
    given: list[Any] = []

    def fresh() -> gymnasium.Env:
        env = make()
        if any(env is before for before in given):
            raise Broken("the factory gave the same environment twice: make a new one at each call")
        given.append(env)
        return env

    return fresh


def visit(
    make: Callable[[], gymnasium.Env], which: str, use: Callable[[gymnasium.Env], Iterator[Finding]]
) -> list[Finding]:
    """What `use` finds in a new environment, which is closed whatever happens."""
    found: list[Finding] = []
    try:
        env = made(make, which)
    except Broken as fault:
        return [Finding(True, str(fault))]
    try:
        for finding in use(env):
            found.append(finding)  # what was found before it broke counts
    except Broken as fault:
        found.append(Finding(True, str(fault)))
    except ANY as error:  # attributes, spaces and observations may be of its own making, too
        found.append(Finding(True, raised(f"a look at {which}", error)))
    finally:
        try:
            env.close()
        except ANY as error:
            found.append(Finding(False, raised("close()", error)))
    return found


def made(make: Callable[[], Any], which: str) -> gymnasium.Env:
    """A new environment."""
    try:
        env = make()
    except Broken:
        raise
    except ANY as error:
        raise Broken(raised(f"making {which}", error)) from None
    if isinstance(env, gymnasium.Env):
        return env
    kind, must = type(env).__name__, "the factory must return a gymnasium.Env"
    if env is None:
        raise Broken(f"{must}, not None: end it with return env")
    if isinstance(env, type):
        raise Broken(f"{must}, not the class {env.__name__}: return {env.__name__}()")
    with contextlib.suppress(*ANY):
        env.close()  # it may hold processes or windows, and is refused as it is
    if isinstance(env, VectorEnv):
        raise Broken(
            f"{must}, not a {kind}: return a single environment, of which ersac makes as many as it needs"
        )
    if any(base.__module__.split(".")[0] == "gym" for base in type(env).__mro__):
        raise Broken(
            f"{must}, not a {kind} of the old gym: derive it from gymnasium.Env, or wrap it with shimmy"
        )
    raise Broken(f"{must}, not a {kind}: derive its class from gymnasium.Env")


def examine(env: gymnasium.Env, steps: int, seed: int, facts: list[Fact]) -> Iterator[Finding]:
    """All that one environment shows by itself; `facts` is filled with what it answered."""
    yield from of_actions(space_of(env, "action_space"))
    yield from of_observations(space_of(env, "observation_space"))
    if getattr(env, "render_mode", None) == "human":
        yield Finding(
            False, "render_mode is 'human', which draws every step: leave it out for training"
        )
    waiting = list(CHECKS)
    for answer in play_steps(env, draw_action(env, steps, seed), seed):
        facts.append(answer.fact)
        for check in list(waiting):
            if finding := check(answer):
                waiting.remove(check)  # one of a kind
                yield finding
    played = steps_of(facts)
    if played < steps:
        yield Finding(
            False,
            f"only {played} of {steps} steps were checked in {PATIENCE_SECONDS:g} s: training will be as slow",
        )
    for review in REVIEWS:
        if finding := review(facts):
            yield finding


def repeat(env: gymnasium.Env, facts: list[Fact], seed: int) -> Iterator[Finding]:
    """Whether a second environment answers as the first did, and begins again as it began."""
    answers = [
        answer.fact for answer in play_steps(env, draw_action(env, steps_of(facts), seed), seed)
    ]
    begun = digest_of(
        read_parts(env.observation_space, reset(env, seed=seed, options=None), "at a second reset")
    )
    if begun != answers[0].observation:
        change = f"{SEEDING}, and set all state anew (a wrapper with running statistics is another cause)"
        yield Finding(
            False, f"reset(seed={seed}) gives another observation when it is called again: {change}"
        )
    elif difference := first_difference(facts, answers):
        yield Finding(
            False,
            f"not deterministic: with seed {seed} and the same actions two environments differ {difference}: {SEEDING}",
        )


def first_difference(facts: list[Fact], answers: list[Fact]) -> str | None:
    """In what two plays differ first, and where."""
    for one, other in zip(facts, answers, strict=False):  # a slow one may have got less far
        for name in ("observation", "reward", "terminated", "truncated"):
            if repr(getattr(one, name)) != repr(getattr(other, name)):  # where NaN is like NaN
                return f"in {name} {one.where}"
    return None


def steps_of(facts: list[Fact]) -> int:
    """How many steps were played."""
    return sum(not fact.is_reset for fact in facts)


def draw_action(env: gymnasium.Env, steps: int, seed: int) -> list[Any]:
    """Actions to play: the two at the ends of the space first, then random ones. The environment's own space is left as it is."""
    try:
        space = copy.deepcopy(env.action_space)
        space.seed(seed)
        ends: list[Any] = []
        if isinstance(space, spaces.Discrete):
            ends = [
                np.int64(end) for end in (space.start, int(space.start) + int(space.n) - 1)
            ]  # what sample() gives
        elif isinstance(space, spaces.Box) and space.is_bounded():
            ends = [space.low.copy(), space.high.copy()]
        return [*ends, *(space.sample() for _ in range(steps))][:steps]
    except ANY as error:
        raise Broken(raised("action_space.sample()", error)) from None


def play_steps(env: gymnasium.Env, actions: Iterable[Any], seed: int) -> Iterator[Answer]:
    """What an environment answers to some actions, beginning anew where an episode ends; Broken where it cannot go on."""
    until = time.monotonic() + PATIENCE_SECONDS
    space = env.observation_space
    observation, where = reset(env, seed=seed, options=None), "at the first reset"
    parts = read_parts(space, observation, where)
    fact = Fact(where, True, digest_of(parts))
    yield Answer(fact, parts)
    for number, action in enumerate(actions, 1):
        if number > 1 and time.monotonic() > until:
            return
        if fact.ended:
            observation, where = reset(env), f"at the reset after step {number - 1}"
            parts = read_parts(space, observation, where)
            fact = Fact(where, True, digest_of(parts))
            yield Answer(fact, parts)
        before, digest, where = observation, fact.observation, f"at step {number}"
        given = copy.deepcopy(action)
        observation, reward, terminated, truncated, info = step(env, given, where)
        parts, value = read_parts(space, observation, where), number_of(reward)
        fact = Fact(
            where,
            False,
            digest_of(parts),
            np.nan if value is None else value,
            terminated,
            truncated,
        )
        changed = digest_of(read_parts(space, before, where)) != digest
        yield Answer(
            fact,
            parts,
            reward,
            info,
            changed,
            isinstance(action, np.ndarray) and not np.array_equal(given, action),
        )


def reset(env: gymnasium.Env, **how: Any) -> Any:
    """The first observation of an episode."""
    try:
        return asked(env, lambda env: env.reset(**how), "reset()", reset_fault)[0]
    except Broken:
        if text := signature_fault(env) or signature_fault(env.unwrapped):
            raise Broken(text) from None
        raise


def step(env: gymnasium.Env, action: Any, where: str) -> tuple[Any, Any, bool, bool, Mapping]:
    """The five values that a step returns, the two flags as bool."""
    answer = asked(
        env,
        lambda env: env.step(action),
        f"step({short_repr(action)}) {where}",
        lambda answer: step_fault(answer, where),
    )
    observation, reward, terminated, truncated, info = answer
    return observation, reward, bool(terminated), bool(truncated), info


def asked(
    env: gymnasium.Env,
    call: Callable[[gymnasium.Env], Any],
    name: str,
    fault: Callable[[Any], str | None],
) -> Any:
    """What a call returns; Broken where it raises or returns something of another form."""
    try:
        answer = call(env)
    except ANY as error:
        raise Broken(bare_fault(env, call, fault) or raised(name, error)) from None
    if text := fault(answer):
        raise Broken(text)
    return answer


def bare_fault(
    env: gymnasium.Env, call: Callable[[gymnasium.Env], Any], fault: Callable[[Any], str | None]
) -> str | None:
    """What is wrong with the answer of the environment inside its wrappers, over which they stumble with a text of their own."""
    try:
        return fault(call(env.unwrapped)) if env.unwrapped is not env else None
    except ANY:
        return None


def reset_fault(answer: Any) -> str | None:
    """What is wrong with the form of what reset returned."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        return f"{RETURN_RESET}, not {describe_value(answer)}: return observation, {{}}"
    if not isinstance(answer[1], Mapping):
        return f"{RETURN_RESET} with a dict as info, not {describe_value(answer[1])}: return observation, {{}}"
    return None


def step_fault(answer: Any, where: str) -> str | None:
    """What is wrong with the form of what step returned."""
    if isinstance(answer, tuple) and len(answer) == 4:
        return f"{RETURN_STEP}, not the 4 values of the old gym {where}: return done as terminated, and truncated=True at a time limit only"
    if not isinstance(answer, tuple) or len(answer) != 5:
        return f"{RETURN_STEP}, not {describe_value(answer)} {where}"
    if not isinstance(answer[4], Mapping):
        return f"{RETURN_STEP} with a dict as info, not {describe_value(answer[4])} {where}: return {{}} where there is nothing to tell"
    for name, flag in zip(("terminated", "truncated"), answer[2:4], strict=True):
        if not is_flag(flag):
            return f"{name} must be True or False, not {describe_value(flag)} {where}: return bool({name}), as {RETURN_STEP}"
    return None


def signature_fault(env: gymnasium.Env) -> str | None:
    """What is wrong with the parameters of reset."""
    try:
        signature = inspect.signature(env.reset)
    except (TypeError, ValueError):  # not written in Python
        return None
    try:
        signature.bind(seed=0, options=None)
        signature.bind()
    except TypeError:
        takes = truncate(f"reset{signature}")
        return f"{takes} does not take seed= and options=: write def reset(self, *, seed=None, options=None) and return observation, {{}}"
    return None


def describe_value(value: Any) -> str:
    """What something is, as it reads after 'not'."""
    match value:
        case np.ndarray():
            return f"an array of shape {value.shape}"
        case tuple():
            return f"{len(value)} value{'' if len(value) == 1 else 's'}"
    return short_repr(value)


def raised(name: str, error: BaseException) -> str:
    """An exception in one line: its type, the first line of its text, and where it came from."""
    try:
        text = next(iter(str(error).strip().splitlines()), "")
    except ANY:  # exceptions are the environment's, too
        text = ""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = (
        "" if frame.filename == __file__ else f" ({Path(frame.filename).name}, line {frame.lineno})"
    )
    return f"{name} raised {type(error).__name__}{': ' if text else ''}{truncate(text)}{place}"


def number_of(value: Any) -> float | None:
    """One number, or None if it is something else."""
    try:
        array = np.asarray(value)
    except ANY:
        return None
    return float(array) if array.shape == () and array.dtype.kind in "biuf" else None


def is_flag(value: Any) -> bool:
    """Whether something says yes or no: a bool of whatever library, or 0 or 1."""
    return isinstance(value, bool) or (
        number_of(value) in (0.0, 1.0) and np.asarray(value).dtype.kind in "biu"
    )


def space_of(env: gymnasium.Env, name: str) -> spaces.Space:
    """A space of the environment."""
    try:
        space = getattr(env, name)
    except ANY:
        raise Broken(f"the environment has no {name}: set self.{name} in __init__") from None
    if not isinstance(space, spaces.Space):
        raise Broken(
            f"{name} must be a space of gymnasium, not {describe_value(space)}: take it from gymnasium.spaces"
        )
    return space


def of_actions(space: spaces.Space) -> Iterator[Finding]:
    """What ersac cannot play."""
    match space:
        case spaces.Discrete():
            if int(space.n) < 2:
                yield Finding(
                    True,
                    "action_space is Discrete(1), so there is nothing to choose: give it two actions or more",
                )
        case spaces.Box():
            if not np.issubdtype(space.dtype, np.floating):
                change = (
                    "declare it with dtype=np.float32, or number what can be done and use Discrete"
                )
                yield Finding(
                    True,
                    f"action_space is a Box of {space.dtype}, and ersac plays real numbers in a Box: {change}",
                )
            elif len(space.shape) != 1 or not space.shape[0]:
                yield Finding(
                    True,
                    f"action_space is a Box of shape {space.shape}, and ersac plays one row of numbers: use shape (n,)",
                )
            elif not space.is_bounded():
                entry = int(np.argmin(space.bounded_below & space.bounded_above))
                bounds = f"between {space.low[entry]:g} and {space.high[entry]:g}"
                yield Finding(
                    True, f"action[{entry}] lies {bounds}: give action_space finite bounds"
                )
            elif (fixed := space.low >= space.high).any():
                entry = int(np.argmax(fixed))
                yield Finding(
                    False,
                    f"action[{entry}] can only be {space.low[entry]:g}, low and high of action_space: leave it out",
                )
        case spaces.MultiDiscrete():
            n = int(np.prod(space.nvec, dtype=object))
            change = f"number its {n:,} combinations, Discrete({n})"
            yield Finding(
                True, f"action_space is MultiDiscrete, and ersac plays Discrete and Box: {change}"
            )
        case _:
            yield Finding(
                True,
                f"action_space is {type(space).__name__}, and ersac plays Discrete and Box: rewrite it as one of them",
            )


def of_observations(space: spaces.Space) -> Iterator[Finding]:
    """What ersac cannot read, and what it leaves out of a dict or a tuple."""
    parts = list(space_leaves(space))
    served = [(name, part) for name, part in parts if isinstance(part, NUMBERS)]
    if not served:
        known = ", ".join(kind.__name__ for kind in NUMBERS)
        yield Finding(
            True,
            f"observation_space is {type(space).__name__} without numbers: use {known}, or a Dict or Tuple of them",
        )
    elif left_out := [
        f"{name}, {type(part).__name__}" for name, part in parts if not isinstance(part, NUMBERS)
    ]:
        yield Finding(
            False,
            f"no numbers, so left out of what the agent sees: {truncate('; '.join(left_out))}",
        )
    if empty := [name for name, part in served if 0 in (part.shape or ())]:
        yield Finding(
            True, f"{empty[0]} is declared with a shape that holds nothing: give its space a size"
        )


def space_leaves(
    space: spaces.Space, name: str = "observation"
) -> Iterator[tuple[str, spaces.Space]]:
    """The spaces that are no dict or tuple, by the names of what is in them."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for entry, part in entries(space, name):
            yield from space_leaves(part, entry)
    else:
        yield name, space


def entries(space: spaces.Dict | spaces.Tuple, name: str) -> Iterator[tuple[str, spaces.Space]]:
    """The spaces inside one, by the names of what is in them."""
    inside = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    return ((f"{name}[{key!r}]", part) for key, part in inside)


def read_parts(
    space: spaces.Space, observation: Any, where: str, name: str = "observation"
) -> list[Part]:
    """The numbers of an observation; Broken where it is not made as its space says, or where they are no numbers."""
    match space:
        case spaces.Dict():
            if not isinstance(observation, Mapping):
                raise Broken(
                    f"{name} must be a dict, not {describe_value(observation)} {where}: its space is a Dict"
                )
            if lacking := [key for key in space.spaces if key not in observation]:
                raise Broken(
                    f"{name} has no {lacking[0]!r} {where}, which its space has: add it, or leave it out of observation_space"
                )
            given = [observation[key] for key in space.spaces]
        case spaces.Tuple():
            if not isinstance(observation, tuple | list) or len(observation) != len(space.spaces):
                raise Broken(
                    f"{name} must be a tuple of {len(space.spaces)}, not {describe_value(observation)} {where}: its space is a Tuple"
                )
            given = list(observation)
        case _:
            return (
                [number_part(space, observation, where, name)] if isinstance(space, NUMBERS) else []
            )
    inside = zip(entries(space, name), given, strict=True)
    return [
        part for (entry, kind), value in inside for part in read_parts(kind, value, where, entry)
    ]


def number_part(space: spaces.Space, given: Any, where: str, name: str) -> Part:
    """The part of an observation that has a space of numbers."""
    try:
        array = np.asarray(given)
    except ANY:
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise Broken(
            f"{name} must be numbers, not {describe_value(given)} {where}: return what observation_space.sample() is like"
        )
    return Part(name, space, given, array)


def digest_of(parts: list[Part]) -> str:
    """A digest of an observation."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(f"{part.name} {part.array.dtype} {part.array.shape} ".encode())
        digest.update(part.array.tobytes())
    return digest.hexdigest() if parts else ""


def shape(part: Part, where: str) -> Finding | None:
    """An observation of another shape than its space's."""
    if part.array.shape == part.space.shape:
        return None
    change = "return it, or declare observation_space, in the other's shape"
    return Finding(
        True,
        f"{part.name} has shape {part.array.shape} {where}, and its space {part.space.shape}: {change}",
    )


def misfit(part: Part, where: str) -> Finding | None:
    """Numbers that cannot become the space's without loss: Gymnasium refuses to put them into one array with others'."""
    given, wanted = part.array.dtype, part.space.dtype
    if np.can_cast(given, wanted, "same_kind"):
        return None
    return Finding(
        True,
        f"{part.name} is {given} {where}, and its space {wanted}: return {wanted}, or declare it with dtype=np.{given}",
    )


def dtype(part: Part, where: str) -> Finding | None:
    """Numbers that are converted to the space's kind."""
    name, given, wanted = part.name, part.array.dtype, part.space.dtype
    if not isinstance(part.space, spaces.Box) or misfit(
        part, where
    ):  # elsewhere a whole number is as good as another
        return None
    if not isinstance(part.given, np.ndarray | np.generic):
        return Finding(
            False,
            f"{name} is a {type(part.given).__name__} {where}, not an array: return np.asarray({name}, np.{wanted})",
        )
    if given != wanted:
        return Finding(
            False,
            f"{name} is {given} {where}, and its space {wanted}: return it with .astype(np.{wanted})",
        )
    return None


def finite(part: Part, where: str) -> Finding | None:
    """NaN or infinity in an observation."""
    bad = ~np.isfinite(part.array)
    if not bad.any():
        return None
    index = np.unravel_index(int(np.argmax(bad)), bad.shape)
    return Finding(
        True, f"{part.name}{index_text(index)} is {part.array[index]} {where}: {NON_FINITE}"
    )


def outside(part: Part, where: str) -> Finding | None:
    """An observation outside its space: where it is farthest."""
    low, high = limits(part.space)
    x = part.array
    if x.shape != part.space.shape or ((x >= low) & (x <= high)).all():
        return None
    x = np.where(np.isfinite(x), x, np.clip(0.0, low, high)).astype(
        np.float64
    )  # infinity is found elsewhere
    rounding = ROUNDING * np.maximum(1.0, np.abs(x)) if part.space.dtype.kind == "f" else 0.0
    beyond = np.maximum(low - x, x - high) - rounding
    index = np.unravel_index(int(np.argmax(beyond)), beyond.shape)
    if not beyond[index] > 0:
        return None
    below = x[index] < low[index]
    bound = (low if below else high)[index]
    side = f"{abs(x[index] - bound):.6g} {'below' if below else 'above'} the {'low' if below else 'high'} of its space, {bound:.6g}"
    return Finding(
        True,
        f"{part.name}{index_text(index)} is {x[index]:.6g} {where}, {side}: widen observation_space, or clip it",
    )


def limits(space: Any) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest that a space holds, entry by entry."""
    match space:
        case spaces.Box():
            return space.low, space.high
        case spaces.MultiBinary():
            return np.zeros(space.shape), np.ones(space.shape)
        case spaces.MultiDiscrete():
            return np.asarray(space.start), np.asarray(space.start + space.nvec - 1)
    return np.asarray(space.start), np.asarray(space.start + space.n - 1)


def index_text(index: tuple[Any, ...]) -> str:
    """An index as one would write it."""
    return f"[{', '.join(str(i) for i in index)}]" if index else ""


def no_number(answer: Answer) -> Finding | None:
    """A reward that is none."""
    if number_of(answer.reward) is not None:
        return None
    return Finding(
        True,
        f"reward must be one number, not {describe_value(answer.reward)} {answer.fact.where}: return float(reward)",
    )


def not_finite(answer: Answer) -> Finding | None:
    """NaN or infinity as a reward."""
    value = number_of(answer.reward)
    if value is None or np.isfinite(value):
        return None
    return Finding(True, f"reward is {value} {answer.fact.where}: {NON_FINITE}")


def stale(answer: Answer) -> Finding | None:
    """An observation that changes after it was given."""
    if not answer.stale:
        return None
    return Finding(
        False,
        f"the observation given before is changed in place {answer.fact.where}: return a copy, observation.copy()",
    )


def meddled(answer: Answer) -> Finding | None:
    """An action that is changed by being played."""
    if not answer.meddled:
        return None
    return Finding(
        False,
        f"step() changed the action it was given {answer.fact.where}: work on a copy, action = action.copy()",
    )


def hidden_limit(answer: Answer) -> Finding | None:
    """A time limit told as the old gym did."""
    if answer.info.get("TimeLimit.truncated") is not True or answer.fact.truncated:
        return None
    return Finding(
        False,
        f"info has TimeLimit.truncated {answer.fact.where}, truncated is False: return a time limit as truncated=True",
    )


def scale(facts: list[Fact]) -> Finding | None:
    """Rewards far from the order of 1."""
    sizes = [abs(fact.reward) for fact in facts if np.isfinite(fact.reward) and fact.reward]
    if not sizes or REWARD_SMALL <= max(sizes) <= REWARD_LARGE:
        return None
    change = "--scale-rewards, on by default, brings returns to the order of 1; without it"
    return Finding(
        False,
        f"the largest reward seen has the size {max(sizes):.3g}: {change} divide them by about {max(sizes):.0e}",
    )


def both_ends(facts: list[Fact]) -> Finding | None:
    """Episodes that all end twice: by themselves and by a time limit. One that does may be an accident."""
    ends = [fact for fact in facts if fact.ended]
    if not ends or not all(fact.terminated and fact.truncated for fact in ends):
        return None
    change = "return truncated=True for a time limit only, and terminated=True for what is over"
    return Finding(
        False,
        f"terminated and truncated are both True at the end of every episode (first {ends[0].where}): {change}",
    )


def no_beginning(facts: list[Fact]) -> Finding | None:
    """Episodes that are over as soon as they begin."""
    starts = [i for i, fact in enumerate(facts) if fact.is_reset]
    lengths = [
        after - start - 1 for start, after in zip(starts, [*starts[1:], len(facts)], strict=True)
    ]
    later = lengths[1:-1]  # the last one was cut off
    if len(later) < TELLING_EPISODES or set(later) != {1}:
        return None
    which = (
        f"{len(later)} episodes after the first, which had {lengths[0]} steps,"
        if lengths[0] > 1
        else f"{len(lengths) - 1} episodes"
    )
    return Finding(
        False,
        f"all {which} ended at their first step: unless that is the task, reset() must set the state anew",
    )


def never_changes(facts: list[Fact]) -> Finding | None:
    """An observation that tells nothing."""
    if (
        len(facts) < TELLING_ANSWERS
        or not facts[0].observation
        or len({fact.observation for fact in facts}) > 1
    ):
        return None
    return Finding(
        False,
        f"the observation never changes, over {steps_of(facts)} steps: is the state left out?",
    )


def in_any_part(check: Callable[[Part, str], Finding | None]) -> Callable[[Answer], Finding | None]:
    """The check of a whole answer that finds what is in the first part to have it."""
    return lambda answer: next(
        (finding for part in answer.parts if (finding := check(part, answer.fact.where))), None
    )


CHECKS: tuple[Callable[[Answer], Finding | None], ...] = (
    *map(in_any_part, (shape, misfit, dtype, finite, outside)),
    *(no_number, not_finite, stale, meddled, hidden_limit),
)
REVIEWS: tuple[Callable[[list[Fact]], Finding | None], ...] = (
    scale,
    both_ends,
    no_beginning,
    never_changes,
)
