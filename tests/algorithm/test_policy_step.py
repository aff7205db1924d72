"""Natural gradients and steps of limited KL divergence, against Fisher's matrix and exact sums."""

from functools import partial

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac import config
from ersac.agents import actor_critic as ac
from ersac.agents import critics
from ersac.algorithm import game, policy_step

STATES, ACTIONS = 6, 4


@pytest.fixture
def drawn(float64):
    """Logits and a gradient with respect to them, of a policy that is uneven."""
    rng = np.random.default_rng(0)
    logits = jnp.asarray(2 * rng.normal(size=(STATES, ACTIONS)))
    gradient = rng.normal(size=(STATES, ACTIONS))
    return logits, jnp.asarray(gradient - gradient.mean(axis=-1, keepdims=True))


def exact_kl(p, q) -> np.ndarray:
    """KL(p || q) as a sum of p log(p / q)."""
    p, q = np.asarray(p, float), np.asarray(q, float)
    return np.where(p > 0, p * np.log(np.where(p > 0, p, 1) / q), 0).sum(axis=-1)


def test_kl_divergence_is_the_sum(drawn):
    logits, other = drawn
    p, q = jax.nn.softmax(logits), jax.nn.softmax(other)
    found = policy_step.kl_divergence(jnp.log(p), jnp.log(q))
    np.testing.assert_allclose(found, exact_kl(p, q), atol=1e-13)
    np.testing.assert_allclose(policy_step.kl_divergence(jnp.log(p), jnp.log(p)), 0, atol=1e-15)
    p = jnp.array([0.5, 0.0, 0.5])
    of = policy_step.kl_divergence(jnp.log(p), jnp.log(jnp.array([0.25, 0.5, 0.25])))
    assert of == pytest.approx(np.log(2))


def test_the_natural_direction_is_fishers_inverse_times_the_gradient(drawn):
    logits, gradient = drawn
    direction = np.asarray(policy_step.natural_direction(gradient, jax.nn.log_softmax(logits)))
    np.testing.assert_allclose(direction.sum(axis=-1), 0, atol=1e-10)
    for state in range(STATES):
        pi = np.asarray(jax.nn.softmax(logits[state]))
        fisher = np.diag(pi) - np.outer(pi, pi)
        np.testing.assert_allclose(fisher @ direction[state], gradient[state], atol=1e-12)


def test_its_mean_over_actions_drawn_is_k_over_tau_less_log_pi(drawn):
    """From one sample each it is the natural gradient of the critic of all actions, in mean."""
    logits, k = drawn
    tau, log_pi = jnp.asarray(0.3), jax.nn.log_softmax(logits)
    pi = np.asarray(jnp.exp(log_pi))
    advantages = k - jnp.sum(pi * k, axis=-1, keepdims=True)

    def payoff(logits, action):
        log_pi = jax.nn.log_softmax(logits)
        a = jnp.full(STATES, action)
        taken = lambda x: jnp.take_along_axis(x, a[:, None], axis=-1)[:, 0]
        steps = game.payoff(taken(log_pi), taken(advantages), 0.0, tau * game.entropy(log_pi))
        return jnp.sum(steps) / tau

    direction = lambda a: policy_step.natural_direction(jax.grad(payoff)(logits, a), log_pi)
    mean = sum(pi[:, [a]] * np.asarray(direction(a)) for a in range(ACTIONS))
    np.testing.assert_allclose(
        mean, critics.natural_gradient(k, log_pi, tau, 1e9), rtol=0, atol=1e-10
    )


def test_actions_that_are_not_allowed_do_not_count(drawn):
    logits, gradient = drawn
    few = np.array([0, 2, 3])
    allowed = jnp.broadcast_to(jnp.asarray([True, False, True, True]), logits.shape)
    log_pi = jax.nn.log_softmax(jnp.where(allowed, logits, -1e9))
    found = policy_step.natural_direction(jnp.where(allowed, gradient, 0.0), log_pi, allowed)
    expected = policy_step.natural_direction(gradient[:, few], jax.nn.log_softmax(logits[:, few]))
    np.testing.assert_allclose(found[:, few], expected, atol=1e-12)
    np.testing.assert_array_equal(found[:, 1], 0.0)


@pytest.mark.parametrize("limit", [1e-4, 0.01, 0.3])
def test_a_limited_step_has_exactly_that_divergence_or_its_full_length(drawn, limit):
    logits, direction = drawn
    log_pi = jax.nn.log_softmax(logits)
    lengths = jnp.asarray([1e-4, 0.01, 0.3, 1.0, 30.0, 100.0])[:, None]
    step = lengths * direction
    scale = policy_step.trust_region_scale(step, log_pi, limit)
    full, found = (
        exact_kl(jnp.exp(log_pi), jax.nn.softmax(logits + c * step)) for c in (1.0, scale)
    )
    assert (full < limit).any()
    assert (full > limit).any()
    np.testing.assert_allclose(found, np.minimum(full, limit), rtol=1e-3)
    assert (found <= limit * (1 + 1e-9)).all()
    np.testing.assert_array_equal(np.asarray(scale)[full < limit], 1.0)


def test_the_gradient_of_the_logits_is_that_of_the_setting(drawn):
    """One visit moves its logits by `rate` times the direction, whatever the batch."""
    logits, gradient = drawn
    rate, limit, kl_limit = 0.5, 3.0, 0.02
    settings = partial(
        config.ActorCritic, policy_rate=rate, advantage_limit=limit, kl_limit=kl_limit
    )

    def moved(step: str, copies: int) -> np.ndarray:
        """The change of the logits of the first state: the optimiser's rate times the gradient."""

        def loss(logits):
            one = lambda z: ac.set_policy_step(settings(step=step), z, None)
            z = jax.vmap(one, axis_name=ac.BATCH)(logits)
            return -jnp.mean(jnp.mean(jnp.sum(gradient[None, :-1] * z[:, :-1], axis=-1), axis=-1))

        many = jnp.broadcast_to(logits, (copies, *logits.shape))
        steps = copies * (STATES - 1)
        return -rate * steps * np.asarray(jax.grad(loss)(many))[0, :-1]

    log_pi = jax.nn.log_softmax(logits)[:-1]
    np.testing.assert_allclose(moved("plain", 3), rate * gradient[:-1], atol=1e-12)
    natural = jnp.clip(policy_step.natural_direction(gradient[:-1], log_pi), -limit, limit)
    np.testing.assert_allclose(moved("natural", 3), rate * natural, atol=1e-12)
    short = moved("trust-region", 3)
    np.testing.assert_allclose(short, moved("trust-region", 1), atol=1e-12)
    divergence = exact_kl(jnp.exp(log_pi), jax.nn.softmax(log_pi + short))
    full = exact_kl(jnp.exp(log_pi), jax.nn.softmax(log_pi + rate * natural))
    np.testing.assert_allclose(divergence, np.minimum(full, kl_limit), rtol=1e-3)
    assert (full > kl_limit).any()
