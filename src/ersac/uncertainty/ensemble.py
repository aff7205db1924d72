"""The paper's estimator: an ensemble of K reward heads with random priors (Osband et al. 2018)."""

from typing import NamedTuple

import numpy as np
from jax import numpy as jnp
from jax.lax import stop_gradient

from ersac.nets.heads import Head
from ersac.nets.layers import Net
from ersac.types import Array, Params, Rng, Trajectory, Tree
from ersac.uncertainty.base import TINY, Uncertainty, gaussian_noise


class EnsembleMemory(NamedTuple):
    """The priors and the visit counts."""

    prior: Tree  # [S, K A], or the parameters of a random network
    visits: Tree  # [S, A]; () where targets are not shrunk: without noise, or without tables


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
    """Return the estimator `sigma2 = sigma_scale^2 Var_k(f_k(s, a) + prior_k(s, a))`.

    Member k learns to predict the reward plus its stored noise. Members agree where they were
    trained and differ by their priors elsewhere.

    head: the trained part f of all members, `members * n_actions` outputs: a table, a network of
        its own, or a head on the shared features, which it then trains (the paper's auxiliary
        task).
    prior: as many outputs with standard deviation `prior_scale`; its parameters are memory.
    n_states: number of integer observations; None where visits cannot be counted.
    noise_variance: that of the stored noise; None for none.
    """
    shrinks_targets = noise_variance is not None and n_states is not None

    def init(rng: Rng) -> tuple[Params, Tree]:
        prior_params = prior.init(rng)
        shape = (n_states or 0, n_actions)
        visits = np.zeros(shape, np.float32) if shrinks_targets else ()
        return head.init(rng), EnsembleMemory(prior_params, visits)

    def take_members(outputs: Array, action: Array) -> Array:
        """Return what the outputs [..., K A] of all members are for an action [..., K]."""
        outputs = outputs.reshape(*action.shape, members, n_actions)
        return jnp.take_along_axis(outputs, action[..., None, None], axis=-1)[..., 0]

    def predict(params: Params, memory: Tree, obs: Array, features: Array, action: Array) -> Array:
        """Return the members' predicted rewards [..., K]: trained part plus prior."""
        trained = head.apply(params.dense, params.rows, obs, features)
        return take_members(trained + stop_gradient(prior.apply(memory.prior, obs)), action)

    def sigma2(params: Params, memory: Tree, obs: Array, features: Array, action: Array) -> Array:
        rewards = predict(params, memory, obs, features, action)
        return stop_gradient(sigma_scale**2 * jnp.var(rewards, axis=-1))

    def loss(params: Params, memory: Tree, obs: Array, features: Array, t: Trajectory) -> Array:
        """Return half the sum of squared errors over members: a mean would slow each one down."""
        target = t.reward[:, None] + t.noise  # [T, K]
        if noise_variance is not None and shrinks_targets:
            start = take_members(prior.apply(memory.prior, obs), t.action)
            factor = shrinkage(noise_variance, memory.visits[obs, t.action])
            target = start + factor[:, None] * (target - start)
        return 0.5 * jnp.sum(
            jnp.square(predict(params, memory, obs, features, t.action) - target), axis=-1
        )

    def shrinkage(noise_variance: float | Array, visits: Array) -> Array:
        """Return `n / (n + rho / p^2)`, by which targets are shrunk towards the prior.

        The mean of n targets `r + zeta` has variance rho / n, as if there were no prior. Shrunk, it
        is a sample of the posterior, whose variance is `1 / (1 / p^2 + n / rho)`.
        """
        prior_visits = prior_scale**2 * visits
        return prior_visits / jnp.maximum(prior_visits + noise_variance, TINY)

    def observe(memory: Tree, t: Trajectory) -> Tree:
        if not shrinks_targets:
            return memory
        mask = t.mask.astype(memory.visits.dtype)
        return memory._replace(visits=memory.visits.at[t.obs[..., :-1], t.action].add(mask))

    return Uncertainty(
        init=init,
        sigma2=sigma2,
        loss=loss,
        observe=observe,
        rows=head.rows,
        noise=gaussian_noise(noise_variance, members),
    )
