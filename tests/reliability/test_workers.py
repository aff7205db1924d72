"""A worker that fails is reported in one line, and none outlives its learner."""

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
GOOD_STEPS = 400  # before the fault: more than the environment check plays
OBS = np.zeros(2, np.float32)

LEARNER = """
import multiprocessing, sys, time
import gymnasium, numpy as np
from ersac.envs.gym.make import host_env

class Stuck(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
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
    """An environment with a fault after some steps."""

    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)

    def __init__(self, fault: str) -> None:
        self.fault, self.steps = fault, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return OBS, {}

    def step(self, action):
        self.steps += 1
        answer = OBS, 0.0, self.steps % 10 == 0, False, {}
        if self.steps < GOOD_STEPS:
            return answer
        match self.fault:
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hangs":
                time.sleep(1000)
            case "raises":
                raise ValueError("no more")
            case "shape":
                return np.zeros(3, np.float32), *answer[1:]
            case "nan":
                return OBS, float("nan"), *answer[2:]


FAULTS = {
    "killed": (Resumable, r"a worker died \(exit code -9\)"),
    "raises": (Resumable, r"failed in step\(\): ValueError: no more"),
    "shape": (
        Resumable,
        r"failed in step\(\): ValueError: an observation has shape \(3,\), "
        r"but its space has shape \(2,\)",
    ),
    "nan": (NonFinite, r"reward"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_worker_that_fails_is_reported_in_one_line(fault):
    error_class, line = FAULTS[fault]
    with pytest.raises(error_class, match=line) as error:
        api.train(lambda: Faulty(fault), workers=2, envs=2, steps=10_000, hidden=(8,), show=False)
    assert "\n" not in str(error.value)


def test_a_worker_that_hangs_is_waited_for_and_then_killed(monkeypatch):
    env = make.host_env(lambda: Faulty("hangs"), "faulty", 2, workers=2)
    try:
        env.reset(0)
        monkeypatch.setattr(workers, "ANSWER_SECONDS", 3.0)
        with pytest.raises(
            Resumable,
            match=r"^faulty: a worker has not answered for 3 s: "
            r"check what its step\(\) or reset\(\) waits",
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
        time.sleep(0.2)  # until a step is requested
        learner.kill()
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline and any(map(alive, workers)):
        time.sleep(0.02)
    assert not any(map(alive, workers))


def alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
