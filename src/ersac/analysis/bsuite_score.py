"""Scores of bsuite's exploration tag, from what each episode came to. Neither bsuite nor pandas is needed.

bsuite writes down only some episodes, evenly spaced in the logarithm, and scores what was written down: so does this.
"""

from collections.abc import Mapping

import numpy as np

SIZES = tuple(range(10, 51, 2))  # of deep_sea and of deep_sea_stochastic
HEIGHTS = tuple(n / 20 for n in range(20))  # of cartpole_swingup
DEEP_SEA_EPISODES, SWINGUP_EPISODES = 10_000, 1_000  # that are scored
FORGIVENESS = 100  # episodes beyond the 2^size of dithering
BAD_SHARE = {False: 0.9, True: 0.8}  # below which a sea is solved: deterministic, stochastic
LEAST_EPISODES = {False: 1, True: 100}
PERFECT_RETURN, GOOD_RETURN = 700.0, 100.0  # of an episode of the swing-up
RATIOS = (1.0, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)


def logged_episodes(episodes: int) -> np.ndarray:
    """The episodes, counted from one, of so many that bsuite writes down."""
    powers = 10.0 ** np.arange(len(str(max(1, episodes))))
    written = np.outer(powers, RATIOS).ravel()
    return written[(written == np.floor(written)) & (written <= episodes)].astype(int)


def deep_sea_solved(goals: np.ndarray, stochastic: bool = False) -> int | None:
    """The first episode written down by which the share of bad ones was low enough; None where never.

    goals: [episodes] bool, whether an episode was not bad: it never turned left on the one path to the treasure.
    """
    episode = logged_episodes(min(len(goals), DEEP_SEA_EPISODES))
    episode = episode[episode >= LEAST_EPISODES[stochastic]]
    bad = np.cumsum(~np.asarray(goals, bool))[episode - 1]
    found = episode[bad / episode < BAD_SHARE[stochastic]]
    return int(found[0]) if len(found) else None


def deep_sea_score(goals: Mapping[int, np.ndarray], stochastic: bool = False) -> float:
    """The share of sizes that were solved sooner than by dithering; bsuite's score has all of `SIZES`."""
    when = {size: deep_sea_solved(found, stochastic) for size, found in goals.items()}
    return float(
        np.mean(
            [
                episode is not None and episode < 2**size + FORGIVENESS
                for size, episode in when.items()
            ]
        )
    )


def deep_sea_stochastic_score(goals: Mapping[int, np.ndarray]) -> float:
    """The same where right moves slip, by the harsher rule."""
    return deep_sea_score(goals, stochastic=True)


def cartpole_swingup_score(returns: Mapping[float, np.ndarray]) -> float:
    """The mean over height thresholds of half how good an average episode was, and half whether any was a swing-up.

    returns: [episodes] by the height threshold; bsuite's score has all of `HEIGHTS`.
    """
    return float(np.mean([_swingup(np.asarray(each, float)) for each in returns.values()]))


def _swingup(returns: np.ndarray) -> float:
    scored = returns[: logged_episodes(min(len(returns), SWINGUP_EPISODES))[-1]]
    return 0.5 * (
        float(np.clip(scored.mean() / PERFECT_RETURN, 0, 1)) + float(scored.max() > GOOD_RETURN)
    )
