"""Alternatives to the critic of Algorithm 1: other estimates of K [e-kpi], other policy gradients.

| --critic       | its head predicts            | K is known for | policy gradient                |
|----------------|------------------------------|----------------|--------------------------------|
| sampled        | J(s)                         | action taken   | that of Algorithm 1            |
| expected-bonus | J(s) minus bonus and entropy | action taken   | the same with the mean bonus   |
| all-actions    | K(s, .) minus bonus          | all actions    | natural gradient, all actions  |

All three have one payoff, `game.payoff`. The sampled critic (`actor_critic.estimate_sampled`)
learns the bonus of an action by taking it, so sigma must not fall faster than the policy follows.
The other two know the bonus of actions that were never taken; `all-actions` also knows K of all
actions that ever were.
"""

import jax
from jax import numpy as jnp
from jax.lax import stop_gradient

from ersac.agents.actor_critic import (
    SAMPLED,
    Critic,
    CriticInputs,
    Estimates,
    clip_advantage,
    credit_early_ends,
    estimate_advantages,
    step_payoff,
)
from ersac.algorithm import returns
from ersac.algorithm.action_dist import factor_sums, mask_logits, take_action
from ersac.config import ActorCritic
from ersac.types import Array

NEWTON_STEPS = 8  # of a function that starts at most log A above its root


def estimate_expected(settings: ActorCritic, inputs: CriticInputs) -> Estimates:
    """Estimate K of the action taken, with the expectation of the bonus over all actions.

    On-policy the gradients of both players have the same mean as with `estimate_sampled`, and less
    variance. The head predicts J minus the current bonus and entropy of the state. So a state with
    an untried action has the value of its bonus from the first visit on, whatever action was taken
    there and however the shared layers have changed since.
    """
    pi = stop_gradient(jnp.exp(inputs.log_pi))  # [T+1, A]
    mean_bonus = jnp.sum(pi * inputs.bonuses, axis=-1)  # [T+1]
    bonus, entropy_bonus = stop_gradient(mean_bonus), stop_gradient(inputs.entropy_bonus)
    j = stop_gradient(inputs.predicted[:, 0]) + (bonus + entropy_bonus)  # [T+1]
    advantages = estimate_advantages(settings, inputs, j, bonus[:-1], entropy_bonus[:-1])
    is_product = len(inputs.sizes) > 1
    centre = factor_sums(pi * inputs.bonuses, inputs.sizes) if is_product else mean_bonus[:, None]
    bonus_advantage = clip_advantage(
        settings, stop_gradient(inputs.bonuses - centre), advantages.scale
    )  # [T+1, A]
    # Zero in value; its gradient is the policy's gradient through the expected bonus.
    gradient_term = jnp.sum((jnp.exp(inputs.log_pi) - pi) * bonus_advantage, axis=-1)  # [T+1]
    payoff = step_payoff(
        settings,
        inputs,
        advantages.clipped,
        (mean_bonus + gradient_term)[:-1],
        inputs.entropy_bonus[:-1],
    )
    return Estimates(
        payoff=payoff,
        predicted=inputs.predicted[:-1, 0],
        error=advantages.error,
        advantage_scale=advantages.scale,
        advantage_square=advantages.mean_square,
    )


def estimate_all_actions(settings: ActorCritic, inputs: CriticInputs) -> Estimates:
    """Estimate K of all actions: the head's prediction of K minus bonus, plus the current bonus.

    The prediction is trained by Retrace on the action taken. An action that was never taken has
    its bonus and a prediction of zero. The policy follows the natural gradient.
    """
    pi, weight = stop_gradient(jnp.exp(inputs.log_pi)), stop_gradient(inputs.weight)
    k = stop_gradient(inputs.bonuses + inputs.predicted)  # [T+1, A]
    j = jnp.sum(pi * k, axis=-1) + stop_gradient(inputs.entropy_bonus)  # [T+1]
    bonus = jnp.sum(pi * inputs.bonuses, axis=-1)[:-1]  # [T]
    reward, discount = credit_early_ends(settings, inputs), settings.gamma * inputs.t.discount
    predicted = take_action(inputs.predicted[:-1], inputs.t.action)  # [T]
    error = returns.retrace_errors(
        stop_gradient(predicted), j, reward, discount, inputs.rho, settings.lam
    )
    direction = natural_gradient(
        k, inputs.log_pi, weight, settings.advantage_limit, inputs.allowed
    )  # [T+1, A]
    # Zero in value; its gradient with respect to the logits is the natural gradient.
    gradient_term = jnp.sum((inputs.logits - stop_gradient(inputs.logits)) * direction, axis=-1)
    # The expectation of game.payoff over actions.
    fixed_policy = inputs._replace(
        log_pi=stop_gradient(inputs.log_pi), entropy=stop_gradient(inputs.entropy)
    )
    payoff = inputs.rho * (bonus + fixed_policy.entropy_bonus[:-1])
    return Estimates(
        payoff=payoff + inputs.mean_weight * gradient_term[:-1],
        predicted=predicted,
        error=error,
        advantage_scale=inputs.mean_weight,
        advantage_square=jnp.zeros_like(inputs.mean_weight),
    )


def natural_gradient(
    k: Array,
    log_pi: Array,
    weight: Array,
    limit: float | Array,
    allowed: Array | None = None,
) -> Array:
    """Return the natural gradient of the payoff with respect to the logits (Kakade 2001) [..., A].

    It is `K / weight - log pi` and vanishes at the Boltzmann policy [e-kpi]. Unlike the gradient it
    does not shrink with the probability of an action, so an action that was given up can return.
    Only actions that are allowed count; the others have no gradient.
    """
    direction = boltzmann_policy(mask_logits(k, allowed), weight, limit, allowed) - log_pi
    if allowed is None:
        return stop_gradient(direction - jnp.mean(direction, axis=-1, keepdims=True))
    centre = jnp.mean(direction, axis=-1, keepdims=True, where=allowed)
    return stop_gradient(jnp.where(allowed, direction - centre, 0.0))


def boltzmann_policy(
    k: Array, weight: Array, limit: float | Array, allowed: Array | None = None
) -> Array:
    """Return the log-probabilities [..., A] that maximise `sum_a pi_a (K_a - weight_a log pi_a)`.

    With one weight it is the softmax of K / weight [e-kpi]. With a weight for each action it is
    `log pi_a = (K_a - nu) / weight_a - 1`, where nu makes the probabilities sum to one. K is
    clipped from below at `limit` weights under the largest.

    weight: [] or [..., A]; allowed: mask of the actions [..., A], None: all.
    """
    gap = jnp.maximum((k - jnp.max(k, axis=-1, keepdims=True)) / weight, -limit)
    gap = mask_logits(gap, allowed)
    if weight.ndim == 0:
        return jax.nn.log_softmax(gap)
    # Newton's method from below on log sum pi, which is convex and falls in nu, is monotone.
    nu = jnp.max(weight * (gap - 1), axis=-1, keepdims=True)
    for _ in range(NEWTON_STEPS):
        log_pi = gap - nu / weight - 1
        total = jax.nn.logsumexp(log_pi, axis=-1, keepdims=True)
        slope = jnp.sum(jnp.exp(log_pi - total) / weight, axis=-1, keepdims=True)
        nu = nu + total / slope
    return jax.nn.log_softmax(gap - nu / weight - 1)


EXPECTED_BONUS = Critic(outputs=lambda n_actions: 1, estimate=estimate_expected)
ALL_ACTIONS = Critic(outputs=lambda n_actions: n_actions, estimate=estimate_all_actions)
# by the value of --critic
CRITICS = {"sampled": SAMPLED, "expected-bonus": EXPECTED_BONUS, "all-actions": ALL_ACTIONS}
