"""Slow checks of the claims about DeepSea: held-out seeds and their budgets of episodes."""

import pytest
import scipy.stats

import ersac


def solved(**settings) -> list[int | None]:
    return ersac.train("deep-sea", show=False, **settings).summary()["solved_reliable"]


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "episodes"), [(10, 1500), (20, 3000), (40, 8000)])
def test_ersac_solves_held_out_seeds_within_the_budget(depth, episodes):
    assert all(
        found is not None for found in solved(depth=depth, seeds=8, seed=1000, episodes=episodes)
    )


@pytest.mark.slow
def test_vanilla_does_not_solve_depth_20_in_20_000_episodes():
    assert solved(agent="vanilla", depth=20, seeds=4, seed=1000, episodes=20_000) == [None] * 4


@pytest.mark.slow
def test_optimised_code_needs_as_many_episodes_as_the_first_version():
    """Tables at depth 20, seeds 0-19: two samples of one distribution (before: commit f1aee78)."""
    # fmt: off
    before = [
        1149, 1215, 1244, 1259, 1261, 1263, 1265, 1278, 1319, 1330,
        1356, 1380, 1385, 1404, 1412, 1423, 1424, 1462, 1471, 1565,
    ]
    # fmt: on
    now = solved(agent="ersac-sampled", network="table", depth=20, seeds=20, episodes=5_000)
    assert None not in now
    assert scipy.stats.ks_2samp(before, now).pvalue > 1e-3
