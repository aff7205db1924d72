"""Torsos and heads behind two small seams: plain pytrees, any flax module fits."""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from ersac.types import Array, Params, Rng, Tree

TINY = 1e-30  # a variance below which nothing is divided: where neither prior nor noise has any


class Net(NamedTuple):
    """A function with parameters."""

    init: Callable[[Rng], Tree]
    apply: Callable[[Tree, Array], Array]


class Torso(NamedTuple):
    """Observation to features. `rows` are what `rows.gather` found for the observations: empty unless these are integers."""

    init: Callable[[Rng], Params]
    apply: Callable[[Tree, Tree, Array], Array]  # dense, rows, obs -> features [..., width]
    width: int
    rows: dict[str, int]  # the tables it has, by name, and their widths


class Head(NamedTuple):
    """Features to outputs; with rows of its own where observations are integers."""

    init: Callable[[Rng], Params]
    apply: Callable[[Tree, Tree, Array], Array]  # dense, rows, features -> [..., n_out]
    rows: dict[str, int]  # the tables it has, by name, and their widths


def normal(rng: Rng, shape: tuple[int, ...], scale: float) -> np.ndarray:
    """Normal draws of a standard deviation, in single precision."""
    return np.float32(scale) * rng.standard_normal(shape, np.float32)


def linear(n_in: int, n_out: int, gain: float = 1.0) -> Net:
    """`x w + b` with normal weights of standard deviation gain / sqrt(n_in)."""
    return Net(
        lambda rng: {"w": normal(rng, (n_in, n_out), gain / n_in**0.5), "b": np.zeros(n_out, np.float32)},
        lambda params, x: add_bias(x @ params["w"], params["b"]),
    )


def add_bias(x: Array, bias: Array) -> Array:
    """Add a vector to the last axis, spelled out because the tests let no rank be promoted silently."""
    return x + jnp.broadcast_to(bias, x.shape)


def row_torso(n_states: int, hidden: Sequence[int], row_scale: float) -> Torso:
    """A ReLU network on integer observations: `one_hot(i) @ w` is row i of w, so it is looked up and never multiplied."""
    layers = [linear(n_in, n_out, gain=2**0.5) for n_in, n_out in itertools.pairwise(hidden)]

    def init(rng: Rng) -> Params:
        dense = {"bias": np.zeros(hidden[0], np.float32), "layers": [net.init(rng) for net in layers]}
        return Params(dense, {"first": normal(rng, (n_states, hidden[0]), row_scale)})

    def apply(dense: Tree, rows: Tree, obs: Array) -> Array:
        x = jax.nn.relu(add_bias(rows["first"], dense["bias"]))
        for net, params in zip(layers, dense["layers"], strict=True):
            x = jax.nn.relu(net.apply(params, x))
        return x

    return Torso(init, apply, hidden[-1], {"first": hidden[0]})


def row_head(n_states: int, width: int, n_out: int, gain: float) -> Head:
    """A linear head with a linear skip from the one-hot observation: `features w + b + row`.

    The row lets an output move at one state without moving it at all others, at a pace per visit that is known
    exactly; the features carry what states have in common.
    """
    net = linear(width, n_out, gain)
    return Head(
        lambda rng: Params(net.init(rng), {"own": np.zeros((n_states, n_out), np.float32)}),
        lambda dense, rows, features: net.apply(dense, features) + rows["own"],
        {"own": n_out},
    )


def table_head(n_states: int, n_out: int) -> Head:
    """A head that is nothing but rows: what it says of one state is independent of what it says of another."""
    return Head(
        lambda rng: Params({}, {"own": np.zeros((n_states, n_out), np.float32)}),
        lambda dense, rows, features: rows["own"],
        {"own": n_out},
    )


def scale_gradient(x: Array, scale: float | Array) -> Array:
    """x forwards, exactly, however large the scale; its gradient times `scale` backwards."""
    still = jax.lax.stop_gradient(x)
    return still + scale * (x - still)
