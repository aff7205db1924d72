"""DeepSea (Osband et al. 2019) in pure JAX with integer observations [f-DeepSea].

Dynamics and rewards are those of bsuite 0.3.6.
"""

from typing import NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from ersac.envs.base import Discrete, Env, Step
from ersac.types import Array, Key

MOVE_COST = 0.01  # of an episode of right moves only
UNROLL = 5  # a step is so small that the overhead of an iteration costs as much


class DeepSeaState(NamedTuple):
    """The cell, and whether a left move was made on the diagonal, which misses the treasure."""

    row: Array
    column: Array
    strayed: Array  # bool


def action_map(depth: int, mapping_seed: int) -> np.ndarray:
    """The action that moves right in each cell [depth, depth], drawn exactly as in bsuite."""
    return np.random.RandomState(mapping_seed).binomial(1, 0.5, [depth, depth]).astype(np.int32)


def deep_sea(depth: int, stochastic: bool = False, mapping_seed: int | None = None) -> Env:
    """A depth x depth grid: from the top left, only `depth` right moves reach the treasure.

    An episode's `goal` is that of bsuite: no left move on the diagonal. In the deterministic
    version the treasure was then reached. In the stochastic version a right move fails at random,
    which is not a left move.
    """

    def env_params(seed: int) -> np.ndarray:
        return action_map(depth, seed if mapping_seed is None else mapping_seed)

    def reset(right: Array, key: Key) -> DeepSeaState:
        return DeepSeaState(jnp.int32(0), jnp.int32(0), jnp.bool_(False))

    def observe(right: Array, state: DeepSeaState) -> Array:
        return state.row * depth + state.column

    def step(right: Array, state: DeepSeaState, action: Array, key: Key) -> Step:
        row, column, strayed = state
        moves_right = action == right[row, column]
        treasure = moves_right & (column == depth - 1)  # tested before moving
        reward = jnp.where(treasure, 1.0, 0.0) - jnp.where(moves_right, MOVE_COST / depth, 0.0)
        slips = jnp.bool_(False)
        if stochastic:
            key_slip, key_noise = jax.random.split(key)
            slips = jax.random.uniform(key_slip) <= 1 / depth
            noisy = (row == depth - 1) & ((column == 0) | (column == depth - 1))
            reward += jnp.where(noisy, jax.random.normal(key_noise), 0.0)
        strayed |= ~moves_right & (row == column)
        shift = jnp.where(moves_right, jnp.where(slips, 0, 1), -1)
        row, column = row + 1, jnp.clip(column + shift, 0, depth - 1)
        ended = row == depth
        return Step(
            DeepSeaState(row, column, strayed), reward, jnp.where(ended, 0.0, 1.0), ended & ~strayed
        )

    return Env(
        name=f"deep-sea-{depth}",
        observations=Discrete(depth * depth),
        actions=Discrete(2),
        env_params=env_params,
        reset=reset,
        observe=observe,
        step=step,
        unroll=UNROLL,
    )
