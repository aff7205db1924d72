"""How one observation is encoded for an agent, and its action decoded for the environment."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from ersac import config
from ersac.envs.base import Box, Discrete, Space, Spec, spec_of
from ersac.envs.make import make_env, require_env_package
from ersac.policy.video import make_single_env


class SpaceCodec(NamedTuple):
    """Encodes observations for the agent, and decodes the agent's actions."""

    spec: Spec
    spaces: dict[str, Any]  # the spaces as JSON data
    encode: Callable[[Any], np.ndarray]  # a raw observation -> [1, ...], or an error as of numpy
    decode: Callable[[np.ndarray], Any]  # [1, ...] -> a raw action
    # Frame stacking: the first window of an episode, and the next window.
    reset_frames: Callable[[np.ndarray], np.ndarray] = lambda obs: obs
    push_frame: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda window, obs: obs


def make_codec(env: config.Environment) -> SpaceCodec:
    """The codec of an environment; a Gymnasium environment is created once to read its spaces."""
    require_env_package(env)
    if not env.on_host:
        return pure_codec(spec_of(make_env(env)))
    from ersac.envs.gym.spaces import space_json

    instance = make_single_env(env)
    try:
        spaces = {
            "observation": space_json(instance.observation_space),
            "action": space_json(instance.action_space),
        }
    finally:
        instance.close()
    return gym_codec(env, spaces)


def codec_from_json(env: config.Environment, spaces: dict[str, Any]) -> SpaceCodec:
    """The codec that a saved policy stores."""
    if env.on_host:
        require_env_package(env)
        return gym_codec(env, spaces)
    observations, actions = (_space_from_json(spaces[key]) for key in ("observations", "actions"))
    return pure_codec(Spec(spaces["name"], observations, actions, spaces["envs"]))


def pure_codec(spec: Spec) -> SpaceCodec:
    """The codec of a pure environment, whose spaces are ersac's."""
    observations, actions = spec.observations, spec.actions

    def encode(obs: Any) -> np.ndarray:
        if isinstance(observations, Discrete):
            return np.asarray(obs, np.int32).reshape(1)
        flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(obs)])
        return flat.reshape(1, *observations.shape).astype(np.float32)

    def decode(batch: np.ndarray) -> Any:
        return int(batch[0]) if isinstance(actions, Discrete) else batch[0].reshape(actions.shape)

    spaces = {"observations": _space_json(observations), "actions": _space_json(actions)}
    return SpaceCodec(spec, {"name": spec.name, "envs": spec.envs} | spaces, encode, decode)


def gym_codec(env: config.Gym, spaces: dict[str, Any]) -> SpaceCodec:
    """The codec of a Gymnasium environment, from its spaces as JSON data."""
    from ersac.envs.gym.spaces import (
        action_codec,
        batch_of_one,
        frame_stack,
        observation_codec,
        space_from_json,
    )

    space = space_from_json(spaces["observation"])
    single, encode = observation_codec(space)
    stack = frame_stack(single, env.frames, env.id)
    actions, decode = action_codec(space_from_json(spaces["action"]))
    return SpaceCodec(
        spec=Spec(env.id, stack.space, actions, env.envs),
        spaces=spaces,
        encode=lambda obs: encode(batch_of_one(space, obs)),
        decode=lambda batch: decode(batch)[0],
        reset_frames=stack.reset,
        push_frame=lambda window, obs: stack.push(window, obs, np.zeros(1, bool)),
    )


def _space_json(space: Space) -> dict[str, Any]:
    return {"kind": type(space).__name__, **space._asdict()}


def _space_from_json(data: dict[str, Any]) -> Space:
    classes: dict[str, Callable[..., Space]] = {"Discrete": Discrete, "Box": Box}
    fields = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in data.items()
        if name != "kind"
    }
    return classes[data["kind"]](**fields)
