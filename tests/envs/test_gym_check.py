"""The checker reports each fault of an environment in one line, and nothing for a correct one."""

import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from ersac.config import SettingsError  # noqa: E402
from ersac.envs.base import Box, Discrete, MultiDiscrete  # noqa: E402
from ersac.envs.gym import probe  # noqa: E402
from ersac.envs.gym.check import check_gym_env, findings  # noqa: E402
from ersac.envs.gym.make import host_env  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
import broken  # noqa: E402

FATAL, MILD = True, False
ONE = broken.Walk()
FAULTS = [
    (
        broken.RaisesWhenMade,
        FATAL,
        "creating the environment raised ValueError: no such map (broken.py, line ",
    ),
    (
        broken.RaisesWhenMadeAgain,
        FATAL,
        "creating a second environment raised OSError: the port is taken",
    ),
    (broken.ExitsWhenMade, FATAL, "creating the environment raised SystemExit: no display"),
    (broken.RaisesSomethingUnspeakable, FATAL, "reset() raised Unspeakable (broken.py"),
    (
        broken.LooksLikeOne,
        FATAL,
        "but returned a LooksLikeOne: derive its class from gymnasium.Env",
    ),
    (
        broken.OldGym,
        FATAL,
        "but returned a OldGym: the old gym is not supported; derive it from gymnasium.Env",
    ),
    (lambda: None, FATAL, "but returned None: end it with return env"),
    (lambda: broken.Walk, FATAL, "but returned the class Walk: return Walk()"),
    (
        lambda: gymnasium.vector.SyncVectorEnv([broken.Walk]),
        FATAL,
        "but returned a SyncVectorEnv: return a single environment",
    ),
    (lambda: ONE, FATAL, "returned the same environment twice"),
    (ONE, FATAL, "creating the environment raised TypeError: 'Walk' object is not callable"),
    (broken.NoActionSpace, FATAL, "has no action_space: set self.action_space"),
    (broken.SpaceOfNobody, FATAL, "observation_space must be a Gymnasium space, but is "),
    (
        broken.ResetsToAnArray,
        FATAL,
        "reset() must return (observation, info), but returned an array of shape (2,): "
        "return observation, {}",
    ),
    (
        broken.ResetsWithoutInfo,
        FATAL,
        "reset() must return (observation, info) with a dict as info, but info is None",
    ),
    (
        broken.ResetsWithoutSeed,
        FATAL,
        "reset() must accept seed= and options=, both optional: write "
        "def reset(self, *, seed=None, options=None)",
    ),
    (
        broken.ResetsWithoutDefaults,
        FATAL,
        "reset(seed, options) must accept seed= and options=, both optional",
    ),
    (broken.ResetRaises, FATAL, "reset() raised KeyError: 'map' (broken.py, line "),
    (
        broken.OldStep,
        FATAL,
        "but returned the 4 values of the old gym at step 1: return done as terminated",
    ),
    (
        lambda: gymnasium.wrappers.TimeLimit(broken.OldStep(), 9),
        FATAL,
        "but returned the 4 values of the old gym",
    ),
    (
        lambda: gymnasium.wrappers.OrderEnforcing(broken.ResetsWithoutSeed()),
        FATAL,
        "reset() must accept seed=",
    ),
    (
        broken.StepsToAnArray,
        FATAL,
        "step() must return (observation, reward, terminated, truncated, info), but returned an "
        "array of shape (2,)",
    ),
    (
        broken.StepRaises,
        FATAL,
        "step(np.int64(1)) at step 2 raised IndexError: list index out of range (broken.py, line ",
    ),
    (broken.InfoIsNone, FATAL, "with a dict as info, but info is None at step 1"),
    (broken.OrderOfValues, FATAL, "terminated must be True or False, but is 0.0 at step 1"),
    (
        broken.FlagIsNone,
        FATAL,
        "truncated must be True or False, but is None at step 1: return bool(truncated)",
    ),
    (
        broken.FlagIsAnArray,
        FATAL,
        "terminated must be True or False, but is an array of shape (1,)",
    ),
    (
        broken.BothFlags,
        MILD,
        "terminated and truncated are both True at the end of every episode (first at step ",
    ),
    (broken.LimitInInfo, MILD, "info has TimeLimit.truncated at step "),
    (
        broken.Shape,
        FATAL,
        "observation has shape (1, 2) at the first reset, but its space has shape (2,)",
    ),
    (broken.Kind, FATAL, "observation is float32 at the first reset, but its space is uint8"),
    (
        broken.WholeAsFloat,
        FATAL,
        "observation is float64 at the first reset, but its space is int64",
    ),
    (broken.Doubles, MILD, "observation is float64 at the first reset, but its space is float32"),
    (broken.AsList, MILD, "observation is a list at the first reset, not an array"),
    (
        broken.Words,
        FATAL,
        "observation must be numeric, but is 'left of the middle' at the first reset",
    ),
    (broken.Ragged, FATAL, "observation must be numeric, but is [[1.0], [1.0, 2.0]]"),
    (broken.TooFar, FATAL, "above the high of its space, 1: widen observation_space"),
    (
        broken.TooLow,
        FATAL,
        "observation[1] is -3 at the first reset, 2 below the low of its space, -1",
    ),
    (broken.TooLarge, FATAL, "observation is 10 at step "),
    (broken.TooMany, FATAL, "observation[1] is 30 at step 52, 1 above the high of its space, 29"),
    (
        broken.TooManyInDict,
        FATAL,
        "observation['time'] is 30 at step 52, 1 above the high of its space, 29",
    ),
    (broken.NoDict, FATAL, "observation must be a dict, but is an array of shape (2,)"),
    (broken.LacksAKey, FATAL, "observation has no 'time' at the first reset"),
    (broken.ShortTuple, FATAL, "observation must be a tuple of 2, but is 1 value"),
    (broken.NotANumber, FATAL, "observation[0] is inf at "),
    (broken.Infinite, FATAL, "observation[1] is -inf at the first reset"),
    (broken.RewardIsNaN, FATAL, "reward is nan at step 3"),
    (broken.RewardIsNone, FATAL, "reward must be one number, but is None at step 1"),
    (broken.RewardIsThree, FATAL, "reward must be one number, but is an array of shape (3,)"),
    (broken.RewardIsWord, FATAL, "reward must be one number, but is '1.0'"),
    (
        broken.RewardIsLarge,
        MILD,
        "the largest absolute reward is 2.5e+04: --scale-rewards, on by default",
    ),
    (
        broken.RewardIsSmall,
        MILD,
        "the largest absolute reward is 2e-06: --scale-rewards, on by default",
    ),
    (
        broken.Unseeded,
        MILD,
        "reset(seed=0) returns a different observation when it is called again",
    ),
    (
        broken.UnseededWind,
        MILD,
        "not deterministic: with seed 0 and the same actions two environments differ in "
        "observation at step ",
    ),
    (broken.UnseededReward, MILD, "two environments differ in reward at step 1"),
    (broken.Bandit, MILD, "all 199 episodes ended at their first step"),
    (
        broken.InPlace,
        MILD,
        "the previous observation was changed in place at step 1: return a copy",
    ),
    (
        broken.InPlaceInDict,
        MILD,
        "the previous observation was changed in place at step 1: return a copy",
    ),
    (broken.Blind, MILD, "the observation never changes, over 200 steps: include the state"),
    (broken.Meddles, MILD, "step() changed the action passed to it at step 1"),
    (broken.OneAction, FATAL, "action_space is Discrete(1)"),
    (broken.MixedActions, FATAL, "action_space is Dict, but ersac supports only Discrete, Multi"),
    (broken.MaskedLater, FATAL, "info has action_mask at step 1, but not at the first reset"),
    (broken.NothingAllowed, FATAL, "action_mask allows no choice: allow at least one"),
    (broken.ShortMask, FATAL, "action_mask has 3 entries, but the action space 2 choices"),
    (broken.Unbounded, FATAL, "action[0] has the bounds -inf and 1: make both of them finite"),
    (broken.TwoRows, FATAL, "action_space is a Box of shape (2, 2)"),
    (broken.WholeActions, FATAL, "action_space is a Box of int64"),
    (broken.StuckAction, MILD, "action[1] can only be 0"),
    (broken.ReadsText, FATAL, "observation_space is Text, which has no numbers"),
    (broken.ReadsNothing, FATAL, "observation has no entries, shape (0,)"),
    (broken.TextBeside, MILD, "ignored by the agent: observation['said'] (Text)"),
    (broken.CloseRaises, MILD, "close() raised RuntimeError: already closed"),
    (broken.Draws, MILD, "render_mode is 'human'"),
    (broken.PropertyRaises, FATAL, "inspecting the environment raised RuntimeError: no display"),
]
EXTRA_FINDINGS = {  # besides the fault itself
    broken.ReadsNothing: 1,  # the observation never changes
}
CORRECT = [
    broken.Walk,
    broken.Continuous,
    broken.FromOne,
    broken.ManyActions,
    broken.DictOfActions,
    broken.Masked,
    broken.Nested,
    broken.Rounds,
    broken.Warns,
]
REGISTERED = [  # environments of Gymnasium, all correct
    *(
        "CartPole-v1",
        "FrozenLake8x8-v1",
        "MountainCar-v0",
        "Acrobot-v1",
        "Pendulum-v1",
        "Taxi-v4",
        "Blackjack-v1",
        "CliffWalking-v1",
    ),
    *("CliffWalkingSlippery-v1", "MountainCarContinuous-v0"),
]


@pytest.mark.parametrize(
    ("make", "fatal", "phrase"),
    FAULTS,
    ids=[getattr(make, "__name__", "instance") for make, _, _ in FAULTS],
)
def test_a_fault_is_found_once_and_nothing_else(make, fatal, phrase):
    found = findings(make)
    assert [
        (finding.fatal, phrase in finding.text) for finding in found if phrase in finding.text
    ] == [(fatal, True)], found
    assert len(found) == 1 + EXTRA_FINDINGS.get(make, 0), found
    assert all(
        finding.text and finding.text.isprintable() and "Traceback" not in finding.text
        for finding in found
    )


def test_fatal_findings_come_first_and_raise():
    class Both(broken.Doubles, broken.RewardIsNone):
        pass

    assert [finding.fatal for finding in findings(Both)] == [True, False]
    warned: list[str] = []
    with pytest.raises(
        SettingsError,
        match=r"^reward must be one number, but is None at step 1: return float\(reward\)$",
    ):
        check_gym_env(Both, warned.append)
    assert len(warned) == 1
    assert "float64" in warned[0]


def test_several_fatal_findings_are_one_line():
    class Both(broken.Shape, broken.RewardIsNone):
        pass

    with pytest.raises(
        SettingsError, match=r"^observation has shape .*; reward must be one number, [^;]*$"
    ):
        check_gym_env(Both, pytest.fail)


def test_a_reset_that_does_not_reset_the_state_is_a_warning():
    found = findings(broken.EndsAtOnce)
    assert not any(finding.fatal for finding in found)
    second_reset, one_step = sorted(finding.text for finding in found)[::-1]
    assert "reset(seed=0) returns a different observation when it is called again" in second_reset
    assert "episodes after the first, which had 30 steps, ended at their first step" in one_step


@pytest.mark.parametrize("make", CORRECT)
def test_a_correct_environment_has_no_findings(make):
    check_gym_env(make, pytest.fail)


@pytest.mark.filterwarnings("ignore:step is deprecated")
@pytest.mark.parametrize("make", [*CORRECT, *(make for make, fatal, _ in FAULTS if not fatal)])
def test_an_environment_without_fatal_findings_can_be_played(make):
    env = host_env(make, "walk", envs=2)
    env.reset(0)
    match env.actions:
        case Discrete():
            actions = np.zeros(2, np.int64)
        case MultiDiscrete(sizes):
            actions = np.zeros((2, len(sizes)), np.int64)
        case Box(shape):
            actions = np.zeros((2, *shape), np.float32)
    for number in range(3):
        if make is broken.Masked:
            actions[:] = number % 2
        answer = env.step(actions)
        assert np.isfinite(answer.obs).all()
        assert np.isfinite(answer.reward).all()
    env.close()


@pytest.mark.parametrize("name", REGISTERED)
def test_environments_of_gymnasium_have_no_findings(name):
    assert findings(partial(gymnasium.make, name)) == []


def test_the_mission_of_a_grid_is_the_only_finding():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("minigrid")
    found = findings(lambda: gymnasium.make("MiniGrid-DoorKey-5x5-v0"))
    assert [finding.fatal for finding in found] == [False]
    assert "observation['mission'] (MissionSpace)" in found[0].text


def test_terminated_and_truncated_in_one_episode_is_no_finding():
    """A walk that sometimes terminates in the step of its time limit."""

    class Once(broken.Walk):
        def step(self, action):
            observation, reward, terminated, truncated, info = super().step(action)
            return (
                observation,
                reward,
                terminated or (truncated and self.np_random.random() < 0.5),
                truncated,
                info,
            )

    assert findings(Once) == []


def test_every_environment_is_closed():
    created = []

    class Counted(broken.Walk):
        def __init__(self):
            created.append(self)

    class Failing(Counted):
        def step(self, action):
            raise ValueError

    for cls in (Counted, Failing):
        before = broken.Walk.closed
        created.clear()
        findings(cls)
        assert broken.Walk.closed - before == len(created) > 0


def test_a_keyboard_interrupt_passes_and_the_environment_is_closed():
    class Interrupted(broken.Walk):
        def step(self, action):
            raise KeyboardInterrupt

    before = broken.Walk.closed
    with pytest.raises(KeyboardInterrupt):
        findings(Interrupted)
    assert broken.Walk.closed == before + 1


def test_a_slow_environment_is_checked_for_fewer_steps(monkeypatch):
    monkeypatch.setattr(probe, "MAX_SECONDS", 0.0)
    assert [finding.text for finding in findings(broken.Walk)] == [
        "only 1 of 200 steps were checked in 0 s: the environment is slow, so training will be slow"
    ]


def test_the_ends_of_the_action_space_are_played_first():
    played = []

    class Listens(broken.Walk):
        action_space = gymnasium.spaces.Discrete(1000, start=5)

        def step(self, action):
            played.append(int(action))
            return super().step(action % 2)

    findings(Listens, steps=4)
    assert played[:2] == [5, 1004]
    assert played[:4] == played[4:]  # the second environment gets the same actions


def test_only_the_first_episode_is_seeded():
    seeds = []

    class Listens(broken.Walk):
        def reset(self, *, seed=None, options=None):
            seeds.append(seed)
            return super().reset(seed=seed)

    findings(Listens, seed=7)
    first = seeds[: len(seeds) // 2]  # the second environment is reset once more
    assert first == [7] + [None] * (len(first) - 1)
    assert seeds == [*first, *first, 7]


def test_the_checker_does_not_import_jax():
    subprocess.run(
        [sys.executable, "-c", "import sys, ersac.envs.gym.check; sys.exit('jax' in sys.modules)"],
        check=True,
    )
