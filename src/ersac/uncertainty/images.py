"""Ensembles on images: members and priors are linear in fixed random features.

What matters in a game may be a few of its pixels. So the features are local, those of one random
convolution of the newest frame, and each is divided by its own standard deviation (as the images of
Burda et al. 2018 are): a sprite where none has been is then as large as all the rest. Members and
priors read the same features, so the members can agree exactly wherever they were trained.
"""

from typing import NamedTuple

import jax
import numpy as np
from jax import numpy as jnp
from jax.lax import stop_gradient

from ersac.nets.layers import Filters, Net, add_bias, convolve, normal
from ersac.types import Array, Params, Rng, Trajectory, Tree
from ersac.uncertainty.base import Uncertainty

FILTERS = Filters(16, 8, 4)
CLIP = 5.0  # standard deviations
VARIANCE_SHARE = 0.01  # of the mean variance of all features, added to that of each
MAX_STEPS = 1e5  # the memory of the statistics


class FeatureMemory(NamedTuple):
    """The fixed filters, the statistics of the features, and the estimator's own memory."""

    filters: Tree  # [side, side, channels, n]
    bias: Tree  # [n]
    steps: Tree  # []   steps that the statistics are over, at most MAX_STEPS
    mean: Tree  # [F]
    square: Tree  # [F]  mean square
    inner: Tree


def count_features(shape: tuple[int, ...]) -> int:
    """Return the number of random features of an image."""
    height, width = (FILTERS.output_size(pixels) for pixels in shape[:2])
    return height * width * FILTERS.channels


def linear_in_features(n_features: int, n_out: int, scale: float) -> Net:
    """Return a fixed linear function of features [..., F] with standard deviation `scale`."""
    return Net(
        init=lambda rng: normal(rng, (n_features, n_out), scale / n_features**0.5),
        apply=lambda weights, x: x @ weights,
    )


def on_random_features(inner: Uncertainty, shape: tuple[int, ...], channels: int) -> Uncertainty:
    """Return an estimator on images [..., *shape], given one on their features [..., F].

    The inner estimator receives the features both as observations and as the torso's features.

    channels: of the newest frame, which are the last.
    """

    def init(rng: Rng) -> tuple[Params, Tree]:
        n, size = FILTERS.channels, count_features(shape)
        filters = normal(rng, (FILTERS.side, FILTERS.side, channels, n), 1.0)
        filters = filters - filters.mean(axis=(0, 1), keepdims=True)  # no brightness, only shapes
        params, memory = inner.init(rng)
        zeros, start = np.zeros(size, np.float32), np.zeros((), np.float32)
        bias = normal(rng, (n,), 0.1)
        return params, FeatureMemory(filters, bias, start, zeros, zeros, memory)

    def features(memory: FeatureMemory, obs: Array) -> Array:
        leading = obs.shape[: obs.ndim - len(shape)]
        x = obs[..., -channels:].reshape(-1, *shape[:2], channels)
        x = jax.nn.relu(add_bias(convolve(x, memory.filters, FILTERS.stride), memory.bias))
        return x.reshape(*leading, -1)

    def whitened(memory: FeatureMemory, obs: Array) -> Array:
        variance = memory.square - jnp.square(memory.mean)
        variance = jnp.maximum(variance, 0.0) + VARIANCE_SHARE * jnp.mean(variance) + 1e-8
        x, expand = features(memory, obs), lambda y: jnp.broadcast_to(y, (*obs.shape[:-3], y.size))
        x = (x - expand(memory.mean)) * expand(jax.lax.rsqrt(variance))
        return stop_gradient(jnp.clip(x, -CLIP, CLIP))

    def sigma2(params: Params, memory: Tree, obs: Array, torso: Array, action: Array) -> Array:
        x = whitened(memory, obs)
        return inner.sigma2(params, memory.inner, x, x, action)

    def loss(params: Params, memory: Tree, obs: Array, torso: Array, t: Trajectory) -> Array:
        x = whitened(memory, obs)
        return inner.loss(params, memory.inner, x, x, t)

    def observe(memory: Tree, t: Trajectory) -> Tree:
        x = features(memory, t.obs[:, :-1])  # [N, T, F]
        new = jnp.asarray(float(x.shape[0] * x.shape[1]))
        share = new / (memory.steps + new)
        blend = lambda old, x: (1 - share) * old + share * jnp.mean(x, axis=(0, 1))
        return memory._replace(
            steps=jnp.minimum(memory.steps + new, MAX_STEPS),
            mean=blend(memory.mean, x),
            square=blend(memory.square, jnp.square(x)),
            inner=inner.observe(memory.inner, t),
        )

    return inner._replace(init=init, sigma2=sigma2, loss=loss, observe=observe)
