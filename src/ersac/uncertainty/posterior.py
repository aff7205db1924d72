"""The limit of the ensemble in closed form, for integers: samples of a Gaussian posterior."""

from typing import NamedTuple

import numpy as np
from jax import numpy as jnp
from jax.lax import stop_gradient

from ersac.nets.layers import normal
from ersac.types import Array, Params, Rng, Trajectory, Tree
from ersac.uncertainty.base import TINY, Uncertainty, gaussian_noise, no_loss


class PosteriorMemory(NamedTuple):
    """The members' mean rewards and the visit counts."""

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
    """Return an ensemble whose members are samples of the posterior of the mean reward.

    With the prior N(0, p^2) and reward noise of variance rho, the posterior variance after n visits
    is `1 / (1 / p^2 + n / rho)`. Each member starts at a draw from the prior and averages the
    rewards plus its own stored noise. `observe` uses each step once, so replay has no effect on
    sigma.

    prior_scale: p; noise_variance: rho.
    """

    def init(rng: Rng) -> tuple[Params, Tree]:
        prior = normal(rng, (n_states, n_actions, members), prior_scale)
        return Params({}, {}), PosteriorMemory(prior, np.zeros((n_states, n_actions), np.float32))

    def sigma2(params: Params, memory: Tree, obs: Array, features: Array, action: Array) -> Array:
        return stop_gradient(sigma_scale**2 * jnp.var(memory.reward[obs, action], axis=-1))

    def observe(memory: Tree, t: Trajectory) -> Tree:
        """Add all steps at once: steps at one pair have the step size of the last of them.

        The result does not depend on their order.
        """
        pair = (t.obs[..., :-1], t.action)
        visits = memory.visits.at[pair].add(t.mask)
        error = t.reward[..., None] + t.noise - memory.reward[pair]
        step_size = prior_scale**2 / jnp.maximum(
            prior_scale**2 * visits[pair] + noise_variance, TINY
        )
        return PosteriorMemory(
            memory.reward.at[pair].add((t.mask * step_size)[..., None] * error), visits
        )

    return Uncertainty(
        init=init,
        sigma2=sigma2,
        loss=no_loss,
        observe=observe,
        rows={},
        noise=gaussian_noise(noise_variance, members),
    )
