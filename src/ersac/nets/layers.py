"""Networks as pairs of functions (`Net`): linear, mlp, conv_net, and any flax module.

Weights are drawn on the host with numpy, so that initialisation needs no compilation.
"""

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
    """A function with parameters. `apply` takes any number of leading batch axes."""

    init: Callable[[Rng], Tree]
    apply: Callable[[Tree, Array], Array]  # params, x -> outputs [..., n]


def normal(rng: Rng, shape: tuple[int, ...], scale: float) -> np.ndarray:
    """Draw normal numbers with standard deviation `scale`, in single precision."""
    return np.float32(scale) * rng.standard_normal(shape, np.float32)


def linear(n_in: int, n_out: int, gain: float = 1.0, bias: float = 0.0) -> Net:
    """Return the layer `x w + b`.

    gain: weights have standard deviation gain / sqrt(n_in).
    bias: standard deviation of the biases.
    """

    def init(rng: Rng) -> Tree:
        weights = normal(rng, (n_in, n_out), gain / n_in**0.5)
        return {"w": weights, "b": normal(rng, (n_out,), bias) if bias else _zeros(n_out)}

    return Net(init, lambda params, x: add_bias(x @ params["w"], params["b"]))


def _zeros(n: int) -> np.ndarray:
    return np.zeros(n, np.float32)


def add_bias(x: Array, bias: Array) -> Array:
    """Add a vector to the last axis. The tests forbid implicit rank promotion, hence explicit."""
    return x + jnp.broadcast_to(bias, x.shape)


def mlp(shape: tuple[int, ...], hidden: Sequence[int]) -> Net:
    """Return a tanh network on flattened arrays [..., *shape].

    The first layer has random biases. Without them the network would be an odd function, and
    whatever is learned about an observation would hold, with opposite sign, for its negative.
    """
    first, *others = itertools.pairwise((math.prod(shape), *hidden))
    layers = [linear(*first, bias=1.0), *(linear(*widths) for widths in others)]

    def apply(params: Tree, obs: Array) -> Array:
        x = obs.reshape(*batch_shape(obs, shape), -1)
        for layer, layer_params in zip(layers, params, strict=True):
            x = jnp.tanh(layer.apply(layer_params, x))
        return x

    return Net(lambda rng: [layer.init(rng) for layer in layers], apply)


class Filters(NamedTuple):
    """The square filters of one convolution."""

    channels: int
    side: int
    stride: int

    def output_size(self, pixels: int) -> int:
        """Return the height or width of the output, given that of the input."""
        return (pixels - self.side) // self.stride + 1


FILTERS = (Filters(32, 8, 4), Filters(64, 4, 2), Filters(64, 3, 1))  # Mnih et al. 2015
SMALL_FILTERS = (Filters(16, 3, 1),)  # those of the MinAtar agents
SMALL_IMAGE = 36  # pixels: the smallest image on which FILTERS fit
A3C_FILTERS = (Filters(16, 8, 4), Filters(32, 4, 2))  # Mnih et al. 2016
IMPALA_CHANNELS = (16, 32, 32)  # of the sections of a residual network (Espeholt et al. 2018)


def conv_net(
    shape: tuple[int, ...],
    hidden: Sequence[int],
    filters: Sequence[Filters] | None = None,
    runs_alone: bool = False,
    standardise: bool = False,
) -> Net:
    """Return a ReLU network on images [..., height, width, channels].

    Convolutions come first, then dense layers of widths `hidden`.

    filters: of the convolutions; None: of a size that fits the image.
    runs_alone: no other seed is vmapped with this one, so that XLA's convolution can be used.
    standardise: give the inputs of each ReLU of the dense layers mean 0 and variance 1, without
        which most units of a torso that heads share were soon zero everywhere.
    """
    filters = choose_filters(min(shape[:2])) if filters is None else filters
    height, width, channels = shape
    kernels = []  # the shape of each convolution's weights
    for conv in filters:
        kernels.append((conv.side, conv.side, channels, conv.channels))
        height, width = conv.output_size(height), conv.output_size(width)
        channels = conv.channels
    widths = (height * width * channels, *hidden)
    layers = [linear(n_in, n_out, gain=2**0.5) for n_in, n_out in itertools.pairwise(widths)]

    def init(rng: Rng) -> Tree:
        convolutions = []
        for kernel in kernels:
            convolutions.append(_convolution(rng, kernel[0], *kernel[2:]))
        return {"convolutions": convolutions, "layers": [layer.init(rng) for layer in layers]}

    def apply(params: Tree, obs: Array) -> Array:
        x = obs.reshape(-1, *shape)
        for conv, conv_params in zip(filters, params["convolutions"], strict=True):
            if runs_alone:
                x = convolve(x, conv_params["w"], conv.stride)
            else:
                weights = conv_params["w"].reshape(-1, conv.channels)
                x = patches(x, conv.side, conv.stride) @ weights
            x = jax.nn.relu(add_bias(x, conv_params["b"]))
        x = x.reshape(*batch_shape(obs, shape), -1)
        for layer, layer_params in zip(layers, params["layers"], strict=True):
            x = layer.apply(layer_params, x)
            x = jax.nn.relu(jax.nn.standardize(x, axis=-1) if standardise else x)
        return x

    return Net(init, apply)


def convolve(x: Array, weights: Array, stride: int = 1, padding: str = "VALID") -> Array:
    """Return the convolution of images [B, height, width, channels] by XLA.

    On a CPU it is 2.5 to 4 times as fast as products of `patches`, but much slower where every
    vmapped seed has its own weights.
    """
    axes = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, weights, (stride, stride), padding, dimension_numbers=axes
    )


def residual_net(shape: tuple[int, ...], width: int) -> Net:
    """Return the residual network of IMPALA on images, with a dense layer on top.

    Each section is a convolution, a maximum over 3 x 3 with stride 2, and two residual blocks of
    two convolutions; all convolutions are 3 x 3.
    """
    height, breadth, depth = shape
    for _ in IMPALA_CHANNELS:
        height, breadth = -(-height // 2), -(-breadth // 2)
    top = linear(height * breadth * IMPALA_CHANNELS[-1], width, gain=2**0.5)

    def init(rng: Rng) -> Tree:
        sections = []
        for n_in, n_out in itertools.pairwise((depth, *IMPALA_CHANNELS)):
            inputs = (n_in, *[n_out] * 4)
            sections.append([_convolution(rng, 3, n, n_out) for n in inputs])
        return {"sections": sections, "top": top.init(rng)}

    def conv(params: Tree, x: Array) -> Array:
        return add_bias(convolve(x, params["w"], padding="SAME"), params["b"])

    def apply(params: Tree, obs: Array) -> Array:
        x = obs.reshape(-1, *shape)
        for first, *blocks in params["sections"]:
            window, strides = (1, 3, 3, 1), (1, 2, 2, 1)
            x = jax.lax.reduce_window(
                conv(first, x), -jnp.inf, jax.lax.max, window, strides, "SAME"
            )
            for one, two in zip(blocks[::2], blocks[1::2], strict=True):
                x = x + conv(two, jax.nn.relu(conv(one, jax.nn.relu(x))))
        x = jax.nn.relu(x).reshape(*batch_shape(obs, shape), -1)
        return jax.nn.relu(jax.nn.standardize(top.apply(params["top"], x), axis=-1))

    return Net(init, apply)


def _convolution(rng: Rng, side: int, n_in: int, n_out: int) -> Tree:
    scale = (2 / (side * side * n_in)) ** 0.5
    return {"w": normal(rng, (side, side, n_in, n_out), scale), "b": _zeros(n_out)}


def is_large_image(observations: Space) -> bool:
    """Return whether observations are images of bytes on which the torsos of `image_net` fit."""
    return (
        isinstance(observations, Box)
        and observations.is_bytes
        and len(observations.shape) == 3
        and min(observations.shape[:2]) >= SMALL_IMAGE
    )


def image_net(shape: tuple[int, ...], size: str) -> Net:
    """Return a torso of images by the value of --image-torso."""
    match size:
        case "small":
            return conv_net(shape, (256,), A3C_FILTERS, runs_alone=True, standardise=True)
        case "nature":
            return conv_net(shape, (512,), FILTERS, runs_alone=True, standardise=True)
    return residual_net(shape, 256)


def combined_net(entries: Sequence[Box], hidden: Sequence[int]) -> Net:
    """Return a network on flattened entries [..., n]: convolutions for images, an MLP for vectors.

    A ReLU layer on the concatenated features of all entries follows, so that what one entry means
    may depend on the others.
    """
    nets = [
        conv_net(entry.shape, hidden) if entry.is_bytes else mlp(entry.shape, hidden)
        for entry in entries
    ]
    top = linear(len(nets) * hidden[-1], hidden[-1], gain=2**0.5)
    edges = list(itertools.accumulate(entry.size for entry in entries))

    def init(rng: Rng) -> Tree:
        return {"entries": [net.init(rng) for net in nets], "top": top.init(rng)}

    def apply(params: Tree, obs: Array) -> Array:
        parts = jnp.split(obs, edges[:-1], axis=-1)
        features = [
            net.apply(net_params, part.reshape(*part.shape[:-1], *entry.shape))
            for net, net_params, part, entry in zip(
                nets, params["entries"], parts, entries, strict=True
            )
        ]
        return jax.nn.relu(top.apply(params["top"], jnp.concatenate(features, axis=-1)))

    return Net(init, apply)


def choose_filters(pixels: int) -> tuple[Filters, ...]:
    """Return the convolutions for an image whose shorter side has so many pixels."""
    if pixels >= SMALL_IMAGE:
        return FILTERS
    return SMALL_FILTERS if pixels >= SMALL_FILTERS[0].side else ()


def patches(x: Array, side: int, stride: int) -> Array:
    """Return the flattened patches of images [B, height, width, channels] that a filter covers.

    The result is [B, rows, columns, side * side * channels], so that a convolution is a matrix
    product. XLA has a fast convolution on CPUs, but not if every (vmapped) seed has its own
    filters.
    """
    last = lambda pixels, offset: pixels - side + offset + 1
    shifted = [
        x[:, i : last(x.shape[1], i) : stride, j : last(x.shape[2], j) : stride]
        for i in range(side)
        for j in range(side)
    ]
    return jnp.concatenate(shifted, axis=-1)


def flax_net(module: Any, shape: tuple[int, ...]) -> Net:
    """Return a flax module that maps observations [..., *shape] to features [..., n]."""
    try:
        hash(module)
    except (TypeError, ValueError) as error:
        raise SettingsError(
            "a torso must be hashable, like all settings: write its lists as tuples"
        ) from error

    def init(rng: Rng) -> Tree:
        return module.init(jax.random.key(int(rng.integers(2**31))), jnp.zeros(shape))

    return Net(init, module.apply)


def flax_metrics(module: Any) -> Callable[[Tree, Array], dict[str, Array]]:
    """Return the function (params, obs) -> numbers by name that a flax module sows.

    A module reports a number with `self.sow("intermediates", name, number)`.
    """

    def metrics(params: Tree, obs: Array) -> dict[str, Array]:
        _, sown = module.apply(params, obs, mutable=["intermediates"])
        leaves = jax.tree_util.tree_leaves_with_path(sown.get("intermediates", {}))
        return {
            ".".join(str(key.key) for key in path if hasattr(key, "key")): number
            for path, number in leaves
        }

    return metrics


def batch_shape(obs: Array, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the leading axes of a batch of observations [..., *shape]."""
    return obs.shape[: obs.ndim - len(shape)]


def flatten_obs(obs: Array, inputs: Space) -> Array:
    """Return observations [..., *shape] as vectors [..., n]."""
    assert isinstance(inputs, Box)
    return obs.reshape(*batch_shape(obs, inputs.shape), inputs.size)


def on_sphere(x: Array) -> Array:
    """Append a constant 1 to vectors [..., n] and scale them to a root mean square of 1.

    All inputs then have the same tangent kernel, so that a learning rate per visit means the same
    for each of them. The constant preserves the length of a vector, as an angle.
    """
    x = jnp.concatenate([x, jnp.ones_like(x[..., :1])], axis=-1)
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True))


def sphere_size(inputs: Space) -> int:
    """Return the number of inputs of a network: those of a one-hot vector, or of `on_sphere`."""
    return inputs.n if isinstance(inputs, Discrete) else inputs.size + 1


def scale_gradient(x: Array, scale: float | Array) -> Array:
    """Return x exactly, and multiply its gradient by `scale` in the backward pass."""
    fixed = jax.lax.stop_gradient(x)
    return fixed + scale * (x - fixed)
