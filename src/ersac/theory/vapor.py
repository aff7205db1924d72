"""A tau for each state and action: VAPOR, its relatives, and a tau that falls along an episode.

K-learning has one tau for all states, so every known step still earns tau times its entropy. VAPOR
(Tarbouriech et al. 2023) maximises, over the occupancies lambda of the mean MDP,

    sum lambda (r + sigma sqrt(-2 log lambda)) = min_tau sum lambda (r + sigma2 / (2 tau)
                                                                     - tau log lambda),

an upper bound of `E V*`, with `tau = sigma / sqrt(-2 log lambda)` at each state and action. Its
dual is smooth, convex and unconstrained in the values V [L, S]; the gradient is the violation of
the flow constraints, and the Hessian is block-tridiagonal in the layers, so a Newton step costs one
factorisation per layer. In a bandit this is VBOS (O'Donoghue and Lattimore 2021).

The functions need double precision; `jax.enable_x64(True)` gives it.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import numpy as jnp

from ersac.theory import klearning
from ersac.theory import mdp as mdps
from ersac.theory.klearning import Beliefs
from ersac.theory.mdp import MDP
from ersac.types import Array

SIGMA_FLOOR = 0.01  # of the largest sigma, below which the dual is not smooth enough
LITE_FLOOR = 1e-4  # the same under the entropy weights of VAPOR-lite
NEWTON_LIMIT = 200  # Newton steps; about 10 are used, and 30 in deep MDPs
NEWTON_TOLERANCE = 1e-9  # of the Newton decrement, as a share of the largest sigma
STEP_SIZES = 2.0 ** (2 - jnp.arange(18))  # of the line search
RIDGE = 1e-10  # added to the Hessian, relative to its diagonal and to 1 / the largest sigma
BISECTIONS = 60
LEAST_LOG_MASS = -300.0  # logarithm of the smallest occupancy that a start takes into account
TAU_GRID = jnp.logspace(-3, 1.5, 64)  # of the monotone tau, as multiples of tau*


class VaporSolution(NamedTuple):
    """The solution of VAPOR's dual, and the policy of its occupancy."""

    v: Array  # [L, S]        the dual variables
    log_occupancy: Array  # [L, S, A]
    log_policy: Array  # [L, S, A]
    tau: Array  # [L, S, A]   sigma / sqrt(-2 log lambda)
    dual: Array  # []         an upper bound of E V*


class MonotoneSolution(NamedTuple):
    """The solution with a tau that may fall along an episode."""

    tau: Array  # []          of the first layer, averaged over the initial states
    bound: Array  # []        an upper bound of E V*, at most K-learning's
    policy: Array  # [L, S, A]
    optimism: Array  # []     the bound minus the value of the policy in the mean MDP


def conjugate_root(y: Array) -> Array:
    """Return the x > 0 with `x - 1 / x = y`; `lambda = exp(-x^2 / 2)` maximises in `conjugate`.

    For negative y the conjugate form of the quadratic formula does not cancel.
    """
    root = jnp.sqrt(y**2 + 4)
    return jnp.where(y > 0, (y + root) / 2, 2 / (root - y))


def conjugate(y: Array) -> Array:
    """Return `phi(y) = max_lambda lambda (sqrt(-2 log lambda) - y)` (Tarbouriech et al. 2023)."""
    x = conjugate_root(y)
    return jnp.exp(-(x**2) / 2) / x


def conjugate_curvature(y: Array) -> Array:
    """Return `phi''(y) = lambda x^3 / (1 + x^2)`; `phi'(y) = -lambda`."""
    x = conjugate_root(y)
    return jnp.exp(-(x**2) / 2) * x**3 / (1 + x**2)


def floor_sigma(beliefs: Beliefs, share: Array | float) -> Array:
    """Return sigma [L, S, A], at least a share of the largest: the dual is smooth only above 0."""
    sigma = jnp.sqrt(beliefs.sigma2)
    return jnp.maximum(sigma, share * largest_sigma(beliefs))


def largest_sigma(beliefs: Beliefs) -> Array:
    """Return the largest sigma, or a small share of the rewards if nothing is uncertain."""
    rewards = jnp.max(jnp.abs(beliefs.mdp.reward))
    return jnp.maximum(jnp.sqrt(jnp.max(beliefs.sigma2)), jnp.maximum(1e-6 * rewards, 1e-12))


def reachable_states(mdp: MDP) -> Array:
    """Return which states [L, S] have positive probability under some policy."""
    visits = mdps.occupancy(mdp, mdps.uniform_policy(mdp.reward))
    return jnp.sum(visits, axis=-1) > 0


def scaled_gaps(mdp: MDP, sigma: Array, v: Array) -> Array:
    """Return `y = (V_l - r - P V_{l+1}) / sigma` [L, S, A], the arguments of phi in the dual."""
    return (v[..., None] - mdp.reward - expect_next(mdp, v)) / sigma


def expect_next(mdp: MDP, v: Array) -> Array:
    """Return `P_l V_{l+1}` [L, S, A], zero in the last layer."""
    return jax.vmap(mdps.expect)(mdp.transition, jnp.append(v[1:], jnp.zeros_like(v[:1]), axis=0))


def dual_value(mdp: MDP, sigma: Array, reachable: Array, v: Array) -> Array:
    """Return `D(V) = rho . V_1 + sum sigma phi(y)` over reachable states, an upper bound of `E V*`.

    By weak duality this holds at every V (Tarbouriech et al. 2023).
    """
    terms = sigma * conjugate(scaled_gaps(mdp, sigma, v))
    return jnp.dot(mdp.rho, v[0]) + jnp.sum(jnp.where(reachable[..., None], terms, 0))


def vapor_value(mdp: MDP, sigma: Array, policy: Array) -> Array:
    """Return `sum lambda (r + sigma sqrt(-2 log lambda))`, VAPOR's objective, for a policy.

    Every policy is feasible, so this is a lower bound of the dual (Tarbouriech et al. 2023).
    """
    occupancy = mdps.occupancy(mdp, policy)
    log_occupancy = jnp.log(jnp.where(occupancy > 0, occupancy, 1))
    bonus = sigma * jnp.sqrt(jnp.maximum(-2 * log_occupancy, 0))
    return jnp.sum(occupancy * (mdp.reward + bonus))


def flow_violation(mdp: MDP, occupancy: Array) -> Array:
    """Return inflow minus outflow of every state [L, S], the gradient of the dual."""
    inflow = jax.vmap(mdps.push_forward)(mdp.transition, occupancy)
    start = mdp.rho.astype(occupancy.dtype)[None]
    return jnp.append(start, inflow[:-1], axis=0) - jnp.sum(occupancy, axis=-1)


def successor_moments(transition: Array, weight: Array) -> Array:
    """Return `sum_{s, a} w P P'` [S, S] of one layer's transitions, for weights [S, A]."""
    if jnp.issubdtype(transition.dtype, jnp.integer):
        return jnp.diag(mdps.push_forward(transition, weight))
    return jnp.einsum("sa,sap,saq->pq", weight, transition, transition)


def layered_newton_step(mdp: MDP, weight: Array, gradient: Array, ridge: Array) -> Array:
    """Return `-H^-1 g` [L, S] for the block-tridiagonal Hessian of weights `phi'' / sigma`.

    The last layer is eliminated first. With `W = sum_a w P` the blocks of H are
    `diag(sum_a w_l) + sum w_{l-1} P P'` on the diagonal and `-W_l` beside it.
    """

    def through(p: Array, w: Array, x: Array) -> Array:
        return jnp.einsum("sa,sa...->s...", w, mdps.expect(p, x))  # W x

    def eliminate(
        carry: tuple[Array, Array], layer: tuple[Array, ...]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        inverse, solution = carry  # of the next layer: its Schur complement, and that times its rhs
        w, p, before, p_before, g = layer
        diagonal = jnp.sum(w, axis=-1)
        moments = successor_moments(p_before, before)
        damping = ridge + RIDGE * (diagonal + jnp.diag(moments))
        block = jnp.diag(diagonal + damping) + moments
        block -= through(p, w, through(p, w, inverse).T)
        factor = jnp.linalg.cholesky((block + block.T) / 2)
        inverse = jax.scipy.linalg.cho_solve((factor, True), jnp.eye(len(g), dtype=g.dtype))
        solution = inverse @ (through(p, w, solution) - g)
        return (inverse, solution), (inverse, solution)

    def substitute(step: Array, layer: tuple[Array, ...]) -> tuple[Array, Array]:
        inverse, solution, before, p_before = layer
        step = solution + inverse @ mdps.push_forward(p_before, before * step[:, None])
        return step, step

    before = jnp.append(jnp.zeros_like(weight[:1]), weight[:-1], axis=0)
    p_before = jnp.append(mdp.transition[:1], mdp.transition[:-1], axis=0)
    size = gradient.shape[1]
    last = (jnp.zeros((size, size), gradient.dtype), jnp.zeros(size, gradient.dtype))
    layers = (weight, mdp.transition, before, p_before, gradient)
    blocks = jax.lax.scan(eliminate, last, layers, reverse=True)[1]
    return jax.lax.scan(substitute, jnp.zeros(size, gradient.dtype), (*blocks, before, p_before))[1]


class _Newton(NamedTuple):
    """An iterate of the dual, its value, the damping, the last decrement, and the steps so far."""

    v: Array
    value: Array
    ridge: Array
    decrement: Array
    steps: Array


def minimise_dual(mdp: MDP, sigma: Array, reachable: Array, start: Array) -> Array:
    """Return the V [L, S] that minimises the dual, by Newton's method with a line search."""
    scale = jnp.max(sigma)
    masked, sizes = reachable[..., None], STEP_SIZES.astype(start.dtype)
    objective = lambda v: dual_value(mdp, sigma, reachable, v)

    def unfinished(newton: _Newton) -> Array:
        return (newton.decrement > NEWTON_TOLERANCE * scale) & (newton.steps < NEWTON_LIMIT)

    def step(newton: _Newton) -> _Newton:
        y = scaled_gaps(mdp, sigma, newton.v)
        occupancy = jnp.where(masked, jnp.exp(-(conjugate_root(y) ** 2) / 2), 0)
        weight = jnp.where(masked, conjugate_curvature(y) / sigma, 0)
        gradient = jnp.where(reachable, flow_violation(mdp, occupancy), 0)
        direction = layered_newton_step(mdp, weight, gradient, newton.ridge / scale)
        values = jax.vmap(lambda size: objective(newton.v + size * direction))(sizes)
        best = jnp.argmin(jnp.where(jnp.isnan(values), jnp.inf, values))
        better = values[best] < newton.value
        # Where all curvature has underflowed the step is far too long, until the ridge limits it.
        ridge = jnp.where(better, jnp.maximum(newton.ridge / 10, RIDGE), newton.ridge * 100)
        v = jnp.where(better, newton.v + sizes[best] * direction, newton.v)
        value = jnp.where(better, values[best], newton.value)
        return _Newton(v, value, ridge, -jnp.sum(gradient * direction), newton.steps + 1)

    number = lambda x: jnp.asarray(x, start.dtype)
    first = _Newton(start, objective(start), number(RIDGE), number(jnp.inf), jnp.int32(0))
    return jax.lax.while_loop(unfinished, step, first).v


def values_of_flow(mdp: MDP, sigma: Array, log_mass: Array) -> Array:
    """Return the values V [L, S] at which each state's outflow has a given logarithm [L, S].

    A backward sweep of one-dimensional problems, exact at the optimum: V is the kappa with
    `sum_a exp(-x^2 / 2) = mass` and `x - 1 / x = (kappa - r - P V_{l+1}) / sigma`.
    """
    log_actions = jnp.log(jnp.asarray(mdp.reward.shape[-1], sigma.dtype))

    def threshold(q: Array, sigma: Array, log_mass: Array) -> Array:
        x = jnp.sqrt(2 * jnp.maximum(log_actions - log_mass, 1e-9))[..., None]
        bound = q + sigma * (x - 1 / x)  # of an action that takes its equal share of the mass
        log_flow = lambda v: jax.nn.logsumexp(
            -(conjugate_root((v[..., None] - q) / sigma) ** 2) / 2, axis=-1
        )
        excess = lambda v: log_flow(v) - log_mass
        return bisect(excess, jnp.min(bound, axis=-1), jnp.max(bound, axis=-1))

    masses = jnp.maximum(log_mass, LEAST_LOG_MASS)
    return mdps.backward_induction(mdp.reward, mdp.transition, threshold, sigma, masses).v


def uniform_flow(mdp: MDP) -> Array:
    """Return the logarithm [L, S] of the uniform policy's occupancy, a start for `solve_vapor`."""
    mass = jnp.sum(mdps.occupancy(mdp, mdps.uniform_policy(mdp.reward)), axis=-1)
    return jnp.where(mass > 0, jnp.log(jnp.where(mass > 0, mass, 1)), LEAST_LOG_MASS)


def solve_vapor(beliefs: Beliefs, log_mass: Array) -> VaporSolution:
    """Solve VAPOR's dual (Tarbouriech et al. 2023), from a guess of the occupancy of states [L, S].

    A good guess is that of the last episode. Values, by contrast, are a bad start: where sigma has
    just fallen they are far too large, and the dual is flat there.
    """
    mdp, sigma = beliefs.mdp, floor_sigma(beliefs, SIGMA_FLOOR)
    reachable = reachable_states(mdp)
    v = minimise_dual(mdp, sigma, reachable, values_of_flow(mdp, sigma, log_mass))
    x = conjugate_root(scaled_gaps(mdp, sigma, v))
    log_occupancy = -(x**2) / 2
    return VaporSolution(
        v,
        log_occupancy,
        jax.nn.log_softmax(log_occupancy, axis=-1),
        sigma / x,
        dual_value(mdp, sigma, reachable, v),
    )


def bisect(excess: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """Return the zeros of elementwise decreasing functions between two bounds."""

    def step(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) / 2
        above = excess(middle) > 0
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    low, high = jax.lax.fori_loop(0, BISECTIONS, step, (low, high))
    return (low + high) / 2


def vbos_threshold(mean: Array, sigma: Array) -> Array:
    """Return the kappa [...] at which the probabilities of `vbos_log_policy` sum to one."""
    n_actions = mean.shape[-1]
    x_uniform = jnp.sqrt(2 * jnp.log(jnp.asarray(max(n_actions, 1 + 1e-9), mean.dtype)))
    at_uniform = mean + sigma * (x_uniform - 1 / x_uniform)
    root = lambda kappa: conjugate_root((kappa[..., None] - mean) / sigma)
    excess = lambda kappa: jnp.sum(jnp.exp(-(root(kappa) ** 2) / 2), axis=-1) - 1
    return bisect(excess, jnp.min(at_uniform, axis=-1), jnp.max(at_uniform, axis=-1))


def vbos_log_policy(mean: Array, sigma: Array) -> Array:
    """Return the log-policy [..., A] that maximises `vbos_value` (O'Donoghue and Lattimore 2021).

    `pi = exp(-x^2 / 2)` with `x - 1 / x = (kappa - mean) / sigma`; kappa normalises it.
    """
    x = conjugate_root((vbos_threshold(mean, sigma)[..., None] - mean) / sigma)
    return jax.nn.log_softmax(-(x**2) / 2, axis=-1)


def vbos_value(mean: Array, sigma: Array, log_policy: Array) -> Array:
    """Return `sum_a pi (mean + sigma sqrt(-2 log pi))` (O'Donoghue and Lattimore 2021)."""
    bonus = sigma * jnp.sqrt(-2 * log_policy)
    return jnp.sum(jnp.exp(log_policy) * (mean + bonus), axis=-1)


def solve_vbos(beliefs: Beliefs) -> Array:
    """Return the log-policy [L, S, A] of VBOS at each state, by backward induction.

    In a bandit this is VAPOR. In an MDP it is not a bound: the action probability pi takes the
    role of the occupancy lambda.
    """
    sigma = floor_sigma(beliefs, SIGMA_FLOOR)
    mdp = beliefs.mdp
    value = lambda q, sigma: vbos_value(q, sigma, vbos_log_policy(q, sigma))
    q = mdps.backward_induction(mdp.reward, mdp.transition, value, sigma).q
    return vbos_log_policy(q, sigma)


def weighted_log_policy(k: Array, weight: Array) -> Array:
    """Return the log-policy that maximises `sum_a pi (K - w log pi)` [..., A].

    `log pi = (K - nu) / w - 1`, where nu normalises it. With equal weights it is [e-k-policy].
    """
    n_actions = jnp.asarray(k.shape[-1], k.dtype)
    log_pi = lambda nu: (k - nu[..., None]) / weight - 1
    excess = lambda nu: jnp.sum(jnp.exp(log_pi(nu)), axis=-1) - 1
    low = jnp.max(k - weight, axis=-1)
    high = jnp.max(k - weight + weight * jnp.log(n_actions), axis=-1)
    return jax.nn.log_softmax(log_pi(bisect(excess, low, high)), axis=-1)


def weighted_value(k: Array, weight: Array, log_policy: Array) -> Array:
    """Return `sum_a pi (K - w log pi)`: entropy with a weight for each action."""
    policy = jnp.exp(log_policy)
    return jnp.sum(policy * (k - weight * jnp.where(policy > 0, log_policy, 0)), axis=-1)


def solve_vapor_lite(beliefs: Beliefs, scale: float, entropy_scale: float) -> Array:
    """Return the log-policy [L, S, A] of VAPOR-lite (Tarbouriech et al. 2023), exactly.

    Rewards are `r + scale sigma`, and the entropy of an action has the weight
    `entropy_scale sigma`, at least a small share of the largest.
    """
    mdp, sigma = beliefs.mdp, jnp.sqrt(beliefs.sigma2)
    weight = entropy_scale * floor_sigma(beliefs, LITE_FLOOR)
    value = lambda k, weight: weighted_value(k, weight, weighted_log_policy(k, weight))
    k = mdps.backward_induction(mdp.reward + scale * sigma, mdp.transition, value, weight).q
    return weighted_log_policy(k, weight)


def running_minimum(j: Array) -> tuple[Array, Array]:
    """Return `min_{g' <= g} j` along the first axis, and the index of the minimum."""
    index = jax.lax.broadcasted_iota(jnp.int32, j.shape, 0)

    def smaller(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        first = a[0] <= b[0]
        return jnp.where(first, a[0], b[0]), jnp.where(first, a[1], b[1])

    return jax.lax.associative_scan(smaller, (j, index))


def solve_monotone(beliefs: Beliefs) -> MonotoneSolution:
    """Solve [e-jstar] with a tau that may fall from layer to layer, on a grid around tau*.

    `J_l(s; tau) = min_{tau' <= tau} tau' log sum_a exp((r + sigma2 / (2 tau') + P J_{l+1}(.; tau'))
    / tau')` is an upper bound [ass-upper-bound] because a certainty equivalent does not increase in
    tau. The policy is the marginal one: that of the occupancy which the falling tau leads to.
    """
    mdp, sigma2 = beliefs
    # tau* itself is in the grid, so the bound is at most K-learning's.
    shares = jnp.sort(jnp.append(TAU_GRID, 1)).astype(sigma2.dtype)
    taus = klearning.tau_star(beliefs) * shares

    def solve_layer(
        j_next: Array, layer: tuple[Array, Array, Array]
    ) -> tuple[Array, tuple[Array, Array]]:
        r, variance, p = layer

        def at_tau(tau: Array, j_next: Array) -> tuple[Array, Array]:
            k = r + variance / (2 * tau) + mdps.expect(p, j_next)
            return klearning.smooth_max(k, tau), jnp.exp(klearning.boltzmann_log_policy(k, tau))

        j, policies = jax.vmap(at_tau)(taus, j_next)
        j, choice = running_minimum(j)
        return j, (choice, policies)

    last = jnp.zeros((len(taus), mdp.reward.shape[1]), sigma2.dtype)
    layers = (mdp.reward, sigma2, mdp.transition)
    j_first, (choice, policies) = jax.lax.scan(solve_layer, last, layers, reverse=True)
    bound = jnp.dot(mdp.rho, j_first[-1])
    policy = marginal_policy(mdp, choice, policies)
    value = mdps.start_value(mdp.rho, mdps.policy_values(mdp, policy))
    return MonotoneSolution(jnp.dot(mdp.rho, taus[choice[0, -1]]), bound, policy, bound - value)


def marginal_policy(mdp: MDP, choice: Array, policies: Array) -> Array:
    """Return the policy [L, S, A] with the occupancy of an agent that carries tau along.

    An agent in state s with the tau of index g changes to the index `choice[l, g, s]` and plays
    `policies[l, choice, s]`. Where it never is, the policy is that of the largest tau.
    """

    def step(mass: Array, layer: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        chosen, policy, p = layer
        lower = jax.vmap(lambda m, c: jnp.zeros_like(m).at[c].add(m), 1, 1)(mass, chosen)
        joint = lower[..., None] * policy  # [G, S, A]
        visits = jnp.sum(joint, axis=0)
        total = jnp.sum(visits, axis=-1, keepdims=True)
        unvisited = jnp.take_along_axis(policy, chosen[-1:, :, None], axis=0)[0]
        marginal = jnp.where(total > 0, visits / jnp.where(total > 0, total, 1), unvisited)
        return jax.vmap(lambda m: mdps.push_forward(p, m))(joint), marginal

    start = jnp.zeros(choice.shape[1:], policies.dtype).at[-1].set(mdp.rho)
    return jax.lax.scan(step, start, (choice, policies, mdp.transition))[1]
