"""`ersac runs`: the runs and sweeps below a directory, and the state of each.

A damaged directory gets a row that says so; it never hides the others.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ersac import config
from ersac.config import SettingsError
from ersac.runs import disk, run_dir, seal
from ersac.runs.run_dir import ENDED, RUNNING, STOPPED, CorruptRecord
from ersac.sweeps import runner

RUN_FILES = {  # a directory that has one of them is a run, or was one
    run_dir.SETTINGS,
    run_dir.RESULTS,
    run_dir.SUMMARY,
    run_dir.FAILURE,
    run_dir.CHECKPOINTS,
}
FAILED, DAMAGED = "failed", "damaged"
STATES = (ENDED, STOPPED, RUNNING, FAILED, DAMAGED)
T = TypeVar("T")


class RunRow(NamedTuple):
    """A run and its state."""

    run: str
    state: str
    why: str = ""  # the reason of the state, or how far the run is
    agent: str | None = None
    env: str | None = None
    depth: int | None = None  # of DeepSea
    seeds: int | None = None
    solved: int | None = None  # seeds solved by the reliable rule

    def describe_state(self) -> str:
        """The state with its reason."""
        separator = ": " if self.state in (FAILED, DAMAGED) else " "
        return f"{self.state}{separator}{self.why}".strip()


class SweepCount(NamedTuple):
    """How many runs of a sweep have ended."""

    directory: str
    sweep: str
    ended: int
    failed: int
    wanted: int


def find_runs(root: Path) -> Iterator[RunRow]:
    """Every run at or below a directory, sorted by name."""
    return read_runs_below(root, run_row)


def read_runs_below(root: Path, read: Callable[[Path], T]) -> Iterator[T | RunRow]:
    """What `read` returns for every run directory at or below a directory, sorted by name.

    Runs of a batch, and directories that cannot be listed, are rows.
    """
    if not root.is_dir():
        raise SettingsError(f"{root} is not a directory; ersac runs DIR")
    unreadable: list[OSError] = []
    for path, subdirectories, files in os.walk(root, onerror=unreadable.append):
        directory, names = Path(path), {*subdirectories, *files}
        subdirectories.sort()
        if runner.BATCH in names:
            subdirectories.clear()
            yield from _batch_rows(directory)
        elif RUN_FILES & names:
            subdirectories.clear()
            yield read(directory)
        while unreadable:
            error = unreadable.pop()
            yield RunRow(str(error.filename), DAMAGED, os.strerror(error.errno or 0))


def run_row(directory: Path) -> RunRow:
    """The row of the run in a directory."""
    name = str(directory)
    try:
        settings = run_dir.read_settings(directory)
    except SettingsError:
        return RunRow(name, DAMAGED, f"{run_dir.SETTINGS} is missing")
    except OSError as error:
        return RunRow(name, DAMAGED, str(error).removeprefix(f"{name}/"))
    env = settings.env
    row = RunRow(
        name, STOPPED, "", settings.agent_name, config.env_name(env), env.depth, settings.run.seeds
    )
    try:
        if holder := disk.lock_holder(directory / run_dir.LOCK):
            return row._replace(state=RUNNING, why=holder)
        if reason := run_dir.read_failure(directory, settings):
            return row._replace(state=FAILED, why=reason)
        if summary := run_dir.read_summary(directory, settings):
            solved = sum(episode is not None for episode in summary["solved_reliable"])
            return row._replace(state=ENDED, solved=solved)
        return row._replace(why=_last_checkpoint(directory))
    except CorruptRecord as error:
        has_checkpoints = (directory / run_dir.CHECKPOINTS).is_dir()
        hint = f"; repair with: {run_dir.how_to_resume(directory)}" if has_checkpoints else ""
        return row._replace(state=DAMAGED, why=f"{error}{hint}")
    except OSError as error:
        return row._replace(state=DAMAGED, why=str(error))
    except (KeyError, TypeError):  # sealed by another hand
        return row._replace(state=DAMAGED, why=f"{run_dir.SUMMARY} lacks a field")
    except MemoryError:
        return row._replace(state=DAMAGED, why="not enough memory to read it")


def _last_checkpoint(directory: Path) -> str:
    """The episode of the newest checkpoint, in words; CorruptRecord where it is damaged."""
    from ersac.runs import checkpoint  # jax, which only runs that have not ended need

    home = directory / checkpoint.DIRECTORY
    numbers = checkpoint.checkpoint_numbers(home)
    if not numbers:
        return "before its first checkpoint"
    try:
        _, data = checkpoint.verify(home, numbers[-1])
        episodes = seal.npz_arrays(data, only="recorder/episodes")["recorder/episodes"]
        return f"at episode {int(episodes.min()):,}"
    except checkpoint.CorruptCheckpoint as error:
        raise CorruptRecord(f"checkpoint {numbers[-1]}: {error}") from None
    except (ValueError, KeyError):  # sealed by another hand
        raise CorruptRecord(f"checkpoint {numbers[-1]}: it is not what a run wrote") from None


def _batch_rows(directory: Path) -> Iterator[RunRow]:
    """The runs of a batch that have no directory of their own yet."""
    try:
        batch = seal.read_sealed(directory / runner.BATCH)
        names = [str(name) for name in batch["runs"]]
        holder = disk.lock_holder(directory / run_dir.LOCK)
        state, why = (RUNNING, holder) if holder else (STOPPED, _last_checkpoint(directory))
    except (CorruptRecord, OSError) as error:
        names, state, why = [directory.name], DAMAGED, str(error)
    except (ValueError, KeyError, TypeError, RecursionError):
        names, state, why = [directory.name], DAMAGED, f"{runner.BATCH} is not what a sweep wrote"
    home = directory.parents[1]
    for name in names:
        if not (home / name).exists():
            yield RunRow(str(home / name), state, why)


def count_sweeps(rows: list[RunRow]) -> list[SweepCount]:
    """The sweeps to which the runs belong, and how many runs of each have ended."""
    homes: dict[Path, list[RunRow]] = {}
    for row in rows:
        homes.setdefault(Path(row.run).parent, []).append(row)
    counts = (_count_sweep(home, home_rows) for home, home_rows in homes.items())
    return [count for count in counts if count is not None]


def _count_sweep(home: Path, rows: list[RunRow]) -> SweepCount | None:
    try:
        sweep = seal.read_sealed(home / runner.SWEEP)
        wanted = set(sweep["runs"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # not a sweep, or damaged: the next `ersac sweep` writes the file again
    states = [row.state for row in rows if Path(row.run).name in wanted]
    ended, failed = states.count(ENDED), states.count(FAILED)
    return SweepCount(str(home), str(sweep["sweep"]), ended, failed, len(wanted))


def listing_json(rows: list[RunRow]) -> dict[str, Any]:
    """What `ersac runs --json` prints."""
    states = [row.state for row in rows]
    return {
        "runs": [row._asdict() for row in rows],
        "sweeps": [count._asdict() for count in count_sweeps(rows)],
        **{state: states.count(state) for state in STATES},
    }
