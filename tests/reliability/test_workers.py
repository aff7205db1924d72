"""Whatever becomes of a worker is told in one line, and none outlives its learner."""

import os
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ersac import api
from ersac.envs.gym import make, workers
from ersac.runs.exits import NonFinite, Resumable

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a worker cannot import a test
GOOD_STEPS = 400  # before something goes wrong: more than the checker plays
SEEN = np.zeros(2, np.float32)

LEARNER = """
import multiprocessing, sys, time
import gymnasium, numpy as np
from ersac.envs.gym.make import host_env

class Stuck(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        time.sleep(1000)

if __name__ == "__main__":
    env = host_env(Stuck, "stuck", 4, workers=3)
    env.reset(0)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    if sys.argv[1] == "stuck":
        env.step(np.zeros(4, np.int32))
    time.sleep(1000)
"""


class Faulty(gymnasium.Env):
    """Well for a while."""

    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)

    def __init__(self, what: str) -> None:
        self.what, self.steps = what, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return SEEN, {}

    def step(self, action):
        self.steps += 1
        well = SEEN, 0.0, self.steps % 10 == 0, False, {}
        if self.steps < GOOD_STEPS:
            return well
        match self.what:
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hangs":
                time.sleep(1000)
            case "raises":
                raise ValueError("no more")
            case "shape":
                return np.zeros(3, np.float32), *well[1:]
            case "nan":
                return SEEN, float("nan"), *well[2:]


FAULTS = {
    "killed": (Resumable, r"a worker died \(exit code -9\)"),
    "raises": (Resumable, r"failed in step\(\): ValueError: no more"),
    "shape": (
        Resumable,
        r"failed in step\(\): ValueError: an observation has shape \(3,\), but its space has shape \(2,\)",
    ),
    "nan": (NonFinite, r"reward"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_what_becomes_of_a_worker_is_told_in_one_line(what):
    kind, line = FAULTS[what]
    with pytest.raises(kind, match=line) as told:
        api.train(lambda: Faulty(what), workers=2, envs=2, steps=10_000, hidden=(8,), show=False)
    assert "\n" not in str(told.value)


def test_a_worker_that_hangs_is_waited_for_and_then_killed(monkeypatch):
    env = make.host_env(lambda: Faulty("hangs"), "faulty", 2, workers=2)
    try:
        env.reset(0)
        monkeypatch.setattr(workers, "ANSWER_SECONDS", 3.0)
        with pytest.raises(
            Resumable,
            match=r"^faulty: a worker has not answered for 3 s: check what its step\(\) or reset\(\) waits",
        ):
            deque(map(env.step, np.zeros((2 * GOOD_STEPS, 2), np.int32)), maxlen=0)
    finally:
        env.close()


@pytest.mark.parametrize("doing", ["idle", "stuck"])
def test_no_worker_outlives_a_learner_that_was_killed(doing, tmp_path):
    script = tmp_path / "learner.py"
    script.write_text(LEARNER)
    with subprocess.Popen(
        [sys.executable, str(script), doing], stdout=subprocess.PIPE, text=True
    ) as learner:
        workers = [int(word) for word in learner.stdout.readline().split()]
        assert len(workers) == 3
        time.sleep(0.2)  # to be asked for a step
        learner.kill()
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline and any(map(alive, workers)):
        time.sleep(0.02)
    assert not any(map(alive, workers))


def alive(pid: int) -> bool:
    """Whether a process is there, and not only its entry, which waits for a parent to read it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
