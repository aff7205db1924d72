"""The attack on reliability and security as a suite: `make attack`.

    python tests/reliability/attack.py [--only WORD] [--jobs 2] [--list]

Every trial runs real commands in a fresh directory, with a time limit. Its verdict is one of
VERDICTS. A new trial is a function of a `Lab`, and a line in the list at its group's end.
"""

import argparse
import contextlib
import functools
import io
import json
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 150.0  # seconds of a command, on a busy machine
SEA = ("train", "deep-sea", "--depth", "6", "--seeds", "1", "--hidden", "8", "--rollout", "20")
SEA += ("--chunk", "5", "--no-stop-when-solved", "--checkpoint-seconds", "0.2")
SHORT, MEDIUM, ENDLESS = (("--episodes", n) for n in ("100", "20000", "100000000"))
GYM = ("--envs", "2", "--hidden", "8", "--rollout", "10", "--chunk", "5")
GYM += ("--checkpoint-seconds", "0.2")


class DataLost(AssertionError):
    """Something that was on disk, or learned, is gone."""


class Hang(AssertionError):
    """A command did not end, or left a process."""


class ShownTraceback(AssertionError):
    """A traceback instead of a line."""


# Any other AssertionError: the command answered wrongly and did not say so.
VERDICTS: dict[type[AssertionError], str] = {
    DataLost: "data lost",
    Hang: "hang",
    ShownTraceback: "traceback",
    AssertionError: "silent wrong",
}


class Ended(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def last(self) -> str:
        """The last line of standard error."""
        return (self.err.strip().splitlines() or [""])[-1]


class Lab:
    """A fresh directory, and the commands that are run in it."""

    def __init__(self, home: Path, shared: Path) -> None:
        self.home, self.run, self.mark = home, home / "run", uuid.uuid4().hex
        self.processes: list[subprocess.Popen] = []
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        self.env = kept | {
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests' / 'envs'}",
            "PATH": f"{shared / 'bin'}:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(shared / "cache"),
            "XLA_FLAGS": "--xla_backend_optimization_level=0",
            "ATTACK": self.mark,
        }

    def start(self, *words: str | bytes | Path, **options: Any) -> subprocess.Popen:
        """Start `ersac WORDS` in a session of its own."""
        env = self.env | options.pop("env", {})
        files = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        command = options.pop("command", ["ersac"])
        process = subprocess.Popen(
            [*command, *words],
            cwd=self.home,
            env={name: value for name, value in env.items() if value is not None},
            start_new_session=True,
            **(files | options),
        )
        self.processes.append(process)
        return process

    def wait(self, process: subprocess.Popen, limit: float = LIMIT) -> Ended:
        """Wait for a command to end."""
        began = time.monotonic()
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            raise Hang(f"still running after {limit:g} s") from None
        decode = lambda data: (data or b"").decode(errors="replace")
        ended = Ended(process.returncode, decode(out), decode(err), time.monotonic() - began)
        if "Traceback (most recent call last)" in ended.out + ended.err:
            raise ShownTraceback(ended.last)
        return ended

    def ersac(self, *words: str | bytes | Path, limit: float = LIMIT, **options: Any) -> Ended:
        """Run `ersac WORDS` to its end."""
        return self.wait(self.start(*words, **options), limit)

    def train(self, *words: str | bytes | Path, **options: Any) -> Ended:
        """Run a short training in `run`, which must succeed."""
        ended = self.ersac(*SEA, *SHORT, "--out", self.run, *words, **options)
        assert ended.code == 0, ended
        return ended

    def start_long(self, *words: str | Path, run: Path | None = None) -> subprocess.Popen:
        """Start an endless training, and wait for its first checkpoint."""
        run = run or self.run
        process = self.start(*SEA, *ENDLESS, "--out", run, *words)
        self.until(lambda: checkpoints(run), process)
        return process

    def until(
        self, holds: Callable[[], Any], process: subprocess.Popen | None = None, limit: float = 90
    ) -> None:
        """Wait until something holds, while a process runs."""
        deadline = time.monotonic() + limit
        while not holds():
            if process is not None and process.poll() is not None:
                ended = self.wait(process)
                raise AssertionError(f"ended early: {ended.code} {ended.last}")
            if time.monotonic() > deadline:
                raise Hang("it did not come so far")
            time.sleep(0.02)

    def left(self) -> list[int]:
        """The processes that this trial has started and that still run."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if f"ATTACK={self.mark}".encode() in path.read_bytes():
                    state = (path.parent / "stat").read_text().rpartition(")")[2].split()[0]
                    found += [int(path.parent.name)] if state != "Z" else []
        return found

    def none_left(self, seconds: float = 5.0) -> None:
        """Assert that no process of this trial is left."""
        deadline = time.monotonic() + seconds
        while found := self.left():
            if time.monotonic() > deadline:
                raise Hang(f"{len(found)} processes left")
            time.sleep(0.05)

    def close(self) -> None:
        """End what this trial has started, and nothing else."""
        for pid in self.left():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.kill()
            with contextlib.suppress(Exception):
                process.communicate(timeout=5)


class Trial(NamedTuple):
    """A named trial; it raises one of VERDICTS unless ersac holds."""

    name: str
    attack: Callable[[Lab], None]


TRIALS: list[Trial] = []


def trial(group: str, *cases: Any) -> Callable[[Callable], Callable]:
    """Add a function of a Lab to TRIALS, once or once for each case."""

    def add(function: Callable) -> Callable:
        title = f"{group}: {function.__name__.replace('_', ' ')}"
        for case in cases or [None]:
            name = title if case is None else f"{title} [{case!r}]"
            attack = function if case is None else functools.partial(function, case=case)
            TRIALS.append(Trial(name, attack))
        return function

    return add


# What a trial looks at.


def checkpoints(run: Path) -> list[Path]:
    """The manifests of a run's checkpoints, the newest last."""
    return sorted((run / "checkpoints").glob("[0-9]*.json"))


def newest(run: Path) -> int:
    """The number of the newest checkpoint; -1 if there is none."""
    return int(checkpoints(run)[-1].stem) if checkpoints(run) else -1


def facts(run: Path) -> dict[str, bytes]:
    """Every array of a run's results."""
    with np.load(run / "facts.npz", allow_pickle=False) as file:
        return {name: file[name].tobytes() for name in file.files}


def told(ended: Ended, code: int, *words: str) -> None:
    """Assert an exit code, and a last line that is ersac's and has all the words."""
    assert ended.code == code, f"exit code {ended.code} instead of {code}: {ended.last}"
    assert ended.last.startswith("ersac: "), f"no line: {ended.last!r}"
    for word in words:
        assert word in ended.last, f"{word!r} is not in: {ended.last}"


def refused(ended: Ended) -> None:
    """Assert one line and one of the fixed exit codes of an error."""
    assert ended.code in (2, 3, 74, 75), f"exit code {ended.code}: {ended.last}"
    assert ended.last.startswith("ersac: "), f"no line: {ended.last!r}"


def clean(ended: Ended) -> None:
    """Assert that nothing printed can control a terminal."""
    bad = re.findall(r"[\x00-\x08\x0b-\x1f\x7f]", ended.out + ended.err)
    assert not bad, f"control characters reached the terminal: {bad[:3]}"


def lost_unless(holds: Any, what: str) -> None:
    """Assert that something is still there."""
    if not holds:
        raise DataLost(what)


def resumed(lab: Lab, run: Path | None = None, episodes: int = 0) -> Ended:
    """Resume a run until it ends; it must not start from scratch."""
    before = newest(run or lab.run)
    more = ("--episodes", str(episodes)) if episodes else ()
    ended = lab.ersac("resume", run or lab.run, *more)
    lost_unless(ended.code == 0, f"resume: {ended.code} {ended.last}")
    lost_unless(newest(run or lab.run) >= before, "an older state")
    return ended


UNDISTURBED: dict[str, Any] = {}
UNDISTURBED_LOCK = threading.Lock()


def undisturbed(lab: Lab) -> dict[str, bytes]:
    """The results of a run of medium length that nobody disturbs."""
    with UNDISTURBED_LOCK:
        if not UNDISTURBED:
            run = lab.home / "undisturbed"
            ended = lab.ersac(*SEA, *MEDIUM, "--out", run)
            assert ended.code == 0, ended
            UNDISTURBED.update(facts(run))
    return UNDISTURBED


# Kills and signals.


@trial("kill", *range(8))
def sigkill_at_random_moments_and_resume(lab: Lab, case: int) -> None:
    wanted, moments = undisturbed(lab), random.Random(case)
    for _ in range(2):
        process = lab.start(*SEA, *MEDIUM, "--out", lab.run, "--resume")
        if case % 2:
            with contextlib.suppress(AssertionError):  # it may end first
                lab.until(lambda: checkpoints(lab.run), process)
            time.sleep(moments.uniform(0, 1))
        else:
            time.sleep(moments.uniform(0, 6))
        process.kill()
        process.communicate()
        lab.none_left()
    ended = lab.ersac(*SEA, *MEDIUM, "--out", lab.run, "--resume")
    lost_unless(ended.code == 0, ended.last)
    assert facts(lab.run) == wanted, "other results"


SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")


@trial("signal", *SIGNALS)
def on_the_device(lab: Lab, case: str) -> None:
    number = signal.Signals[case]
    process = lab.start_long()
    before = newest(lab.run)
    process.send_signal(number)
    ended = lab.wait(process, 30)
    told(ended, 128 + number, f"resume with: ersac resume {lab.run}")
    lost_unless(newest(lab.run) >= before, "no checkpoint on the way out")
    assert ended.seconds < 10, f"{ended.seconds:.0f} s"


@trial("signal", *SIGNALS)
def on_the_host(lab: Lab, case: str) -> None:
    number = signal.Signals[case]
    process = start_gym(lab, "CartPole-v1", "--checkpoint-seconds", "1000")
    time.sleep(1)
    process.send_signal(number)
    told(lab.wait(process, 30), 128 + number, f"resume with: ersac resume {lab.run}")
    lost_unless(checkpoints(lab.run), "no checkpoint on the way out")


def start_gym(lab: Lab, env: str, *words: str, progress: str = "return") -> subprocess.Popen:
    """Start training in a Gymnasium environment, and wait for its first line of progress."""
    out = lab.home / "out.txt"
    process = lab.start(
        *("train", f"gym:{env}", *GYM, "--steps", "100000000", "--out", lab.run, *words),
        stdout=out.open("wb"),
    )
    lab.until(lambda: progress in out.read_text(), process)
    return process


@trial("signal")
def with_workers_and_lockstep(lab: Lab) -> None:
    process = start_gym(lab, "CartPole-v1", "--workers", "2", "--lockstep")
    process.send_signal(signal.SIGTERM)
    told(lab.wait(process, 30), 143, "resume with: ")
    lab.none_left()
    lost_unless(checkpoints(lab.run), "no checkpoint on the way out")


@trial("signal", ("SIGINT", "SIGINT"), ("SIGTERM", "SIGINT"))
def a_second_one_stops_at_once(lab: Lab, case: tuple[str, str]) -> None:
    process = lab.start_long()
    process.send_signal(signal.Signals[case[0]])
    time.sleep(0.15)
    process.send_signal(signal.Signals[case[1]])
    ended = lab.wait(process, 10)
    # It may have saved already, and be ended by the second one.
    assert ended.code in (*(128 + signal.Signals[name] for name in case), -signal.SIGINT), ended
    lost_unless(checkpoints(lab.run), "the checkpoint before")
    lab.none_left()


@trial("signal", ("SIGHUP", "SIGHUP"), ("SIGUSR1", "SIGUSR1"), ("SIGTERM", "SIGHUP"))
def two_for_one_event_still_save(lab: Lab, case: tuple[str, str]) -> None:
    process = start_gym(lab, "CartPole-v1", "--checkpoint-seconds", "1000")
    for name in case:
        process.send_signal(signal.Signals[name])
    ended = lab.wait(process, 30)
    told(ended, ended.code, "resume with: ")
    assert ended.code in (128 + signal.Signals[name] for name in case), ended
    lost_unless(checkpoints(lab.run), "no checkpoint on the way out")


@trial("signal", 1.0, 2.0, 3.0)
def while_it_starts(lab: Lab, case: float) -> None:
    process = lab.start(*SEA, *ENDLESS, "--out", lab.run)
    time.sleep(case)
    process.send_signal(signal.SIGINT)
    ended = lab.wait(process, 30)
    assert ended.code in (130, -signal.SIGINT), ended.code
    lab.none_left()


@trial("signal")
def nohup_is_respected(lab: Lab) -> None:
    ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    process = lab.start(*SEA, *ENDLESS, "--out", lab.run, preexec_fn=ignore)
    lab.until(lambda: checkpoints(lab.run), process)
    process.send_signal(signal.SIGHUP)
    before = newest(lab.run)
    lab.until(lambda: newest(lab.run) > before, process)


@trial("signal")
def sigstop_and_sigcont(lab: Lab) -> None:
    process = start_gym(lab, "CartPole-v1", "--workers", "2")
    os.killpg(process.pid, signal.SIGSTOP)
    time.sleep(3)
    os.killpg(process.pid, signal.SIGCONT)
    before = newest(lab.run)
    lab.until(lambda: newest(lab.run) > before, process)


@trial("signal")
def ten_seconds_a_step(lab: Lab) -> None:
    process = lab.start(
        *("train", "gym:faulty:Slow-v0", *GYM, "--steps", "1000", "--out", lab.run),
        env={"SLOW_SECONDS": "10", "SLOW_MARK": str(lab.home / "in a step")},
    )
    lab.until(lambda: (lab.run / "settings.json").exists(), process, 120)
    (lab.home / "in a step").unlink()
    lab.until(lambda: (lab.home / "in a step").exists(), process, 120)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while b"SIGINT" not in (line := process.stderr.readline()):
        assert line, "no line"
    assert time.monotonic() - began < 3, "no line within 3 s"
    assert lab.wait(process, 30).code == 130
    assert time.monotonic() - began < 12, "more than one step"


@trial("signal")
def raw_frames(lab: Lab) -> None:
    process = lab.start(
        *("train", "gym:faulty:Screen-v0", "--envs", "4", "--steps", "100000", "--out", lab.run),
        stdout=(lab.home / "out.txt").open("wb"),
    )
    lab.until(lambda: "return" in (lab.home / "out.txt").read_text(), process, 200)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    told(lab.wait(process, 60), 143, "resume with: ")
    assert time.monotonic() - began < 10, f"{time.monotonic() - began:.0f} s"
    lost_unless(checkpoints(lab.run), "no checkpoint on the way out")


@trial("signal", "--workers 3", "--workers 0")
def sigkill_in_a_step_that_holds_the_gil(lab: Lab, case: str) -> None:
    process = start_gym(lab, "faulty:LateHoldsTheGil-v0", *case.split(), progress="compiling")
    time.sleep(5)
    process.kill()
    process.communicate()
    lab.none_left(2)


# Pipes and displays.


def goes_on(lab: Lab, process: subprocess.Popen) -> None:
    """Assert that a run is alive, and save it."""
    before = newest(lab.run)
    lab.until(lambda: newest(lab.run) > before, process)
    process.send_signal(signal.SIGTERM)
    assert lab.wait(process, 30).code == 143
    lost_unless(newest(lab.run) > before, "no checkpoint")


@trial("pipe")
def the_reader_of_the_pipe_is_gone(lab: Lab) -> None:
    process = lab.start(*SEA, *ENDLESS, "--out", lab.run)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    lab.until(lambda: checkpoints(lab.run), process)
    time.sleep(3)
    goes_on(lab, process)


@trial("pipe", "stdout", "stderr")
def the_disk_of_the_log_is_full(lab: Lab, case: str) -> None:
    with open("/dev/full", "wb") as full:
        process = lab.start(*SEA, *ENDLESS, "--out", lab.run, **{case: full})
    lab.until(lambda: checkpoints(lab.run), process)
    time.sleep(3)
    goes_on(lab, process)


@trial("pipe")
def the_results_are_kept_where_they_cannot_be_printed(lab: Lab) -> None:
    with open("/dev/full", "wb") as full:
        ended = lab.ersac(*SEA, *SHORT, "--json", "--out", lab.run, stdout=full)
    lost_unless((lab.run / "summary.json").exists(), "the results")
    told(ended, 74, "cannot be printed")


@trial("pipe", "0", "1", "2")
def a_closed_descriptor(lab: Lab, case: str) -> None:
    words = shlex.join([*SEA, *SHORT, "--out", str(lab.run)])
    lab.ersac(command=["sh", "-c", f"exec ersac {words} {case}>&-"])
    lost_unless((lab.run / "summary.json").exists(), "the results")


@trial("pipe", "deleted", "a file")
def the_directory_of_tensorboard(lab: Lab, case: str) -> None:
    process = lab.start_long("--tensorboard")
    shutil.rmtree(lab.run / "tensorboard")
    if case == "a file":
        (lab.run / "tensorboard").write_text("in the way")
    time.sleep(3)
    goes_on(lab, process)


@trial("pipe")
def runs_into_head(lab: Lab) -> None:
    lab.train()
    ended = lab.ersac(command=["sh", "-c", f"ersac runs {lab.home} | head -c 1"])
    assert "Error" not in ended.err, ended.err


# Full disks.


@contextlib.contextmanager
def small_disk(lab: Lab, size: str) -> Iterator[Path]:
    """A file system of that size; where mounting is not permitted, a limit on files instead."""
    disk = lab.home / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "attack", disk]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        yield disk
        return
    try:
        yield disk
    finally:
        lab.close()
        subprocess.run(["umount", "-l", disk], check=False, capture_output=True)


@trial("disk", "16k", "48k", "96k", "200k")
def a_full_disk(lab: Lab, case: str) -> None:
    with small_disk(lab, case) as disk:
        run = disk / "run"
        blocks = int(case.removesuffix("k")) * 1024
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (blocks, blocks))
        ended = lab.ersac(*SEA, *MEDIUM, "--out", run, preexec_fn=limit)
        refused(ended)
        assert ended.code == 74, ended
        if checkpoints(run):
            kept = lab.home / "copy"
            shutil.copytree(run, kept)
            resumed(lab, kept)


@trial("disk", 4_000, 20_000)
def a_limit_on_the_size_of_files(lab: Lab, case: int) -> None:
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (case, case))
    ended = lab.ersac(*SEA, *MEDIUM, "--out", lab.run, preexec_fn=limit)
    assert ended.code == 74, ended
    refused(ended)


# Hostile files.


@trial("file", "settings.json", "lock", "summary.json", "facts.npz")
def a_fifo(lab: Lab, case: str) -> None:
    lab.train()
    (lab.run / case).unlink()
    os.mkfifo(lab.run / case)
    assert lab.ersac("runs", lab.home, limit=60).code in (0, 74)
    refused_or_ended(lab.ersac("resume", lab.run, limit=60))


def refused_or_ended(ended: Ended) -> None:
    """Assert success, or one line."""
    if ended.code:
        refused(ended)


@trial("file", "settings.json", "summary.json", "lock")
def a_link_to_dev_zero(lab: Lab, case: str) -> None:
    lab.train()
    (lab.run / case).unlink()
    (lab.run / case).symlink_to("/dev/zero")
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (24 << 30, 24 << 30))
    assert lab.ersac("runs", lab.home, limit=60, preexec_fn=limit).code in (0, 74)
    refused_or_ended(lab.ersac("resume", lab.run, limit=60, preexec_fn=limit))


def save_policy(lab: Lab) -> Path:
    """Return a policy file of a short run."""
    path = lab.home / "policy.npz"
    code = f"""
import ersac
result = ersac.train("deep-sea", depth=6, seeds=1, hidden=(8,), rollout=20, chunk=5, episodes=100,
                     stop_when_solved=False, show=False)
result.save({str(path)!r})
"""
    ended = lab.ersac("-c", code, command=[sys.executable])
    assert ended.code == 0, ended
    return path


def rewrite_policy(path: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    """Change the arrays of a policy file, and seal it again."""
    sys.path.insert(0, str(ROOT / "src"))
    from ersac.runs import seal

    arrays = seal.unseal_arrays(path.read_bytes())
    change(arrays)
    path.write_bytes(seal.seal_arrays(arrays))


@trial("file")
def a_zip_bomb_as_a_policy(lab: Lab) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bomb:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": "|u1", "fortran_order": False, "shape": (3 << 30,)}
        )
        with bomb.open("sha256.npy", "w", force_zip64=True) as member:
            member.write(header.getvalue())
            for _ in range(3 << 7):
                member.write(bytes(1 << 23))
    path = lab.home / "bomb.npz"
    path.write_bytes(buffer.getvalue())
    process = lab.start("eval", path)
    peak = 0
    while process.poll() is None:
        with contextlib.suppress(OSError, StopIteration, ValueError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak = max(peak, int(re.search(r"VmHWM:\s+(\d+)", status)[1]))
        time.sleep(0.02)
    refused(lab.wait(process))
    assert peak < 1_000_000, f"{peak / 1e6:.1f} GB for a file of {path.stat().st_size:,} bytes"


@trial("file", "deep", "huge")
def json_in_a_policy(lab: Lab, case: str) -> None:
    path = save_policy(lab)
    text = b"[" * 200_000 if case == "deep" else b'{"a": "' + b"x" * (50 << 20) + b'"}'

    def spoil(arrays: dict[str, np.ndarray]) -> None:
        name = next(name for name, array in arrays.items() if array.dtype == np.uint8)
        arrays[name] = np.frombuffer(text, np.uint8)

    rewrite_policy(path, spoil)
    refused(lab.ersac("eval", path))


@trial("file")
def a_policy_full_of_nan(lab: Lab) -> None:
    path = save_policy(lab)

    def spoil(arrays: dict[str, np.ndarray]) -> None:
        for name, array in arrays.items():
            if array.dtype.kind == "f":
                arrays[name] = np.full_like(array, np.nan)

    rewrite_policy(path, spoil)
    refused(lab.ersac("eval", path, "--episodes", "3"))


@trial("file", b"", b"PK\x03\x04", b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.", bytes(5000))
def a_policy_that_is_none(lab: Lab, case: bytes) -> None:
    path = lab.home / "policy.npz"
    path.write_bytes(case)
    refused(lab.ersac("eval", path))
    assert not (lab.home / "pwned").exists()


@trial("file", "settings.json", "summary.json")
def deep_json(lab: Lab, case: str) -> None:
    lab.train()
    (lab.run / case).write_text("[" * 200_000)
    assert lab.ersac("runs", lab.home).code in (0, 74)
    refused_or_ended(lab.ersac("resume", lab.run))


@trial("file", "format", "settings")
def a_checkpoint_of_another_version_or_run(lab: Lab, case: str) -> None:
    """A newer ersac's, well sealed, is refused and stays."""
    lab.train()
    (lab.run / "summary.json").unlink()
    sys.path.insert(0, str(ROOT / "src"))
    from ersac.runs import checkpoint

    for path in checkpoints(lab.run):
        manifest = json.loads(path.read_bytes())["manifest"]
        if case == "format":
            manifest["format"] = checkpoint.FORMAT + 1
        else:
            manifest["notes"]["settings"] = "of another run"
        path.write_bytes(checkpoint.seal_manifest(manifest))
    before = sorted(os.listdir(lab.run / "checkpoints"))
    refused(lab.ersac("resume", lab.run))
    after = sorted(os.listdir(lab.run / "checkpoints"))
    lost_unless(before == after, f"renamed or removed: {set(before) ^ set(after)}")


@trial("file", "notes.txt", "best-model.npz", "a directory", "symlinked checkpoints/")
def foreign_files_in_checkpoints(lab: Lab, case: str) -> None:
    home = lab.run / "checkpoints"
    process = lab.start_long()
    process.send_signal(signal.SIGTERM)
    lab.wait(process)
    if case == "symlinked checkpoints/":
        home.rename(lab.home / "elsewhere")
        home.symlink_to(lab.home / "elsewhere")
        case = "photo.png"
    foreign = home / case
    if case == "a directory":
        foreign.mkdir()
        foreign /= "inside.txt"
    foreign.write_text("mine")
    process = lab.start("resume", lab.run)
    before = newest(lab.run)
    lab.until(lambda: newest(lab.run) > before, process)
    process.send_signal(signal.SIGTERM)
    assert lab.wait(process).code == 143
    lost_unless(foreign.exists() and foreign.read_text() == "mine", str(foreign))


@trial("file", "lock", "settings.json.partial", "summary.json.partial", "facts.npz.partial")
def a_link_is_not_followed(lab: Lab, case: str) -> None:
    victim = lab.home / "victim"
    victim.write_text("mine")
    lab.run.mkdir()
    (lab.run / case).symlink_to(victim)
    lab.ersac(*SEA, *SHORT, "--out", lab.run, "--resume")
    lost_unless(victim.read_text() == "mine", "a file outside the run was overwritten")


@trial("file")
def tensorboard_as_a_link(lab: Lab) -> None:
    victim = lab.home / "victim"
    (victim / "seed 0").mkdir(parents=True)
    (victim / "seed 0" / "events.out.tfevents.ersac").write_text("mine")
    process = lab.start_long()
    process.send_signal(signal.SIGTERM)
    lab.wait(process)
    (lab.run / "tensorboard").symlink_to(victim)
    process = lab.start("resume", lab.run, "--tensorboard")
    time.sleep(8)
    process.send_signal(signal.SIGTERM)
    lab.wait(process)
    kept = (victim / "seed 0" / "events.out.tfevents.ersac").read_text() == "mine"
    lost_unless(kept, "a file outside the run was overwritten")


@trial("file")
def files_are_not_executable(lab: Lab) -> None:
    lab.train()
    found = [path for path in lab.run.rglob("*") if path.is_file() and path.stat().st_mode & 0o111]
    assert not found, found


@trial("file")
def one_odd_run_does_not_hide_the_others(lab: Lab) -> None:
    lab.train()
    sys.path.insert(0, str(ROOT / "src"))
    from ersac.runs import seal

    odd = lab.home / "odd"
    shutil.copytree(lab.run, odd)
    seal.write_sealed(odd / "summary.json", {"agent": [1], "env": None, "steps": "many"})
    ended = lab.ersac("runs", lab.home)
    assert ended.code in (0, 74), ended
    assert "run" in ended.out, ended.out


# Hostile names.

NAMES = (
    "m[/b]",
    "[red]",
    "a b",
    "a'b\"c",
    "$(touch pwned)",
    "`touch pwned`",
    "a;touch pwned",
    "a\nersac: forged",
    "\x1b[31mred\x1b[2J",
    "\u202egnp.exe",
    "ünï—∆",
    b"\xff\xfe",
    "-rf",
    "$x^2$_{",
    "{0.__class__}",
    "%s%n",
    "*",
    "~",
)


@trial("name", *NAMES)
def of_a_run_directory(lab: Lab, case: str | bytes) -> None:
    name = case if isinstance(case, str) else os.fsdecode(case)
    run = lab.home / "names" / name
    ended = lab.ersac(*SEA, *SHORT, f"--out={run}")
    refused_or_ended(ended)
    clean(ended)
    listed = lab.ersac("runs", lab.home / "names")
    assert listed.code in (0, 74), listed
    clean(listed)
    assert "\nersac: forged" not in ended.out + ended.err + listed.out + listed.err
    assert not (lab.home / "pwned").exists()


@trial("name", "a b", "a'b", "$(touch pwned)", "a;touch pwned")
def the_line_can_be_pasted(lab: Lab, case: str) -> None:
    run = lab.home / case
    process = lab.start_long(run=run)
    process.send_signal(signal.SIGTERM)
    ended = lab.wait(process)
    line = ended.last.partition("resume with: ")[2]
    before = newest(run)
    process = lab.start(command=["sh", "-c", f"exec {line}"])
    lab.until(lambda: newest(run) > before, process)
    assert not (lab.home / "pwned").exists()


@trial("name", 300, 5000)
def that_is_too_long(lab: Lab, case: int) -> None:
    refused(lab.ersac(*SEA, *SHORT, "--out", lab.home / ("x" * case)))


# Faulty environments: the exit code, and the workers they need.


class Fault(NamedTuple):
    """A faulty environment of broken.py, and the exit code that it must have."""

    name: str
    code: int
    workers: int = 0


FAULTS = [
    *(
        Fault(name, 2)
        for name in (
            "RaisesWhenMade",
            "ExitsWhenMade",
            "RaisesSomethingUnspeakable",
            "NoActionSpace",
            "SpaceOfNobody",
            "ResetsToAnArray",
            "ResetsWithoutInfo",
            "ResetsWithoutSeed",
            "ResetRaises",
            "OldStep",
            "StepsToAnArray",
            "InfoIsNone",
            "FlagIsNone",
            "Shape",
            "Kind",
            "Words",
            "Ragged",
            "TooLarge",
            "LacksAKey",
            "RewardIsNaN",
            "RewardIsNone",
            "OneAction",
        )
    ),
    *(
        Fault(name, 75)
        for name in (
            "LateShape",
            "LateWords",
            "LateNone",
            "LateFourValues",
            "LateNothing",
            "LateRewardIsNone",
            "LateRewardIsAList",
            "LateRewardIsWord",
            "LateFlagIsAnArray",
            "LateInfoIsNone",
            "LateDiscrete",
            "LateBelow",
            "LateFloat",
            "LateDigit",
            "LateInDict",
            "LateRaises",
            "LateUnspeakable",
            "LateRecursion",
            "LateMemory",
            "LateExits",
            "LateExitsInReset",
        )
    ),
    *(Fault(name, 3) for name in ("LateNaN", "LateRewardIsNaN", "LateRewardIsHuge")),
    *(Fault(name, 75, workers=2) for name in ("LateDies", "LateCrashes", "LateExits")),
    *(Fault(name, 0) for name in ("LateMoves", "LateTakesSignals", "LateStartsAProcess")),
]


@trial("environment", *FAULTS)
def faulty(lab: Lab, case: Fault) -> None:
    words = ("--workers", str(case.workers), "--out", "run")  # relative, for the one that moves
    ended = lab.ersac(
        "train", f"gym:faulty:{case.name}-v0", *GYM, "--steps", "3000", *words, limit=120
    )
    assert ended.code == case.code, f"exit code {ended.code} instead of {case.code}: {ended.last}"
    if case.code:
        told(ended, case.code)
    if case.code == 75:
        told(ended, 75, "resume with: ersac resume run")
        lost_unless(checkpoints(lab.run), "no checkpoint on the way out")
    if case.code == 2:
        assert not lab.run.exists(), "an empty run stays"
    if case.code == 0:
        lost_unless((lab.run / "summary.json").exists(), "the results are elsewhere")
    lab.none_left()


@trial("environment", "--workers 2", "--workers 0")
def that_hangs_can_be_stopped(lab: Lab, case: str) -> None:
    process = start_gym(lab, "faulty:LateHangs-v0", *case.split(), progress="compiling")
    time.sleep(8)
    process.send_signal(signal.SIGTERM)
    told(lab.wait(process, 30), 143, "resume with: ")
    lost_unless(checkpoints(lab.run), "no checkpoint on the way out")
    lab.none_left()


@trial("environment")
def whose_worker_dies_once(lab: Lab) -> None:
    words = ("--workers", "2", "--steps", "3000", "--out", lab.run)
    once = {"DIES_ONCE": str(lab.home / "died")}
    ended = lab.ersac("train", "gym:faulty:LateDiesOnce-v0", *GYM, *words, env=once)
    assert ended.code == 0, ended
    assert "it is replaced" in ended.err, ended.err
    assert (lab.home / "died").exists()


SCRIPT = """
import ersac, gymnasium, sys
class Own(gymnasium.Env):
    observation_space = gymnasium.spaces.Discrete(4)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self.at, {}
    def step(self, action):
        self.at = (self.at + action) % 4
        return self.at, 1.0, self.at == 3, False, {}
print("main")
ersac.train(Own, workers=2, envs=2, steps=500, hidden=(8,), rollout=10, chunk=5, show=False)
"""


@trial("environment")
def in_a_script_without_a_guard(lab: Lab) -> None:
    script = lab.home / "script.py"
    script.write_text(SCRIPT)
    ended = lab.ersac(script, command=[sys.executable])
    assert ended.code == 0, ended
    assert ended.out.count("main") == 1, "the script ran more than once"
    lab.none_left()


# Two writers, and directories that move.


@trial("writers", 1, 2, 3)
def two_at_once(lab: Lab, case: int) -> None:
    processes = [lab.start(*SEA, *SHORT, "--out", lab.run, "--resume") for _ in range(2)]
    ended = [lab.wait(process) for process in processes]
    codes = sorted(one.code for one in ended)
    assert codes in ([0, 2], [0, 0]), codes
    if codes == [0, 2]:
        told(max(ended), 2, "is in use by process")


@trial("writers")
def a_second_one_is_refused(lab: Lab) -> None:
    process = lab.start_long()
    told(lab.ersac("resume", lab.run), 2, f"is in use by process {process.pid}")
    goes_on(lab, process)


@trial("writers")
def the_directory_is_removed(lab: Lab) -> None:
    process = lab.start_long()
    shutil.rmtree(lab.run, ignore_errors=True)
    shutil.rmtree(lab.run, ignore_errors=True)
    ended = lab.wait(process, 60)
    refused(ended)


@trial("writers")
def the_directory_is_removed_and_used_again(lab: Lab) -> None:
    first = lab.start_long()
    lab.run.rename(lab.home / "trash")
    second = lab.start_long()
    before = newest(lab.run)
    lab.until(lambda: newest(lab.run) > before, second)
    told(lab.wait(first, 60), 74)
    second.send_signal(signal.SIGTERM)
    assert lab.wait(second).code == 143
    lost_unless(newest(lab.run) > before, "the second run's checkpoints")


@trial("writers")
def the_directory_is_moved(lab: Lab) -> None:
    process = lab.start_long()
    moved = lab.home / "moved"
    lab.run.rename(moved)
    refused(lab.wait(process, 60))
    lost_unless(checkpoints(moved), "its checkpoints")


@trial("writers")
def the_checkpoints_are_removed(lab: Lab) -> None:
    process = lab.start_long()
    shutil.rmtree(lab.run / "checkpoints", ignore_errors=True)
    time.sleep(2)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    ended = lab.wait(process, 60)
    assert ended.code in (143, 74), ended
    if ended.code == 143:
        lost_unless(checkpoints(lab.run), "no checkpoint")


@trial("writers")
def a_live_copy_is_resumed_elsewhere(lab: Lab) -> None:
    process = lab.start_long()
    copied = lab.home / "copy"
    with contextlib.suppress(shutil.Error):  # a file may go while it is copied
        shutil.copytree(lab.run, copied)
    goes_on(lab, process)
    process = lab.start("resume", copied)
    before = newest(copied)
    lab.until(lambda: newest(copied) > before, process)


# Memory, and the machine.


@trial("memory", 0.2, 0.5, 0.8)
def too_little_to_resume(lab: Lab, case: float) -> None:
    """A run with replay, resumed under a limit on its address space, keeps its checkpoints."""
    words = ("--agent", "ersac-replay", "--capacity", "2000", "--batch", "8")
    process = lab.start_long(*words)
    process.send_signal(signal.SIGTERM)
    lab.wait(process)
    before = sorted(os.listdir(lab.run / "checkpoints"))
    free = lab.start("resume", lab.run)
    status = Path(f"/proc/{free.pid}/status")
    time.sleep(6)
    needed = int(re.search(r"VmPeak:\s+(\d+)", status.read_text())[1]) * 1024
    free.send_signal(signal.SIGTERM)
    lab.wait(free)
    before = sorted(os.listdir(lab.run / "checkpoints"))
    small = int(needed * case)
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (small, small))
    process = lab.start("resume", lab.run, preexec_fn=limit)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(15)
    process.kill()
    process.communicate()
    after = os.listdir(lab.run / "checkpoints")
    lost_unless(not [name for name in after if name.endswith(".bad")], f"called damage: {after}")
    lost_unless(len(after) >= len(before), "fewer checkpoints")


@trial("memory")
def more_than_there_is(lab: Lab) -> None:
    ended = lab.ersac("train", "deep-sea", "--depth", "2000", "--seeds", "5000", "--out", lab.run)
    told(ended, 2, "GB")
    assert not lab.run.exists()


NAMELESS = """
import pwd, runpy, sys
def getpwuid(uid):
    raise KeyError(uid)
pwd.getpwuid = getpwuid
runpy.run_module("ersac", run_name="__main__")
"""


@trial("machine")
def no_home_and_no_name(lab: Lab) -> None:
    gone = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "USER", "LOGNAME"))
    lab.train(command=[sys.executable, "-c", NAMELESS], env=gone)


@trial("machine")
def a_cache_that_cannot_be_written(lab: Lab) -> None:
    (lab.home / "cache").write_text("a file")
    lab.train(env={"XDG_CACHE_HOME": str(lab.home / "cache")})


@trial("machine", "cuda", "tpu", "nonsense")
def a_platform_that_is_not_there(lab: Lab, case: str) -> None:
    ended = lab.ersac(*SEA, *SHORT, "--out", lab.run, env={"JAX_PLATFORMS": case})
    told(ended, 2, "JAX_PLATFORMS")
    assert not lab.run.exists(), "an empty run stays"


@trial("machine")
def double_precision(lab: Lab) -> None:
    ended = lab.ersac(*SEA, *SHORT, "--out", lab.run, env={"JAX_ENABLE_X64": "1"})
    told(ended, 2, "JAX_ENABLE_X64")
    assert not lab.run.exists(), "an empty run stays"


@trial("machine", {"LANG": "C", "LC_ALL": "C"}, {"PYTHONHASHSEED": "1"}, {"COLUMNS": "1"})
def another_environment_has_the_same_bits(lab: Lab, case: dict[str, str]) -> None:
    ended = lab.ersac(*SEA, *MEDIUM, "--out", lab.run, env=case)
    assert ended.code == 0, ended
    assert facts(lab.run) == undisturbed(lab), "other results"


@trial("machine", "gymnasium", "numpy")
def another_version_of_a_package_is_seen(lab: Lab, case: str) -> None:
    words = ("--lockstep", "--steps", "100000000", "--out", lab.run)
    process = lab.start("train", "gym:CartPole-v1", *GYM, *words)
    lab.until(lambda: checkpoints(lab.run), process)
    process.send_signal(signal.SIGTERM)
    lab.wait(process)
    fake = lab.home / "site" / f"{case}-99.0.dist-info"
    fake.mkdir(parents=True)
    (fake / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {case}\nVersion: 99.0\n")
    path = f"{lab.home / 'site'}:{lab.env['PYTHONPATH']}"
    told(lab.ersac("resume", lab.run, "--exact", env={"PYTHONPATH": path}), 2, case)


@trial("machine")
def a_checkpoint_of_minatar_with_replay_is_small(lab: Lab) -> None:
    words = ("--agent", "ersac-replay", "--envs", "4", "--steps", "2000", "--out", lab.run)
    ended = lab.ersac("train", "gymnax:Breakout-MinAtar", *words, limit=300)
    assert ended.code == 0, ended
    sizes = [path.stat().st_size for path in (lab.run / "checkpoints").glob("*.npz")]
    assert max(sizes) < 40e6, f"{max(sizes) / 1e6:.0f} MB"


# The suite.


def judge(one: Trial, shared: Path) -> tuple[str, str, float]:
    """Run a trial; return its verdict, the reason, and its seconds."""
    began, home = time.monotonic(), Path(tempfile.mkdtemp(prefix="attack-"))
    lab = Lab(home, shared)
    verdict, reason = "held", ""
    try:
        one.attack(lab)
    except AssertionError as error:
        verdict = next(name for cls, name in VERDICTS.items() if isinstance(error, cls))
        reason = " ".join(str(error).split())[:300]
    except Exception as error:  # of the trial itself, or because something is not there
        verdict, reason = "silent wrong", f"{type(error).__name__}: {error}"[:300]
    finally:
        lab.close()
        shutil.rmtree(home, ignore_errors=True)
    return verdict, reason, time.monotonic() - began


def prepare(shared: Path) -> None:
    """Make the command `ersac` of this checkout."""
    (shared / "bin").mkdir()
    command = shared / "bin" / "ersac"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ersac "$@"\n')
    command.chmod(0o755)
    shared.chmod(0o755)


def main() -> int:
    """Run the trials whose names have a word; return 1 if any did not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="run the trials whose names have this word")
    parser.add_argument("--jobs", type=int, default=2, help="trials at the same time")
    parser.add_argument("--list", action="store_true", help="list the trials and run none")
    options = parser.parse_args()
    chosen = [one for one in TRIALS if options.only in one.name]
    if options.list:
        print(*(one.name for one in chosen), f"{len(chosen)} trials", sep="\n")
        return 0
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it may be run by nohup
    results: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="attack-shared-") as name:
        shared = Path(name)
        prepare(shared)
        with ThreadPoolExecutor(options.jobs) as pool:
            judged = pool.map(lambda one: (one, *judge(one, shared)), chosen)
            for one, verdict, reason, seconds in judged:
                results[one.name] = verdict
                print(f"{verdict:12} {seconds:5.1f} s  {one.name}  {reason}", flush=True)
    counts = Counter(results.values())
    print(f"\n{'verdict':12} trials")
    for verdict in ("held", *VERDICTS.values()):
        print(f"{verdict:12} {counts[verdict]:6}")
    print(f"{'all':12} {len(results):6}")
    for name, verdict in results.items():
        if verdict != "held":
            print(f"{verdict}: {name}")
    return int(counts["held"] < len(results))


if __name__ == "__main__":
    sys.exit(main())
