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

FURTHEST = 10.0  # standard deviations beyond which an observation is not told apart
SMALLEST = 1e-10  # a variance, in units of the squared mean, below which an entry is as good as constant: it is rounding
LONGEST = 1e6  # steps after which statistics forget: as far as single precision averages


class Lens(NamedTuple):
    """Memory here is an agent's whole memory; the uncertainty's is a part of it."""

    wrap: Callable[[Tree], Tree]  # the uncertainty's memory -> memory, before the first step
    inner: Callable[[Tree], Tree]  # memory -> the uncertainty's
    replace: Callable[[Tree, Tree], Tree]  # memory, the uncertainty's -> memory
    obs: Callable[[Tree, Array], Array]  # what the networks see
    reward: Callable[[Tree, Array], Array]
    observe: Callable[[Tree, Trajectory], Tree]  # new rollouts [N, T] -> memory


def plain() -> Lens:
    """The world as it is: where its units are known."""
    same = lambda memory: memory
    return Lens(same, same, lambda memory, inner: inner, lambda memory, obs: obs, lambda memory, reward: reward, lambda memory, t: memory)


class Seen(NamedTuple):
    """Running statistics around the uncertainty's memory."""

    inner: Tree
    steps: Tree  # []   that the moments below are means over, at most LONGEST
    mean: Tree  # [*shape]
    variance: Tree  # [*shape]
    running: Tree  # [N]   the discounted return of each environment's episode so far
    largest: Tree  # []    the largest absolute one


def relative(observations: Space, envs: int, gamma: float | Array, normalise: bool, scale: bool) -> Lens:
    """Vectors less their mean over their standard deviation; bytes over 255; rewards over the largest discounted return.

    Returns are then at most about one, whatever the environment pays: the scale on which priors, tau and entropy weights are set.
    """
    vectors = normalise and isinstance(observations, Box) and len(observations.shape) < 3
    shape = observations.shape if vectors and isinstance(observations, Box) else ()
    is_bytes = isinstance(observations, Box) and observations.is_bytes

    def wrap(inner: Tree) -> Seen:
        zero = np.zeros((), np.float32)
        return Seen(inner, zero, np.zeros(shape, np.float32), np.zeros(shape, np.float32), np.zeros(envs, np.float32), zero)

    def obs(seen: Seen, obs: Array) -> Array:
        if is_bytes:
            return obs.astype(seen.mean.dtype) / 255
        if not vectors:
            return obs
        spread = jnp.sqrt(seen.variance + SMALLEST * jnp.square(seen.mean))
        per_unit = jnp.where(spread > 0, 1 / jnp.where(spread > 0, spread, 1.0), 0.0)  # what never varied tells nothing, in any unit
        centred = obs - jnp.broadcast_to(seen.mean, obs.shape)
        return jnp.clip(centred * jnp.broadcast_to(per_unit, obs.shape), -FURTHEST, FURTHEST)

    def reward(seen: Seen, reward: Array) -> Array:
        return jnp.where(seen.largest > 0, reward / jnp.where(seen.largest > 0, seen.largest, 1.0), reward) if scale else reward

    def observe(seen: Seen, t: Trajectory) -> Seen:
        if vectors:
            seen = _with_moments(seen, t.obs[:, :-1].reshape(-1, *shape), t.mask.reshape(-1))
        if scale:
            seen = _with_returns(seen, t)
        return seen

    def _with_returns(seen: Seen, t: Trajectory) -> Seen:
        def step(running: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
            reward, discount = x
            running = gamma * running + reward
            return jnp.where(discount == 0, 0.0, running), running

        running, returns = jax.lax.scan(step, seen.running, (t.reward.T, t.discount.T))
        return seen._replace(running=running, largest=jnp.maximum(seen.largest, jnp.max(jnp.abs(returns))))

    return Lens(wrap, lambda seen: seen.inner, lambda seen, inner: seen._replace(inner=inner), obs, reward, observe)


def _with_moments(seen: Seen, obs: Array, mask: Array) -> Seen:
    """Moments of what was seen before and of new observations [M, *shape] together (Chan et al. 1979)."""
    new = jnp.sum(mask)
    weights = (mask / jnp.maximum(new, 1.0)).reshape(-1, *[1] * (obs.ndim - 1))
    mean = jnp.sum(weights * obs, axis=0)
    variance = jnp.sum(weights * jnp.square(obs - mean[None]), axis=0)
    share = new / jnp.maximum(seen.steps + new, 1.0)
    shift = mean - seen.mean
    together = (1 - share) * seen.variance + share * variance + share * (1 - share) * jnp.square(shift)
    return seen._replace(steps=jnp.minimum(seen.steps + new, LONGEST), mean=seen.mean + share * shift, variance=together)
