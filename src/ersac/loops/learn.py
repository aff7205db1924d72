"""What every loop does with new rollouts: observe, push, then draw and update."""

from typing import Any

import jax
from jax import numpy as jnp

from ersac.agents.base import Agent, Metrics
from ersac.algorithm.replay import Buffer
from ersac.types import Key, Learner, Trajectory, Tree


def store_new(
    agent: Agent, buffer: Buffer, learner: Learner, buffer_state: Tree, newest: Trajectory
) -> tuple[Learner, Tree]:
    """Observe and store new rollouts [N, ...]."""
    return agent.observe(learner, newest), buffer.push(buffer_state, newest)


def update_once(
    agent: Agent,
    buffer: Buffer,
    learner: Learner,
    buffer_state: Tree,
    newest: Trajectory,
    key: Key,
    number: Any,
) -> tuple[Learner, Tree, Metrics]:
    """Take update `number` after new rollouts."""
    batch, slots = buffer.draw(buffer_state, newest, number, jax.random.fold_in(key, number))
    learner, priority, metrics = agent.update(learner, batch)
    return learner, buffer.set_priorities(buffer_state, slots, priority), metrics


def learn(
    agent: Agent, buffer: Buffer, learner: Learner, buffer_state: Tree, newest: Trajectory, key: Key
) -> tuple[Learner, Tree, Metrics]:
    """Store new rollouts [N, ...] and take the buffer's number of updates.

    Returns the learner, the buffer's state and the mean of the metrics over the updates.
    """
    learner, buffer_state = store_new(agent, buffer, learner, buffer_state, newest)

    def update(state: tuple[Learner, Tree], number: Any) -> tuple[tuple[Learner, Tree], Metrics]:
        learner, buffer_state, metrics = update_once(agent, buffer, *state, newest, key, number)
        return (learner, buffer_state), metrics

    if buffer.updates == 1:
        (learner, buffer_state), metrics = update((learner, buffer_state), 0)
        return learner, buffer_state, metrics
    (learner, buffer_state), metrics = jax.lax.scan(
        update, (learner, buffer_state), jnp.arange(buffer.updates)
    )
    return learner, buffer_state, jax.tree.map(jnp.mean, metrics)
