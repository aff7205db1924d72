"""What the learner eats: every rollout once, or rollouts that are kept and drawn again by priority. One seam for both.

Whole rollouts are kept, each with the probabilities it was acted with and the noise that its rewards were given, so that no draw
straddles the place where the ring is being written.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import numpy as jnp

from ersac.types import Array, Key, Trajectory, Tree

LEAST = 1e-8  # added to every priority, so that a rollout with nothing left to tell differs from a slot that holds none
ROUNDING = 1e-6  # of a fraction in single precision, and more


class Buffer(NamedTuple):
    """Rollouts go in, as many at a time as there are environments, and come out in batches, a number of batches for each time."""

    updates: int  # batches after each push
    init: Callable[[Trajectory], Tree]  # an example of one rollout -> a state that holds nothing
    push: Callable[[Tree, Trajectory], Tree]  # state, rollouts [N, ...]
    draw: Callable[
        [Tree, Trajectory, Array, Key], tuple[Trajectory, Array]
    ]  # state, newest [N], update, key -> (batch [B], slots [B])
    set_priorities: Callable[
        [Tree, Array, Array], Tree
    ]  # state, slots [B], priorities [B] -> state


def on_policy(passes: int = 1, envs: int = 1, minibatch: int | None = None) -> Buffer:
    """The newest rollouts, `passes` times over, at most `minibatch` of them in an update; nothing is kept."""
    parts = -(-envs // (minibatch or envs))  # that the rollouts are dealt out to
    size = -(-envs // parts)

    def draw(
        buffer_state: Tree, newest: Trajectory, update: Array, key: Key
    ) -> tuple[Trajectory, Array]:
        slots = (update + parts * jnp.arange(size)) % envs
        return (
            (newest, slots) if size == envs else (jax.tree.map(lambda x: x[slots], newest), slots)
        )

    return Buffer(
        passes * parts,
        lambda example: (),
        lambda buffer_state, newest: buffer_state,
        draw,
        lambda buffer_state, slots, priority: buffer_state,
    )


class RingState(NamedTuple):
    """The last rollouts, and how much is thought to be learned from each."""

    rollouts: Trajectory  # [capacity, ...]
    priority: Array  # [capacity]   0 where nothing is kept yet
    pushed: Array  # [] int32


def prioritised(
    capacity: int,
    batch: int,
    updates: int,
    offline_fraction: float | Array,
    exponent: float | Array,
) -> Buffer:
    """A ring of whole rollouts, drawn in proportion to priority^exponent (Schaul et al. 2015) beside the newest ones."""

    def init(example: Trajectory) -> RingState:
        kept = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), example)
        return RingState(kept, jnp.zeros(capacity), jnp.zeros((), jnp.int32))

    def push(ring: RingState, newest: Trajectory) -> RingState:
        """What has not been learned from may be as surprising as anything: it has the greatest priority there is."""
        n = len(newest.reward)
        slots = (ring.pushed + jnp.arange(n)) % capacity
        greatest = jnp.where(ring.pushed == 0, 1.0, jnp.max(ring.priority))
        kept = jax.tree.map(
            lambda all_slots, some: all_slots.at[slots].set(some), ring.rollouts, newest
        )
        return RingState(kept, ring.priority.at[slots].set(greatest), ring.pushed + n)

    def draw(
        ring: RingState, newest: Trajectory, update: Array, key: Key
    ) -> tuple[Trajectory, Array]:
        relative = ring.priority / jnp.max(
            ring.priority
        )  # whose powers neither overflow nor all vanish
        weights = jnp.where(ring.priority > 0, relative**exponent, 0.0)
        number = update * batch + jnp.arange(batch)
        turn = newest_before(offline_fraction, number) % len(
            newest.reward
        )  # each of the newest in its turn
        drawn = jnp.minimum(
            sample_slots(weights, key, batch), ring.pushed - 1
        )  # rounding may let a running sum grow where nothing is kept
        slots = jnp.where(
            is_newest(offline_fraction, number), (ring.pushed - 1 - turn) % capacity, drawn
        )
        return jax.tree.map(lambda x: x[slots], ring.rollouts), slots

    def set_priorities(ring: RingState, slots: Array, priority: Array) -> RingState:
        return ring._replace(priority=ring.priority.at[slots].set(priority + LEAST))

    return Buffer(updates, init, push, draw, set_priorities)


def sample_slots(weights: Array, key: Key, n: int) -> Array:
    """Draw n places in proportion to their weights, with replacement; never one whose weight is 0.

    First a block of about sqrt(len) weights, then a place in it. All weights are read, but only short sums run: at 10,000 that is
    two to three times as fast as one running sum, and faster than walking down a tree of sums (`ersac bench --only sampling`).
    """
    side = math.isqrt(len(weights) - 1) + 1
    blocks = jnp.pad(weights, (0, side**2 - len(weights))).reshape(side, side)
    total = jnp.cumsum(jnp.sum(blocks, axis=1))  # [side]
    block, rest = _found(total, jax.random.uniform(key, (n,)) * total[-1])
    place, _ = jax.vmap(_found)(jnp.cumsum(blocks[block], axis=1), rest)
    return block * side + place


def _found(total: Array, height: Array) -> tuple[Array, Array]:
    """Where a running sum first exceeds heights, and how far below its step each is; rounding never leads beyond the last step."""
    height = jnp.clip(height, 0.0, jnp.nextafter(total[-1], jnp.zeros_like(total[-1])))
    place = jnp.searchsorted(total, height, side="right")
    return place, height - jnp.where(place > 0, total[place - 1], 0.0)


def newest_before(offline_fraction: float | Array, number: Array) -> Array:
    """How many of the first `number` rollouts drawn since a push are of those that were pushed.

    The first is, and after it as many as bring the share of the others to the fraction: of 32 with a fraction of 0.97 just the first.
    """
    return jnp.ceil(jnp.maximum(1 - offline_fraction - ROUNDING, 0.0) * number).astype(jnp.int32)


def is_newest(offline_fraction: float | Array, number: Array) -> Array:
    """Whether the number-th rollout drawn since a push, counted from 0, is one of those that were pushed."""
    return newest_before(offline_fraction, number + 1) > newest_before(offline_fraction, number)
