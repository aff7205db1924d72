"""Scores in Atari games: human-normalised, aggregated over games, with intervals. No jax here.

The evaluation protocol of docs/atari.md. Scores of an agent are a list with an array per game,
[seeds, ...]; further axes, such as points of time, are those of the results.

analysis/atari_published.csv has the training returns that Dopamine publishes (google/dopamine,
Apache-2.0, baselines/atari/data at commit 5873f54): the mean, the lowest and the highest of five
seeds over the 1st, 2nd, 4th, ... million frames, with sticky actions; DQN and QR-DQN are those in
JAX. Dopamine has no Defender and no Surround.
"""

import csv
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ersac.analysis.scores import probability_of_improvement
from ersac.config import reference_scores

RESAMPLES = 1000
PUBLISHED = Path(__file__).with_name("atari_published.csv")

GameScores = Sequence[np.ndarray]  # an array [seeds, ...] per game
Statistic = Callable[[GameScores], np.ndarray]


class Aggregate(NamedTuple):
    """A statistic over games and its 95 % interval; each [...]."""

    value: Any
    low: Any
    high: Any


class PublishedCurve(NamedTuple):
    """The training returns of a published agent in one game, each [points]."""

    frames: np.ndarray  # the middle of the million frames over which returns were averaged
    mean: np.ndarray
    low: np.ndarray  # of the seeds
    high: np.ndarray


@functools.cache
def published_curves() -> dict[str, dict[str, PublishedCurve]]:
    """Dopamine's training returns by agent and game."""
    found: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    frames = np.zeros(0)
    for row in csv.DictReader(PUBLISHED.read_text().splitlines()):
        game, agent, statistic = (row.pop(name) for name in ("game", "agent", "statistic"))
        values = np.array(list(map(float, row.values())))
        found.setdefault(agent, {}).setdefault(game, {})[statistic] = values
        frames = 1e6 * (np.array(list(map(float, row))) - 0.5)
    return {
        agent: {game: PublishedCurve(frames, **columns) for game, columns in games.items()}
        for agent, games in found.items()
    }


def normalise_scores(game: str, scores: Any) -> np.ndarray:
    """Scores on the scale on which a random player has 0 and a human 1."""
    reference = reference_scores()[game]
    return (np.asarray(scores, float) - reference.random) / (reference.human - reference.random)


def median_over_games(scores: GameScores) -> np.ndarray:
    """The median over games of the mean over seeds (Hessel et al. 2018)."""
    return np.median([game.mean(axis=0) for game in scores], axis=0)


def interquartile_mean(scores: GameScores) -> np.ndarray:
    """The mean of the middle half of all games and seeds together (Agarwal et al. 2021)."""
    ordered = np.sort(np.concatenate(list(scores)), axis=0)
    cut = len(ordered) // 4
    return ordered[cut : len(ordered) - cut].mean(axis=0)


def aggregate(scores: GameScores, statistic: Statistic) -> Aggregate:
    """A statistic with its interval by stratified bootstrap: the seeds of each game are redrawn."""
    draws = statistic(_redraw_seeds(scores, np.random.default_rng(0)))
    return Aggregate(statistic(scores), *np.quantile(draws, (0.025, 0.975), axis=0))


def improvement_over_games(ours: GameScores, theirs: GameScores) -> Aggregate:
    """The probability that a seed of ours is above one of theirs in the same game, mean over games.

    The interval is a stratified bootstrap over the seeds of both.
    """
    share = lambda pairs: np.mean([probability_of_improvement(*pair) for pair in pairs], axis=0)
    rng = np.random.default_rng(0)
    draws = share(zip(_redraw_seeds(ours, rng), _redraw_seeds(theirs, rng), strict=True))
    value = share(zip(ours, theirs, strict=True))
    return Aggregate(value, *np.quantile(draws, (0.025, 0.975), axis=0))


def _redraw_seeds(scores: GameScores, rng: np.random.Generator) -> list[np.ndarray]:
    """Each game's seeds drawn with replacement: arrays [seeds, RESAMPLES, ...]."""
    return [game[rng.integers(len(game), size=(len(game), RESAMPLES))] for game in scores]


class PeakFrames(NamedTuple):
    """The frames in which a baseline reaches its peak, and in which another curve does."""

    peak: float
    baseline_frames: float
    frames: float | None  # None: never

    @property
    def speedup(self) -> float | None:
        """How many times fewer frames than the baseline needs."""
        return None if self.frames is None else self.baseline_frames / self.frames


def frames_to_peak(frames: np.ndarray, ours: np.ndarray, baseline: np.ndarray) -> PeakFrames:
    """When a curve first reaches the highest value of the baseline's; all are [points]."""
    best = int(np.argmax(baseline))
    reached = np.flatnonzero(ours >= baseline[best])
    first = float(frames[reached[0]]) if len(reached) else None
    return PeakFrames(float(baseline[best]), float(frames[best]), first)
