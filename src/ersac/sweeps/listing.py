"""What lies below a directory: runs, sweeps, and the state of each. No directory, however damaged, hides another."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ersac import config
from ersac.config import SettingsError
from ersac.runs import disk, run_dir, seal
from ersac.runs.run_dir import CorruptRecord
from ersac.sweeps import runner

CHECKPOINTS = "checkpoints"  # as checkpoint.py has it, which needs jax
MARKS = {
    run_dir.SETTINGS,
    run_dir.RESULTS,
    run_dir.SUMMARY,
    run_dir.FAILURE,
    CHECKPOINTS,
}  # whoever holds one of them is, or was, a run
ENDED, STOPPED, RUNNING, FAILED, DAMAGED = STATES = (
    "ended",
    "stopped",
    "running",
    "failed",
    "damaged",
)


class RunRow(NamedTuple):
    """A run, as its directory tells of it."""

    run: str
    state: str
    why: str = ""  # it is in that state, or where it stopped
    agent: str | None = None
    env: str | None = None
    depth: int | None = None  # of a sea
    seeds: int | None = None
    solved: int | None = None  # of the seeds, by the reliable rule

    def words(self) -> str:
        """The state in words."""
        return (
            f"{self.state}: {self.why}"
            if self.state in (FAILED, DAMAGED)
            else f"{self.state} {self.why}".strip()
        )


class Count(NamedTuple):
    """How much of a sweep there is."""

    directory: str
    sweep: str
    ended: int
    failed: int
    wanted: int


def rows(root: Path) -> Iterator[RunRow]:
    """Every run at or below a directory, in the order of their names."""
    if not root.is_dir():
        raise SettingsError(f"{root} is no directory; ersac runs DIR")
    unreadable: list[OSError] = []
    for place, below, files in os.walk(root, onerror=unreadable.append):
        directory, held = Path(place), {*below, *files}
        below.sort()
        if runner.BATCH in held:
            below.clear()
            yield from _under_way(directory)
        elif MARKS & held:
            below.clear()
            yield look(directory)
        while unreadable:
            error = unreadable.pop()
            yield RunRow(str(error.filename), DAMAGED, os.strerror(error.errno or 0))


def look(directory: Path) -> RunRow:
    """One run."""
    name = str(directory)
    try:
        settings = run_dir.read_settings(directory)
    except SettingsError:
        return RunRow(name, DAMAGED, f"{run_dir.SETTINGS} is missing")
    except OSError as error:
        return RunRow(name, DAMAGED, str(error).removeprefix(f"{name}/"))
    env = settings.env
    row = RunRow(
        name, STOPPED, "", settings.agent, config.named(env), env.depth, settings.run.seeds
    )
    try:
        if holder := disk.lock_holder(directory / run_dir.LOCK):
            return row._replace(state=RUNNING, why=holder)
        if reason := run_dir.read_failure(directory, settings):
            return row._replace(state=FAILED, why=reason)
        if summary := run_dir.read_summary(directory, settings):
            return row._replace(
                state=ENDED, solved=sum(found is not None for found in summary["solved_reliable"])
            )
        return row._replace(why=_where(directory))
    except CorruptRecord as error:
        again = (
            f"; ersac resume {directory} makes it again"
            if (directory / CHECKPOINTS).is_dir()
            else ""
        )
        return row._replace(state=DAMAGED, why=f"{error}{again}")
    except OSError as error:
        return row._replace(state=DAMAGED, why=str(error))


def _where(directory: Path) -> str:
    """Where a run stopped; Damaged if its newest checkpoint is."""
    from ersac.runs import checkpoint  # jax, seal, which only those need that have not ended

    home = directory / checkpoint.DIRECTORY
    numbers = checkpoint.checkpoint_numbers(home)
    if not numbers:
        return "before its first checkpoint"
    try:
        checkpoint.verify(home, numbers[-1])
    except checkpoint.CorruptCheckpoint as why:
        raise CorruptRecord(f"checkpoint {numbers[-1]}: {why}") from None
    with np.load(home / f"{numbers[-1]:012d}.npz", allow_pickle=False) as file:
        return f"at episode {int(file['recorder/episodes'].min()):,}"


def _under_way(directory: Path) -> Iterator[RunRow]:
    """The runs of a batch, as far as they have no directory of their own yet."""
    try:
        names = [
            str(name) for name in seal.unseal_json(disk.read(directory / runner.BATCH))["runs"]
        ]
        holder = disk.lock_holder(directory / run_dir.LOCK)
        state, why = (RUNNING, holder) if holder else (STOPPED, _where(directory))
    except (CorruptRecord, OSError) as error:
        names, state, why = [directory.name], DAMAGED, str(error)
    except (ValueError, KeyError, TypeError, RecursionError):
        names, state, why = [directory.name], DAMAGED, f"{runner.BATCH} is not what a sweep wrote"
    home = directory.parents[1]
    for name in names:
        if not (home / name).exists():
            yield RunRow(str(home / name), state, why)


def counts(found: list[RunRow]) -> list[Count]:
    """The sweeps to which some runs belong, and how much there is of each."""
    homes: dict[Path, list[RunRow]] = {}
    for row in found:
        homes.setdefault(Path(row.run).parent, []).append(row)
    return [count for home, own in homes.items() if (count := _count(home, own)) is not None]


def _count(home: Path, own: list[RunRow]) -> Count | None:
    try:
        told = seal.unseal_json(disk.read(home / runner.SWEEP))
        wanted = set(told["runs"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # no sweep, or its next life writes that again
    states = [row.state for row in own if Path(row.run).name in wanted]
    return Count(
        str(home), str(told["sweep"]), states.count(ENDED), states.count(FAILED), len(wanted)
    )


def listing_json(found: list[RunRow]) -> dict[str, Any]:
    """All of it as plain data."""
    states = [row.state for row in found]
    return {
        "runs": [row._asdict() for row in found],
        "sweeps": [count._asdict() for count in counts(found)],
        **{state: states.count(state) for state in STATES},
    }
