"""Action distributions: categorical, a product of categoricals, or tanh-normal.

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
from jax.lax import stop_gradient

from ersac.algorithm import game
from ersac.envs.base import ActionSpace, Box, Discrete, MultiDiscrete
from ersac.nets.layers import scale_gradient
from ersac.types import Array, Key

MAX_JOINT = 256  # combinations of a product of actions that are numbered for `all-actions`
MASKED_LOGIT = -1e9  # of an action that is not allowed: its probability is exactly zero
# The entropy of a continuous action is that of the cell it falls in, of this many in a dimension.
CELLS = 16
NATURAL_SHARE = 0.2  # of the natural gradient; with all of it policies are narrow too early
MIN_LOG_STD, MAX_LOG_STD = -5.0, 1.0
CELL_EDGES = np.arctanh(np.linspace(-1, 1, CELLS + 1)[1:-1])  # before tanh
TINY = 1e-7  # keeps the slope of p log p finite in an empty cell


class ActionDist(NamedTuple):
    """A family of distributions over actions, parametrised by `dist_params` [..., outputs]."""

    outputs: int  # numbers that the policy head returns for a state
    sizes: tuple[int, ...]  # actions with statistics of their own, by factor; (1,) if continuous
    action_noise: Callable[[Key, int], Array]  # key, T -> the noise of T actions [T, ...]
    draw: Callable[[Array, Array], Array]  # dist_params, noise of one step -> action
    mode: Callable[[Array], Array]  # dist_params -> most likely action (before tanh)
    log_prob: Callable[[Array, Array], Array]  # dist_params, action -> [...]
    log_pi: Callable[[Array], Array]  # dist_params -> log-probabilities [..., n_actions]
    entropy: Callable[[Array], Array]  # dist_params -> [...], in nats
    to_env: Callable[[Array], Array]  # action -> action as the environment takes it
    action_index: Callable[[Array], Array]  # action -> index below n_actions; [..., F] of F factors
    take: Callable[[Array, Array], Array]  # [..., n_actions], action -> the mean over its factors
    # mask of the space's choices [..., n] -> mask of the outputs
    allowed: Callable[[Array], Array] = lambda mask: mask
    is_continuous: bool = False

    @property
    def n_actions(self) -> int:
        """The number of actions with statistics of their own, all factors together."""
        return sum(self.sizes)


def make_action_dist(actions: ActionSpace, joint: bool = False) -> ActionDist:
    """Return the action distribution for an action space.

    joint: number the combinations of a product of actions.
    """
    match actions:
        case Discrete(n):
            return categorical(n)
        case MultiDiscrete(sizes):
            return joint_categorical(sizes) if joint else product(sizes)
        case Box():
            return tanh_normal(actions)


def categorical(n_actions: int) -> ActionDist:
    """Return a categorical distribution; its parameters are logits, and draws use Gumbel noise."""
    return ActionDist(
        outputs=n_actions,
        sizes=(n_actions,),
        action_noise=lambda key, length: jax.random.gumbel(key, (length, n_actions)),
        draw=lambda logits, gumbel: jnp.argmax(logits + gumbel, axis=-1),
        mode=lambda logits: jnp.argmax(logits, axis=-1),
        log_prob=lambda logits, action: take_action(jax.nn.log_softmax(logits), action),
        log_pi=jax.nn.log_softmax,
        entropy=lambda logits: game.entropy(jax.nn.log_softmax(logits)),
        to_env=lambda action: action,
        action_index=lambda action: action,
        take=take_action,
    )


def product(sizes: tuple[int, ...]) -> ActionDist:
    """Return independent categorical distributions, one for each factor of the action.

        log pi(a) = sum_f log pi_f(a_f)       H(pi) = sum_f H(pi_f)

    The parameters are the logits of all factors, concatenated. Statistics are kept for each choice
    of each factor, so that they grow with the sum of `sizes` and not with their product: sigma2 and
    the bonus of an action are the means over its choices, sigma2(s, a) = mean_f sigma2_f(s, a_f).
    With a mean, unlike a sum, the prior of an action is that of one choice for any number of
    factors. The expectation over actions is a sum of expectations over choices.
    """
    edges = np.cumsum(sizes)
    offsets = edges - sizes
    split = lambda x: jnp.split(x, edges[:-1], axis=-1)
    highest = lambda x: jnp.stack([jnp.argmax(part, axis=-1) for part in split(x)], axis=-1)
    by_factor = lambda logits: [jax.nn.log_softmax(part) for part in split(logits)]

    def action_index(action: Array) -> Array:
        return action + jnp.broadcast_to(jnp.asarray(offsets, action.dtype), action.shape)

    def of_choices(values: Array, action: Array) -> Array:
        """Return the entries [..., F] of `values` [..., n_actions] that belong to an action."""
        return jnp.take_along_axis(values, action_index(action), axis=-1)

    def log_pi(logits: Array) -> Array:
        return jnp.concatenate(by_factor(logits), axis=-1)

    return ActionDist(
        outputs=sum(sizes),
        sizes=sizes,
        action_noise=lambda key, length: jax.random.gumbel(key, (length, sum(sizes))),
        draw=lambda logits, gumbel: highest(logits + gumbel),
        mode=highest,
        log_prob=lambda logits, action: jnp.sum(of_choices(log_pi(logits), action), axis=-1),
        log_pi=log_pi,
        entropy=lambda logits: jnp.sum(
            jnp.stack([game.entropy(part) for part in by_factor(logits)]), axis=0
        ),
        to_env=lambda action: action,
        action_index=action_index,
        take=lambda values, action: jnp.mean(of_choices(values, action), axis=-1),
    )


def joint_categorical(sizes: tuple[int, ...]) -> ActionDist:
    """Return one categorical distribution over all combinations; the last factor varies fastest."""

    def allowed(mask: Array) -> Array:
        first, *others = jnp.split(mask, np.cumsum(sizes)[:-1], axis=-1)
        for part in others:
            pairs = first[..., :, None] & part[..., None, :]
            first = pairs.reshape(*pairs.shape[:-2], pairs.shape[-2] * pairs.shape[-1])
        return first

    return categorical(math.prod(sizes))._replace(
        to_env=lambda action: jnp.stack(jnp.unravel_index(action, sizes), axis=-1),
        allowed=allowed,
    )


def factor_sums(values: Array, sizes: tuple[int, ...]) -> Array:
    """Return at each choice [..., n_actions] the sum over all choices of its factor."""
    parts = jnp.split(values, np.cumsum(sizes)[:-1], axis=-1)
    sums = [jnp.sum(part, axis=-1, keepdims=True) for part in parts]
    return jnp.concatenate(
        [jnp.repeat(total, n, axis=-1) for total, n in zip(sums, sizes, strict=True)], axis=-1
    )


def mask_logits(logits: Array, allowed: Array | None) -> Array:
    """Return logits that give actions that are not allowed the probability zero."""
    return logits if allowed is None else jnp.where(allowed, logits, MASKED_LOGIT)


def take_action(values: Array, action: Array) -> Array:
    """Return the entries [...] of `values` [..., A] that belong to the actions [...]."""
    return jnp.take_along_axis(values, action[..., None], axis=-1)[..., 0]


def tanh_normal(box: Box) -> ActionDist:
    """Return an independent normal distribution a dimension, mapped to a box by tanh.

    It is the policy of SAC (Haarnoja et al. 2018). Its parameters are means and log standard
    deviations. Its entropy is that of the cell of the box (CELLS a dimension) that an action falls
    in, which is never negative: a differential entropy falls without bound as a policy becomes
    narrow, and tau would grow for ever. The solution of the game is not a tanh-normal distribution,
    so the policy converges to the best of this family, and the duality gap of [e-saddle] does not
    close.
    """
    size = box.size
    low, high = (np.asarray(bound, np.float32) for bound in (box.low, box.high))
    log_tanh_slope = lambda u: 2 * (math.log(2) - u - jax.nn.softplus(-2 * u))

    def split(dist_params: Array) -> tuple[Array, Array]:
        """Return means and log standard deviations, each [..., size].

        Their gradients are natural (Kakade 2001): multiplied by the inverse of Fisher's
        information, the variance for a mean and 1/2 for a log standard deviation. The gradient of
        log pi with respect to a mean is (action - mean) / variance: as it is, a step at a rate per
        visit would throw a mean out of the box once the policy is narrow. The gradient ignores
        the limits of a log standard deviation, so that what has passed them can return. A share of
        them is used: nothing bounds the step of a normal policy as the probabilities 0 and 1 bound
        that of a categorical one.
        """
        mean, log_std = dist_params[..., :size], dist_params[..., size:]
        clipped = jnp.clip(stop_gradient(log_std), MIN_LOG_STD, MAX_LOG_STD)
        log_std = clipped + 0.5 * NATURAL_SHARE * (log_std - stop_gradient(log_std))
        natural_mean = scale_gradient(mean, NATURAL_SHARE * jnp.exp(2 * clipped))
        return natural_mean, log_std

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
        """Return the entropy of the cell that an action falls in, summed over dimensions."""
        mean, log_std = split(dist_params)
        edges = jnp.asarray(CELL_EDGES, dist_params.dtype)
        edges = jnp.broadcast_to(edges, (*mean.shape, len(CELL_EDGES)))  # [..., size, CELLS - 1]
        scaled = (edges - mean[..., None]) * jnp.exp(-log_std)[..., None]
        below = jax.scipy.special.ndtr(scaled)  # the probability of all cells below each edge
        ends = jnp.zeros_like(below[..., :1])
        cells = jnp.diff(jnp.concatenate([ends, below, ends + 1], axis=-1), axis=-1)
        return jnp.sum(jax.scipy.special.entr(cells + TINY), axis=(-2, -1))

    def action_index(action: Array) -> Array:
        return jnp.zeros(action.shape[:-1], jnp.int32)

    def to_env(action: Array) -> Array:
        expand = lambda bound: jnp.broadcast_to(bound, action.shape)
        point = expand(high / 2 + low / 2) + expand(high / 2 - low / 2) * jnp.tanh(action)
        return jnp.clip(point, expand(low), expand(high))  # rounding may leave the box

    return ActionDist(
        outputs=2 * size,
        sizes=(1,),
        action_noise=lambda key, length: jax.random.normal(key, (length, size)),
        draw=draw,
        mode=lambda dist_params: split(dist_params)[0],
        log_prob=log_prob,
        log_pi=lambda dist_params: jnp.zeros((*dist_params.shape[:-1], 1), dist_params.dtype),
        entropy=entropy,
        to_env=to_env,
        action_index=action_index,
        take=lambda values, action: take_action(values, action_index(action)),
        is_continuous=True,
    )
