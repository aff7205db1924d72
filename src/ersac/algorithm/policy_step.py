"""The policy's step in the space of logits: natural gradients, and steps of limited KL divergence.

A categorical policy is its logits z at a state, up to a constant. The plain gradient of the payoff
at a visited state is pi (A - E A), so an action of small probability hardly moves. Its Fisher
information is `F = diag(pi) - pi pi^T`; the natural gradient F^+ g (Kakade 2001) is g / pi, up to a
constant. In expectation it is K / tau - log pi, as in `critics.natural_gradient`, which knows K of
every action; from one sample the advantage of the action taken is divided by its probability.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import numpy as jnp

from ersac.types import Array

MIN_PROBABILITY = 1e-30  # below it an action has no natural gradient
SEARCH_STEPS = 24  # halvings of the logarithm of a step's length


def kl_divergence(log_p: Array, log_q: Array) -> Array:
    """Return KL(p || q) [...] in nats of log-probabilities over the last axis.

    An action with p = 0, such as one that is not allowed, contributes nothing.
    """
    p = jnp.exp(log_p)
    return jnp.sum(jnp.where(p > 0, p * (log_p - log_q), 0.0), axis=-1)


def natural_direction(gradient: Array, log_pi: Array, allowed: Array | None = None) -> Array:
    """Return F^+ times a gradient with respect to logits [..., A], with mean zero over actions.

    F is Fisher's information of the policy pi. Only actions that are allowed count.
    """
    direction = gradient / jnp.maximum(jnp.exp(log_pi), MIN_PROBABILITY)
    if allowed is None:
        return direction - jnp.mean(direction, axis=-1, keepdims=True)
    centre = jnp.mean(direction, axis=-1, keepdims=True, where=allowed)
    return jnp.where(allowed, direction - centre, 0.0)


def trust_region_scale(step: Array, log_pi: Array, limit: float | Array) -> Array:
    """Return the largest c in [0, 1] with KL(pi || softmax(log pi + c step)) <= limit, [..., 1].

    The divergence is `log E exp(c step) - c E step` under pi: zero at c = 0 and convex, so it grows
    with c. By Hoeffding's lemma it is at most (c span)^2 / 8, which is where the search by halving
    begins.
    """
    step = step - jnp.max(step, axis=-1, keepdims=True)
    pi = jnp.exp(log_pi)
    mean = jnp.sum(pi * step, axis=-1, keepdims=True)

    def is_within(c: Array) -> Array:
        cumulant = jax.nn.logsumexp(log_pi + c * step, axis=-1, keepdims=True)
        return cumulant - c * mean <= limit

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = jnp.sqrt(low * high)
        within = is_within(middle)
        return jnp.where(within, middle, low), jnp.where(within, high, middle)

    span = -jnp.min(step, axis=-1, keepdims=True)
    safe = jnp.minimum(1.0, jnp.sqrt(8 * limit) / jnp.maximum(span, 1e-30))
    low, _ = jax.lax.fori_loop(0, SEARCH_STEPS, halve, (safe, jnp.ones_like(safe)))
    return jnp.where(is_within(jnp.ones_like(safe)), 1.0, low)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def change_gradient(
    change: Callable[[Array, Array, Any], Array], logits: Array, args: Any
) -> Array:
    """Return the logits exactly; in the backward pass replace their gradient g.

    It becomes `change(g, log pi, args)`.
    """
    return logits


def _forward(change: Any, logits: Array, args: Any) -> tuple[Array, tuple[Array, Any]]:
    return logits, (logits, args)


def _backward(change: Any, saved: tuple[Array, Any], gradient: Array) -> tuple[Array, None]:
    logits, args = saved
    return change(gradient, jax.nn.log_softmax(logits), args), None


change_gradient.defvjp(_forward, _backward)
