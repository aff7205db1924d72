"""The loop: a run is the same however it is cut, and every seed is its own."""

import itertools

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac import api
from ersac.loops import device


def settings(**changes):
    return api.make_settings(
        "deep-sea",
        **({"depth": 7, "seeds": 3, "chunk": 6, "rollout": 20, "hidden": (8, 8)} | changes),
    )


def chunks(number: int, **changes):
    return list(
        itertools.islice(device.run_device(device.prepare_device(settings(**changes))), number)
    )


def same(a, b):
    raw = lambda tree: [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return all(np.array_equal(x, y) for x, y in zip(raw(a), raw(b), strict=True))


def test_two_short_chunks_are_one_long_one_bit_for_bit():
    short, long = chunks(2, chunk=3), chunks(1, chunk=6)
    assert same(short[-1].carry, long[-1].carry)
    joined = np.concatenate([chunk.episodes.episode_return for chunk in short], axis=1)
    np.testing.assert_array_equal(joined, long[0].episodes.episode_return)


def test_what_has_no_size_stays_where_it_is():
    """Counts have no noise to keep: an array of no size, which XLA would hand to every device, and the second chunk would refuse."""
    tiny = {
        "agent": "ersac-replay",
        "uncertainty": "counts",
        "depth": 4,
        "seeds": 2,
        "chunk": 2,
        "rollout": 5,
        "hidden": (4,),
    }
    assert len(chunks(2, **tiny, capacity=8, batch=2)) == 2


def test_the_same_settings_give_the_same_bits_and_seeds_differ():
    first, again = chunks(1)[0], chunks(1)[0]
    assert same(first.carry, again.carry)
    returns = [first.episodes.episode_return[i].tobytes() for i in range(3)]
    assert len(set(returns)) == 3


def test_a_seed_is_the_same_run_whatever_stands_beside_it():
    together, alone = chunks(1, seed=5)[0], chunks(1, seed=6, seeds=1)[0]
    np.testing.assert_array_equal(together.episodes.goal[1], alone.episodes.goal[0])
    np.testing.assert_allclose(
        together.episodes.episode_return[1], alone.episodes.episode_return[0], atol=1e-6
    )


@pytest.mark.parametrize(
    "depth", [1, 7, 30]
)  # shorter than, not dividing, and longer than a rollout
def test_facts_add_up(depth):
    got = chunks(3, depth=depth)
    steps = 3 * 6 * 20
    visits = np.asarray(got[-1].carry.visits)[:3].reshape(
        3, depth, depth
    )  # where cores do not divide seeds there are more
    by_row = [
        len(range(row, steps, depth)) for row in range(depth)
    ]  # every step is counted where it began
    np.testing.assert_array_equal(visits.sum(axis=2), [by_row] * 3)
    assert not np.triu(visits, 1).any()  # nobody is ever right of the diagonal
    ended = np.concatenate([chunk.episodes.ended for chunk in got], axis=1).reshape(3, steps)
    np.testing.assert_array_equal(np.flatnonzero(ended[0]), np.arange(depth - 1, steps, depth))
    returns = np.concatenate([chunk.episodes.episode_return for chunk in got], axis=1).reshape(
        3, steps
    )[ended]
    goals = np.concatenate([chunk.episodes.goal for chunk in got], axis=1).reshape(3, steps)[ended]
    np.testing.assert_array_equal(goals, returns > 0.5)
    assert returns.min() >= -0.01 - 1e-6


def test_numbers_seeds_and_budgets_share_one_compiled_program():
    device.prepare_device(settings())
    misses = device._compiled.cache_info().misses
    for changes in (
        {"gamma": 0.9},
        {"tau0": 0.3, "prior_scale": 0.2},
        {"seed": 17},
        {"episodes": 77},
    ):
        device.prepare_device(settings(**changes))
    assert device._compiled.cache_info().misses == misses
    device.prepare_device(settings(members=4))
    assert device._compiled.cache_info().misses == misses + 1


def test_a_sigma_map_covers_the_sea():
    got = chunks(1)[0]
    sigma = device.sigma_map(settings(), device.first_seed(got.carry).learner)
    assert sigma.shape == (49,)
    assert np.all(sigma > 0)
    assert sigma[0] < np.median(sigma)  # the start is the best known of all


def test_returns_are_sums_since_the_episode_began():
    """However episodes lie across rollouts: within one, over several, from before the first, beyond the last."""
    rng = np.random.default_rng(0)
    for share in (0.02, 0.3):
        reward, ended = rng.integers(-9, 10, (7, 5)).astype(np.float32), rng.random((7, 5)) < share
        total, wanted = np.float32(4), []
        for r, e in zip(reward.flat, ended.flat, strict=True):
            total += r
            wanted.append(total)
            total = np.float32(0) if e else total
        under_way, returns = device.episode_returns(
            jnp.float32(4), jnp.asarray(reward), jnp.asarray(ended)
        )
        np.testing.assert_array_equal(np.ravel(returns), wanted)
        assert under_way == total


def test_no_two_seeds_begin_alike(monkeypatch):
    """Not in their weights, nor in their priors; and a seed always begins as it does."""
    monkeypatch.setattr(device, "_compiled", lambda *_: dict)
    begun = lambda **changes: device.prepare_device(settings(**changes)).carry.learner
    learner, later = begun(), begun(seed=1)
    for mine, theirs in (
        (learner.params.rows, later.params.rows),
        (learner.memory.uncertainty.prior, later.memory.uncertainty.prior),
    ):
        mine, theirs = np.asarray(mine), np.asarray(theirs)
        assert len({seed.tobytes() for seed in mine[:3]}) == 3
        np.testing.assert_array_equal(mine[1:3], theirs[:2])
