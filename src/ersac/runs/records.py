"""A run's directory: settings, fingerprint, facts. No jax here, so that a directory in use is refused before it is imported."""

import contextlib
import dataclasses
import io
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ersac import config
from ersac.config import Experiment, SettingsError, leaves
from ersac.runs import disk

SETTINGS, FINGERPRINT, FACTS, SUMMARY, PICTURE = (
    "settings.json",
    "fingerprint.json",
    "facts.npz",
    "summary.json",
    "picture.png",
)
FAILURE, LOCK = "failed.json", "lock"
UNCOUNTED = {
    "checkpoint_seconds",
    "make",
    "estimator",
}  # settings that decide no number, or whose numbers have a name
FROM_PYTHON = {"torso", "make", "estimator"}  # of which settings that were read have the text only
PLAIN_DATA = (
    bool,
    int,
    float,
    str,
    tuple,
    type(None),
)  # a setting of another kind came from Python, and is kept as its text
PACKAGES = ("ersac", "jax", "jaxlib", "numpy", "optax")


class CorruptRecord(ValueError):
    """What a run left is not what it wrote; the text says why in a few words."""


class MapSnapshot(NamedTuple):
    """What the agent knew of the sea at one moment of one seed."""

    episode: int
    visits: np.ndarray  # [depth, depth]
    sigma: np.ndarray  # [depth, depth]   of the action that means right


class EpisodeStats(NamedTuple):
    """What happened to one seed, an entry an episode."""

    seed: int
    goals: np.ndarray  # [episodes] bool
    returns: np.ndarray  # [episodes] float32
    steps: np.ndarray | None = (
        None  # [episodes] int64   that the seed had taken, in all its environments, by the end of the rollout; not at sea
    )


class Metrics(NamedTuple):
    """What the learner said of itself, subsampled over rollouts; means over the rollouts since the last entry."""

    step: np.ndarray  # [M]
    told: dict[str, np.ndarray]  # [seeds, M]   by the names that its kind of learner has for them


class Spent(NamedTuple):
    """Seconds that a run has had so far, in all its lives."""

    compiling: float = 0.0
    running: float = 0.0
    wall: float = 0.0


@contextlib.contextmanager
def hold_run(directory: Path, settings: Experiment, resume: bool) -> Iterator[None]:
    """Be the only one to write to a run's directory: a new one, or if `resume` that of a run with the same settings."""
    known = resume and (directory / SETTINGS).exists()
    if not known:
        require_unused(directory)
        disk.make_directory(directory)
    with disk.lock(directory / LOCK):
        if not known:
            require_unused(directory)  # by one who was faster, and is done
            write_fingerprint(directory)
        if not known or _continued(directory, settings) != settings:
            write_settings(directory, settings)
        try:
            yield
        except SettingsError:
            if not known:
                _forget_if_bare(directory)
            raise


def _forget_if_bare(directory: Path) -> None:
    """Leave nothing of a run that was refused once its environment was known, and has nothing to show."""
    if set(disk.names(directory)) == {LOCK, FINGERPRINT, SETTINGS}:
        for name in (SETTINGS, FINGERPRINT, LOCK):
            (directory / name).unlink()
        directory.rmdir()


def require_unused(directory: Path) -> None:
    """Whatever a run has not begun to fill may be used: another's precious files may not."""
    begun = {LOCK, FINGERPRINT, FINGERPRINT + disk.PARTIAL, SETTINGS + disk.PARTIAL}
    if directory.exists() and (not directory.is_dir() or set(disk.names(directory)) - begun):
        if disk.in_use(directory / LOCK):
            with disk.lock(directory / LOCK):  # says by whom
                pass
        raise SettingsError(
            f"--out {directory} already holds something; choose another directory or remove it (nothing was overwritten)"
        )


def _continued(directory: Path, settings: Experiment) -> Experiment:
    """The settings that a directory has, if a run with the given ones may continue it: the same but for a larger budget."""
    before = read_settings(directory)
    if changed := differences(before, settings):
        raise SettingsError(
            f"{directory} holds a run with other settings: {', '.join(changed)}; choose another directory"
        )
    if settings.run.episodes < before.run.episodes:
        raise SettingsError(
            f"--episodes can be raised when a run is resumed, not lowered: {before.run.episodes} -> {settings.run.episodes}"
        )
    return before


def differences(before: Experiment, now: Experiment) -> list[str]:
    """The settings that make one run another, as '--depth 20 -> 21'."""
    old, new = (
        {
            ".".join(path): value if isinstance(value, PLAIN_DATA) else str(value)
            for path, _, value in leaves(_same_run(each))
        }
        for each in (before, now)
    )
    return [
        f"{config.option(name.split('.')[-1])} {old.get(name)} -> {new.get(name)}"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]


def run_directory(parent: Path, stem: str, settings: Experiment, resume: bool) -> Path:
    """Where a run goes that was not told: a free name, or a run with these settings that is to be resumed."""
    return free_name(parent, stem, lambda path: resume and _is_run(path, settings))


def free_name(parent: Path, stem: str, usable: Callable[[Path], bool] = lambda path: False) -> Path:
    """The first of stem, stem-2, stem-3, ... that does not exist, or is usable all the same."""
    number, path = 1, parent / stem
    while path.exists() and not usable(path):
        number += 1
        path = parent / f"{stem}-{number}"
    return path


def _is_run(directory: Path, settings: Experiment) -> bool:
    with contextlib.suppress(OSError):
        return run_hash(read_settings(directory)) == run_hash(settings)
    return False


def settings_json(settings: Any) -> dict[str, Any]:
    """Nested settings as plain data; a variant carries the name of its class."""
    out: dict[str, Any] = {"kind": type(settings).__name__}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        out[field.name] = settings_json(value) if is_settings(value) else value
    return out


def is_settings(value: Any) -> bool:
    """Whether a value is nested settings; a flax module is a dataclass, too, and is kept as its text."""
    return dataclasses.is_dataclass(value) and getattr(config, type(value).__name__, None) is type(
        value
    )


def settings_hash(settings: Experiment) -> str:
    """Twelve digits that name a set of settings."""
    flat = {
        ".".join(path): value for path, _, value in leaves(settings) if path[-1] not in UNCOUNTED
    }
    return disk.digest(json.dumps(flat, sort_keys=True, default=str).encode())[:12]


def run_hash(settings: Experiment) -> str:
    """Twelve digits that name a run, whatever its budget."""
    return settings_hash(_same_run(settings))


def _same_run(settings: Experiment) -> Experiment:
    made = {"make": None} if settings.env.on_host else {}
    return config.override(settings, episodes=1, steps=None, checkpoint_seconds=0.0, **made)


def fingerprint() -> dict[str, Any]:
    """What, besides the settings, decides the bits: versions, machine, flags."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "machine": f"{platform.machine()} {_processor()}".strip(),
        "system": platform.system(),
        "visible_cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def scope() -> dict[str, Any]:
    """The part of the fingerprint that decides the bits, by the names that a person is told."""
    told = fingerprint()
    names = ("visible_cores", "machine", "system", "xla_flags")
    return {name.replace("_", " "): told[name] for name in names} | told["packages"]


def _processor() -> str:
    """The name of the processor, where the system tells it: compiled code depends on it."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        return next(
            (line.partition(":")[2].strip() for line in file if line.startswith("model name")), ""
        )
    return ""


def write_fingerprint(directory: Path) -> None:
    """Say what, besides the settings, decides the bits."""
    _write_json(directory / FINGERPRINT, fingerprint())


def write_settings(directory: Path, settings: Experiment) -> None:
    """Say what is about to be run, before it is; from then on it can be resumed."""
    _write_json(directory / SETTINGS, {**settings_json(settings), "hash": settings_hash(settings)})


def read_settings(directory: Path) -> Experiment:
    """The settings of a run."""
    path = directory / SETTINGS
    if directory.is_dir() and not path.exists():
        raise SettingsError(f"{directory} holds no run")
    data = disk.read(path)
    try:
        told = json.loads(data)
        settings = config.check(settings_from_json(told))
        sound = isinstance(settings, Experiment) and settings_hash(settings) == told["hash"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        sound = False
    if not sound:
        raise disk.DiskError(f"{path} is damaged: it is not what a run wrote")
    return settings


def settings_from_json(told: dict[str, Any]) -> Any:
    """Nested settings from plain data, whose numbers are yet to be checked."""
    kind = getattr(config, told["kind"])
    names = {field.name for field in dataclasses.fields(kind)}
    if other := names ^ (told.keys() - {"kind", "hash"}):
        raise KeyError(*other)
    values = {name: told[name] for name in names}
    values |= {
        name: config.NotStored(value)
        for name, value in values.items()
        if name in FROM_PYTHON and isinstance(value, str)
    }
    return kind(
        **{
            name: settings_from_json(value) if isinstance(value, dict) else value
            for name, value in values.items()
        }
    )


def write_results(
    directory: Path,
    seeds: list[EpisodeStats],
    metrics: Metrics,
    map_snapshots: list[MapSnapshot],
    picture: bytes | None,
    summary: dict[str, Any],
) -> None:
    """Leave the facts, a picture of them, and last, because it says that the run has ended, the verdicts computed from them."""
    arrays: dict[str, np.ndarray] = {
        f"metric/{name}": value for name, value in {"step": metrics.step, **metrics.told}.items()
    }
    for stats in seeds:
        arrays[f"seed/{stats.seed}/goals"] = np.packbits(stats.goals)
        arrays[f"seed/{stats.seed}/episodes"] = np.asarray(len(stats.goals))
        arrays |= {
            f"seed/{stats.seed}/{name}": value
            for name, value in encode_returns(stats.returns).items()
        }
        if stats.steps is not None:
            arrays[f"seed/{stats.seed}/steps"] = stats.steps
    for number, map_snapshot in enumerate(map_snapshots):
        for name, value in map_snapshot._asdict().items():
            arrays[f"moment/{number}/{name}"] = np.asarray(value)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    disk.write(directory / FACTS, buffer.getvalue())
    if picture is not None:
        disk.write(directory / PICTURE, picture)
    write_sealed(directory / SUMMARY, {**summary, "facts_sha256": disk.digest(buffer.getvalue())})


def encode_returns(returns: np.ndarray) -> dict[str, np.ndarray]:
    """Returns, of which a sea has few different ones: which they are, and which of them each episode had; a third smaller on disk."""
    bits, which = np.unique(
        returns.view(f"u{returns.itemsize}"), return_inverse=True
    )  # a zero keeps its sign
    return (
        {"returns": returns}
        if len(bits) > 256
        else {"returns": which.astype(np.uint8), "values": bits.view(returns.dtype)}
    )


def write_sealed(path: Path, told: dict[str, Any]) -> None:
    """Write plain data so that whoever reads it can tell that it is whole."""
    _write_json(path, seal_json(told))


def seal_json(told: dict[str, Any]) -> dict[str, Any]:
    """Plain data with the digest of itself."""
    return {**told, "sha256": disk.digest(json.dumps(told, sort_keys=True, default=str).encode())}


def unseal_json(data: bytes) -> dict[str, Any]:
    """What was sealed; ValueError where it is not what was written."""
    told = json.loads(data)
    if (
        not isinstance(told, dict)
        or seal_json({name: value for name, value in told.items() if name != "sha256"}) != told
    ):
        raise ValueError("its sha256 is another")
    return told


def ended_summary(directory: Path, settings: Experiment) -> dict[str, Any] | None:
    """The verdicts of a run that has ended with these settings and whose facts are sound, or None."""
    try:
        return read_summary(directory, settings)
    except CorruptRecord:
        return None  # it is written again


def read_summary(directory: Path, settings: Experiment) -> dict[str, Any] | None:
    """The verdicts of a run with these settings; None where it has not ended, Damaged where what it left is not what was written."""
    if not (directory / SUMMARY).exists():
        return None
    try:
        summary = unseal_json(disk.read(directory / SUMMARY))
    except (ValueError, RecursionError):
        raise CorruptRecord(f"{SUMMARY} is not what a run wrote") from None
    if summary.get("run_hash") != run_hash(settings):
        raise CorruptRecord(f"{SUMMARY} is another run's")
    if summary.get("settings_hash") != settings_hash(settings):
        return None  # its budget was raised since
    if not (directory / FACTS).exists():
        raise CorruptRecord(f"{FACTS} is missing")
    if disk.digest(disk.read(directory / FACTS)) != summary.get("facts_sha256"):
        raise CorruptRecord(f"{FACTS} is not what a run wrote")
    return summary


def write_failure(directory: Path, settings: Experiment, reason: str) -> None:
    """Say that a run cannot end: whoever runs it again comes to the same."""
    write_sealed(directory / FAILURE, {"reason": reason, "settings_hash": settings_hash(settings)})


def failure(directory: Path, settings: Experiment) -> str | None:
    """Why a run with these settings cannot end, or None."""
    if not (directory / FAILURE).exists():
        return None
    with contextlib.suppress(ValueError, RecursionError):  # it may be torn: then it is found again
        told = unseal_json(disk.read(directory / FAILURE))
        if told.get("settings_hash") == settings_hash(settings):
            return str(told.get("reason"))
    return None


def _returns(file: Any, seed: int) -> np.ndarray:
    returns = file[f"seed/{seed}/returns"]
    return file[f"seed/{seed}/values"][returns] if f"seed/{seed}/values" in file.files else returns


def read_facts(directory: Path) -> tuple[list[EpisodeStats], Metrics, list[MapSnapshot]]:
    """The facts of a run, as they were when it ended."""
    with np.load(directory / FACTS, allow_pickle=False) as file:
        seeds = sorted({int(name.split("/")[1]) for name in file.files if name.startswith("seed/")})
        numbers = sorted(
            {int(name.split("/")[1]) for name in file.files if name.startswith("moment/")}
        )
        stats = [
            EpisodeStats(
                seed,
                np.unpackbits(
                    file[f"seed/{seed}/goals"], count=int(file[f"seed/{seed}/episodes"])
                ).astype(bool),
                _returns(file, seed),
                file[f"seed/{seed}/steps"] if f"seed/{seed}/steps" in file.files else None,
            )
            for seed in seeds
        ]
        told = {
            name.removeprefix("metric/"): file[name]
            for name in file.files
            if name.startswith("metric/")
        }
        metrics = Metrics(told.pop("step"), told)
        map_snapshots = [
            MapSnapshot(
                int(file[f"moment/{n}/episode"]),
                file[f"moment/{n}/visits"],
                file[f"moment/{n}/sigma"],
            )
            for n in numbers
        ]
    return stats, metrics, map_snapshots


def _write_json(path: Path, value: dict[str, Any]) -> None:
    disk.write(path, (json.dumps(value, indent=2, default=str) + "\n").encode())
