"""Scores of bsuite's exploration tag, computed from episodes. Needs neither bsuite nor pandas.

bsuite logs only some episodes, spaced evenly on a logarithmic scale, and scores what it logged; so
does this module.
"""

from collections.abc import Mapping

import numpy as np

SIZES = tuple(range(10, 51, 2))  # of deep_sea and deep_sea_stochastic
HEIGHTS = tuple(n / 20 for n in range(20))  # of cartpole_swingup
DEEP_SEA_EPISODES, SWINGUP_EPISODES = 10_000, 1_000  # that are scored
EXTRA_EPISODES = 100  # allowed beyond the 2^size that dithering needs
BAD_SHARE = {False: 0.9, True: 0.8}  # solved below it: deterministic, stochastic
MIN_EPISODES = {False: 1, True: 100}
PERFECT_RETURN, GOOD_RETURN = 700.0, 100.0  # of a swing-up episode
LOG_POINTS = (1.0, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)  # in each decade


def logged_episodes(episodes: int) -> np.ndarray:
    """The numbers, from one, of the episodes that bsuite logs out of so many."""
    powers = 10.0 ** np.arange(len(str(max(1, episodes))))
    numbers = np.outer(powers, LOG_POINTS).ravel()
    return numbers[(numbers == np.floor(numbers)) & (numbers <= episodes)].astype(int)


def deep_sea_solved(goals: np.ndarray, stochastic: bool = False) -> int | None:
    """The first logged episode by which the share of bad episodes is low enough; None: never.

    goals: [episodes] bool; an episode is bad if it leaves the one path to the treasure.
    """
    episode = logged_episodes(min(len(goals), DEEP_SEA_EPISODES))
    episode = episode[episode >= MIN_EPISODES[stochastic]]
    bad = np.cumsum(~np.asarray(goals, bool))[episode - 1]
    solved = episode[bad / episode < BAD_SHARE[stochastic]]
    return int(solved[0]) if len(solved) else None


def deep_sea_score(goals: Mapping[int, np.ndarray], stochastic: bool = False) -> float:
    """The share of sizes solved sooner than by dithering; goals by size, for bsuite all `SIZES`."""
    solved = {size: deep_sea_solved(of_size, stochastic) for size, of_size in goals.items()}
    return float(
        np.mean(
            [
                episode is not None and episode < 2**size + EXTRA_EPISODES
                for size, episode in solved.items()
            ]
        )
    )


def deep_sea_stochastic_score(goals: Mapping[int, np.ndarray]) -> float:
    """The score of stochastic DeepSea, whose rule is stricter."""
    return deep_sea_score(goals, stochastic=True)


def cartpole_swingup_score(returns: Mapping[float, np.ndarray]) -> float:
    """The mean over height thresholds of the swing-up score.

    returns: [episodes] by height threshold; for bsuite all of `HEIGHTS`.
    """
    return float(np.mean([_swingup(np.asarray(column, float)) for column in returns.values()]))


def _swingup(returns: np.ndarray) -> float:
    """Half the mean return over a perfect one, plus half if any episode was a swing-up."""
    scored = returns[: logged_episodes(min(len(returns), SWINGUP_EPISODES))[-1]]
    return 0.5 * (
        float(np.clip(scored.mean() / PERFECT_RETURN, 0, 1)) + float(scored.max() > GOOD_RETURN)
    )
