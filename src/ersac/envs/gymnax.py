"""gymnax environments as pure environments."""

from typing import Any, NamedTuple

import gymnax
import jax
import numpy as np
from gymnax.environments import spaces
from jax import numpy as jnp

from ersac.config import SettingsError, suggest
from ersac.envs.base import Box, Discrete, Env, Step, error_line
from ersac.types import Array, Key, Tree

MINATAR = "gymnax.environments.minatar."  # observations of its games are bits, made floats


class GymnaxState(NamedTuple):
    """The state of a gymnax environment, and its observation."""

    inner: Tree
    obs: Array
    truncated: Array  # bool   the time limit was reached: the next step is a fake one


def gymnax_env(name: str, envs: int, target: float | None = None) -> Env:
    """The gymnax environment of that name with its default parameters."""
    if name not in gymnax.registered_envs:
        raise SettingsError(
            f"unknown gymnax environment {name}{suggest(name, gymnax.registered_envs)}"
        )
    with jax.ensure_compile_time_eval():  # it may be created while a loop is traced
        try:
            env, params = gymnax.make(name)
        except Exception as error:  # one environment downloads its data
            raise SettingsError(f"{name} cannot be created: {error_line(error)}") from error
        observations = convert_space(name, env.observation_space(params))
        if type(env).__module__.startswith(MINATAR) and isinstance(observations, Box):
            observations = observations._replace(stored_as="bits")
        actions = convert_space(name, env.action_space(params))

    def encode(obs: Any) -> Array:
        if isinstance(observations, Discrete):
            return jnp.asarray(obs, jnp.int32).reshape(())
        flat = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(obs)])
        return flat.reshape(observations.shape).astype(jnp.float32)

    def reset(env_params: Tree, key: Key) -> GymnaxState:
        obs, inner = env.reset_env(key, params)
        return GymnaxState(inner, encode(obs), jnp.bool_(False))

    def step(env_params: Tree, state: GymnaxState, action: Array, key: Key) -> Step:
        obs, inner, reward, terminated, _ = env.step_env(key, state.inner, action, params)
        terminated = jnp.asarray(terminated, bool)
        truncated = env.is_truncated(inner, params) & ~terminated
        real = ~state.truncated
        following = GymnaxState(inner, encode(obs), truncated)
        reward = jnp.where(real, jnp.asarray(reward, jnp.float32).reshape(()), 0.0)
        discount = jnp.where(real & ~terminated, 1.0, 0.0)
        return Step(following, reward, discount, jnp.bool_(False), jnp.where(real, 1.0, 0.0))

    return Env(
        name=name,
        observations=observations,
        actions=actions,
        env_params=lambda seed: (),
        reset=reset,
        observe=lambda env_params, state: state.obs,
        step=step,
        envs=envs,
        target=target,
    )


def convert_space(name: str, space: Any) -> Discrete | Box:
    """A gymnax space as one of ersac."""
    match space:
        case spaces.Discrete():
            return Discrete(int(space.n))
        case spaces.Box():
            bounds = (
                np.broadcast_to(np.asarray(bound, float), space.shape).ravel()
                for bound in (space.low, space.high)
            )
            low, high = (tuple(float(x) for x in bound) for bound in bounds)
            return Box(tuple(space.shape) or (1,), False, low, high)
        case spaces.Dict():
            parts = [convert_space(name, sub) for sub in space.spaces.values()]
            return Box((sum(1 if isinstance(part, Discrete) else part.size for part in parts),))
    raise SettingsError(f"{name} has a {type(space).__name__} space, which is not supported")
