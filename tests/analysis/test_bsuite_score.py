"""Scores equal those of bsuite's own analysis of what its own logging would have written."""

import warnings

import numpy as np
import pandas as pd
import pytest

from ersac.analysis import bsuite_score

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from bsuite.experiments.cartpole_swingup import analysis as swingup
    from bsuite.experiments.cartpole_swingup import sweep as swingup_sweep
    from bsuite.experiments.deep_sea import analysis as deep_sea
    from bsuite.experiments.deep_sea import sweep as deep_sea_sweep
    from bsuite.experiments.deep_sea_stochastic import analysis as stochastic
    from bsuite.experiments.deep_sea_stochastic import sweep as stochastic_sweep
    from bsuite.utils import wrappers

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def old_pandas(monkeypatch):
    """bsuite 0.3.6 is from before pandas 2, in which a Series cannot append any more."""
    monkeypatch.setattr(
        pd.Series, "append", lambda self, other: pd.concat([self, other]), raising=False
    )


def bsuite_logged(episodes: int) -> np.ndarray:
    return np.array([n for n in range(1, episodes + 1) if wrappers._logarithmic_logging(n)])


@pytest.mark.parametrize("episodes", [1, 9, 10, 99, 120, 1_000, 12_345])
def test_logged_episodes_are_bsuites(episodes):
    np.testing.assert_array_equal(bsuite_score.logged_episodes(episodes), bsuite_logged(episodes))


def draw_goals(rng, episodes: int, slow: bool) -> dict[int, np.ndarray]:
    """Goals by size: failures up to a random episode, then successes at a random rate."""
    found = {}
    for size in bsuite_score.SIZES:
        first_goal, share = (
            int(episodes * rng.random() * (1.4 if slow else 0.6)),
            rng.choice([0.05, 0.15, 0.5, 1.0]),
        )
        found[size] = (np.arange(episodes) >= first_goal) & (rng.random(episodes) < share)
    return found


def deep_sea_frame(goals: dict[int, np.ndarray]) -> pd.DataFrame:
    frames = []
    for size, found in goals.items():
        episode = bsuite_logged(len(found))
        frames.append(
            pd.DataFrame(
                {
                    "size": size,
                    "episode": episode,
                    "total_bad_episodes": np.cumsum(~found)[episode - 1],
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


@pytest.mark.parametrize("case", range(6))
def test_the_deep_sea_score_is_bsuites(case):
    rng = np.random.default_rng(case)
    goals = draw_goals(rng, [300, 2_000, 12_000][case % 3], slow=case >= 3)
    ours = bsuite_score.deep_sea_score(goals), bsuite_score.deep_sea_stochastic_score(goals)
    frame = deep_sea_frame(goals)
    assert ours == pytest.approx((deep_sea.score(frame), stochastic.score(frame)))
    assert 0 < ours[1] < ours[0] < 1


def test_as_slow_as_dithering_is_not_solved():
    """Size 10: solved at 1,200 is later than 2^10 + 100, at 1,000 it is not."""
    for first_goal, score in ((880, 1.0), (1_090, 0.0)):
        goals = {10: np.arange(10_000) >= first_goal}
        assert bsuite_score.deep_sea_score(goals) == score == deep_sea.score(deep_sea_frame(goals))
    assert bsuite_score.deep_sea_solved(np.arange(10_000) >= 1_090) == 1_400
    assert bsuite_score.deep_sea_solved(np.zeros(10_000, bool)) is None


def swingup_frame(returns: dict[float, np.ndarray]) -> pd.DataFrame:
    frames = []
    for number, (height, found) in enumerate(returns.items()):
        episode = bsuite_logged(len(found))
        best_return = np.maximum.accumulate(np.maximum(found, 0))
        columns = {
            "episode": episode,
            "total_return": np.cumsum(found)[episode - 1],
            "best_episode": best_return[episode - 1],
        }
        frames.append(
            pd.DataFrame(
                {"bsuite_id": f"cartpole_swingup/{number}", "height_threshold": height, **columns}
            )
        )
    return pd.concat(frames, ignore_index=True)


@pytest.mark.parametrize("episodes", [150, 950, 1_300])
def test_the_swingup_score_is_bsuites(episodes):
    rng = np.random.default_rng(episodes)
    returns = {
        height: rng.normal(rng.choice([-50, 60, 400, 800]), 15, episodes)
        for height in bsuite_score.HEIGHTS
    }
    ours = bsuite_score.cartpole_swingup_score(returns)
    assert ours == pytest.approx(swingup.score(swingup_frame(returns)), abs=1e-9)
    assert 0.1 < ours < 0.9


def test_the_sizes_are_those_of_bsuites_sweeps():
    for sweep in (deep_sea_sweep, stochastic_sweep):
        assert tuple(setting["size"] for setting in sweep.SETTINGS) == bsuite_score.SIZES
        assert sweep.NUM_EPISODES == bsuite_score.DEEP_SEA_EPISODES
    assert (
        tuple(setting["height_threshold"] for setting in swingup_sweep.SETTINGS)
        == bsuite_score.HEIGHTS
    )
    assert swingup_sweep.NUM_EPISODES == bsuite_score.SWINGUP_EPISODES


def test_the_stochastic_rule_ignores_the_first_hundred_episodes():
    goals = {20: np.arange(1_000) < 10}  # by the hundredth episode nine of ten are bad
    assert (
        bsuite_score.deep_sea_stochastic_score(goals)
        == 0
        == stochastic.score(deep_sea_frame(goals))
    )
    assert bsuite_score.deep_sea_score(goals) == 1 == deep_sea.score(deep_sea_frame(goals))


def test_a_share_at_the_limit_is_not_solved():
    goals = {
        20: np.arange(100) % 10 == 9
    }  # at setting tenth episode nine of ten are bad, and more in between
    assert bsuite_score.deep_sea_score(goals) == 0 == deep_sea.score(deep_sea_frame(goals))
