"""DeepSea (Osband et al. 2019), exactly as bsuite 0.3.6 has it, in pure JAX with integer observations [f-DeepSea]."""

from typing import NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from ersac.envs.base import Discrete, Env, Step
from ersac.types import Array, Key

MOVE_COST = 0.01  # of a whole episode of right moves
UNROLL = (
    5  # a turn of the acting loop costs as much to organise as such a small step costs to compute
)


class DeepSeaState(NamedTuple):
    """Where the diver is, and whether it ever turned left on the one path that leads to the treasure."""

    row: Array
    column: Array
    strayed: Array  # bool


def action_map(depth: int, mapping_seed: int) -> np.ndarray:
    """Which action means 'right' in each cell [depth, depth]: bsuite's own draw, bit for bit."""
    return np.random.RandomState(mapping_seed).binomial(1, 0.5, [depth, depth]).astype(np.int32)


def deep_sea(depth: int, stochastic: bool = False, mapping_seed: int | None = None) -> Env:
    """A depth x depth grid from whose top left corner only `depth` right moves in a row reach the treasure.

    An episode's `goal` is bsuite's 'not a bad episode': it never turned left on the diagonal. In the deterministic sea that is
    the same as having reached the treasure; in the stochastic one a right move may slip, and a slip is not a mistake.
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
        f"deep-sea-{depth}",
        Discrete(depth * depth),
        Discrete(2),
        env_params,
        reset,
        observe,
        step,
        unroll=UNROLL,
    )
