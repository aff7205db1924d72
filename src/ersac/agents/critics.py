"""Three ways to estimate K [e-kpi] on a trajectory and to play the policy's side of the game with it, as values.

| critic   | its head tells              | K is known of              | the policy climbs by                     | agents                 |
|----------|-----------------------------|----------------------------|------------------------------------------|------------------------|
| sampled  | J(s)                        | the action taken           | the sampled gradient of Algorithm 1      | most of them           |
| expected | J(s) less bonus and entropy | the action taken           | the same, with the mean bonus in it      | `ersac`                |
| every    | K(s, .) less bonus          | every action, tried or not | the natural gradient, over all of them   | `ersac-replay`, `-max` |

All play one payoff, `game.payoff`. The first sees an action's bonus only when the action is taken, so sigma has to outlast the visits
that the policy needs to follow it. The others know the bonus of what they have never done; the last also what came of all they ever did.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import numpy as jnp
from jax.lax import stop_gradient

from ersac.algorithm import game, returns
from ersac.algorithm.action_dist import take_action
from ersac.config import ActorCritic
from ersac.types import Array, Trajectory

BATCH = "batch"  # the axis of an update's trajectories


class CriticInputs(NamedTuple):
    """A trajectory as the learner sees it now. A is the number of actions."""

    t: Trajectory
    logits: Array  # [T+1, A]  what the policy's head says
    log_pi: (
        Array  # [T+1, A]  of every action; of continuous ones, which cannot be counted, 0 [T+1, 1]
    )
    log_pi_a: Array  # [T]     of the action taken
    entropy: Array  # [T+1]
    predicted: Array  # [T+1, n]    what the critic's head says
    bonus: Array  # [T]        of the action taken
    bonuses: Array  # [T+1, A] of every action
    weight: Array  # []        of the entropy
    rho: Array  # [T]          V-trace's clipped ratio, no gradient; 0 is a mask
    advantage_square: Array  # []  the running mean square of advantages; 0 where none is kept
    forgone: Array  # []       the bonus and entropy that an episode forgoes by terminating early


class Estimates(NamedTuple):
    """What both players and the critic are told by a trajectory; of each step [T]."""

    payoff: Array  # the policy ascends it, tau descends it
    predicted: Array  # what the critic said
    error: Array  # its target less what it said, no gradient
    advantage_scale: (
        Array  # []   the scale of advantages that the payoff is divided by, no gradient
    )
    square: Array  # []   the mean square of the batch's advantages, no gradient; 0 where it is not asked for


class Critic(NamedTuple):
    """How many numbers a critic's head tells of a state with so many actions, and what it makes of a trajectory."""

    outputs: Callable[[int], int]
    estimate: Callable[[ActorCritic, CriticInputs], Estimates]


def estimate_sampled(settings: ActorCritic, v: CriticInputs) -> Estimates:
    """K of the action taken, by V-trace from J; the policy climbs the payoff itself [a-kac], with the sign of e-pol-grad."""
    j = v.predicted[:, 0]  # [T+1]   J(s)
    entropy_bonus = stop_gradient(
        -v.weight * v.log_pi_a
    )  # sampled, as L_value in [a-kac] has it; its mean is weight * H
    advantage, error, advantage_scale, square = advantages(
        settings, v, stop_gradient(j), stop_gradient(v.bonus), entropy_bonus
    )
    payoff = v.rho * game.payoff(v.log_pi_a, advantage, v.bonus, v.weight, v.entropy[:-1])
    return Estimates(payoff, j[:-1], error, advantage_scale, square)


def estimate_expected(settings: ActorCritic, v: CriticInputs) -> Estimates:
    """The same without chance in what is known of every action, its bonus: on-policy both players' gradients have the same mean.

    The head tells J less the state's own bonus and entropy, which are today's. So a state that holds something untried is worth it from
    the first visit on, whatever was done there, and however the layers that all states share have moved since.
    """
    pi = stop_gradient(jnp.exp(v.log_pi))  # [T+1, A]
    bonus, entropy_bonus = jnp.sum(pi * v.bonuses, axis=-1), v.weight * v.entropy  # [T+1]
    own = stop_gradient(bonus), stop_gradient(entropy_bonus)
    j = stop_gradient(v.predicted[:, 0]) + sum(own)
    advantage, error, advantage_scale, square = advantages(settings, v, j, own[0][:-1], own[1][:-1])
    above = clip_advantages(
        settings, stop_gradient(v.bonuses - bonus[:, None]), advantage_scale
    )  # [T+1, A]
    steered = jnp.sum(
        (jnp.exp(v.log_pi) - pi) * above, axis=-1
    )  # nothing in value, the policy's direction in gradient
    payoff = game.payoff(v.log_pi_a, advantage, (bonus + steered)[:-1], v.weight, v.entropy[:-1])
    return Estimates(v.rho * payoff, v.predicted[:-1, 0], error, advantage_scale, square)


def advantages(
    settings: ActorCritic, v: CriticInputs, j: Array, bonus: Array, entropy_bonus: Array
) -> tuple[Array, Array, Array, Array]:
    """K less J of the steps [T], clipped; the critic's errors [T]; the scale [] and the mean square [] of the former. No gradient."""
    r_tau = game.optimistic_reward(rewards(settings, v), bonus)
    target = returns.vtrace_targets(
        j, r_tau, entropy_bonus, settings.gamma * v.t.discount, v.rho, settings.lam
    )
    advantage, advantage_scale = target.action_value - j[:-1], stop_gradient(v.weight)
    if not settings.normalise_advantages:
        return (
            clip_advantages(settings, advantage, advantage_scale),
            target.error,
            advantage_scale,
            jnp.zeros_like(advantage_scale),
        )
    square = mean_of_batch(jnp.square(advantage), v.t.mask)
    spread = settings.spread_share * jnp.sqrt(jnp.maximum(square, v.advantage_square))
    advantage_scale = jnp.maximum(advantage_scale, spread)
    return (
        clip_advantages(settings, advantage, advantage_scale),
        target.error,
        advantage_scale,
        square,
    )


def clip_advantages(settings: ActorCritic, advantage: Array, advantage_scale: Array) -> Array:
    """Advantages, as far as they count."""
    return jnp.clip(
        advantage,
        -settings.advantage_limit * advantage_scale,
        settings.advantage_limit * advantage_scale,
    )


def rewards(settings: ActorCritic, v: CriticInputs) -> Array:
    """Those of the steps [T]; where an episode terminates, with the bonus and the entropy that it forgoes, if these are credited.

    The paper's episodes are all of one length. Where one terminates sooner the next begins sooner and earns as much of both; were they
    forfeited, not to arrive would pay for ever. A credit, unlike a mean taken off every step, leaves no old pessimism behind as tau falls.
    """
    if not settings.credit_early_ends:
        return v.t.reward
    return v.t.reward + jnp.where(v.t.discount == 0, v.t.mask * v.forgone, 0.0)


def mean_of_batch(x: Array, mask: Array) -> Array:
    """The mean [] over all real steps of the batch."""
    over = lambda x: jax.lax.psum(jnp.sum(mask * x), BATCH)
    return over(x) / jnp.maximum(1.0, over(jnp.ones_like(x)))


def estimate_all_actions(settings: ActorCritic, v: CriticInputs) -> Estimates:
    """K of every action: the head's K less bonus, and today's bonus. What was never tried has its bonus and an unknown rest of nothing."""
    pi, entropy = stop_gradient(jnp.exp(v.log_pi)), stop_gradient(v.entropy)  # [T+1, A], [T+1]
    k = stop_gradient(v.bonuses + v.predicted)  # [T+1, A]
    j = jnp.sum(pi * k, axis=-1) + stop_gradient(v.weight) * entropy  # [T+1]
    bonus = jnp.sum(pi * v.bonuses, axis=-1)[:-1]  # [T]   the mean over actions
    reward = rewards(settings, v)
    predicted = take_action(v.predicted[:-1], v.t.action)  # [T]
    error = returns.retrace_errors(
        stop_gradient(predicted), j, reward, settings.gamma * v.t.discount, v.rho, settings.lam
    )
    climb = natural_gradient(
        k, v.log_pi, stop_gradient(v.weight), settings.advantage_limit
    )  # [T+1, A]
    steered = jnp.sum(
        (v.logits - stop_gradient(v.logits)) * climb, axis=-1
    )  # nothing in value, the policy's direction in gradient
    payoff = v.rho * (bonus + v.weight * entropy[:-1])  # the mean over actions of game.payoff
    advantage_scale = stop_gradient(v.weight)
    return Estimates(
        payoff + advantage_scale * steered[:-1],
        predicted,
        error,
        advantage_scale,
        jnp.zeros_like(advantage_scale),
    )


def natural_gradient(k: Array, log_pi: Array, weight: Array, limit: float | Array) -> Array:
    """The direction `K / weight - log pi` [..., A] in which logits climb the payoff under the policy's own metric (Kakade 2001).

    It vanishes at the Boltzmann policy [e-kpi], and is as long where an action is all but given up: the plain gradient is not, which
    shrinks with the probability. An action's K counts down to `limit` weights below the best.
    """
    solution = jax.nn.log_softmax(
        jnp.maximum((k - jnp.max(k, axis=-1, keepdims=True)) / weight, -limit)
    )
    climb = solution - log_pi
    return stop_gradient(climb - jnp.mean(climb, axis=-1, keepdims=True))


SAMPLED = Critic(lambda n_actions: 1, estimate_sampled)
EXPECTED_BONUS = Critic(lambda n_actions: 1, estimate_expected)
ALL_ACTIONS = Critic(lambda n_actions: n_actions, estimate_all_actions)
CRITICS = {
    "sampled": SAMPLED,
    "expected-bonus": EXPECTED_BONUS,
    "all-actions": ALL_ACTIONS,
}  # by the value of --critic
