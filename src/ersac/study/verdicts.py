"""Facts to verdicts. A fact is one bit an episode, whether it reached the goal; when a run counts as solved is a rule."""

import numpy as np

RELIABLE_WINDOW = 100  # episodes
RELIABLE_GOALS = 80
BSUITE_BAD_SHARE = {False: 0.9, True: 0.8}  # deterministic, stochastic
BSUITE_LEAST_EPISODES = {False: 1, True: 100}


def first_goal(goals: np.ndarray) -> int | None:
    """The first episode, counted from one, that reached the goal."""
    return _first(np.asarray(goals, bool))


def solved_bsuite(goals: np.ndarray, stochastic: bool = False) -> int | None:
    """bsuite's rule: the first episode by which the share of failed ones is below 0.9 (stochastic: 0.8, and 100 episodes)."""
    failed = np.cumsum(~np.asarray(goals, bool))
    episodes = np.arange(1, len(failed) + 1)
    return _first((failed < BSUITE_BAD_SHARE[stochastic] * episodes) & (episodes >= BSUITE_LEAST_EPISODES[stochastic]))


def solved_reliable(goals: np.ndarray) -> int | None:
    """The first episode at which at least 80 of the last 100 reached the goal."""
    total = np.concatenate([[0], np.cumsum(np.asarray(goals, bool))])
    if len(total) <= RELIABLE_WINDOW:
        return None
    found = _first(total[RELIABLE_WINDOW:] - total[:-RELIABLE_WINDOW] >= RELIABLE_GOALS)
    return None if found is None else found + RELIABLE_WINDOW - 1


def _first(condition: np.ndarray) -> int | None:
    return int(np.argmax(condition)) + 1 if condition.any() else None
