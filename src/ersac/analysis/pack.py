"""A pack: the ended runs of a sweep in two files, columns (.npz) and their description (.json).

The JSON has a format number, the fields that readers use, and each run's settings as plain data.
Readers never make objects of those settings, so a pack stays readable when settings are renamed.
No jax here.
"""

import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ersac import config
from ersac.config import SettingsError
from ersac.runs import disk, exits, run_dir, seal
from ersac.runs.run_dir import EpisodeStats
from ersac.sweeps.catalogue import Instance
from ersac.sweeps.ladder import Cell

PACK_FORMAT = 1
ABOUT, COLUMNS = ".json", ".npz"
SECONDS = ("compile_seconds", "run_seconds", "wall_seconds")
SUMMARY_FIELDS = ("steps", *SECONDS, "departures", "per_seed")


class RunRecord(NamedTuple):
    """An ended run: its settings, its summary and the episodes of its seeds."""

    name: str
    line: str  # of its sweep; empty for a run outside sweeps
    env: str  # as on the command line
    depth: int | None  # of DeepSea
    agent: str
    seed: int  # the first
    episodes: int  # budget
    steps: int | None  # budget, where there is one
    stop_when_solved: bool
    when: str  # start time
    summary: dict[str, Any]
    settings: dict[str, Any]
    fingerprint: dict[str, Any]
    seeds: list[EpisodeStats]


class Pack(NamedTuple):
    """The runs of a sweep, or of any other set of runs."""

    path: Path
    title: str
    command: str
    goals_only: bool  # returns and steps were left out
    failed: dict[str, str]  # the reason by the run's name
    runs: list[RunRecord]

    def find(self, line: str, depth: int, seed: int) -> RunRecord | None:
        """The run of one line at one depth with one seed."""
        same = (run for run in self.runs if (run.line, run.depth, run.seed) == (line, depth, seed))
        return next(same, None)

    def find_task(self, line: str, env: str, seed: int) -> RunRecord | None:
        """The run of one agent in one environment other than DeepSea, with one seed."""
        same = (run for run in self.runs if (run.line, run.env, run.seed) == (line, env, seed))
        return next(same, None)


def is_pack(path: Path) -> bool:
    """Whether a path names a pack rather than a run directory."""
    return path.is_file() or path.suffix in (ABOUT, COLUMNS)


def find_pack(home: Path, title: str) -> Pack | None:
    """The pack of a sweep: `home` itself, or a file in it; None where a directory is there."""
    path = home if home.is_file() else home / f"{title}{ABOUT}"
    if path != home and ((home / title).exists() or not path.exists()):
        return None
    pack = read_pack(path)
    if pack.title != title:
        raise SettingsError(f"{path} is the pack of {pack.title}, not of {title}")
    return pack


def read_run(directory: Path, line: str = "") -> RunRecord:
    """An ended run from its directory; SettingsError or DiskError where there is none."""
    stored = run_dir.read_finished_run(directory)
    return run_record(directory.name, stored.settings, stored.summary, stored.seeds, line)


def run_record(
    name: str,
    settings: config.Experiment,
    summary: dict[str, Any],
    seeds: list[EpisodeStats],
    line: str = "",
) -> RunRecord:
    """A run with these settings, summary and episodes."""
    env, run = settings.env, settings.run
    return RunRecord(
        name=name,
        line=line,
        env=config.env_name(env),
        depth=env.depth,
        agent=settings.agent_name,
        seed=run.seed,
        episodes=run.episodes,
        steps=run.steps,
        stop_when_solved=run.stop_when_solved,
        when="",
        summary={field: summary[field] for field in SUMMARY_FIELDS},
        settings=json.loads(json.dumps(run_dir.settings_json(settings), default=str)),
        fingerprint={},
        seeds=seeds,
    )


def add_fingerprint(run: RunRecord, directory: Path) -> RunRecord:
    """The run with its start time, versions and machine, read from its directory."""
    path = directory / run_dir.FINGERPRINT
    try:
        fingerprint = dict(json.loads(disk.read(path, disk.MAX_TEXT)))
        return run._replace(when=fingerprint.pop("when"), fingerprint=fingerprint)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise disk.DiskError(f"{path} is damaged: it is not what a run wrote") from None


def pack_sweep(
    home: Path,
    title: str,
    command: str,
    wanted: Sequence[Instance | Cell],
    path: Path,
    goals_only: bool,
) -> Pack:
    """Write the pack of a sweep all of whose runs have ended or failed in its directory."""
    require_new_pack(path)
    runs, failed, missing = [], {}, []
    for instance in wanted:
        directory = home / instance.name
        try:
            if (reason := run_dir.read_failure(directory, instance.settings)) is not None:
                failed[instance.name] = reason
            else:
                runs.append(add_fingerprint(read_run(directory, instance.line), directory))
        except (SettingsError, OSError):
            missing.append(instance.name)
    if missing:
        reason = f"{len(missing)} of {len(wanted)} runs are missing or damaged in {home}"
        raise exits.Resumable(f"{reason}; run them first: {command} --out {home}")
    pack = Pack(path, title, command, goals_only, failed, runs)
    write_pack(pack)
    return pack


def require_new_pack(path: Path) -> None:
    """Raise SettingsError where the name does not fit a pack or one of its files exists."""
    if path.suffix != ABOUT:
        raise SettingsError(f"--pack {path} must end in {ABOUT}; its columns go into a {COLUMNS}")
    for file in (path, path.with_suffix(COLUMNS)):
        disk.require_new(file)


def write_pack(pack: Pack) -> None:
    """Write a pack, the JSON last: it has the digest of the columns."""
    data = _compress(_pack_columns(pack))
    settings: list[dict[str, Any]] = []
    fingerprints: list[dict[str, Any]] = []
    about = {
        "format": PACK_FORMAT,
        "title": pack.title,
        "command": pack.command,
        "goals_only": pack.goals_only,
        "failed": pack.failed,
        "runs": [
            {
                **{name: value for name, value in run._asdict().items() if name != "seeds"},
                "settings": _index_in(settings, _without_seed(run.settings)),
                "fingerprint": _index_in(fingerprints, run.fingerprint),
            }
            for run in pack.runs
        ],
        "settings": settings,
        "fingerprints": fingerprints,
        "columns_sha256": disk.digest(data),
    }
    disk.make_directory(pack.path.parent)
    disk.write(pack.path.with_suffix(COLUMNS), data)
    disk.write(pack.path, _encode_about(seal.seal_json(about)).encode())


def read_pack(path: Path) -> Pack:
    """A pack by either of its files; DiskError where it is damaged or its format is newer."""
    path = path.with_suffix(ABOUT)
    about = _read_about(path)
    columns_path = path.with_suffix(COLUMNS)
    data = disk.read(columns_path)
    if disk.digest(data) != about.get("columns_sha256"):
        raise disk.DiskError(f"{columns_path} is damaged: its sha256 is not the one in {path.name}")
    try:
        seeds = _unpack_seeds(seal.npz_arrays(data, compressed=True), len(about["runs"]))
        runs = [
            RunRecord(
                **row
                | {
                    "settings": _with_seed(about["settings"][row["settings"]], row["seed"]),
                    "fingerprint": about["fingerprints"][row["fingerprint"]],
                    "seeds": run_seeds,
                }
            )
            for row, run_seeds in zip(about["runs"], seeds, strict=True)
        ]
        names = ("title", "command", "goals_only", "failed")
        return Pack(path=path, runs=runs, **{name: about[name] for name in names})
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):  # sealed by another hand
        raise disk.DiskError(f"{path} is damaged: it is not what ersac packed") from None


def _read_about(path: Path) -> dict[str, Any]:
    data = disk.read(path, disk.MAX_TEXT)
    try:
        about = json.loads(data)
        number = about["format"]
        if isinstance(number, int) and number > PACK_FORMAT:
            known = f"this version of ersac reads formats up to {PACK_FORMAT}"
            raise disk.DiskError(f"{path} has format {number}; {known}")
        return seal.unseal_json(data)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise disk.DiskError(f"{path} is damaged: it is not a complete pack") from None


def _pack_columns(pack: Pack) -> dict[str, np.ndarray]:
    """The seeds of all runs, concatenated."""
    seeds = [stats for run in pack.runs for stats in run.seeds]
    goals = [stats.goals for stats in seeds]
    columns: dict[str, np.ndarray] = {
        "run": np.repeat(np.arange(len(pack.runs)), [len(run.seeds) for run in pack.runs]),
        "seed": np.array([stats.seed for stats in seeds], np.int64),
        "episodes": np.array([len(stats.goals) for stats in seeds], np.int64),
        "goals": np.packbits(np.concatenate([np.zeros(0, bool), *goals])),
    }
    if pack.goals_only:
        return columns
    coded = [run_dir.code_returns(stats.returns) for stats in seeds]
    codes = [seed_codes for _, seed_codes in coded]
    gaps = [np.diff(stats.steps, prepend=0) for stats in seeds if stats.steps is not None]
    return columns | {
        "values": np.concatenate([np.zeros(0, np.float32), *(values for values, _ in coded)]),
        "values_of_seed": np.array([len(values) for values, _ in coded], np.int64),
        "returns": split_bytes(np.concatenate([np.zeros(0, np.int64), *codes])),
        "has_steps": np.array([stats.steps is not None for stats in seeds], bool),
        "steps": split_bytes(np.concatenate([np.zeros(0, np.int64), *gaps])),
    }


def _unpack_seeds(columns: dict[str, np.ndarray], runs: int) -> list[list[EpisodeStats]]:
    """The seeds of each run: the inverse of `_pack_columns`."""
    episodes = columns["episodes"]
    goals = np.unpackbits(columns["goals"], count=int(episodes.sum())).astype(bool)
    returns, steps = _returns_and_steps(columns)
    seeds = zip(columns["seed"].tolist(), _split(goals, episodes), returns, steps, strict=True)
    by_run: list[list[EpisodeStats]] = [[] for _ in range(runs)]
    for run, stats in zip(columns["run"], seeds, strict=True):
        by_run[run].append(EpisodeStats(*stats))
    return by_run


def _returns_and_steps(columns: dict[str, np.ndarray]) -> tuple[list[Any], list[Any]]:
    """Returns and steps of every seed: empty and None in a pack of goals only."""
    episodes = columns["episodes"]
    if "returns" not in columns:
        return [np.zeros(0, np.float32)] * len(episodes), [None] * len(episodes)
    values = _split(columns["values"], columns["values_of_seed"])
    codes = _split(join_bytes(columns["returns"]), episodes)
    gaps = iter(_split(join_bytes(columns["steps"]), episodes[columns["has_steps"]]))
    steps = [np.cumsum(next(gaps)) if has_steps else None for has_steps in columns["has_steps"]]
    returns = [seed_values[index] for seed_values, index in zip(values, codes, strict=True)]
    return returns, steps


def split_bytes(numbers: np.ndarray) -> np.ndarray:
    """Integers as rows of bytes, lowest first, which compress well; no rows of leading zeros."""
    rows = numbers.astype("<i8").view(np.uint8).reshape(-1, 8).T
    return rows[: int(np.flatnonzero(rows.any(axis=1)).max(initial=0)) + 1]


def join_bytes(rows: np.ndarray) -> np.ndarray:
    """The inverse of `split_bytes`."""
    padded = np.zeros((rows.shape[1], 8), np.uint8)
    padded[:, : len(rows)] = rows.T
    return padded.view("<i8")[:, 0]


def _split(column: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    return np.split(column, np.cumsum(lengths))[:-1]


def _compress(columns: dict[str, np.ndarray]) -> bytes:
    """An npz whose members are compressed by LZMA and carry no date: same columns, same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, column in columns.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.ascontiguousarray(column), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue(), zipfile.ZIP_LZMA)
    return buffer.getvalue()


def _without_seed(settings: dict[str, Any]) -> dict[str, Any]:
    run = {name: value for name, value in settings["run"].items() if name != "seed"}
    return settings | {"run": run}


def _with_seed(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    return settings | {"run": settings["run"] | {"seed": seed}}


def _index_in(items: list[Any], item: Any) -> int:
    """The index of an item in a list; the item is appended where it is missing."""
    if item not in items:
        items.append(item)
    return items.index(item)


def _encode_about(about: dict[str, Any]) -> str:
    """The JSON with one line per run, so that a diff shows which runs changed."""
    list_text = lambda items: "[\n" + ",\n".join(map(json.dumps, items)) + "\n]"
    text = lambda value: list_text(value) if isinstance(value, list) else json.dumps(value)
    return "{\n" + ",\n".join(f'"{name}": {text(value)}' for name, value in about.items()) + "\n}\n"
