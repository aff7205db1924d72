"""Exit codes, one-line errors, and signals during compiled calls."""

import errno
import itertools
import os
import signal
import subprocess
import sys
import time

import pytest

from ersac import cli
from ersac.config import SettingsError
from ersac.runs import checkpoint, disk, exits, run_dir

TRAIN = (
    "train",
    "deep-sea",
    "--depth",
    "6",
    "--seeds",
    "2",
    "--hidden",
    "8",
    "8",
    "--rollout",
    "20",
    "--chunk",
    "5",
    "--quiet",
    "--resume",
)
TRAIN += ("--episodes", "20", "--no-stop-when-solved", "--checkpoint-seconds", "0", "--out")
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
import hashlib, sys, time
from ersac.runs import exits
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
