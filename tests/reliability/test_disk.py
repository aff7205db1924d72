"""Durable files, locks, and no pickle."""

import ast
import contextlib
import errno
import fcntl
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import ersac
from ersac.config import SettingsError
from ersac.runs import checkpoint, disk

SOURCE = Path(ersac.__file__).parent
NOTES = {"settings": "abc", "fingerprint": {}, "departures": [], "spent": {}}
TREES = [{"w": np.full(50, number, np.float32), "n": np.asarray(number)} for number in range(4)]


def save(directory: Path, number: int) -> None:
    checkpoint.save_checkpoint(directory, number, TREES[number], NOTES)


def crashes(directory, monkeypatch, memory, crash, loss: str, crash_at: int) -> list[str]:
    """Save thrice on a disk that crashes at an operation of the third; return the operations.

    What survives is written to the directory.
    """
    directory.mkdir()
    sim = memory(loss)
    monkeypatch.setattr(disk, "OPS", sim.ops())
    save(directory, 0)
    save(directory, 1)
    before = len(sim.operations)
    sim.crash_at = before + crash_at
    with contextlib.suppress(crash):
        save(directory, 2)
    monkeypatch.setattr(disk, "OPS", disk.Ops())
    for name, data in sim.survivors().items():
        (directory / name).write_bytes(data)
    return sim.operations[before:]


def test_every_operation_may_be_the_last_before_a_crash(tmp_path, monkeypatch, memory, crash):
    operations = crashes(tmp_path / "complete", monkeypatch, memory, crash, "clean", 1000)
    assert {"open", "write", "fsync", "rename", "unlink", "sync_directory", "read"} <= set(
        operations
    )
    found = set()
    for loss in memory.LOSSES:
        for k in range(len(operations) + 1):
            directory = tmp_path / f"{loss} {k}"
            crashes(directory, monkeypatch, memory, crash, loss, k)
            complaints: list[str] = []
            good = checkpoint.load_checkpoint(directory, "abc", complaints.append)
            assert good is not None, (loss, k)
            assert not complaints, (loss, k)  # a crash is not damage
            assert good.number in (1, 2)
            for number in checkpoint.checkpoint_numbers(directory):
                checkpoint.verify(directory, number)  # no false alarm later
            np.testing.assert_array_equal(good.arrays["w"], TREES[good.number]["w"])
            found.add(good.number)
            save(directory, 3)  # saving continues
            assert checkpoint.load_checkpoint(directory, "abc", complaints.append).number == 3
            assert len(checkpoint.checkpoint_numbers(directory)) == checkpoint.MAX_TO_KEEP
            assert not [name for name in os.listdir(directory) if name.endswith(disk.PARTIAL)]
    assert found == {1, 2}  # crashes fell before and after the newest became valid


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO], ids=lambda n: errno.errorcode[n]
)
def test_a_failed_save_is_loud_and_the_last_good_one_stays(tmp_path, monkeypatch, failing, number):
    operations: list[str] = []
    for k in range(-1, 1000):  # -1: nothing fails, to count the operations
        directory = tmp_path / str(k)
        monkeypatch.setattr(disk, "OPS", disk.Ops())
        save(directory, 0)
        save(directory, 1)
        monkeypatch.setattr(disk, "OPS", failing(k, number, operations if k < 0 else []))
        if k < 0:
            save(directory, 2)
            continue
        if k == len(operations):
            break
        with pytest.raises(disk.DiskError) as error:
            save(directory, 2)
        text = str(error.value)
        assert "\n" not in text
        assert str(directory) in text
        if operations[k] in ("open", "write", "fsync", "close", "rename"):
            assert os.strerror(number) in text
            assert re.search(r"; needs [\d,]+ bytes, [\d,]+ are free$", text)
        monkeypatch.setattr(disk, "OPS", disk.Ops())
        complaints: list[str] = []
        good = checkpoint.load_checkpoint(directory, "abc", complaints.append)
        assert good is not None
        assert good.number in (1, 2)
        assert not complaints
        assert not [name for name in os.listdir(directory) if name.endswith(disk.PARTIAL)]
    assert k == len(operations) > 18


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)], ids=oct)
def test_a_new_file_is_readable_as_the_umask_allows_and_never_executable(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        disk.write(tmp_path / "written", b"data")
        disk.append(tmp_path / "written", b"more")
        with disk.lock(tmp_path / "lock"):
            pass
    finally:
        os.umask(before)
    for name in ("written", "lock"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode


PAIR = """
import sys, pathlib
from ersac.runs import disk
from ersac.config import SettingsError
for line in sys.stdin:
    try:
        with disk.lock(pathlib.Path(line.strip())):
            print("won", flush=True)
            sys.stdin.readline()  # until the test writes a line
    except SettingsError as error:
        print(error, flush=True)
        sys.stdin.readline()
"""


def test_of_100_pairs_exactly_one_wins_and_the_other_is_told_who(tmp_path):
    pair = [
        subprocess.Popen(
            [sys.executable, "-c", PAIR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    say = lambda process, text: (process.stdin.write(text + "\n"), process.stdin.flush())
    for number in range(100):
        if number % 2:  # the lock file of a process that is gone
            (tmp_path / str(number)).write_text(
                json.dumps(
                    {"pid": 2**22 + 1, "host": os.uname().nodename, "since": "long ago"}
                ).ljust(256)
            )
        for process in pair:
            say(process, str(tmp_path / str(number)))
        answers = [process.stdout.readline().strip() for process in pair]
        assert answers.count("won") == 1, answers
        winner = pair[answers.index("won")]
        (refusal,) = [text for text in answers if text != "won"]
        assert f"process {winner.pid} on {os.uname().nodename} since 20" in refusal
        for process in pair:
            say(process, "go on")
    for process in pair:
        process.stdin.close()
        assert process.wait(10) == 0
        process.stdout.close()


def test_a_lock_is_free_again_after_sigkill(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", PAIR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        holder.stdin.write(f"{tmp_path / 'lock'}\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "won\n"
        with (
            pytest.raises(SettingsError, match=f"process {holder.pid} on"),
            disk.lock(tmp_path / "lock"),
        ):
            pass
        assert disk.is_locked(tmp_path / "lock")
        holder.send_signal(signal.SIGKILL)
        holder.wait(10)
    assert not disk.is_locked(tmp_path / "lock")
    with disk.lock(tmp_path / "lock"):
        pass


def test_a_holder_that_has_not_written_its_name_yet_is_waited_for(tmp_path):
    """Its file still names the previous holder, which was killed."""
    name = lambda pid: json.dumps({"pid": pid, "host": os.uname().nodename, "since": "2001"})
    path = tmp_path / "lock"
    path.write_text(name(2**22 + 1))
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        late = threading.Timer(0.3, path.write_text, [name(os.getpid())])
        late.start()
        with (
            pytest.raises(SettingsError, match=f"in use by process {os.getpid()} on"),
            disk.lock(path),
        ):
            pass
        late.join()


def test_no_pickle_anywhere_in_the_source():
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = {
                alias.name.split(".")[0]
                for alias in getattr(node, "names", [])
                if isinstance(alias, ast.alias)
            }
            names |= {str(getattr(node, "module", "")).split(".")[0]}
            assert not names & {
                "pickle",
                "cPickle",
                "dill",
                "cloudpickle",
                "joblib",
                "marshal",
                "shelve",
            }, path
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.load", "numpy.load"):
                assert "allow_pickle=False" in ast.unparse(node), path
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert ast.unparse(node.value) == "False", path
