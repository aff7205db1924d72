"""Stopped anyhow and continued, every preset ends with the same bits."""

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ersac.config.presets import PRESETS

VICTIM = Path(__file__).with_name("victim.py")
WRITE_SECONDS = 0.01  # that a victim's disk takes for each write and sync
LIFE_SECONDS = 0.3  # at most, between a victim's first save and its end


def start(directory: Path, episodes: int, write_seconds: float) -> subprocess.Popen[str]:
    argv = [sys.executable, str(VICTIM), str(directory), str(episodes), str(write_seconds)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> None:
    out, err = process.communicate(timeout=250)
    assert process.returncode == 0, err
    assert out.endswith("done\n")
    assert "Traceback" not in err


def one_life(
    directory: Path, episodes: int, number: int, presets: list[str], rng: random.Random
) -> tuple[str, bool]:
    """Let it run until it saves one of the presets, then send a signal at a random moment.

    Returns the preset that was met, or 'done', or 'between' two of them, and whether the end came in the middle of a write.
    """
    with start(directory, episodes, WRITE_SECONDS) as process:
        met = next(line.strip() for line in process.stdout if line.strip() in [*presets, "done"])
        if met != "done":
            time.sleep(rng.uniform(0, LIFE_SECONDS))
            process.send_signal(number)
        sent = time.monotonic()
        lines, err = process.communicate(timeout=60)
        seconds = time.monotonic() - sent
    if met == "done" or lines.endswith("done\n"):  # it was faster
        assert process.returncode in (0, -number), err
        return "done", False
    if number == signal.SIGKILL:
        assert process.returncode == -number, err
    else:
        last = [line for line in err.splitlines() if "has already ended" not in line]
        if process.returncode == -number or last == ["ersac: stopped at once"]:
            return "between", False
        assert process.returncode == 128 + number, err
        assert len(last) == 1
        assert last[0].startswith("ersac: stopped; resume with: ersac resume ")
        assert seconds < 5
    return met, any(directory.rglob("*.partial"))


class Lives:
    """Many lives of runs that are stopped again and again, each compared with one that never was."""

    def __init__(self, root: Path, episodes: int, left, seed: int) -> None:
        self.root, self.episodes, self.left, self.rng = root, episodes, left, random.Random(seed)
        self.met: list[tuple[str, bool]] = []
        self.rounds = 0
        self.undisturbed = start(root / "undisturbed", episodes, 0.0)

    def compare(self, directory: Path) -> None:
        if self.undisturbed.returncode is None:
            ended(self.undisturbed)
        for preset in PRESETS:
            whole = self.left(self.root / "undisturbed" / preset)
            assert len(whole) > 50
            assert self.left(directory / preset) == whole, preset
        self.rounds += 1

    def spend(self, signals: list[int]) -> None:
        """Send every signal to somebody, with the presets taking turns."""
        names, directory = list(PRESETS), self.root / "run"
        for k, number in enumerate(signals):
            met = "between"
            while met in ("between", "done"):
                met, inside = one_life(
                    directory,
                    self.episodes,
                    number,
                    names[k * len(names) // len(signals) :],
                    self.rng,
                )
                if met == "done":
                    self.compare(directory)
                    shutil.rmtree(directory)
            self.met.append((met, inside))
        ended(start(directory, self.episodes, 0.0))
        self.compare(directory)


@pytest.mark.timeout(600)  # nine agents are compiled, on a machine that may have other work
def test_sigkill_sigint_and_sigterm(tmp_path, left):
    lives = Lives(tmp_path, 300, left, seed=1)
    lives.spend([*[signal.SIGKILL] * 10, signal.SIGINT, signal.SIGTERM, *[signal.SIGKILL] * 10])
    assert {met for met, _ in lives.met} == set(PRESETS)


@pytest.mark.slow
def test_200_sigkills(tmp_path, left):
    lives = Lives(tmp_path, 1500, left, seed=2)
    lives.spend([signal.SIGKILL] * 200)
    inside = sum(inside for _, inside in lives.met)
    print(f"200 of 200, {inside} inside a write, {lives.rounds} runs of every preset")
    assert inside >= 80, "most kills missed the window that this test is about"
    assert {met for met, _ in lives.met} == set(PRESETS)


@pytest.mark.slow
def test_50_signals(tmp_path, left):
    lives = Lives(tmp_path, 1500, left, seed=3)
    lives.spend([signal.SIGINT, signal.SIGTERM] * 25)
