"""Ensembles on images: members and priors are linear in the whitened pixels of a small image.

What matters in a game may be a few of its pixels. So the newest frame is reduced to about 21 pixels
a side, and each pixel is centred and divided by its own standard deviation (as the whole images of
Burda et al. 2018 are): a sprite where none has been stands out from a moving background. Members
and priors read the same pixels, so members can agree exactly wherever they were trained.
"""

from typing import NamedTuple

import numpy as np
from jax import numpy as jnp
from jax.lax import rsqrt, stop_gradient

from ersac.nets.layers import Net, batch_shape, normal
from ersac.types import Array, Params, Rng, Trajectory, Tree
from ersac.uncertainty.base import Uncertainty

SIDE = 21  # pixels of the small image, at least
CLIP = 20.0  # standard deviations
VARIANCE_SHARE = 1e-3  # of the mean variance of all pixels, added to that of each
MAX_STEPS = 1e5  # the memory of the statistics


class PixelMemory(NamedTuple):
    """The statistics of the small images, and the estimator's own memory."""

    steps: Tree  # []   steps that the statistics are over, at most MAX_STEPS
    mean: Tree  # [F]
    variance: Tree  # [F]
    inner: Tree


def small_shape(shape: tuple[int, ...], frames: int) -> tuple[int, int, int]:
    """Return the shape of the small image of observations that stack so many frames."""
    factor = max(1, min(shape[:2]) // SIDE)
    return shape[0] // factor, shape[1] // factor, shape[2] // frames


def shrink_image(obs: Array, small: tuple[int, int, int]) -> Array:
    """Return the mean pixels [..., F] of the newest frame of images [..., height, width, n]."""
    height, width, channels = small
    factor = obs.shape[-3] // height
    x = obs[..., : height * factor, : width * factor, -channels:]
    x = x.reshape(*obs.shape[:-3], height, factor, width, factor, channels)
    return jnp.mean(x, axis=(-4, -2)).reshape(*obs.shape[:-3], -1)


def linear_prior(n_features: int, n_out: int, scale: float) -> Net:
    """Return a fixed linear function of features [..., F] with standard deviation `scale`."""
    return Net(
        init=lambda rng: normal(rng, (n_features, n_out), scale / n_features**0.5),
        apply=lambda weights, x: x @ weights,
    )


def on_small_images(inner: Uncertainty, shape: tuple[int, ...], frames: int) -> Uncertainty:
    """Return an estimator on images [..., *shape], given one on whitened pixels [..., F].

    The inner estimator receives them both as observations and as the torso's features.
    """
    small = small_shape(shape, frames)

    def init(rng: Rng) -> tuple[Params, Tree]:
        params, memory = inner.init(rng)
        zeros = np.zeros(int(np.prod(small)), np.float32)
        return params, PixelMemory(np.zeros((), np.float32), zeros, zeros, memory)

    def whiten(memory: PixelMemory, obs: Array) -> Array:
        floor = VARIANCE_SHARE * jnp.mean(memory.variance) + 1e-12
        expand = lambda y: jnp.broadcast_to(y, (*batch_shape(obs, shape), y.size))
        x = shrink_image(obs, small) - expand(memory.mean)
        x = x * expand(rsqrt(memory.variance + floor))
        return stop_gradient(jnp.clip(x, -CLIP, CLIP))

    def sigma2(params: Params, memory: Tree, obs: Array, features: Array, action: Array) -> Array:
        x = whiten(memory, obs)
        return inner.sigma2(params, memory.inner, x, x, action)

    def loss(params: Params, memory: Tree, obs: Array, features: Array, t: Trajectory) -> Array:
        x = whiten(memory, obs)
        return inner.loss(params, memory.inner, x, x, t)

    def observe(memory: Tree, t: Trajectory) -> Tree:
        x = shrink_image(t.obs[:, :-1], small)  # [N, T, F]
        new, over = float(x.shape[0] * x.shape[1]), (0, 1)
        share = new / (memory.steps + new)
        mean, variance = jnp.mean(x, axis=over), jnp.var(x, axis=over)
        shift = mean - memory.mean
        return PixelMemory(
            steps=jnp.minimum(memory.steps + new, MAX_STEPS),
            mean=memory.mean + share * shift,
            variance=(1 - share) * memory.variance
            + share * variance
            + share * (1 - share) * jnp.square(shift),
            inner=inner.observe(memory.inner, t._replace(obs=x)),
        )

    return inner._replace(init=init, sigma2=sigma2, loss=loss, observe=observe)
