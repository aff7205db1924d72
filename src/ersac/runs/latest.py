"""What a run has learned and recorded so far, from its last checkpoint. Nothing is written."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ersac.config import Experiment, SettingsError
from ersac.runs import checkpoint, disk, run_dir, seal
from ersac.runs.checkpoint import Checkpoint, CorruptCheckpoint
from ersac.runs.recorder import Recorder
from ersac.runs.run_dir import RUNNING, STOPPED, Timings


class Latest(NamedTuple):
    """The state of a run at a checkpoint."""

    state: str  # stopped, or running: another process holds its directory
    recorder: Recorder
    timings: Timings
    environment_changes: list[str]


def run_state(directory: Path) -> str:
    """Return whether a run that has not ended is running or stopped."""
    return RUNNING if disk.lock_holder(directory / run_dir.LOCK) else STOPPED


def read_latest(directory: Path, settings: Experiment, note: Callable[[str], None]) -> Latest:
    """Return the records of a run that has not ended, up to its last intact checkpoint."""
    state = run_state(directory)
    saved = last_checkpoint(directory, settings, note)
    recorder = Recorder.from_state(settings, seal.arrays_below(saved.arrays, "recorder"))
    spent, changes = Timings(**saved.notes["spent"]), list(saved.notes["departures"])
    return Latest(state, recorder, spent, changes)


def last_checkpoint(
    directory: Path, settings: Experiment, note: Callable[[str], None], has_ended: bool = False
) -> Checkpoint:
    """Return the newest intact checkpoint of a run; `note` reports damaged ones.

    Of a run that has ended only the newest one counts. Raises SettingsError if the run has none,
    DiskError if all are damaged.
    """
    home, run_hash = directory / checkpoint.DIRECTORY, run_dir.run_hash(settings)
    numbers = checkpoint.checkpoint_numbers(home)[-1 if has_ended else None :]
    if not numbers:
        raise SettingsError(_no_checkpoint(directory))
    damage = None
    for number in reversed(numbers):
        try:
            return checkpoint.read_checkpoint(home, number, run_hash)
        except CorruptCheckpoint as error:
            damage = error
            if number != numbers[0]:
                note(f"checkpoint {number} of {directory} is damaged: {error}; the one before it:")
    if checkpoint.checkpoint_numbers(home)[-1:] != numbers[-1:]:
        return last_checkpoint(directory, settings, note)  # they were replaced by newer ones
    raise disk.DiskError(f"the last checkpoint of {directory} is damaged: {damage}") from None


def _no_checkpoint(directory: Path) -> str:
    """Return why there is nothing to read yet, and what to do."""
    if (directory / run_dir.SUMMARY).exists():
        return (
            f"{directory} has no checkpoint to load a policy from: sweeps keep none; "
            "train this run by itself with ersac train"
        )
    if run_state(directory) == RUNNING:
        return f"{directory} is under way and has written no checkpoint yet"
    return (
        f"{directory} was stopped before its first checkpoint; resume with: "
        f"{run_dir.how_to_resume(directory)}"
    )


def describe_unfinished(directory: Path, state: str, steps: int) -> str:
    """Return one line that says what was read of a run that has not ended.

    steps: of each seed.
    """
    checkpoint = f"its checkpoint after {steps:,} steps"
    if state == RUNNING:
        return f"{directory} is under way: {checkpoint}"
    command = run_dir.how_to_resume(directory)
    return f"{directory} was stopped: {checkpoint}; resume with: {command}"


def steps_of(saved: Checkpoint) -> int:
    """Return the environment steps of each seed at a checkpoint."""
    recorded = seal.arrays_below(saved.arrays, "recorder")
    return int(recorded["steps"]) // len(np.atleast_1d(recorded["episodes"]))
