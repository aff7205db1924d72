"""What the learner sees of the world: as it is, or in units of what was seen so far.

Trajectories hold raw observations and rewards, for ever. A lens stands between them and the networks, with running statistics that no
optimiser sees, so that one set of defaults fits rewards of 0.001 and of 1,000, and observations in metres and in millimetres.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from ersac.envs.base import Box, Space
from ersac.types import Array, Trajectory, Tree

FURTHEST = 10.0  # units beyond which an entry of an observation is not told apart
SMALLEST = 1e-10  # a squared unit, as a share of the squared mean, below which an entry is constant but for rounding
LONGEST = 1e6  # steps after which statistics forget: as far as single precision averages


class Normaliser(NamedTuple):
    """Functions of running statistics, `stats`, which are part of an agent's memory."""

    init: Callable[[], Tree]  # -> stats before the first step, on the host
    obs: Callable[[Tree, Array], Array]  # stats, raw observations -> normalised ones
    reward: Callable[[Tree, Array], Array]  # stats, raw rewards -> normalised ones
    observe: Callable[[Tree, Trajectory], Tree]  # stats, new rollouts [N, T] -> stats
    # stats -> discounted steps that an episode forgoes, on average, by terminating early
    forgone: Callable[[Tree], Array]


def identity() -> Normaliser:
    """The world as it is: where its units are known."""
    return Normaliser(
        init=lambda: (),
        obs=lambda stats, obs: obs,
        reward=lambda stats, reward: reward,
        observe=lambda stats, t: stats,
        forgone=lambda stats: jnp.zeros(()),
    )


class RunningStats(NamedTuple):
    """Running statistics of observations, returns and episode lengths."""

    steps: Tree  # []   that the moments below are means over, at most LONGEST
    mean: Tree  # [*shape]
    variance: Tree  # [*shape]
    low: Tree  # [*shape]   the least value of every entry so far
    high: Tree  # [*shape]  the greatest
    running: Tree  # [N]    the discounted return of each environment's episode so far
    largest: Tree  # []     the largest absolute one
    age: Tree  # [N]        steps of each environment's episode so far
    longest: Tree  # []     steps of the longest episode so far
    terminated: Tree  # []   episodes that terminated, at most LONGEST
    mean_length: Tree  # []  their mean length in steps


def running(
    observations: Space, envs: int, gamma: float | Array, normalise: bool, scale: bool
) -> Normaliser:
    """Vectors normalised to a root mean square of 1; bytes over 255; rewards over the largest discounted return, where that is above 1.

    An entry is centred and measured in units of half of its range: in those of its standard deviation an entry that is rarely 1 would be
    blown up. An entry that has never varied has the mean unit of the others, so that it is seen when it does. Then all are scaled by one
    number.
    Rewards are never scaled up: costs that are all there is before a goal is found would drown every bonus.
    """
    vectors = normalise and isinstance(observations, Box) and len(observations.shape) < 3
    shape = observations.shape if vectors and isinstance(observations, Box) else ()
    is_bytes = isinstance(observations, Box) and observations.is_bytes

    def init() -> RunningStats:
        zeros = lambda *shape: np.zeros(shape, np.float32)
        return RunningStats(
            steps=zeros(),
            mean=zeros(*shape),
            variance=zeros(*shape),
            low=zeros(*shape),
            high=zeros(*shape),
            running=zeros(envs),
            largest=zeros(),
            age=zeros(envs),
            longest=zeros(),
            terminated=zeros(),
            mean_length=zeros(),
        )

    def obs(stats: RunningStats, obs: Array) -> Array:
        if is_bytes:
            return obs.astype(stats.mean.dtype) / 255
        if not vectors:
            return obs
        unit, scale = _units(stats)
        across = lambda of_entries: jnp.broadcast_to(of_entries, obs.shape)
        return scale * jnp.clip((obs - across(stats.mean)) / across(unit), -FURTHEST, FURTHEST)

    def reward(stats: RunningStats, reward: Array) -> Array:
        return reward / jnp.maximum(1.0, stats.largest) if scale else reward

    def observe(stats: RunningStats, t: Trajectory) -> RunningStats:
        if vectors:
            stats = _with_moments(stats, t.obs[:, :-1].reshape(-1, *shape), t.mask.reshape(-1))
        if scale:
            stats = _with_returns(stats, t)
        return _with_lengths(stats, t)

    def _with_returns(stats: RunningStats, t: Trajectory) -> RunningStats:
        def step(running: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
            reward, discount = x
            running = gamma * running + reward
            return jnp.where(discount == 0, 0.0, running), running

        running, returns = jax.lax.scan(step, stats.running, (t.reward.T, t.discount.T))
        return stats._replace(
            running=running, largest=jnp.maximum(stats.largest, jnp.max(jnp.abs(returns)))
        )

    def forgone(stats: RunningStats) -> Array:
        steps = jnp.where(stats.terminated > 0, stats.longest - stats.mean_length, 0.0)
        left = 1 - jnp.asarray(gamma)
        return jnp.where(left > 0, (1 - gamma**steps) / jnp.where(left > 0, left, 1.0), steps)

    return Normaliser(
        init=init,
        obs=obs,
        reward=reward,
        observe=observe,
        forgone=forgone,
    )


def _units(stats: RunningStats) -> tuple[Array, Array]:
    """The unit of every entry [*shape], and the one number [] that then brings the mean square of all entries to 1."""
    unit = (stats.high - stats.low) / 2  # no less than the standard deviation
    varied = jnp.square(unit) > SMALLEST * jnp.square(stats.mean)
    mean_unit = jnp.sum(jnp.where(varied, unit, 0.0)) / jnp.maximum(1, jnp.sum(varied))
    unit = jnp.where(varied, unit, jnp.where(mean_unit > 0, mean_unit, 1.0))
    mean_square = jnp.mean(jnp.where(varied, stats.variance, 0.0) / jnp.square(unit))
    return unit, jnp.where(
        mean_square > 0, jax.lax.rsqrt(jnp.where(mean_square > 0, mean_square, 1.0)), 1.0
    )


def _with_moments(stats: RunningStats, obs: Array, mask: Array) -> RunningStats:
    """Moments of what was seen before and of new observations [M, *shape] together (Chan et al. 1979), and their bounds."""
    new = jnp.sum(mask)
    over_steps = lambda of_steps: of_steps.reshape(-1, *[1] * (obs.ndim - 1))
    weights = over_steps(mask / jnp.maximum(new, 1.0))
    mean = jnp.sum(weights * obs, axis=0)
    variance = jnp.sum(weights * jnp.square(obs - mean[None]), axis=0)
    share = new / jnp.maximum(stats.steps + new, 1.0)
    shift = mean - stats.mean
    together = (
        (1 - share) * stats.variance + share * variance + share * (1 - share) * jnp.square(shift)
    )
    real = jnp.broadcast_to(over_steps(mask) > 0, obs.shape)
    known = stats.steps > 0
    low, high = (
        jnp.min(jnp.where(real, obs, jnp.inf), axis=0),
        jnp.max(jnp.where(real, obs, -jnp.inf), axis=0),
    )
    low, high = (
        jnp.where(known, jnp.minimum(stats.low, low), low),
        jnp.where(known, jnp.maximum(stats.high, high), high),
    )
    bounds = {
        "low": jnp.where(known | (new > 0), low, 0.0),
        "high": jnp.where(known | (new > 0), high, 0.0),
    }
    steps = jnp.minimum(stats.steps + new, LONGEST)
    return stats._replace(steps=steps, mean=stats.mean + share * shift, variance=together, **bounds)


def _with_lengths(stats: RunningStats, t: Trajectory) -> RunningStats:
    """How long episodes are, and those that terminated: their last step is real and has discount 0."""

    def step(age: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
        discount, mask = x
        age = age + mask
        return jnp.where(discount == 0, 0.0, age), age

    age, ages = jax.lax.scan(step, stats.age, (t.discount.T, t.mask.T))
    ends = jnp.where(t.discount.T == 0, t.mask.T, 0.0)
    terminated = stats.terminated + jnp.sum(ends)
    error = jnp.sum(
        ends * (ages - stats.mean_length)
    )  # none where all are of one length, to the last bit
    return stats._replace(
        age=age,
        longest=jnp.maximum(stats.longest, jnp.max(ages)),
        terminated=jnp.minimum(terminated, LONGEST),
        mean_length=stats.mean_length + error / jnp.maximum(1.0, terminated),
    )
