"""The saddle-point problem and the regret bound on 200 random MDPs in double precision."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac.algorithm import game
from ersac.theory import agents, saddle
from ersac.theory import klearning as kl
from ersac.theory import mdp as mdps
from ersac.theory.experiments import growth_exponent
from ersac.theory.klearning import Beliefs
from ersac.theory.mdp import MDP, MdpPosterior


def value_scale(beliefs, tau):
    """The largest |K*| of every problem, which absolute tolerances are relative to."""
    return np.abs(np.asarray(jax.vmap(kl.optimal_k_values)(beliefs, tau).q)).max((1, 2, 3))


def test_lemma_1_dist_is_the_suboptimality(problems, batched):
    """`Dist(pi, tau) = E (J* - J^pi)` [l-kl], to a relative 1e-11."""
    beliefs, policy, tau = problems
    gap = batched(
        lambda b, pi, tau: kl.start_j(b, tau) - saddle.game_value(b, pi, tau), beliefs, policy, tau
    )
    error = np.abs(np.asarray(batched(saddle.dist, beliefs, policy, tau) - gap))
    relative_error = error / np.maximum(1, value_scale(beliefs, tau))
    print(f"lemma 1: error at most {error.max():.1e}, relative {relative_error.max():.1e}")
    assert (relative_error < 1e-11).all()


def test_lemma_1_holds_for_deterministic_policies(problems, batched):
    beliefs, policy, tau = problems
    greedy = batched(mdps.greedy_policy, policy)
    gap = batched(
        lambda b, pi, tau: kl.start_j(b, tau) - saddle.game_value(b, pi, tau), beliefs, greedy, tau
    )
    np.testing.assert_allclose(
        batched(saddle.dist, beliefs, greedy, tau), gap, rtol=1e-11, atol=1e-10
    )


def test_optimism_is_bonus_plus_entropy(problems, batched):
    """`sum E sigma2 / (2 tau) + tau sum E H` [proof of l-opt-regret], and its minimum over tau."""
    beliefs, policy, tau = problems
    total_sigma2, total_entropy = batched(saddle.optimism_terms, beliefs, policy)
    np.testing.assert_allclose(
        batched(saddle.optimism, beliefs, policy, tau),
        total_sigma2 / (2 * tau) + tau * total_entropy,
        rtol=1e-10,
    )
    tau_min = batched(saddle.best_response_tau, beliefs, policy)
    smallest = batched(saddle.min_optimism, beliefs, policy)
    np.testing.assert_allclose(
        batched(saddle.optimism, beliefs, policy, tau_min), smallest, rtol=1e-10
    )
    for factor in (0.5, 0.99, 1.01, 2):
        assert (batched(saddle.optimism, beliefs, policy, factor * tau_min) > smallest).all()


def expected_optimum(beliefs: Beliefs, key, draws: int = 500):
    """`E_phi E_rho V*` and its standard error, for Gaussian rewards with variance sigma2."""
    phi = MdpPosterior(
        beliefs.mdp.reward,
        beliefs.sigma2,
        jnp.asarray(1.0),
        beliefs.mdp.transition,
        beliefs.mdp.rho,
    )
    samples = jax.vmap(lambda key: mdps.sample_mdp(key, phi))(jax.random.split(key, draws))
    values = jax.vmap(lambda mdp: mdps.start_value(mdp.rho, mdps.optimal_values(mdp)))(samples)
    return jnp.mean(values), jnp.std(values) / jnp.sqrt(draws * 1.0)


def bayes_regret(beliefs, policy):
    """The Bayesian regret of a policy in one episode, and its standard error."""
    keys = jax.random.split(jax.random.key(0), len(policy))
    mean, error = jax.jit(jax.vmap(expected_optimum))(beliefs, keys)
    return np.asarray(mean - jax.jit(jax.vmap(saddle.mean_value))(beliefs, policy)), np.asarray(
        error
    )


def test_lemma_2_regret_is_at_most_dist_plus_optimism(problems, batched):
    """For any policy and tau [l-decomp]; the sum is exactly `E J* - E V^pi`."""
    beliefs, policy, tau = problems
    parts = batched(saddle.decompose, beliefs, policy, tau)
    total = batched(
        lambda b, pi, tau: kl.start_j(b, tau) - saddle.mean_value(b, pi), beliefs, policy, tau
    )
    bound = np.asarray(parts.dist + parts.optimism)
    np.testing.assert_allclose(bound, total, rtol=1e-10)
    regret, error = bayes_regret(beliefs, policy)
    assert (regret - 4 * error < bound).all()
    ratio = bound / regret
    print(
        f"lemma 2: bound / regret is {np.median(ratio):.2f} (median), {ratio.min():.2f} (minimum)"
    )


def test_theorem_1_bounds_regret_at_the_saddle_point(problems, batched):
    """`regret <= min_pi Dist(pi, tau*) + min_tau Optimism(pi*, tau)` [t-main, c-basic]."""
    beliefs = problems[0]
    solution = batched(kl.solve, beliefs)
    policy = jnp.exp(solution.log_policy)
    bound = np.asarray(batched(saddle.min_optimism, beliefs, policy))
    assert float(jnp.abs(batched(saddle.dist, beliefs, policy, solution.tau)).max()) < 1e-11
    np.testing.assert_allclose(
        batched(saddle.optimism, beliefs, policy, solution.tau), bound, rtol=1e-9
    )  # tau* is the best response to pi*
    regret, error = bayes_regret(beliefs, policy)
    assert (regret - 4 * error < bound).all()
    ratio = bound / regret
    print(
        f"theorem 1: bound / regret is {np.median(ratio):.2f} (median), {ratio.min():.2f} (minimum)"
    )


def gradient_saddle(beliefs):
    """The saddle points of a batch of games over all policies, by gradients."""
    return jax.jit(
        jax.vmap(
            lambda b: saddle.solve_by_gradients(b, saddle.tabular_softmax, jnp.zeros_like(b.sigma2))
        )
    )(beliefs)


@pytest.mark.slow
def test_both_solvers_close_the_duality_gap(problems, batched):
    """Strong duality [ass-strong-duality] to 1e-6, by K-learning and by gradients."""
    beliefs = problems[0]
    solution = batched(kl.solve, beliefs)
    size = np.maximum(1, value_scale(beliefs, solution.tau))
    exact = batched(saddle.duality_gap, beliefs, jnp.exp(solution.log_policy), solution.tau)
    assert (np.abs(exact) < 1e-12 * size).all()
    params = gradient_saddle(beliefs)
    policy, tau = jnp.exp(saddle.tabular_softmax(params.theta)), jnp.exp(params.log_tau)
    gap = np.asarray(batched(saddle.duality_gap, beliefs, policy, tau))
    print(
        f"duality gap at most {np.abs(exact).max():.1e} by K-learning, {gap.max():.1e} by gradients"
    )
    assert ((gap > -1e-12 * size) & (gap < 1e-6)).all()
    np.testing.assert_allclose(
        batched(saddle.game_value, beliefs, policy, tau),
        batched(kl.start_j, beliefs, solution.tau),
        atol=1e-6,
    )


def test_the_duality_gap_is_positive_away_from_the_saddle_point(problems, batched):
    beliefs, policy, tau = problems
    assert (batched(saddle.duality_gap, beliefs, policy, tau) > 1e-3).all()


def assert_no_gradient_errors(problems, errors):
    """Assert that errors [200] in theta and in tau are zero to a relative 1e-10."""
    beliefs, _, tau = problems
    in_theta, in_tau = (np.asarray(error) for error in errors)
    size = np.maximum(1, value_scale(beliefs, tau))
    print(f"gradients: error at most {in_theta.max():.1e} in theta, {in_tau.max():.1e} in tau")
    assert (in_theta < 1e-10 * size).all()
    assert (in_tau < 1e-10 * size / np.asarray(tau)).all()


def test_gradients_of_the_game_are_those_of_dist_and_optimism(problems, batched):
    """`(-grad_theta J, grad_tau J) = (grad_theta Dist, grad_tau Optimism)`, by autodiff."""
    beliefs, policy, tau = problems

    def errors(b, logits, tau):
        softmax = jax.nn.softmax
        game_theta = jax.grad(lambda logits: saddle.game_value(b, softmax(logits), tau))(logits)
        game_tau = jax.grad(lambda tau: saddle.game_value(b, softmax(logits), tau))(tau)
        dist_theta = jax.grad(lambda logits: saddle.dist(b, softmax(logits), tau))(logits)
        total_sigma2, total_entropy = saddle.optimism_terms(b, softmax(logits))
        optimism_tau = total_entropy - total_sigma2 / (2 * tau**2)
        return jnp.max(jnp.abs(game_theta + dist_theta)), jnp.abs(game_tau - optimism_tau)

    assert_no_gradient_errors(problems, batched(errors, beliefs, jnp.log(policy), tau))


def test_the_payoff_has_the_gradients_of_the_game(problems, batched):
    """In theta and in tau, with occupancy and advantages held constant [e-pol-grad]."""
    beliefs, policy, tau = problems

    def errors(b, logits, tau):
        of_payoff = jax.grad(
            lambda logits, tau: saddle.surrogate(b, jax.nn.log_softmax(logits), tau), argnums=(0, 1)
        )(logits, tau)
        of_game = jax.grad(
            lambda logits, tau: saddle.game_value(b, jax.nn.softmax(logits), tau), argnums=(0, 1)
        )(logits, tau)
        return jax.tree.map(lambda x, y: jnp.max(jnp.abs(x - y)), of_payoff, of_game)

    assert_no_gradient_errors(problems, batched(errors, beliefs, jnp.log(policy), tau))


def test_the_printed_sign_of_the_entropy_is_wrong(problems, batched):
    """Ascending `- tau H`, as Algorithm 1 [a-kac] prints it, is not ascending the game."""
    beliefs, policy, tau = problems

    def cosine(b, logits, tau):
        values = kl.k_values(b, jax.nn.softmax(logits), tau)
        occupancy = mdps.occupancy(b.mdp, jax.nn.softmax(logits))

        def printed(logits):
            log_pi = jax.nn.log_softmax(logits)
            return jnp.sum(
                occupancy
                * (
                    log_pi * (values.q - values.v[..., None])
                    - tau * game.entropy(log_pi)[..., None]
                )
            )

        wrong, right = (
            jax.grad(printed)(logits),
            jax.grad(lambda logits: saddle.game_value(b, jax.nn.softmax(logits), tau))(logits),
        )
        return jnp.sum(wrong * right) / jnp.sqrt(jnp.sum(wrong**2) * jnp.sum(right**2))

    cosines = np.asarray(batched(cosine, beliefs, jnp.log(policy), tau))
    assert np.median(cosines) < 0.9
    assert cosines.min() < -0.5


def restricted_saddle(beliefs, features):
    """The policies and taus found by gradients in the softmax class of features [L, S, A, D]."""
    restricted = saddle.linear_softmax(features)
    solve = lambda b: saddle.solve_by_gradients(b, restricted, jnp.zeros(features.shape[-1]))
    params = jax.jit(jax.vmap(solve))(beliefs)
    return jax.vmap(lambda theta: jnp.exp(restricted(theta)))(params.theta), jnp.exp(params.log_tau)


@pytest.mark.slow
def test_theorem_1_holds_in_a_restricted_class(problems, batched):
    """`regret <= min Dist + min Optimism` [t-main], with uniform policies in half of the states.

    This class is convex, so a saddle point exists. Its value is above that of the uniform policy
    and below that of K-learning.
    """
    beliefs = problems[0]
    shape = beliefs.sigma2.shape[1:]
    features = jnp.eye(int(np.prod(shape))).reshape(*shape, -1)[
        ..., :18
    ]  # six of the twelve states
    policy, tau = restricted_saddle(beliefs, features)
    worst_case, dist = (
        batched(saddle.worst_case_value, beliefs, policy),
        np.asarray(batched(saddle.dist, beliefs, policy, tau)),
    )
    assert (
        worst_case
        > batched(lambda b: saddle.worst_case_value(b, mdps.uniform_policy(b.sigma2)), beliefs)
    ).all()
    assert (worst_case < batched(lambda b: kl.start_j(b, kl.tau_star(b)), beliefs)).all()
    # The value of the game over the class is E J* less Dist [proof of t-main],
    np.testing.assert_allclose(worst_case, batched(kl.start_j, beliefs, tau) - dist, rtol=1e-6)
    # and a random policy of the class has a larger Dist.
    other = saddle.linear_softmax(features)(jnp.asarray(np.random.default_rng(1).normal(size=18)))
    assert (
        np.asarray(batched(lambda b, tau: saddle.dist(b, jnp.exp(other), tau), beliefs, tau)) > dist
    ).all()
    regret, error = bayes_regret(beliefs, policy)
    assert (
        regret - 4 * error < dist + np.asarray(batched(saddle.min_optimism, beliefs, policy)) + 1e-6
    ).all()


@pytest.mark.slow
def test_function_approximation_costs_at_most_epsilon_a_step(problems, batched):
    """`regret <= Optimism + epsilon L`, with epsilon the largest `tau KL` over states."""
    beliefs = problems[0]
    features = jnp.asarray(np.random.default_rng(0).normal(size=(*beliefs.sigma2.shape[1:], 6)))
    policy, tau = restricted_saddle(beliefs, features)
    epsilon = np.asarray(batched(worst_divergence, beliefs, policy, tau))
    assert (np.asarray(batched(saddle.dist, beliefs, policy, tau)) <= 3 * epsilon).all()
    regret, error = bayes_regret(beliefs, policy)
    assert (
        regret - 4 * error
        < np.asarray(batched(saddle.optimism, beliefs, policy, tau)) + 3 * epsilon
    ).all()


def worst_divergence(beliefs, policy, tau):
    """`max_{s,l} tau KL(pi || pi*_tau)` of a policy, an upper bound on the epsilon of its class."""
    log_star = kl.solve_at(beliefs, tau).log_policy
    return tau * jnp.max(jnp.sum(policy * (jnp.log(policy) - log_star), axis=-1))


def counting_prior(mdp: MDP, sigma2: float) -> MdpPosterior:
    """A prior with known transitions, whose uncertainty decays as sigma2 / (visits + 1)."""
    shape = mdp.reward.shape
    return MdpPosterior(
        jnp.zeros(shape), jnp.full(shape, sigma2), jnp.asarray(sigma2), mdp.transition, mdp.rho
    )


def random_policies() -> agents.TabularAgent:
    """An agent with a random policy in every episode, and its minimal Optimism over tau."""

    def plan(key, prior, data, state):
        logits = 2 * jax.random.normal(key, prior.reward_mean.shape, prior.reward_mean.dtype)
        policy = jax.nn.softmax(logits)
        beliefs = agents.make_beliefs(prior, data, agents.plug_in_sigma2(1.0))
        zero = jnp.zeros((), logits.dtype)
        return agents.EpisodePlan(policy, zero, zero, saddle.min_optimism(beliefs, policy)), state

    return agents.TabularAgent(init=lambda prior: (), plan=plan)


def cumulative_optimism(problems, agent, episodes):
    """Cumulative Optimism [200, N] on random MDPs of two layers, three states and two actions."""
    transition = problems[0].mdp.transition[:, :2, :3, :2, :3]
    reward = problems[0].mdp.reward[:, :2, :3, :2]
    mdp = MDP(reward, transition / transition.sum(-1, keepdims=True), jnp.full((200, 3), 1 / 3))
    priors = jax.vmap(lambda mdp: counting_prior(mdp, 1.0))(mdp)
    learners = agents.init_many(agent, priors)
    keys = jax.random.split(jax.random.key(5), 200)
    stats = agents.run_many(agent, episodes, priors, mdp, jnp.asarray(1.0), keys, learners)[1]
    return np.cumsum(np.asarray(stats.optimism), axis=1)


AGENTS = [
    pytest.param(random_policies(), id="any-policies", marks=pytest.mark.slow),
    pytest.param(
        agents.k_learning(agents.plug_in_sigma2(1.0)), id="k-learning", marks=pytest.mark.slow
    ),
]


@pytest.mark.parametrize("agent", AGENTS)
def test_lemma_3_cumulative_optimism_is_sublinear(problems, agent):
    """Over 10,000 episodes it is below the bound, with an exponent <= 0.6 [l-opt-regret]."""
    episodes = 10_000
    total = cumulative_optimism(problems, agent, episodes)
    at = np.array([10, 100, 1000, 10_000])
    bound = np.asarray(
        saddle.regret_bound(
            n_states=6, n_actions=2, horizon=2, sigma2=1.0, episodes=jnp.asarray(at * 1.0)
        )
    )
    assert (total.mean(0)[at - 1] < bound).all()
    exponents = np.array([growth_exponent(curve) for curve in total])
    slack = bound[-1] / total.mean(0)[-1]
    print(
        f"lemma 3: exponent {growth_exponent(total.mean(0)):.3f}, at most {exponents.max():.3f}; "
        f"bound / sum is {slack:.2f}"
    )
    assert growth_exponent(total.mean(0)) <= 0.6
    assert exponents.max() <= 0.6


def mirror_descent(beliefs, policy, tau, step_size, steps):
    """`Dist` before each of the steps [n], at a fixed tau."""

    def step(log_policy, _):
        distance = saddle.dist(beliefs, jnp.exp(log_policy), tau)
        return saddle.mirror_step(beliefs, log_policy, tau, step_size), distance

    return jax.lax.scan(step, jnp.log(policy), None, length=steps)[1]


@pytest.mark.parametrize("step_size", [0.1, 0.3])
def test_mirror_descent_converges_linearly(problems, batched, step_size):
    """`Dist` after n steps at tau* falls like `(1 - a)^(2 n)`, once the transient is over."""
    beliefs, policy, _ = problems
    tau, steps = batched(kl.tau_star, beliefs), int(8 / step_size)
    run = lambda b, pi, tau: mirror_descent(b, pi, tau, step_size, steps)
    dist = np.asarray(batched(run, beliefs, policy, tau)) / value_scale(beliefs, tau)[:, None]
    assert (np.diff(dist, axis=1) < 1e-12).all()  # every step improves the policy
    slopes = []
    for row in dist:
        late = np.arange(int(2 / step_size), steps)
        late = late[row[late] > 1e-12]  # above rounding
        if len(late) > 1 / step_size:
            slopes.append(np.polyfit(late, np.log(row[late]), 1)[0])
    print(f"slopes / log(1 - a): {np.quantile(slopes, [0, 0.5, 1]) / np.log(1 - step_size)}")
    assert len(slopes) > 150
    assert np.median(slopes) == pytest.approx(2 * np.log(1 - step_size), rel=0.05)
    assert max(slopes) < np.log(1 - step_size)
