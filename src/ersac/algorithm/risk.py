"""Attitudes to risk: the lines of Algorithm 1 [a-kac] in which ERSAC and its baselines differ.

| attitude           | bonus added to the reward | entropy weight | agent                  |
|--------------------|---------------------------|----------------|------------------------|
| risk_neutral       | 0                         | alpha          | vanilla actor-critic   |
| simple_optimism    | mu sigma                  | alpha          | simple optimism        |
| risk_seeking       | sigma2 / (2 tau)          | tau            | ERSAC                  |
| local_risk_seeking | sigma2 / (2 tau(s, a))    | tau(s, a)      | a tau for each (s, a)  |
| frozen(risk)       | that of `risk`            | that of `risk` | the fixed-tau ablation |

Without risk-seeking the gradient with respect to tau is zero, so tau keeps its initial value.
"""

from collections.abc import Callable
from typing import NamedTuple

from jax import numpy as jnp
from jax.lax import stop_gradient

from ersac.types import Array


class Risk(NamedTuple):
    """The exploration bonus and the entropy weight as functions of tau."""

    bonus: Callable[[Array, Array], Array]  # (sigma2, tau) -> bonus
    # (sigma2 [..., A], tau) -> entropy weight: [], or [..., A] where each action has its own
    weight: Callable[[Array, Array], Array]


def risk_neutral(alpha: float) -> Risk:
    """Return the attitude of the vanilla actor-critic: no bonus, a fixed entropy weight."""
    return Risk(
        bonus=lambda sigma2, tau: jnp.zeros_like(sigma2),
        weight=lambda sigma2, tau: jnp.asarray(alpha, tau.dtype),
    )


def simple_optimism(mu: float, alpha: float) -> Risk:
    """Return the bonus `mu sigma` of most deep exploration agents, with a fixed entropy weight."""
    return Risk(
        bonus=lambda sigma2, tau: mu * jnp.sqrt(sigma2),
        weight=lambda sigma2, tau: jnp.asarray(alpha, tau.dtype),
    )


def risk_seeking() -> Risk:
    """Return the attitude of ERSAC: bonus `sigma2 / (2 tau)`, entropy weight tau.

    The bonus is what a Gaussian reward with variance sigma2 is worth above its mean to an agent
    with exponential utility: its certainty equivalent `tau log E exp(r / tau)` minus `E r`.
    """
    return Risk(bonus=lambda sigma2, tau: sigma2 / (2 * tau), weight=lambda sigma2, tau: tau)


def local_tau(sigma2: Array, scale: Array, tau_min: float | Array) -> Array:
    """Return `tau(s, a) = scale sigma(s, a) + tau_min`, the form of tau that is best for one step.

    The payoff of one action, `sigma2 / (2 tau) - tau log pi(a)`, is least at
    `tau = sigma / sqrt(-2 log pi(a))` (VBOS, O'Donoghue and Lattimore 2021), in proportion to
    sigma.
    """
    return scale * jnp.sqrt(sigma2) + tau_min


def local_risk_seeking(tau_min: float) -> Risk:
    """Return ERSAC's attitude with a tau for each state and action.

    Its learned parameter, called tau elsewhere, is the scale of `local_tau`: the policy maximises
    and the scale minimises the same payoff. Where sigma is 0, the entropy weight is only tau_min,
    so nothing is earned by random actions in states that are known.
    """
    return Risk(
        bonus=lambda sigma2, scale: sigma2 / (2 * local_tau(sigma2, scale, tau_min)),
        weight=lambda sigma2, scale: local_tau(sigma2, scale, tau_min),
    )


def frozen(risk: Risk) -> Risk:
    """Return the same attitude without a gradient for tau, which stays fixed [f-robustness_tau]."""
    return Risk(
        bonus=lambda sigma2, tau: risk.bonus(sigma2, stop_gradient(tau)),
        weight=lambda sigma2, tau: risk.weight(sigma2, stop_gradient(tau)),
    )
