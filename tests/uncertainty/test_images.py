"""Ensembles on images: linear members on small images whose pixels are whitened."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac.nets import heads
from ersac.types import Trajectory
from ersac.uncertainty import images
from ersac.uncertainty.ensemble import reward_ensemble

SHAPE, FRAMES, ACTIONS, MEMBERS = (42, 44, 4), 2, 3, 40
SMALL = images.small_shape(SHAPE, FRAMES)
FEATURES = int(np.prod(SMALL))


def make(prior_scale: float = 0.5, sigma_scale: float = 2.0):
    ensemble = reward_ensemble(
        head=heads.scaled_head(FEATURES, MEMBERS * ACTIONS, 5.0),
        prior=images.linear_prior(FEATURES, MEMBERS * ACTIONS, prior_scale),
        n_states=None,
        n_actions=ACTIONS,
        members=MEMBERS,
        prior_scale=prior_scale,
        noise_variance=None,
        sigma_scale=sigma_scale,
    )
    return images.on_small_images(ensemble, SHAPE, FRAMES)


def rollouts(seed: int, n: int = 2, steps: int = 5) -> Trajectory:
    rng = np.random.default_rng(seed)
    obs = rng.random((n, steps + 1, *SHAPE), np.float32) ** 2
    zeros = jnp.zeros((n, steps))
    action, noise = jnp.asarray(rng.integers(ACTIONS, size=(n, steps))), jnp.zeros((n, steps, 1))
    return Trajectory(jnp.asarray(obs), action, zeros, zeros + 1, zeros + 1, zeros, noise)


def small_images(obs: np.ndarray) -> np.ndarray:
    """The newest frame in blocks of two by two pixels, by hand."""
    newest = np.asarray(obs)[..., 2:]
    pixels = [
        newest[..., 2 * i : 2 * i + 2, 2 * j : 2 * j + 2, c].mean((-1, -2))
        for i in range(21)
        for j in range(22)
        for c in range(2)
    ]
    return np.stack(pixels, axis=-1)


def observed(estimator, seeds):
    params, memory = jax.tree.map(jnp.asarray, estimator.init(np.random.default_rng(0)))
    for seed in seeds:
        memory = estimator.observe(memory, rollouts(seed))
    return params, memory


def test_the_statistics_are_those_of_all_small_images():
    assert SMALL == (21, 22, 2)
    _, memory = observed(make(), range(4))
    x = np.concatenate([small_images(rollouts(seed).obs[:, :-1]) for seed in range(4)])
    np.testing.assert_allclose(memory.mean, x.mean((0, 1)), rtol=1e-5)
    np.testing.assert_allclose(memory.variance, x.var((0, 1)), rtol=1e-4)
    assert memory.steps == 40


def test_sigma_is_the_spread_of_the_priors_on_whitened_pixels():
    estimator = make()
    params, memory = observed(estimator, range(4))
    obs = rollouts(9).obs[0, :3]
    mean, variance, prior = map(np.asarray, (memory.mean, memory.variance, memory.inner.prior))
    scale = np.sqrt(variance + images.VARIANCE_SHARE * variance.mean())
    x = np.clip((small_images(obs) - mean) / scale, -images.CLIP, images.CLIP)
    rewards = (x @ prior).reshape(3, MEMBERS, ACTIONS)  # the heads are still zero
    for action in range(ACTIONS):
        found = estimator.sigma2(params, memory, obs, jnp.zeros((3, 0)), jnp.full(3, action))
        np.testing.assert_allclose(found, 4 * rewards[..., action].var(axis=1), rtol=1e-4)
    assert found.mean() == pytest.approx(4 * 0.25 * np.mean(x**2), rel=0.3)


def test_members_agree_where_they_were_trained_and_nowhere_else():
    estimator = make()
    params, memory = observed(estimator, range(4))
    t = jax.tree.map(lambda x: x[0], rollouts(0))
    obs, features = t.obs[:-1], jnp.zeros((5, 0))
    loss = lambda params: jnp.sum(estimator.loss(params, memory, obs, features, t))
    sigma2 = lambda params, obs: estimator.sigma2(params, memory, obs, features, t.action)
    start, step = params, jax.jit(jax.grad(loss))
    for _ in range(200):
        params = jax.tree.map(lambda p, g: p - 0.02 * g, params, step(params))
    assert (sigma2(params, obs) < 1e-4 * sigma2(start, obs)).all()
    other = rollouts(7).obs[0, :-1]
    assert (sigma2(params, other) > 0.5 * sigma2(start, other)).all()
