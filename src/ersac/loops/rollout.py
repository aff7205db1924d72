"""One interaction; T of them."""

from typing import NamedTuple

import jax
from jax import numpy as jnp

from ersac.agents.base import Agent
from ersac.config import ActorCritic, Counts, Ensemble
from ersac.envs.base import Env
from ersac.types import Array, Key, Learner, Trajectory, Tree


class Actor(NamedTuple):
    """What acting carries from one rollout to the next."""

    state: Tree  # of the environment
    kept: Tree  # what the agent keeps through an episode
    episode_return: Array  # of the episode under way


class Facts(NamedTuple):
    """What an episode's last step tells of it; read only where `ended`."""

    ended: Array  # [T] bool
    goal: Array  # [T] bool
    episode_return: Array  # [T]


def begin(env: Env, agent: Agent, world: Tree, learner: Learner, key: Key) -> Actor:
    """An actor at the start of its first episode."""
    key_env, key_agent = jax.random.split(key)
    return Actor(env.reset(world, key_env), agent.begin(learner, key_agent), jnp.zeros(()))


class Interaction(NamedTuple):
    """One step of a trajectory, as it was acted."""

    obs: Array
    action: Array
    reward: Array
    discount: Array
    log_mu: Array


def interact(
    env: Env, agent: Agent, world: Tree, learner: Learner, actor: Actor, uniform: Array, key: Key
) -> tuple[Actor, tuple[Interaction, Facts]]:
    """Act once, step once, and start the next episode where this one ended."""
    obs = env.observe(world, actor.state)
    action, log_mu = agent.act(learner, actor.kept, obs, uniform)
    step = env.step(world, actor.state, action, key)
    ended = step.discount == 0
    total = actor.episode_return + step.reward
    afresh, going_on = begin(env, agent, world, learner, key), Actor(step.state, actor.kept, total)
    actor = jax.tree.map(lambda new, old: jnp.where(ended, new, old), afresh, going_on)
    return actor, (Interaction(obs, action, step.reward, step.discount, log_mu), Facts(ended, step.goal, total))


class Dice(NamedTuple):
    """All the randomness of one rollout, drawn before it begins."""

    uniform: Array  # [T]      decides the actions
    keys: Key  # [T]           the environment's
    noise: Array  # [T, K]     goes with each step's reward for ever; see reward_noise


def throw(settings: ActorCritic, key: Key) -> Dice:
    """Draw a rollout's randomness. It has an address, the rollout's key, so any loop draws the same."""
    key_act, key_env, key_noise = jax.random.split(key, 3)
    uniform = jax.random.uniform(key_act, (settings.rollout,))
    return Dice(uniform, jax.random.split(key_env, settings.rollout), reward_noise(settings.uncertainty, settings.rollout, key_noise))


def reward_noise(uncertainty: Ensemble | Counts, length: int, key: Key) -> Array:
    """The noise zeta of each step and member [T, K] (section 'Incorporating Off-Policy Data'); none on-policy."""
    if not isinstance(uncertainty, Ensemble):
        return jnp.zeros((length, 0))
    if uncertainty.noise_variance is None:
        return jnp.zeros((length, uncertainty.members))
    return jnp.sqrt(uncertainty.noise_variance) * jax.random.normal(key, (length, uncertainty.members))


def rollout(env: Env, agent: Agent, world: Tree, learner: Learner, actor: Actor, dice: Dice) -> tuple[Actor, Trajectory, Facts]:
    """T interactions with one set of parameters."""
    one = lambda actor, x: interact(env, agent, world, learner, actor, *x)
    actor, (steps, facts) = jax.lax.scan(one, actor, (dice.uniform, dice.keys))
    obs = jnp.concatenate([steps.obs, env.observe(world, actor.state)[None]])
    return actor, Trajectory(obs, steps.action, steps.reward, steps.discount, jnp.ones_like(steps.reward), steps.log_mu, dice.noise), facts
