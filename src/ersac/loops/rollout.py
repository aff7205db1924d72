"""Acting in a pure environment: one step, and a rollout of T steps."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import numpy as jnp

from ersac.agents.base import Agent
from ersac.config import ActorCritic, BootDQN
from ersac.envs.base import Env
from ersac.types import Array, Key, Learner, Trajectory, Tree


class Actor(NamedTuple):
    """The state of acting in one environment."""

    state: Tree  # of the environment
    episode_state: Tree  # of the policy, see agents/base.py


class StepOutcomes(NamedTuple):
    """The outcomes of the steps of a rollout, from which results of episodes are computed."""

    ended: Array  # [T] bool
    goal: Array  # [T] bool     read only where `ended`
    reward: Array  # [T]
    is_real: Array  # [T] bool  not the fake step after a truncation


def init_actor(env: Env, agent: Agent, env_params: Tree, learner: Learner, key: Key) -> Actor:
    """Return an actor at the start of an episode."""
    key_env, key_agent = jax.random.split(key)
    return Actor(env.reset(env_params, key_env), agent.policy.init_episode(learner, key_agent))


class Interaction(NamedTuple):
    """One step of a trajectory."""

    obs: Array
    action: Array
    dist_params: Tree  # input of the policy's log_mu
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
    """Act and step once; start the next episode where this one ended."""
    obs = env.observe(env_params, actor.state)
    action, dist_params = agent.policy.act(learner, actor.episode_state, obs, action_noise)
    key_step, key_reset = jax.random.split(key)
    step = env.step(env_params, actor.state, agent.policy.to_env(action), key_step)
    ended = step.discount == 0
    restarted = init_actor(env, agent, env_params, learner, key_reset)
    continued = Actor(step.state, actor.episode_state)
    actor = jax.tree.map(lambda new, old: jnp.where(ended, new, old), restarted, continued)
    return actor, Interaction(
        obs=obs,
        action=action,
        dist_params=dist_params,
        reward=step.reward,
        discount=step.discount,
        goal=step.goal,
        mask=jnp.asarray(step.mask, step.reward.dtype),
    )


class RolloutNoise(NamedTuple):
    """All randomness of one rollout, drawn before its first step."""

    action_noise: Tree  # [T, ...]   input of the policy's act
    keys: Key  # [T]                 of the environment
    noise: Tree  # [T, ...]          stored in the trajectory


def draw_noise(settings: ActorCritic | BootDQN, agent: Agent, key: Key) -> RolloutNoise:
    """Return a rollout's randomness. It depends on the rollout's key only, not on the loop."""
    key_act, key_env, key_noise = jax.random.split(key, 3)
    length = settings.rollout
    return RolloutNoise(
        action_noise=agent.policy.action_noise(key_act, length),
        keys=jax.random.split(key_env, length),
        noise=agent.noise(key_noise, length),
    )


def step_keys(key: Key, length: int) -> Key:
    """Return the environment's keys [T] of `draw_noise`, without the rest of the randomness."""
    return jax.random.split(jax.random.split(key, 3)[1], length)


def draw_all_noise(
    settings: ActorCritic | BootDQN, agent: Agent, envs: int, key: Key
) -> RolloutNoise:
    """Return the randomness of a rollout in each of N environments [N, ...]."""
    return vmap_envs(envs, lambda key: draw_noise(settings, agent, key))(env_keys(key, envs))


def env_keys(key: Key, envs: int) -> Key:
    """Return a key for each of N environments [N]; a single environment has the key itself."""
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
    """Act for T steps with one set of parameters."""
    one = lambda actor, x: interact(env, agent, env_params, learner, actor, *x)
    actor, steps = jax.lax.scan(
        one, actor, (rollout_noise.action_noise, rollout_noise.keys), unroll=env.unroll
    )
    t = Trajectory(
        obs=jnp.concatenate([steps.obs, env.observe(env_params, actor.state)[None]]),
        action=steps.action,
        reward=steps.reward,
        discount=steps.discount,
        mask=steps.mask,
        log_mu=agent.policy.log_mu(steps.dist_params, steps.action),
        noise=rollout_noise.noise,
    )
    return actor, t, StepOutcomes(steps.discount == 0, steps.goal, steps.reward, steps.mask > 0)


def vmap_envs(envs: int, function: Callable[..., Tree]) -> Callable[..., Tree]:
    """Return `jax.vmap(function)` over N environments; arguments and results are [N, ...].

    For N = 1 there is no vmap: the loop is already vmapped over seeds, and a second axis has a
    cost.
    """
    if envs > 1:
        return jax.vmap(function)
    return lambda *args: jax.tree.map(
        lambda x: x[None], function(*jax.tree.map(lambda x: x[0], args))
    )
