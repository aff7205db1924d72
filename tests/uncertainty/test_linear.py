"""Bayesian linear regression: compared with the posterior in double precision."""

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
    """Rollouts [B, T] at observations [B, T, n_in]; the last next observation must not count."""
    obs, mask = np.asarray(obs, np.float32), jnp.asarray(mask, jnp.float32)
    zeros = jnp.zeros(mask.shape)
    last = np.full_like(obs[:, :1], 9.0)
    obs = jnp.asarray(np.concatenate([obs, last], axis=1))
    return Trajectory(obs, jnp.asarray(action), zeros, zeros, mask, zeros, zeros[..., None])


def few_rollouts(shape=(4, 64), seed: int = 1, distinct: int = 6) -> Trajectory:
    """Rollouts of few observations, each many times, with some fake steps."""
    rng = np.random.default_rng(seed)
    obs = np.random.default_rng(2).normal(size=(distinct, N_IN))[rng.integers(distinct, size=shape)]
    return rollouts(obs, rng.integers(ACTIONS, size=shape), rng.random(shape) < 0.8)


def predict(linear: Uncertainty, known: LinearMemory, obs, action) -> np.ndarray:
    obs, action = jnp.asarray(obs, jnp.float32), jnp.asarray(action)
    return np.asarray(linear.sigma2(Params({}, {}), known, obs, jnp.zeros(0), action))


def exact_features(known: LinearMemory, obs) -> np.ndarray:
    """Features in double precision."""
    bent = np.tanh(np.asarray(obs, np.float64) @ np.asarray(known.directions, np.float64))
    return bent / np.linalg.norm(bent, axis=-1, keepdims=True)


def covariance(known: LinearMemory, batches: list[Trajectory], prior, noise) -> np.ndarray:
    """The posterior covariance after all steps at once, in double precision [A, F, F]."""
    precision = np.tile(np.eye(WIDTH) / prior**2, (ACTIONS, 1, 1))
    for t in batches:
        for action in range(ACTIONS):
            chosen = (np.asarray(t.action) == action) & (np.asarray(t.mask) > 0)
            phi = exact_features(known, t.obs[:, :-1])[chosen]
            precision[action] += phi.T @ phi / noise
    return np.linalg.inv(precision)


def probes(distinct: int = 6) -> np.ndarray:
    """Observations of the rollouts, and as many others."""
    drawn = [np.random.default_rng(seed).normal(size=(distinct, N_IN)) for seed in (2, 3)]
    return np.concatenate(drawn).astype(np.float32)


@pytest.mark.parametrize(("prior", "noise"), SETTINGS)
def test_sigma2_is_that_of_a_posterior_computed_directly(prior, noise):
    linear, known, obs = estimator(prior, noise), started(), probes()
    batches = [few_rollouts(seed=seed) for seed in range(3)]
    after = known
    for t in batches:
        after = jax.jit(linear.observe)(after, t)
    exact, phi = covariance(known, batches, prior, noise), exact_features(known, obs)
    for action in range(ACTIONS):
        expected = SCALE**2 * np.einsum("nf,fg,ng->n", phi, exact[action], phi)
        found = predict(linear, after, obs, np.full(len(obs), action))
        np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize(("prior", "noise"), SETTINGS)
@pytest.mark.parametrize("visits", [1, 7, 1000])
def test_a_direction_visited_n_times(prior, noise, visits):
    """sigma2 is `1 / (1 / p^2 + n / rho)`, as in a table; other actions keep their prior."""
    linear, obs = estimator(prior, noise), probes()[:1]
    t = rollouts(np.tile(obs, (1, visits, 1)), np.full((1, visits), 1), np.ones((1, visits)))
    after = jax.jit(linear.observe)(started(), t)
    found = predict(linear, after, np.tile(obs, (ACTIONS, 1)), np.arange(ACTIONS))
    known = 1 / (1 / prior**2 + visits / noise)
    np.testing.assert_allclose(found, SCALE**2 * np.array([prior**2, known, prior**2]), rtol=1e-4)


@pytest.mark.parametrize("obs_scale", [0.0, 1e-3, 1.0, 1e4])
def test_sigma_is_that_of_the_prior_at_first_for_any_scale(obs_scale):
    linear = estimator(0.3)
    found = predict(linear, started(), obs_scale * probes(), np.zeros(12, int))
    np.testing.assert_allclose(found, (SCALE * 0.3) ** 2, rtol=1e-5)


def test_masked_steps_have_no_influence_on_the_posterior():
    linear, t = estimator(), few_rollouts()
    moved = jnp.where(t.mask[..., None] > 0, t.obs[:, :-1], 5.0)
    other = t._replace(obs=t.obs.at[:, :-1].set(moved), action=jnp.where(t.mask > 0, t.action, 0))
    after = linear.observe(started(), t).root
    np.testing.assert_array_equal(linear.observe(started(), other).root, after)
    counted = linear.observe(started(), t._replace(mask=jnp.ones_like(t.mask))).root
    assert np.abs(np.asarray(counted - after)).max() > 1e-3
    none = linear.observe(started(), t._replace(mask=jnp.zeros_like(t.mask))).root
    np.testing.assert_array_equal(none, started().root)


def test_the_order_and_the_batching_of_steps_have_no_influence():
    linear, t, obs = estimator(1.0, 0.1), few_rollouts(), probes()
    back = rollouts(t.obs[::-1, -2::-1], t.action[::-1, ::-1], t.mask[::-1, ::-1])
    step = lambda known, one: (linear.observe(known, one), None)
    one_by_one, _ = jax.lax.scan(step, started(), t)
    first = lambda known: predict(linear, known, obs, np.zeros(len(obs), int))
    at_once = first(linear.observe(started(), t))
    np.testing.assert_allclose(first(linear.observe(started(), back)), at_once, rtol=1e-4)
    np.testing.assert_allclose(first(one_by_one), at_once, rtol=1e-4)
    assert at_once.min() < 0.05 * at_once.max()


def test_after_thousands_of_batches_the_covariance_is_positive_and_still_right():
    """Woodbury's formula is wrong by factors here, and an inverted precision is indefinite."""
    prior, noise, batches, steps = 1.0, 1e-2, 3000, 64
    linear, known, obs = estimator(prior, noise), started(), probes()
    t = few_rollouts((1, steps))
    again = lambda _, known: linear.observe(known, t)
    after = jax.jit(lambda known: jax.lax.fori_loop(0, batches, again, known))(known)
    root = np.asarray(after.root, np.float64)
    assert np.linalg.eigvalsh(root @ root.swapaxes(1, 2)).min() > 0
    exact, phi = covariance(known, [t], prior, noise / batches), exact_features(known, obs)
    expected = SCALE**2 * np.einsum("nf,fg,ng->n", phi, exact[0], phi)
    found = predict(linear, after, obs, np.zeros(len(obs), int))
    np.testing.assert_allclose(found[6:], expected[6:], rtol=2e-3)  # never visited
    np.testing.assert_allclose(found[:6], expected[:6], rtol=0.02)  # visited often


@pytest.mark.parametrize("prior", [0.0, 1.0])
def test_zero_noise_does_not_divide_by_zero(prior):
    linear, obs = estimator(prior, 0.0), probes()
    with jax.debug_nans(True):
        after = linear.observe(linear.observe(started(), few_rollouts()), few_rollouts())
    found = predict(linear, after, obs, np.zeros(len(obs), int))
    assert np.all(np.isfinite(found))
    assert found[:6].max() <= 1e-4 * prior**2
    assert found[6:].min() >= 0.01 * prior**2


def test_opposite_observations_have_the_same_sigma():
    """Features without biases are odd functions."""
    linear, obs = estimator(), probes()
    after, action = linear.observe(started(), few_rollouts()), np.zeros(len(obs), int)
    found = predict(linear, after, -obs, action)
    np.testing.assert_allclose(found, predict(linear, after, obs, action), rtol=1e-4)


def test_nothing_is_trained_and_sigma_has_no_gradient():
    linear, t = estimator(), few_rollouts()
    params, _ = linear.init(np.random.default_rng(0))
    assert params == Params({}, {})
    one, known = jax.tree.map(lambda x: x[0], t), linear.observe(started(), t)
    loss = linear.loss(params, known, one.obs, jnp.zeros(0), one)
    np.testing.assert_array_equal(loss, np.zeros(64))
    total = lambda obs: linear.sigma2(params, known, obs, jnp.zeros(0), one.action).sum()
    assert not jax.grad(total)(one.obs[:-1]).any()


def test_vmap_over_seeds_and_actions():
    linear, t = estimator(), few_rollouts()
    other = started()._replace(directions=started().directions[::-1])
    two = jax.tree.map(lambda *x: jnp.stack(x), other, started())
    after = jax.vmap(linear.observe, in_axes=(0, None))(two, t)
    alone = linear.observe(started(), t)
    np.testing.assert_allclose(after.root[1], alone.root, atol=1e-5)
    assert np.abs(np.asarray(after.root[0] - alone.root)).max() > 1e-3
    obs = probes()
    of_action = lambda a: linear.sigma2(Params({}, {}), alone, obs, jnp.zeros(0), jnp.full(12, a))
    every = jax.vmap(of_action, out_axes=-1)(jnp.arange(ACTIONS))
    np.testing.assert_allclose(every[:, 2], predict(linear, alone, obs, np.full(12, 2)), rtol=1e-6)
