"""First visits within an episode, for layouts that change every episode (Henaff et al. 2023)."""

from jax import numpy as jnp

from ersac.types import Array


def first_visits(codes: Array, discount: Array) -> Array:
    """Return 1 where a code [T] occurs for the first time in its episode, else 0.

    A step with discount 0 is the last of its episode. Only the rollout is known: a code that the
    episode met before the start of the rollout counts as new once more.
    """
    ended = (discount == 0).astype(jnp.int32)
    episode = jnp.cumsum(ended) - ended  # [T]   index of the episode; its last step belongs to it
    same = (codes[:, None] == codes[None, :]) & (episode[:, None] == episode[None, :])  # [T, T]
    return 1 - jnp.any(jnp.tril(same, k=-1), axis=1).astype(discount.dtype)
