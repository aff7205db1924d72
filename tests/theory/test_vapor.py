"""A tau for each state and action, on 200 random MDPs in double precision."""

import jax
import numpy as np
import pytest
import scipy.optimize
import scipy.special
from jax import numpy as jnp

from ersac.analysis.scores import solved_bsuite
from ersac.theory import agents, vapor
from ersac.theory import klearning as kl
from ersac.theory import mdp as mdps
from ersac.theory.experiments import deep_sea_problems, make_tabular_agent
from ersac.theory.klearning import Beliefs
from ersac.theory.mdp import MDP
from ersac.theory.settings import Learners


def solve_with_bounds(beliefs):
    """The dual and primal value of VAPOR, and the bounds of K-learning and of a falling tau."""
    solution = vapor.solve_vapor(beliefs, vapor.uniform_flow(beliefs.mdp))
    sigma = vapor.floor_sigma(beliefs, vapor.SIGMA_FLOOR)
    primal = vapor.vapor_value(beliefs.mdp, sigma, jnp.exp(solution.log_policy))
    k_bound = kl.start_j(beliefs, kl.tau_star(beliefs))
    return solution.dual, primal, k_bound, vapor.solve_monotone(beliefs).bound


@pytest.fixture
def bounds(problems, batched):
    return [np.asarray(x) for x in batched(solve_with_bounds, problems[0])]


def expected_optimum(beliefs, key, draws=500):
    """`E V*` and its standard error, for Gaussian rewards and known transitions."""
    noise = jax.random.normal(key, (draws, *beliefs.sigma2.shape))
    rewards = beliefs.mdp.reward[None] + jnp.sqrt(beliefs.sigma2)[None] * noise
    value = lambda r: mdps.start_value(
        beliefs.mdp.rho, mdps.optimal_values(beliefs.mdp._replace(reward=r))
    )
    values = jax.vmap(value)(rewards)
    return jnp.mean(values), jnp.std(values) / jnp.sqrt(draws * 1.0)


def test_primal_equals_dual_and_both_bounds_hold(problems, batched, bounds):
    """VAPOR's gap is below 1e-6; a falling tau is never looser than K-learning's one tau."""
    dual, primal, k_bound, monotone = bounds
    assert (dual - primal > -1e-9).all()
    assert (dual - primal).max() < 1e-6
    keys = jax.random.split(jax.random.key(0), len(dual))
    optimum, error = (np.asarray(x) for x in batched(expected_optimum, problems[0], keys))
    print(f"gap {(dual - primal).max():.1e}; bounds: E V* {optimum.mean():.2f}, monotone ", end="")
    print(f"{monotone.mean():.2f}, k-learning {k_bound.mean():.2f}, VAPOR {dual.mean():.2f}")
    assert (dual > optimum - 4 * error).all()
    assert (monotone > optimum - 4 * error).all()
    assert (monotone <= k_bound + 1e-9).all()
    assert (monotone < k_bound - 1e-3).mean() > 0.5


def test_phi_is_the_maximum_over_occupancies(float64):
    occupancy = np.exp(np.linspace(-60, -1e-9, 400_001))
    for y in (-50.0, -1.0, 0.0, 2.0, 8.0):
        largest = (occupancy * (np.sqrt(-2 * np.log(occupancy)) - y)).max()
        assert float(vapor.conjugate(jnp.asarray(y))) == pytest.approx(largest, rel=1e-4)
        x = float(vapor.conjugate_root(jnp.asarray(y)))
        assert float(jax.grad(vapor.conjugate)(y)) == pytest.approx(-np.exp(-(x**2) / 2), rel=1e-9)
        curvature = float(jax.grad(jax.grad(vapor.conjugate))(y))
        assert float(vapor.conjugate_curvature(jnp.asarray(y))) == pytest.approx(curvature)


def test_the_root_does_not_cancel_for_very_negative_arguments(float64):
    assert float(vapor.conjugate_root(jnp.asarray(-1e9))) == pytest.approx(1e-9, rel=1e-12)


def newton_steps(beliefs):
    """The step in layers and the dense one, from K-learning's values at tau = 1."""
    mdp, sigma = beliefs.mdp, jnp.sqrt(beliefs.sigma2)
    reachable = vapor.reachable_states(mdp)
    v = jnp.where(reachable, kl.optimal_k_values(beliefs, jnp.asarray(1.0)).v, 0)
    y = vapor.scaled_gaps(mdp, sigma, v)
    weight = jnp.where(reachable[..., None], vapor.conjugate_curvature(y) / sigma, 0)
    objective = lambda flat: vapor.dual_value(mdp, sigma, reachable, flat.reshape(v.shape))
    gradient, hessian = jax.grad(objective)(v.ravel()), jax.hessian(objective)(v.ravel())
    ridge = jnp.asarray(1e-6)
    dense = -jnp.linalg.solve(hessian + jnp.diag(ridge + vapor.RIDGE * jnp.diag(hessian)), gradient)
    return vapor.layered_newton_step(mdp, weight, gradient.reshape(v.shape), ridge).ravel(), dense


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_newton_step_in_layers_equals_the_dense_one(problems, deterministic):
    beliefs = jax.tree.map(lambda x: x[3], problems[0])
    if deterministic:
        successor = jnp.argmax(beliefs.mdp.transition, axis=-1).astype(jnp.int32)
        beliefs = beliefs._replace(mdp=beliefs.mdp._replace(transition=successor))
    step, dense = jax.jit(newton_steps)(beliefs)
    np.testing.assert_allclose(step, dense, atol=1e-6 * float(jnp.abs(dense).max()))


def test_vbos_is_vapor_in_a_bandit(float64):
    rng = np.random.default_rng(0)
    mean, sigma = jnp.asarray(rng.normal(size=6)), jnp.asarray(rng.exponential(size=6) + 0.1)
    bandit = MDP(mean[None, None], jnp.zeros((1, 1, 6), jnp.int32), jnp.ones(1))
    beliefs = Beliefs(bandit, jnp.square(sigma)[None, None])
    solution = jax.jit(vapor.solve_vapor)(beliefs, vapor.uniform_flow(bandit))
    log_policy = vapor.vbos_log_policy(mean, sigma)
    np.testing.assert_allclose(solution.log_policy[0, 0], log_policy, atol=1e-6)
    assert float(vapor.vbos_value(mean, sigma, log_policy)) == pytest.approx(float(solution.dual))
    x = np.sqrt(-2 * np.asarray(log_policy))
    np.testing.assert_allclose(solution.tau[0, 0], sigma / x, rtol=1e-5)


def maximise(value, n):
    """The maximum of a function of a distribution over n actions."""
    softmax = lambda z: np.exp(z - z.max()) / np.exp(z - z.max()).sum()
    result = scipy.optimize.minimize(lambda z: -value(softmax(z)), np.zeros(n), tol=1e-12)
    return -result.fun


def test_the_states_of_vbos_and_vapor_lite_are_solved_exactly(float64):
    rng = np.random.default_rng(1)
    for scale in (0.1, 1.0, 10.0):
        k, sigma = scale * rng.normal(size=4), rng.exponential(size=4) + 0.1
        bonus = lambda pi, k=k, sigma=sigma: pi @ (k + sigma * np.sqrt(-2 * np.log(pi)))
        log_pi = vapor.vbos_log_policy(jnp.asarray(k), jnp.asarray(sigma))
        value = float(vapor.vbos_value(jnp.asarray(k), jnp.asarray(sigma), log_pi))
        assert value == pytest.approx(maximise(bonus, 4), abs=1e-6)
        weighted = lambda pi, k=k, sigma=sigma: pi @ (k - sigma * np.log(pi))
        log_pi = vapor.weighted_log_policy(jnp.asarray(k), jnp.asarray(sigma))
        value = float(vapor.weighted_value(jnp.asarray(k), jnp.asarray(sigma), log_pi))
        assert value == pytest.approx(maximise(weighted, 4), abs=1e-6)


def test_equal_weights_give_the_boltzmann_policy(float64):
    k = jnp.asarray([0.3, -1.0, 2.0])
    np.testing.assert_allclose(
        vapor.weighted_log_policy(k, jnp.full(3, 0.7)), jax.nn.log_softmax(k / 0.7), atol=1e-9
    )


def test_a_falling_tau_equals_an_explicit_loop(problems):
    """The recursion over all non-increasing sequences of tau, and the policy's occupancy."""
    mdp, sigma2 = jax.tree.map(lambda x: x[5], problems[0])
    solution = vapor.solve_monotone(Beliefs(mdp, sigma2))
    shares = np.sort(np.append(np.asarray(vapor.TAU_GRID), 1))
    taus = float(kl.tau_star(Beliefs(mdp, sigma2))) * shares
    horizon, n_states, _ = mdp.reward.shape
    r, p, s2 = (np.asarray(x) for x in (mdp.reward, mdp.transition, sigma2))
    j = np.zeros((len(taus), n_states))
    for layer in reversed(range(horizon)):
        smooth = np.zeros_like(j)
        for g, tau in enumerate(taus):
            k = r[layer] + s2[layer] / (2 * tau) + p[layer] @ j[g]
            smooth[g] = tau * scipy.special.logsumexp(k / tau, axis=-1)
        j = np.minimum.accumulate(smooth)
    assert float(solution.bound) == pytest.approx(float(np.asarray(mdp.rho) @ j[-1]), rel=1e-9)
    np.testing.assert_allclose(solution.policy.sum(-1), 1, atol=1e-9)
    value = float(mdps.start_value(mdp.rho, mdps.policy_values(mdp, solution.policy)))
    assert float(solution.optimism) == pytest.approx(float(solution.bound) - value, rel=1e-9)


def test_without_uncertainty_every_agent_takes_the_optimal_actions(problems):
    mdp = jax.tree.map(lambda x: x[0], problems[0]).mdp
    beliefs = Beliefs(mdp, jnp.zeros_like(mdp.reward))
    best = np.asarray(mdps.optimal_values(mdp).v[0]) @ np.asarray(mdp.rho)
    solution = jax.jit(vapor.solve_vapor)(beliefs, vapor.uniform_flow(mdp))
    for log_policy in (
        solution.log_policy,
        vapor.solve_vapor_lite(beliefs, 1.0, 0.3),
        vapor.solve_vbos(beliefs),
    ):
        value = mdps.start_value(mdp.rho, mdps.policy_values(mdp, jnp.exp(log_policy)))
        assert float(value) == pytest.approx(best, abs=1e-4 * abs(best))


def solve_deep_sea(name, depth, episodes, seeds):
    """Episodes by bsuite's rule, per seed."""
    agent = make_tabular_agent(name, Learners(sigma_scale=1.0), 1.0)
    true_mdps, priors = deep_sea_problems(depth, seeds, 0.1, 0.0, True)
    learners = agents.init_many(agent, priors)
    stats = agents.run_many(
        agent, episodes, priors, true_mdps, jnp.zeros(()), agents.keys_of_seeds(seeds), learners
    )[1]
    return [solved_bsuite(row) or np.inf for row in np.asarray(stats.total_reward) > 0.5]


@pytest.mark.parametrize(
    ("name", "bar"),
    [("vapor-lite", 23), ("monotone", 28), pytest.param("vapor", 22, marks=pytest.mark.slow)],
)
def test_a_tau_for_each_action_needs_fewer_episodes(name, bar):
    """The median at depth 10 over ten held-out seeds; K-learning needs 27.5."""
    solved = solve_deep_sea(name, 10, 60, range(1000, 1010))
    print(f"{name}: {np.median(solved)}")
    assert np.median(solved) <= bar
    assert np.isfinite(solved).all()


def test_values_of_an_optimal_flow_are_optimal(problems):
    """The backward sweep from the solution's occupancy returns the solution's values."""
    beliefs = jax.tree.map(lambda x: x[7], problems[0])
    solution = jax.jit(vapor.solve_vapor)(beliefs, vapor.uniform_flow(beliefs.mdp))
    sigma = vapor.floor_sigma(beliefs, vapor.SIGMA_FLOOR)
    log_mass = jax.nn.logsumexp(solution.log_occupancy, axis=-1)
    v = vapor.values_of_flow(beliefs.mdp, sigma, log_mass)
    np.testing.assert_allclose(v, solution.v, atol=1e-6 * float(jnp.abs(v).max()))


def test_the_agent_starts_from_the_occupancy_of_the_last_episode():
    """Two episodes of VAPOR on DeepSea of depth 4, with a state in single precision."""
    agent = make_tabular_agent("vapor", Learners(sigma_scale=1.0), 1.0)
    true_mdps, priors = deep_sea_problems(4, range(2), 0.1, 0.0, True)
    learners = agents.init_many(agent, priors)
    arguments = (priors, true_mdps, jnp.zeros(()), agents.keys_of_seeds(range(2)))
    after, stats = agents.run_many(agent, 2, *arguments, learners)
    assert after.agent_state.dtype == jnp.float32
    assert np.isfinite(after.agent_state).all()
    assert (np.abs(after.agent_state - learners.agent_state) > 1e-6).any()
    assert (np.asarray(stats.optimism) > 0).all()
