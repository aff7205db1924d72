"""K-learning: optimistic values of uncertain MDPs, their Boltzmann policy, and the risk parameter that makes the bound tightest.

An agent with the utility `u_tau(x) = tau (exp(x / tau) - 1)` values a random X at its certainty equivalent, which is
never less than E X: uncertainty is worth something. Applied layer by layer that is a Bellman equation [e-kpi] whose maximum is a
log-sum-exp [e-jstar] and whose policy is a softmax [e-k-policy]. Every tau gives an upper bound on `E V*`; `tau_star` finds the
least of them, which is one side of the game [e-saddle].
"""

from typing import NamedTuple

import jax
from jax import numpy as jnp

from ersac.algorithm import game
from ersac.theory import mdp as mdps
from ersac.theory.mdp import MDP, Dirichlet, MdpPosterior, Values
from ersac.types import Array

SEARCH_LIMIT = 60  # evaluations; about ten are used
SEARCH_TOLERANCE = 256  # in units of rounding: where the search for log tau* stops


class Beliefs(NamedTuple):
    """All that K-learning reads of a posterior: the mean MDP and how uncertain every step of it is."""

    mdp: MDP
    sigma2: Array  # [L, S, A]


class Solution(NamedTuple):
    """K-learning's answer: the risk parameter, the values and the policy that belong to it."""

    tau: Array  # []
    k: Array  # [L, S, A]
    j: Array  # [L, S]
    log_policy: Array  # [L, S, A]


def check_klearning(beliefs: Beliefs) -> Beliefs:
    """The beliefs themselves, or one clear error that names the layer that is wrong."""
    mdps.check_mdp(beliefs.mdp)
    if beliefs.sigma2.shape != beliefs.mdp.reward.shape:
        raise ValueError(
            f"layer 1: sigma2 has shape {beliefs.sigma2.shape}, the rewards {beliefs.mdp.reward.shape}"
        )
    mdps.check_variance(beliefs.sigma2, "sigma2")
    return beliefs


def certainty_equivalent(samples: Array, tau: Array) -> Array:
    """`tau log E exp(X / tau)` of equally likely samples on the last axis: mu + sigma2 / (2 tau) for a Gaussian X."""
    return tau * (jax.nn.logsumexp(samples / tau, axis=-1) - jnp.log(samples.shape[-1]))


def optimistic_rewards(beliefs: Beliefs, tau: Array) -> Array:
    """`r_tau = E r + sigma2 / (2 tau)` [before e-kpi]."""
    return game.optimistic_reward(beliefs.mdp.reward, beliefs.sigma2 / (2 * tau))


def smooth_max(k: Array, tau: Array) -> Array:
    """`tau log sum_a exp(k / tau)` [e-jstar]; the maximum where tau has underflowed."""
    top = jnp.max(k, axis=-1)
    return top + tau * jnp.log(jnp.sum(jnp.exp((k - top[..., None]) / tau), axis=-1))


def k_values(beliefs: Beliefs, policy: Array, tau: Array) -> Values:
    """`K^pi` and `J^pi` of a policy [L, S, A] [e-kpi]; deterministic choices have no entropy."""

    def summarise(k: Array, pi: Array) -> Array:
        return jnp.sum(pi * k, axis=-1) + tau * policy_entropy(pi)

    return mdps.backward(
        optimistic_rewards(beliefs, tau), beliefs.mdp.transition, summarise, policy
    )


def optimal_k_values(beliefs: Beliefs, tau: Array) -> Values:
    """`K*` and `J*` [e-jstar]."""
    return mdps.backward(
        optimistic_rewards(beliefs, tau), beliefs.mdp.transition, lambda k: smooth_max(k, tau)
    )


def boltzmann(k: Array, tau: Array) -> Array:
    """Logarithm of the policy `exp((K* - J*) / tau)` [e-k-policy]."""
    return jax.nn.log_softmax((k - jnp.max(k, axis=-1, keepdims=True)) / tau, axis=-1)


def policy_entropy(policy: Array) -> Array:
    """`H` over the last axis, with 0 log 0 = 0."""
    return -jnp.sum(jax.scipy.special.xlogy(policy, policy), axis=-1)


def start_j(beliefs: Beliefs, tau: Array) -> Array:
    """`E_{s ~ rho} J*_{1,tau}(s)`: convex in tau, and an upper bound on `E V*` for each [ass-upper-bound]."""
    return mdps.start_value(beliefs.mdp.rho, optimal_k_values(beliefs, tau))


def response_terms(beliefs: Beliefs, tau: Array) -> tuple[Array, Array]:
    """`sum_l E sigma2` and `sum_l E H` under the Boltzmann policy of tau, in one pass.

    By the envelope theorem `d/dtau E J*_{1,tau} = sum E H - sum E sigma2 / (2 tau^2)`: the equation after [e-pol-grad] at pi*.
    """

    def step(carry: Array, layer: tuple[Array, Array, Array]) -> tuple[Array, None]:
        r, sigma2, p = layer
        ahead = mdps.expect(p, carry)  # [S, A, 3]  J*, and the two sums from the next layer on
        k = r + sigma2 / (2 * tau) + ahead[..., 0]
        log_pi = boltzmann(k, tau)
        pi = jnp.exp(log_pi)
        sigma2_ahead = jnp.sum(pi * (sigma2 + ahead[..., 1]), axis=-1)
        entropy_ahead = jnp.sum(pi * (ahead[..., 2] - jnp.where(pi > 0, log_pi, 0)), axis=-1)
        return jnp.stack([smooth_max(k, tau), sigma2_ahead, entropy_ahead], axis=-1), None

    model = beliefs.mdp
    layers = (model.reward, beliefs.sigma2, model.transition)
    first, _ = jax.lax.scan(
        step, jnp.zeros((model.reward.shape[1], 3), model.reward.dtype), layers, reverse=True
    )
    _, total_sigma2, total_entropy = model.rho @ first
    return total_sigma2, total_entropy


def tau_bracket(beliefs: Beliefs) -> tuple[Array, Array, Array]:
    """Bounds between which tau* must lie, and a point inside; zeros where nothing is uncertain.

    Two policies bound `J*_tau` from below: the one that gathers most uncertainty (M of it) by `V + M / (2 tau)`, the uniform
    one by `V + tau L log A`. Where either exceeds the value U at any trial point, the minimum cannot lie.
    """
    model, sigma2 = beliefs
    start = lambda values: mdps.start_value(model.rho, values)
    curious = mdps.optimal(model._replace(reward=sigma2))
    most_sigma2 = start(curious)
    most_entropy = model.reward.shape[0] * jnp.log(jnp.asarray(model.reward.shape[2], sigma2.dtype))
    trial = jnp.sqrt(most_sigma2 / (2 * most_entropy))
    upper = start_j(beliefs, jnp.maximum(trial, jnp.finfo(trial.dtype).tiny))
    low = most_sigma2 / (2 * (upper - start(mdps.policy_values(model, mdps.greedy(curious.q)))))
    high = (upper - start(mdps.policy_values(model, mdps.uniform(model.reward)))) / most_entropy
    certain = most_sigma2 <= 0
    # Rounding may push either bound past the point between them.
    return (
        jnp.where(certain, 0, jnp.minimum(low, trial)),
        trial,
        jnp.where(certain, 0, jnp.maximum(high, trial)),
    )


class _Search(NamedTuple):
    """A bracket of log tau*, the next point to try, the last one tried and what it showed."""

    low: Array
    high: Array
    next: Array
    last: Array
    excess: Array
    tries: Array


def tau_star(beliefs: Beliefs) -> Array:
    """`argmin_tau E J*_{1,tau}` [e-saddle]: zero (the smallest normal number) where nothing is uncertain.

    The minimum is where `2 tau^2 sum E H = sum E sigma2`; the logarithm of that ratio is almost linear in log tau (exactly so
    where the policy does not change), so a secant finds it, and every third step halves the bracket in case it does not.
    """
    low, trial, high = tau_bracket(beliefs)
    tiny, eps = jnp.finfo(trial.dtype).tiny, jnp.finfo(trial.dtype).eps

    def going(state: _Search) -> Array:
        wide = state.high - state.low > eps * jnp.maximum(1, jnp.abs(state.last))
        return (
            (jnp.abs(state.excess) > SEARCH_TOLERANCE * eps) & wide & (state.tries < SEARCH_LIMIT)
        )

    def step(state: _Search) -> _Search:
        at = state.next
        total_sigma2, total_entropy = response_terms(beliefs, jnp.exp(at))
        excess = 2 * at + jnp.log(2 * total_entropy) - jnp.log(total_sigma2)
        low, high = jnp.where(excess < 0, at, state.low), jnp.where(excess < 0, state.high, at)
        slope = (excess - state.excess) / (at - state.last)
        # At first the other player's best response: the policy held still, the slope is 2.
        secant = at - excess / jnp.where(jnp.isfinite(slope) & (slope > 0), slope, 2)
        trust = (secant > low) & (secant < high) & (state.tries % 3 != 2)
        return _Search(
            low, high, jnp.where(trust, secant, (low + high) / 2), at, excess, state.tries + 1
        )

    log = lambda x: jnp.log(jnp.maximum(x, tiny))
    start = _Search(
        log(low),
        log(high) + eps,
        log(trial),
        log(trial),
        jnp.full_like(trial, jnp.inf),
        jnp.int32(0),
    )
    found = jax.lax.while_loop(going, step, start)
    return jnp.where(high > 0, jnp.exp(found.last), tiny)


def solve_at(beliefs: Beliefs, tau: Array) -> Solution:
    """The optimal K-values and their policy at a given tau."""
    values = optimal_k_values(beliefs, tau)
    return Solution(tau, values.q, values.v, boltzmann(values.q, tau))


def solve(beliefs: Beliefs) -> Solution:
    """K-learning: the optimal K-values and policy at tau*, which is the saddle point [e-saddle] over all policies."""
    return solve_at(beliefs, tau_star(beliefs))


def bounded_span(horizon: int, dtype: jnp.dtype) -> Array:
    """The widest that `V_{l+1}` can range when every |r| <= 1: `2 (L - l)` [L]."""
    return 2 * jnp.arange(horizon - 1, -1, -1, dtype=dtype)


def sigma2_bounded(beliefs: MdpPosterior, span: Array) -> Array:
    """Uncertainty that makes [ass-upper-bound] a theorem when `V_{l+1}` ranges over at most span [L]: sigma = O(L).

    A Gaussian mean reward contributes its variance, exactly. `P . V` under Dir(alpha) is, in convex order, below span times a
    Beta with the same mean and the same total count, and a Beta with total count n is sub-Gaussian with variance proxy
    1 / (4 (n + 1)): hence span^2 / (4 (n + 1)). With |r| <= 1 that is (L - l)^2 / (n + 1): the constant of sigma = O(L) is one.
    """
    if not isinstance(beliefs.transition, Dirichlet):
        return beliefs.reward_var
    total = jnp.sum(beliefs.transition.concentration, axis=-1)
    return beliefs.reward_var + jnp.square(span)[:, None, None] / (4 * (total + 1))


def sigma2_plug_in(beliefs: MdpPosterior) -> Array:
    """Posterior variance of one step `r + P . V`, with the optimal value of the mean MDP for V: what the docs recommend.

    Exact for rewards. For transitions it is the variance of `P . V` under the Dirichlet, the second-order term of the certainty
    equivalent, where `sigma2_bounded` pays for the worst V there could be.
    """
    if not isinstance(beliefs.transition, Dirichlet):
        return beliefs.reward_var
    model = mdps.mean(beliefs)
    total = jnp.sum(beliefs.transition.concentration, axis=-1)
    ahead = jnp.append(
        mdps.optimal(model).v[1:], jnp.zeros_like(model.rho)[None], axis=0
    )  # [L, S] V_{l+1}
    mean_square = jax.vmap(mdps.expect)(model.transition, jnp.square(ahead))
    square_mean = jnp.square(jax.vmap(mdps.expect)(model.transition, ahead))
    return beliefs.reward_var + jnp.maximum(mean_square - square_mean, 0) / (total + 1)


def sigma2_deterministic(beliefs: MdpPosterior, visits: Array, span: Array) -> Array:
    """Uncertainty about a problem in which nothing is random: all of it until the first visit, none after.

    An unseen step may lead to either end of span [L] (Hoeffding: span^2 / 4); a step seen once is known.
    """
    transitions_known = not isinstance(beliefs.transition, Dirichlet)
    unseen = beliefs.reward_var + (0 if transitions_known else jnp.square(span)[:, None, None] / 4)
    return jnp.where(visits > 0, 0, unseen)
