"""The evaluation protocol of Atari: published medians, IQM, intervals, frames to the peak."""

import csv
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from ersac import config
from ersac.analysis import atari_scores, scores

# Scores with no-op starts as four papers print them, transcribed by seungjaeryanlee/rldb (MIT):
# Wang et al. 2016 (Prior. Duel. Clip), Bellemare et al. 2017 (C51), Dabney et al. 2018 (QR-DQN-1),
# Espeholt et al. 2018 (IMPALA, deep, experts).
PAPERS = Path(__file__).with_name("atari_papers.csv")
# Median and mean human-normalised score in percent, as the papers print them.
PUBLISHED = {
    "prior-duel": (172.1, 591.9),
    "c51": (178, 701),
    "qr-dqn-1": (211, 915),
    "impala-deep": (191.8, 957.6),
}


def paper_scores(agent: str) -> dict[str, float]:
    rows = csv.DictReader(PAPERS.read_text().splitlines())
    return {row["game"]: float(row[agent]) for row in rows}


@pytest.mark.parametrize("agent", PUBLISHED)
def test_published_medians_follow_from_published_scores(agent):
    found = paper_scores(agent)
    assert found.keys() == config.reference_scores().keys()
    assert len(found) == 57
    normalised = [
        100 * atari_scores.normalise_scores(game, [score]) for game, score in found.items()
    ]
    median, mean = PUBLISHED[agent]
    assert atari_scores.median_over_games(normalised) == pytest.approx(median, abs=0.5)
    # The papers' means have a random score of 0 in Video Pinball, of which the median is free:
    # with dqn_zoo's 16,256.9 this game alone would be up to half of the mean.
    human = config.reference_scores()["video_pinball"].human
    others = [part for game, part in zip(found, normalised, strict=True) if game != "video_pinball"]
    pinball = np.array([100 * found["video_pinball"] / human])
    assert np.mean([*others, pinball]) == pytest.approx(mean, rel=1e-3)


def test_a_random_player_has_0_and_a_human_1():
    for game, reference in config.reference_scores().items():
        ends = atari_scores.normalise_scores(game, [reference.random, reference.human])
        np.testing.assert_allclose(ends, [0, 1], atol=1e-12)
    assert config.reference_scores()["pong"] == (14.6, -20.7)


@pytest.mark.parametrize("shapes", [[(5,)] * 57, [(3, 4), (1, 4), (2, 4)], [(1,), (2,)]])
def test_the_interquartile_mean_is_that_of_scipy(shapes):
    rng = np.random.default_rng(0)
    games = [rng.standard_cauchy(shape) for shape in shapes]
    expected = scipy.stats.trim_mean(np.concatenate(games), 0.25, axis=0)
    np.testing.assert_allclose(atari_scores.interquartile_mean(games), expected)


def test_the_median_is_over_games_of_means_over_seeds():
    games = [np.array([[0.0, 10.0], [2.0, 10.0]]), np.array([[5.0, 1.0]]), np.array([[9.0, 0.0]])]
    np.testing.assert_array_equal(atari_scores.median_over_games(games), [5, 1])


def test_intervals_redraw_seeds_within_each_game():
    rng = np.random.default_rng(1)
    apart = [np.full(4, 100.0 * number) for number in range(6)]  # games differ, seeds do not
    part = atari_scores.aggregate(apart, atari_scores.interquartile_mean)
    assert part.low == part.value == part.high == 250
    # One game: the interval of a mean has the width that the central limit theorem gives it.
    seeds = rng.normal(size=400)
    part = atari_scores.aggregate([seeds], atari_scores.median_over_games)
    assert part.value == seeds.mean()
    half = scores.NORMAL_975 * seeds.std() / 20
    assert (part.value - part.low, part.high - part.value) == pytest.approx((half, half), rel=0.15)
    # Points of time are redrawn together and have the intervals that each has alone.
    columns = [rng.normal(size=(5, 3)) for _ in range(7)]
    part = atari_scores.aggregate(columns, atari_scores.median_over_games)
    alone = atari_scores.aggregate([game[:, 1] for game in columns], atari_scores.median_over_games)
    assert np.shape(part.low) == (3,)
    assert (part.value[1], part.low[1], part.high[1]) == tuple(map(float, alone))


def test_improvement_is_the_mean_of_mann_whitneys_statistic_over_games():
    rng = np.random.default_rng(2)
    ours = [rng.integers(0, 4, 5).astype(float) for _ in range(6)]
    theirs = [rng.integers(0, 4, 3).astype(float) for _ in range(6)]
    shares = [
        scipy.stats.mannwhitneyu(a, b).statistic / (len(a) * len(b))
        for a, b in zip(ours, theirs, strict=True)
    ]
    part = atari_scores.improvement_over_games(ours, theirs)
    assert part.value == pytest.approx(np.mean(shares))
    assert 0 <= part.low < part.value < part.high <= 1
    assert atari_scores.improvement_over_games(ours, [a - 9 for a in ours])[1:] == (1, 1)


def test_frames_to_the_peak():
    frames = np.array([1.0, 2.0, 3.0, 4.0]) * 1e6
    baseline = np.array([0.1, 0.2, 0.6, 0.5])
    peak = atari_scores.frames_to_peak(frames, np.array([0.2, 0.6, 0.5, 0.9]), baseline)
    assert peak[:3] == (0.6, 3e6, 2e6)
    assert peak.speedup == 1.5
    never = atari_scores.frames_to_peak(frames, np.zeros(4), baseline)
    assert (never.frames, never.speedup) == (None, None)


def test_the_published_curves_are_those_of_dopamine():
    """Against the numbers that were read from the same records by other means."""
    found = atari_scores.published_curves()
    assert list(found) == ["DQN", "Rainbow", "IQN", "QR-DQN"]
    missing = {"defender", "surround"}
    assert all(
        games.keys() == config.reference_scores().keys() - missing for games in found.values()
    )
    freeway = found["Rainbow"]["freeway"]
    at = [list(freeway.frames).index(1e6 * million - 5e5) for million in (1, 2, 4, 10, 20)]
    np.testing.assert_allclose(freeway.mean[at], [0.3, 8.2, 27.5, 32.2, 32.6], atol=0.05)
    seaquest = found["QR-DQN"]["seaquest"].mean[at]
    np.testing.assert_allclose(seaquest, [222, 341, 624, 2707, 3462], atol=0.5)
    iqn = found["IQN"]["freeway"]  # at 4 million frames: 0, 17.5, 29.1, 29.1 and 31.3 by seed
    assert (iqn.low[at[2]], round(float(iqn.high[at[2]]), 1)) == (0, 31.3)
    assert all(
        np.all(curve.low <= curve.mean) and np.all(curve.mean <= curve.high)
        for games in found.values()
        for curve in games.values()
    )
