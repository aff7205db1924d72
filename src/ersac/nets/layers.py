"""Layers and plain networks: functions from arrays to arrays whose parameters are pytrees."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from ersac.config import SettingsError
from ersac.envs.base import Box, Discrete, Space
from ersac.types import Array, Rng, Tree


class Net(NamedTuple):
    """A function with parameters."""

    init: Callable[[Rng], Tree]
    apply: Callable[[Tree, Array], Array]


def normal(rng: Rng, shape: tuple[int, ...], scale: float) -> np.ndarray:
    """Normal draws of a standard deviation, in single precision."""
    return np.float32(scale) * rng.standard_normal(shape, np.float32)


def linear(n_in: int, n_out: int, gain: float = 1.0, bias: float = 0.0) -> Net:
    """`x w + b` with normal weights of standard deviation gain / sqrt(n_in); `bias`: that of the biases."""
    biases = lambda rng: (
        normal(rng, (n_out,), bias) if bias else np.zeros(n_out, np.float32)
    )  # of which none takes a draw
    return Net(
        lambda rng: {"w": normal(rng, (n_in, n_out), gain / n_in**0.5), "b": biases(rng)},
        lambda params, x: add_bias(x @ params["w"], params["b"]),
    )


def add_bias(x: Array, bias: Array) -> Array:
    """Add a vector to the last axis, spelled out because the tests let no rank be promoted silently."""
    return x + jnp.broadcast_to(bias, x.shape)


def mlp(shape: tuple[int, ...], hidden: Sequence[int]) -> Net:
    """A tanh network on arrays, laid flat.

    Without biases in its first layer it would be odd: what is learned of an observation would be taken for known, with its sign turned,
    of the opposite one. With these, features of opposite observations of unit variance are independent.
    """
    first, *others = itertools.pairwise((math.prod(shape), *hidden))
    layers = [linear(*first, bias=1.0), *(linear(*widths) for widths in others)]

    def apply(params: Tree, obs: Array) -> Array:
        x = obs.reshape(*batch_shape(obs, shape), -1)
        for layer, own in zip(layers, params, strict=True):
            x = jnp.tanh(layer.apply(own, x))
        return x

    return Net(lambda rng: [layer.init(rng) for layer in layers], apply)


class Filters(NamedTuple):
    """One convolution: how many filters, how large they are, how far apart."""

    channels: int
    side: int
    stride: int


SMALL_IMAGE = 36  # pixels, the fewest that the large filters fit into; below it one layer of small ones, as MinAtar's own agents have it


SMALL_FILTERS = (Filters(16, 3, 1),)


FILTERS = (Filters(32, 8, 4), Filters(64, 4, 2), Filters(64, 3, 1))  # those of Mnih et al. 2015


def conv_net(shape: tuple[int, ...], hidden: Sequence[int]) -> Net:
    """A ReLU network on images [height, width, channels]: filters chosen by their size, then layers of those widths."""
    least = min(shape[:2])
    filters = (
        FILTERS if least >= SMALL_IMAGE else SMALL_FILTERS if least >= SMALL_FILTERS[0].side else ()
    )
    channels = (shape[-1], *(each.channels for each in filters))
    side = lambda pixels: functools.reduce(
        lambda n, each: (n - each.side) // each.stride + 1, filters, pixels
    )
    flat = side(shape[0]) * side(shape[1]) * channels[-1]
    layers = [
        linear(n_in, n_out, gain=2**0.5) for n_in, n_out in itertools.pairwise((flat, *hidden))
    ]

    def init(rng: Rng) -> Tree:
        fan_in = [each.side**2 * n_in for each, n_in in zip(filters, channels, strict=False)]
        shapes = [
            (each.side, each.side, n_in, each.channels)
            for each, n_in in zip(filters, channels, strict=False)
        ]
        convolutions = [
            {"w": normal(rng, shape, (2 / n) ** 0.5), "b": np.zeros(shape[-1], np.float32)}
            for shape, n in zip(shapes, fan_in, strict=True)
        ]
        return {"convolutions": convolutions, "layers": [layer.init(rng) for layer in layers]}

    def apply(params: Tree, obs: Array) -> Array:
        leading = batch_shape(obs, shape)
        x = obs.reshape(-1, *shape)
        for each, own in zip(filters, params["convolutions"], strict=True):
            weights = own["w"].reshape(-1, each.channels)
            x = jax.nn.relu(add_bias(patches(x, each.side, each.stride) @ weights, own["b"]))
        x = x.reshape(*leading, -1)
        for layer, own in zip(layers, params["layers"], strict=True):
            x = jax.nn.relu(layer.apply(own, x))
        return x

    return Net(init, apply)


def patches(x: Array, side: int, stride: int) -> Array:
    """The squares of an image [B, height, width, channels] that a filter looks at, laid flat [B, rows, columns, side side channels].

    A product of matrices is left of a convolution. XLA has a fast one for the cores, but not where each seed has filters of its own.
    """
    last = lambda pixels, offset: pixels - side + offset + 1
    shifted = [
        x[:, i : last(x.shape[1], i) : stride, j : last(x.shape[2], j) : stride]
        for i in range(side)
        for j in range(side)
    ]
    return jnp.concatenate(shifted, axis=-1)


def flax_net(module: Any, shape: tuple[int, ...]) -> Net:
    """Any flax module that takes observations [..., *shape] to features [..., n]."""
    try:
        hash(module)
    except (TypeError, ValueError) as error:
        raise SettingsError(
            "a torso has to be hashable, as all settings are: write its lists as tuples"
        ) from error

    def init(rng: Rng) -> Tree:
        return module.init(jax.random.key(int(rng.integers(2**31))), jnp.zeros(shape))

    return Net(init, module.apply)


def batch_shape(obs: Array, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes of a batch of observations that come before those of one observation."""
    return obs.shape[: obs.ndim - len(shape)]


def on_sphere(x: Array) -> Array:
    """Vectors [..., n] with a constant 1 appended, brought to a root mean square of 1 [..., n + 1].

    All then have one tangent kernel, so that a rate per visit means the same at each; the constant keeps their length visible, as an angle.
    """
    x = jnp.concatenate([x, jnp.ones_like(x[..., :1])], axis=-1)
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True))


def sphere_size(inputs: Space) -> int:
    """Entries of an observation as a network takes it: one-hot, or `on_sphere`."""
    return inputs.n if isinstance(inputs, Discrete) else inputs.size + 1


def flatten_obs(obs: Array, inputs: Space) -> Array:
    """Observations [..., *shape] laid flat [..., n]."""
    assert isinstance(inputs, Box)
    return obs.reshape(*batch_shape(obs, inputs.shape), inputs.size)


def scale_gradient(x: Array, scale: float | Array) -> Array:
    """x forwards, exactly, however large the scale; its gradient times `scale` backwards."""
    still = jax.lax.stop_gradient(x)
    return still + scale * (x - still)
