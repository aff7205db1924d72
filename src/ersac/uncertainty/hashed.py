"""Visit counts of hashed vectors (SimHash: Charikar 2002; #Exploration: Tang et al. 2017)."""

from typing import NamedTuple

import numpy as np
from jax import numpy as jnp

from ersac.nets.layers import normal
from ersac.types import Array, Params, Rng, Trajectory, Tree
from ersac.uncertainty.base import Uncertainty, no_loss


class HashedMemory(NamedTuple):
    """The hash function and the visit counts."""

    directions: Tree  # [n_in, bits]
    visits: Tree  # [2^bits, A]


def observation_codes(directions: Array, obs: Array) -> Array:
    """Return the hash codes [...] of vectors [..., n_in]: bit i is the sign of `obs . direction_i`.

    Two vectors share a bit with probability 1 - angle / pi. The length of a vector has no influence
    on its code; the zero vector has the code 0.
    """
    signs = obs @ directions > 0  # [..., bits]
    return signs.astype(jnp.int32) @ (2 ** jnp.arange(directions.shape[-1], dtype=jnp.int32))


def hashed_counts(n_in: int, n_actions: int, bits: int, sigma_scale: float | Array) -> Uncertainty:
    """Return the estimator `sigma2 = sigma_scale^2 / (1 + n(code(s), a))`."""

    def init(rng: Rng) -> tuple[Params, Tree]:
        directions = normal(rng, (n_in, bits), 1.0)
        return Params({}, {}), HashedMemory(directions, np.zeros((2**bits, n_actions), np.float32))

    def sigma2(params: Params, memory: Tree, obs: Array, features: Array, action: Array) -> Array:
        codes = observation_codes(memory.directions, obs)
        return sigma_scale**2 / (1 + memory.visits[codes, action])

    def observe(memory: Tree, t: Trajectory) -> Tree:
        codes = observation_codes(memory.directions, t.obs[..., :-1, :])  # [B, T]
        mask = t.mask.astype(memory.visits.dtype)
        return memory._replace(visits=memory.visits.at[codes, t.action].add(mask))

    return Uncertainty(init=init, sigma2=sigma2, loss=no_loss, observe=observe, rows={})
