"""What an ensemble with priors and stored noise converges to where every observation is a row of its own, in closed form."""

from typing import NamedTuple

import numpy as np
from jax import numpy as jnp
from jax.lax import stop_gradient

from ersac.nets.layers import normal
from ersac.types import Array, Params, Rng, Trajectory, Tree
from ersac.uncertainty.base import TINY, Uncertainty, gaussian_noise


class PosteriorMemory(NamedTuple):
    """What the members believe, and how often each pair was tried: no optimiser sees either."""

    reward: Tree  # [S, A, K]
    visits: Tree  # [S, A]


def posterior_ensemble(
    n_states: int,
    n_actions: int,
    members: int,
    prior_scale: float,
    noise_variance: float | Array,
    sigma_scale: float | Array,
) -> Uncertainty:
    """Members that are samples of the Gaussian posterior, whose variance at a pair tried n times is 1 / (1 / p^2 + n / rho).

    A member begins with a draw from the prior and takes in each real step once, with the step's own noise. There is nothing left to be
    learned from replaying it, and so nothing that replaying could collapse.
    """

    def init(rng: Rng) -> tuple[Params, Tree]:
        drawn = normal(rng, (n_states, n_actions, members), prior_scale)
        return Params({}, {}), PosteriorMemory(drawn, np.zeros((n_states, n_actions), np.float32))

    def sigma2(params: Params, believed: Tree, obs: Array, features: Array, action: Array) -> Array:
        return stop_gradient(sigma_scale**2 * jnp.var(believed.reward[obs, action], axis=-1))

    def loss(params: Params, believed: Tree, obs: Array, features: Array, t: Trajectory) -> Array:
        return jnp.zeros_like(t.reward)

    def observe(believed: Tree, t: Trajectory) -> Tree:
        """Several steps at one pair share the divisor that all of them leave behind, so the order of steps is immaterial."""
        pair = (t.obs[..., :-1], t.action)
        visits = believed.visits.at[pair].add(t.mask)
        surprise = t.reward[..., None] + t.noise - believed.reward[pair]
        share = prior_scale**2 / jnp.maximum(prior_scale**2 * visits[pair] + noise_variance, TINY)
        return PosteriorMemory(
            believed.reward.at[pair].add((t.mask * share)[..., None] * surprise), visits
        )

    return Uncertainty(
        init=init,
        sigma2=sigma2,
        loss=loss,
        observe=observe,
        rows={},
        noise=gaussian_noise(noise_variance, members),
    )
