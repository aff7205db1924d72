"""Attitudes to risk: the blue lines of Algorithm 1 [a-kac], as values.

| attitude  | bonus added to the reward | entropy weight | agent                       |
|-----------|---------------------------|----------------|-----------------------------|
| neutral   | 0                         | alpha          | vanilla actor-critic        |
| optimist  | mu sigma                  | alpha          | simple optimism             |
| seeking   | sigma2 / (2 tau)          | tau            | ERSAC                       |
| frozen(r) | r at a tau held still     | r's            | the fixed-tau ablation      |

Under the first two nothing depends on tau, so its player has no gradient and tau stays where it started.
"""

from collections.abc import Callable
from typing import NamedTuple

from jax import numpy as jnp
from jax.lax import stop_gradient

from ersac.types import Array


class Risk(NamedTuple):
    """An attitude to risk is two functions of tau."""

    bonus: Callable[[Array, Array], Array]  # (sigma2, tau) -> added to the reward
    weight: Callable[[Array], Array]  # tau -> entropy weight


def neutral(alpha: float) -> Risk:
    """Vanilla actor-critic: no bonus, a fixed entropy weight."""
    return Risk(
        lambda sigma2, tau: jnp.zeros_like(sigma2), lambda tau: jnp.asarray(alpha, tau.dtype)
    )


def optimist(mu: float, alpha: float) -> Risk:
    """Simple optimism `r + mu sigma`: the bonus most deep agents add, with a fixed entropy weight."""
    return Risk(
        lambda sigma2, tau: mu * jnp.sqrt(sigma2), lambda tau: jnp.asarray(alpha, tau.dtype)
    )


def seeking() -> Risk:
    """ERSAC: the certainty equivalent of a Gaussian under the exponential utility, `sigma2 / (2 tau)`, and weight tau."""
    return Risk(lambda sigma2, tau: sigma2 / (2 * tau), lambda tau: tau)


def frozen(risk: Risk) -> Risk:
    """The same attitude with a tau that is not played [f-robustness_tau]."""
    return Risk(
        lambda sigma2, tau: risk.bonus(sigma2, stop_gradient(tau)),
        lambda tau: risk.weight(stop_gradient(tau)),
    )
