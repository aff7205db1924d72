"""K-learning: optimistic values of uncertain MDPs, their Boltzmann policy, and the optimal tau.

Under the risk-seeking utility `u_tau(x) = tau (exp(x / tau) - 1)` the certainty equivalent of a
random variable X is at least E X, so uncertainty adds value. Applied layer by layer this gives a
Bellman equation [e-kpi] whose maximum over policies is a log-sum-exp [e-jstar], attained by a
softmax policy [e-k-policy]. Every tau gives an upper bound on `E V*` [ass-upper-bound]; `tau_star`
finds the tightest one, which solves the saddle-point problem [e-saddle] over all policies.
"""

from typing import NamedTuple

import jax
from jax import numpy as jnp

from ersac.algorithm import game
from ersac.theory import mdp as mdps
from ersac.theory.mdp import MDP, Dirichlet, MdpPosterior, Values
from ersac.types import Array

SEARCH_LIMIT = 60  # evaluations in the search for tau*; about ten are used
SEARCH_TOLERANCE = 256  # the search stops at this many machine epsilons


class Beliefs(NamedTuple):
    """The inputs of K-learning: the mean MDP and the uncertainty of every state-action."""

    mdp: MDP
    sigma2: Array  # [L, S, A]


class Solution(NamedTuple):
    """A risk parameter with its optimal K-values, J-values and Boltzmann policy."""

    tau: Array  # []
    k: Array  # [L, S, A]
    j: Array  # [L, S]
    log_policy: Array  # [L, S, A]


def check_beliefs(beliefs: Beliefs) -> Beliefs:
    """Return the beliefs, or raise an error that names the first invalid layer."""
    mdps.check_mdp(beliefs.mdp)
    if beliefs.sigma2.shape != beliefs.mdp.reward.shape:
        raise ValueError(
            f"layer 1: sigma2 has shape {beliefs.sigma2.shape}, "
            f"the rewards {beliefs.mdp.reward.shape}"
        )
    mdps.check_variance(beliefs.sigma2, "sigma2")
    return beliefs


def certainty_equivalent(samples: Array, tau: Array) -> Array:
    """Return `tau log E exp(X / tau)` of equally likely samples on the last axis [before e-kpi].

    For a Gaussian X it is `mu + sigma2 / (2 tau)`.
    """
    return tau * (jax.nn.logsumexp(samples / tau, axis=-1) - jnp.log(samples.shape[-1]))


def optimistic_rewards(beliefs: Beliefs, tau: Array) -> Array:
    """Return `r_tau = E r + sigma2 / (2 tau)` [before e-kpi]."""
    return game.optimistic_reward(beliefs.mdp.reward, beliefs.sigma2 / (2 * tau))


def smooth_max(k: Array, tau: Array) -> Array:
    """Return `tau log sum_a exp(k / tau)` [e-jstar], or the maximum if tau has underflowed."""
    k_max = jnp.max(k, axis=-1)
    return k_max + tau * jnp.log(jnp.sum(jnp.exp((k - k_max[..., None]) / tau), axis=-1))


def k_values(beliefs: Beliefs, policy: Array, tau: Array) -> Values:
    """Return `K^pi` and `J^pi` of a policy [L, S, A] [e-kpi]."""

    def j_value(k: Array, pi: Array) -> Array:
        return jnp.sum(pi * k, axis=-1) + tau * policy_entropy(pi)

    return mdps.backward_induction(
        optimistic_rewards(beliefs, tau), beliefs.mdp.transition, j_value, policy
    )


def optimal_k_values(beliefs: Beliefs, tau: Array) -> Values:
    """Return `K*` and `J*` [e-jstar]."""
    return mdps.backward_induction(
        optimistic_rewards(beliefs, tau), beliefs.mdp.transition, lambda k: smooth_max(k, tau)
    )


def boltzmann_log_policy(k: Array, tau: Array) -> Array:
    """Return the logarithm of the Boltzmann policy `exp((K* - J*) / tau)` [e-k-policy]."""
    return jax.nn.log_softmax((k - jnp.max(k, axis=-1, keepdims=True)) / tau, axis=-1)


def policy_entropy(policy: Array) -> Array:
    """Return the entropy `H` over the last axis, with 0 log 0 = 0."""
    return -jnp.sum(jax.scipy.special.xlogy(policy, policy), axis=-1)


def start_j(beliefs: Beliefs, tau: Array) -> Array:
    """Return `E_{s ~ rho} J*_{1,tau}(s)`, convex in tau and an upper bound [ass-upper-bound]."""
    return mdps.start_value(beliefs.mdp.rho, optimal_k_values(beliefs, tau))


def boltzmann_terms(beliefs: Beliefs, tau: Array) -> tuple[Array, Array]:
    """Return `sum_l E sigma2` and `sum_l E H` under the Boltzmann policy of tau, in one pass.

    By the envelope theorem `d/dtau E J*_{1,tau} = sum E H - sum E sigma2 / (2 tau^2)`, which is the
    gradient with respect to tau at the Boltzmann policy [after e-pol-grad].
    """

    def step(carry: Array, layer: tuple[Array, Array, Array]) -> tuple[Array, None]:
        r, sigma2, p = layer
        # [S, A, 3]: expected J* of the next layer, and both sums from the next layer on.
        ahead = mdps.expect(p, carry)
        k = r + sigma2 / (2 * tau) + ahead[..., 0]
        log_pi = boltzmann_log_policy(k, tau)
        pi = jnp.exp(log_pi)
        sigma2_sum = jnp.sum(pi * (sigma2 + ahead[..., 1]), axis=-1)
        entropy_sum = jnp.sum(pi * (ahead[..., 2] - jnp.where(pi > 0, log_pi, 0)), axis=-1)
        return jnp.stack([smooth_max(k, tau), sigma2_sum, entropy_sum], axis=-1), None

    mdp = beliefs.mdp
    layers = (mdp.reward, beliefs.sigma2, mdp.transition)
    first, _ = jax.lax.scan(
        step, jnp.zeros((mdp.reward.shape[1], 3), mdp.reward.dtype), layers, reverse=True
    )
    _, total_sigma2, total_entropy = mdp.rho @ first
    return total_sigma2, total_entropy


def tau_bracket(beliefs: Beliefs) -> tuple[Array, Array, Array]:
    """Return a lower bound of tau*, a trial point and an upper bound; zeros if sigma2 is zero.

    Two policies bound `J*_tau` from below: the policy with the largest expected sum M of sigma2
    gives `V + M / (2 tau)`, the uniform policy gives `V + tau L log A`. At the optimal tau neither
    exceeds the value of `J*` at the trial point.
    """
    mdp, sigma2 = beliefs
    start = lambda values: mdps.start_value(mdp.rho, values)
    sigma2_values = mdps.optimal_values(mdp._replace(reward=sigma2))
    max_sigma2 = start(sigma2_values)
    max_entropy = mdp.reward.shape[0] * jnp.log(jnp.asarray(mdp.reward.shape[2], sigma2.dtype))
    trial = jnp.sqrt(max_sigma2 / (2 * max_entropy))
    upper = start_j(beliefs, jnp.maximum(trial, jnp.finfo(trial.dtype).tiny))
    seeking = mdps.greedy_policy(sigma2_values.q)
    low = max_sigma2 / (2 * (upper - start(mdps.policy_values(mdp, seeking))))
    uniform = mdps.uniform_policy(mdp.reward)
    high = (upper - start(mdps.policy_values(mdp, uniform))) / max_entropy
    certain = max_sigma2 <= 0
    # Rounding may push either bound past the trial point.
    return (
        jnp.where(certain, 0, jnp.minimum(low, trial)),
        trial,
        jnp.where(certain, 0, jnp.maximum(high, trial)),
    )


class _Search(NamedTuple):
    """A bracket of log tau*, the next point, the last point and its excess, and the evaluations."""

    low: Array
    high: Array
    next: Array
    last: Array
    excess: Array
    evaluations: Array


def tau_star(beliefs: Beliefs) -> Array:
    """Return `argmin_tau E J*_{1,tau}` [e-saddle], or the smallest normal number if sigma2 is zero.

    At the minimum `2 tau^2 sum E H = sum E sigma2` [after e-pol-grad]. The logarithm of the ratio
    of both sides is almost linear in log tau (exactly if the policy does not change), so a secant
    search converges fast; every third step bisects the bracket, which guarantees convergence.
    """
    low, trial, high = tau_bracket(beliefs)
    tiny, eps = jnp.finfo(trial.dtype).tiny, jnp.finfo(trial.dtype).eps

    def unfinished(search: _Search) -> Array:
        wide = search.high - search.low > eps * jnp.maximum(1, jnp.abs(search.last))
        inexact = jnp.abs(search.excess) > SEARCH_TOLERANCE * eps
        return inexact & wide & (search.evaluations < SEARCH_LIMIT)

    def step(search: _Search) -> _Search:
        log_tau = search.next
        total_sigma2, total_entropy = boltzmann_terms(beliefs, jnp.exp(log_tau))
        excess = 2 * log_tau + jnp.log(2 * total_entropy) - jnp.log(total_sigma2)
        low = jnp.where(excess < 0, log_tau, search.low)
        high = jnp.where(excess < 0, search.high, log_tau)
        slope = (excess - search.excess) / (log_tau - search.last)
        # The first step takes the slope 2 of a fixed policy: tau's best response to that policy.
        secant = log_tau - excess / jnp.where(jnp.isfinite(slope) & (slope > 0), slope, 2)
        use_secant = (secant > low) & (secant < high) & (search.evaluations % 3 != 2)
        following = jnp.where(use_secant, secant, (low + high) / 2)
        return _Search(low, high, following, log_tau, excess, search.evaluations + 1)

    log = lambda x: jnp.log(jnp.maximum(x, tiny))
    start = _Search(
        low=log(low),
        high=log(high) + eps,
        next=log(trial),
        last=log(trial),
        excess=jnp.full_like(trial, jnp.inf),
        evaluations=jnp.int32(0),
    )
    result = jax.lax.while_loop(unfinished, step, start)
    return jnp.where(high > 0, jnp.exp(result.last), tiny)


def solve_at(beliefs: Beliefs, tau: Array) -> Solution:
    """Return the optimal K-values and the Boltzmann policy at a given tau [e-jstar, e-k-policy]."""
    values = optimal_k_values(beliefs, tau)
    return Solution(tau, values.q, values.v, boltzmann_log_policy(values.q, tau))


def solve(beliefs: Beliefs) -> Solution:
    """Return the optimal K-values and policy at tau*, the saddle point [e-saddle]."""
    return solve_at(beliefs, tau_star(beliefs))


def bounded_span(horizon: int, dtype: jnp.dtype) -> Array:
    """Return the largest range of `V_{l+1}` if every |r| <= 1: `2 (L - l)` [L]."""
    return 2 * jnp.arange(horizon - 1, -1, -1, dtype=dtype)


def sigma2_bounded(posterior: MdpPosterior, span: Array) -> Array:
    """Return the sigma2 that proves [ass-upper-bound] if `V_{l+1}` has a range of at most span [L].

    A Gaussian mean reward contributes its posterior variance. `P . V` under Dir(alpha) is bounded,
    in convex order, by span times a Beta variable of the same mean and total count n; this is
    sub-Gaussian with variance proxy 1 / (4 (n + 1)), hence the term span^2 / (4 (n + 1)). For
    |r| <= 1 the term is (L - l)^2 / (n + 1): the paper's sigma = O(L), with constant one.
    """
    if not isinstance(posterior.transition, Dirichlet):
        return posterior.reward_var
    total = jnp.sum(posterior.transition.concentration, axis=-1)
    return posterior.reward_var + jnp.square(span)[:, None, None] / (4 * (total + 1))


def sigma2_plug_in(posterior: MdpPosterior) -> Array:
    """Return the posterior variance of `r + P . V`, with V the optimal values of the mean MDP.

    It is exact for rewards. For transitions it is the variance of `P . V` under the Dirichlet, the
    second-order term of the certainty equivalent, whereas `sigma2_bounded` assumes the worst V.
    """
    if not isinstance(posterior.transition, Dirichlet):
        return posterior.reward_var
    mdp = mdps.mean_mdp(posterior)
    total = jnp.sum(posterior.transition.concentration, axis=-1)
    last_value = jnp.zeros_like(mdp.rho)[None]
    next_value = jnp.append(mdps.optimal_values(mdp).v[1:], last_value, axis=0)  # [L, S] V_{l+1}
    mean_square = jax.vmap(mdps.expect)(mdp.transition, jnp.square(next_value))
    square_mean = jnp.square(jax.vmap(mdps.expect)(mdp.transition, next_value))
    return posterior.reward_var + jnp.maximum(mean_square - square_mean, 0) / (total + 1)


def sigma2_deterministic(posterior: MdpPosterior, visits: Array, span: Array) -> Array:
    """Return the sigma2 of a deterministic MDP: that of the prior before a visit, zero after it.

    An unvisited transition may lead to either end of span [L], which contributes span^2 / 4
    (Hoeffding); a visited one is known.
    """
    transitions_known = not isinstance(posterior.transition, Dirichlet)
    transition_var = 0 if transitions_known else jnp.square(span)[:, None, None] / 4
    return jnp.where(visits > 0, 0, posterior.reward_var + transition_var)
