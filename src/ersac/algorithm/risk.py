"""Attitudes to risk: the lines of Algorithm 1 [a-kac] in which ERSAC and its baselines differ.

| attitude        | bonus added to the reward | entropy weight | agent                  |
|-----------------|---------------------------|----------------|------------------------|
| risk_neutral    | 0                         | alpha          | vanilla actor-critic   |
| simple_optimism | mu sigma                  | alpha          | simple optimism        |
| risk_seeking    | sigma2 / (2 tau)          | tau            | ERSAC                  |
| frozen(risk)    | that of `risk`            | that of `risk` | the fixed-tau ablation |

With every attitude but `risk_seeking` the gradient with respect to tau is zero, so tau keeps its
initial value.
"""

from collections.abc import Callable
from typing import NamedTuple

from jax import numpy as jnp
from jax.lax import stop_gradient

from ersac.types import Array


class Risk(NamedTuple):
    """The exploration bonus and the entropy weight as functions of tau."""

    bonus: Callable[[Array, Array], Array]  # (sigma2, tau) -> bonus
    weight: Callable[[Array], Array]  # tau -> entropy weight


def risk_neutral(alpha: float) -> Risk:
    """Return the attitude of the vanilla actor-critic: no bonus, a fixed entropy weight."""
    return Risk(
        bonus=lambda sigma2, tau: jnp.zeros_like(sigma2),
        weight=lambda tau: jnp.asarray(alpha, tau.dtype),
    )


def simple_optimism(mu: float, alpha: float) -> Risk:
    """Return the bonus `mu sigma` of most deep exploration agents, with a fixed entropy weight."""
    return Risk(
        bonus=lambda sigma2, tau: mu * jnp.sqrt(sigma2),
        weight=lambda tau: jnp.asarray(alpha, tau.dtype),
    )


def risk_seeking() -> Risk:
    """Return the attitude of ERSAC: bonus `sigma2 / (2 tau)`, entropy weight tau.

    The bonus is what a Gaussian reward with variance sigma2 is worth above its mean to an agent
    with exponential utility: its certainty equivalent `tau log E exp(r / tau)` minus `E r`.
    """
    return Risk(bonus=lambda sigma2, tau: sigma2 / (2 * tau), weight=lambda tau: tau)


def frozen(risk: Risk) -> Risk:
    """Return the same attitude without a gradient for tau, which stays fixed [f-robustness_tau]."""
    return Risk(
        bonus=lambda sigma2, tau: risk.bonus(sigma2, stop_gradient(tau)),
        weight=lambda tau: risk.weight(stop_gradient(tau)),
    )
