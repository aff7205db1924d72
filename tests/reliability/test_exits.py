"""Exit codes, one-line errors, and signals during compiled calls."""

import contextlib
import errno
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

import gymnasium
import numpy as np
import pytest

from ersac import api, cli, config, display
from ersac.config import SettingsError
from ersac.loops import host
from ersac.runs import checkpoint, disk, exits, run_dir

TRAIN = shlex.split(
    "train deep-sea --depth 6 --seeds 2 --hidden 8 8 --rollout 20 --chunk 5 --quiet --resume "
    "--episodes 20 --no-stop-when-solved --checkpoint-seconds 0 --out"
)
ERRORS = (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO)


def code(*argv: str) -> int:
    with pytest.raises(SystemExit) as stop:
        cli.main(list(argv))
    return int(stop.value.code or 0)


def test_codes_are_fixed():
    raised = [
        SettingsError(),
        exits.NonFinite(),
        OSError(),
        disk.DiskError("x"),
        exits.Resumable(),
        exits.Stopped(2, ""),
        exits.Stopped(15, ""),
    ]
    assert [exits.exit_code(error) for error in raised] == [2, 3, 74, 74, 75, 130, 143]
    assert exits.OK == 0


def test_whatever_fails_in_a_run_is_one_line_and_nothing_good_is_lost(
    quick, left, tmp_path, monkeypatch, failing, capsys
):
    """Every operation of a run, from its first directory to its summary, fails once."""
    operations: list[str] = []
    monkeypatch.setattr(disk, "OPS", failing(-1, 0, operations))
    assert code(*TRAIN, str(tmp_path / "undisturbed" / "run")) == 0
    monkeypatch.setattr(disk, "OPS", disk.Ops())
    undisturbed, resumable = left(tmp_path / "undisturbed" / "run"), 0
    assert len(operations) > 60
    for k, number in zip(range(len(operations)), itertools.cycle(ERRORS), strict=False):
        run = tmp_path / str(k) / "run"
        monkeypatch.setattr(disk, "OPS", failing(k, number, []))
        assert code(*TRAIN, str(run)) == 74, (k, operations[k])
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1, err
        assert err.startswith("ersac: ")
        assert str(run.parent) in err
        monkeypatch.setattr(disk, "OPS", disk.Ops())
        if checkpoint.checkpoint_numbers(run / "checkpoints"):
            resumable += (
                checkpoint.load_checkpoint(
                    run / "checkpoints", run_dir.run_hash(run_dir.read_settings(run)), pytest.fail
                )
                is not None
            )
            assert capsys.readouterr().err == ""
        if k % 16 == 0:
            assert code(*TRAIN, str(run)) == 0
            assert left(run) == undisturbed
    assert resumable > len(operations) / 3


def test_debug_shows_the_traceback(quick, tmp_path, monkeypatch, failing):
    monkeypatch.setattr(disk, "OPS", failing(5, errno.EIO, []))
    with pytest.raises(disk.DiskError):
        cli.main([*TRAIN, str(tmp_path / "run"), "--debug"])


def test_two_runs_on_one_directory(quick, tmp_path, monkeypatch, capsys):
    assert code(*TRAIN, str(tmp_path / "run")) == 0
    with disk.lock(tmp_path / "run" / run_dir.LOCK):
        for argv in (
            (*TRAIN, str(tmp_path / "run")),
            (*TRAIN[:-1], "--no-resume", "--out", str(tmp_path / "run")),
            ("resume", str(tmp_path / "run")),
        ):
            assert code(*argv) == 2
            assert capsys.readouterr().err.startswith(
                f"ersac: {tmp_path / 'run'} is in use by process {os.getpid()} "
                f"on {os.uname().nodename} since 20"
            )


BUSY = """
import hashlib, signal, sys, time
from ersac.runs import exits
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may be run by nohup
with exits.SignalWatcher() as watcher:
    if sys.argv[1] == "polls":
        watcher.poll()
    print("ready", flush=True)
    started = time.monotonic()
    while time.monotonic() < started + 3:  # as in a compiled call, Python's handlers wait
        hashlib.pbkdf2_hmac("sha256", b"", b"", 3_000_000)
        if watcher.poll():
            sys.exit(exits.signal_exit_code(watcher.poll()))
"""


def run_busy(polls: str, *signals: int) -> tuple[int, float]:
    """Return the exit code of a busy process, and the seconds from the last signal to its end."""
    with subprocess.Popen(
        [sys.executable, "-c", BUSY, polls], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        for number in signals:
            time.sleep(0.2)
            process.send_signal(number)
        sent = time.monotonic()
        return process.wait(20), time.monotonic() - sent


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_waits_for_the_chunk_and_the_second_does_not(number):
    returned, alone = run_busy("polls", number)
    assert returned == 128 + number
    returned, both = run_busy("polls", number, signal.SIGINT)
    assert returned == 130
    assert both < min(0.5, alone / 2)
    returned, early = run_busy("does not poll yet", number)  # nothing to save
    assert returned == 128 + number
    assert early < min(0.5, alone / 2)


def test_signals_are_left_as_they_were():
    before = [signal.getsignal(number) for number in exits.SIGNALS]
    with exits.SignalWatcher() as watcher:
        assert watcher.poll() == 0
        os.kill(os.getpid(), signal.SIGTERM)
        until = time.monotonic() + 5
        while not watcher.poll() and time.monotonic() < until:
            time.sleep(0.01)
        assert watcher.poll() == signal.SIGTERM
    assert [signal.getsignal(number) for number in exits.SIGNALS] == before


def test_two_signals_for_one_event_do_not_stop_at_once(capfd):
    """A shell and the kernel both send SIGHUP; a batch system may send a second warning."""
    for number in (signal.SIGHUP, signal.SIGUSR1):
        returned, _ = run_busy("polls", number, number)
        assert returned == 128 + number
        assert "stopped at once" not in capfd.readouterr().err


def test_a_signal_is_answered_in_one_line_at_once(capfd):
    with exits.SignalWatcher() as watcher:
        assert watcher.poll() == 0
        os.kill(os.getpid(), signal.SIGUSR1)
        until = time.monotonic() + 5
        err = ""
        while "\n" not in err and time.monotonic() < until:
            time.sleep(0.01)
            err += capfd.readouterr().err
    assert err == "ersac: SIGUSR1: saving and stopping; a second one stops at once\n"


class Fails(display.NullDisplay):
    """A display whose standard output is gone."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.shown = error, 0

    def show(self, status):
        self.shown += 1
        raise self.error


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), SystemExit(1)])
def test_a_display_that_fails_does_not_end_a_run(error, quick, small, tmp_path, capsys):
    screen = Fails(error)
    settings = api.make_settings(**small | {"episodes": 20})
    result = api.run_experiment(settings, tmp_path / "run", display.SafeDisplay(screen))
    assert len(result.seeds[0].goals) == 20
    assert screen.shown == 1
    assert capsys.readouterr().err.lower().count("broken pipe") == 1


def test_a_directory_of_tensorboard_that_is_deleted_comes_back_and_else_is_done_without(
    quick, small, tmp_path, monkeypatch, capsys
):
    run = tmp_path / "run"
    home = run / "tensorboard"
    polls = itertools.count()

    def meddle() -> int:
        match next(polls):
            case 1:
                shutil.rmtree(home)
            case 3:
                assert list(home.rglob("events*"))  # it was written again
                shutil.rmtree(home)
                home.write_text("in the way")
        return 0

    track = config.Track(tensorboard=True)
    settings = api.make_settings(**small)
    api.run_experiment(settings, run, display.NullDisplay(), poll=meddle, track=track)
    assert (run / "summary.json").exists()
    err = capsys.readouterr().err
    assert err.startswith("ersac: TensorBoard failed, and the run continues without it: ")
    assert err.count("\n") == 1


class Breaks(gymnasium.Env):
    """An environment that raises, or calls sys.exit, after some steps."""

    observation_space, action_space = gymnasium.spaces.Discrete(5), gymnasium.spaces.Discrete(2)

    def __init__(self, error: BaseException | None = None, after: int = 300) -> None:
        self.error, self.left, self.answer = error, after, 5000

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        assert isinstance(action, np.int64)  # as the checker's
        self.left -= 1
        if self.left > 0:
            return self.left % 5, 1.0, self.left % 10 == 0, False, {}
        if self.error is None:
            return self.answer, 1.0, False, False, {}
        raise self.error


GYM = {"envs": 2, "hidden": (8,), "rollout": 10, "chunk": 5, "steps": 10_000, "show": False}


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("too hot"), r"ValueError: too hot \(test_exits.py, line \d+\)"),
        (SystemExit(0), r"SystemExit: 0 \(test_exits.py, line \d+\)"),
        (None, r"observation is 5000, but its space is from 0 to 4"),
    ],
)
def test_an_environment_that_breaks_leaves_a_checkpoint(error, line, quick, tmp_path):
    run = tmp_path / "a run"
    with pytest.raises(exits.Resumable, match=line) as found:
        api.train(lambda: Breaks(error), out=run, checkpoint_seconds=1000, **GYM)
    assert str(found.value).endswith(
        f"; resume with: ersac.train({config_name()}, ..., out={str(run)!r}, resume=True)"
    )
    # The last whole rollout, in the middle of a chunk: 299 steps and 29 resets, ten to a rollout.
    assert checkpoint.checkpoint_numbers(run / "checkpoints") == [32]
    result = api.train(lambda: Breaks(after=10**9), out=run, resume=True, **GYM)
    assert result.steps == 10_000


def config_name() -> str:
    return test_an_environment_that_breaks_leaves_a_checkpoint.__name__ + ".<locals>.<lambda>"


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_signal_in_a_step_that_takes_long_stops_there(lockstep, quick, tmp_path):
    """The step sleeps for a minute; its thread is left behind."""
    stuck = threading.Event()

    class Slow(Breaks):
        def step(self, action):
            if self.left == 100:
                stuck.set()
                time.sleep(60)
            return super().step(action)

    run = tmp_path / "run"
    poll = lambda: signal.SIGTERM if stuck.is_set() else 0
    changes = {name: value for name, value in GYM.items() if name != "show"}
    settings = api.make_settings(Slow, lockstep=lockstep, checkpoint_seconds=1000, **changes)
    began = time.monotonic()
    with pytest.raises(exits.Stopped):
        api.run_experiment(settings, run, display.NullDisplay(), poll=poll)
    assert time.monotonic() - began < 30
    assert checkpoint.checkpoint_numbers(run / "checkpoints")[-1] >= 18


def test_in_lockstep_the_lengths_of_the_parts_change_no_bit(quick, tmp_path, monkeypatch, left):
    """A chunk that takes long is yielded in parts, and a run may be stopped between them."""
    env = {name: value for name, value in GYM.items() if name not in ("show", "steps")}
    settings = api.make_settings(
        # The budget is spent in the middle of a chunk, after rollout 17 of 20.
        "gym:CartPole-v1",
        lockstep=True,
        steps=330,
        checkpoint_seconds=1000,
        **env,
    )
    learned, learn_rollout = itertools.count(1), host.learn_rollout
    done = 0

    def count_rollouts(*args):
        nonlocal done
        done = next(learned)
        return learn_rollout(*args)

    monkeypatch.setattr(host, "learn_rollout", count_rollouts)

    def run(name: str, *stops: int) -> dict[str, str]:
        """Stop and resume after so many rollouts."""
        for stop in (*stops, 10**9):
            last = done + stop
            with contextlib.suppress(exits.Stopped):
                api.run_experiment(
                    settings,
                    tmp_path / name,
                    display.NullDisplay(),
                    resume=True,
                    poll=lambda last=last: signal.SIGTERM if done >= last else 0,
                )
        return left(tmp_path / name)

    whole, stopped = run("whole"), run("stopped", 12)
    monkeypatch.setattr(host, "CHUNK_SECONDS", 0.0)  # a rollout a part
    assert run("in parts") == whole
    assert run("stopped in parts", 12) == stopped != whole
    for name in ("stopped", "stopped in parts"):
        assert checkpoint.checkpoint_numbers(tmp_path / name / "checkpoints") == [12, 20]


NAMELESS = """
import pwd, runpy, sys

def getpwuid(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")

pwd.getpwuid = getpwuid
sys.argv[0] = "ersac"
runpy.run_module("ersac", run_name="__main__")
"""


def test_no_home_and_a_user_without_a_name(tmp_path):
    gone = ("HOME", "XDG_CACHE_HOME", "USER", "LOGNAME")
    ended = subprocess.run(
        [sys.executable, "-c", NAMELESS, *TRAIN, str(tmp_path / "run")],
        env={name: value for name, value in os.environ.items() if name not in gone},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize(("name", "value"), [("JAX_PLATFORMS", "cuda"), ("JAX_ENABLE_X64", "1")])
def test_a_jax_that_cannot_be_used_is_one_line_and_leaves_nothing(name, value, tmp_path):
    run = tmp_path / "run"
    ended = subprocess.run(
        [sys.executable, "-m", "ersac", *TRAIN, str(run)],
        env=os.environ | {name: value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (exits.SETTINGS, "")
    assert ended.stderr.startswith("ersac: ")
    assert ended.stderr.count("\n") == 1
    assert name in ended.stderr
    assert not run.exists()


def test_results_that_cannot_be_printed_are_kept(quick, tmp_path, capfd, monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert code(*TRAIN, str(tmp_path / "run"), "--json") == exits.IO
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()
    where = tmp_path / "run"
    line = f"ersac: the results are in {where}, but cannot be printed: No space left on device\n"
    assert capfd.readouterr().err == line
    assert (where / "summary.json").exists()
