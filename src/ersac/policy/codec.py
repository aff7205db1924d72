"""How one observation is encoded for an agent, and its action decoded for the environment."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from ersac import config
from ersac.envs.base import ActionSpace, Box, Discrete, MultiDiscrete, Space, Spec, spec_of
from ersac.envs.make import make_env, require_env_package
from ersac.policy.video import make_single_env


class SpaceCodec(NamedTuple):
    """Encodes observations for the agent, and decodes the agent's actions."""

    spec: Spec
    spaces: dict[str, Any]  # the spaces as JSON data
    # a raw observation, the mask of allowed actions or None -> [1, ...], or an error as of numpy
    encode: Callable[[Any, Any], np.ndarray]
    decode: Callable[[np.ndarray], Any]  # [1, ...] -> a raw action
    batch_size: Callable[[Any], int | None]  # of raw observations; None: it is a single one
    # Frame stacking: the first window of an episode, and the next window.
    reset_frames: Callable[[np.ndarray], np.ndarray] = lambda obs: obs
    push_frame: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda window, obs: obs


def make_codec(env: config.Environment) -> SpaceCodec:
    """The codec of an environment; a Gymnasium environment is created once to read its spaces."""
    require_env_package(env)
    if not env.on_host:
        return pure_codec(spec_of(make_env(env)))
    from ersac.envs.gym.host import mask_sizes
    from ersac.envs.gym.spaces import space_json

    instance = make_single_env(env)
    try:
        spaces: dict[str, Any] = {
            "observation": space_json(instance.observation_space),
            "action": space_json(instance.action_space),
        }
    finally:
        instance.close()
    if mask_sizes(lambda: make_single_env(env)) is not None:
        spaces["masks"] = True
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

    def encode(obs: Any, action_mask: Any = None) -> np.ndarray:
        if isinstance(observations, Discrete):
            return np.asarray(obs, np.int32).reshape(1)
        assert isinstance(observations, Box)
        flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(obs)])
        return flat.reshape(1, *observations.shape).astype(np.float32)

    def decode(batch: np.ndarray) -> Any:
        if isinstance(actions, Discrete):
            return int(batch[0])
        return batch[0].reshape(actions.shape) if isinstance(actions, Box) else batch[0]

    spaces: dict[str, Any] = {
        "observations": _space_json(observations),
        "actions": _space_json(actions),
    }
    spaces |= {"name": spec.name, "envs": spec.envs}
    shape = getattr(observations, "shape", ())
    return SpaceCodec(spec, spaces, encode, decode, lambda obs: array_batch_size(obs, shape))


def gym_codec(env: config.Gym | config.Atari, spaces: dict[str, Any]) -> SpaceCodec:
    """The codec of a Gymnasium environment, from its spaces as JSON data."""
    from ersac.envs.gym.spaces import (
        MASK_KEY,
        action_codec,
        batch_of_one,
        choice_sizes,
        frame_stack,
        mask_codec,
        observation_codec,
        read_mask,
        space_from_json,
    )

    space, action_space = (space_from_json(spaces[key]) for key in ("observation", "action"))
    single, encode_batch = observation_codec(space)
    actions, decode = action_codec(action_space)
    sizes = choice_sizes(action_space) if spaces.get("masks") else None
    masks = None if sizes is None else mask_codec(single, sizes)
    stack = frame_stack(single if masks is None else masks.space, env.frames, env.id)

    def encode(obs: Any, action_mask: Any) -> np.ndarray:
        encoded = encode_batch(batch_of_one(space, obs))
        if isinstance(single, Discrete) and not 0 <= encoded[0] < single.n:
            raise ValueError(f"its space has {single.n} values")
        if masks is None or sizes is None:
            return encoded
        mask = read_mask({MASK_KEY: action_mask}, sizes, at_end=action_mask is None)
        return masks.add(encoded, mask[None])

    return SpaceCodec(
        spec=Spec(env.id, stack.space, actions, env.envs),
        spaces=spaces,
        encode=encode,
        decode=lambda batch: decode(batch)[0],
        batch_size=lambda obs: gym_batch_size(space, obs),
        reset_frames=stack.reset,
        push_frame=lambda window, obs: stack.push(window, obs, np.zeros(1, bool)),
    )


def array_batch_size(obs: Any, shape: tuple[int, ...]) -> int | None:
    """The number of observations of that shape in an array; None if it is a single one."""
    try:
        found: tuple[int, ...] = () if isinstance(obs, dict | tuple) else np.shape(obs)
    except ValueError:  # a ragged list: `encode` says what is wrong
        return None
    return found[0] if len(found) == len(shape) + 1 and found[1:] == shape else None


def gym_batch_size(space: Any, obs: Any) -> int | None:
    """The number of observations of a Gymnasium space, batched by entry; None for a single one."""
    entries: Any = getattr(space, "spaces", None)
    if entries is None:
        return None if space.shape is None else array_batch_size(obs, space.shape)
    pairs = entries.items() if isinstance(entries, dict) else enumerate(entries)
    try:
        sizes = [gym_batch_size(entry, obs[key]) for key, entry in pairs]
    except (KeyError, IndexError, TypeError):
        return None  # `encode` says what is wrong
    return next((size for size in sizes if size is not None), None)


def take_observation(obs: Any, index: int) -> Any:
    """One observation of a batch."""
    if isinstance(obs, dict):
        return {key: take_observation(entry, index) for key, entry in obs.items()}
    if isinstance(obs, tuple):
        return tuple(take_observation(entry, index) for entry in obs)
    return obs[index]


def _space_json(space: Space | ActionSpace) -> dict[str, Any]:
    return {"kind": type(space).__name__, **space._asdict()}


def _space_from_json(data: dict[str, Any]) -> Any:
    classes: dict[str, Callable[..., Any]] = {
        cls.__name__: cls for cls in (Discrete, Box, MultiDiscrete)
    }
    fields = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in data.items()
        if name != "kind"
    }
    return classes[data["kind"]](**fields)
