"""Action distributions: the policy head's outputs as a categorical or a tanh-normal distribution.

A trajectory stores actions before tanh. The log-derivative of tanh is then the same under every
policy and cancels in importance ratios, and an action at the edge of its box has a finite
log-probability.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from ersac.algorithm import game
from ersac.envs.base import Box, Discrete, Space
from ersac.types import Array, Key

# The entropy of a continuous action is that of its box divided into this many cells a dimension: it
# is positive while a policy covers more than one cell.
CELLS = 16
MIN_LOG_STD, MAX_LOG_STD = -5.0, 1.0
# Quadrature for means under a normal distribution. Evenly spaced nodes are far more accurate here
# than Gauss-Hermite's, because the log-derivative of tanh is nearly piecewise linear.
NODES = np.linspace(-4.5, 4.5, 25)
WEIGHTS = np.exp(-(NODES**2) / 2) / np.exp(-(NODES**2) / 2).sum()


class ActionDist(NamedTuple):
    """A family of distributions over actions, parametrised by `dist_params` [..., outputs]."""

    outputs: int  # numbers that the policy head returns for a state
    n_actions: int  # actions with statistics of their own: 1 where actions are continuous
    action_noise: Callable[[Key, int], Array]  # key, T -> the noise of T actions [T, ...]
    draw: Callable[[Array, Array], Array]  # dist_params, noise of one step -> action
    mode: Callable[[Array], Array]  # dist_params -> most likely action (before tanh)
    log_prob: Callable[[Array, Array], Array]  # dist_params, action -> [...]
    log_pi: Callable[[Array], Array]  # dist_params -> log-probabilities [..., n_actions]
    entropy: Callable[[Array], Array]  # dist_params -> [...], in nats
    to_env: Callable[[Array], Array]  # action -> action as the environment takes it
    action_index: Callable[[Array], Array]  # action -> index below n_actions


def make_action_dist(actions: Space) -> ActionDist:
    """Return the action distribution for an action space."""
    return categorical(actions.n) if isinstance(actions, Discrete) else tanh_normal(actions)


def categorical(n_actions: int) -> ActionDist:
    """Return a categorical distribution; its parameters are logits, and draws use Gumbel noise."""
    return ActionDist(
        outputs=n_actions,
        n_actions=n_actions,
        action_noise=lambda key, length: jax.random.gumbel(key, (length, n_actions)),
        draw=lambda logits, gumbel: jnp.argmax(logits + gumbel, axis=-1),
        mode=lambda logits: jnp.argmax(logits, axis=-1),
        log_prob=lambda logits, action: take_action(jax.nn.log_softmax(logits), action),
        log_pi=jax.nn.log_softmax,
        entropy=lambda logits: game.entropy(jax.nn.log_softmax(logits)),
        to_env=lambda action: action,
        action_index=lambda action: action,
    )


def take_action(values: Array, action: Array) -> Array:
    """Return the entries [...] of `values` [..., A] that belong to the actions [...]."""
    return jnp.take_along_axis(values, action[..., None], axis=-1)[..., 0]


def tanh_normal(box: Box) -> ActionDist:
    """Return an independent normal distribution a dimension, mapped to a box by tanh.

    It is the policy of SAC (Haarnoja et al. 2018). Its parameters are means and log standard
    deviations. Its entropy is measured in cells of the box (CELLS a dimension), so that it has a
    zero, as the entropy of a categorical distribution does: with an unbounded differential entropy
    tau would have no equilibrium. The solution of the game is not a tanh-normal distribution, so
    the policy converges to the best of this family, and the duality gap of [e-saddle] does not
    close.
    """
    size = box.size
    low, high = (np.asarray(bound, np.float32) for bound in (box.low, box.high))
    log_tanh_slope = lambda u: 2 * (math.log(2) - u - jax.nn.softplus(-2 * u))

    def split(dist_params: Array) -> tuple[Array, Array]:
        """Return means and log standard deviations, each [..., size]."""
        log_std = jnp.clip(dist_params[..., size:], MIN_LOG_STD, MAX_LOG_STD)
        return dist_params[..., :size], log_std

    def draw(dist_params: Array, normal: Array) -> Array:
        mean, log_std = split(dist_params)
        return mean + jnp.exp(log_std) * normal

    def log_prob(dist_params: Array, action: Array) -> Array:
        """Return the log-density of tanh(action), a density per cell of the box."""
        mean, log_std = split(dist_params)
        square = jnp.square((action - mean) / jnp.exp(log_std))
        density = -0.5 * (square + math.log(2 * math.pi)) - log_std - log_tanh_slope(action)
        return jnp.sum(density - math.log(CELLS / 2), axis=-1)

    def entropy(dist_params: Array) -> Array:
        """Return the mean of `-log_prob`, by quadrature."""
        mean, log_std = split(dist_params)
        nodes = jnp.asarray(NODES, dist_params.dtype).reshape(-1, *[1] * mean.ndim)
        nodes = jnp.broadcast_to(nodes, (len(NODES), *mean.shape))
        slopes = log_tanh_slope(mean[None] + jnp.exp(log_std)[None] * nodes)
        slope = jnp.tensordot(jnp.asarray(WEIGHTS, dist_params.dtype), slopes, axes=1)
        return jnp.sum(
            0.5 * math.log(2 * math.pi * math.e) + log_std + slope + math.log(CELLS / 2), axis=-1
        )

    def to_env(action: Array) -> Array:
        expand = lambda bound: jnp.broadcast_to(bound, action.shape)
        point = expand(high / 2 + low / 2) + expand(high / 2 - low / 2) * jnp.tanh(action)
        return jnp.clip(point, expand(low), expand(high))  # rounding may leave the box

    return ActionDist(
        outputs=2 * size,
        n_actions=1,
        action_noise=lambda key, length: jax.random.normal(key, (length, size)),
        draw=draw,
        mode=lambda dist_params: split(dist_params)[0],
        log_prob=log_prob,
        log_pi=lambda dist_params: jnp.zeros((*dist_params.shape[:-1], 1), dist_params.dtype),
        entropy=entropy,
        to_env=to_env,
        action_index=lambda action: jnp.zeros(action.shape[:-1], jnp.int32),
    )
