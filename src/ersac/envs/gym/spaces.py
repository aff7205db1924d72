"""Gymnasium spaces: encode observations, decode actions, stack frames, read and write JSON.

A saved policy stores its spaces as JSON, so that it is loaded without its environment. No jax here.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from ersac.config import SettingsError
from ersac.envs.base import ActionSpace, Box, Discrete, MultiDiscrete, PackedSpace, Space

TABLE_LIMIT = 100_000  # a MultiDiscrete of at most so many states becomes Discrete: tables apply
MASK_KEY = "action_mask"  # of an info: the choices that are allowed in the next step
LEFT_OUT = spaces.Text(1)  # stands for what agents cannot observe: text, graphs, sequences

Encode = Callable[
    [Any], np.ndarray
]  # N observations, batched by Gymnasium -> [N, ...], a new array


def observation_codec(space: gymnasium.Space) -> tuple[Space, Encode]:
    """The agent's observation space for a Gymnasium space, and the function that encodes a batch.

    A Dict or a Tuple becomes one vector, or with cameras in it a PackedSpace of the cameras and
    one vector of all other entries; text, graphs and sequences are left out.
    """
    match space:
        case spaces.Discrete():
            return Discrete(int(space.n)), lambda obs: (obs - space.start).astype(np.int32)
        case spaces.MultiDiscrete() if (n := math.prod(space.nvec.ravel().tolist())) <= TABLE_LIMIT:
            sizes = space.nvec.ravel()
            strides = np.append(np.cumprod(sizes[:0:-1])[::-1], 1)  # the last entry varies fastest
            return Discrete(n), lambda obs: (
                (obs - space.start).reshape(len(obs), -1) @ strides
            ).astype(np.int32)
        case spaces.Box() if _is_image(space):
            return _image_codec(space)
        case spaces.Box():
            if not space.shape:
                return Box((1,)), lambda obs: obs[:, None].astype(np.float32)
            stored_as: Any = "bytes" if space.dtype == np.uint8 else "floats"
            return Box(space.shape, stored_as=stored_as), lambda obs: obs.astype(np.float32)
    cameras, vector = _camera_codecs(space), _vector_codec(space)
    if not cameras and vector is None:
        raise SettingsError(
            f"observation space {space} is not supported: wrap the environment so that it is Box, "
            "Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them"
        )
    entries, encoders = [box for box, _ in cameras], [encode for _, encode in cameras]
    if vector is not None:
        stored_as = "bits" if isinstance(space, spaces.MultiBinary) else "floats"
        entries.append(Box((vector.size,), stored_as=stored_as))
        encoders.append(vector.encode)
    if not cameras:
        return entries[0], encoders[0]
    return PackedSpace(tuple(entries)), lambda obs: pack_bytes([encode(obs) for encode in encoders])


def pack_bytes(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The bytes of arrays [N, ...], one after the other [N, bytes]."""
    flat = [np.ascontiguousarray(array).reshape(len(array), -1) for array in arrays]
    return np.concatenate([array.view(np.uint8) for array in flat], axis=1)


class MaskCodec(NamedTuple):
    """How the mask of allowed actions is added to an observation."""

    space: PackedSpace
    add: Callable[
        [np.ndarray, np.ndarray], np.ndarray
    ]  # observations, masks [N, n] -> observations


def mask_codec(single: Space, sizes: tuple[int, ...]) -> MaskCodec:
    """The codec of observations of a space with a mask of the choices of each factor."""
    if isinstance(single, PackedSpace):
        return MaskCodec(single._replace(choices=sum(sizes)), lambda *arrays: pack_bytes(arrays))
    assert isinstance(single, Discrete | Box)
    return MaskCodec(PackedSpace((single,), sum(sizes)), lambda *arrays: pack_bytes(arrays))


def choice_sizes(space: gymnasium.Space) -> tuple[int, ...] | None:
    """The number of choices of each factor of an action; None where actions are continuous."""
    match space:
        case spaces.Discrete():
            return (int(space.n),)
        case spaces.MultiDiscrete():
            return tuple(int(n) for n in space.nvec.ravel())
        case spaces.MultiBinary():
            return (2,) * math.prod(space.shape)
        case spaces.Tuple() | spaces.Dict():
            parts = [choice_sizes(sub) for sub in _subspaces(space)]
            return None if None in parts else sum((part for part in parts if part), ())
    return None


def read_mask(info: Mapping[str, Any], sizes: tuple[int, ...], at_end: bool = False) -> np.ndarray:
    """The allowed choices of all factors [n] of bool; ValueError where the mask is wrong.

    At the end of an episode no action follows: a mask that is missing or empty allows everything.
    """
    n, mask = sum(sizes), info.get(MASK_KEY)
    if mask is None:
        if at_end:
            return np.ones(n, bool)
        raise ValueError(f"info has no {MASK_KEY}: return it from every reset() and step()")
    parts = mask if isinstance(mask, tuple | list) else [mask]
    allowed = np.concatenate([np.ravel(part) for part in parts])
    if allowed.shape != (n,):
        raise ValueError(f"{MASK_KEY} has {allowed.size} entries, but the action space {n} choices")
    if not ((allowed == 0) | (allowed == 1)).all():
        raise ValueError(f"{MASK_KEY} must be 0 or 1 for each choice, not {allowed}")
    allowed = allowed.astype(bool)
    factors = np.split(allowed, np.cumsum(sizes)[:-1])
    if all(factor.any() for factor in factors):
        return allowed
    if at_end:
        return np.ones(n, bool)
    first = next(i for i, factor in enumerate(factors) if not factor.any())
    which = f" of factor {first}" if len(sizes) > 1 else ""
    raise ValueError(f"{MASK_KEY} allows no choice{which}: allow at least one, or end the episode")


def action_codec(
    space: gymnasium.Space,
) -> tuple[ActionSpace, Callable[[np.ndarray], Sequence[Any]]]:
    """The agent's action space for a Gymnasium space, and the function that decodes a batch.

    Actions [N] or [N, size] are decoded to N actions that the environments take.
    """
    match space:
        case spaces.Discrete():
            n, start = int(space.n), int(space.start)

            def decode(actions: np.ndarray) -> list[int]:
                """Checked, because some environments hang on an action outside their space."""
                indices = actions.tolist()
                assert 0 <= min(indices) <= max(indices) < n, (
                    f"actions {actions} are not all from 0 to {n - 1}"
                )
                return [index + start for index in indices] if start else indices

            return Discrete(n), decode
        case _ if (sizes := choice_sizes(space)) is not None and sum(sizes) > 0:
            return _choice_codec(space, sizes)
        case spaces.Box() if np.issubdtype(space.dtype, np.floating):
            low, high = (tuple(bound.ravel().tolist()) for bound in (space.low, space.high))
            if not np.isfinite(low + high).all():
                raise SettingsError(
                    f"action space {space} has no finite bounds: wrap the environment so that "
                    "low and high are finite"
                )
            reshape = lambda actions: list(
                actions.reshape(len(actions), *space.shape).astype(space.dtype)
            )
            return Box(space.shape or (1,), low=low, high=high), reshape
    raise SettingsError(
        f"action space {space} is not supported: use Discrete, MultiDiscrete, MultiBinary, a Dict "
        "or Tuple of them, or a Box of floats"
    )


def _choice_codec(
    space: gymnasium.Space, sizes: tuple[int, ...]
) -> tuple[ActionSpace, Callable[[np.ndarray], Sequence[Any]]]:
    """Actions of several factors [N, F], or of a single one [N]."""

    def decode(actions: np.ndarray) -> list[Any]:
        choices = actions.reshape(len(actions), len(sizes))
        assert ((choices >= 0) & (choices < np.array(sizes))).all(), (
            f"actions {actions} are not all in {space}"
        )
        return [from_choices(space, row) for row in choices]

    return Discrete(sizes[0]) if len(sizes) == 1 else MultiDiscrete(sizes), decode


def from_choices(space: gymnasium.Space, choices: np.ndarray) -> Any:
    """The action of a discrete space that has these choices of its factors [F]."""
    match space:
        case spaces.Discrete():
            return int(choices[0]) + int(space.start)
        case spaces.MultiDiscrete():
            return (choices.reshape(space.shape) + space.start).astype(space.dtype)
        case spaces.MultiBinary():
            return choices.reshape(space.shape).astype(space.dtype)
    subspaces = _subspaces(space)
    counts = [len(choice_sizes(sub) or ()) for sub in subspaces]
    parts = np.split(choices, np.cumsum(counts)[:-1])
    values = [from_choices(sub, part) for sub, part in zip(subspaces, parts, strict=True)]
    if isinstance(space, spaces.Dict):
        return dict(zip(space.spaces, values, strict=True))
    return tuple(values)


def to_choices(space: gymnasium.Space, action: Any) -> list[int]:
    """The choices of the factors of an action; the inverse of `from_choices`."""
    match space:
        case spaces.Discrete() | spaces.MultiDiscrete():
            return np.ravel(np.asarray(action) - space.start).tolist()
        case spaces.MultiBinary():
            return [int(bit) for bit in np.ravel(action)]
        case spaces.Dict():
            return [c for key, sub in space.spaces.items() for c in to_choices(sub, action[key])]
    pairs = zip(_subspaces(space), action, strict=True)
    return [choice for sub, value in pairs for choice in to_choices(sub, value)]


def _subspaces(space: gymnasium.Space) -> list[gymnasium.Space]:
    """The spaces of a Dict or Tuple, in their order."""
    if isinstance(space, spaces.Dict):
        return list(space.spaces.values())
    return list(space.spaces) if isinstance(space, spaces.Tuple) else []


class FrameStack(NamedTuple):
    """Several consecutive observations as one, along the last axis, the oldest first."""

    space: Space
    reset: Encode  # first observations [N, ...] -> windows
    push: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    # windows, next observations, bool [N]: those that start an episode -> windows


def frame_stack(single: Space, frames: int, name: str) -> FrameStack:
    """Stacks of `frames` observations; an episode starts with copies of its first one."""
    if frames == 1:
        return FrameStack(single, reset=lambda obs: obs, push=lambda window, obs, starts: obs)
    entries = single.entries if isinstance(single, PackedSpace) else (single,)
    if isinstance(single, Discrete) or any(isinstance(entry, Discrete) for entry in entries):
        raise SettingsError(
            f"{name} has discrete observations, which cannot be stacked: set frames to 1"
        )
    *others, depth = single.shape
    reset = lambda obs: np.concatenate([obs] * frames, axis=-1)

    def push(window: np.ndarray, obs: np.ndarray, starts: np.ndarray) -> np.ndarray:
        window = np.concatenate([window[..., depth:], obs], axis=-1)
        if starts.any():
            window[starts] = reset(obs[starts])
        return window

    if isinstance(single, PackedSpace):
        return FrameStack(single._replace(frames=frames), reset, push)
    space = single._replace(shape=(*others, depth * frames), frames=frames)
    return FrameStack(space, reset, push)


def batch_of_one(space: gymnasium.Space, observation: Any) -> Any:
    """One observation as a batch [1, ...]; ValueError where its shape is not that of the space."""
    match space:
        case spaces.Dict():
            return {key: batch_of_one(sub, observation[key]) for key, sub in space.spaces.items()}
        case spaces.Tuple():
            entries = zip(space.spaces, observation, strict=True)
            return tuple(batch_of_one(sub, entry) for sub, entry in entries)
        case spaces.Box() | spaces.Discrete() | spaces.MultiDiscrete() | spaces.MultiBinary():
            array = np.asarray(observation)
            if array.shape != space.shape:
                raise ValueError(f"shape {array.shape} instead of {space.shape}")
            return array[None].astype(space.dtype)
    return observation


def space_json(space: gymnasium.Space) -> dict[str, Any]:
    """A space as JSON data; what agents cannot observe is marked LeftOut."""
    match space:
        case spaces.Discrete():
            return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            sizes = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
            return {"kind": "MultiDiscrete", **sizes}
        case spaces.MultiBinary():
            return {"kind": "MultiBinary", "shape": list(space.shape)}
        case spaces.Box():
            bounds = {"low": _bound_json(space.low), "high": _bound_json(space.high)}
            return {"kind": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
        case spaces.Dict():  # pairs, because vectors are concatenated in the order of the keys
            pairs = [[key, space_json(sub)] for key, sub in space.spaces.items()]
            return {"kind": "Dict", "entries": pairs}
        case spaces.Tuple():
            return {"kind": "Tuple", "entries": [space_json(sub) for sub in space.spaces]}
    return {"kind": "LeftOut"}


def space_from_json(data: Mapping[str, Any]) -> gymnasium.Space:
    """The space that `space_json` described."""
    match data["kind"]:
        case "Discrete":
            return spaces.Discrete(data["n"], start=data["start"])
        case "MultiDiscrete":
            return spaces.MultiDiscrete(np.array(data["nvec"]), start=np.array(data["start"]))
        case "MultiBinary":
            return spaces.MultiBinary(data["shape"])
        case "Box":
            low, high = (
                np.broadcast_to(np.array(data[name], data["dtype"]), data["shape"])
                for name in ("low", "high")
            )
            return spaces.Box(low, high, dtype=np.dtype(data["dtype"]).type)
        case "Dict":
            return spaces.Dict([(key, space_from_json(sub)) for key, sub in data["entries"]])
        case "Tuple":
            return spaces.Tuple([space_from_json(sub) for sub in data["entries"]])
    return LEFT_OUT


def _bound_json(bound: np.ndarray) -> Any:
    """Bounds as numbers, or as one number where all are equal: an image has thousands."""
    return bound.flat[0].item() if bound.size and (bound == bound.flat[0]).all() else bound.tolist()


def _is_image(space: spaces.Box) -> bool:
    return space.dtype == np.uint8 and len(space.shape) in (2, 3)


def _camera_codecs(space: gymnasium.Space) -> list[tuple[Box, Encode]]:
    """The images of three axes in a Dict or Tuple, with the function that encodes each."""
    if isinstance(space, spaces.Box):
        return [_image_codec(space)] if _is_camera(space) else []
    keys = space.spaces if isinstance(space, spaces.Dict) else range(len(_subspaces(space)))
    of_entry = lambda key, encode: lambda obs: encode(obs[key])
    return [
        (box, of_entry(key, encode))
        for key, sub in zip(keys, _subspaces(space), strict=True)
        for box, encode in _camera_codecs(sub)
    ]


def _is_camera(space: gymnasium.Space) -> bool:
    """Whether an entry of a Dict or Tuple is an image, and not a board with a few codes."""
    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) == 3
        and int(space.high.max()) == 255
    )


def _image_codec(space: spaces.Box) -> tuple[Box, Encode]:
    """Images as bytes with the channels last."""
    height, *_, last = space.shape
    if len(space.shape) == 2:
        return Box((*space.shape, 1), is_bytes=True), lambda obs: obs[..., None].copy()
    if height <= 4 < last:  # channels first
        channels_last = (*space.shape[1:], height)
        return Box(channels_last, is_bytes=True), lambda obs: np.moveaxis(obs, 1, -1).copy()
    return Box(space.shape, is_bytes=True), lambda obs: obs.copy()


class _VectorCodec(NamedTuple):
    """How observations of a space become float32 vectors."""

    size: int
    encode: Encode  # -> [N, size]


def _vector_codec(space: gymnasium.Space) -> _VectorCodec | None:
    """One-hot integers, flattened arrays, images divided by 255; None for other spaces."""
    flatten = lambda obs: obs.reshape(len(obs), -1).astype(np.float32)
    match space:
        case spaces.Discrete():
            return _one_hot_codec(np.array([space.n]), np.array([space.start]))
        case spaces.MultiDiscrete():
            return _one_hot_codec(space.nvec.ravel(), space.start.ravel())
        case spaces.Box() if _is_image(space):
            size = math.prod(space.shape)
            return _VectorCodec(size, lambda obs: flatten(obs) / np.float32(255))
        case spaces.Box() | spaces.MultiBinary():
            return _VectorCodec(math.prod(space.shape), flatten)
        case spaces.Dict():
            return _concat_codec(space.spaces.items())
        case spaces.Tuple():
            return _concat_codec(enumerate(space.spaces))
    return None


def _one_hot_codec(n: np.ndarray, start: np.ndarray) -> _VectorCodec:
    """One-hot vectors of integers [N, entries]; entry i has n[i] values from start[i]."""
    size = int(n.sum())
    offset = np.cumsum(n) - n - start  # position of the value 0 of each entry

    def encode(obs: np.ndarray) -> np.ndarray:
        codes = np.zeros((len(obs), size), np.float32)
        np.put_along_axis(codes, obs.reshape(len(obs), -1) + offset, np.float32(1), axis=1)
        return codes

    return _VectorCodec(size, encode)


def _concat_codec(entries: Iterable[tuple[Any, gymnasium.Space]]) -> _VectorCodec | None:
    """The concatenated vectors of all entries that can be encoded, in their order."""
    codecs = {
        key: codec
        for key, space in entries
        if not _is_camera(space) and (codec := _vector_codec(space)) is not None
    }
    if not codecs:
        return None
    concat = lambda obs: np.concatenate(
        [codec.encode(obs[key]) for key, codec in codecs.items()], axis=1
    )
    return _VectorCodec(sum(codec.size for codec in codecs.values()), concat)
