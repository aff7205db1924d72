"""An ensemble of K reward heads with randomised priors (Osband et al. 2018): the paper's source of sigma."""

from typing import NamedTuple

import numpy as np
from jax import numpy as jnp
from jax.lax import stop_gradient

from ersac.nets.heads import Head
from ersac.nets.layers import Net
from ersac.types import Array, Params, Rng, Trajectory, Tree
from ersac.uncertainty.base import TINY, Uncertainty, gaussian_noise


class EnsembleMemory(NamedTuple):
    """What no optimiser sees."""

    prior: Tree  # [S, K A], or the weights of a random network
    visits: Tree  # [S, A]   real ones, however often they are replayed; nothing where there is no noise to be averaged, or no table


def reward_ensemble(
    head: Head,
    prior: Net,
    n_states: int | None,
    n_actions: int,
    members: int,
    prior_scale: float,
    noise_variance: float | Array | None,
    sigma_scale: float | Array,
) -> Uncertainty:
    """Members that come to agree where they are trained, and keep to their priors where they are not.

    `prior` tells what all members [K A] believe before they have seen anything: a table of independent normal draws, looked up like any
    row, or a random network. `head` is what is trained, all members at once: a table or a network beside it, or one that reads features
    and trains them, the paper's auxiliary task. n_states: None where visits cannot be counted.
    """
    counted = noise_variance is not None and n_states is not None

    def init(rng: Rng) -> tuple[Params, Tree]:
        drawn = prior.init(rng)
        return head.init(rng), EnsembleMemory(
            drawn, np.zeros((n_states, n_actions), np.float32) if counted else ()
        )

    def of_action(every: Array, action: Array) -> Array:
        every = every.reshape(*action.shape, members, n_actions)
        return jnp.take_along_axis(every, action[..., None, None], axis=-1)[..., 0]  # [..., K]

    def predict(params: Params, memory: Tree, obs: Array, features: Array, action: Array) -> Array:
        """Predicted rewards [..., K] of the action: the only place where the trained part and the prior meet."""
        return of_action(
            head.apply(params.dense, params.rows, obs, features)
            + stop_gradient(prior.apply(memory.prior, obs)),
            action,
        )

    def sigma2(params: Params, memory: Tree, obs: Array, features: Array, action: Array) -> Array:
        return stop_gradient(
            sigma_scale**2 * jnp.var(predict(params, memory, obs, features, action), axis=-1)
        )

    def loss(params: Params, memory: Tree, obs: Array, features: Array, t: Trajectory) -> Array:
        """Half the sum over members of squared errors: a member's pace does not depend on how many there are."""
        target = t.reward[:, None] + t.noise  # [T, K]
        if noise_variance is not None and counted:
            before = of_action(prior.apply(memory.prior, obs), t.action)
            target = before + kept(noise_variance, memory.visits[obs, t.action])[:, None] * (
                target - before
            )
        return 0.5 * jnp.sum(
            jnp.square(predict(params, memory, obs, features, t.action) - target), axis=-1
        )

    def kept(noise_variance: float | Array, visits: Array) -> Array:
        """The share of a target that n visits outweigh the prior with: n / (n + rho / p^2).

        Targets r + zeta alone would be averaged to a variance rho / n, as if there were no prior. Shrunk like this their average is a
        sample of the posterior, whose variance is 1 / (1 / p^2 + n / rho), at whatever pace it is approached.
        """
        known = prior_scale**2 * visits
        return known / jnp.maximum(known + noise_variance, TINY)

    def observe(memory: Tree, t: Trajectory) -> Tree:
        if not counted:
            return memory
        return memory._replace(
            visits=memory.visits.at[t.obs[..., :-1], t.action].add(
                t.mask.astype(memory.visits.dtype)
            )
        )

    return Uncertainty(
        init=init,
        sigma2=sigma2,
        loss=loss,
        observe=observe,
        rows=head.rows,
        noise=gaussian_noise(noise_variance, members),
    )
