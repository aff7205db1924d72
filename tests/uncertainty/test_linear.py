"""Bayesian linear regression: the posterior that double precision computes directly, for ever."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac.types import Params, Trajectory
from ersac.uncertainty.base import Uncertainty
from ersac.uncertainty.linear import LinearMemory, bayesian_linear

N_IN, ACTIONS, WIDTH, SCALE = 5, 3, 24, 0.7
SETTINGS = [(1.0, 1.0), (0.05, 1.0), (0.1, 1e-5), (2.0, 5e-4)]  # prior_scale, noise_variance


def estimator(prior: float = 1.0, noise: float = 1.0) -> Uncertainty:
    return bayesian_linear(N_IN, ACTIONS, WIDTH, prior, noise, SCALE)


def started() -> LinearMemory:
    return jax.tree.map(jnp.asarray, estimator().init(np.random.default_rng(0))[1])


def rollouts(obs, action, mask) -> Trajectory:
    """Steps [B, T] at observations [B, T, n_in]; what they lead to last is not to be counted."""
    obs, mask = np.asarray(obs, np.float32), jnp.asarray(mask, jnp.float32)
    zeros = jnp.zeros(mask.shape)
    last = np.full_like(obs[:, :1], 9.0)
    obs = jnp.asarray(np.concatenate([obs, last], axis=1))
    return Trajectory(obs, jnp.asarray(action), zeros, zeros, mask, zeros, zeros[..., None])


def some(shape=(4, 64), seed: int = 1, distinct: int = 6) -> Trajectory:
    """Few observations, each of them often, and some fake steps."""
    rng = np.random.default_rng(seed)
    obs = np.random.default_rng(2).normal(size=(distinct, N_IN))[rng.integers(distinct, size=shape)]
    return rollouts(obs, rng.integers(ACTIONS, size=shape), rng.random(shape) < 0.8)


def told(made: Uncertainty, known: LinearMemory, obs, action) -> np.ndarray:
    obs, action = jnp.asarray(obs, jnp.float32), jnp.asarray(action)
    return np.asarray(made.sigma2(Params({}, {}), known, obs, jnp.zeros(0), action))


def unit(known: LinearMemory, obs) -> np.ndarray:
    """Features in double precision."""
    bent = np.tanh(np.asarray(obs, np.float64) @ np.asarray(known.directions, np.float64))
    return bent / np.linalg.norm(bent, axis=-1, keepdims=True)


def covariance(known: LinearMemory, batches: list[Trajectory], prior, noise) -> np.ndarray:
    """Of all steps at once, in double precision [A, F, F]."""
    precision = np.tile(np.eye(WIDTH) / prior**2, (ACTIONS, 1, 1))
    for t in batches:
        for action in range(ACTIONS):
            chosen = (np.asarray(t.action) == action) & (np.asarray(t.mask) > 0)
            phi = unit(known, t.obs[:, :-1])[chosen]
            precision[action] += phi.T @ phi / noise
    return np.linalg.inv(precision)


def probes(distinct: int = 6) -> np.ndarray:
    """What was seen, and as many others."""
    drawn = [np.random.default_rng(seed).normal(size=(distinct, N_IN)) for seed in (2, 3)]
    return np.concatenate(drawn).astype(np.float32)


@pytest.mark.parametrize(("prior", "noise"), SETTINGS)
def test_sigma2_is_that_of_a_posterior_computed_directly(prior, noise):
    made, known, obs = estimator(prior, noise), started(), probes()
    batches = [some(seed=seed) for seed in range(3)]
    after = known
    for t in batches:
        after = jax.jit(made.observe)(after, t)
    exact, phi = covariance(known, batches, prior, noise), unit(known, obs)
    for action in range(ACTIONS):
        expected = SCALE**2 * np.einsum("nf,fg,ng->n", phi, exact[action], phi)
        found = told(made, after, obs, np.full(len(obs), action))
        np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize(("prior", "noise"), SETTINGS)
@pytest.mark.parametrize("visits", [1, 7, 1000])
def test_a_direction_visited_n_times(prior, noise, visits):
    """1 / (1 / p^2 + n / rho), as of a table's entry; other actions know nothing of it."""
    made, obs = estimator(prior, noise), probes()[:1]
    t = rollouts(np.tile(obs, (1, visits, 1)), np.full((1, visits), 1), np.ones((1, visits)))
    after = jax.jit(made.observe)(started(), t)
    found = told(made, after, np.tile(obs, (ACTIONS, 1)), np.arange(ACTIONS))
    known = 1 / (1 / prior**2 + visits / noise)
    np.testing.assert_allclose(found, SCALE**2 * np.array([prior**2, known, prior**2]), rtol=1e-4)


@pytest.mark.parametrize("unit", [0.0, 1e-3, 1.0, 1e4])
def test_at_first_all_is_unknown_whatever_the_unit(unit):
    made = estimator(0.3)
    found = told(made, started(), unit * probes(), np.zeros(12, int))
    np.testing.assert_allclose(found, (SCALE * 0.3) ** 2, rtol=1e-5)


def test_masked_steps_are_not_there():
    made, t = estimator(), some()
    moved = jnp.where(t.mask[..., None] > 0, t.obs[:, :-1], 5.0)
    other = t._replace(obs=t.obs.at[:, :-1].set(moved), action=jnp.where(t.mask > 0, t.action, 0))
    after = made.observe(started(), t).root
    np.testing.assert_array_equal(made.observe(started(), other).root, after)
    counted = made.observe(started(), t._replace(mask=jnp.ones_like(t.mask))).root
    assert np.abs(np.asarray(counted - after)).max() > 1e-3
    none = made.observe(started(), t._replace(mask=jnp.zeros_like(t.mask))).root
    np.testing.assert_array_equal(none, started().root)


def test_the_order_and_the_cut_of_steps_are_immaterial():
    made, t, obs = estimator(1.0, 0.1), some(), probes()
    back = rollouts(t.obs[::-1, -2::-1], t.action[::-1, ::-1], t.mask[::-1, ::-1])
    each = lambda known, one: (made.observe(known, one), None)
    one_by_one, _ = jax.lax.scan(each, started(), t)
    first = lambda known: told(made, known, obs, np.zeros(len(obs), int))
    at_once = first(made.observe(started(), t))
    np.testing.assert_allclose(first(made.observe(started(), back)), at_once, rtol=1e-4)
    np.testing.assert_allclose(first(one_by_one), at_once, rtol=1e-4)
    assert at_once.min() < 0.05 * at_once.max()


def test_after_thousands_of_batches_the_covariance_is_positive_and_still_right():
    """Where Woodbury's formula is wrong by factors, and inverted precisions are not positive."""
    prior, noise, batches, steps = 1.0, 1e-2, 3000, 64
    made, known, obs = estimator(prior, noise), started(), probes()
    t = some((1, steps))
    again = lambda _, known: made.observe(known, t)
    after = jax.jit(lambda known: jax.lax.fori_loop(0, batches, again, known))(known)
    root = np.asarray(after.root, np.float64)
    assert np.linalg.eigvalsh(root @ root.swapaxes(1, 2)).min() > 0
    exact, phi = covariance(known, [t], prior, noise / batches), unit(known, obs)
    expected = SCALE**2 * np.einsum("nf,fg,ng->n", phi, exact[0], phi)
    found = told(made, after, obs, np.zeros(len(obs), int))
    np.testing.assert_allclose(found[6:], expected[6:], rtol=2e-3)  # never seen
    np.testing.assert_allclose(found[:6], expected[:6], rtol=0.02)  # seen often


@pytest.mark.parametrize("prior", [0.0, 1.0])
def test_no_noise_is_no_division_by_zero(prior):
    made, obs = estimator(prior, 0.0), probes()
    with jax.debug_nans(True):
        after = made.observe(made.observe(started(), some()), some())
    found = told(made, after, obs, np.zeros(len(obs), int))
    assert np.all(np.isfinite(found))
    assert found[:6].max() <= 1e-4 * prior**2
    assert found[6:].min() >= 0.01 * prior**2


def test_opposite_observations_are_one():
    """What is said of features without biases is true."""
    made, obs = estimator(), probes()
    after, action = made.observe(started(), some()), np.zeros(len(obs), int)
    found = told(made, after, -obs, action)
    np.testing.assert_allclose(found, told(made, after, obs, action), rtol=1e-4)


def test_nothing_is_trained_and_sigma_has_no_gradient():
    made, t = estimator(), some()
    params, _ = made.init(np.random.default_rng(0))
    assert params == Params({}, {})
    one, known = jax.tree.map(lambda x: x[0], t), made.observe(started(), t)
    loss = made.loss(params, known, one.obs, jnp.zeros(0), one)
    np.testing.assert_array_equal(loss, np.zeros(64))
    total = lambda obs: made.sigma2(params, known, obs, jnp.zeros(0), one.action).sum()
    assert not jax.grad(total)(one.obs[:-1]).any()


def test_seeds_side_by_side_and_every_action_at_once():
    made, t = estimator(), some()
    other = started()._replace(directions=started().directions[::-1])
    two = jax.tree.map(lambda *x: jnp.stack(x), other, started())
    after = jax.vmap(made.observe, in_axes=(0, None))(two, t)
    alone = made.observe(started(), t)
    np.testing.assert_allclose(after.root[1], alone.root, atol=1e-5)
    assert np.abs(np.asarray(after.root[0] - alone.root)).max() > 1e-3
    obs = probes()
    of_action = lambda a: made.sigma2(Params({}, {}), alone, obs, jnp.zeros(0), jnp.full(12, a))
    every = jax.vmap(of_action, out_axes=-1)(jnp.arange(ACTIONS))
    np.testing.assert_allclose(every[:, 2], told(made, alone, obs, np.full(12, 2)), rtol=1e-6)
