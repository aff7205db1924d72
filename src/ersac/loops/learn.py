"""What a learner does with new rollouts: push, draw, update, reweight. Every loop calls this."""

from typing import Any

import jax
from jax import numpy as jnp

from ersac.agents.base import Agent
from ersac.feeds import Feed
from ersac.types import Array, Key, Learner, Trajectory, Tree


def learn(agent: Agent, feed: Feed, learner: Learner, food: Tree, newest: Trajectory, key: Key) -> tuple[Learner, Tree, dict[str, Array]]:
    """Take in new rollouts [N, ...], then update as often as the feed says; metrics are means over the updates."""
    learner, food = agent.observe(learner, newest), feed.push(food, newest)

    def once(state: tuple[Learner, Tree], update: Any) -> tuple[tuple[Learner, Tree], dict[str, Array]]:
        learner, food = state
        batch, slots = feed.draw(food, newest, update, jax.random.fold_in(key, update))
        learner, priority, metrics = agent.update(learner, batch)
        return (learner, feed.reweight(food, slots, priority)), metrics

    if feed.updates == 1:
        (learner, food), metrics = once((learner, food), 0)
        return learner, food, metrics
    (learner, food), metrics = jax.lax.scan(once, (learner, food), jnp.arange(feed.updates))
    return learner, food, jax.tree.map(jnp.mean, metrics)
