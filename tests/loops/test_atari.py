"""Atari in the host loop: exact resume with --lockstep, and updates in calls of their own."""

import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from ersac import api, config
from ersac.envs.base import Box, Discrete, Spec
from ersac.envs.make import make_host_env
from ersac.loops import host, host_calls
from ersac.runs import checkpoint

CHUNK = {"chunk": 2, "rollout": 4, "passes": 1, "envs": 2, "image_torso": "small"}
LOCKSTEP = CHUNK | {"lockstep": True, "max_frames": 88}


def chunks(program, count: int) -> list:
    """Return the outputs of some chunks, as arrays on the host."""
    run = host.run_host(program)
    try:
        return [jax.tree.map(np.asarray, next(run)._replace(seconds=0.0)) for _ in range(count)]
    finally:
        run.close()


def test_a_restored_program_goes_on_in_the_middle_of_games():
    """The checkpoint is in the middle of the first games, which are truncated after 22 steps."""
    settings = api.make_settings("atari:pong", **LOCKSTEP)
    whole = chunks(host.prepare_host(settings), 4)
    program = host.prepare_host(settings)
    first = chunks(program, 1)
    state = host.snapshot_host(program, first[-1].carry)
    other = host.restore_host(host.prepare_host(settings), state)
    resumed = chunks(other, 3)
    assert sum(int(chunk.episodes.ended.sum()) for chunk in whole[1:]) == 2
    for expected, found in zip(whole, first + resumed, strict=True):
        assert jax.tree.structure(expected) == jax.tree.structure(found)
        jax.tree.map(np.testing.assert_array_equal, expected, found)


def test_without_lockstep_a_checkpoint_has_no_games():
    settings = api.make_settings("atari:pong", **CHUNK)
    assert not settings.env.stores_state
    env = make_host_env(settings.env)
    assert env.snapshot is None
    assert api.make_settings("atari:pong", **LOCKSTEP).env.stores_state


@pytest.mark.parametrize("agent", ["ersac", "ersac-replay"])
def test_an_update_in_calls_is_the_update_in_one(agent):
    changes = {"rollout": 3, "envs": 2, "members": 2}
    changes |= {"capacity": 4, "batch": 2, "updates": 2} if agent == "ersac-replay" else {}
    settings = api.make_settings("atari:pong", agent, **changes)
    spec = Spec("small", Box((36, 36, 2), is_bytes=True, frames=2), Discrete(3), 2)
    static, carry = host.static_host_settings(settings), host.init_carry(settings, spec, 0)
    floats = {name: np.float32(value) for name, value in config.floats(settings).items()}
    rng = np.random.default_rng(0)
    t = host._zero_rollouts(settings, spec)
    obs = np.repeat(rng.integers(256, size=(2, 1, 36, 36, 1), dtype=np.uint8), 4, axis=1)
    obs = np.repeat(obs, 2, axis=-1)  # a game that stands still: all stacks are equal
    ones = np.ones((2, 3), np.float32)
    noise = jax.tree.map(lambda x: rng.standard_normal(x.shape, np.float32), t.noise)
    newest = t._replace(obs=obs, reward=ones, discount=ones, mask=ones, log_mu=-ones, noise=noise)
    arguments = (floats, carry.learner, carry.buffer_state, newest, jax.random.key(0), 5)
    expected = jax.jit(partial(host_calls._learn, static, spec))(*arguments)
    found = host_calls.learn_in_calls(static, spec)(*arguments)
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    close = partial(np.testing.assert_allclose, rtol=2e-3, atol=2e-5)
    jax.tree.map(close, expected, found)


VICTIM = """
import math, sys
from ersac import cli
from ersac.runs import checkpoint, checkpointer
checkpointer.COST_SHARE = math.inf
save = checkpoint.save_checkpoint
def announced_save(*args):
    save(*args)
    print("saved", flush=True)
checkpoint.save_checkpoint = announced_save
cli.main(["train", "atari:pong", "--lockstep", "--envs", "2", "--rollout", "8", "--passes", "1",
          "--chunk", "4", "--steps", sys.argv[2], "--checkpoint-seconds", "0", "--quiet",
          "--resume", "--out", sys.argv[1]])
"""


def start(directory: Path, steps: int) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", VICTIM, str(directory), str(steps)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def digests(run: Path) -> dict[str, bytes]:
    """Return the arrays of the last checkpoint and the results."""
    newest = checkpoint.checkpoint_numbers(run / checkpoint.DIRECTORY)[-1]
    found = {}
    for path in (run / checkpoint.DIRECTORY / f"{newest:012d}.npz", run / "facts.npz"):
        with np.load(path, allow_pickle=False) as file:
            found |= {f"{path.name}:{name}": file[name].tobytes() for name in file.files}
    return found


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kills", "steps"), [(20, 12_800)])
def test_20_sigkills_on_pong_with_sticky_actions(tmp_path, kills, steps):
    rng = random.Random(0)
    killed = 0
    with start(tmp_path / "undisturbed", steps) as process:
        process.communicate(timeout=1800)
        assert process.returncode == 0
    while killed < kills:
        with start(tmp_path / "run", steps) as process:
            for _ in range(rng.randint(1, 8)):
                process.stdout.readline()
            time.sleep(rng.uniform(0, 0.5))
            process.send_signal(signal.SIGKILL)
            killed += process.wait() == -signal.SIGKILL
        if (tmp_path / "run" / "facts.npz").exists():
            break
    with start(tmp_path / "run", steps) as process:
        process.communicate(timeout=1800)
        assert process.returncode == 0
    assert digests(tmp_path / "run") == digests(tmp_path / "undisturbed")
    print(f"{killed} kills")
    assert killed == kills
