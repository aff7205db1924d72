"""Hashed counts: exact where no codes collide; bits collide with the probability of the angle."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac.types import Params, Trajectory
from ersac.uncertainty.counts import visit_counts
from ersac.uncertainty.hashed import hashed_counts, observation_codes

STATES, ACTIONS, BITS, SCALE = 12, 3, 14, 0.5
HASHED = hashed_counts(STATES, ACTIONS, BITS, SCALE)
NOTHING = (Params({}, {}), jnp.zeros(0))  # parameters and features, which are not used
EYE = jnp.eye(STATES)


def started():
    return jax.tree.map(jnp.asarray, HASHED.init(np.random.default_rng(0))[1])


def rollouts(steps: int = 40, rollouts: int = 3) -> Trajectory:
    """Rollouts of integer observations [B, T], with some fake steps."""
    rng = np.random.default_rng(1)
    shape = (rollouts, steps)
    zeros = jnp.zeros(shape)
    obs = jnp.asarray(rng.integers(STATES, size=(rollouts, steps + 1)))
    mask = jnp.asarray(rng.random(shape) < 0.7, jnp.float32)
    action = jnp.asarray(rng.integers(ACTIONS, size=shape))
    return Trajectory(obs, action, zeros, zeros + 1, mask, zeros, zeros[..., None])


def one_hot(t: Trajectory) -> Trajectory:
    return t._replace(obs=EYE[t.obs])


def test_counts_are_exact_where_no_codes_collide():
    known, t = started(), rollouts()
    codes = observation_codes(known.directions, EYE)
    assert len(set(codes.tolist())) == STATES
    exact = visit_counts(STATES, ACTIONS, SCALE)
    count = exact.observe(jnp.asarray(exact.init(np.random.default_rng(0))[1]), t)
    known = HASHED.observe(HASHED.observe(known, one_hot(t)), one_hot(t))
    np.testing.assert_array_equal(known.visits[codes], 2 * count)
    assert known.visits.sum() == 2 * t.mask.sum()  # no other code was counted
    for action in range(ACTIONS):
        params, features = NOTHING
        found = HASHED.sigma2(params, known, EYE, features, jnp.full(STATES, action))
        np.testing.assert_allclose(found, SCALE**2 / (1 + 2 * count[:, action]), rtol=1e-6)


def test_the_order_of_steps_is_immaterial():
    t, rng = rollouts(), np.random.default_rng(2)
    order = rng.permutation(t.action.size)
    mixed = lambda x: x.reshape(-1, *x.shape[2:])[order].reshape(x.shape)
    last = t.obs[:, -1:]
    obs = jnp.concatenate([mixed(t.obs[:, :-1]), last], axis=1)
    shuffled = t._replace(obs=obs, action=mixed(t.action), mask=mixed(t.mask))
    assert not np.array_equal(shuffled.obs, t.obs)
    expected = HASHED.observe(started(), one_hot(t)).visits
    np.testing.assert_array_equal(HASHED.observe(started(), one_hot(shuffled)).visits, expected)


def test_a_masked_step_and_the_last_observation_are_not_counted():
    t = rollouts(steps=1, rollouts=2)._replace(obs=jnp.array([[4, 5], [6, 7]]))
    t = t._replace(action=jnp.array([[1], [2]]), mask=jnp.array([[1.0], [0.0]]))
    known = HASHED.observe(started(), one_hot(t))
    visits = known.visits[observation_codes(known.directions, EYE)]
    expected = np.zeros((STATES, ACTIONS))
    expected[4, 1] = 1
    np.testing.assert_array_equal(visits, expected)


def test_a_bit_is_the_sign_of_a_projection():
    rng = np.random.default_rng(3)
    matrix, obs = rng.normal(size=(5, 22)), rng.normal(size=(2, 50, 5))
    expected = ((obs @ matrix > 0) * 2 ** np.arange(22)).sum(-1)
    codes_of = lambda x: np.asarray(observation_codes(jnp.float32(matrix), jnp.float32(x)))
    np.testing.assert_array_equal(codes_of(obs), expected)
    np.testing.assert_array_equal(codes_of(7 * obs), expected)  # the length has no influence
    np.testing.assert_array_equal(codes_of(-obs), 2**22 - 1 - expected)  # every bit is flipped
    assert codes_of(np.zeros(5)) == 0


@pytest.mark.parametrize("angle", [0.1, 0.5, 1.0, 3.0])
def test_bits_collide_with_the_probability_of_the_angle(angle):
    """The share is 1 - angle / pi (Charikar 2002), within four standard errors."""
    bits, draws = 20, 2000
    pair = np.float32([[1, 0, 0], [np.cos(angle), np.sin(angle), 0]])
    matrices = jnp.asarray(np.random.default_rng(4).normal(size=(draws, 3, bits)), jnp.float32)
    codes = jax.vmap(observation_codes, in_axes=(0, None))(matrices, jnp.asarray(pair))
    differ = np.bitwise_count(np.asarray(codes[:, 0] ^ codes[:, 1])).mean() / bits
    expected = angle / np.pi
    assert abs(differ - expected) < 4 * np.sqrt(expected * (1 - expected) / (bits * draws))


def test_nothing_is_trained():
    params, known = HASHED.init(np.random.default_rng(0))
    assert params == Params({}, {})
    one = jax.tree.map(lambda x: x[0], one_hot(rollouts()))
    loss = HASHED.loss(params, known, one.obs, NOTHING[1], one)
    np.testing.assert_array_equal(loss, np.zeros(40))
    assert known.directions.shape == (STATES, BITS)
    again = HASHED.init(np.random.default_rng(1))[1].directions
    assert not np.array_equal(known.directions, again)  # directions differ by seed
