"""Random network distillation: sigma is constant at first and falls where it is trained."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac.envs.base import Box
from ersac.nets import heads
from ersac.types import Params, Trajectory
from ersac.uncertainty.rnd import random_network_distillation

ACTIONS, OUTPUTS, SCALE, SPACE = 2, 256, 0.3, Box((3,))
HEAD = heads.mirrored_mlp(SPACE, (256,), ACTIONS * OUTPUTS, upper_share=0.1)
RND = random_network_distillation(
    HEAD, heads.random_features(SPACE, 256, ACTIONS * OUTPUTS, 1.0), ACTIONS, OUTPUTS, SCALE
)
FEATURES = jnp.zeros(0)  # the head has its own network
sigma2 = jax.jit(
    lambda params, fixed, obs, action: RND.sigma2(params, fixed, obs, FEATURES, action)
)


def started() -> tuple[Params, object]:
    return jax.tree.map(jnp.asarray, RND.init(np.random.default_rng(0)))


def around(centre, n: int = 64) -> jax.Array:
    return jnp.asarray(np.random.default_rng(1).normal(centre, 0.3, (n, 3)).astype(np.float32))


def steps(obs: jax.Array, action: int) -> Trajectory:
    zeros = jnp.zeros(len(obs))
    return Trajectory(obs, jnp.full(len(obs), action), zeros, zeros, zeros, zeros, zeros[:, None])


@jax.jit
def train(params: Params, fixed, t: Trajectory) -> Params:
    """Gradient descent with many steps on these observations."""
    loss = lambda dense: jnp.mean(RND.loss(Params(dense, {}), fixed, t.obs, FEATURES, t))
    descend = lambda _, dense: jax.tree.map(
        lambda x, slope: x - slope, dense, jax.grad(loss)(dense)
    )
    return Params(jax.lax.fori_loop(0, 2000, descend, params.dense), {})


@pytest.mark.parametrize("obs_scale", [0.0, 1e-4, 1.0, 1e4])
def test_sigma_is_that_of_the_prior_at_first_for_any_scale(obs_scale):
    """Up to the sampling error of a mean of squares; also at an observation of zeros."""
    params, fixed = started()
    for action in range(ACTIONS):
        found = sigma2(params, fixed, obs_scale * around(1.0), jnp.full(64, action))
        np.testing.assert_allclose(found, SCALE**2, rtol=5 * np.sqrt(2 / OUTPUTS))


def test_sigma_falls_only_where_it_is_trained_and_the_target_is_fixed():
    params, fixed = started()
    visited, far, first = (
        around([2.0, 0.0, 0.0]),
        around([-2.0, 3.0, 1.0]),
        jnp.zeros(64, jnp.int32),
    )
    before = jax.tree.map(np.array, fixed)
    params = train(params, fixed, steps(visited, 0))
    assert sigma2(params, fixed, visited, first).max() < 0.1 * SCALE**2
    assert sigma2(params, fixed, far, first).min() > 0.5 * SCALE**2
    assert (
        sigma2(params, fixed, visited, first + 1).min() > 0.5 * SCALE**2
    )  # the other action was not taken
    jax.tree.map(np.testing.assert_array_equal, before, RND.observe(fixed, steps(visited, 0)))


def test_no_gradient_through_sigma_nor_into_the_target():
    params, fixed = started()
    obs, t = around(1.0, 5), steps(around(1.0, 5), 1)
    slopes = lambda of, x: sum(
        float(jnp.abs(leaf).sum()) for leaf in jax.tree.leaves(jax.jit(jax.grad(of))(x))
    )
    sigma = lambda dense, fixed: jnp.sum(
        RND.sigma2(Params(dense, {}), fixed, obs, FEATURES, t.action)
    )
    loss = lambda dense, fixed: jnp.sum(RND.loss(Params(dense, {}), fixed, obs, FEATURES, t))
    assert slopes(lambda dense: sigma(dense, fixed), params.dense) == 0
    assert slopes(lambda fixed: sigma(params.dense, fixed), fixed) == 0
    assert slopes(lambda fixed: loss(params.dense, fixed), fixed) == 0
    assert slopes(lambda dense: loss(dense, fixed), params.dense) > 0
