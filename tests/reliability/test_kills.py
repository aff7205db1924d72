"""A run of any preset that is killed and resumed ends with the same bits."""

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ersac.config.presets import PRESETS

VICTIM = Path(__file__).with_name("victim.py")
WRITE_SECONDS = 0.01  # per write and sync of a victim's disk
SESSION_SECONDS = 0.3  # at most, from a victim's first save to its end
# One of each kind of state: counters, episodes for replay, a replay buffer, networks of RND.
KINDS = ("ersac", "ersac-local-replay", "boot-dqn", "ppo-rnd")


def start(
    directory: Path, episodes: int, write_seconds: float, presets: Sequence[str]
) -> subprocess.Popen[str]:
    argv = [sys.executable, str(VICTIM), str(directory), str(episodes), str(write_seconds)]
    argv += presets
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def assert_ends(process: subprocess.Popen[str]) -> None:
    out, err = process.communicate(timeout=250)
    assert process.returncode == 0, err
    assert out.endswith("done\n")
    assert "Traceback" not in err


def run_and_signal(
    directory: Path,
    episodes: int,
    number: int,
    presets: Sequence[str],
    targets: Sequence[str],
    rng: random.Random,
) -> tuple[str, bool]:
    """Run until one of the targets is saved, then send a signal at a random time.

    Returns the preset that was hit, or 'done', or 'between' two of them, and whether the end came
    inside a write.
    """
    with start(directory, episodes, WRITE_SECONDS, presets) as process:
        met = next(line.strip() for line in process.stdout if line.strip() in [*targets, "done"])
        if met != "done":
            time.sleep(rng.uniform(0, SESSION_SECONDS))
            process.send_signal(number)
        sent = time.monotonic()
        lines, err = process.communicate(timeout=60)
        seconds = time.monotonic() - sent
    if met == "done" or lines.endswith("done\n"):  # it ended before the signal
        assert process.returncode in (0, -number), err
        return "done", False
    if number == signal.SIGKILL:
        assert process.returncode == -number, err
    else:
        last = [line for line in err.splitlines() if "has already ended" not in line]
        if process.returncode == -number or last == ["ersac: stopped at once"]:
            return "between", False
        assert process.returncode == 128 + number, err
        answer, stopped = last
        assert answer.startswith(f"ersac: {signal.Signals(number).name}: saving and stopping")
        assert stopped.startswith("ersac: stopped; resume with: ersac resume ")
        assert seconds < 5
    return met, any(directory.rglob("*.partial"))


class KilledRuns:
    """Runs that are stopped again and again, and compared with undisturbed ones."""

    def __init__(
        self, root: Path, episodes: int, left, seed: int, presets: Sequence[str] = tuple(PRESETS)
    ) -> None:
        self.root, self.episodes, self.left, self.rng = root, episodes, left, random.Random(seed)
        self.presets = presets
        self.met: list[tuple[str, bool]] = []
        self.rounds = 0
        self.undisturbed = start(root / "undisturbed", episodes, 0.0, presets)

    def compare(self, directory: Path) -> None:
        if self.undisturbed.returncode is None:
            assert_ends(self.undisturbed)
        for preset in self.presets:
            expected = self.left(self.root / "undisturbed" / preset)
            assert len(expected) > 50
            assert self.left(directory / preset) == expected, preset
        self.rounds += 1

    def send(self, signals: list[int]) -> None:
        """Send every signal to a run, with the presets taking turns."""
        names, directory = self.presets, self.root / "run"
        for k, number in enumerate(signals):
            met = "between"
            while met in ("between", "done"):
                met, inside = run_and_signal(
                    directory,
                    self.episodes,
                    number,
                    names,
                    names[k * len(names) // len(signals) :],
                    self.rng,
                )
                if met == "done":
                    self.compare(directory)
                    shutil.rmtree(directory)
            self.met.append((met, inside))
        assert_ends(start(directory, self.episodes, 0.0, self.presets))
        self.compare(directory)


def test_sigkill_sigint_and_sigterm(tmp_path, left):
    runs = KilledRuns(tmp_path, 300, left, seed=1, presets=KINDS)
    runs.send([signal.SIGKILL, signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
    assert {met for met, _ in runs.met} == set(KINDS)


@pytest.mark.slow
def test_200_sigkills(tmp_path, left):
    runs = KilledRuns(tmp_path, 1500, left, seed=2)
    runs.send([signal.SIGKILL] * 200)
    inside = sum(inside for _, inside in runs.met)
    print(f"200 of 200, {inside} inside a write, {runs.rounds} runs of every preset")
    assert inside >= 80, "most kills missed the window that this test is about"
    assert {met for met, _ in runs.met} == set(PRESETS)


@pytest.mark.slow
def test_50_signals(tmp_path, left):
    runs = KilledRuns(tmp_path, 1500, left, seed=3)
    runs.send([signal.SIGINT, signal.SIGTERM] * 25)
