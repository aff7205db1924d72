"""Packed observations: from bytes to arrays and the mask of allowed actions."""

import math

import jax
from jax import numpy as jnp

from ersac.envs.base import Box, Discrete, PackedSpace, Space, entry_bytes
from ersac.types import Array


def inner_space(space: Space) -> Space:
    """Return the space of what `unpack` returns; of several entries it is `space` itself."""
    match space:
        case PackedSpace((Discrete() as entry,)):
            return entry
        case PackedSpace((_,)):
            return stacked_boxes(space)[0]
    return space


def stacked_boxes(space: PackedSpace) -> tuple[Box, ...]:
    """Return the entries that are arrays, with the frames of each stacked along its last axis."""
    stack = lambda shape: (*shape[:-1], space.frames * shape[-1])
    boxes = (entry for entry in space.entries if isinstance(entry, Box))
    return tuple(box._replace(shape=stack(box.shape)) for box in boxes)


def count_entries(space: PackedSpace) -> tuple[int, int]:
    """Return how many numbers of an observation are of images, and how many are not."""
    boxes = stacked_boxes(space)
    pixels = sum(box.size for box in boxes if box.is_bytes)
    return pixels, sum(box.size for box in boxes) - pixels


def unpack(space: Space, obs: Array) -> tuple[Array, Array | None]:
    """Return the observations [..., *shape], and a mask [..., choices] of bool, None without one.

    Several entries become one vector: images, divided by 255, and then the other numbers. What is
    not packed is returned as it is.
    """
    if not isinstance(space, PackedSpace):
        return obs, None
    leading = obs.shape[:-1]
    frames = obs.reshape(*leading, space.frames, space.frame_bytes)
    arrays, start = [], 0
    for entry in space.entries:
        stop = start + entry_bytes(entry)
        arrays.append(unpack_entry(entry, frames[..., start:stop]))
        start = stop
    allowed = frames[..., -1, start:] > 0 if space.choices else None
    if len(arrays) == 1:
        return arrays[0], allowed
    flat = [array.reshape(*leading, math.prod(array.shape[len(leading) :])) for array in arrays]
    dtype = jnp.zeros(()).dtype
    as_floats = lambda array: array.astype(dtype) / (255 if array.dtype == jnp.uint8 else 1)
    return jnp.concatenate([as_floats(array) for array in flat], axis=-1), allowed


def unpack_entry(entry: Discrete | Box, data: Array) -> Array:
    """Return an entry [..., *shape] from its bytes in all frames [..., frames, bytes]."""
    leading, frames = data.shape[:-2], data.shape[-2]
    if isinstance(entry, Discrete):
        return jax.lax.bitcast_convert_type(data[..., 0, :], jnp.int32)
    if not entry.is_bytes:
        quads = data.reshape(*leading, frames, entry.size, 4)
        data = jax.lax.bitcast_convert_type(quads, jnp.float32).astype(jnp.zeros(()).dtype)
    by_frame = data.reshape(*leading, frames, *entry.shape)
    stacked = jnp.moveaxis(by_frame, len(leading), -2)
    return stacked.reshape(*leading, *entry.shape[:-1], frames * entry.shape[-1])
