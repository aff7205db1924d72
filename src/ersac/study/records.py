"""A run's directory: settings, fingerprint, facts. No jax here, so that a directory in use is refused before it is imported."""

import dataclasses
import hashlib
import io
import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ersac import disk
from ersac.config import SettingsError, Train, leaves

SETTINGS, FINGERPRINT, FACTS, SUMMARY, PICTURE = "settings.json", "fingerprint.json", "facts.npz", "summary.json", "picture.png"
PACKAGES = ("ersac", "jax", "jaxlib", "numpy", "optax")


class Moment(NamedTuple):
    """What the agent knew of the sea at one moment of one seed."""

    episode: int
    visits: np.ndarray  # [depth, depth]
    sigma: np.ndarray  # [depth, depth]   of the action that means right


class SeedFacts(NamedTuple):
    """What happened to one seed, an entry an episode."""

    seed: int
    goals: np.ndarray  # [episodes] bool
    returns: np.ndarray  # [episodes] float32


class Metrics(NamedTuple):
    """What the learner said of itself, subsampled over rollouts; means over the rollouts since the last entry."""

    step: np.ndarray  # [M]
    tau: np.ndarray  # [seeds, M]
    entropy: np.ndarray  # [seeds, M]
    sigma2: np.ndarray  # [seeds, M]


def claim(directory: Path) -> None:
    """Make a run's directory, or say that another run lives there."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise SettingsError(f"--out {directory} already holds something; choose another directory or remove it (nothing was overwritten)")
    disk.make_directory(directory)


def free_name(parent: Path, stem: str) -> Path:
    """The first of stem, stem-2, stem-3, ... that no run has."""
    number, path = 1, parent / stem
    while path.exists():
        number += 1
        path = parent / f"{stem}-{number}"
    return path


def as_json(settings: Any) -> dict[str, Any]:
    """Nested settings as plain data; a variant carries the name of its class."""
    out: dict[str, Any] = {"kind": type(settings).__name__}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        out[field.name] = as_json(value) if dataclasses.is_dataclass(value) else value
    return out


def settings_hash(settings: Train) -> str:
    """Twelve digits that name a set of settings."""
    flat = {".".join(path): value for path, _, value in leaves(settings)}
    return hashlib.sha256(json.dumps(flat, sort_keys=True, default=str).encode()).hexdigest()[:12]


def fingerprint() -> dict[str, Any]:
    """What, besides the settings, decides the bits: versions, machine, flags."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "machine": platform.machine(),
        "system": platform.system(),
        "visible_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "command": sys.argv,
    }


def write_settings(directory: Path, settings: Train) -> None:
    """Say what is about to be run, before it is."""
    _write_json(directory / SETTINGS, {**as_json(settings), "hash": settings_hash(settings)})
    _write_json(directory / FINGERPRINT, fingerprint())


def write_results(directory: Path, seeds: list[SeedFacts], metrics: Metrics, moments: list[Moment], summary: dict[str, Any]) -> None:
    """Leave the facts, and the verdicts computed from them."""
    arrays: dict[str, np.ndarray] = {f"metric/{name}": value for name, value in metrics._asdict().items()}
    for facts in seeds:
        arrays[f"seed/{facts.seed}/goals"] = np.packbits(facts.goals)
        arrays[f"seed/{facts.seed}/episodes"] = np.asarray(len(facts.goals))
        arrays[f"seed/{facts.seed}/returns"] = facts.returns
    for number, moment in enumerate(moments):
        for name, value in moment._asdict().items():
            arrays[f"moment/{number}/{name}"] = np.asarray(value)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    disk.write(directory / FACTS, buffer.getvalue())
    _write_json(directory / SUMMARY, summary)


def read_facts(directory: Path) -> tuple[list[SeedFacts], Metrics, list[Moment]]:
    """The facts of a run, as they were when it ended."""
    with np.load(directory / FACTS, allow_pickle=False) as file:
        seeds = sorted({int(name.split("/")[1]) for name in file.files if name.startswith("seed/")})
        numbers = sorted({int(name.split("/")[1]) for name in file.files if name.startswith("moment/")})
        facts = [
            SeedFacts(
                seed,
                np.unpackbits(file[f"seed/{seed}/goals"], count=int(file[f"seed/{seed}/episodes"])).astype(bool),
                file[f"seed/{seed}/returns"],
            )
            for seed in seeds
        ]
        metrics = Metrics(*(file[f"metric/{name}"] for name in Metrics._fields))
        moments = [Moment(int(file[f"moment/{n}/episode"]), file[f"moment/{n}/visits"], file[f"moment/{n}/sigma"]) for n in numbers]
    return facts, metrics, moments


def _write_json(path: Path, value: dict[str, Any]) -> None:
    disk.write(path, (json.dumps(value, indent=2, default=str) + "\n").encode())
