"""Normalisation of observations and rewards with running statistics.

Trajectories, also those in a replay buffer, hold raw observations and rewards; they are normalised
when they are learned from. One set of default settings then fits rewards of 0.001 and of 1,000, and
observations in metres and in millimetres.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from ersac.envs.base import Box, Space
from ersac.nets.layers import is_large_image
from ersac.types import Array, Trajectory, Tree

CLIP = 10.0  # normalised observations are clipped to this (before the common scale)
# An entry of an observation has varied if the square of its half range is above this share of its
# squared mean: below it the range may be rounding.
VARIED = 1e-10
# Added to the variance of a pixel: a share of the mean variance of all, and about that of rounding.
PIXEL_SHARE, PIXEL_VARIANCE = 1e-2, 1e-5
MAX_COUNT = 1e6  # the longest memory of a running mean: single precision averages no further


class Normaliser(NamedTuple):
    """Functions of running statistics, `stats`, which are part of an agent's memory."""

    init: Callable[[], Tree]  # -> stats before the first step, on the host
    obs: Callable[[Tree, Array], Array]  # stats, raw observations -> normalised ones
    reward: Callable[[Tree, Array], Array]  # stats, raw rewards -> normalised ones
    observe: Callable[[Tree, Trajectory], Tree]  # stats, new rollouts [N, T] -> stats
    # stats -> steps, discounted, that an episode loses on average by terminating early
    lost_steps: Callable[[Tree], Array]


def identity() -> Normaliser:
    """Return a normaliser that changes nothing."""
    return Normaliser(
        init=lambda: (),
        obs=lambda stats, obs: obs,
        reward=lambda stats, reward: reward,
        observe=lambda stats, t: stats,
        lost_steps=lambda stats: jnp.zeros(()),
    )


def beside_images(normaliser: Normaliser, pixels: int) -> Normaliser:
    """Return a normaliser of vectors [..., n] whose first numbers are images, already divided."""
    numbers = lambda obs: obs[..., pixels:]
    return normaliser._replace(
        obs=lambda stats, obs: jnp.concatenate(
            [obs[..., :pixels], normaliser.obs(stats, numbers(obs))], axis=-1
        ),
        observe=lambda stats, t: normaliser.observe(stats, t._replace(obs=numbers(t.obs))),
    )


class RunningStats(NamedTuple):
    """Running statistics of observations, returns and episode lengths."""

    steps: Tree  # []             weight of mean and variance, at most MAX_COUNT
    mean: Tree  # [*shape]        of observations
    variance: Tree  # [*shape]
    low: Tree  # [*shape]         minimum of observations
    high: Tree  # [*shape]        maximum
    episode_return: Tree  # [N]   discounted rewards of the current episode of each environment
    largest_return: Tree  # []    largest absolute value of the former
    episode_length: Tree  # [N]   steps of the current episode of each environment
    max_length: Tree  # []        steps of the longest episode
    terminated: Tree  # []        episodes that terminated, at most MAX_COUNT
    mean_length: Tree  # []       mean steps of episodes that terminated


def running(
    observations: Space,
    envs: int,
    gamma: float | Array,
    normalise: bool,
    scale_rewards: bool,
    clip_rewards: bool = False,
) -> Normaliser:
    """Return a normaliser with running statistics.

    Vectors (with `normalise`): every entry is centred by its mean and divided by half of its range;
    dividing by the standard deviation would blow up an entry that is rarely 1. An entry that has
    never varied is divided by the mean half range of the others, so that its first change is
    visible. A common factor then brings the mean square over all entries to 1.

    Images of bytes are divided by 255. Large ones are also centred and divided by the standard
    deviation, for each pixel of a frame: in a game little moves before a bright background.

    Rewards (with `scale_rewards`) are divided by the largest absolute discounted return if that is
    above 1. They are never scaled up: before a goal is found there may be nothing but small costs,
    which would then outweigh every bonus. With `clip_rewards` they are clipped to [-1, 1] first.
    """
    vectors = normalise and isinstance(observations, Box) and len(observations.shape) < 3
    shape = observations.shape if vectors and isinstance(observations, Box) else ()
    is_bytes = isinstance(observations, Box) and observations.is_bytes
    whitens = normalise and is_large_image(observations)
    if whitens:
        assert isinstance(observations, Box)
        shape = (*observations.shape[:-1], observations.shape[-1] // observations.frames)

    def init() -> RunningStats:
        zeros = lambda *shape: np.zeros(shape, np.float32)
        return RunningStats(
            steps=zeros(),
            mean=zeros(*shape),
            variance=zeros(*shape),
            low=zeros(*shape),
            high=zeros(*shape),
            episode_return=zeros(envs),
            largest_return=zeros(),
            episode_length=zeros(envs),
            max_length=zeros(),
            terminated=zeros(),
            mean_length=zeros(),
        )

    def obs(stats: RunningStats, obs: Array) -> Array:
        if is_bytes:
            pixels = obs.astype(stats.mean.dtype) / 255
            return _whiten(stats, pixels) if whitens else pixels
        if not vectors:
            return obs
        half_range, factor = _obs_scales(stats)
        expand = lambda x: jnp.broadcast_to(x, obs.shape)
        return factor * jnp.clip((obs - expand(stats.mean)) / expand(half_range), -CLIP, CLIP)

    def clip(reward: Array) -> Array:
        return jnp.clip(reward, -1.0, 1.0) if clip_rewards else reward

    def reward(stats: RunningStats, reward: Array) -> Array:
        reward = clip(reward)
        return reward / jnp.maximum(1.0, stats.largest_return) if scale_rewards else reward

    def observe(stats: RunningStats, t: Trajectory) -> RunningStats:
        if vectors:
            stats = _update_moments(stats, t.obs[:, :-1].reshape(-1, *shape), t.mask.reshape(-1))
        if whitens:
            newest = t.obs[:, :-1, ..., -shape[-1] :].astype(stats.mean.dtype) / 255
            stats = _update_moments(stats, newest.reshape(-1, *shape), t.mask.reshape(-1))
        if scale_rewards:
            stats = _update_returns(stats, t)
        return _update_lengths(stats, t)

    def _update_returns(stats: RunningStats, t: Trajectory) -> RunningStats:
        def step(total: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
            reward, discount = x
            total = gamma * total + reward
            return jnp.where(discount == 0, 0.0, total), total

        last, returns = jax.lax.scan(step, stats.episode_return, (clip(t.reward).T, t.discount.T))
        return stats._replace(
            episode_return=last,
            largest_return=jnp.maximum(stats.largest_return, jnp.max(jnp.abs(returns))),
        )

    def lost_steps(stats: RunningStats) -> Array:
        """Return 1 + gamma + gamma^2 + ... over the steps from the mean length to the longest."""
        steps = jnp.where(stats.terminated > 0, stats.max_length - stats.mean_length, 0.0)
        rest = 1 - jnp.asarray(gamma)
        return jnp.where(rest > 0, (1 - gamma**steps) / jnp.where(rest > 0, rest, 1.0), steps)

    return Normaliser(init=init, obs=obs, reward=reward, observe=observe, lost_steps=lost_steps)


def _whiten(stats: RunningStats, pixels: Array) -> Array:
    """Return images [..., height, width, n] with each pixel of their frames whitened."""
    floor = PIXEL_SHARE * jnp.mean(stats.variance) + PIXEL_VARIANCE
    frames = pixels.shape[-1] // stats.mean.shape[-1]
    expand = lambda x: jnp.broadcast_to(jnp.tile(x, frames), pixels.shape)
    centred = pixels - expand(stats.mean)
    return jnp.clip(centred * expand(jax.lax.rsqrt(stats.variance + floor)), -CLIP, CLIP)


def _obs_scales(stats: RunningStats) -> tuple[Array, Array]:
    """Return the half range of every entry [*shape], and the common factor [] of all entries."""
    half_range = (stats.high - stats.low) / 2  # at least the standard deviation
    varied = jnp.square(half_range) > VARIED * jnp.square(stats.mean)
    mean_range = jnp.sum(jnp.where(varied, half_range, 0.0)) / jnp.maximum(1, jnp.sum(varied))
    half_range = jnp.where(varied, half_range, jnp.where(mean_range > 0, mean_range, 1.0))
    mean_square = jnp.mean(jnp.where(varied, stats.variance, 0.0) / jnp.square(half_range))
    return half_range, jnp.where(
        mean_square > 0, jax.lax.rsqrt(jnp.where(mean_square > 0, mean_square, 1.0)), 1.0
    )


def _update_moments(stats: RunningStats, obs: Array, mask: Array) -> RunningStats:
    """Add observations [M, *shape] to mean, variance (Chan et al. 1979), minimum and maximum."""
    new = jnp.sum(mask)
    per_step = lambda x: x.reshape(-1, *[1] * (obs.ndim - 1))
    weights = per_step(mask / jnp.maximum(new, 1.0))
    mean = jnp.sum(weights * obs, axis=0)
    variance = jnp.sum(weights * jnp.square(obs - mean[None]), axis=0)
    share = new / jnp.maximum(stats.steps + new, 1.0)
    shift = mean - stats.mean
    variance = (
        (1 - share) * stats.variance + share * variance + share * (1 - share) * jnp.square(shift)
    )
    real = jnp.broadcast_to(per_step(mask) > 0, obs.shape)
    low = jnp.min(jnp.where(real, obs, jnp.inf), axis=0)
    high = jnp.max(jnp.where(real, obs, -jnp.inf), axis=0)
    has_stats = stats.steps > 0
    low = jnp.where(has_stats, jnp.minimum(stats.low, low), low)
    high = jnp.where(has_stats, jnp.maximum(stats.high, high), high)
    return stats._replace(
        steps=jnp.minimum(stats.steps + new, MAX_COUNT),
        mean=stats.mean + share * shift,
        variance=variance,
        low=jnp.where(has_stats | (new > 0), low, 0.0),
        high=jnp.where(has_stats | (new > 0), high, 0.0),
    )


def _update_lengths(stats: RunningStats, t: Trajectory) -> RunningStats:
    """Add steps to the episode lengths, and episodes that terminated to their mean length.

    An episode terminates with a real step of discount 0; the fake step of a truncation is masked.
    """

    def step(length: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
        discount, mask = x
        length = length + mask
        return jnp.where(discount == 0, 0.0, length), length

    last, lengths = jax.lax.scan(step, stats.episode_length, (t.discount.T, t.mask.T))
    ends = jnp.where(t.discount.T == 0, t.mask.T, 0.0)
    terminated = stats.terminated + jnp.sum(ends)
    # A sum of differences is exactly zero if all episodes have the same length.
    error = jnp.sum(ends * (lengths - stats.mean_length))
    return stats._replace(
        episode_length=last,
        max_length=jnp.maximum(stats.max_length, jnp.max(lengths)),
        terminated=jnp.minimum(terminated, MAX_COUNT),
        mean_length=stats.mean_length + error / jnp.maximum(1.0, terminated),
    )
