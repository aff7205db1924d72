"""Action distributions, checked against explicit sums and integrals."""

import itertools

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from scipy import stats

from ersac.algorithm.action_dist import (
    CELLS,
    MAX_LOG_STD,
    MIN_LOG_STD,
    NATURAL_SHARE,
    factor_sums,
    make_action_dist,
    mask_logits,
)
from ersac.envs.base import Box, Discrete, MultiDiscrete

LINE = make_action_dist(Box((1,), low=(-1.0,), high=(1.0,)))
# (mean, log_std): moderate, near an edge of the box, at both clips and beyond them
PARAMS = [
    (0.0, 0.0),
    (0.4, -1.0),
    (-1.5, 0.5),
    (6.0, 0.0),
    (-20.0, 0.7),
    (0.0, MIN_LOG_STD),
    (1.0, MAX_LOG_STD),
    (0.2, -9.0),
    (0.0, 7.0),
]


def mean_and_std(params) -> tuple[float, float]:
    return params[0], float(np.exp(np.clip(params[1], MIN_LOG_STD, MAX_LOG_STD)))


@pytest.mark.parametrize("params", [params for params in PARAMS if abs(params[0]) < 5])
def test_density_integrates_to_one_over_the_cells_of_the_box(float64, params):
    mean, std = mean_and_std(params)
    # From one edge of the box to the other, on the finest grid where the density is largest.
    drawn = mean + std * np.linspace(-8, 8, 20_001)
    cells = CELLS * (np.tanh(drawn) + 1) / 2
    density = np.exp(
        LINE.log_prob(
            jnp.broadcast_to(jnp.asarray(params), (len(drawn), 2)), jnp.asarray(drawn)[:, None]
        )
    )
    total = np.trapezoid(np.where(np.isfinite(density), density, 0.0), cells)
    assert total == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("params", PARAMS)
def test_entropy_is_that_of_the_cell_an_action_falls_in(float64, params):
    mean, std = mean_and_std(params)
    inner = np.arctanh(np.linspace(-1, 1, CELLS + 1)[1:-1])
    edges = np.concatenate([[-np.inf], inner, [np.inf]])
    cells = np.diff(stats.norm.cdf(edges, mean, std))
    assert LINE.entropy(jnp.asarray(params)) == pytest.approx(stats.entropy(cells), abs=1e-4)


def test_entropy_of_a_narrow_policy_is_finite_with_its_slope():
    """At a saturated mean most cells are empty; a differential entropy would be far below zero."""
    narrow = jnp.array([6.0, MIN_LOG_STD])
    assert LINE.entropy(narrow) == pytest.approx(0, abs=1e-4)
    assert jnp.all(jnp.isfinite(jax.grad(LINE.entropy)(narrow)))


def test_the_largest_entropy_is_that_of_uniform_cells():
    """The entropies of dimensions add up."""
    plane = make_action_dist(Box((2,), low=(0.0, 0.0), high=(1.0, 1.0)))
    log_std = jnp.linspace(MIN_LOG_STD, MAX_LOG_STD, 50)
    one = LINE.entropy(jnp.stack([jnp.zeros(50), log_std], axis=-1))
    assert np.log(CELLS) - 0.05 < one.max() <= np.log(CELLS)
    assert np.all(np.asarray(one) >= 0)
    two = plane.entropy(jnp.stack([jnp.zeros(50), jnp.zeros(50), log_std, log_std], axis=-1))
    np.testing.assert_allclose(two, 2 * one, rtol=1e-5, atol=1e-5)


def test_tanh_cancels_in_importance_ratios(float64):
    """They are those of the normal distributions, even at the edge of the box."""
    ours, theirs = jnp.array([1.3, -0.4]), jnp.array([0.7, 0.6])
    drawn = jnp.array([-30.0, -2.0, 0.0, 1.1, 25.0])[:, None]
    ratio = LINE.log_prob(jnp.broadcast_to(ours, (5, 2)), drawn) - LINE.log_prob(
        jnp.broadcast_to(theirs, (5, 2)), drawn
    )
    normal = lambda params: stats.norm.logpdf(np.asarray(drawn)[:, 0], params[0], np.exp(params[1]))
    np.testing.assert_allclose(ratio, normal(ours) - normal(theirs), rtol=1e-12)


def test_draws_are_normal_and_env_actions_are_in_the_box():
    rng = np.random.default_rng(0)
    low = rng.uniform(-9, 9, 40).astype(np.float32)
    high = low + rng.uniform(0.01, 9, 40).astype(np.float32)
    low, high = np.append(low, np.float32(-3.4e38)), np.append(high, np.float32(3.4e38))
    policy = make_action_dist(Box((41,), low=tuple(low.tolist()), high=tuple(high.tolist())))
    params = jnp.concatenate([jnp.full(41, 0.5), jnp.full(41, -0.7)])
    drawn = jax.vmap(lambda normal: policy.draw(params, normal))(
        policy.action_noise(jax.random.key(0), 2000)
    )
    assert stats.kstest(np.ravel(drawn), stats.norm(0.5, np.exp(-0.7)).cdf).pvalue > 1e-3
    np.testing.assert_array_equal(policy.mode(params), np.full(41, 0.5, np.float32))
    for far in (drawn, jnp.full((1, 41), 50.0), jnp.full((1, 41), -50.0)):
        env_action = np.asarray(policy.to_env(far))
        assert ((low <= env_action) & (env_action <= high)).all()
    np.testing.assert_allclose(env_action[0], low, rtol=1e-5)  # -50 is the lower edge
    middle = np.asarray(policy.to_env(jnp.zeros((1, 41))))[0]
    np.testing.assert_allclose(middle, low / 2 + high / 2, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("params", PARAMS)
def test_gradients_of_a_normal_policy_are_natural(float64, params):
    """Fisher's inverse times the gradient: no narrow policy has a larger step than a wide one."""
    mean, std = mean_and_std(params)
    drawn = jnp.array([mean + 0.7])
    gradient = jax.grad(LINE.log_prob)(jnp.asarray(params), drawn)
    wanted = NATURAL_SHARE * np.array([0.7, 0.5 * ((0.7 / std) ** 2 - 1)])
    np.testing.assert_allclose(gradient, wanted, rtol=1e-9)


def test_a_continuous_action_counts_as_one_action():
    params = jnp.zeros((3, 5, 2))
    np.testing.assert_array_equal(LINE.log_pi(params), np.zeros((3, 5, LINE.n_actions)))
    np.testing.assert_array_equal(LINE.action_index(jnp.ones((3, 5, 1))), np.zeros((3, 5)))


def test_categorical_is_softmax(float64):
    logits, action = jax.random.normal(jax.random.key(1), (6, 3)) * 2, jnp.array([0, 1, 2, 2, 1, 0])
    policy = make_action_dist(Discrete(3))
    pi = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(
        policy.log_prob(logits, action), np.log(pi)[np.arange(6), action], rtol=1e-12
    )
    np.testing.assert_allclose(policy.log_pi(logits), np.log(pi), rtol=1e-12)
    np.testing.assert_allclose(policy.entropy(logits), -(pi * np.log(pi)).sum(axis=1), rtol=1e-12)
    np.testing.assert_array_equal(policy.mode(logits), pi.argmax(axis=1))
    np.testing.assert_array_equal(policy.to_env(action), policy.action_index(action))
    drawn = jax.vmap(lambda gumbel: policy.draw(logits[0], gumbel))(
        policy.action_noise(jax.random.key(2), 20_000)
    )
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 20_000, pi[0], atol=0.015)


SIZES = (2, 3, 2)
JOINT = np.array(list(itertools.product(*map(range, SIZES))))  # [12, 3]
OFFSETS = np.array([0, 2, 5])
# One choice of the second factor and one of the third are not allowed.
MASK = np.array([1, 1, 1, 0, 1, 0, 1], bool)


def joint_probabilities(logits, mask) -> np.ndarray:
    """The probability of each combination, multiplied out."""
    total = np.ones(len(JOINT))
    for factor, (start, size) in enumerate(zip(OFFSETS, SIZES, strict=True)):
        weights = np.exp(logits[start : start + size]) * mask[start : start + size]
        total *= (weights / weights.sum())[JOINT[:, factor]]
    return total


@pytest.mark.parametrize("mask", [np.ones(7, bool), MASK], ids=["all", "masked"])
def test_a_product_is_its_joint_distribution(float64, mask):
    """Log-probability, entropy, expectations and draws are those of all joint actions."""
    policy = make_action_dist(MultiDiscrete(SIZES))
    raw = np.random.default_rng(0).normal(size=7)
    pi, logits = joint_probabilities(raw, mask), mask_logits(jnp.asarray(raw), jnp.asarray(mask))
    repeated = jnp.broadcast_to(logits, (len(JOINT), 7))
    np.testing.assert_allclose(
        np.exp(policy.log_prob(repeated, jnp.asarray(JOINT))), pi, rtol=1e-12, atol=0
    )
    assert (pi == 0).any() == (not mask.all())
    real = pi[pi > 0]
    assert policy.entropy(logits) == pytest.approx(-(real * np.log(real)).sum(), rel=1e-12)
    values = jnp.asarray(np.random.default_rng(1).normal(size=7))
    of_joint = np.mean(np.asarray(values)[JOINT + OFFSETS], axis=1)
    np.testing.assert_allclose(
        policy.take(jnp.broadcast_to(values, repeated.shape), jnp.asarray(JOINT)), of_joint
    )
    weighted = jnp.exp(policy.log_pi(logits)) * values
    assert jnp.sum(weighted) / 3 == pytest.approx(pi @ of_joint, rel=1e-12)
    by_factor = factor_sums(weighted, SIZES)
    np.testing.assert_allclose(by_factor[np.array([0, 2, 5])].sum(), jnp.sum(weighted))
    np.testing.assert_array_equal(by_factor[2:5], np.repeat(by_factor[2], 3))
    np.testing.assert_array_equal(policy.mode(logits), JOINT[np.argmax(pi)])
    drawn = jax.vmap(lambda gumbel: policy.draw(logits, gumbel))(
        policy.action_noise(jax.random.key(2), 20_000)
    )
    shares = np.bincount(np.ravel_multi_index(np.asarray(drawn).T, SIZES), minlength=12) / 20_000
    np.testing.assert_allclose(shares, pi, atol=0.015)
    assert (shares[pi == 0] == 0).all()
    np.testing.assert_array_equal(policy.action_index(jnp.asarray(JOINT)), JOINT + OFFSETS)


def test_numbered_combinations_are_those_of_the_product():
    """The mask of a combination is that of all its choices."""
    numbered = make_action_dist(MultiDiscrete(SIZES), joint=True)
    assert numbered.outputs == numbered.n_actions == 12
    np.testing.assert_array_equal(numbered.to_env(jnp.arange(12)), JOINT)
    masks = jnp.asarray(np.stack([MASK, ~MASK]))
    wanted = np.asarray(masks)[:, JOINT + OFFSETS].all(axis=-1)
    np.testing.assert_array_equal(numbered.allowed(masks), wanted)


def test_a_masked_action_has_no_gradient():
    policy = make_action_dist(MultiDiscrete(SIZES))
    mask, action = jnp.asarray(MASK), jnp.array([0, 2, 1])
    loss = lambda logits: (
        policy.log_prob(mask_logits(logits, mask), action)
        + policy.entropy(mask_logits(logits, mask))
    )
    gradient = jax.grad(loss)(jnp.linspace(-1.0, 2.0, 7))
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[~MASK], 0.0)
    assert gradient[5:].tolist() == [0.0, 0.0]  # a single allowed choice leaves nothing to learn
    assert (gradient[np.array([0, 1, 2, 4])] != 0).all()
