"""Experiment trackers: opt-in, fed from the records after every chunk; the loop knows nothing of them. No jax here.

What a tracker has been told is a function of the records alone: a row of metrics for every chunk, by environment steps, and the
statistics of every hundred episodes, by episodes. So a run that is resumed tells it the same again, and each drops what a crash
had let it hear too early.
"""

import contextlib
import itertools
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from ersac.config import SettingsError, Track
from ersac.packages import require_package
from ersac.runs import disk, run_dir
from ersac.runs.recorder import Recorder

BLOCK = 100  # episodes that make one point
STEP, EPISODE = "by step", "by episode"  # the axes, which are the beginnings of names too
FILE = "events.out.tfevents.ersac"


class LogPosition(NamedTuple):
    """How far a tracker has been told of one seed."""

    step: int = 0
    episode: int = 0


class Point(NamedTuple):
    """Numbers of one seed at one place of an axis, by name."""

    axis: str
    at: int
    numbers: dict[str, float]

    def tags(self) -> dict[str, float]:
        """The numbers under the names that a tracker shows."""
        return {f"{self.axis}/{name}": value for name, value in self.numbers.items()}


class Tracker(Protocol):
    """Somebody who is told how a run goes."""

    def follow(self, recorder: Recorder) -> None:
        """Take in what the records hold and it has not logged."""

    def close(self) -> None:
        """There will be no more in this life of the run."""


def new_points(recorder: Recorder, place: int, logged: LogPosition) -> Iterator[Point]:
    """What the records hold of the seed at some place among the seeds, beyond what was logged."""
    unheard = list(
        itertools.takewhile(lambda row: row["step"] > logged.step, reversed(recorder.rows))
    )
    for row in reversed(unheard):
        yield Point(
            STEP,
            int(row["step"]),
            {name: float(column[place]) for name, column in row.items() if name != "step"},
        )
    blocks = (current_position(recorder, place).episode - logged.episode) // BLOCK
    since = int(recorder.episodes[place]) - logged.episode
    goals, returns = (
        last_entries(parts[place], since) for parts in (recorder.goals, recorder.returns)
    )
    for block in range(blocks):
        span = slice(block * BLOCK, (block + 1) * BLOCK)
        numbers = {
            "goal share": float(goals[span].mean()),
            "mean return": float(returns[span].mean(dtype=float)),
        }
        yield Point(EPISODE, logged.episode + (block + 1) * BLOCK, numbers)


def current_position(recorder: Recorder, place: int) -> LogPosition:
    """All that there is to hear of a seed: episodes in whole blocks, within the budget."""
    episodes = min(int(recorder.episodes[place]), recorder.settings.run.episodes)
    return LogPosition(recorder.steps // len(recorder.seeds), episodes // BLOCK * BLOCK)


def last_entries(parts: list[np.ndarray], wanted: int) -> np.ndarray:
    """The last so many entries of what is kept in parts."""
    taken: list[np.ndarray] = []
    while sum(map(len, taken)) < wanted:
        taken.append(parts[-1 - len(taken)])
    return np.concatenate([np.zeros(0), *reversed(taken)])[-wanted:] if wanted else np.zeros(0)


class TensorBoard:
    """An event file for each seed under `tensorboard/`.

    Each time a run starts or resumes, the file is written again from the records, after an event
    that tells a TensorBoard that is watching to drop what it has. tensorboardX's SummaryWriter does
    not do here: `purge_step` is one number for two axes, every writer holds a thread and an open
    file, and when the disk is full its thread dies and the run waits for it without end.
    """

    def __init__(self, directory: Path, recorder: Recorder) -> None:
        home = directory / "tensorboard"
        self.paths = [home / f"seed {seed}" / FILE for seed in recorder.seeds]
        self.logged = [LogPosition() for _ in recorder.seeds]
        for path in self.paths:
            disk.make_directory(path.parent)
            disk.write(path, header_events())
        if recorder.chunks:
            self.follow(recorder)

    def follow(self, recorder: Recorder) -> None:
        """Append what is new, in one piece."""
        for place, path in enumerate(self.paths):
            new = new_points(recorder, place, self.logged[place])
            disk.append(path, b"".join(encode_event(point) for point in new))
            self.logged[place] = current_position(recorder, place)

    def close(self) -> None:
        """Nothing: all of it is there already."""


def header_events() -> bytes:
    """The beginning of an event file: its version, and that whatever came before is void."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    start = SessionLog(status=SessionLog.START)
    version = Event(wall_time=time.time(), file_version="brain.Event:2")
    restart = Event(wall_time=time.time(), step=0, session_log=start)
    return frame_record(version.SerializeToString()) + frame_record(restart.SerializeToString())


def encode_event(point: Point) -> bytes:
    """A point as a frame_record record of an event file."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=name, simple_value=value) for name, value in point.tags().items()]
    made = Event(wall_time=time.time(), step=point.at, summary=Summary(value=values))
    return frame_record(made.SerializeToString())


def frame_record(data: bytes) -> bytes:
    """A record as it stands in a file: its length and itself, each followed by its checksum."""
    from tensorboardX.record_writer import masked_crc32c

    checksum = lambda part: struct.pack("<I", masked_crc32c(part))
    length = struct.pack("<Q", len(data))
    return length + checksum(length) + data + checksum(data)


class WandB:
    """Weights & Biases, offline: files under `wandb/` that stay on this machine until somebody runs `wandb sync`.

    Its library writes them and cannot take back what it wrote, so every life of a run begins them anew, with all that the records hold.
    """

    def __init__(self, directory: Path, recorder: Recorder) -> None:
        # Both are read when it is imported; without the second it would tell its makers of its own errors.
        os.environ.update(WANDB_MODE="offline", WANDB_ERROR_REPORTING="false")
        import wandb

        disk.remove_tree(directory / "wandb")
        unasked = (
            "silent",
            "disable_git",
            "disable_code",
            "x_disable_meta",
            "x_disable_stats",
            "x_disable_machine_info",
        )
        shut: dict[str, Any] = dict.fromkeys(unasked, True) | {
            "console": "off",
            "x_save_requirements": False,
        }
        try:
            self.runs = [
                wandb.init(
                    mode="offline",
                    dir=str(directory),
                    project="ersac",
                    group=directory.name,
                    name=f"{directory.name} seed {seed}",
                    id=f"{run_dir.run_hash(recorder.settings)}-{seed}",
                    config=run_dir.settings_json(recorder.settings) | {"seed": seed},
                    reinit="create_new",
                    settings=wandb.Settings(**shut),
                )
                for seed in recorder.seeds
            ]
        except wandb.Error as error:
            raise disk.DiskError(f"Weights & Biases cannot begin: {error}") from error
        for run, axis in itertools.product(self.runs, (STEP, EPISODE)):
            run.define_metric(f"{axis}/*", step_metric=axis)
        self.logged = [LogPosition() for _ in recorder.seeds]
        if recorder.chunks:
            self.follow(recorder)

    def follow(self, recorder: Recorder) -> None:
        """Log what is new."""
        for place, run in enumerate(self.runs):
            for point in new_points(recorder, place, self.logged[place]):
                run.log({point.axis: point.at} | point.tags())
            self.logged[place] = current_position(recorder, place)

    def close(self) -> None:
        """Finish its files."""
        for run in self.runs:
            run.finish()


class TrackerType(NamedTuple):
    """A tracker that can be asked for by name, and the package that it needs."""

    package: str
    make: Callable[[Path, Recorder], Tracker]


TRACKERS = {
    "tensorboard": TrackerType("tensorboardX", TensorBoard),
    "wandb": TrackerType("wandb", WandB),
}


def check_trackers(track: Track, directory: Path | None) -> None:
    """SettingsError where a tracker that is asked for has no package or no place."""
    for name, kind in _enabled(track).items():
        require_package(f"--{name}", kind.package, "track")
        if directory is None:
            raise SettingsError(f"--{name} needs a directory for the run: give it one with out")


@contextlib.contextmanager
def open_trackers(
    track: Track, directory: Path | None, recorder: Recorder
) -> Iterator[list[Tracker]]:
    """The trackers that are asked for, told all that the records hold; closed at the end, however it comes."""
    made: list[Tracker] = []
    with contextlib.ExitStack() as held:
        if directory is not None:
            for kind in _enabled(track).values():
                made.append(kind.make(directory, recorder))
                held.callback(made[-1].close)
        yield made


def _enabled(track: Track) -> dict[str, TrackerType]:
    return {name: kind for name, kind in TRACKERS.items() if getattr(track, name)}
