"""What is new in an episode, for layouts that are new in every episode (Henaff et al. 2023)."""

from jax import numpy as jnp

from ersac.types import Array


def first_visits(codes: Array, discount: Array) -> Array:
    """1 where a code [T] occurs for the first time in its episode, else 0; discount 0 ends one.

    An episode that began before the rollout is seen from the rollout's start only: what it met
    before that counts as new once more.
    """
    ended = (discount == 0).astype(jnp.int32)
    episode = jnp.cumsum(ended) - ended  # [T]   the step that ends an episode still belongs to it
    same = (codes[:, None] == codes[None, :]) & (episode[:, None] == episode[None, :])  # [T, T]
    return 1 - jnp.any(jnp.tril(same, k=-1), axis=1).astype(discount.dtype)
