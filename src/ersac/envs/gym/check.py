"""Find what is wrong with a Gymnasium environment before training on it. No jax here.

Two environments are played with the same random actions. The rules are in `check_rules`.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from ersac.config import SettingsError
from ersac.envs.base import ANY_ERROR
from ersac.envs.gym import probe
from ersac.envs.gym.check_rules import (
    PLAY_RULES,
    STEP_RULES,
    Finding,
    check_action_space,
    check_observation_space,
)
from ersac.envs.gym.probe import (
    InvalidEnv,
    StepRecord,
    count_steps,
    describe_value,
    error_text,
    play_steps,
    random_actions,
)

FIX_SEEDING = "call super().reset(seed=seed) in reset() and draw only from self.np_random"


def check_gym_env(make: Callable[[], gymnasium.Env], on_warning: Callable[[str], None]) -> None:
    """SettingsError with all fatal findings; the others are passed to `on_warning`."""
    found = findings(make)
    for finding in found:
        if not finding.fatal:
            on_warning(finding.text)
    if fatal := [finding.text for finding in found if finding.fatal]:
        raise SettingsError("; ".join(fatal))


def findings(make: Callable[[], gymnasium.Env], steps: int = 200, seed: int = 0) -> list[Finding]:
    """All findings, the fatal ones first; exceptions of the environment are findings too."""
    records: list[StepRecord] = []  # of the first environment
    make_new = require_new_envs(make)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # Gymnasium warns of some findings itself
        found = inspect_new_env(
            make_new, "the environment", lambda env: check_play(env, steps, seed, records)
        )
        if not any(finding.fatal for finding in found):
            found += inspect_new_env(
                make_new, "a second environment", lambda env: check_repeat(env, records, seed)
            )
    return sorted(dict.fromkeys(found), key=lambda finding: not finding.fatal)


def require_new_envs(make: Callable[[], gymnasium.Env]) -> Callable[[], gymnasium.Env]:
    """A factory that raises InvalidEnv where `make` returns an environment for the second time."""
    returned: list[Any] = []

    def make_new() -> gymnasium.Env:
        env = make()
        if any(env is before for before in returned):
            raise InvalidEnv(
                "the factory returned the same environment twice: create a new one at each call"
            )
        returned.append(env)
        return env

    return make_new


def inspect_new_env(
    make: Callable[[], gymnasium.Env],
    name: str,
    inspect: Callable[[gymnasium.Env], Iterator[Finding]],
) -> list[Finding]:
    """The findings of `inspect` in a new environment, which is always closed."""
    found: list[Finding] = []
    try:
        env = create_env(make, name)
    except InvalidEnv as error:
        return [Finding(True, str(error))]
    try:
        for finding in inspect(env):
            found.append(finding)  # one by one: those before an error are kept
    except InvalidEnv as error:
        found.append(Finding(True, str(error)))
    except ANY_ERROR as error:  # attributes, spaces and observations may be custom classes
        found.append(Finding(True, error_text(f"inspecting {name}", error)))
    finally:
        try:
            env.close()
        except ANY_ERROR as error:
            found.append(Finding(False, error_text("close()", error)))
    return found


def create_env(make: Callable[[], Any], name: str) -> gymnasium.Env:
    """A new environment; InvalidEnv where the factory fails or returns something else."""
    try:
        env = make()
    except InvalidEnv:
        raise
    except ANY_ERROR as error:
        raise InvalidEnv(error_text(f"creating {name}", error)) from None
    if isinstance(env, gymnasium.Env):
        return env
    expected = "the factory must return a gymnasium.Env"
    if env is None:
        raise InvalidEnv(f"{expected}, but returned None: end it with return env")
    if isinstance(env, type):
        cls = env.__name__
        raise InvalidEnv(f"{expected}, but returned the class {cls}: return {cls}()")
    with contextlib.suppress(*ANY_ERROR):
        env.close()  # it may hold processes or windows
    if isinstance(env, VectorEnv):
        change = "return a single environment, because ersac creates as many as it needs"
    elif any(base.__module__.split(".")[0] == "gym" for base in type(env).__mro__):
        change = "the old gym is not supported; derive it from gymnasium.Env, or use shimmy"
    else:
        change = "derive its class from gymnasium.Env"
    raise InvalidEnv(f"{expected}, but returned a {type(env).__name__}: {change}")


def check_play(
    env: gymnasium.Env, steps: int, seed: int, records: list[StepRecord]
) -> Iterator[Finding]:
    """The findings in one environment; appends what it returned to `records`."""
    yield from check_action_space(read_space(env, "action_space"))
    yield from check_observation_space(read_space(env, "observation_space"))
    if getattr(env, "render_mode", None) == "human":
        yield Finding(
            False, "render_mode is 'human', which renders every step: remove it for training"
        )
    rules = list(STEP_RULES)
    for result in play_steps(env, random_actions(env, steps, seed), seed):
        records.append(result.record)
        for rule in list(rules):
            if finding := rule(result):
                rules.remove(rule)  # each rule reports once
                yield finding
    if (played := count_steps(records)) < steps:
        yield Finding(
            False,
            f"only {played} of {steps} steps were checked in {probe.MAX_SECONDS:g} s: "
            "the environment is slow, so training will be slow",
        )
    yield from filter(None, (rule(records) for rule in PLAY_RULES))


def check_repeat(env: gymnasium.Env, records: list[StepRecord], seed: int) -> Iterator[Finding]:
    """Whether a second environment returns the same, and the same again after a second reset."""
    actions = random_actions(env, count_steps(records), seed)
    repeated = [result.record for result in play_steps(env, actions, seed)]
    observation, _ = probe.reset(env, seed=seed, options=None)
    arrays = probe.read_arrays(env.observation_space, observation, "at a second reset")
    if probe.observation_digest(arrays) != repeated[0].observation:
        yield Finding(
            False,
            f"reset(seed={seed}) returns a different observation when it is called again: "
            f"{FIX_SEEDING}, and set all state (a wrapper with running statistics has this effect)",
        )
    elif difference := first_difference(records, repeated):
        yield Finding(
            False,
            f"not deterministic: with seed {seed} and the same actions two environments differ "
            f"{difference}: {FIX_SEEDING}",
        )


def first_difference(records: list[StepRecord], repeated: list[StepRecord]) -> str | None:
    """The first field in which two plays differ, and where."""
    for one, other in zip(records, repeated, strict=False):  # a slow play may be shorter
        for name in ("observation", "reward", "terminated", "truncated"):
            if repr(getattr(one, name)) != repr(getattr(other, name)):  # NaN equals NaN
                return f"in {name} {one.where}"
    return None


def read_space(env: gymnasium.Env, name: str) -> spaces.Space:
    """A space of the environment; InvalidEnv where there is none."""
    try:
        space = getattr(env, name)
    except ANY_ERROR:
        raise InvalidEnv(f"the environment has no {name}: set self.{name} in __init__") from None
    if not isinstance(space, spaces.Space):
        raise InvalidEnv(
            f"{name} must be a Gymnasium space, but is {describe_value(space)}: "
            "take one from gymnasium.spaces"
        )
    return space
