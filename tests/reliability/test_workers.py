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
import ctypes, multiprocessing, sys, time
import gymnasium, numpy as np
from ersac.envs.gym.make import host_env

class Stuck(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        if sys.argv[1] == "GIL":
            ctypes.PyDLL(None).sleep(1000)  # as a C extension that holds the lock
        time.sleep(1000)

if __name__ == "__main__":
    env = host_env(Stuck, "stuck", 4, workers=3)
    env.reset(0)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    if sys.argv[1] != "idle":
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
        monkeypatch.setattr(workers, "ANSWER_SECONDS", 1.0)
        with pytest.raises(
            Resumable,
            match=r"^faulty: a worker has not answered for 1 s: "
            r"check what its step\(\) or reset\(\) waits for, 3 times in a row",
        ):
            deque(map(env.step, np.zeros((5 * GOOD_STEPS, 2), np.int32)), maxlen=0)
    finally:
        env.close()


@pytest.mark.parametrize("doing", ["idle", "stuck", "GIL"])
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


SUSPENDED = """
import multiprocessing, time
import gymnasium, numpy as np
from ersac.envs.gym import workers
from ersac.envs.gym.make import host_env

class Sleeps(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        time.sleep(1.5)
        return np.zeros(2, np.float32), 1.0, False, False, {}

workers.ANSWER_SECONDS = 3.0
env = host_env(Sleeps, "sleeps", 1, workers=1)
env.reset(0)
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
print(env.step(np.zeros(1, np.int32)).lost)
env.close()
"""


def test_the_time_of_a_suspended_job_does_not_count():
    """Learner and worker are stopped for longer than the worker's limit."""
    with subprocess.Popen(
        [sys.executable, "-c", SUSPENDED], stdout=subprocess.PIPE, text=True
    ) as learner:
        both = [learner.pid, *map(int, learner.stdout.readline().split())]
        time.sleep(0.3)
        for pid in both:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(4)
        for pid in both:
            os.kill(pid, signal.SIGCONT)
        assert learner.communicate(timeout=60)[0] == "None\n"


SCRIPT = """
import gymnasium, numpy as np
from ersac.envs.gym.make import host_env

class Own(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, False, {}

print("main")
env = host_env(Own, "own", 2, workers=2)
env.reset(0)
print(env.step(np.zeros(2, np.int32)).reward.tolist())
env.close()
"""


def test_a_script_needs_no_guard(tmp_path):
    """A worker does not run the script again."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (0, "main\n[1.0, 1.0]\n"), ended.stderr


def alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
