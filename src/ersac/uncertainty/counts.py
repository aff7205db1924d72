"""Visit counts: the uncertainty of the theory, `sigma^2 / n(s, a)` [l-opt-regret]."""

import numpy as np
from jax import numpy as jnp

from ersac.types import Array, Params, Rng, Trajectory, Tree
from ersac.uncertainty.base import Uncertainty, no_loss


def visit_counts(n_states: int, n_actions: int, sigma_scale: float | Array) -> Uncertainty:
    """Return the estimator `sigma2 = sigma_scale^2 / max(1, n(s, a))`; its memory is n [S, A]."""

    def init(rng: Rng) -> tuple[Params, Tree]:
        return Params({}, {}), np.zeros((n_states, n_actions), np.float32)

    def sigma2(params: Params, count: Tree, obs: Array, features: Array, action: Array) -> Array:
        return sigma_scale**2 / jnp.maximum(1.0, count[obs, action])

    def observe(count: Tree, t: Trajectory) -> Tree:
        return count.at[t.obs[..., :-1], t.action].add(t.mask.astype(count.dtype))

    return Uncertainty(init=init, sigma2=sigma2, loss=no_loss, observe=observe, rows={})
