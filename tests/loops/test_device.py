"""The device loop: results do not depend on chunk sizes, nor the numbers of a seed on others."""

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


def assert_same(a, b):
    raw = lambda tree: [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return all(np.array_equal(x, y) for x, y in zip(raw(a), raw(b), strict=True))


def test_two_short_chunks_are_one_long_one_bit_for_bit():
    short, long = chunks(2, chunk=3), chunks(1, chunk=6)
    assert assert_same(short[-1].carry, long[-1].carry)
    joined = np.concatenate([chunk.episodes.episode_return for chunk in short], axis=1)
    np.testing.assert_array_equal(joined, long[0].episodes.episode_return)


def test_empty_arrays_keep_their_sharding():
    """The noise of counts is empty: XLA would replicate it, and the next chunk would refuse it."""
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
    assert assert_same(first.carry, again.carry)
    returns = [first.episodes.episode_return[i].tobytes() for i in range(3)]
    assert len(set(returns)) == 3


def test_a_seed_does_not_depend_on_other_seeds():
    """Its random numbers are the same to the bit; its results agree up to rounding.

    After a few updates: rounding errors grow as the agent learns.
    """
    program, one = (
        device.prepare_device(settings(seed=5)),
        device.prepare_device(settings(seed=6, seeds=1)),
    )
    keys = [jax.random.key_data(each.keys) for each in (program, one)]
    np.testing.assert_array_equal(keys[0][1], keys[1][0])
    for ours, theirs in zip(*map(jax.tree.leaves, (program.carry, one.carry)), strict=True):
        if not jax.dtypes.issubdtype(ours.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(np.asarray(ours)[1], np.asarray(theirs)[0])
    together, alone = (next(iter(device.run_device(each))) for each in (program, one))
    np.testing.assert_array_equal(together.episodes.goal[1], alone.episodes.goal[0])
    np.testing.assert_allclose(
        together.episodes.episode_return[1], alone.episodes.episode_return[0], atol=1e-6
    )


@pytest.mark.parametrize("depth", [1, 7, 30])  # shorter than a rollout, not dividing it, and longer
def test_episodes_and_visits_add_up(depth):
    got = chunks(3, depth=depth)
    steps = 3 * 6 * 20
    visits = np.asarray(got[-1].carry.visits)[:3].reshape(
        3, depth, depth
    )  # copies of the last seed may follow
    by_row = [
        len(range(row, steps, depth)) for row in range(depth)
    ]  # a step is counted at its first state
    np.testing.assert_array_equal(visits.sum(axis=2), [by_row] * 3)
    assert not np.triu(visits, 1).any()  # states right of the diagonal are unreachable
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


def test_the_maps_cover_all_states():
    got = chunks(1)[0]
    sigma, action = device.learner_maps(settings(), device.first_seed(got.carry).learner)
    assert sigma.shape == action.shape == (49,)
    assert set(action.tolist()) <= {0, 1}
    assert np.all(sigma > 0)
    assert sigma[0] < np.median(sigma)  # the start state is visited most


def test_returns_are_sums_since_the_episode_began():
    """For episodes within a rollout, across rollouts, and unfinished at either end."""
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


def test_seeds_have_different_weights_and_priors(monkeypatch):
    """Weights and priors differ between seeds and are the same for a seed."""
    monkeypatch.setattr(device, "_compiled", lambda *_: dict)
    initial_learner = lambda **changes: device.prepare_device(settings(**changes)).carry.learner
    learner, later = initial_learner(), initial_learner(seed=1)
    for ours, theirs in (
        (learner.params.rows, later.params.rows),
        (learner.memory.uncertainty.prior, later.memory.uncertainty.prior),
    ):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        assert len({seed.tobytes() for seed in ours[:3]}) == 3
        np.testing.assert_array_equal(ours[1:3], theirs[:2])
