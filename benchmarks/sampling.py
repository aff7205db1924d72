"""Drawing by priority: the library's two short running sums, O(n) all the same, against a sum tree, O(log n) but a walk.

One 'step' is what an update asks of the ring: sixteen draws, then sixteen new priorities.
"""

import time
from collections.abc import Callable
from functools import partial

import jax
from jax import numpy as jnp

from benchmarks.measure import Contestant
from ersac.algorithm import replay
from ersac.types import Array, Key

SLOTS, BATCH = 10_000, 16
ROUNDS = 2000  # in one call
LEVELS = (SLOTS - 1).bit_length()


def sum_draw(priority: Array, key: Key) -> Array:
    """The library's own."""
    return replay.sample_slots(priority, key, BATCH)


def sum_set(priority: Array, slots: Array, new: Array) -> Array:
    """Nothing but the priorities has to be kept up."""
    return priority.at[slots].set(new)


def tree_of(priority: Array) -> Array:
    """Sums of pairs, of pairs of pairs, up to the root at place 1; leaf i is at 2^LEVELS + i."""
    levels = [jnp.pad(priority, (0, 2**LEVELS - len(priority)))]
    while len(levels[0]) > 1:
        levels.insert(0, levels[0].reshape(-1, 2).sum(axis=1))
    return jnp.concatenate([jnp.zeros(1), *levels])


def tree_draw(tree: Array, key: Key) -> Array:
    """Walk down from the root: left where the rest is less than what is there."""
    place, rest = jnp.ones(BATCH, jnp.int32), jax.random.uniform(key, (BATCH,)) * tree[1]
    for _ in range(LEVELS):
        left = tree[2 * place]
        right = rest >= left
        place, rest = 2 * place + right, jnp.where(right, rest - left, rest)
    return place - 2**LEVELS


def tree_set(tree: Array, slots: Array, new: Array) -> Array:
    """Write the leaves, then every sum above one of them, upwards."""
    place = 2**LEVELS + slots
    tree = tree.at[place].set(new)
    for _ in range(LEVELS):
        place = place // 2
        tree = tree.at[place].set(tree[2 * place] + tree[2 * place + 1])
    return tree


def contestant(
    draw: Callable[[Array, Key], Array],
    put: Callable[[Array, Array, Array], Array],
    make: Callable[[Array], Array],
) -> Contestant:
    """Draws and new priorities without end, on one core."""
    state = make(jax.random.uniform(jax.random.key(0), (SLOTS,)))

    @partial(jax.jit, donate_argnums=0)
    def rounds(state: Array, key: Key) -> Array:
        def once(state: Array, key: Key) -> tuple[Array, None]:
            key_draw, key_new = jax.random.split(key)
            slots = draw(state, key_draw)
            return put(state, slots, jax.random.uniform(key_new, (BATCH,))), None

        return jax.lax.scan(once, state, jax.random.split(key, ROUNDS))[0]

    for number in range(10**9):
        began = time.perf_counter()
        state = jax.block_until_ready(rounds(state, jax.random.key(number)))
        yield ROUNDS, time.perf_counter() - began


def short_sums() -> Contestant:
    """As the library draws."""
    return contestant(sum_draw, sum_set, lambda priority: priority)


def sum_tree() -> Contestant:
    """As most replays do."""
    return contestant(tree_draw, tree_set, tree_of)
