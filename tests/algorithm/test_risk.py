"""The attitudes to risk, and the two gradients of the payoff."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac.algorithm import game, risk


def payoff(attitude: risk.Risk, log_tau, log_pi_a=-0.5, advantage=0.7, sigma2=0.3, entropy=0.6):
    tau = jnp.exp(log_tau)
    return game.payoff(
        jnp.asarray(log_pi_a),
        jnp.asarray(advantage),
        attitude.bonus(jnp.asarray(sigma2), tau),
        attitude.weight(tau),
        entropy,
    )


def test_gradient_of_tau_is_that_of_the_paper(float64):
    gradient = jax.grad(lambda tau: payoff(risk.risk_seeking(), jnp.log(tau)))(jnp.asarray(0.4))
    assert float(gradient) == pytest.approx(
        0.6 - 0.3 / (2 * 0.4**2), abs=1e-14
    )  # H - sigma2 / (2 tau^2)


@pytest.mark.parametrize(
    "attitude",
    [risk.risk_neutral(0.01), risk.simple_optimism(1.0, 0.01), risk.frozen(risk.risk_seeking())],
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


def test_the_advantage_is_not_differentiated():
    through = lambda x: game.payoff(
        jnp.asarray(-0.5), x, jnp.asarray(0.0), jnp.asarray(0.0), jnp.asarray(0.0)
    )
    assert float(jax.grad(through)(jnp.asarray(2.0))) == 0


def test_entropy_is_positive_and_in_nats():
    assert float(game.entropy(jnp.log(jnp.full(4, 0.25)))) == pytest.approx(np.log(4), rel=1e-6)
