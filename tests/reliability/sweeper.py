"""Processes that tests kill: a sweep's driver, and writers of run directories.

Arguments: sweep NAME DIRECTORY ENGINE, or records DIRECTORY FIRST LAST.
"""

import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ersac import api, cli, config
from ersac.runs import disk, run_dir
from ersac.sweeps import catalogue
from ersac.sweeps.catalogue import LineFactory, Sweep, SweepSize

SYNC_SECONDS = 0.01  # per file: a writer spends most of its time inside a record
TINY = {"hidden": (8, 8), "rollout": 20}
LINES = tuple(
    LineFactory("mlp").line(f"gamma-{gamma}", "ersac", gamma=gamma, **TINY) for gamma in (0.9, 0.99)
)
SWEEPS = {
    "tiny-500": Sweep(
        "to be killed", LINES, {"smoke": SweepSize((4, 5), 125, 2_000)}, stop_when_solved=False
    ),
    "tiny-100": Sweep(
        "to be run twice", LINES, {"smoke": SweepSize((4,), 50, 400)}, stop_when_solved=False
    ),
}


def save_every_chunk(found: list[catalogue.Instance]) -> list[catalogue.Instance]:
    """Return the instances with a checkpoint after every chunk: each second makes progress."""
    return [
        instance._replace(settings=config.override(instance.settings, checkpoint_seconds=0.0))
        for instance in found
    ]


def sweep(name: str, home: str, engine: str) -> None:
    """Run a sweep of this file or of the catalogue."""
    from ersac.runs import checkpointer  # imports jax, which writers do not need

    if name in SWEEPS:
        instances = catalogue.instances
        catalogue.SWEEPS, checkpointer.COST_SHARE = SWEEPS, math.inf
        catalogue.instances = lambda *args: save_every_chunk(instances(*args))
    cli.main(["sweep", name, "--out", home, "--engine", engine])


def run_arrays(number: int) -> tuple[config.Experiment, run_dir.EpisodeStats, run_dir.Metrics]:
    """Return what a writer writes under a number."""
    settings = api.make_settings(depth=5, seeds=1, seed=number)
    rng = np.random.default_rng(number)
    column = rng.random((1, 50)).astype(np.float32)
    stats = run_dir.EpisodeStats(
        number, rng.random(2000) < 0.5, rng.normal(size=2000).astype(np.float32)
    )
    return settings, stats, run_dir.Metrics(np.arange(50), {"tau": column})


def write_records(home: Path, first: int, last: int, report: Callable[[int], None]) -> None:
    """Write one run directory after the other, and report each that is complete."""
    for number in range(first, last):
        settings, stats, metrics = run_arrays(number)
        directory = home / str(number)
        if run_dir.read_failure(directory, settings) or run_dir.valid_summary(directory, settings):
            continue
        result = api.Result(settings, [stats], metrics, [], 0, 0.0, 1.0, 1.0, [], directory)
        with run_dir.hold_run(directory, settings, resume=True):
            run_dir.write_results(directory, [stats], metrics, [], None, result.summary())
        report(number)


if __name__ == "__main__":
    if sys.argv[1] == "sweep":
        sweep(*sys.argv[2:])
    else:
        disk.OPS = disk.OPS._replace(
            fsync=lambda handle: (os.fsync(handle), time.sleep(SYNC_SECONDS))
        )
        write_records(
            Path(sys.argv[2]),
            int(sys.argv[3]),
            int(sys.argv[4]),
            lambda number: print(number, flush=True),
        )
