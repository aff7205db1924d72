"""How commands end: fixed exit codes, one line each; signals are heard while compiled code runs."""

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

BEGIN = (
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
BEGIN += ("--episodes", "20", "--no-stop-when-solved", "--checkpoint-seconds", "0", "--out")
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
    """Every operation of a whole run, from its first directory to its last summary, fails once."""
    seen: list[str] = []
    monkeypatch.setattr(disk, "OPS", failing(-1, 0, seen))
    assert code(*BEGIN, str(tmp_path / "whole" / "run")) == 0
    monkeypatch.setattr(disk, "OPS", disk.Ops())
    whole, kept = left(tmp_path / "whole" / "run"), 0
    assert len(seen) > 60
    for k, number in zip(range(len(seen)), itertools.cycle(ERRORS), strict=False):
        run = tmp_path / str(k) / "run"
        monkeypatch.setattr(disk, "OPS", failing(k, number, []))
        assert code(*BEGIN, str(run)) == 74, (k, seen[k])
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1, err
        assert err.startswith("ersac: ")
        assert str(run.parent) in err
        monkeypatch.setattr(disk, "OPS", disk.Ops())
        if checkpoint.checkpoint_numbers(run / "checkpoints"):
            kept += (
                checkpoint.load_checkpoint(
                    run / "checkpoints", run_dir.run_hash(run_dir.read_settings(run)), pytest.fail
                )
                is not None
            )
            assert capsys.readouterr().err == ""
        if k % 16 == 0:
            assert code(*BEGIN, str(run)) == 0
            assert left(run) == whole
    assert kept > len(seen) / 3


def test_debug_shows_the_traceback(quick, tmp_path, monkeypatch, failing):
    monkeypatch.setattr(disk, "OPS", failing(5, errno.EIO, []))
    with pytest.raises(disk.DiskError):
        cli.main([*BEGIN, str(tmp_path / "run"), "--debug"])


def test_two_runs_on_one_directory(quick, tmp_path, monkeypatch, capsys):
    assert code(*BEGIN, str(tmp_path / "run")) == 0
    with disk.lock(tmp_path / "run" / run_dir.LOCK):
        for argv in (
            (*BEGIN, str(tmp_path / "run")),
            (*BEGIN[:-1], "--no-resume", "--out", str(tmp_path / "run")),
            ("resume", str(tmp_path / "run")),
        ):
            assert code(*argv) == 2
            assert capsys.readouterr().err.startswith(
                f"ersac: {tmp_path / 'run'} is in use by process {os.getpid()} on {os.uname().nodename} since 20"
            )


WATCHED = """
import hashlib, sys, time
from ersac.runs import exits
with exits.SignalWatcher() as watch:
    if sys.argv[1] == "asks":
        watch.poll()
    print("ready", flush=True)
    began = time.monotonic()
    while time.monotonic() < began + 3:  # as deaf as a compiled call: Python's own handlers wait until it is over
        hashlib.pbkdf2_hmac("sha256", b"", b"", 3_000_000)
        if watch.poll():
            sys.exit(exits.signal_exit_code(watch.poll()))
"""


def watched(asks: str, *signals: int) -> tuple[int, float]:
    """The return code of a busy process, and the seconds between the last signal and its end."""
    with subprocess.Popen(
        [sys.executable, "-c", WATCHED, asks], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        for number in signals:
            time.sleep(0.2)
            process.send_signal(number)
        sent = time.monotonic()
        return process.wait(20), time.monotonic() - sent


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_waits_for_the_chunk_and_the_second_does_not(number):
    returned, alone = watched("asks", number)
    assert returned == 128 + number
    returned, both = watched("asks", number, signal.SIGINT)
    assert returned == 130
    assert both < min(0.5, alone / 2)
    returned, early = watched("does not ask yet", number)  # nothing to save
    assert returned == 128 + number
    assert early < min(0.5, alone / 2)


def test_signals_are_left_as_they_were():
    before = [signal.getsignal(number) for number in exits.SIGNALS]
    with exits.SignalWatcher() as watch:
        assert watch.poll() == 0
        os.kill(os.getpid(), signal.SIGTERM)
        until = time.monotonic() + 5
        while not watch.poll() and time.monotonic() < until:
            time.sleep(0.01)
        assert watch.poll() == signal.SIGTERM
    assert [signal.getsignal(number) for number in exits.SIGNALS] == before
