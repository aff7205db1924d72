"""What a head's numbers mean as a policy: a choice among actions, or a point in a box.

An action is kept as it was drawn. A squashed one is kept before it is squashed: the step in between is the same for every policy, so it
drops out of every ratio, and an action at the very edge of its box has a finite logarithm.
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

CELLS = 16  # that a continuous entropy counts an entry's range in: it is positive while a policy covers more than a cell
LEAST_LOG_STD, MOST_LOG_STD = -5.0, 1.0
NODES = np.linspace(
    -4.5, 4.5, 25
)  # of a mean under a normal distribution: Gauss's nodes take the bend of log tanh' far less well
WEIGHTS = np.exp(-(NODES**2) / 2) / np.exp(-(NODES**2) / 2).sum()


class ActionDist(NamedTuple):
    """`dist_params` is what the policy's head says of a state [..., outputs]."""

    outputs: int
    action_noise: Callable[[Key, int], Array]  # key, T -> the randomness of T actions
    draw: Callable[[Array, Array], Array]  # told, one step's chance -> action
    mode: Callable[[Array], Array]  # told -> the likeliest action
    log_prob: Callable[[Array, Array], Array]  # told, action -> [...]
    log_pi: Callable[
        [Array], Array
    ]  # told -> log-probabilities of all that can be counted [..., n_actions]
    entropy: Callable[[Array], Array]  # told -> [...]   in nats
    to_env: Callable[[Array], Array]  # action -> what the environment takes
    action_index: Callable[
        [Array], Array
    ]  # action -> which of `n_actions` it is, for whoever keeps something of each
    n_actions: int


def make_action_dist(actions: Space) -> ActionDist:
    """The policy that fits a space of actions."""
    return categorical(actions.n) if isinstance(actions, Discrete) else tanh_normal(actions)


def categorical(n_actions: int) -> ActionDist:
    """Logits; the largest of logits plus Gumbel noise is a draw."""
    return ActionDist(
        outputs=n_actions,
        action_noise=lambda key, length: jax.random.gumbel(key, (length, n_actions)),
        draw=lambda logits, gumbel: jnp.argmax(logits + gumbel, axis=-1),
        mode=lambda logits: jnp.argmax(logits, axis=-1),
        log_prob=lambda logits, action: take_action(jax.nn.log_softmax(logits), action),
        log_pi=jax.nn.log_softmax,
        entropy=lambda logits: game.entropy(jax.nn.log_softmax(logits)),
        to_env=lambda action: action,
        action_index=lambda action: action,
        n_actions=n_actions,
    )


def take_action(of_actions: Array, action: Array) -> Array:
    """What the actions [...] have of what all have [..., A]."""
    return jnp.take_along_axis(of_actions, action[..., None], axis=-1)[..., 0]


def tanh_normal(box: Box) -> ActionDist:
    """A normal distribution, squashed into a box by tanh (Haarnoja et al. 2018), each entry by itself.

    Its entropy is that of the box cut into CELLS an entry, so that it has a zero as a choice among actions has one: against an unbounded
    differential entropy tau would have nothing to settle at. The game's solution is no normal distribution, so what is found is the best
    there is among these, and the duality gap of [e-saddle] does not close.
    """
    size = box.size
    low, high = (np.asarray(bound, np.float32) for bound in (box.low, box.high))
    parts = lambda dist_params: (
        dist_params[..., :size],
        jnp.clip(dist_params[..., size:], LEAST_LOG_STD, MOST_LOG_STD),
    )
    log_slope = lambda drawn: 2 * (math.log(2) - drawn - jax.nn.softplus(-2 * drawn))  # of tanh

    def draw(dist_params: Array, normal: Array) -> Array:
        mean, log_std = parts(dist_params)
        return mean + jnp.exp(log_std) * normal

    def log_prob(dist_params: Array, drawn: Array) -> Array:
        """Of the squashed action, on the box from -1 to 1 in units of cells."""
        mean, log_std = parts(dist_params)
        off = jnp.square((drawn - mean) / jnp.exp(log_std))
        density = -0.5 * (off + math.log(2 * math.pi)) - log_std - log_slope(drawn)
        return jnp.sum(density - math.log(CELLS / 2), axis=-1)

    def entropy(dist_params: Array) -> Array:
        """Minus the mean of `log_prob`, by quadrature."""
        mean, log_std = parts(dist_params)
        nodes = jnp.asarray(NODES, dist_params.dtype).reshape(-1, *[1] * mean.ndim)
        drawn = mean[None] + jnp.exp(log_std)[None] * jnp.broadcast_to(
            nodes, (len(NODES), *mean.shape)
        )
        slope = jnp.tensordot(jnp.asarray(WEIGHTS, dist_params.dtype), log_slope(drawn), axes=1)
        return jnp.sum(
            0.5 * math.log(2 * math.pi * math.e) + log_std + slope + math.log(CELLS / 2), axis=-1
        )

    def to_env(drawn: Array) -> Array:
        across = lambda bound: jnp.broadcast_to(bound, drawn.shape)
        point = across(high / 2 + low / 2) + across(high / 2 - low / 2) * jnp.tanh(drawn)
        return jnp.clip(point, across(low), across(high))  # rounding leads over an edge

    return ActionDist(
        outputs=2 * size,
        action_noise=lambda key, length: jax.random.normal(key, (length, size)),
        draw=draw,
        mode=lambda dist_params: parts(dist_params)[0],
        log_prob=log_prob,
        log_pi=lambda dist_params: jnp.zeros((*dist_params.shape[:-1], 1), dist_params.dtype),
        entropy=entropy,
        to_env=to_env,
        action_index=lambda drawn: jnp.zeros(drawn.shape[:-1], jnp.int32),
        n_actions=1,
    )
