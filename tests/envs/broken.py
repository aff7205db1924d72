"""A correct environment, a random walk, and copies of it with one fault each."""

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
import warnings
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces


class Walk(gymnasium.Env):
    """A walk on a line from a random position to either end; observes its position and the time."""

    END, LIMIT = 10, 30
    observation_space: ClassVar = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space: ClassVar = spaces.Discrete(2)
    closed = 0  # of all walks

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.time = int(self.np_random.integers(-3, 4)), 0
        return self.observe(), {}

    def step(self, action):
        self.position += 1 if action else -1
        self.time += 1
        terminated = abs(self.position) >= self.END
        return (
            self.observe(),
            self.pay(terminated),
            terminated,
            self.time >= self.LIMIT and not terminated,
            {},
        )

    def observe(self) -> Any:
        return np.array([self.position / self.END, self.time / self.LIMIT], np.float32)

    def pay(self, terminated: bool) -> Any:
        return float(terminated and self.position > 0)

    def close(self):
        Walk.closed += 1


class RaisesWhenMade(Walk):
    def __init__(self):
        raise ValueError("no such map\nnor another")


class RaisesWhenMadeAgain(Walk):
    created = 0

    def __init__(self):
        RaisesWhenMadeAgain.created += 1
        if RaisesWhenMadeAgain.created % 2 == 0:
            raise OSError("the port is taken")


class ExitsWhenMade(Walk):
    def __init__(self):
        raise SystemExit("no display")


class RaisesSomethingUnspeakable(Walk):
    class Unspeakable(Exception):
        def __str__(self):
            raise RuntimeError

    def reset(self, *, seed=None, options=None):
        raise self.Unspeakable


class LooksLikeOne:
    """Has the methods of an environment, but is not derived from gymnasium.Env."""

    reset, step = Walk.reset, Walk.step


OldGym = type("OldGym", (), {"__module__": "gym.envs.classic"})


class NoActionSpace(gymnasium.Env):
    observation_space: ClassVar = Walk.observation_space
    reset, step = Walk.reset, Walk.step


class SpaceOfNobody(Walk):
    observation_space: ClassVar = (2,)


class ResetsToAnArray(Walk):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class ResetsWithoutInfo(Walk):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], None


class ResetsWithoutSeed(Walk):
    def reset(self):
        return super().reset()


class ResetsWithoutDefaults(Walk):
    def reset(self, seed, options):
        return super().reset(seed=seed)


class ResetRaises(Walk):
    def reset(self, *, seed=None, options=None):
        raise KeyError("map")


class OldStep(Walk):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, info


class StepsToAnArray(Walk):
    def step(self, action):
        return super().step(action)[0]


class StepRaises(Walk):
    def step(self, action):
        return super().step([0, 1, 2][action + 2])


class InfoIsNone(Walk):
    def step(self, action):
        return *super().step(action)[:4], None


class OrderOfValues(Walk):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, terminated, reward, truncated, info


class FlagIsNone(Walk):
    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, None, info


class FlagIsAnArray(Walk):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, np.array([terminated]), truncated, info


class BothFlags(Walk):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, terminated or truncated, info


class LimitInInfo(Walk):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return (
            observation,
            reward,
            terminated or truncated,
            False,
            {**info, "TimeLimit.truncated": bool(truncated)},
        )


class Shape(Walk):
    def observe(self):
        return super().observe()[None]


class Kind(Walk):
    """Floats in a space of bytes."""

    observation_space: ClassVar = spaces.Box(0, 255, (2,), np.uint8)

    def observe(self):
        return np.abs(super().observe())


class WholeAsFloat(Walk):
    observation_space: ClassVar = spaces.Discrete(21)

    def observe(self):
        return float(self.position + self.END)


class Doubles(Walk):
    def observe(self):
        return super().observe().astype(np.float64)


class AsList(Walk):
    def observe(self):
        return super().observe().tolist()


class Words(Walk):
    def observe(self):
        return "left of the middle"


class Ragged(Walk):
    def observe(self):
        return [[1.0], [1.0, 2.0]]


class TooFar(Walk):
    def observe(self):
        return super().observe() * np.float32(1.5)


class TooLow(Walk):
    def observe(self):
        return super().observe() - np.array([0, 3], np.float32)


class TooLarge(Walk):
    """The space does not contain the two end positions."""

    observation_space: ClassVar = spaces.Discrete(20, start=-10)

    def observe(self):
        return self.position


class TooMany(Walk):
    observation_space: ClassVar = spaces.MultiDiscrete([21, 30])

    def observe(self):
        return np.array([self.position + self.END, self.time])


class TooManyInDict(Walk):
    observation_space: ClassVar = spaces.Dict(
        {"position": spaces.Box(-1.0, 1.0, (), np.float32), "time": spaces.Discrete(30)}
    )

    def observe(self):
        return {"position": super().observe()[0], "time": self.time}


class NoDict(TooManyInDict):
    def observe(self):
        return Walk.observe(self)


class LacksAKey(TooManyInDict):
    def observe(self):
        return {"position": super().observe()["position"]}


class ShortTuple(Walk):
    observation_space: ClassVar = spaces.Tuple([spaces.Discrete(21), spaces.Discrete(31)])

    def observe(self):
        return (self.position + self.END,)


class NotANumber(Walk):
    def observe(self):
        return super().observe() / np.float32(self.position != 4)  # 0 / 0 and its like


class Infinite(Walk):
    observation_space: ClassVar = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observe(self):
        with np.errstate(all="ignore"):
            return np.log(np.abs(super().observe()))


class RewardIsNaN(Walk):
    def pay(self, terminated):
        return np.nan if self.time == 3 else 0.0


class RewardIsNone(Walk):
    def pay(self, terminated):
        return 1.0 if terminated else None


class RewardIsThree(Walk):
    def pay(self, terminated):
        return np.zeros(3)


class RewardIsWord(Walk):
    def pay(self, terminated):
        return "1.0"


class RewardIsLarge(Walk):
    def pay(self, terminated):
        return -25_000 if terminated else 0


class RewardIsSmall(Walk):
    def pay(self, terminated):
        return 2e-6


class Unseeded(Walk):
    """The first position is drawn from a generator that is not seeded."""

    rng = np.random.default_rng(1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = int(self.rng.integers(-9, 10))
        return self.observe(), {}


class UnseededWind(Walk):
    """The first position is seeded; the steps are not."""

    rng = np.random.default_rng(1)

    def step(self, action):
        return super().step(action if self.rng.random() < 0.5 else 1 - action)


class UnseededReward(Walk):
    rng = np.random.default_rng(1)

    def pay(self, terminated):
        return self.rng.normal()


class EndsAtOnce(Walk):
    """The state is set only in the constructor."""

    def __init__(self):
        self.position, self.time = 0, 0

    def reset(self, *, seed=None, options=None):
        return self.observe(), {}

    def observe(self):
        return np.clip(super().observe(), -1, 1)


class Bandit(Walk):
    LIMIT = 1


class InPlace(Walk):
    def __init__(self):
        self.observed = np.zeros(2, np.float32)

    def observe(self):
        self.observed[:] = super().observe()
        return self.observed


class InPlaceInDict(Walk):
    """Returns new arrays in the same dict."""

    observation_space: ClassVar = spaces.Dict({"position": Walk.observation_space})

    def __init__(self):
        self.observed = {}

    def observe(self):
        self.observed["position"] = super().observe()
        return self.observed


class Blind(Walk):
    def observe(self):
        return np.zeros(2, np.float32)


class Continuous(Walk):
    """Correct, with continuous actions."""

    action_space: ClassVar = spaces.Box(-2.0, 2.0, (1,), np.float32)

    def step(self, action):
        return super().step(action[0] > 0)


class Meddles(Continuous):
    def step(self, action):
        action /= 2
        return super().step(action)


class OneAction(Walk):
    action_space: ClassVar = spaces.Discrete(1)


class ManyActions(Walk):
    action_space: ClassVar = spaces.MultiDiscrete([3, 4])

    def step(self, action):
        return super().step(action[0] > 0)


class DictOfActions(Walk):
    action_space: ClassVar = spaces.Dict({"go": spaces.Discrete(2)})

    def step(self, action):
        return super().step(action["go"])


class MixedActions(Walk):
    action_space: ClassVar = spaces.Dict(
        {"go": spaces.Discrete(2), "far": spaces.Box(0.0, 1.0, (1,))}
    )

    def step(self, action):
        return super().step(action["go"])


class Masked(Walk):
    """Forbids the same direction twice in a row, and raises where that happens."""

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        self.allowed = [1, 1]
        return observation, info | self.mask()

    def step(self, action):
        if not self.allowed[int(action)]:
            raise ValueError(f"action {action} is not allowed")
        *results, info = super().step(action)
        self.allowed = [int(action), 1 - int(action)]
        return *results, info | self.mask()

    def mask(self):
        return {"action_mask": np.array(self.allowed, np.int8)}


class MaskedLater(Masked):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options=options)[0], {}

    def step(self, action):
        self.allowed = [1, 1]
        return super().step(action)


class NothingAllowed(Masked):
    def mask(self):
        return {"action_mask": np.zeros(2, np.int8)}


class ShortMask(Masked):
    def mask(self):
        return {"action_mask": np.ones(3, np.int8)}


class Unbounded(Continuous):
    action_space: ClassVar = spaces.Box(np.array([-np.inf], np.float32), np.array([1], np.float32))


class TwoRows(Continuous):
    action_space: ClassVar = spaces.Box(-1.0, 1.0, (2, 2), np.float32)

    def step(self, action):
        return super().step(action[0])


class WholeActions(Continuous):
    action_space: ClassVar = spaces.Box(-2, 2, (1,), np.int64)


class StuckAction(Continuous):
    action_space: ClassVar = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 0], np.float32))


class ReadsText(Walk):
    observation_space: ClassVar = spaces.Text(20)

    def observe(self):
        return "left of the middle"


class ReadsNothing(Walk):
    observation_space: ClassVar = spaces.Box(0, 1, (0,), np.float32)

    def observe(self):
        return np.zeros(0, np.float32)


class TextBeside(Walk):
    """Correct: the text is ignored."""

    observation_space: ClassVar = spaces.Dict(
        {"position": Walk.observation_space, "said": spaces.Text(20)}
    )

    def observe(self):
        return {"position": super().observe(), "said": "go on"}


class CloseRaises(Walk):
    def close(self):
        super().close()
        raise RuntimeError("already closed")


class Draws(Walk):
    render_mode = "human"


class PropertyRaises(Walk):
    @property
    def render_mode(self):
        raise RuntimeError("no display")


class Warns(Walk):
    """Correct, but it warns."""

    def step(self, action):
        warnings.warn("step is deprecated", UserWarning, stacklevel=2)
        return super().step(action)


class Rounds(Walk):
    """Correct: an entry exceeds one by the error of single precision."""

    def observe(self):
        return super().observe() * np.float32(1 + 1e-6)


class FromOne(Walk):
    """Correct: spaces that do not start at zero, flags of numpy, integer rewards."""

    action_space: ClassVar = spaces.Discrete(2, start=1)
    observation_space: ClassVar = spaces.Discrete(21, start=-10)

    def step(self, action):
        assert action in (1, 2)
        observation, reward, terminated, truncated, info = super().step(action - 1)
        return observation, int(reward), np.bool_(terminated), np.array(truncated), info

    def observe(self):
        return np.int32(self.position)


class Nested(Walk):
    """Correct: all supported spaces, nested."""

    observation_space: ClassVar = spaces.Dict(
        {
            "both": spaces.Tuple([spaces.Discrete(21), spaces.MultiBinary(2)]),
            "image": spaces.Box(0, 255, (2, 2, 3), np.uint8),
            "digits": spaces.MultiDiscrete([21, 31]),
        }
    )

    def observe(self):
        position = self.position + self.END
        image = np.full((2, 2, 3), position, np.uint8)
        return {
            "both": (position, np.array([position % 2, 1], np.int8)),
            "image": image,
            "digits": [position, self.time],
        }


LATE = 300  # steps of one environment before a late fault: more than the check plays


class Late(Walk):
    """Correct for some steps; then `spoil` changes what step() returns, or does something else."""

    steps = 0

    def step(self, action):
        self.steps += 1
        answer = super().step(action)
        return self.spoil(*answer) if self.steps > LATE else answer

    def spoil(self, observation, reward, terminated, truncated, info) -> Any:
        return observation, reward, terminated, truncated, info


class LateShape(Late):
    def spoil(self, observation, *rest):
        return observation[:1], *rest


class LateNaN(Late):
    def spoil(self, observation, *rest):
        return observation * np.float32(np.nan), *rest


class LateWords(Late):
    def spoil(self, observation, *rest):
        return "left of the middle", *rest


class LateNone(Late):
    def spoil(self, observation, *rest):
        return None, *rest


class LateFourValues(Late):
    def spoil(self, observation, reward, *rest):
        return observation, reward, False, {}


class LateNothing(Late):
    def spoil(self, *answer):
        return None


class LateRewardIsNaN(Late):
    def spoil(self, observation, reward, *rest):
        return observation, float("nan"), *rest


class LateRewardIsNone(Late):
    def spoil(self, observation, reward, *rest):
        return observation, None, *rest


class LateRewardIsAList(Late):
    def spoil(self, observation, reward, *rest):
        return observation, [0.0, 1.0], *rest


class LateRewardIsWord(Late):
    def spoil(self, observation, reward, *rest):
        return observation, "a lot", *rest


class LateRewardIsHuge(Late):
    """A number that single precision does not hold."""

    def spoil(self, observation, reward, *rest):
        return observation, 1e300, *rest


class LateFlagIsAnArray(Late):
    def spoil(self, observation, reward, terminated, *rest):
        return observation, reward, np.zeros(3, bool), *rest


class LateInfoIsNone(Late):
    def spoil(self, observation, reward, *rest):
        return observation, reward, True, False, 3


class LateDiscrete(Late):
    observation_space: ClassVar = spaces.Discrete(21)
    value: Any = 5000

    def observe(self):
        return self.position + self.END

    def spoil(self, observation, *rest):
        return self.value, *rest


class LateBelow(LateDiscrete):
    value = -3


class LateFloat(LateDiscrete):
    value = 2.5


class LateDigit(Late):
    """The code of [0, 40] is that of another state."""

    observation_space: ClassVar = spaces.MultiDiscrete([21, 31])

    def observe(self):
        return np.array([self.position + self.END, self.time])

    def spoil(self, observation, *rest):
        return np.array([0, 40]), *rest


class LateInDict(Late):
    """The one-hot entry would be written to its neighbour."""

    observation_space: ClassVar = spaces.Dict(
        {"position": spaces.Discrete(21), "time": spaces.Discrete(31)}
    )

    def observe(self):
        return {"position": self.position + self.END, "time": self.time}

    def spoil(self, observation, *rest):
        return observation | {"position": 25}, *rest


class LateRaises(Late):
    def spoil(self, *answer):
        raise ValueError("the motor is too hot\nand so is the pump")


class LateUnspeakable(Late):
    def spoil(self, *answer):
        raise RaisesSomethingUnspeakable.Unspeakable


class LateRecursion(Late):
    def spoil(self, *answer):
        return self.spoil(*answer)


class LateMemory(Late):
    def spoil(self, *answer):
        raise MemoryError


class LateExits(Late):
    def spoil(self, *answer):
        raise SystemExit(0)


class LateExitsInReset(Late):
    def reset(self, *, seed=None, options=None):
        if self.steps > LATE:
            raise SystemExit(0)
        return super().reset(seed=seed)


class LateDies(Late):
    """For worker processes."""

    def spoil(self, *answer):
        os._exit(7)


class LateCrashes(Late):
    """For worker processes."""

    def spoil(self, *answer):
        ctypes.string_at(0)


class LateHangs(Late):
    def spoil(self, *answer):
        time.sleep(1000)


class LateHoldsTheGil(Late):
    """As a C extension that never returns."""

    def spoil(self, *answer):
        ctypes.PyDLL(None).sleep(1000)


class LateMoves(Late):
    """Correct, but it changes the working directory."""

    def spoil(self, *answer):
        os.chdir("/")
        return answer


class LateTakesSignals(Late):
    """Correct, but it installs a handler of its own."""

    def spoil(self, *answer):
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return answer


class LateStartsAProcess(Late):
    """Correct, but it leaves a process."""

    process = None

    def spoil(self, *answer):
        if self.process is None:
            self.process = subprocess.Popen(["sleep", "1000"])
        return answer

    def close(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        super().close()


class LateDiesOnce(Late):
    """For worker processes: one of them dies once, at a file that it creates."""

    def spoil(self, *answer):
        with contextlib.suppress(FileExistsError):
            os.close(os.open(os.environ["DIES_ONCE"], os.O_CREAT | os.O_EXCL))
            os._exit(9)
        return answer


class Slow(Walk):
    SECONDS = float(os.environ.get("SLOW_SECONDS", "10"))

    def step(self, action):
        open(os.environ["SLOW_MARK"], "w").close()
        time.sleep(self.SECONDS)
        return super().step(action)


class Screen(Walk):
    """Raw frames of an Atari game."""

    observation_space: ClassVar = spaces.Box(0, 255, (210, 160, 3), np.uint8)

    def observe(self):
        return np.full((210, 160, 3), self.position + self.END, np.uint8)


class NumpyAction(Walk):
    """Correct: the action is numpy's, as Gymnasium's spaces sample it."""

    def step(self, action):
        return super().step(action.item())
