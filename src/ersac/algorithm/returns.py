"""Multi-step targets: V-trace, of which TD(lambda) is the rho = 1 case."""

from typing import NamedTuple

import jax
from jax import numpy as jnp

from ersac.types import Array


class Targets(NamedTuple):
    """What the critic and the policy are moved towards."""

    error: Array  # [T]  value target minus value
    action_value: Array  # [T]  K(s_t, a_t), bootstrapped with the same lambda as the value targets


def vtrace_errors(
    value: Array, reward: Array, discount: Array, rho: Array, lam: float | Array
) -> Array:
    """V-trace errors `v_t - V(x_t)` of one trajectory (Espeholt et al. 2018, eq. 1, both clips at one).

    value: [T+1]; reward, discount (gamma included), rho (already clipped at one): [T]. A masked step has rho = 0.
    """
    return _discounted(rho * (reward + discount * value[1:] - value[:-1]), lam * discount * rho)


def retrace_errors(
    predicted: Array, j: Array, reward: Array, discount: Array, rho: Array, lam: float | Array
) -> Array:
    """Retrace errors of the values [T] told of the actions taken (Munos et al. 2016): what follows an action is corrected, not the action.

    j: [T+1], the values of the states under the policy; reward, discount (gamma included), rho (already clipped at one): [T].
    """
    delta = reward + discount * j[1:] - predicted  # [T]
    decay = discount * jnp.append(lam * rho[1:], 0.0)
    return _discounted(delta, decay)


def _discounted(delta: Array, decay: Array) -> Array:
    """error_t = delta_t + decay_t error_(t+1), backwards; nothing follows the last."""

    def back(error: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
        delta_t, decay_t = x
        error = delta_t + decay_t * error
        return error, error

    return jax.lax.scan(back, jnp.zeros_like(delta[0]), (delta, decay), reverse=True)[1]


def targets(
    value: Array,
    reward: Array,
    entropy_bonus: Array,
    discount: Array,
    rho: Array,
    lam: float | Array,
) -> Targets:
    """Targets for J and K [e-kpi]: `J = E K + weight H`, so each later step's entropy is in them and K's own is not."""
    error = vtrace_errors(value, reward + entropy_bonus, discount, rho, lam)
    target = value[:-1] + error  # [T]
    following = jnp.append(lam * target[1:] + (1 - lam) * value[1:-1], value[-1])  # [T]
    return Targets(error, reward + discount * following)
