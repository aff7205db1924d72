"""What Windows lacks is taken away here: the library starts, trains and steps workers without it.

Windows itself has not been tried.
"""

import os
import subprocess
import sys

import pytest

from ersac.runs import disk

# These libraries are imported first: on Windows they do without some of it in other ways.
WITHOUT = """
import os, signal
for name in ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "pthread_sigmask"):
    delattr(signal, name)
import filelock, jax, multiprocessing.resource_tracker, subprocess
for name in ("setpgid", "killpg", "sysconf", "sched_getaffinity", "O_NOFOLLOW", "O_NONBLOCK"):
    delattr(os, name)
"""
TRAIN = """
import sys
from ersac.cli import main
main(["train", "deep-sea", "--depth", "4", "--seeds", "1", "--hidden", "4", "4", "--episodes",
      "20", "--quiet", "--out", sys.argv[1]])
"""
WORKERS = """
import gymnasium, numpy
from ersac.envs.gym.make import env_factory, host_env

env = host_env(env_factory("CartPole-v1"), "CartPole-v1", 2, workers=1)
env.reset(0)
print(env.step(numpy.zeros(2, numpy.int32)).reward.tolist())
env.close()
"""


def run(code: str, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + code, *argv], capture_output=True, text=True, timeout=250
    )


def test_a_run_is_trained_and_stored(tmp_path):
    done = run(TRAIN, str(tmp_path / "run"))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "run" / "summary.json").exists()


def test_workers_step_an_environment():
    pytest.importorskip("gymnasium")
    done = run(WORKERS)
    assert (done.returncode, done.stdout) == (0, "[1.0, 1.0]\n"), done.stderr


def test_asking_for_a_process_sends_no_ctrl_c(monkeypatch):
    """Which `os.kill(pid, 0)` does on Windows."""
    sent = []
    monkeypatch.setattr(os, "kill", lambda *words: sent.append(words))
    monkeypatch.setattr(os, "name", "nt")
    exists = disk._process_exists(1)
    monkeypatch.undo()
    assert (exists, sent) == (True, [])
