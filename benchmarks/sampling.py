"""Prioritised sampling: the prefix sums of ersac's replay, O(n), against a sum tree, O(log n).

One 'step' is one round: what an update needs, sixteen draws and sixteen new priorities.
"""

import itertools
import time
from collections.abc import Callable
from functools import partial

import jax
from jax import numpy as jnp

from benchmarks.measure import Workload
from ersac.algorithm import replay
from ersac.types import Array, Key

SLOTS, BATCH = 10_000, 16
ROUNDS = 2000  # in one call
LEVELS = (SLOTS - 1).bit_length()


def draw_by_prefix_sums(priority: Array, key: Key) -> Array:
    """Draw slots as the library does."""
    return replay.sample_slots(priority, key, BATCH)


def set_priorities(priority: Array, slots: Array, values: Array) -> Array:
    """Set priorities; there is nothing else to update."""
    return priority.at[slots].set(values)


def make_tree(priority: Array) -> Array:
    """A binary tree of sums with its root at index 1; leaf i is at 2^LEVELS + i."""
    levels = [jnp.pad(priority, (0, 2**LEVELS - len(priority)))]
    while len(levels[0]) > 1:
        levels.insert(0, levels[0].reshape(-1, 2).sum(axis=1))
    return jnp.concatenate([jnp.zeros(1), *levels])


def draw_from_tree(tree: Array, key: Key) -> Array:
    """Walk down from the root: left where the remainder is below the sum on the left."""
    node, rest = jnp.ones(BATCH, jnp.int32), jax.random.uniform(key, (BATCH,)) * tree[1]
    for _ in range(LEVELS):
        left = tree[2 * node]
        right = rest >= left
        node, rest = 2 * node + right, jnp.where(right, rest - left, rest)
    return node - 2**LEVELS


def set_in_tree(tree: Array, slots: Array, values: Array) -> Array:
    """Set the leaves, then recompute every sum above them."""
    node = 2**LEVELS + slots
    tree = tree.at[node].set(values)
    for _ in range(LEVELS):
        node = node // 2
        tree = tree.at[node].set(tree[2 * node] + tree[2 * node + 1])
    return tree


def sampling_workload(
    draw: Callable[[Array, Key], Array],
    set_values: Callable[[Array, Array, Array], Array],
    make: Callable[[Array], Array],
) -> Workload:
    """Endless rounds of draws and new priorities, on one core."""
    state = make(jax.random.uniform(jax.random.key(0), (SLOTS,)))

    @partial(jax.jit, donate_argnums=0)
    def run_rounds(state: Array, key: Key) -> Array:
        def one_round(state: Array, key: Key) -> tuple[Array, None]:
            key_draw, key_values = jax.random.split(key)
            slots = draw(state, key_draw)
            return set_values(state, slots, jax.random.uniform(key_values, (BATCH,))), None

        return jax.lax.scan(one_round, state, jax.random.split(key, ROUNDS))[0]

    for number in itertools.count():
        start = time.perf_counter()
        state = jax.block_until_ready(run_rounds(state, jax.random.key(number)))
        yield ROUNDS, time.perf_counter() - start


def prefix_sums() -> Workload:
    """Rounds as the library's replay makes them."""
    return sampling_workload(draw_by_prefix_sums, set_priorities, lambda priority: priority)


def sum_tree() -> Workload:
    """Rounds with a sum tree, as most replay buffers have it."""
    return sampling_workload(draw_from_tree, set_in_tree, make_tree)
