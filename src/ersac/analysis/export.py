"""`ersac export`: records of runs as tidy tables, for pandas and other tools. No jax here."""

import csv
import io
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ersac import config
from ersac.analysis import scores
from ersac.config import SettingsError, pick, suggest
from ersac.packages import require_package
from ersac.runs import disk, run_dir
from ersac.runs.results import Result, complete_stats, read_result

PROGRESS_SECONDS = 2.0  # between lines of progress
Table = dict[str, np.ndarray]  # columns by name, all of one length


def episode_tables(run: Result) -> Iterator[Table]:
    """A table per seed with a row per episode."""
    for stats in run.seeds:
        number = np.arange(1, len(stats.goals) + 1)
        complete = complete_stats(stats, run.settings.env)
        yield _key_columns(run, stats.seed, len(number)) | {
            "episode": number,
            "step": np.asarray(complete.steps),
            "length": np.asarray(complete.lengths),
            "goal": stats.goals,
            "return": stats.returns,
        }


def metric_tables(run: Result) -> Iterator[Table]:
    """A table per seed with a row per point of the learner's metrics."""
    step, values = run.metrics
    for index, stats in enumerate(run.seeds):
        yield _key_columns(run, stats.seed, len(step)) | {
            "step": step,
            **{name: column[index] for name, column in values.items()},
        }


def seed_tables(run: Result) -> Iterator[Table]:
    """A table per seed with one row: its metrics, then every setting of its run.

    The settings seed and episodes are called first_seed and budget.
    """
    settings = _flatten(run_dir.settings_json(run.settings))
    settings["learner"] = settings.pop("agent")  # its class; the column `agent` is its name
    del settings["agent_name"]
    settings |= {"first_seed": settings["seed"], "budget": settings["episodes"]}
    for stats in run.seeds:
        row = {**_run_key(run), "seed": stats.seed, "episodes": len(stats.goals)}
        row |= scores.goal_metrics(stats.goals, run.settings.env.stochastic)
        columns = {**row, **settings, **row}  # first in order, and above settings of the same name
        yield {name: np.array([value], object) for name, value in columns.items()}


def _key_columns(run: Result, seed: int, rows: int) -> Table:
    """The columns that name the run and the seed, as views that repeat one value."""
    key = {**_run_key(run), "seed": seed}
    return {name: np.broadcast_to(np.asarray(value), rows) for name, value in key.items()}


def _run_key(run: Result) -> dict[str, Any]:
    env = run.settings.env
    env_key = {"env": config.env_name(env)} if env.depth is None else {"depth": env.depth}
    return {"run": str(run.directory), "agent": run.settings.agent_name, **env_key}


def _flatten(settings: dict[str, Any]) -> dict[str, Any]:
    """Nested settings as one dictionary; a nested part also has its class under its own name."""
    out: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            out |= {name: value["kind"], **_flatten(value)}
        elif name != "kind":
            out[name] = " ".join(map(str, value)) if isinstance(value, tuple) else value
    return out


TABLES: dict[str, Callable[[Result], Iterator[Table]]] = {
    "episodes": episode_tables,
    "metrics": metric_tables,
    "seeds": seed_tables,
}


def encode_csv(tables: list[Table]) -> bytes:
    """The rows of all tables as CSV; a column that a table lacks is empty there."""
    names = _column_names(tables)
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for table in tables:
        columns = _fill_columns(table, names).values()
        writer.writerows(zip(*(_csv_values(column) for column in columns), strict=True))
    return text.getvalue().encode()


def encode_parquet(tables: list[Table]) -> bytes:
    """The rows of all tables as Parquet; a column that a table lacks is null there."""
    import pyarrow
    from pyarrow import parquet

    integer_columns = scores.goal_metrics(np.zeros(0, bool))  # which may be null in every row
    names = _column_names(tables)

    def arrow_table(table: Table) -> Any:
        arrays = {
            name: pyarrow.array(
                _parquet_values(column), pyarrow.int64() if name in integer_columns else None
            )
            for name, column in _fill_columns(table, names).items()
        }
        return pyarrow.table(arrays)

    joined = pyarrow.concat_tables(map(arrow_table, tables), promote_options="permissive")
    buffer = io.BytesIO()
    parquet.write_table(joined, buffer)
    return buffer.getvalue()


def _column_names(tables: list[Table]) -> list[str]:
    return list(dict.fromkeys(name for table in tables for name in table))


def _fill_columns(table: Table, names: list[str]) -> Table:
    missing = np.full(len(table["run"]), None)
    return {name: table.get(name, missing) for name in names}


def _csv_values(column: np.ndarray) -> list[Any]:
    """Python values; float32 as text, so that it has no more digits than its precision."""
    return (column.astype(str) if column.dtype == np.float32 else column).tolist()


def _parquet_values(column: np.ndarray) -> Any:
    return column.tolist() if column.dtype.kind in "OU" else column


class Format(NamedTuple):
    """A file format, and the package that writes it beyond those of ersac."""

    package: str | None
    encode: Callable[[list[Table]], bytes]


FORMATS = {".csv": Format(None, encode_csv), ".parquet": Format("pyarrow", encode_parquet)}


def export_runs(
    runs: Sequence[Path],
    to: Path,
    table_name: str,
    note: Callable[[str], None],
    on_progress: Callable[[str], None],
) -> dict[str, Any]:
    """Write one table of the runs to a new file; returns what `ersac export --json` prints.

    A run that cannot be read is noted and left out.
    """
    make_tables = pick("table", table_name, TABLES)
    encode = _require_format(to)
    disk.require_new(to)
    tables: list[Table] = []
    left_out: list[str] = []
    next_line = time.monotonic() + PROGRESS_SECONDS
    for number, directory in enumerate(runs, 1):
        try:
            tables += make_tables(read_result(directory, note))
        except (SettingsError, OSError) as error:
            note(f"left out: {error}")
            left_out.append(str(directory))
        if time.monotonic() >= next_line:
            on_progress(f"{number:,} of {len(runs):,} runs read")
            next_line = time.monotonic() + PROGRESS_SECONDS
    if not tables:
        raise SettingsError(f"nothing to export: none of {len(runs):,} runs could be read")
    rows, runs_read = sum(len(table["run"]) for table in tables), len(runs) - len(left_out)
    on_progress(f"writing {rows:,} rows of {runs_read:,} runs to {to}")
    data = encode(tables)
    disk.make_directory(to.parent)
    disk.write(to, data)
    return {
        "to": str(to),
        "what": table_name,
        "rows": rows,
        "runs": runs_read,
        "left_out": left_out,
    }


def _require_format(to: Path) -> Callable[[list[Table]], bytes]:
    """The encoder for a file name; SettingsError where it is unknown or its package is missing."""
    if to.suffix not in FORMATS:
        suffixes = " or ".join(FORMATS)
        raise SettingsError(f"--to {to} must end in {suffixes}{suggest(to.suffix, FORMATS)}")
    package, encode = FORMATS[to.suffix]
    if package is not None:
        require_package(f"--to {to}", package, "track")
    return encode
