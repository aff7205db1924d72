"""Compare agents: their returns after the same number of steps in the same environment.

No jax here.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ersac.analysis import pack, scores
from ersac.analysis.pack import RunRecord
from ersac.config import SettingsError
from ersac.runs import run_dir
from ersac.runs.results import read_result
from ersac.runs.run_dir import EpisodeStats
from ersac.sweeps.runner import SWEEP

POINTS = 1000  # at which curves are compared


class Curve(NamedTuple):
    """The learning curve of one seed: the mean return of its last hundred episodes."""

    steps: np.ndarray  # [episodes] environment steps at the end of each episode
    means: np.ndarray  # [episodes]
    end: int  # environment steps of the whole run

    def at(self, steps: np.ndarray) -> np.ndarray:
        """The curve at those steps; nan before the first episode has ended."""
        ended = np.searchsorted(self.steps, steps, side="right")
        return np.where(ended > 0, self.means[np.maximum(ended, 1) - 1], np.nan)


class Comparison(NamedTuple):
    """Two agents in one environment after the same number of steps.

    Scores are medians over seeds; low and high are 95 % intervals.
    """

    env: str
    steps: int
    agent: str
    seeds: int
    score: float
    low: float
    high: float
    other: str
    other_seeds: int
    other_score: float
    other_low: float
    other_high: float
    improvement: float  # the probability that a seed of the first is above one of the other
    steps_to_other: int | None  # after which the first stays at or above the other's score


def compare_runs(paths: Sequence[Path], note: Callable[[str], None]) -> list[Comparison]:
    """Compare the first agent of each environment with each other agent there.

    paths: run and sweep directories, and packs. A directory that cannot be read is noted and left
    out; a damaged pack is an error.
    """
    found: dict[str, dict[str, list[Curve]]] = {}
    for run, agent in label_variants(list(read_runs(paths, note))):
        curves = found.setdefault(env_label(run), {}).setdefault(agent, [])
        curves += [learning_curve(stats, run) for stats in run.seeds if len(stats.returns)]
    comparisons = [pair for env, agents in found.items() for pair in _compare_agents(env, agents)]
    if not comparisons:
        raise SettingsError(
            "nothing to compare: name runs of two agents in one environment, each of which has"
            " ended an episode"
        )
    return comparisons


def read_runs(paths: Sequence[Path], note: Callable[[str], None]) -> Iterator[RunRecord]:
    """The run of each directory, every run of each pack, and every run of each sweep directory."""
    for path in expand_sweeps(paths):
        if not pack.is_pack(path):
            try:
                yield read_record(path, note)
            except (SettingsError, OSError) as error:
                note(f"left out: {error}")
        elif (packed := pack.read_pack(path)).goals_only:
            note(f"left out: {path} was packed with --goals-only and has no returns")
        else:
            yield from packed.runs


def expand_sweeps(paths: Sequence[Path]) -> Iterator[Path]:
    """The paths, with the run directories of a sweep in its place.

    What else a sweep's directory holds is skipped, also where a pattern such as `sweep/*` named it.
    """
    for path in paths:
        if (path / SWEEP).is_file():
            yield from sorted(run.parent for run in path.glob(f"*/{run_dir.SETTINGS}"))
        elif not (path.parent / SWEEP).is_file() or (path / run_dir.SETTINGS).is_file():
            yield path


def read_record(directory: Path, note: Callable[[str], None]) -> RunRecord:
    """A run from its directory, up to its last checkpoint if it has not ended."""
    result = read_result(directory, note)
    record = pack.run_record(directory.name, result.settings, result.summary(), result.seeds)
    return record._replace(steps=None) if result.stopped else record  # its budget is not spent


def learning_curve(stats: EpisodeStats, run: RunRecord) -> Curve:
    """The curve of one seed of a run."""
    steps = stats.steps
    if steps is None:  # DeepSea, whose episodes have as many steps as it is deep
        assert run.depth is not None
        steps = np.arange(1, len(stats.returns) + 1) * run.depth
    budget = None if run.stop_when_solved else run.steps
    end = int(steps[-1]) if budget is None else budget
    return Curve(steps, scores.running_means(stats.returns), end)


def _compare_agents(env: str, agents: dict[str, list[Curve]]) -> Iterator[Comparison]:
    sides = [(name, curves) for name, curves in agents.items() if curves]
    for other, other_curves in sides[1:]:
        agent, curves = sides[0]
        steps = min(curve.end for curve in (*curves, *other_curves))
        if any(curve.steps[0] > steps for curve in (*curves, *other_curves)):
            raise SettingsError(
                f"{env}: a seed has ended no episode by {steps:,} steps, the length of the"
                " shortest run; leave that run out"
            )
        ends, other_ends = (
            [float(curve.at(np.array(steps))) for curve in side] for side in (curves, other_curves)
        )
        low, high = scores.median_interval(ends)
        other_low, other_high = scores.median_interval(other_ends)
        other_score = float(np.median(other_ends))
        grid = np.linspace(0, steps, POINTS + 1)[1:]
        median_curve = np.median([curve.at(grid) for curve in curves], axis=0)
        yield Comparison(
            env=env,
            steps=steps,
            agent=agent,
            seeds=len(curves),
            score=float(np.median(ends)),
            low=low,
            high=high,
            other=other,
            other_seeds=len(other_curves),
            other_score=other_score,
            other_low=other_low,
            other_high=other_high,
            improvement=scores.probability_of_improvement(ends, other_ends),
            steps_to_other=steps_to_reach(grid, median_curve, other_score),
        )


def steps_to_reach(steps: np.ndarray, curve: np.ndarray, level: float) -> int | None:
    """The first of the steps from which on a curve stays at or above a level; None: never."""
    below = np.flatnonzero(~(curve >= level))
    first = 0 if not len(below) else below[-1] + 1
    return int(steps[first]) if first < len(steps) else None


def label_variants(runs: Sequence[RunRecord]) -> Iterator[tuple[RunRecord, str]]:
    """Each run with the name of its agent, and the settings in which runs of that agent differ.

    So runs of a sweep over an agent's settings are not pooled.
    """
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    flat = [dict(flat_settings(run.settings.get("agent"))) for run in runs]
    for run, settings in zip(runs, flat, strict=True):
        groups.setdefault((env_label(run), run.agent), []).append(settings)
    differ = {key: set(differing_settings(group)) for key, group in groups.items()}
    for run, settings in zip(runs, flat, strict=True):
        names = (name for name in settings if name in differ[env_label(run), run.agent])
        yield run, ", ".join([run.agent, *(f"{name} {settings[name]}" for name in names)])


def differing_settings(flat: Sequence[dict[str, Any]]) -> list[str]:
    """The names of the settings that are not the same in all of some runs."""
    names = dict.fromkeys(name for settings in flat for name in settings)
    first = flat[0] if flat else {}
    return [name for name in names if any(s.get(name) != first.get(name) for s in flat)]


def env_label(run: RunRecord) -> str:
    """The environment of a run, with the depth of DeepSea."""
    return run.env if run.depth is None else f"{run.env}, depth {run.depth}"


def flat_settings(settings: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of an agent by name; the class of a nested part under the part's own name."""
    for name, value in settings.items() if isinstance(settings, dict) else ():
        if isinstance(value, dict):
            yield from flat_settings(value, name)
        elif name != "kind" or prefix:
            yield prefix if name == "kind" else name, value


def comparisons_json(comparisons: list[Comparison]) -> dict[str, Any]:
    """What `ersac compare --json` prints."""
    return {"comparisons": [comparison._asdict() for comparison in comparisons]}
