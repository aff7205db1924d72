"""The saddle-point problem [e-saddle] and the decomposition of its regret bound [l-decomp].

The game is `max_pi min_tau E J^pi_{1,tau}`. The best response of tau to a policy is a square root,
the best response of the policy to tau is the Boltzmann policy, and K-learning finds the saddle
point. The policy minimises the component `Dist` of the regret bound, tau the component `Optimism`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import optax
from jax import numpy as jnp

from ersac.algorithm import game
from ersac.theory import klearning
from ersac.theory import mdp as mdps
from ersac.theory.klearning import Beliefs
from ersac.types import Array, Tree


class GameParams(NamedTuple):
    """Parameters of both players: those of the policy, and the logarithm of tau."""

    theta: Array
    log_tau: Array


class Decomposition(NamedTuple):
    """The components of the regret bound [l-decomp]; their sum is `E J* - E V^pi`."""

    dist: Array
    optimism: Array


def game_value(beliefs: Beliefs, policy: Array, tau: Array) -> Array:
    """Return the objective of the game, `E_{s ~ rho} J^pi_{1,tau}(s)` [e-saddle]."""
    return mdps.start_value(beliefs.mdp.rho, klearning.k_values(beliefs, policy, tau))


def mean_value(beliefs: Beliefs, policy: Array) -> Array:
    """Return `E_phi E_rho V^pi_1`, which by layerwise independence is the value in the mean MDP."""
    return mdps.start_value(beliefs.mdp.rho, mdps.policy_values(beliefs.mdp, policy))


def dist(beliefs: Beliefs, policy: Array, tau: Array) -> Array:
    """Return `Dist(pi, tau) = sum_l tau E_pi KL(pi_l || pi*_{l,tau})` [before l-kl]."""
    log_star = klearning.solve_at(beliefs, tau).log_policy
    occupancy = mdps.occupancy(beliefs.mdp, policy)
    log_policy = jnp.log(jnp.where(policy > 0, policy, 1))
    return tau * jnp.sum(jnp.where(policy > 0, occupancy * (log_policy - log_star), 0))


def optimism(beliefs: Beliefs, policy: Array, tau: Array) -> Array:
    """Return `Optimism(pi, tau) = E_rho (J^pi_{1,tau} - E_phi V^pi_1)` [before l-kl]."""
    return game_value(beliefs, policy, tau) - mean_value(beliefs, policy)


def decompose(beliefs: Beliefs, policy: Array, tau: Array) -> Decomposition:
    """Return both components of the bound `regret <= Dist + Optimism` [l-decomp]."""
    return Decomposition(dist(beliefs, policy, tau), optimism(beliefs, policy, tau))


def optimism_terms(beliefs: Beliefs, policy: Array) -> tuple[Array, Array]:
    """Return `sum_l E_pi sigma2` and `sum_l E_pi H`.

    Optimism is the first / (2 tau) plus tau times the second [proof of l-opt-regret].
    """
    occupancy = mdps.occupancy(beliefs.mdp, policy)
    state_occupancy = jnp.sum(occupancy, axis=-1)
    total_sigma2 = jnp.sum(occupancy * beliefs.sigma2)
    return total_sigma2, jnp.sum(state_occupancy * klearning.policy_entropy(policy))


def best_response_tau(beliefs: Beliefs, policy: Array) -> Array:
    """Return the tau that minimises the game for a policy: `sqrt(sum E sigma2 / (2 sum E H))`."""
    total_sigma2, total_entropy = optimism_terms(beliefs, policy)
    return jnp.sqrt(total_sigma2 / (2 * total_entropy))


def min_optimism(beliefs: Beliefs, policy: Array) -> Array:
    """Return `min_tau Optimism(pi, tau) = sqrt(2 sum E sigma2 sum E H)` [t-main, l-opt-regret]."""
    total_sigma2, total_entropy = optimism_terms(beliefs, policy)
    return jnp.sqrt(2 * total_sigma2 * total_entropy)


def worst_case_value(beliefs: Beliefs, policy: Array) -> Array:
    """Return `min_tau E J^pi_{1,tau}`, the value of the game for a policy [e-saddle]."""
    return mean_value(beliefs, policy) + min_optimism(beliefs, policy)


def duality_gap(beliefs: Beliefs, policy: Array, tau: Array) -> Array:
    """Return `max_pi' E J^pi'_tau - min_tau' E J^pi_tau'` [ass-strong-duality].

    It is zero exactly at the saddle point and positive elsewhere.
    """
    return klearning.start_j(beliefs, tau) - worst_case_value(beliefs, policy)


def regret_bound(
    n_states: int, n_actions: int, horizon: int, sigma2: float, episodes: Array
) -> Array:
    """Return the bound of [c-basic] with constants, for an uncertainty of sigma2 / (visits + 1).

    The proof of [l-opt-regret] bounds cumulative regret over N episodes by
    `sigma2 |A| |S| (1 + log N) / (2 tau) + tau N L log |A|` for every tau; this is the minimum over
    tau. n_states counts the states of all layers.
    """
    uncertainty = sigma2 * n_actions * n_states * (1 + jnp.log(episodes))
    return jnp.sqrt(2 * uncertainty * episodes * horizon * jnp.log(n_actions))


def tabular_softmax(theta: Array) -> Array:
    """Return the log-policy of logits theta [L, S, A]: the class of all policies."""
    return jax.nn.log_softmax(theta, axis=-1)


def linear_softmax(features: Array) -> Callable[[Array], Array]:
    """Return the policy class Pi with logits linear in features [L, S, A, D], so theta is [D]."""
    return lambda theta: jax.nn.log_softmax(features @ theta, axis=-1)


def surrogate(beliefs: Beliefs, log_policy: Array, tau: Array) -> Array:
    """Return the expected payoff, whose gradients are those of the game [e-pol-grad].

    Occupancy and advantages are constants under differentiation. It is the objective of the deep
    agent with exact expectations instead of samples.
    """
    policy = jnp.exp(jax.lax.stop_gradient(log_policy))
    values = klearning.k_values(beliefs, policy, jax.lax.stop_gradient(tau))
    occupancy = jax.lax.stop_gradient(mdps.occupancy(beliefs.mdp, policy))
    advantage = values.q - values.v[..., None]
    entropy = game.entropy(log_policy)[..., None]
    payoff = game.payoff(log_policy, advantage, beliefs.sigma2 / (2 * tau), tau * entropy)
    return jnp.sum(occupancy * payoff)


def mirror_step(beliefs: Beliefs, log_policy: Array, tau: Array, step_size: float) -> Array:
    """Return `(1 - a) log pi + a K^pi / tau`, normalised: policy mirror descent (Cen et al. 2022).

    It is the natural-gradient step of the deep agent with exact expectations. At a fixed tau,
    `Dist` falls at least as fast as `(1 - a)^(2 n)`.
    """
    k = klearning.k_values(beliefs, jnp.exp(log_policy), tau).q
    return jax.nn.log_softmax((1 - step_size) * log_policy + step_size * k / tau, axis=-1)


def saddle_optimiser(learning_rate: float | optax.Schedule) -> optax.GradientTransformation:
    """Return the optimiser of both players: Adam with short averages, as the opponent moves too."""
    return optax.adam(learning_rate, b1=0.5, b2=0.99, eps=1e-16)


def ascend_descend(
    beliefs: Beliefs,
    policy_class: Callable[[Array], Array],
    optimiser: optax.GradientTransformation,
    steps: int,
    params: GameParams,
    opt: Tree,
) -> tuple[GameParams, Tree]:
    """Take simultaneous ascent steps in theta and descent steps in log tau on [e-saddle].

    This is Algorithm 1 [a-kac] with exact expectations instead of samples.
    """

    def payoff(params: GameParams) -> Array:
        return surrogate(beliefs, policy_class(params.theta), jnp.exp(params.log_tau))

    def step(carry: tuple[GameParams, Tree], _: None) -> tuple[tuple[GameParams, Tree], None]:
        params, opt = carry
        gradient = jax.grad(payoff)(params)
        descent = gradient._replace(theta=-gradient.theta)  # the optimiser descends, theta ascends
        updates, opt = optimiser.update(descent, opt)
        return (optax.apply_updates(params, updates), opt), None

    return jax.lax.scan(step, (params, opt), None, length=steps)[0]


def solve_by_gradients(
    beliefs: Beliefs, policy_class: Callable[[Array], Array], theta: Array, steps: int = 6000
) -> GameParams:
    """Find the saddle point [e-saddle] by gradients, from theta and tau's best response to it."""
    optimiser = saddle_optimiser(optax.cosine_decay_schedule(0.2, steps, 1e-3))
    log_tau = jnp.log(best_response_tau(beliefs, jnp.exp(policy_class(theta))))
    start = GameParams(theta, log_tau)
    return ascend_descend(beliefs, policy_class, optimiser, steps, start, optimiser.init(start))[0]
