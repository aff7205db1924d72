"""Visit counts of vectors by the signs of random projections (Charikar 2002; Tang et al. 2017)."""

from typing import NamedTuple

import numpy as np
from jax import numpy as jnp

from ersac.nets.layers import normal
from ersac.types import Array, Params, Rng, Trajectory, Tree
from ersac.uncertainty.base import Uncertainty


class Hashed(NamedTuple):
    """What no optimiser sees."""

    directions: Tree  # [n_in, bits]
    visits: Tree  # [2^bits, A]


def observation_codes(matrix: Array, obs: Array) -> Array:
    """Integers [...] of vectors [..., n_in]: bit i is the side of the matrix' column i they lie on.

    Two vectors share a bit with probability 1 - angle / pi. Their lengths have no part in it; a
    vector of zeros has the code 0.
    """
    signs = obs @ matrix > 0  # [..., bits]
    return signs.astype(jnp.int32) @ (2 ** jnp.arange(matrix.shape[-1], dtype=jnp.int32))


def hashed_counts(n_in: int, n_actions: int, bits: int, sigma_scale: float | Array) -> Uncertainty:
    """`sigma_scale^2 / (1 + n)` after n visits of what shares a code; bits is at most 22."""

    def init(rng: Rng) -> tuple[Params, Tree]:
        drawn = normal(rng, (n_in, bits), 1.0)
        return Params({}, {}), Hashed(drawn, np.zeros((2**bits, n_actions), np.float32))

    def sigma2(params: Params, known: Tree, obs: Array, features: Array, action: Array) -> Array:
        return sigma_scale**2 / (1 + known.visits[observation_codes(known.directions, obs), action])

    def loss(params: Params, known: Tree, obs: Array, features: Array, t: Trajectory) -> Array:
        return jnp.zeros_like(t.reward)

    def observe(known: Tree, t: Trajectory) -> Tree:
        codes = observation_codes(known.directions, t.obs[..., :-1, :])  # [B, T]
        mask = t.mask.astype(known.visits.dtype)
        return known._replace(visits=known.visits.at[codes, t.action].add(mask))

    return Uncertainty(init=init, sigma2=sigma2, loss=loss, observe=observe, rows={})
