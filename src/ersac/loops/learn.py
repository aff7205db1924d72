"""What a learner does with new rollouts: push, draw, update, reweight. Every loop calls this."""

from typing import Any

import jax
from jax import numpy as jnp

from ersac.agents.base import Agent
from ersac.algorithm.replay import Buffer
from ersac.types import Array, Key, Learner, Trajectory, Tree


def learn(
    agent: Agent, buffer: Buffer, learner: Learner, buffer_state: Tree, newest: Trajectory, key: Key
) -> tuple[Learner, Tree, dict[str, Array]]:
    """Take in new rollouts [N, ...], then update as often as the feed says; metrics are means over the updates."""
    learner, buffer_state = agent.observe(learner, newest), buffer.push(buffer_state, newest)

    def once(
        state: tuple[Learner, Tree], update: Any
    ) -> tuple[tuple[Learner, Tree], dict[str, Array]]:
        learner, buffer_state = state
        batch, slots = buffer.draw(buffer_state, newest, update, jax.random.fold_in(key, update))
        learner, priority, metrics = agent.update(learner, batch)
        return (learner, buffer.set_priorities(buffer_state, slots, priority)), metrics

    if buffer.updates == 1:
        (learner, buffer_state), metrics = once((learner, buffer_state), 0)
        return learner, buffer_state, metrics
    (learner, buffer_state), metrics = jax.lax.scan(
        once, (learner, buffer_state), jnp.arange(buffer.updates)
    )
    return learner, buffer_state, jax.tree.map(jnp.mean, metrics)
