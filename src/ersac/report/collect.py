"""The runs of a report: ended, stopped, under way or damaged, each with whatever can be read."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ersac.analysis import pack
from ersac.analysis.pack import RunRecord
from ersac.config import SettingsError
from ersac.runs import disk, run_dir
from ersac.runs.results import read_result
from ersac.runs.run_dir import ENDED, STOPPED, MapSnapshot, Metrics
from ersac.sweeps import listing
from ersac.sweeps.listing import DAMAGED, RunRow
from ersac.sweeps.runner import SWEEP

VIDEOS = {".mp4": "video/mp4", ".gif": "image/gif"}  # media type by suffix
# Files whose change shows that there is something new to read.
CHANGING = (run_dir.SUMMARY, run_dir.SETTINGS, run_dir.FAILURE, run_dir.CHECKPOINTS)


class ReportRun(NamedTuple):
    """A run as a report shows it."""

    name: str  # as it was found: a directory, or the name in a pack
    state: str
    why: str = ""  # the reason of the state, or how far the run is
    record: RunRecord | None = None  # None: nothing could be read
    steps: int = 0  # of all seeds
    metrics: Metrics | None = None  # packs have none
    map_snapshots: Sequence[MapSnapshot] = ()
    videos: tuple[Path, ...] = ()
    hint: str = ""  # the command that continues or repairs the run
    row: RunRow | None = None  # where nothing could be read: what is known about it


Read = Callable[[Path], list[ReportRun]]  # a run directory or a pack -> its runs


def collect_runs(paths: Sequence[Path], read: Read | None = None) -> list[ReportRun]:
    """Return the runs of run directories, directories of runs or of sweeps, and packs.

    A run, or a pack, that cannot be read is a damaged one, and never hides the others. Raises
    SettingsError where a path does not exist, or there is no run at all. read: by default
    `read_path`; another may remember what it has read.
    """
    found: dict[str, ReportRun] = {}
    for path in paths:
        if not path.exists():
            raise SettingsError(f"{path} does not exist; ersac runs lists what is there")
        for run in _runs_of(path, read or read_path):
            found.setdefault(run.name, run)
    if not found:
        raise SettingsError(f"nothing to report: no run in {', '.join(map(str, paths))}")
    return list(found.values())


def _runs_of(path: Path, read: Read) -> Iterator[ReportRun]:
    """Yield the runs that a path names."""
    if path.is_dir():
        for found in listing.read_runs_below(path, read):
            yield from [_from_row(found)] if isinstance(found, RunRow) else found
    elif not (path.parent / SWEEP).is_file():  # a pattern such as `sweep/*` names other files too
        yield from read(path)


def read_path(path: Path) -> list[ReportRun]:
    """Return the run in a directory, or the runs of a pack."""
    return [read_run_directory(path)] if path.is_dir() else list(_packed_runs(path))


def _from_row(row: RunRow) -> ReportRun:
    return ReportRun(row.run, row.state, row.why, row=row)


def _packed_runs(path: Path) -> Iterator[ReportRun]:
    """Yield the runs of a pack; those that have failed too."""
    try:
        packed = pack.read_pack(path)
    except OSError as error:
        yield ReportRun(str(path), DAMAGED, str(error))
        return
    for record in packed.runs:
        name = f"{path.with_suffix('')}/{record.name}"
        yield ReportRun(name, ENDED, record=record, steps=record.summary["steps"])
    for name, reason in packed.failed.items():
        yield ReportRun(f"{path.with_suffix('')}/{name}", listing.FAILED, reason)


def read_run_directory(directory: Path) -> ReportRun:
    """Return the run in a directory, up to its last checkpoint if it has not ended."""
    try:
        try:
            run = _read_ended(directory)
        except SettingsError:
            run = _read_unfinished(directory)
        assert run.record is not None
        record = _with_fingerprint(run.record, directory)
        return run._replace(record=record, videos=_find_videos(directory))
    except (SettingsError, OSError, MemoryError):
        row = listing.run_row(directory)
        return _from_row(row)._replace(hint=_hint(directory, row.state))


def _read_ended(directory: Path) -> ReportRun:
    """Return a run that has ended; SettingsError if it has not."""
    stored = run_dir.read_finished_run(directory)
    return ReportRun(
        name=str(directory),
        state=ENDED,
        record=pack.run_record(directory.name, stored.settings, stored.summary, stored.seeds),
        steps=stored.summary["steps"],
        metrics=stored.metrics,
        map_snapshots=stored.map_snapshots,
    )


def _read_unfinished(directory: Path) -> ReportRun:
    """Return a run that has not ended, up to its last checkpoint."""
    result = read_result(directory, lambda line: None)
    row = listing.run_row(directory)
    return ReportRun(
        name=str(directory),
        state=row.state,
        why=row.why,
        record=pack.run_record(directory.name, result.settings, result.summary(), result.seeds),
        steps=result.steps,
        metrics=result.metrics,
        map_snapshots=result.map_snapshots,
        hint=_hint(directory, row.state),
    )


def _hint(directory: Path, state: str) -> str:
    return run_dir.how_to_resume(directory) if state == STOPPED else ""


def _with_fingerprint(record: RunRecord, directory: Path) -> RunRecord:
    """Return the run with its fingerprint, where that can be read."""
    try:
        return pack.add_fingerprint(record, directory)
    except OSError:
        return record


def _find_videos(directory: Path) -> tuple[Path, ...]:
    """Return the videos in a run directory."""
    paths = (directory / name for name in disk.names(directory))
    return tuple(path for path in paths if path.suffix in VIDEOS and path.is_file())


def command_line(record: RunRecord | None) -> str:
    """Return the command that made a run, as a line that can be pasted; empty if not stored."""
    words = [] if record is None else record.fingerprint.get("command")
    if not (isinstance(words, list) and words):
        return ""
    program, *rest = map(str, words)
    if program == "__main__.py":  # of `python -m ersac`
        program = "ersac"
    first = ["python", program] if program.endswith(".py") or program == "-c" else [program]
    return shlex.join([*first, *rest])


def run_reader() -> Read:
    """Return a reader that reads a run again only after one of its files has changed."""
    remembered: dict[Path, tuple[Any, list[ReportRun]]] = {}

    def read(path: Path) -> list[ReportRun]:
        mark = _change_mark(path)
        if path not in remembered or remembered[path][0] != mark:
            remembered[path] = mark, read_path(path)
        return remembered[path][1]

    return read


def _change_mark(path: Path) -> tuple[Any, ...]:
    """Return a value that changes when a run writes a checkpoint or its results, or ends."""
    marks: list[Any] = []
    for name in ("", *CHANGING):
        try:
            status = (path / name).stat()
        except OSError:
            marks.append(None)
        else:
            marks.append((status.st_mtime_ns, status.st_size))
    try:
        marks.append(disk.lock_holder(path / run_dir.LOCK))
    except OSError:
        marks.append("damaged")
    return tuple(marks)
