"""Sweeps finish although drivers, workers and writers are killed and records are damaged."""

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from ersac import cli
from ersac.runs import disk, run_dir
from ersac.sweeps import catalogue, listing, runner

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import sweeper  # noqa: E402


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def other_settings(run: Path) -> None:
    """Replace the settings by intact ones of another run."""
    shutil.copy(run.parent / "other" / "settings.json", run / "settings.json")


DAMAGES: dict[str, Callable[[Path], None]] = {
    "facts.npz is not what a run wrote": lambda run: rewrite(run / "facts.npz", flip),
    "facts.npz is not what a run wrote ": lambda run: rewrite(
        run / "facts.npz", lambda data: data[:-100]
    ),
    "facts.npz is missing": lambda run: (run / "facts.npz").unlink(),
    "summary.json is not what a run wrote": lambda run: rewrite(
        run / "summary.json", lambda data: data.replace(b'"depth": 5', b'"depth": 6')
    ),
    "summary.json is not what a run wrote ": lambda run: rewrite(
        run / "summary.json", lambda data: b""
    ),
    "summary.json belongs to another run": other_settings,
    "settings.json is damaged: it is not what a run wrote": lambda run: rewrite(
        run / "settings.json", flip
    ),
    "settings.json is damaged: it is not what a run wrote ": lambda run: rewrite(
        run / "settings.json", lambda data: b"[" * 100_000
    ),
    "settings.json is missing": lambda run: (run / "settings.json").unlink(),
    "cannot use": lambda run: ((run / "summary.json").unlink(), (run / "summary.json").mkdir()),
}


@pytest.fixture
def hundred(tmp_path) -> Path:
    """A hundred runs as a sweep writes them, without training."""
    home = tmp_path / "runs"
    sweeper.write_records(home, 0, 1, print)
    for number in range(1, 100):
        shutil.copytree(home / "0", home / f"{number:02d}")
    sweeper.write_records(tmp_path, 7, 8, print)
    shutil.move(tmp_path / "7", home / "other")
    (home / "0").rename(home / "00")
    return home


def test_of_100_runs_10_are_damaged_in_10_ways_90_are_shown_and_10_named(hundred, capsys):
    shutil.copy(hundred / "other" / "settings.json", hundred.parent / "settings.json")
    for number, damage in enumerate(DAMAGES.values()):
        damage(hundred / f"{10 * number:02d}")
    shutil.rmtree(hundred / "other")
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        cli.main(["runs", str(hundred), "--json"])
    out = capsys.readouterr().out
    data = json.loads(out.splitlines()[-1])
    assert stop.value.code == 0
    assert (data["ended"], data["damaged"], len(data["runs"])) == (90, 10, 100)
    named = {row["run"]: row["why"] for row in data["runs"] if row["state"] == "damaged"}
    for number, why in enumerate(DAMAGES):
        assert named[str(hundred / f"{10 * number:02d}")].startswith(why.strip())
    assert len(out.splitlines()) == 101
    assert sum("damaged: " in line for line in out.splitlines()[:-1]) == 10
    assert all(row["solved"] in (0, 1) for row in data["runs"] if row["state"] == "ended")


def test_what_is_no_directory_and_what_is_empty(tmp_path, capsys):
    for argv, code, text in (
        (["runs", str(tmp_path / "none")], 2, "is not a directory"),
        (["runs", str(tmp_path)], 0, "no runs here"),
    ):
        with pytest.raises(SystemExit) as stop:
            cli.main(argv)
        assert stop.value.code == code
        assert text in "".join(capsys.readouterr())


def test_a_link_in_a_circle(hundred):
    (hundred / "05" / "again").symlink_to(hundred)
    (hundred / "loop").symlink_to(hundred)
    assert len(list(listing.find_runs(hundred))) == 101


def start(*argv: str) -> subprocess.Popen[str]:
    code = [sys.executable, str(HERE / "sweeper.py"), *argv]
    return subprocess.Popen(
        code, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


@pytest.mark.slow
def test_records_are_neither_lost_nor_doubled_nor_torn_by_200_sigkills_of_8_writers(tmp_path):
    """Acknowledged records are intact; others are not counted, and the next writer writes them."""
    rng, share, inside = random.Random(4), 200, 0
    acknowledged: list[int] = []
    for _ in range(25):
        writers = [
            start("records", str(tmp_path), str(share * k), str(share * (k + 1))) for k in range(8)
        ]
        for writer in writers:
            acknowledged += map(int, writer.stdout.readline().split())
            time.sleep(rng.uniform(0, 0.05))
        for writer in writers:
            writer.kill()
            acknowledged += map(int, writer.communicate()[0].split())
        begun = {path.name for path in tmp_path.iterdir()}
        torn = [
            name
            for name in begun
            if run_dir.valid_summary(tmp_path / name, sweeper.run_arrays(int(name))[0]) is None
        ]
        assert not set(torn) & {str(number) for number in acknowledged}
        inside += len(torn)
    assert len(set(acknowledged)) == len(acknowledged)  # nobody wrote again what was there
    for number in torn:
        sweeper.write_records(tmp_path, int(number), int(number) + 1, lambda number: None)
    for number in map(int, begun):
        _, wanted, metrics = sweeper.run_arrays(number)
        (stats,), found, _ = run_dir.read_results(tmp_path / str(number))
        np.testing.assert_array_equal(stats.goals, wanted.goals)
        np.testing.assert_array_equal(stats.returns, wanted.returns)
        np.testing.assert_array_equal(found.values["tau"], metrics.values["tau"])
    print(f"200 kills, {inside} inside a record")
    assert inside >= 80, "most kills missed the window that this test is about"


def left(home: Path, wanted: list[catalogue.Instance]) -> dict[str, str]:
    """Return the digest of the results of every run that has ended."""
    summaries = {
        instance.name: run_dir.valid_summary(home / instance.name, instance.settings)
        for instance in wanted
    }
    return {name: found["facts_sha256"] for name, found in summaries.items() if found is not None}


class DriverRun(NamedTuple):
    """One execution of a sweep's driver."""

    ended: bool  # without being killed
    seconds: float  # since its first line of progress
    cpu_seconds: float


def run_driver(
    name: str,
    home: Path,
    engine: str = "local",
    until: Callable[[], bool] = lambda: False,
    delay: float = 0.0,
) -> DriverRun:
    """Run a sweep to its end, or kill it `delay` seconds after `until` holds.

    It is not killed before its first line of progress.
    """
    cpu = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    before = cpu()
    with start("sweep", name, str(home), engine) as process:
        process.stdout.readline()
        started = time.monotonic()
        # A full pipe would stop it.
        threading.Thread(target=process.stdout.read, daemon=True).start()
        while process.poll() is None and not until():
            time.sleep(0.01)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(delay)
        ended = process.poll() is not None
        if not ended:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.returncode == (0 if ended else -signal.SIGKILL), process.stderr.read()
    return DriverRun(ended, time.monotonic() - started, cpu() - before)


def run_with_kills(
    name: str, home: Path, kills: int, runs: int, delay: float, rng: random.Random
) -> tuple[int, list[DriverRun]]:
    """Kill a sweep so many times, then let it end; return how many kills hit a batch, and its runs.

    A kill comes up to `delay` seconds after a random share of the runs has ended.
    """
    hits, driver_runs = 0, []
    for share in sorted(rng.uniform(0, 0.85) for _ in range(kills)):
        reached = lambda share=share: (
            sum(entry.name != runner.BATCHES for entry in os.scandir(home) if entry.is_dir())
            >= share * runs
        )
        driver_runs.append(run_driver(name, home, until=reached, delay=rng.uniform(0, delay)))
        assert not driver_runs[-1].ended, "it ended before it was killed often enough"
        hits += bool(disk.names(home / runner.BATCHES))
    driver_runs.append(run_driver(name, home))
    return hits, driver_runs


def wanted_of(found: dict[str, catalogue.Sweep], name: str) -> list[catalogue.Instance]:
    return catalogue.instances(found[name], found[name].sizes["smoke"])


@pytest.mark.slow
def test_a_sweep_of_200_runs_killed_10_times_is_the_same_and_hardly_slower(tmp_path):
    """The command and the interval between checkpoints are the default ones."""
    wanted, kills = wanted_of(catalogue.SWEEPS, "reliability"), 10
    run_driver("reliability", tmp_path / "cold")  # compiled programs are kept from here on
    alone = run_driver("reliability", tmp_path / "undisturbed")
    restart = run_driver("reliability", tmp_path / "begun", until=lambda: True)
    hits, driver_runs = run_with_kills(
        "reliability", tmp_path / "killed", kills, 200, alone.seconds / 20, random.Random(5)
    )
    expected = left(tmp_path / "undisturbed", wanted)
    assert len(expected) == 200
    assert left(tmp_path / "cold", wanted) == expected
    assert left(tmp_path / "killed", wanted) == expected
    ratio = (
        sum(run.cpu_seconds for run in driver_runs) - kills * restart.cpu_seconds
    ) / alone.cpu_seconds
    seconds = sum(run.seconds for run in driver_runs)
    print(
        f"{kills} kills, {hits} inside a batch: "
        f"{ratio:.2f}x the processor time of {alone.cpu_seconds:.0f} s undisturbed"
    )
    print(
        f"plus {restart.cpu_seconds:.1f} s per restart; wall time {seconds:.0f} s after starting, "
        f"{alone.seconds:.0f} s undisturbed"
    )
    assert hits >= 4, "most kills missed the window that this test is about"


@pytest.mark.slow
def test_a_sweep_of_500_runs_survives_50_kills_of_its_driver(tmp_path):
    wanted = wanted_of(sweeper.SWEEPS, "tiny-500")
    assert len(wanted) == 500
    run_driver("tiny-500", tmp_path / "cold")
    alone = run_driver("tiny-500", tmp_path / "undisturbed")
    hits, _ = run_with_kills(
        "tiny-500", tmp_path / "killed", 50, 500, alone.seconds / 32 / 5, random.Random(6)
    )
    expected = left(tmp_path / "undisturbed", wanted)
    assert len(expected) == 500
    assert left(tmp_path / "killed", wanted) == expected
    print(f"50 kills, {hits} inside a batch")
    assert hits >= 20, "most kills missed the window that this test is about"
    assert not list((tmp_path / "killed").rglob("*.partial"))


def workers_of(pid: int) -> list[int]:
    """Return the processes of a session that run a Ray task now."""
    listed = subprocess.run(
        ["ps", "-eo", "pid=,sid=,args="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    return [int(row[0]) for row in rows if row[1] == str(pid) and "ray::_run_on_worker" in row[2]]


LOOPBACK = (
    "0100007F:",
    "0000000000000000FFFF00000100007F:",
    "00000000000000000000000001000000:",
)  # as /proc writes them


def listening_beyond_loopback(pid: int) -> list[str]:
    """Return the addresses, other than loopback, on which a session's processes listen."""
    listed = subprocess.run(
        ["ps", "-s", str(pid), "-o", "pid="], capture_output=True, text=True, check=True
    ).stdout
    inodes = set()
    for process in listed.split():
        for handle in Path(f"/proc/{process}/fd").glob("*"):
            try:
                inodes.add(os.readlink(handle))
            except OSError:
                continue
    found = []
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, address, _, state, *rest = row.split()
            if (
                state == "0A"
                and f"socket:[{rest[5]}]" in inodes
                and not address.startswith(LOOPBACK)
            ):
                found.append(f"{table} {address}")
    return found


@pytest.mark.slow
def test_ray_has_the_same_bits_is_shut_and_survives_its_workers(tmp_path):
    pytest.importorskip("ray")
    wanted = wanted_of(sweeper.SWEEPS, "tiny-100")
    assert len(wanted) == 100
    assert run_driver("tiny-100", tmp_path / "local").ended
    expected = left(tmp_path / "local", wanted)
    assert len(expected) == 100
    with start("sweep", "tiny-100", str(tmp_path / "ray"), "ray") as process:
        kills, open_ports = 0, []
        saved = lambda: any((tmp_path / "ray" / runner.BATCHES).glob("*/checkpoints/*.json"))
        while process.poll() is None:
            if kills < 2 and (workers := workers_of(process.pid)) and saved():
                open_ports += listening_beyond_loopback(process.pid)
                os.kill(workers[0], signal.SIGKILL)
                kills += 1
                time.sleep(1)
            time.sleep(0.02)
        _, err = process.communicate()
    assert process.returncode == 0, err
    assert kills == 2
    assert left(tmp_path / "ray", wanted) == expected
    assert not open_ports
    assert not workers_of(process.pid)
