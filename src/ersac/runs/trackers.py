"""Experiment trackers (opt-in), updated from the recorder after every chunk. No jax here.

What a tracker logs depends on the recorder alone: metrics of every chunk by environment steps, and
statistics of every hundred episodes by episodes. A resumed run therefore logs the same points
again, and each tracker drops what it had logged beyond the checkpoint.
"""

import contextlib
import itertools
import math
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ersac import display
from ersac.config import SettingsError, Track
from ersac.packages import require_package
from ersac.runs import disk, run_dir
from ersac.runs.recorder import Recorder, last_entries

BLOCK = 100  # episodes a point
STEP, EPISODE = "by step", "by episode"  # the axes; tags start with them
FILE = "events.out.tfevents.ersac"


class LogPosition(NamedTuple):
    """How much of one seed has been logged."""

    step: int = 0
    episode: int = 0


class Point(NamedTuple):
    """Values of one seed at one position of an axis."""

    axis: str
    at: int
    values: dict[str, float]

    def tags(self) -> dict[str, float]:
        """Return the values by the tags that a tracker shows."""
        return {f"{self.axis}/{name}": value for name, value in self.values.items()}


class Tracker(Protocol):
    """Logs the progress of a run."""

    def update(self, recorder: Recorder) -> None:
        """Log what the recorder has and has not been logged yet."""

    def close(self) -> None:
        """Finish the files."""


def new_points(recorder: Recorder, seed_index: int, logged: LogPosition) -> Iterator[Point]:
    """Yield the points of one seed that come after `logged`."""
    newest_first = zip(reversed(recorder.rows), reversed(recorder.paces), strict=True)
    unlogged = list(itertools.takewhile(lambda item: item[0]["step"] > logged.step, newest_first))
    for row, pace in reversed(unlogged):
        values = {name: float(column[seed_index]) for name, column in row.items() if name != "step"}
        values["steps_per_second"] = float(pace)
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        yield Point(STEP, int(row["step"]), finite)  # means are nan before the first episode
    blocks = (current_position(recorder, seed_index).episode - logged.episode) // BLOCK
    count = int(recorder.episodes[seed_index]) - logged.episode
    goals, returns = (
        last_entries(parts[seed_index], count) for parts in (recorder.goals, recorder.returns)
    )
    for block in range(blocks):
        span = slice(block * BLOCK, (block + 1) * BLOCK)
        values = {
            "goal share": float(goals[span].mean()),
            "mean return": float(returns[span].mean(dtype=float)),
        }
        yield Point(EPISODE, logged.episode + (block + 1) * BLOCK, values)


def current_position(recorder: Recorder, seed_index: int) -> LogPosition:
    """Return how much there is to log of a seed: whole blocks of episodes, within the budget."""
    episodes = min(int(recorder.episodes[seed_index]), recorder.settings.run.episodes)
    return LogPosition(recorder.steps_per_seed, episodes // BLOCK * BLOCK)


class TensorBoard:
    """An event file for each seed under `tensorboard/`.

    Whenever a run starts or resumes, the file is written again from the recorder, after an event
    that makes a running TensorBoard drop what it has read. tensorboardX's SummaryWriter cannot be
    used: its `purge_step` is one number for two axes, every writer has a thread and an open file,
    and when the disk is full its thread dies and the run waits for it forever.
    """

    def __init__(self, directory: Path, recorder: Recorder) -> None:
        home = directory / "tensorboard"
        self.paths = [home / f"seed {seed}" / FILE for seed in recorder.seeds]
        self.logged = [LogPosition() for _ in recorder.seeds]
        disk.make_own_directory(home)
        for path in self.paths:
            disk.make_own_directory(path.parent)
            disk.write(path, header_events())
        if recorder.chunks:
            self.update(recorder)

    def update(self, recorder: Recorder) -> None:
        """Append the new points in one write."""
        for i, path in enumerate(self.paths):
            new = new_points(recorder, i, self.logged[i])
            disk.append(path, b"".join(encode_event(point) for point in new))
            self.logged[i] = current_position(recorder, i)

    def close(self) -> None:
        """Do nothing: everything is on disk already."""


def header_events() -> bytes:
    """Return the start of an event file: its version, and that earlier events are void."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    start = SessionLog(status=SessionLog.START)
    version = Event(wall_time=time.time(), file_version="brain.Event:2")
    restart = Event(wall_time=time.time(), step=0, session_log=start)
    return frame_record(version.SerializeToString()) + frame_record(restart.SerializeToString())


def encode_event(point: Point) -> bytes:
    """Return a point as a record of an event file."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=name, simple_value=value) for name, value in point.tags().items()]
    event = Event(wall_time=time.time(), step=point.at, summary=Summary(value=values))
    return frame_record(event.SerializeToString())


def frame_record(data: bytes) -> bytes:
    """Return a record as files store it: its length and itself, each with a checksum."""
    from tensorboardX.record_writer import masked_crc32c

    checksum = lambda part: struct.pack("<I", masked_crc32c(part))
    length = struct.pack("<Q", len(data))
    return length + checksum(length) + data + checksum(data)


class WandB:
    """Weights & Biases, offline: files under `wandb/`, which only `wandb sync` uploads.

    The wandb library cannot take back what it has written, so every start or resume of a run
    writes the files again from the recorder.
    """

    def __init__(self, directory: Path, recorder: Recorder) -> None:
        # Both are read at the import; without the second, wandb reports its own errors online.
        os.environ.update(WANDB_MODE="offline", WANDB_ERROR_REPORTING="false")
        import wandb

        disk.remove_tree(directory / "wandb")
        disabled = (
            "silent",
            "disable_git",
            "disable_code",
            "x_disable_meta",
            "x_disable_stats",
            "x_disable_machine_info",
        )
        options: dict[str, Any] = dict.fromkeys(disabled, True) | {
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
                    settings=wandb.Settings(**options),
                )
                for seed in recorder.seeds
            ]
        except wandb.Error as error:
            raise disk.DiskError(f"Weights & Biases cannot start: {error}") from error
        for run, axis in itertools.product(self.runs, (STEP, EPISODE)):
            run.define_metric(f"{axis}/*", step_metric=axis)
        self.logged = [LogPosition() for _ in recorder.seeds]
        if recorder.chunks:
            self.update(recorder)

    def update(self, recorder: Recorder) -> None:
        """Log the new points."""
        for i, run in enumerate(self.runs):
            for point in new_points(recorder, i, self.logged[i]):
                run.log({point.axis: point.at} | point.tags())
            self.logged[i] = current_position(recorder, i)

    def close(self) -> None:
        """Finish the files."""
        for run in self.runs:
            run.finish()


class SafeTracker:
    """A tracker that never ends a run.

    Where it fails it is made again, from all that is recorded; if that fails too it is dropped.
    """

    def __init__(
        self, make: Callable[[Path, Recorder], Tracker], directory: Path, recorder: Recorder
    ) -> None:
        self.make, self.directory = make, directory
        self.tracker: Tracker | None = make(directory, recorder)

    def update(self, recorder: Recorder) -> None:
        """Log what the recorder has and has not been logged yet."""
        if self.tracker is None:
            return
        try:
            self.tracker.update(recorder)
        except Exception:
            try:
                self.tracker = self.make(self.directory, recorder)
            except Exception as error:
                self._drop(error)

    def close(self) -> None:
        """Finish the files."""
        if self.tracker is not None:
            try:
                self.tracker.close()
            except Exception as error:
                self._drop(error)

    def _drop(self, error: Exception) -> None:
        name = type(self.tracker).__name__
        self.tracker = None
        display.note(f"{name} failed, and the run continues without it: {error}")


class TrackerType(NamedTuple):
    """A tracker that an option enables, and the package that it needs."""

    package: str
    make: Callable[[Path, Recorder], Tracker]


TRACKERS = {
    "tensorboard": TrackerType("tensorboardX", TensorBoard),
    "wandb": TrackerType("wandb", WandB),
}


def check_trackers(track: Track, directory: Path | None) -> None:
    """Raise SettingsError if an enabled tracker lacks its package or a directory."""
    for name, tracker in _enabled(track).items():
        require_package(f"--{name}", tracker.package, "track")
        if directory is None:
            raise SettingsError(f"--{name} needs a directory for the run: give it one with out")


@contextlib.contextmanager
def open_trackers(
    track: Track, directory: Path | None, recorder: Recorder
) -> Iterator[list[Tracker]]:
    """Open the enabled trackers, up to date with the recorder; close them at the end."""
    opened: list[Tracker] = []
    with contextlib.ExitStack() as stack:
        if directory is not None:
            for tracker in _enabled(track).values():
                opened.append(SafeTracker(tracker.make, directory, recorder))
                stack.callback(opened[-1].close)
        yield opened


def _enabled(track: Track) -> dict[str, TrackerType]:
    return {name: tracker for name, tracker in TRACKERS.items() if getattr(track, name)}
