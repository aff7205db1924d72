"""Torsos (observation to features), heads (features to outputs) and fixed random priors.

With integer observations the input layer is a table: `one_hot(i) @ w` is row i of w, so it is
looked up and never multiplied. See tables.py.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from ersac.config import SettingsError
from ersac.envs.base import Discrete, Space
from ersac.nets.layers import Net, add_bias, flatten_obs, linear, normal, on_sphere, sphere_size
from ersac.types import Array, Params, Rng, Tree

FEW_ENTRIES = 10  # inputs up to which `random_features` needs its full nonlinearity
CONSTANT_FEATURE = 1e-6  # of random networks: negligible unless all other features are zero


class Torso(NamedTuple):
    """A network from observations to features.

    `apply` takes the rows of its tables that were looked up for the observations: empty unless
    observations are integers.
    """

    init: Callable[[Rng], Params]
    apply: Callable[[Tree, Tree, Array], Array]  # dense, rows, obs -> features [..., width]
    width: int
    rows: dict[str, int]  # the width of each table, by name
    # dense, rows, obs -> numbers by name, recorded and logged as `torso.NAME`
    metrics: Callable[[Tree, Tree, Array], dict[str, Array]] = lambda dense, rows, obs: {}


class Head(NamedTuple):
    """A network from features, or from the observation itself, to outputs."""

    init: Callable[[Rng], Params]
    apply: Callable[[Tree, Tree, Array, Array], Array]  # dense, rows, obs, features -> [..., n_out]
    rows: dict[str, int]  # the width of each table, by name


def row_torso(n_states: int, hidden: Sequence[int], row_scale: float) -> Torso:
    """Return a ReLU network on integer observations; its first layer is a table."""
    layers = [linear(n_in, n_out, gain=2**0.5) for n_in, n_out in itertools.pairwise(hidden)]

    def init(rng: Rng) -> Params:
        dense = {
            "bias": np.zeros(hidden[0], np.float32),
            "layers": [net.init(rng) for net in layers],
        }
        return Params(dense, {"first": normal(rng, (n_states, hidden[0]), row_scale)})

    def apply(dense: Tree, rows: Tree, obs: Array) -> Array:
        x = jax.nn.relu(add_bias(rows["first"], dense["bias"]))
        for net, params in zip(layers, dense["layers"], strict=True):
            x = jax.nn.relu(net.apply(params, x))
        return x

    return Torso(init, apply, width=hidden[-1], rows={"first": hidden[0]})


def dense_torso(net: Net, shape: tuple[int, ...]) -> Torso:
    """Return a network on arrays [..., *shape] as a torso without tables."""
    width = jax.eval_shape(
        lambda obs: net.apply(net.init(np.random.default_rng(0)), obs), jnp.zeros(shape)
    ).shape[-1]
    return Torso(
        init=lambda rng: Params(net.init(rng), {}),
        apply=lambda dense, rows, obs: net.apply(dense, obs),
        width=width,
        rows={},
    )


def no_torso() -> Torso:
    """Return a torso without features, for heads that are complete networks."""
    return Torso(
        init=lambda rng: Params({}, {}),
        apply=lambda dense, rows, obs: jnp.zeros((*obs.shape[:1], 0)),
        width=0,
        rows={},
    )


def row_head(n_states: int, width: int, n_out: int, gain: float) -> Head:
    """Return `features w + b + row`: a linear head with a skip connection from the one-hot input.

    The row changes the outputs of one state and no other, at an exactly known rate per visit. The
    features carry what states have in common.
    """
    net = linear(width, n_out, gain)
    return Head(
        init=lambda rng: Params(net.init(rng), {"row": np.zeros((n_states, n_out), np.float32)}),
        apply=lambda dense, rows, obs, features: net.apply(dense, features) + rows["row"],
        rows={"row": n_out},
    )


def table_head(n_states: int, n_out: int) -> Head:
    """Return a table, zero at first: no two states share a parameter."""
    return Head(
        init=lambda rng: Params({}, {"row": np.zeros((n_states, n_out), np.float32)}),
        apply=lambda dense, rows, obs, features: rows["row"],
        rows={"row": n_out},
    )


def linear_head(width: int, n_out: int, gain: float) -> Head:
    """Return a linear head without tables."""
    net = linear(width, n_out, gain)
    return Head(
        init=lambda rng: Params(net.init(rng), {}),
        apply=lambda dense, rows, obs, features: net.apply(dense, features),
        rows={},
    )


def scaled_head(width: int, n_out: int, gain: float) -> Head:
    """Return a linear head without biases, zero at first, whose outputs are scaled by its width.

    A step of Adam then changes them by about gain times sqrt(width) learning rates.
    """
    return Head(
        init=lambda rng: Params(np.zeros((width, n_out), np.float32), {}),
        apply=lambda dense, rows, obs, features: features @ dense * (gain / width**0.5),
        rows={},
    )


def separate_head(net: Net, shape: tuple[int, ...], n_out: int, gain: float) -> Head:
    """Return a linear head on its own torso, whose loss needs no weight against another's."""
    top = linear(dense_torso(net, shape).width, n_out, gain)
    return Head(
        init=lambda rng: Params({"torso": net.init(rng), "top": top.init(rng)}, {}),
        apply=lambda dense, rows, obs, features: top.apply(
            dense["top"], net.apply(dense["torso"], obs)
        ),
        rows={},
    )


def mirrored_mlp(
    inputs: Space,
    hidden: Sequence[int],
    n_out: int,
    upper_share: float | Array,
    init_scale: float = 1.0,
) -> Head:
    """Return a ReLU network whose outputs are 0 and whose tangent kernel is 1 at initialisation.

    The tangent kernel of an output is the squared norm of its gradient. A step of gradient descent
    with rate `rate` therefore corrects the share `rate` of an error, as in a table, and changes the
    output at another observation by the kernel between the two.

    Units come in pairs with equal incoming and opposite outgoing weights, so that outputs cancel
    while gradients do not. With integer observations the first layer is a table; vectors are
    normalised by `on_sphere`.

    upper_share: share of the kernel that belongs to the layers above the first. One-hot
        observations do not interact through the first layer, only through those above it.
    init_scale: factor of all initial weights, by which outputs are divided. The kernel is the same,
        and stays near its initial value until outputs have changed by about init_scale times the
        square root of the width (lazy training, Chizat et al. 2019).
    """
    if any(width % 2 for width in hidden):
        raise SettingsError(
            "--hidden and --estimator-hidden must be even, since units come in pairs,"
            f" not {tuple(hidden)}"
        )
    # With these factors, at infinite width, pre-activations have variance 1 and their gradients a
    # squared norm of 1/2 in every layer.
    looked_up, n_in = isinstance(inputs, Discrete), sphere_size(inputs)
    layer_share = upper_share / len(hidden)  # of the kernel, for each layer above the first
    first_scale = (2 * (1 - upper_share)) ** 0.5
    inner_scale, top_scale = layer_share**0.5, (2 * layer_share) ** 0.5

    def init(rng: Rng) -> Params:
        """Draw one unit of each pair, then mirror it."""
        draw = lambda n_rows, n_columns, scale: normal(rng, (n_rows, n_columns), init_scale / scale)
        first = np.tile(draw(n_in, hidden[0] // 2, first_scale), 2)
        inner = [
            np.kron(np.eye(2, dtype=np.float32), draw(m // 2, n // 2, inner_scale))
            for m, n in itertools.pairwise(hidden)
        ]
        top = draw(hidden[-1] // 2, n_out, top_scale)
        dense = {"inner": inner, "top": np.concatenate([top, -top])}
        if looked_up:
            return Params(dense, {"first": first})
        return Params(dense | {"first": first}, {})

    def apply(dense: Tree, rows: Tree, obs: Array, features: Array) -> Array:
        first = (
            rows["first"]
            if looked_up
            else on_sphere(flatten_obs(obs, inputs)) @ dense["first"] / n_in**0.5
        )
        x = jax.nn.relu(first_scale * first)
        for weights in dense["inner"]:
            x = jax.nn.relu(inner_scale * 2 / (init_scale * len(weights) ** 0.5) * (x @ weights))
        return top_scale / (init_scale * hidden[-1] ** 0.5) * (x @ dense["top"])

    return Head(init, apply, rows={"first": hidden[0]} if looked_up else {})


def random_features(inputs: Space, width: int, n_out: int, scale: float) -> Net:
    """Return a fixed random tanh network whose outputs have standard deviation `scale`: a prior.

    It has no biases, so it is an odd function, and its outputs at orthogonal observations are
    independent up to finite width. With many inputs it is nearly linear: what is learned at some
    values of irrelevant inputs then holds at others. With integer observations it is evaluated once
    at all of them, as a table [n, n_out].
    """
    n_in = sphere_size(inputs)
    gain = min(1.0, (FEW_ENTRIES / n_in) ** 0.5)  # standard deviation of the inputs of tanh

    def init(rng: Rng) -> Tree:
        first, top = normal(rng, (n_in, width), 1.0), normal(rng, (width, n_out), scale)
        if isinstance(inputs, Discrete):
            return _unit_length(np.tanh(first)) @ top
        return {"first": first, "top": top}

    def apply(params: Tree, obs: Array) -> Array:
        if isinstance(inputs, Discrete):
            return params[obs]
        x = on_sphere(flatten_obs(obs, inputs)) @ params["first"] * (gain / n_in**0.5)
        return _unit_length(jnp.tanh(x)) @ params["top"]

    return Net(init, apply)


def _unit_length(features: Any) -> Any:
    return features / (features * features).sum(axis=-1, keepdims=True) ** 0.5


def random_table(n_states: int, n_out: int, scale: float) -> Net:
    """Return a fixed table of independent normal numbers: a prior for integer observations."""
    return Net(lambda rng: normal(rng, (n_states, n_out), scale), lambda table, obs: table[obs])


def random_net(net: Net, shape: tuple[int, ...], n_out: int, scale: float) -> Net:
    """Return a fixed random network whose outputs have standard deviation `scale`: a prior.

    Features are normalised to unit length, so that observations with large entries do not have a
    wider prior. A small constant feature is added for observations at which all others are zero.
    """
    width = dense_torso(net, shape).width

    def init(rng: Rng) -> Tree:
        return {"net": net.init(rng), "top": normal(rng, (width + 1, n_out), scale)}

    def apply(params: Tree, obs: Array) -> Array:
        features = net.apply(params["net"], obs)
        constant = jnp.full_like(features[..., :1], CONSTANT_FEATURE)
        features = jnp.concatenate([features, constant], axis=-1)
        return (features / jnp.linalg.norm(features, axis=-1, keepdims=True)) @ params["top"]

    return Net(init, apply)


def limit_logit_gap(logits: Array, limit: float | Array) -> Array:
    """Subtract the largest logit, and raise the others to at least `-limit`.

    The backward pass ignores the limit. The sampled policy gradient shrinks with the probability of
    an action: without a limit, an action that became unlikely too soon would stay unlikely.
    """
    gap = logits - jnp.max(logits, axis=-1, keepdims=True)
    return gap + jax.lax.stop_gradient(jnp.maximum(gap, -limit) - gap)
