"""Metrics of a seed's episodes: when it first reached the goal, when it counts as solved, returns.

`goals` is [episodes] bool: whether each episode reached the goal. Episodes are counted from one.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

RELIABLE_WINDOW = 100  # episodes
RELIABLE_GOALS = 80
BSUITE_BAD_SHARE = {False: 0.9, True: 0.8}  # deterministic, stochastic
BSUITE_MIN_EPISODES = {False: 1, True: 100}
FALLEN_GOALS = 50  # a solved run with fewer of the last 100 has fallen back
RESAMPLES = 2000
NORMAL_975 = 1.959963984540054  # the standard normal quantile of a 95 % interval


def first_goal(goals: np.ndarray) -> int | None:
    """The first episode that reached the goal; None: never."""
    return _first_true(np.asarray(goals, bool))


def solved_bsuite(goals: np.ndarray, stochastic: bool = False) -> int | None:
    """The first episode by which less than 90 % failed (stochastic: 80 %, of 100 or more)."""
    failed = np.cumsum(~np.asarray(goals, bool))
    episodes = np.arange(1, len(failed) + 1)
    return _first_true(
        (failed < BSUITE_BAD_SHARE[stochastic] * episodes)
        & (episodes >= BSUITE_MIN_EPISODES[stochastic])
    )


def solved_reliable(goals: np.ndarray) -> int | None:
    """The first episode at which at least 80 of the last 100 reached the goal; None: never."""
    total = np.concatenate([[0], np.cumsum(np.asarray(goals, bool))])
    if len(total) <= RELIABLE_WINDOW:
        return None
    first = _first_true(total[RELIABLE_WINDOW:] - total[:-RELIABLE_WINDOW] >= RELIABLE_GOALS)
    return None if first is None else first + RELIABLE_WINDOW - 1


def fell_back(goals: np.ndarray) -> bool:
    """Whether a run was solved and later had fewer than 50 goals in 100 episodes."""
    solved = solved_reliable(goals)
    if solved is None:
        return False
    total = np.concatenate([[0], np.cumsum(np.asarray(goals, bool))])
    later = np.arange(solved, len(total))
    return bool((total[later] - total[later - RELIABLE_WINDOW] < FALLEN_GOALS).any())


class PowerLaw(NamedTuple):
    """`scale * depth^exponent`, with the exponent's 95 % interval."""

    scale: float
    exponent: float
    low: float
    high: float


def power_law(samples: Mapping[int, Sequence[float]]) -> PowerLaw:
    """Fit a power law to medians over seeds, by least squares of logarithms.

    samples: one value per seed, by depth. The interval is a bootstrap over seeds.
    """
    depths = np.log(list(samples))
    rng = np.random.default_rng(0)
    draws = [
        np.median(rng.choice(list(values), (RESAMPLES, len(values))), axis=1)
        for values in samples.values()
    ]
    exponents = np.polyfit(depths, np.log(draws), 1)[0]  # [RESAMPLES]
    medians = [np.median(list(values)) for values in samples.values()]
    exponent, intercept = np.polyfit(depths, np.log(medians), 1)
    low, high = np.quantile(exponents, (0.025, 0.975))
    return PowerLaw(float(np.exp(intercept)), float(exponent), float(low), float(high))


def wilson_interval(hits: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share; equal to that of scipy.stats, which imports slowly."""
    share, square = hits / trials, NORMAL_975**2
    twice = 2 * (trials + square)
    centre = (2 * trials * share + square) / twice
    half = NORMAL_975 / twice * math.sqrt(4 * trials * share * (1 - share) + square)
    return 0.0 if hits == 0 else centre - half, 1.0 if hits == trials else centre + half


def return_metrics(stats: Any) -> dict[str, float | int | None]:
    """Last and largest mean return of a hundred episodes, and the steps until solved."""
    if not len(stats.returns):
        return {"mean_return": None, "best_mean_return": None, "solved_steps": None}
    means = running_means(stats.returns)[min(RELIABLE_WINDOW, len(stats.returns)) - 1 :]
    solved = solved_reliable(stats.goals)
    steps = None if solved is None or stats.steps is None else int(stats.steps[solved - 1])
    return {
        "mean_return": float(means[-1]),
        "best_mean_return": float(means.max()),
        "solved_steps": steps,
    }


def running_means(values: np.ndarray, episodes: np.ndarray | None = None) -> np.ndarray:
    """The mean of the last 100 values (fewer at the start) after each of some episodes.

    episodes: [M] counted from one; None: every episode.
    """
    total = np.concatenate([[0.0], np.cumsum(values, dtype=float)])
    end = np.arange(1, len(total)) if episodes is None else episodes
    start = np.maximum(0, end - RELIABLE_WINDOW)
    return (total[end] - total[start]) / (end - start)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a median over seeds, by bootstrap."""
    draws = np.random.default_rng(0).choice(list(values), (RESAMPLES, len(values)))
    low, high = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
    return float(low), float(high)


def probability_of_improvement(ours: Any, theirs: Any) -> Any:
    """The share of pairs of seeds in which ours is higher, ties half (Agarwal et al. 2021).

    ours, theirs: a value per seed; further axes, which both have, are those of the result.
    """
    above = np.asarray(ours, float)[:, None] - np.asarray(theirs, float)[None]
    return np.mean((above > 0) + 0.5 * (above == 0), axis=(0, 1))


def goal_metrics(goals: np.ndarray, stochastic: bool = False) -> dict[str, int | None]:
    """The three episode numbers above by name; None: never."""
    return {
        "first_goal": first_goal(goals),
        "solved_bsuite": solved_bsuite(goals, stochastic),
        "solved_reliable": solved_reliable(goals),
    }


def _first_true(condition: np.ndarray) -> int | None:
    return int(np.argmax(condition)) + 1 if condition.any() else None
