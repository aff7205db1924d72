"""Multi-step targets of one trajectory: V-trace (TD(lambda) where rho = 1) and Retrace.

All functions take `discount` with gamma included, and `rho = min(1, pi(a) / mu(a))`, the clipped
importance ratio; rho is 0 on masked steps.
"""

from typing import NamedTuple

import jax
from jax import numpy as jnp

from ersac.types import Array


class Targets(NamedTuple):
    """V-trace targets of the critic and the policy."""

    error: Array  # [T]  target minus value: the critic's error
    action_value: Array  # [T]  the estimate of K(s_t, a_t)


def vtrace_errors(
    value: Array, reward: Array, discount: Array, rho: Array, lam: float | Array
) -> Array:
    """Return the V-trace errors `v_t - V(s_t)` (Espeholt et al. 2018, eq. 1, both clips at one).

        error_t = rho_t delta_t + lam discount_t rho_t error_{t+1}
        delta_t = r_t + discount_t V(s_{t+1}) - V(s_t)

    value: [T+1]; reward, discount, rho: [T].
    """
    return _backward_sum(rho * (reward + discount * value[1:] - value[:-1]), lam * discount * rho)


def retrace_errors(
    predicted: Array, j: Array, reward: Array, discount: Array, rho: Array, lam: float | Array
) -> Array:
    """Return the Retrace errors of predicted action values (Munos et al. 2016, eq. 3 and 4).

        error_t = delta_t + lam discount_t rho_{t+1} error_{t+1}
        delta_t = r_t + discount_t J(s_{t+1}) - predicted_t

    Unlike V-trace it does not weight step t by rho_t: an action value is conditional on its action.

    predicted, reward, discount, rho: [T]; j: [T+1], the values of the states under the policy.
    """
    delta = reward + discount * j[1:] - predicted  # [T]
    decay = discount * jnp.append(lam * rho[1:], 0.0)
    return _backward_sum(delta, decay)


def _backward_sum(delta: Array, decay: Array) -> Array:
    """Return `error_t = delta_t + decay_t error_{t+1}` [T], with zero after the last step."""

    def step(error: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
        delta_t, decay_t = x
        error = delta_t + decay_t * error
        return error, error

    return jax.lax.scan(step, jnp.zeros_like(delta[0]), (delta, decay), reverse=True)[1]


def vtrace_targets(
    value: Array,
    reward: Array,
    entropy_bonus: Array,
    discount: Array,
    rho: Array,
    lam: float | Array,
) -> Targets:
    """Return V-trace targets for J, and the estimates of K(s_t, a_t) that follow from them.

    Since `J = E K + weight H` [e-kpi], K(s_t, a_t) contains the entropy bonuses of the steps after
    t but not that of step t. It is bootstrapped with the same lambda as the value targets.

    value: [T+1], J(s_t); reward: [T], optimistic; entropy_bonus, discount, rho: [T].
    """
    error = vtrace_errors(value, reward + entropy_bonus, discount, rho, lam)
    target = value[:-1] + error  # [T]
    following = jnp.append(lam * target[1:] + (1 - lam) * value[1:-1], value[-1])  # [T]
    return Targets(error, reward + discount * following)
