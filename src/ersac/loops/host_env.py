"""A pure environment as a host environment, to evaluate in it and to compare the loops."""

from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from ersac import config
from ersac.envs.base import Env, HostEnv, HostStep
from ersac.loops.base import FIRST_RESET
from ersac.loops.rollout import env_keys, step_keys
from ersac.types import Array, Key, Tree


def to_host_env(env: Env, settings: config.Experiment) -> HostEnv:
    """Return a pure environment as a host environment, with the randomness of the device loop.

    As in that loop, a truncated episode ends on its fake step.
    """
    length, seed = settings.agent.rollout, settings.run.seed
    env_params, base_key = jax.tree.map(jnp.asarray, env.env_params(seed)), jax.random.key(seed)
    reset_all = jax.jit(jax.vmap(lambda key: env.reset(env_params, jax.random.split(key)[0])))
    observe_all = jax.jit(jax.vmap(lambda state: env.observe(env_params, state)))
    current: dict[str, Any] = {"t": 0}

    @jax.jit
    def step_all(state: Tree, action: Array, rollout: Array, t: Array) -> tuple[Tree, Any]:
        def one(state: Tree, action: Array, key: Key) -> tuple[Tree, Any]:
            key_step, key_reset = jax.random.split(step_keys(key, length)[t])
            step = env.step(env_params, state, action, key_step)
            restarted = env.reset(env_params, jax.random.split(key_reset)[0])
            ended = step.discount == 0
            state = jax.tree.map(lambda new, old: jnp.where(ended, new, old), restarted, step.state)
            return state, step._replace(state=(), mask=jnp.asarray(step.mask, step.reward.dtype))

        keys = env_keys(jax.random.fold_in(base_key, rollout), env.envs)
        return jax.vmap(one)(state, action, keys)

    def reset(seed: int) -> np.ndarray:
        current["state"] = reset_all(env_keys(jax.random.fold_in(base_key, FIRST_RESET), env.envs))
        return np.asarray(observe_all(current["state"]))

    def step(action: np.ndarray) -> HostStep:
        rollout, t = divmod(current["t"], length)
        current["state"], step = step_all(current["state"], action, rollout, t)
        current["t"] += 1
        reward, discount, goal, mask = map(
            np.asarray, (step.reward, step.discount, step.goal, step.mask)
        )
        obs = np.asarray(observe_all(current["state"]))
        return HostStep(obs, reward, discount, mask, ended=discount == 0, goal=goal)

    return HostEnv(
        name=env.name,
        observations=env.observations,
        actions=env.actions,
        envs=env.envs,
        reset=reset,
        step=step,
        close=lambda: None,
        target=env.target,
    )
