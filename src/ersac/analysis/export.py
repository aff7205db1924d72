"""Records to tidy tables, for whoever has pandas or another tool of their own. No jax here."""

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
from ersac.runs.run_dir import StoredRun, read_finished_run

LINE_SECONDS = 2.0  # between lines of progress
Table = dict[str, np.ndarray]  # columns by name, all of one length


def episode_tables(run: StoredRun) -> Iterator[Table]:
    """A row an episode, a table a seed."""
    for stats in run.seeds:
        number = np.arange(1, len(stats.goals) + 1)
        yield _whose(run, stats.seed, len(number)) | {
            "episode": number,
            "goal": stats.goals,
            "return": stats.returns,
        }


def metric_tables(run: StoredRun) -> Iterator[Table]:
    """A row a point of the learner's metrics, a table a seed."""
    step, told = run.metrics
    for place, stats in enumerate(run.seeds):
        yield _whose(run, stats.seed, len(step)) | {
            "step": step,
            **{name: values[place] for name, values in told.items()},
        }


def seed_tables(run: StoredRun) -> Iterator[Table]:
    """A row a seed: its verdicts, then every setting of its run, of which seed and episodes are here called first_seed and budget."""
    settings, env = _flat(run_dir.settings_json(run.settings)), run.settings.env
    settings |= {"first_seed": settings["seed"], "budget": settings["episodes"]}
    settings["learner"] = settings.pop("agent")  # its class; the column `agent` is its name
    del settings["agent_name"]
    for stats in run.seeds:
        own = {**_origin(run), "seed": stats.seed, "episodes": len(stats.goals)}
        own |= scores.goal_metrics(stats.goals, env.stochastic)
        yield {
            name: np.array([value], object) for name, value in {**own, **settings, **own}.items()
        }


def _whose(run: StoredRun, seed: int, rows: int) -> Table:
    """The columns that say whose rows these are, without a copy a row."""
    told = {**_origin(run), "seed": seed}
    return {name: np.broadcast_to(np.asarray(value), rows) for name, value in told.items()}


def _origin(run: StoredRun) -> dict[str, Any]:
    env = run.settings.env
    where = {"env": config.env_name(env)} if env.depth is None else {"depth": env.depth}
    return {"run": str(run.directory), "agent": run.settings.agent_name, **where}


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Nested settings by their own names; a part by the name of its kind."""
    out: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            out |= {name: value["kind"], **_flat(value)}
        elif name != "kind":
            out[name] = " ".join(map(str, value)) if isinstance(value, tuple) else value
    return out


TABLES: dict[str, Callable[[StoredRun], Iterator[Table]]] = {
    "episodes": episode_tables,
    "metrics": metric_tables,
    "seeds": seed_tables,
}


def as_csv(tables: list[Table]) -> bytes:
    """Tables below one another; what one of them lacks is empty."""
    names = _names(tables)
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for table in tables:
        writer.writerows(
            zip(*(_csv_column(column) for column in _columns(table, names).values()), strict=True)
        )
    return text.getvalue().encode()


def as_parquet(tables: list[Table]) -> bytes:
    """The same, with types and nulls."""
    import pyarrow
    from pyarrow import parquet

    kind = lambda name: (
        pyarrow.int64() if name in scores.goal_metrics(np.zeros(0, bool)) else None
    )  # a verdict may be null in every row
    one = lambda table: pyarrow.table(
        {name: pyarrow.array(_objects(column), kind(name)) for name, column in table.items()}
    )
    whole = pyarrow.concat_tables(
        [one(_columns(table, _names(tables))) for table in tables], promote_options="permissive"
    )
    buffer = io.BytesIO()
    parquet.write_table(whole, buffer)
    return buffer.getvalue()


def _names(tables: list[Table]) -> list[str]:
    return list(dict.fromkeys(name for table in tables for name in table))


def _columns(table: Table, names: list[str]) -> Table:
    nothing = np.full(len(table["run"]), None)
    return {name: table.get(name, nothing) for name in names}


def _csv_column(column: np.ndarray) -> list[Any]:
    """A column as csv writes it: floats with as many digits as their precision has."""
    return (column.astype(str) if column.dtype == np.float32 else column).tolist()


def _objects(column: np.ndarray) -> Any:
    return column.tolist() if column.dtype.kind in "OU" else column


class Format(NamedTuple):
    """A kind of file, and the package that it needs beyond those of this one."""

    package: str | None
    encode: Callable[[list[Table]], bytes]


FORMATS = {".csv": Format(None, as_csv), ".parquet": Format("pyarrow", as_parquet)}


def export_runs(
    runs: Sequence[Path],
    to: Path,
    what: str,
    note: Callable[[str], None],
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Write what the records of some runs hold to a new file. A run that cannot be read is noted, and the others go on."""
    rows_of = pick("table", what, TABLES)
    if to.suffix not in FORMATS:
        raise SettingsError(
            f"--to {to} must end in {' or '.join(FORMATS)}{suggest(to.suffix, FORMATS)}"
        )
    package, encode = FORMATS[to.suffix]
    if package is not None:
        require_package(f"--to {to}", package, "track")
    if to.exists():
        raise SettingsError(
            f"--to {to} is there already; choose another name or remove it (nothing was overwritten)"
        )
    tables: list[Table] = []
    left_out: list[str] = []
    due = time.monotonic() + LINE_SECONDS
    for number, directory in enumerate(runs, 1):
        try:
            tables += rows_of(read_finished_run(directory))
        except (SettingsError, OSError) as error:
            note(f"left out: {error}")
            left_out.append(str(directory))
        if time.monotonic() >= due:
            tell(f"{number:,} of {len(runs):,} runs read")
            due = time.monotonic() + LINE_SECONDS
    if not tables:
        raise SettingsError(f"nothing to export: none of {len(runs):,} runs could be read")
    rows = sum(len(table["run"]) for table in tables)
    tell(f"{rows:,} rows of {len(runs) - len(left_out):,} runs go to {to}")
    data = encode(tables)
    disk.make_directory(to.parent)
    disk.write(to, data)
    return {
        "to": str(to),
        "what": what,
        "rows": rows,
        "runs": len(runs) - len(left_out),
        "left_out": left_out,
    }
