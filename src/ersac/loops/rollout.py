"""One interaction; T of them."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import numpy as jnp

from ersac.agents.base import Agent
from ersac.config import ActorCritic, BootDQN
from ersac.envs.base import Env
from ersac.types import Array, Key, Learner, Trajectory, Tree


class Actor(NamedTuple):
    """What acting carries from one step to the next."""

    state: Tree  # of the environment
    episode_state: Tree  # what the agent keeps through an episode


class StepOutcomes(NamedTuple):
    """What the steps of a rollout tell of its episodes."""

    ended: Array  # [T] bool
    goal: Array  # [T] bool     read only where `ended`
    reward: Array  # [T]


def init_actor(env: Env, agent: Agent, env_params: Tree, learner: Learner, key: Key) -> Actor:
    """An actor at the start of its first episode."""
    key_env, key_agent = jax.random.split(key)
    return Actor(env.reset(env_params, key_env), agent.policy.init_episode(learner, key_agent))


class Interaction(NamedTuple):
    """One step of a trajectory, as it was acted."""

    obs: Array
    action: Array
    dist_params: Tree  # what the agent's log_mu asks for
    reward: Array
    discount: Array
    goal: Array
    mask: Array


def interact(
    env: Env,
    agent: Agent,
    env_params: Tree,
    learner: Learner,
    actor: Actor,
    action_noise: Tree,
    key: Key,
) -> tuple[Actor, Interaction]:
    """Act once, step once, and start the next episode where this one ended."""
    obs = env.observe(env_params, actor.state)
    action, dist_params = agent.policy.act(learner, actor.episode_state, obs, action_noise)
    key_step, key_begin = jax.random.split(key)
    step = env.step(env_params, actor.state, agent.policy.to_env(action), key_step)
    ended = step.discount == 0
    afresh, going_on = (
        init_actor(env, agent, env_params, learner, key_begin),
        Actor(step.state, actor.episode_state),
    )
    actor = jax.tree.map(lambda new, old: jnp.where(ended, new, old), afresh, going_on)
    return actor, Interaction(
        obs,
        action,
        dist_params,
        step.reward,
        step.discount,
        step.goal,
        jnp.asarray(step.mask, step.reward.dtype),
    )


class RolloutNoise(NamedTuple):
    """All the randomness of one rollout, drawn before it begins."""

    action_noise: Tree  # [T, ...]   decides the actions
    keys: Key  # [T]           the environment's
    noise: Tree  # [T, ...]    goes with each step to the learner


def draw_noise(settings: ActorCritic | BootDQN, agent: Agent, key: Key) -> RolloutNoise:
    """Draw a rollout's randomness. It has an address, the rollout's key, so any loop draws the same."""
    key_act, key_env, key_noise = jax.random.split(key, 3)
    length = settings.rollout
    return RolloutNoise(
        agent.policy.action_noise(key_act, length),
        jax.random.split(key_env, length),
        agent.noise(key_noise, length),
    )


def step_keys(key: Key, length: int) -> Key:
    """The environment's keys [T] in the rollout whose key this is: those of `draw_noise`, for whoever draws nothing else."""
    return jax.random.split(jax.random.split(key, 3)[1], length)


def draw_all_noise(
    settings: ActorCritic | BootDQN, agent: Agent, envs: int, key: Key
) -> RolloutNoise:
    """The randomness of a rollout in each of so many environments [N, ...]."""
    return of_envs(envs, lambda key: draw_noise(settings, agent, key))(env_keys(key, envs))


def env_keys(key: Key, envs: int) -> Key:
    """A key for each of so many environments [N]; one alone has the key itself."""
    return (
        key[None] if envs == 1 else jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(envs))
    )


def rollout(
    env: Env,
    agent: Agent,
    env_params: Tree,
    learner: Learner,
    actor: Actor,
    rollout_noise: RolloutNoise,
) -> tuple[Actor, Trajectory, StepOutcomes]:
    """T interactions with one set of parameters."""
    one = lambda actor, x: interact(env, agent, env_params, learner, actor, *x)
    actor, steps = jax.lax.scan(
        one, actor, (rollout_noise.action_noise, rollout_noise.keys), unroll=env.unroll
    )
    obs = jnp.concatenate([steps.obs, env.observe(env_params, actor.state)[None]])
    log_mu = agent.policy.log_mu(steps.dist_params, steps.action)
    t = Trajectory(
        obs, steps.action, steps.reward, steps.discount, steps.mask, log_mu, rollout_noise.noise
    )
    return actor, t, StepOutcomes(steps.discount == 0, steps.goal, steps.reward)


def of_envs(n: int, one: Callable[..., Tree]) -> Callable[..., Tree]:
    """What is done in one environment, done in n of them side by side: every result [n, ...], and so is what `one` is given.

    One alone is not mapped over: what stands around this loop is mapped over seeds already, and a second axis would only cost.
    """
    if n > 1:
        return jax.vmap(one)
    return lambda *args: jax.tree.map(lambda x: x[None], one(*jax.tree.map(lambda x: x[0], args)))
