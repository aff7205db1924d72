"""A run directory: the one place that knows which files it has and how they are read and written.

No jax here: a directory that is in use, or holds another run, is refused before jax is imported.
"""

import contextlib
import dataclasses
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ersac import config
from ersac.config import Experiment, SettingsError, leaves
from ersac.runs import disk, seal
from ersac.runs.fingerprint import fingerprint

SETTINGS, FINGERPRINT, SUMMARY = "settings.json", "fingerprint.json", "summary.json"
RESULTS, PICTURE = "facts.npz", "picture.png"
FAILURE, LOCK = "failed.json", "lock"
START, CHECKPOINTS = "start.npz", "checkpoints"  # what it started from; as in checkpoint.py
ENDED, STOPPED, RUNNING = "ended", "stopped", "running"  # states of a run
NOT_HASHED = {"checkpoint_seconds", "make", "estimator"}  # no effect on the numbers, or named
FROM_PYTHON = {"torso", "make", "estimator"}  # may be Python objects: only their text is stored
# Settings that are newer than the format: a file without one of them means this value, and a value
# like this does not change the hash.
ADDED: dict[str, Any] = {
    "env_kwargs": None,
    "clip_rewards": False,
    "image_torso": "small",
    "critic_init_scale": 1,
    "objective": "payoff",
    "clip": 0.2,
    "schedule": "constant",
    "schedule_steps": 0.0,
}
JSON_TYPES = (bool, int, float, str, tuple, type(None))  # anything else is stored as its text
SETTINGS_FORMAT = 2  # 1 had the fields env, agent, learner, run


class CorruptRecord(ValueError):
    """A file of a run directory that is not what the run wrote; the text says why."""


class MapSnapshot(NamedTuple):
    """Visit counts, sigma and greedy moves in all DeepSea cells: the first seed at an episode."""

    episode: int
    visits: np.ndarray  # [depth, depth]
    sigma: np.ndarray  # [depth, depth]   the largest over actions
    # [depth, depth] bool   whether the greedy action moves right; None in older records
    moves_right: np.ndarray | None = None


class EpisodeStats(NamedTuple):
    """The episodes of one seed."""

    seed: int
    goals: np.ndarray  # [episodes] bool
    returns: np.ndarray  # [episodes] float32
    # [episodes] int64   environment steps of the seed by the end of the rollout in which the
    # episode ended; None for DeepSea, whose episodes all have one length
    steps: np.ndarray | None = None
    # [episodes] int32   steps of each episode; None for DeepSea, and in records of older versions
    lengths: np.ndarray | None = None


class Metrics(NamedTuple):
    """The learner's metrics, subsampled over chunks; each entry is a mean over one chunk."""

    step: np.ndarray  # [M]
    values: dict[str, np.ndarray]  # [seeds, M] by name


class Timings(NamedTuple):
    """Seconds that a run has taken so far, over all its sessions."""

    compiling: float = 0.0
    running: float = 0.0
    wall: float = 0.0


class StoredRun(NamedTuple):
    """A finished run as its directory holds it."""

    directory: Path
    settings: Experiment
    summary: dict[str, Any]
    seeds: list[EpisodeStats]
    metrics: Metrics
    map_snapshots: list[MapSnapshot]


# Who may write to a directory


@contextlib.contextmanager
def hold_run(directory: Path, settings: Experiment, resume: bool) -> Iterator[None]:
    """Lock a run directory: a new one or, with `resume`, one that holds a run of these settings.

    The stored settings of a known run stay as they are: `raise_budget` changes them once nothing
    can be refused any more.
    """
    known = resume and (directory / SETTINGS).exists()
    if not known:
        require_unused(directory)
        disk.make_directory(directory)
    with disk.lock(directory / LOCK):
        if known:
            _check_resumable(directory, settings)
        else:
            require_unused(directory)  # another process may have run and ended in between
            write_fingerprint(directory, settings.env)
            write_settings(directory, settings)
        try:
            yield
        except SettingsError:
            if not known:
                _remove_if_unused(directory)
            raise


def how_to_resume(directory: Path) -> str:
    """Return the command that resumes a run, quoted for a shell."""
    return f"ersac resume {shlex.quote(str(short_path(directory)))}"


def short_path(path: Path) -> Path:
    """Return a path as a person would type it: relative if it is below the working directory."""
    with contextlib.suppress(ValueError, OSError):  # a working directory may have been removed
        return path.relative_to(Path.cwd())
    return path


def _remove_if_unused(directory: Path) -> None:
    """Remove the directory of a run that was refused before it wrote any result."""
    if set(disk.names(directory)) == {LOCK, FINGERPRINT, SETTINGS}:
        for name in (SETTINGS, FINGERPRINT, LOCK):
            (directory / name).unlink()
        directory.rmdir()


def require_unused(directory: Path) -> None:
    """Raise SettingsError if a directory holds anything but what a run writes before it starts."""
    unstarted = {LOCK, FINGERPRINT, FINGERPRINT + disk.PARTIAL, SETTINGS + disk.PARTIAL}
    if directory.exists() and (not directory.is_dir() or set(disk.names(directory)) - unstarted):
        if disk.is_locked(directory / LOCK):
            with disk.lock(directory / LOCK):  # raises, naming the holder
                pass
        raise SettingsError(
            f"--out {short_path(directory)} already exists; choose another directory or remove it "
            "(nothing was overwritten)"
        )


def raise_budget(directory: Path, settings: Experiment) -> None:
    """Write the settings of a resumed run if its budget was raised and nothing was refused."""
    if read_settings(directory) != settings:
        write_settings(directory, settings)


def _check_resumable(directory: Path, settings: Experiment) -> None:
    """Raise SettingsError unless a directory's settings differ in a larger budget only."""
    before = read_settings(directory)
    if changed := differences(before, settings):
        raise SettingsError(
            f"{short_path(directory)} holds a run with other settings: {', '.join(changed)}; "
            "choose another directory"
        )
    for name in ("episodes", "steps"):
        old, new = getattr(before.run, name), getattr(settings.run, name)
        if new is not None and (old is None or new < old):
            budget = config.budget_option(before)
            hint = "" if budget == f"--{name}" else f"; this run has a budget of {budget}"
            raise SettingsError(
                f"--{name} can be raised when a run is resumed, not lowered: "
                f"{'no limit' if old is None else old} -> {new}{hint}"
            )


def differences(before: Experiment, now: Experiment) -> list[str]:
    """Return the settings in which two runs differ, as '--depth 20 -> 21'; budgets do not count."""
    old, new = (
        {
            config.option(path[-1], hint): _comparable(value)
            for path, hint, value in leaves(_without_budget(settings))
        }
        for settings in (before, now)
    )
    return [
        f"{name} {old.get(name)} -> {new.get(name)}"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]


def _comparable(value: Any) -> Any:
    """Return a setting as it can be compared between processes: an object by its name."""
    is_json = isinstance(value, JSON_TYPES) and not isinstance(value, config.NotStored)
    return value if is_json else object_name(value)


def object_name(value: Any) -> str:
    """Return a name of a Python object that is the same in every process.

    It is the module and name of a function or class, else its text without memory addresses.
    """
    module, name = (getattr(value, attribute, None) for attribute in ("__module__", "__qualname__"))
    if isinstance(value, str) or not (module and name):
        return re.sub(r" at 0x[0-9a-fA-F]+", "", str(value))
    return f"{module}.{name}"


def default_directory(parent: Path, stem: str, settings: Experiment, resume: bool) -> Path:
    """Return the directory of a run without --out: unused or, with `resume`, of the same run."""
    return free_name(parent, stem, lambda path: resume and _holds_run(path, settings))


def free_name(parent: Path, stem: str, usable: Callable[[Path], bool] = lambda path: False) -> Path:
    """Return the first of stem, stem-2, stem-3, ... that does not exist or is usable."""
    number, path = 1, parent / stem
    while path.exists() and not usable(path):
        number += 1
        path = parent / f"{stem}-{number}"
    return path


def _holds_run(directory: Path, settings: Experiment) -> bool:
    with contextlib.suppress(OSError):
        return run_hash(read_settings(directory)) == run_hash(settings)
    return False


# Settings


def settings_json(settings: Any) -> dict[str, Any]:
    """Return nested settings as JSON data; `kind` is the name of the class."""
    data: dict[str, Any] = {"kind": type(settings).__name__}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if is_settings(value):
            value = settings_json(value)
        elif callable(value):
            value = config.import_path(value) or object_name(value)
        data[field.name] = value
    return data


def settings_from_json(data: dict[str, Any]) -> Any:
    """Return nested settings from JSON data; their values are not checked yet."""
    cls = getattr(config, data["kind"])
    names = {field.name for field in dataclasses.fields(cls)}
    if other := (names ^ (data.keys() - {"kind", "hash", "format"})) - ADDED.keys():
        raise KeyError(*other)
    values: dict[str, Any] = {}
    for name in names:
        value = data.get(name, ADDED.get(name))
        if name in FROM_PYTHON and isinstance(value, str):
            value = config.NotStored(value)
        values[name] = settings_from_json(value) if isinstance(value, dict) else value
    return cls(**values)


def is_settings(value: Any) -> bool:
    """Return whether a value is nested settings, not another dataclass such as a flax module."""
    cls = type(value)
    return dataclasses.is_dataclass(value) and getattr(config, cls.__name__, None) is cls


def python_objects(settings: Experiment) -> dict[str, Any]:
    """Return the settings that are Python objects, by name; of those a file has only the text."""
    return {
        path[-1]: value
        for path, _, value in leaves(settings)
        if path[-1] in FROM_PYTHON and value is not None and not isinstance(value, str)
    }


def settings_hash(settings: Experiment) -> str:
    """Return twelve hexadecimal digits that identify the settings."""
    flat = {
        ".".join(path): value
        for path, _, value in leaves(settings)
        if path[-1] not in NOT_HASHED and (path[-1], value) not in ADDED.items()
    }
    return seal.json_digest(flat)[:12]


def run_hash(settings: Experiment) -> str:
    """Return twelve hexadecimal digits that identify a run, whatever its budget."""
    return settings_hash(_without_budget(settings))


def _without_budget(settings: Experiment) -> Experiment:
    factory = {"make": None} if isinstance(settings.env, config.Gym) else {}
    return config.override(settings, episodes=1, steps=None, checkpoint_seconds=0.0, **factory)


def write_settings(directory: Path, settings: Experiment) -> None:
    """Write the settings before the run starts; from then on it can be resumed."""
    data = {"format": SETTINGS_FORMAT, **settings_json(settings), "hash": settings_hash(settings)}
    seal.write_json(directory / SETTINGS, data)


def read_settings(directory: Path) -> Experiment:
    """Return the settings of a run."""
    path = directory / SETTINGS
    if directory.is_dir() and not path.exists():
        raise SettingsError(f"{directory} holds no run")
    text = disk.read(path, disk.MAX_TEXT)
    try:
        data = json.loads(text)
        number = data.get("format", 1) if "hash" in data else SETTINGS_FORMAT
        if number != SETTINGS_FORMAT:
            age, advice = (
                ("a newer", "update it")
                if number > SETTINGS_FORMAT
                else ("an older", "train again")
            )
            raise disk.DiskError(f"{path} was written by {age} ersac; {advice}")
        settings = config.check(settings_from_json(data))
        intact = isinstance(settings, Experiment) and settings_hash(settings) == data["hash"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        intact = False
    if not intact:
        raise disk.DiskError(f"{path} is damaged: it is not what a run wrote")
    return settings


def write_fingerprint(directory: Path, env: config.Environment | None = None) -> None:
    """Write the fingerprint of this process and of an environment."""
    seal.write_json(directory / FINGERPRINT, fingerprint(env))


# Results


def write_results(
    directory: Path,
    seeds: list[EpisodeStats],
    metrics: Metrics,
    map_snapshots: list[MapSnapshot],
    picture: bytes | None,
    summary: dict[str, Any],
) -> None:
    """Write the arrays, the picture and, last because it marks the run as ended, the summary."""
    disk.require_held(directory / LOCK)
    arrays: dict[str, np.ndarray] = {
        f"metric/{name}": value for name, value in {"step": metrics.step, **metrics.values}.items()
    }
    for stats in seeds:
        arrays |= {f"seed/{stats.seed}/{name}": a for name, a in _encode_stats(stats).items()}
    if map_snapshots:
        arrays |= {f"maps/{name}": a for name, a in encode_maps(map_snapshots).items()}
    data = seal.npz_bytes(arrays, compress=True)
    disk.write(directory / RESULTS, data)
    if picture is not None:
        disk.write(directory / PICTURE, picture)
    seal.write_sealed(directory / SUMMARY, {**summary, "facts_sha256": disk.digest(data)})


def _encode_stats(stats: EpisodeStats) -> dict[str, np.ndarray]:
    """Return a seed's episodes as npz members; few different returns are stored as codes."""
    arrays = {
        "goal_bits": np.packbits(stats.goals),
        "episodes": np.asarray(len(stats.goals)),
    }
    values, codes = code_returns(stats.returns)
    if len(values) <= 256:  # a code is a byte
        arrays |= {"return_codes": codes.astype(np.uint8), "return_values": values}
    else:
        arrays |= {"returns": stats.returns}
    optional = {"steps": stats.steps, "lengths": stats.lengths}
    return arrays | {name: array for name, array in optional.items() if array is not None}


def code_returns(returns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the different returns, to the last bit, and which of them each episode had."""
    # By bits: -0.0 stays different from 0.0.
    bits, codes = np.unique(returns.view(f"u{returns.itemsize}"), return_inverse=True)
    return bits.view(returns.dtype), codes


def read_results(directory: Path) -> tuple[list[EpisodeStats], Metrics, list[MapSnapshot]]:
    """Return the arrays of a finished run; DiskError if they are not those of a run."""
    path = directory / RESULTS
    data = disk.read(path)
    try:
        arrays = seal.npz_arrays(data, compressed=True)
        metrics = seal.arrays_below(arrays, "metric")
        seeds = [
            _decode_stats(n, seal.arrays_below(arrays, f"seed/{n}"))
            for n in _numbers(arrays, "seed")
        ]
        step = metrics.pop("step")
        _require_shape(step, (step.size,))
        for values in metrics.values():
            _require_shape(values, (len(seeds), len(step)))
        snapshots = decode_maps(seal.arrays_below(arrays, "maps"))
        snapshots += [  # of an older version
            snapshot
            for number in _numbers(arrays, "moment")
            for snapshot in decode_maps(
                {name: a[None] for name, a in seal.arrays_below(arrays, f"moment/{number}").items()}
            )
        ]
    except (ValueError, KeyError, IndexError, TypeError, OverflowError):  # sealed by another hand
        raise disk.DiskError(f"{path} is damaged: it is not what a run wrote") from None
    return seeds, Metrics(step, metrics), snapshots


def _require_shape(array: np.ndarray, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless an array holds numbers and has this shape."""
    if array.shape != shape or array.dtype.kind not in "biuf":
        raise ValueError(f"{array.dtype}{array.shape} instead of {shape}")


def _decode_stats(seed: int, stored: dict[str, np.ndarray]) -> EpisodeStats:
    """Return the episodes that `_encode_stats` encoded, by today's names or the older ones."""
    bits = stored["goal_bits"] if "goal_bits" in stored else stored["goals"]
    episodes = int(stored["episodes"])
    if not 0 <= episodes <= 8 * bits.size:
        raise ValueError(episodes)
    goals = np.unpackbits(bits, count=episodes).astype(bool)
    if "return_codes" in stored:
        returns = stored["return_values"][stored["return_codes"]]
    elif "values" in stored:
        returns = stored["values"][stored["returns"]]
    else:
        returns = stored["returns"]
    stats = EpisodeStats(seed, goals, returns, stored.get("steps"), stored.get("lengths"))
    for array in stats[1:]:
        if array is not None:
            _require_shape(array, (episodes,))
    return stats


def encode_maps(snapshots: list[MapSnapshot]) -> dict[str, np.ndarray]:
    """Return maps of one grid as an array of each field, the snapshot first.

    `moves_right` is -1 where a snapshot of an older version has none.
    """
    unknown = np.full(snapshots[0].visits.shape, -1, np.int8)
    moves = [unknown if s.moves_right is None else s.moves_right for s in snapshots]
    return {
        "episode": np.array([snapshot.episode for snapshot in snapshots]),
        "visits": np.stack([snapshot.visits for snapshot in snapshots]).astype(np.int32),
        "sigma": np.stack([snapshot.sigma for snapshot in snapshots]).astype(np.float32),
        "moves_right": np.stack(moves).astype(np.int8),
    }


def decode_maps(stored: dict[str, np.ndarray]) -> list[MapSnapshot]:
    """Return the snapshots that `encode_maps` encoded; ValueError if they are of no square grid."""
    if not stored:
        return []
    episode, visits, sigma = (stored[name] for name in ("episode", "visits", "sigma"))
    unknown = np.full(visits.shape, -1, np.int8)  # in files of older versions
    moves_right = stored.get("moves_right", unknown)
    _require_shape(episode, (len(visits),))
    for array in (visits, sigma, moves_right):
        _require_shape(array, (len(visits), visits.shape[-1], visits.shape[-1]))
    return [
        MapSnapshot(int(number), counts, sigmas, None if (moves < 0).any() else moves > 0)
        for number, counts, sigmas, moves in zip(episode, visits, sigma, moves_right, strict=True)
    ]


def _numbers(arrays: dict[str, np.ndarray], name: str) -> list[int]:
    """Return the n of all members `name/n/...`, sorted."""
    return sorted({int(path.split("/")[0]) for path in seal.arrays_below(arrays, name)})


def read_summary(directory: Path, settings: Experiment) -> dict[str, Any] | None:
    """Return the summary of a run with these settings; None if it has not ended.

    Raises CorruptRecord if a file is not what the run wrote.
    """
    if not (directory / SUMMARY).exists():
        return None
    try:
        summary = seal.read_sealed(directory / SUMMARY)
    except (ValueError, RecursionError):
        raise CorruptRecord(f"{SUMMARY} is not what a run wrote") from None
    if summary.get("run_hash") != run_hash(settings):
        raise CorruptRecord(f"{SUMMARY} belongs to another run")
    if summary.get("settings_hash") != settings_hash(settings):
        return None  # the budget has been raised since
    if not (directory / RESULTS).exists():
        raise CorruptRecord(f"{RESULTS} is missing")
    if disk.digest(disk.read(directory / RESULTS)) != summary.get("facts_sha256"):
        raise CorruptRecord(f"{RESULTS} is not what a run wrote")
    return summary


def valid_summary(directory: Path, settings: Experiment) -> dict[str, Any] | None:
    """Return the summary of a run with these settings; None if not ended, or damaged."""
    try:
        return read_summary(directory, settings)
    except CorruptRecord:
        return None  # resuming writes the files again


def checked_summary(directory: Path, settings: Experiment) -> dict[str, Any] | None:
    """Return the summary of a run; None if it has not ended, DiskError if it is damaged."""
    try:
        return read_summary(directory, settings)
    except CorruptRecord as why:
        command = how_to_resume(directory)
        raise disk.DiskError(f"{directory} is damaged: {why}; {command} writes it anew") from None


def read_finished_summary(directory: Path) -> tuple[Experiment, dict[str, Any]]:
    """Return the settings and the summary of a finished run.

    Raises SettingsError if it has not ended, DiskError if it is damaged.
    """
    settings = read_settings(directory)
    summary = checked_summary(directory, settings)
    if summary is None:
        command = how_to_resume(directory)
        raise SettingsError(f"{directory} has not ended; resume with: {command}")
    return settings, summary


def read_finished_run(directory: Path) -> StoredRun:
    """Return a finished run; raises what `read_finished_summary` does."""
    settings, summary = read_finished_summary(directory)
    stored = StoredRun(directory, settings, summary, *read_results(directory))
    # A digest can be computed by any hand: what readers rely on must be there.
    has_steps = settings.env.depth is not None or all(
        stats.steps is not None for stats in stored.seeds
    )
    if not (has_steps and stored.seeds and _has_fields(summary)):
        raise disk.DiskError(f"{directory} is damaged: {SUMMARY} or {RESULTS} lacks a field")
    return stored


def _has_fields(summary: dict[str, Any]) -> bool:
    """Return whether a summary has the fields that its readers use, of the right types."""
    numbers = ("steps", "compile_seconds", "run_seconds", "wall_seconds")
    lists = ("departures", "per_seed", "solved_reliable")
    return all(
        isinstance(summary.get(name), types) and not isinstance(summary.get(name), bool)
        for names, types in ((numbers, (int, float)), (lists, (list,)))
        for name in names
    )


def write_failure(directory: Path, settings: Experiment, reason: str) -> None:
    """Record that a run cannot finish: run again, it would fail in the same way."""
    data = {"reason": reason, "settings_hash": settings_hash(settings)}
    seal.write_sealed(directory / FAILURE, data)


def read_failure(directory: Path, settings: Experiment) -> str | None:
    """Return why a run with these settings cannot finish; None if nothing says so."""
    if not (directory / FAILURE).exists():
        return None
    with contextlib.suppress(ValueError, RecursionError):  # a torn file: the run fails again
        data = seal.read_sealed(directory / FAILURE)
        if data.get("settings_hash") == settings_hash(settings):
            return str(data.get("reason"))
    return None
