"""When a run counts as solved, by hand and against the rule read aloud."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ersac.analysis import scores


def test_solve_rules_by_hand():
    goals = np.zeros(1000, bool)
    assert (
        scores.first_goal(goals),
        scores.solved_bsuite(goals),
        scores.solved_reliable(goals),
    ) == (None, None, None)
    goals[500:] = True
    assert scores.first_goal(goals) == 501
    assert scores.solved_reliable(goals) == 580  # 20 failures and 80 goals
    assert scores.solved_bsuite(goals) == 556  # 500 / 556 < 0.9 <= 500 / 555
    assert (
        scores.solved_bsuite(np.arange(1, 20) >= 10) == 11
    )  # nine of ten failed is not fewer than nine of ten
    assert scores.solved_reliable(np.ones(99, bool)) is None
    assert scores.solved_reliable(np.ones(100, bool)) == 100
    assert scores.solved_bsuite(np.ones(100, bool), stochastic=True) == 100


@given(st.lists(st.booleans(), max_size=400), st.booleans())
def test_solve_rules_against_their_definition(bits, stochastic):
    goals = np.array(bits, bool)
    share, least = (0.8, 100) if stochastic else (0.9, 1)
    bsuite = (n for n in range(least, len(bits) + 1) if bits[:n].count(False) < share * n)
    reliable = (n for n in range(100, len(bits) + 1) if sum(bits[n - 100 : n]) >= 80)
    assert scores.first_goal(goals) == next(
        (n for n in range(1, len(bits) + 1) if bits[n - 1]), None
    )
    assert scores.solved_bsuite(goals, stochastic) == next(bsuite, None)
    assert scores.solved_reliable(goals) == next(reliable, None)


def test_fell_back_is_below_half_after_solved():
    goals = np.ones(1000, bool)
    assert not scores.fell_back(goals)
    goals[400:450] = False
    assert not scores.fell_back(goals)  # just half
    goals[450] = False
    assert scores.fell_back(goals)
    assert not scores.fell_back(np.zeros(1000, bool))  # never stood
    late = np.concatenate([np.zeros(500, bool), np.ones(500, bool)])
    assert not scores.fell_back(late)


def test_a_power_law_is_found_again_and_its_interval_covers_it():
    rng, covered = np.random.default_rng(0), 0
    for _ in range(100):
        samples = {
            depth: 3 * depth**1.7 * np.exp(0.2 * rng.standard_normal(9))
            for depth in (10, 20, 30, 40, 60, 80, 100)
        }
        fit = scores.power_law(samples)
        covered += fit.low <= 1.7 <= fit.high
        assert fit.low < fit.exponent < fit.high
    assert 88 <= covered <= 100
    exact = scores.power_law({depth: [3 * depth**1.7] for depth in (10, 20, 40)})
    np.testing.assert_allclose(exact, (3, 1.7, 1.7, 1.7))


def test_an_interval_of_a_share_by_hand():
    low, high = scores.wilson_interval(9, 10)
    z, p, n = 1.959964, 0.9, 10
    centre, half = (
        (p + z**2 / (2 * n)) / (1 + z**2 / n),
        z / (1 + z**2 / n) * (p * (1 - p) / n + z**2 / (4 * n**2)) ** 0.5,
    )
    np.testing.assert_allclose((low, high), (centre - half, centre + half), rtol=1e-5)


@pytest.mark.parametrize("hits", [0, 1, 7, 19, 20])
def test_an_interval_of_a_share_is_scipys_to_the_last_bit(hits):
    wanted = stats.binomtest(hits, 20).proportion_ci(0.95, "wilson")
    assert scores.wilson_interval(hits, 20) == (wanted.low, wanted.high)
