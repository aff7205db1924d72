"""Our scores are bsuite's: its own analysis, on what its own logging would have written down, is the oracle."""

import warnings

import numpy as np
import pandas as pd
import pytest

from ersac.analysis import bsuite_score

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from bsuite.experiments.cartpole_swingup import analysis as swingup
    from bsuite.experiments.cartpole_swingup import sweep as swingup_sweep
    from bsuite.experiments.deep_sea import analysis as sea
    from bsuite.experiments.deep_sea import sweep as sea_sweep
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


def written(episodes: int) -> np.ndarray:
    return np.array([n for n in range(1, episodes + 1) if wrappers._logarithmic_logging(n)])


@pytest.mark.parametrize("episodes", [1, 9, 10, 99, 120, 1_000, 12_345])
def test_what_is_written_down(episodes):
    np.testing.assert_array_equal(bsuite_score.logged_episodes(episodes), written(episodes))


def seas(rng, episodes: int, slow: bool) -> dict[int, np.ndarray]:
    """A sea a size: most fail for a while and then succeed at some share, some for ever."""
    found = {}
    for size in bsuite_score.SIZES:
        begins, share = (
            int(episodes * rng.random() * (1.4 if slow else 0.6)),
            rng.choice([0.05, 0.15, 0.5, 1.0]),
        )
        found[size] = (np.arange(episodes) >= begins) & (rng.random(episodes) < share)
    return found


def sea_frame(goals: dict[int, np.ndarray]) -> pd.DataFrame:
    frames = []
    for size, found in goals.items():
        episode = written(len(found))
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
def test_the_score_of_the_seas_is_bsuites(case):
    rng = np.random.default_rng(case)
    goals = seas(rng, [300, 2_000, 12_000][case % 3], slow=case >= 3)
    ours = bsuite_score.deep_sea_score(goals), bsuite_score.deep_sea_stochastic_score(goals)
    frame = sea_frame(goals)
    assert ours == pytest.approx((sea.score(frame), stochastic.score(frame)))
    assert 0 < ours[1] < ours[0] < 1


def test_who_needs_as_long_as_dithering_has_not_solved_it():
    """Size 10: solved at 1,200 is later than 2^10 + 100, at 1,000 it is not."""
    for begins, score in ((880, 1.0), (1_090, 0.0)):
        goals = {10: np.arange(10_000) >= begins}
        assert bsuite_score.deep_sea_score(goals) == score == sea.score(sea_frame(goals))
    assert bsuite_score.deep_sea_solved(np.arange(10_000) >= 1_090) == 1_400
    assert bsuite_score.deep_sea_solved(np.zeros(10_000, bool)) is None


def swingup_frame(returns: dict[float, np.ndarray]) -> pd.DataFrame:
    frames = []
    for number, (height, found) in enumerate(returns.items()):
        episode = written(len(found))
        best = np.maximum.accumulate(np.maximum(found, 0))
        told = {
            "episode": episode,
            "total_return": np.cumsum(found)[episode - 1],
            "best_episode": best[episode - 1],
        }
        frames.append(
            pd.DataFrame(
                {"bsuite_id": f"cartpole_swingup/{number}", "height_threshold": height, **told}
            )
        )
    return pd.concat(frames, ignore_index=True)


@pytest.mark.parametrize("episodes", [150, 950, 1_300])
def test_the_score_of_the_swing_up_is_bsuites(episodes):
    rng = np.random.default_rng(episodes)
    returns = {
        height: rng.normal(rng.choice([-50, 60, 400, 800]), 15, episodes)
        for height in bsuite_score.HEIGHTS
    }
    ours = bsuite_score.cartpole_swingup_score(returns)
    assert ours == pytest.approx(swingup.score(swingup_frame(returns)), abs=1e-9)
    assert 0.1 < ours < 0.9


def test_the_sizes_are_those_of_bsuites_sweeps():
    for sweep in (sea_sweep, stochastic_sweep):
        assert tuple(each["size"] for each in sweep.SETTINGS) == bsuite_score.SIZES
        assert sweep.NUM_EPISODES == bsuite_score.DEEP_SEA_EPISODES
    assert (
        tuple(each["height_threshold"] for each in swingup_sweep.SETTINGS) == bsuite_score.HEIGHTS
    )
    assert swingup_sweep.NUM_EPISODES == bsuite_score.SWINGUP_EPISODES


def test_luck_in_the_first_hundred_does_not_count_where_moves_slip():
    goals = {20: np.arange(1_000) < 10}  # by the hundredth episode nine of ten are bad
    assert bsuite_score.deep_sea_stochastic_score(goals) == 0 == stochastic.score(sea_frame(goals))
    assert bsuite_score.deep_sea_score(goals) == 1 == sea.score(sea_frame(goals))


def test_as_many_as_the_limit_is_not_below_it():
    goals = {
        20: np.arange(100) % 10 == 9
    }  # at each tenth episode nine of ten are bad, and more in between
    assert bsuite_score.deep_sea_score(goals) == 0 == sea.score(sea_frame(goals))
