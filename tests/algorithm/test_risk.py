"""The attitudes to risk, and the two gradients of the payoff."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac.algorithm import game, risk


def payoff(attitude: risk.Risk, log_tau, log_pi_a=-0.5, advantage=0.7, sigma2=0.3, entropy=0.6):
    tau, sigma2 = jnp.exp(log_tau), jnp.asarray(sigma2)
    return game.payoff(
        jnp.asarray(log_pi_a),
        jnp.asarray(advantage),
        attitude.bonus(sigma2, tau),
        attitude.weight(sigma2, tau) * entropy,
    )


def test_gradient_of_tau_is_that_of_the_paper(float64):
    gradient = jax.grad(lambda tau: payoff(risk.risk_seeking(), jnp.log(tau)))(jnp.asarray(0.4))
    assert float(gradient) == pytest.approx(
        0.6 - 0.3 / (2 * 0.4**2), abs=1e-14
    )  # H - sigma2 / (2 tau^2)


@pytest.mark.parametrize(
    "attitude",
    [
        risk.risk_neutral(0.01),
        risk.simple_optimism(1.0, 0.01),
        risk.frozen(risk.risk_seeking()),
        risk.frozen(risk.local_risk_seeking(0.01)),
    ],
)
def test_tau_has_no_gradient_unless_risk_seeking(attitude):
    assert float(jax.grad(lambda log_tau: payoff(attitude, log_tau))(jnp.asarray(-1.0))) == 0


def test_frozen_has_the_same_payoff():
    log_tau = jnp.asarray(-1.0)
    assert float(payoff(risk.frozen(risk.risk_seeking()), log_tau)) == float(
        payoff(risk.risk_seeking(), log_tau)
    )


def test_bonuses():
    sigma2, tau = jnp.array([0.0, 0.04]), jnp.asarray(0.1)
    np.testing.assert_allclose(risk.risk_neutral(0.01).bonus(sigma2, tau), [0, 0])
    np.testing.assert_allclose(
        risk.simple_optimism(2.0, 0.01).bonus(sigma2, tau), [0, 0.4], rtol=1e-6
    )
    np.testing.assert_allclose(risk.risk_seeking().bonus(sigma2, tau), [0, 0.2], rtol=1e-6)


def gain(log_ratio, advantage, clip=0.2):
    """The clipped objective, and its gradient with respect to log pi(a)."""
    value = lambda x: jnp.sum(game.clipped_gain(x, jnp.asarray(advantage), clip))
    return jax.value_and_grad(value)(jnp.asarray(log_ratio))


def test_at_ratio_1_the_clipped_objective_has_the_gradient_of_the_payoff(float64):
    """Exactly: where the policy has not moved since the rollout."""
    log_pi_a, advantage = jnp.asarray([-0.1, -1.0, -9.0]), jnp.asarray([2.0, -3.0, 0.5])
    plain = jax.grad(lambda x: jnp.sum(game.payoff(x, advantage, 0.0, 0.0)))(log_pi_a)
    value, clipped = gain(jnp.zeros(3), advantage)
    np.testing.assert_array_equal(clipped, plain)
    assert float(value) == float(jnp.sum(advantage))


def test_the_clipped_objective_is_flat_where_the_policy_has_moved_far_enough(float64):
    """It is not flat on the way back, and elsewhere its gradient is ratio times advantage."""
    ratios = np.array([0.3, 0.79, 0.81, 1.0, 1.19, 1.21, 3.0])
    for advantage, flat in ((0.7, ratios > 1.2), (-0.7, ratios < 0.8)):
        _, gradient = gain(np.log(ratios), np.full(7, advantage))
        np.testing.assert_allclose(gradient, np.where(flat, 0.0, ratios * advantage), rtol=1e-12)
    value, gradient = gain(np.array([1e4]), np.array([-1.0]))
    assert np.isfinite(value)
    assert float(gain(np.log([1.5]), [2.0])[0]) == pytest.approx(1.2 * 2.0)


def test_the_advantage_is_not_differentiated():
    through = lambda x: game.payoff(jnp.asarray(-0.5), x, jnp.asarray(0.0), jnp.asarray(0.0))
    assert float(jax.grad(through)(jnp.asarray(2.0))) == 0
    through = lambda x: game.clipped_gain(jnp.asarray(-0.1), x, 0.2)
    assert float(jax.grad(through)(jnp.asarray(2.0))) == 0


def test_entropy_is_positive_and_in_nats():
    assert float(game.entropy(jnp.log(jnp.full(4, 0.25)))) == pytest.approx(np.log(4), rel=1e-6)


def test_local_tau_without_a_floor_is_the_best_multiple_of_sigma(float64):
    """At the scale `1 / sqrt(-2 log pi)` the payoff is VBOS's bonus `sigma sqrt(-2 log pi)`."""
    sigma2, log_pi = jnp.array([0.01, 0.3, 4.0]), jnp.asarray(-0.8)
    attitude = risk.local_risk_seeking(0.0)
    payoffs = lambda scale: attitude.bonus(sigma2, scale) - attitude.weight(sigma2, scale) * log_pi
    best = 1 / jnp.sqrt(-2 * log_pi)
    np.testing.assert_allclose(payoffs(best), jnp.sqrt(-2 * log_pi * sigma2), rtol=1e-13)
    for scale in (0.9 * best, 1.1 * best):
        assert (payoffs(scale) > payoffs(best)).all()


def test_local_tau_is_its_floor_where_nothing_is_uncertain():
    attitude = risk.local_risk_seeking(0.01)
    zero, scale = jnp.zeros(3), jnp.asarray(0.4)
    np.testing.assert_array_equal(attitude.bonus(zero, scale), 0)
    np.testing.assert_allclose(attitude.weight(zero, scale), 0.01, rtol=1e-6)


def test_the_weighted_entropy_is_the_entropy_where_all_weights_are_equal(float64):
    log_pi = jax.nn.log_softmax(jnp.array([[0.3, -1.0, 2.0], [0.0, 0.0, 5.0]]))
    entropy = game.entropy(log_pi)
    one, each = jnp.asarray(0.2), jnp.full((2, 3), 0.2)
    np.testing.assert_allclose(
        game.entropy_bonus(each, log_pi, entropy), game.entropy_bonus(one, log_pi, entropy)
    )
    of_a_density = jnp.full((2, 1), 0.2)  # one number for all of a continuous action
    np.testing.assert_allclose(
        game.entropy_bonus(of_a_density, log_pi[:, :1], entropy), 0.2 * entropy
    )
    weights = jnp.array([[1.0, 2.0, 3.0], [0.5, 0.0, 0.1]])
    expected = -(np.exp(log_pi) * log_pi * weights).sum(axis=-1)
    np.testing.assert_allclose(game.entropy_bonus(weights, log_pi, entropy), expected)
