"""The saddle point: one payoff, two players [e-saddle].

The policy maximises, and the risk parameter tau minimises, the expected optimistic and entropy-regularised return
`E J_{1,tau}^pi`. Everything else in this library estimates the terms of that one scalar.
"""

from jax import numpy as jnp
from jax.lax import stop_gradient

from ersac.types import Array


def payoff(log_pi_a: Array, advantage: Array, bonus: Array, weight: Array, entropy: Array) -> Array:
    """Per-step payoff of the zero-sum game [e-saddle]. The policy ascends it, tau descends it.

    With bonus = sigma2 / (2 tau) and weight = tau its two gradients are the paper's:
        d/dtheta = grad log pi . (K - J) + tau grad H   [e-pol-grad]
        d/dtau   = H - sigma2 / (2 tau^2)               [the equation after e-pol-grad]
    Algorithm 1 as printed has -tau H here: see docs/theory.md.
    """
    return log_pi_a * stop_gradient(advantage) + bonus + weight * entropy


def optimistic_reward(reward: Array, bonus: Array) -> Array:
    """The risk-seeking reward `r_tau = r + sigma2 / (2 tau)` [before e-kpi]: certainty turned into value."""
    return reward + bonus


def entropy(log_pi: Array) -> Array:
    """Entropy `H` of log-probabilities over the last axis, in nats and positive."""
    return -jnp.sum(jnp.exp(log_pi) * log_pi, axis=-1)
