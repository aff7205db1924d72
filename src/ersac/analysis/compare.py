"""Agents side by side: what their returns come to after as many steps in the same environment. No jax here."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ersac.analysis import pack, scores
from ersac.analysis.pack import RunRecord
from ersac.config import SettingsError
from ersac.runs.run_dir import EpisodeStats

POINTS = 1000  # at which curves are read


class Curve(NamedTuple):
    """One seed: the mean of its last hundred returns after so many steps."""

    steps: np.ndarray  # [episodes]
    means: np.ndarray  # [episodes]
    end: int  # the steps that it had in all

    def at(self, steps: np.ndarray) -> np.ndarray:
        """Read at those steps; nothing is known before the first episode has ended."""
        ended = np.searchsorted(self.steps, steps, side="right")
        return np.where(ended > 0, self.means[np.maximum(ended, 1) - 1], np.nan)


class Comparison(NamedTuple):
    """One agent beside another in one environment, after as many steps; scores are medians over seeds, with 95 % intervals."""

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
    steps_to_other: int | None  # by which the first is at the other's score, and stays there


def compare_runs(paths: Sequence[Path], note: Callable[[str], None]) -> list[Comparison]:
    """The first agent of each environment beside each other one, from run directories and packs.

    A directory that cannot be read is noted, and the others go on; a damaged pack is an error.
    """
    found: dict[str, dict[str, list[Curve]]] = {}
    for run in read_runs(paths, note):
        name = run.env if run.depth is None else f"{run.env}, depth {run.depth}"
        curves = found.setdefault(name, {}).setdefault(run.agent, [])
        curves += [learning_curve(stats, run) for stats in run.seeds if len(stats.returns)]
    told = [each for env, agents in found.items() for each in _beside(env, agents)]
    if not told:
        raise SettingsError(
            "nothing to compare: name runs of two agents in one environment, each of which has ended an episode"
        )
    return told


def read_runs(paths: Sequence[Path], note: Callable[[str], None]) -> Iterator[RunRecord]:
    """The run in each directory, and every run of each pack."""
    for path in paths:
        if not pack.is_pack(path):
            try:
                yield pack.read_run(path)
            except (SettingsError, OSError) as error:
                note(f"left out: {error}")
        elif (packed := pack.read_pack(path)).goals_only:
            note(f"left out: {path} was packed with --goals-only and has no returns")
        else:
            yield from packed.runs


def learning_curve(stats: EpisodeStats, run: RunRecord) -> Curve:
    """What one seed's episodes came to."""
    steps = stats.steps
    if steps is None:  # DeepSea, whose episodes are as long as it is deep
        assert run.depth is not None
        steps = np.arange(1, len(stats.returns) + 1) * run.depth
    budget = None if run.stop_when_solved else run.steps
    return Curve(
        steps, scores.running_means(stats.returns), int(steps[-1]) if budget is None else budget
    )


def _beside(env: str, agents: dict[str, list[Curve]]) -> Iterator[Comparison]:
    sides = [(name, curves) for name, curves in agents.items() if curves]
    for other, theirs in sides[1:]:
        agent, ours = sides[0]
        steps = min(curve.end for curve in (*ours, *theirs))
        if any(curve.steps[0] > steps for curve in (*ours, *theirs)):
            raise SettingsError(
                f"{env}: a seed has ended no episode by {steps:,} steps, the least that a run had; leave that run out"
            )
        when = np.linspace(0, steps, POINTS + 1)[1:]
        median = lambda curves, when=when: np.median([curve.at(when) for curve in curves], axis=0)
        ends = [[float(curve.at(np.array(steps))) for curve in curves] for curves in (ours, theirs)]
        first, second = (float(np.median(end)) for end in ends)
        interval, other_interval = (scores.median_interval(end) for end in ends)
        better = scores.probability_of_improvement(*ends)
        both = (agent, len(ours), first, *interval, other, len(theirs), second, *other_interval)
        yield Comparison(env, steps, *both, better, steps_to_reach(when, median(ours), second))


def steps_to_reach(steps: np.ndarray, curve: np.ndarray, level: float) -> int | None:
    """The first of some steps from which on a curve is never below a level again."""
    below = np.flatnonzero(~(curve >= level))
    first = 0 if not len(below) else below[-1] + 1
    return int(steps[first]) if first < len(steps) else None


def comparisons_json(told: list[Comparison]) -> dict[str, Any]:
    """All of it as plain data."""
    return {"comparisons": [each._asdict() for each in told]}
