"""The interface of every estimator of epistemic uncertainty."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import numpy as jnp

from ersac.types import Array, Key, Params, Rng, Trajectory, Tree

TINY = 1e-30  # lower bound of denominators, where prior and noise variance may both be zero


def no_noise(key: Key, length: int) -> Array:
    """Return an empty array [T, 0], for estimators that store no noise."""
    return jnp.zeros((length, 0))


def no_loss(params: Params, memory: Tree, obs: Array, features: Array, t: Trajectory) -> Array:
    """Return zeros [T], for estimators without trained parameters."""
    return jnp.zeros_like(t.reward)


def no_metrics(
    params: Params, memory: Tree, obs: Array, features: Array, t: Trajectory
) -> dict[str, Array]:
    """Return nothing, for estimators that report no numbers."""
    return {}


class Uncertainty(NamedTuple):
    """An estimator of sigma2(s, a), the epistemic variance of the mean reward of (s, a).

    The paper's is an ensemble of reward heads, `ensemble.py`. An estimator has two states: `params`
    are trained by an optimiser, `memory` (priors, counts) is not. Observations and rewards arrive
    normalised; actions are integers below the number of actions.
    """

    # rng -> (params, memory), on the host
    init: Callable[[Rng], tuple[Params, Tree]]
    # params, memory, obs [...], features, action [...] -> the VARIANCE [...], without gradient
    sigma2: Callable[[Params, Tree, Array, Array, Array], Array]
    # params, memory, obs [T, ...], features [T, H], trajectory -> the loss of each step [T]
    loss: Callable[[Params, Tree, Array, Array, Trajectory], Array]
    # memory, new rollouts [N, T, ...], each passed in once -> memory; mask 0 marks a fake step
    observe: Callable[[Tree, Trajectory], Tree]
    # the tables of the params, by name, and their widths
    rows: dict[str, int]
    # key, T -> noise [T, members] that is stored with a rollout and added to each member's targets
    noise: Callable[[Key, int], Array] = no_noise
    # the arguments of `loss` -> numbers by name, recorded and logged as `uncertainty.NAME`
    metrics: Callable[[Params, Tree, Array, Array, Trajectory], dict[str, Array]] = no_metrics


def gaussian_noise(variance: float | Array | None, members: int) -> Callable[[Key, int], Array]:
    """Return a sampler of the noise zeta ~ N(0, variance) of each step and member [T, members].

    See section 'Incorporating Off-Policy Data' of the paper. A variance of None gives zeros.
    """
    if variance is None:
        return lambda key, length: jnp.zeros((length, members))
    return lambda key, length: jnp.sqrt(variance) * jax.random.normal(key, (length, members))
