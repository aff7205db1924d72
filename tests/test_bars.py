"""The bars of the paper that take minutes: held-out seeds, solved within their budgets, or not."""

import pytest

import ersac


def solved(**settings) -> list[int | None]:
    return ersac.train("deep-sea", show=False, **settings).summary()["solved_reliable"]


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "episodes"), [(10, 1500), (20, 5000), (40, 10_000)])
def test_ersac_solves_held_out_seeds_within_the_budget(depth, episodes):
    assert all(found is not None for found in solved(depth=depth, seeds=8, seed=1000, episodes=episodes))


@pytest.mark.slow
def test_vanilla_does_not_solve_depth_20_in_20_000_episodes():
    assert solved(agent="vanilla", depth=20, seeds=4, seed=1000, episodes=20_000) == [None] * 4
