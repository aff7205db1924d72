"""Sweeps of one's own: every combination of some settings with every seed, in any environment.

No jax here. DeepSea runs are trained in batches, as in the built-in sweeps; all others one at a
time, as ordinary runs.
"""

import itertools
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ersac import config
from ersac.config import Experiment, SettingsError, short_repr
from ersac.runs import disk, run_dir
from ersac.sweeps import runner
from ersac.sweeps.cells import CellUnit

MAX_NAME = 100  # characters of a run's name before its seed
FILE_KEYS = ("env", "agent", "uncertainty", "seeds", "out", "engine", "settings", "grid")


class GridSweep(NamedTuple):
    """A sweep of one's own, as a file or a call of `ersac.sweep` describes it."""

    grid: dict[str, list[Any]]  # values by setting; also env, agent and uncertainty
    seeds: int | Sequence[int]  # how many, from 0 on, or which
    settings: dict[str, Any]  # the same in every run; also env, agent and uncertainty


class GridRun(NamedTuple):
    """One run of a grid: one combination with one seed."""

    point: dict[str, Any]  # the values of the grid's settings
    settings: Experiment

    @property
    def name(self) -> str:
        """A directory name that no run with other settings has."""
        env = config.env_name(self.settings.env)
        words = [env, self.settings.agent_name]
        for name, value in self.point.items():
            if name not in ("env", "agent"):
                words += [name, getattr(value, "__name__", str(value))]
        text = re.sub(r"[^\w.]+", "-", "-".join(words)).strip("-")[:MAX_NAME]
        digest = run_dir.settings_hash(self.settings)[:8]
        return f"{text}-seed-{self.settings.run.seed}-{digest}"


class SweepResult(NamedTuple):
    """How a sweep of one's own ended."""

    directory: Path
    runs: list[Path]  # the directories of the runs that have ended
    failed: dict[str, str]  # name to reason: non-finite numbers, another attempt fails again
    missing: dict[str, str]  # name to reason: the same call tries again


def list_runs(sweep: GridSweep, make_settings: Callable[..., Experiment]) -> list[GridRun]:
    """Every run of a sweep; SettingsError where a setting is unknown or out of its range.

    make_settings: `ersac.api.make_settings`, which this module may not import.
    """
    if not isinstance(sweep.grid, dict):
        raise SettingsError(f"grid must be a dict of lists, not {short_repr(sweep.grid)}")
    for name, values in sweep.grid.items():
        if not isinstance(values, list | tuple | range) or not values:
            raise SettingsError(f"grid: {name} must be a list of values, not {short_repr(values)}")
        if name in sweep.settings:
            raise SettingsError(f"{name} is given twice: in the grid and as a setting of every run")
    for name in {"seed", "seeds"} & (sweep.grid.keys() | sweep.settings.keys()):
        raise SettingsError(f"{name} is not a setting of a sweep's runs; give the sweep its seeds")
    runs = []
    for seed in list_seeds(sweep.seeds):  # outermost: an unfinished sweep has every combination
        for combination in itertools.product(*sweep.grid.values()):
            point = dict(zip(sweep.grid, combination, strict=True))
            settings = make_settings(**sweep.settings, **point, seed=seed, seeds=1)
            runs.append(GridRun(point, settings))
    return runs


def list_seeds(seeds: Any) -> Iterable[int]:
    """The seeds of a sweep: 0 to n - 1 for a number n, else those given."""
    if isinstance(seeds, int) and not isinstance(seeds, bool) and seeds > 0:
        return range(seeds)
    is_list = isinstance(seeds, list | tuple | range) and all(type(seed) is int for seed in seeds)
    if is_list and seeds and len(set(seeds)) == len(seeds):
        return seeds
    raise SettingsError(
        f"seeds must be a number from 1 on or a list of different seeds, not {short_repr(seeds)}"
    )


def plan_grid(home: Path, runs: Sequence[GridRun], train: Callable[..., Any]) -> runner.Plan:
    """What is to be run in a directory."""
    batched = [run for run in runs if run.settings.env.has_maps]
    units: list[runner.Unit] = list(runner.make_batches(home, batched))
    units += [CellUnit(home, run, train) for run in runs if not run.settings.env.has_maps]
    return runner.Plan(home.name, home, runs, units)


def read_sweep_file(path: Path) -> tuple[GridSweep, dict[str, Any]]:
    """The sweep in a TOML file, and what else the file says: its `out` and `engine`."""
    if not path.is_file():
        raise SettingsError(f"there is no file {path}")
    try:
        data = tomllib.loads(disk.read(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}") from None
    for name in data:
        config.pick(f"entry of {path}", name, dict.fromkeys(FILE_KEYS))
    for name in ("out", "engine"):
        if not isinstance(data.get(name, ""), str):
            raise SettingsError(f"{path}: {name} must be text, not {short_repr(data[name])}")
    settings = data.pop("settings", {})
    if not isinstance(settings, dict):
        raise SettingsError(f"{path}: [settings] must be a table")
    settings |= {key: data.pop(key) for key in ("env", "agent", "uncertainty") if key in data}
    sweep = GridSweep(data.pop("grid", {}), data.pop("seeds", 1), settings)
    return sweep, data
