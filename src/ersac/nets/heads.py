"""Torsos, heads and fixed random priors."""

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

FEW_ENTRIES = 10  # of an observation, up to which a prior has to be bent to be rich enough


CONSTANT_FEATURE = 1e-6  # a feature of random networks: negligible beside any that does not vanish


class Torso(NamedTuple):
    """Observation to features. `rows` are what `rows.gather` found for the observations: empty unless these are integers."""

    init: Callable[[Rng], Params]
    apply: Callable[[Tree, Tree, Array], Array]  # dense, rows, obs -> features [..., width]
    width: int
    rows: dict[str, int]  # the tables it has, by name, and their widths


class Head(NamedTuple):
    """Features to outputs; with rows of its own where observations are integers."""

    init: Callable[[Rng], Params]
    apply: Callable[[Tree, Tree, Array, Array], Array]  # dense, rows, obs, features -> [..., n_out]
    rows: dict[str, int]  # the tables it has, by name, and their widths


def row_torso(n_states: int, hidden: Sequence[int], row_scale: float) -> Torso:
    """A ReLU network on integer observations: `one_hot(i) @ w` is row i of w, so it is looked up and never multiplied."""
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

    return Torso(init, apply, hidden[-1], {"first": hidden[0]})


def row_head(n_states: int, width: int, n_out: int, gain: float) -> Head:
    """A linear head with a linear skip from the one-hot observation: `features w + b + row`.

    The row lets an output move at one state without moving it at all others, at a pace per visit that is known
    exactly; the features carry what states have in common.
    """
    net = linear(width, n_out, gain)
    return Head(
        lambda rng: Params(net.init(rng), {"row": np.zeros((n_states, n_out), np.float32)}),
        lambda dense, rows, obs, features: net.apply(dense, features) + rows["row"],
        {"row": n_out},
    )


def table_head(n_states: int, n_out: int) -> Head:
    """A head that is nothing but rows: what it says of one state is independent of what it says of another."""
    return Head(
        lambda rng: Params({}, {"row": np.zeros((n_states, n_out), np.float32)}),
        lambda dense, rows, obs, features: rows["row"],
        {"row": n_out},
    )


def dense_torso(net: Net, shape: tuple[int, ...]) -> Torso:
    """A network on observations that are no integers; it has no rows."""
    width = jax.eval_shape(
        lambda obs: net.apply(net.init(np.random.default_rng(0)), obs), jnp.zeros(shape)
    ).shape[-1]
    return Torso(
        lambda rng: Params(net.init(rng), {}),
        lambda dense, rows, obs: net.apply(dense, obs),
        width,
        {},
    )


def linear_head(width: int, n_out: int, gain: float) -> Head:
    """A linear head, without rows."""
    net = linear(width, n_out, gain)
    return Head(
        lambda rng: Params(net.init(rng), {}),
        lambda dense, rows, obs, features: net.apply(dense, features),
        {},
    )


def separate_head(net: Net, shape: tuple[int, ...], n_out: int, gain: float) -> Head:
    """A linear head on a torso of its own: nobody has to weigh its loss against another's."""
    torso = dense_torso(net, shape)
    top = linear(torso.width, n_out, gain)
    return Head(
        lambda rng: Params({"torso": net.init(rng), "top": top.init(rng)}, {}),
        lambda dense, rows, obs, features: top.apply(dense["top"], net.apply(dense["torso"], obs)),
        {},
    )


def mirrored_mlp(
    inputs: Space,
    hidden: Sequence[int],
    n_out: int,
    upper_share: float | Array,
    init_scale: float = 1.0,
) -> Head:
    """A ReLU network for plain descent at a rate per visit: at the start outputs are 0, and the tangent kernel of an output is 1.

    A step of `rate` times an error corrects that share of it, as a table's row does, and moves another observation by the kernel between
    the two. Of the kernel the first layer has `1 - upper_share`, which one-hot observations do not share, and the layers above it
    `upper_share`, by a scale on the weights of each. Units come in pairs of equal weights below and opposite weights above: that makes
    outputs zero while gradients are whole.
    init_scale: of all weights, with outputs divided by it: the kernel is the same, and stays so until outputs have moved by about
    `init_scale` times the root of the width (lazy training, Chizat et al. 2019).
    Of integers the first layer is a table, since `one_hot(i) @ w` is row i of w; vectors are put `on_sphere`.
    """
    if any(width % 2 for width in hidden):
        raise SettingsError(
            f"--hidden and --estimator-hidden must be even, since units come in pairs, not {tuple(hidden)}"
        )
    # With these gains pre-activations have variance 1 and their gradients a squared norm of 1/2 in every layer, at infinite width.
    looked_up, n_in = isinstance(inputs, Discrete), sphere_size(inputs)
    upper = upper_share / len(hidden)  # of the kernel, in each layer above the first
    first_scale, inner_scale, top_scale = (
        (2 * (1 - upper_share)) ** 0.5,
        upper**0.5,
        (2 * upper) ** 0.5,
    )

    def init(rng: Rng) -> Params:
        half = lambda n_above, n_below, scale: normal(rng, (n_above, n_below), init_scale / scale)
        first = np.tile(half(n_in, hidden[0] // 2, first_scale), 2)
        inner = [
            np.kron(np.eye(2, dtype=np.float32), half(m // 2, n // 2, inner_scale))
            for m, n in itertools.pairwise(hidden)
        ]
        top = half(hidden[-1] // 2, n_out, top_scale)
        dense = {"inner": inner, "top": np.concatenate([top, -top])}
        return (
            Params(dense, {"first": first}) if looked_up else Params(dense | {"first": first}, {})
        )

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

    return Head(init, apply, {"first": hidden[0]} if looked_up else {})


def no_torso() -> Torso:
    """No features: where every head has a network of its own."""
    return Torso(
        lambda rng: Params({}, {}), lambda dense, rows, obs: jnp.zeros((*obs.shape[:1], 0)), 0, {}
    )


def random_features(inputs: Space, width: int, n_out: int, scale: float) -> Net:
    """A fixed tanh network with outputs of that standard deviation at every observation: a prior.

    Without biases it is odd, so outputs at orthogonal observations are independent but for the width. Where there are many entries it is
    all but linear, which is rich enough then: what is learned with some values of entries that do not matter holds with others. On
    integers it is a function of few inputs, and evaluated once, at all of them: a table [n, n_out].
    """
    n_in = sphere_size(inputs)
    bend = min(1.0, (FEW_ENTRIES / n_in) ** 0.5)  # standard deviation of what goes into tanh

    def init(rng: Rng) -> Tree:
        first, top = normal(rng, (n_in, width), 1.0), normal(rng, (width, n_out), scale)
        return (
            _unit_length(np.tanh(first)) @ top
            if isinstance(inputs, Discrete)
            else {"first": first, "top": top}
        )

    def apply(params: Tree, obs: Array) -> Array:
        if isinstance(inputs, Discrete):
            return params[obs]
        return (
            _unit_length(
                jnp.tanh(on_sphere(flatten_obs(obs, inputs)) @ params["first"] * (bend / n_in**0.5))
            )
            @ params["top"]
        )

    return Net(init, apply)


def _unit_length(features: Any) -> Any:
    return features / (features * features).sum(axis=-1, keepdims=True) ** 0.5


def random_table(n_states: int, n_out: int, scale: float) -> Net:
    """A fixed table of independent normal draws: a prior for integers."""
    return Net(lambda rng: normal(rng, (n_states, n_out), scale), lambda table, obs: table[obs])


def random_net(net: Net, shape: tuple[int, ...], n_out: int, scale: float) -> Net:
    """A fixed network whose outputs have that standard deviation at every observation: a prior for everything else.

    Its features are brought to unit length, so that no observation has a wider prior because its numbers are large. One more feature,
    a small constant, is all that is left where the others vanish: at an observation of zeros.
    """
    width = dense_torso(net, shape).width

    def apply(params: Tree, obs: Array) -> Array:
        features = net.apply(params["net"], obs)
        features = jnp.concatenate(
            [features, jnp.full_like(features[..., :1], CONSTANT_FEATURE)], axis=-1
        )
        return (features / jnp.linalg.norm(features, axis=-1, keepdims=True)) @ params["top"]

    return Net(
        lambda rng: {"net": net.init(rng), "top": normal(rng, (width + 1, n_out), scale)}, apply
    )


def limit_logit_gap(logits: Array, limit: float | Array) -> Array:
    """Logits below the largest one, none by more than `limit`; backwards as if there were no limit.

    A sampled gradient shrinks with the probability of its action. Without a limit an action that was given up too soon stays given up.
    """
    below = logits - jnp.max(logits, axis=-1, keepdims=True)
    return below + jax.lax.stop_gradient(jnp.maximum(below, -limit) - below)
