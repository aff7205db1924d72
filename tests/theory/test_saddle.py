"""The game, its two solvers, and the regret that its value bounds, on 200 random MDPs in double precision."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac.algorithm import game
from ersac.theory import agents, saddle
from ersac.theory import klearning as kl
from ersac.theory import mdp as mdps
from ersac.theory.klearning import Beliefs
from ersac.theory.mdp import MDP, MdpPosterior


def scale(beliefs, tau):
    """The size of the values that an absolute tolerance is relative to."""
    return np.abs(np.asarray(jax.vmap(kl.optimal_k_values)(beliefs, tau).q)).max((1, 2, 3))


def test_lemma_1(problems, each):
    """`Dist(pi, tau) = E (J* - J^pi)` [l-kl], to 1e-11 of the values' size."""
    beliefs, policy, tau = problems
    gap = each(
        lambda b, pi, tau: kl.start_j(b, tau) - saddle.game_value(b, pi, tau), beliefs, policy, tau
    )
    error = np.abs(np.asarray(each(saddle.dist, beliefs, policy, tau) - gap))
    print(
        f"lemma 1: off by at most {error.max():.1e}, {(error / np.maximum(1, scale(beliefs, tau))).max():.1e} of the values' size"
    )
    assert (error < 1e-11 * np.maximum(1, scale(beliefs, tau))).all()


def test_dist_of_a_policy_that_never_takes_an_action(problems, each):
    beliefs, policy, tau = problems
    sharp = each(mdps.greedy_policy, policy)
    gap = each(
        lambda b, pi, tau: kl.start_j(b, tau) - saddle.game_value(b, pi, tau), beliefs, sharp, tau
    )
    np.testing.assert_allclose(each(saddle.dist, beliefs, sharp, tau), gap, rtol=1e-11, atol=1e-10)


def test_optimism_is_bonus_plus_entropy(problems, each):
    """`sum E sigma2 / (2 tau) + tau sum E H` [proof of l-opt-regret], and its least value over tau in closed form."""
    beliefs, policy, tau = problems
    total_sigma2, total_entropy = each(saddle.optimism_terms, beliefs, policy)
    np.testing.assert_allclose(
        each(saddle.optimism, beliefs, policy, tau),
        total_sigma2 / (2 * tau) + tau * total_entropy,
        rtol=1e-10,
    )
    best = each(saddle.best_response_tau, beliefs, policy)
    least = each(saddle.min_optimism, beliefs, policy)
    np.testing.assert_allclose(each(saddle.optimism, beliefs, policy, best), least, rtol=1e-10)
    for factor in (0.5, 0.99, 1.01, 2):
        assert (each(saddle.optimism, beliefs, policy, factor * best) > least).all()


def expected_optimum(beliefs: Beliefs, key, draws: int = 500):
    """`E_phi E_rho V*` and its standard error, for Gaussian rewards with variance sigma2."""
    phi = MdpPosterior(
        beliefs.mdp.reward,
        beliefs.sigma2,
        jnp.asarray(1.0),
        beliefs.mdp.transition,
        beliefs.mdp.rho,
    )
    env_params = jax.vmap(lambda key: mdps.sample_mdp(key, phi))(jax.random.split(key, draws))
    values = jax.vmap(lambda mdp: mdps.start_value(mdp.rho, mdps.optimal_values(mdp)))(env_params)
    return jnp.mean(values), jnp.std(values) / jnp.sqrt(draws * 1.0)


def bayes_regret(beliefs, policy):
    keys = jax.random.split(jax.random.key(0), len(policy))
    mean, error = jax.jit(jax.vmap(expected_optimum))(beliefs, keys)
    return np.asarray(mean - jax.jit(jax.vmap(saddle.mean_value))(beliefs, policy)), np.asarray(
        error
    )


def test_lemma_2(problems, each):
    """`regret <= Dist + Optimism` for any policy and tau [l-decomp]; the right side is `E J* - E V^pi`, exactly."""
    beliefs, policy, tau = problems
    parts = each(saddle.decompose, beliefs, policy, tau)
    whole = each(
        lambda b, pi, tau: kl.start_j(b, tau) - saddle.mean_value(b, pi), beliefs, policy, tau
    )
    bound = np.asarray(parts.dist + parts.optimism)
    np.testing.assert_allclose(bound, whole, rtol=1e-10)
    regret, error = bayes_regret(beliefs, policy)
    assert (regret - 4 * error < bound).all()
    print(
        f"lemma 2: the bound is {np.median(bound / regret):.2f} times the regret (median), {(bound / regret).min():.2f} at least"
    )


def test_theorem_1(problems, each):
    """At the saddle point `regret <= min_pi Dist(pi, tau*) + min_tau Optimism(pi*, tau)`, whose first part is zero [t-main, c-basic]."""
    beliefs = problems[0]
    solution = each(kl.solve, beliefs)
    policy = jnp.exp(solution.log_policy)
    bound = np.asarray(each(saddle.min_optimism, beliefs, policy))
    assert float(jnp.abs(each(saddle.dist, beliefs, policy, solution.tau)).max()) < 1e-11
    np.testing.assert_allclose(
        each(saddle.optimism, beliefs, policy, solution.tau), bound, rtol=1e-9
    )  # tau* answers pi* best
    regret, error = bayes_regret(beliefs, policy)
    assert (regret - 4 * error < bound).all()
    print(
        f"theorem 1: the bound is {np.median(bound / regret):.2f} times the regret (median), {(bound / regret).min():.2f} at least"
    )


def gradient_saddle(beliefs):
    return jax.jit(
        jax.vmap(
            lambda b: saddle.solve_by_gradients(b, saddle.tabular_softmax, jnp.zeros_like(b.sigma2))
        )
    )(beliefs)


@pytest.mark.slow
def test_both_solvers_close_the_duality_gap(problems, each):
    """Strong duality [ass-strong-duality] to 1e-6: for exact K-learning, for gradients alone, and between the two."""
    beliefs = problems[0]
    solution = each(kl.solve, beliefs)
    size = np.maximum(1, scale(beliefs, solution.tau))
    exact = each(saddle.duality_gap, beliefs, jnp.exp(solution.log_policy), solution.tau)
    assert (np.abs(exact) < 1e-12 * size).all()
    play = gradient_saddle(beliefs)
    policy, tau = jnp.exp(saddle.tabular_softmax(play.theta)), jnp.exp(play.log_tau)
    gap = np.asarray(each(saddle.duality_gap, beliefs, policy, tau))
    print(
        f"largest duality gap: {np.abs(exact).max():.1e} by K-learning, {gap.max():.1e} by gradients"
    )
    assert ((gap > -1e-12 * size) & (gap < 1e-6)).all()
    np.testing.assert_allclose(
        each(saddle.game_value, beliefs, policy, tau),
        each(kl.start_j, beliefs, solution.tau),
        atol=1e-6,
    )


def test_the_gap_is_positive_away_from_the_saddle_point(problems, each):
    beliefs, policy, tau = problems
    assert (each(saddle.duality_gap, beliefs, policy, tau) > 1e-3).all()


def test_the_corollary_on_gradients(problems, each):
    """`(-grad_theta J, grad_tau J) = (grad_theta Dist, grad_tau Optimism)`, by autodiff, to 1e-10; Optimism by its two terms."""
    beliefs, policy, tau = problems

    def errors(b, logits, tau):
        softmax = jax.nn.softmax
        game_theta = jax.grad(lambda logits: saddle.game_value(b, softmax(logits), tau))(logits)
        game_tau = jax.grad(lambda tau: saddle.game_value(b, softmax(logits), tau))(tau)
        dist_theta = jax.grad(lambda logits: saddle.dist(b, softmax(logits), tau))(logits)
        total_sigma2, total_entropy = saddle.optimism_terms(b, softmax(logits))
        optimism_tau = total_entropy - total_sigma2 / (2 * tau**2)
        return jnp.max(jnp.abs(game_theta + dist_theta)), jnp.abs(game_tau - optimism_tau)

    in_theta, in_tau = each(errors, beliefs, jnp.log(policy), tau)
    size = np.maximum(1, scale(beliefs, tau))
    print(f"gradients: off by at most {in_theta.max():.1e} in theta, {in_tau.max():.1e} in tau")
    assert (np.asarray(in_theta) < 1e-10 * size).all()
    assert (np.asarray(in_tau) < 1e-10 * size / np.asarray(tau)).all()


def test_one_scalar_has_both_gradients(problems, each):
    """`payoff`, averaged over visits that are held still, has the game's gradients in theta and in tau [e-pol-grad]."""
    beliefs, policy, tau = problems

    def errors(b, logits, tau):
        of_scalar = jax.grad(
            lambda logits, tau: saddle.surrogate(b, jax.nn.log_softmax(logits), tau), argnums=(0, 1)
        )(logits, tau)
        of_game = jax.grad(
            lambda logits, tau: saddle.game_value(b, jax.nn.softmax(logits), tau), argnums=(0, 1)
        )(logits, tau)
        return jax.tree.map(lambda x, y: jnp.max(jnp.abs(x - y)), of_scalar, of_game)

    in_theta, in_tau = each(errors, beliefs, jnp.log(policy), tau)
    size = np.maximum(1, scale(beliefs, tau))
    print(f"gradients: off by at most {in_theta.max():.1e} in theta, {in_tau.max():.1e} in tau")
    assert (np.asarray(in_theta) < 1e-10 * size).all()
    assert (np.asarray(in_tau) < 1e-10 * size / np.asarray(tau)).all()


def test_the_printed_sign_of_the_entropy_is_an_erratum(problems, each):
    """Algorithm 1 as printed ascends `- tau H`: that is another direction, often one that leads away from the game's."""
    beliefs, policy, tau = problems

    def cosine(b, logits, tau):
        values = kl.k_values(b, jax.nn.softmax(logits), tau)
        taken = mdps.occupancy(b.mdp, jax.nn.softmax(logits))

        def printed(logits):
            log_pi = jax.nn.log_softmax(logits)
            return jnp.sum(
                taken
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

    cosines = np.asarray(each(cosine, beliefs, jnp.log(policy), tau))
    assert np.median(cosines) < 0.9
    assert cosines.min() < -0.5


def restricted_saddle(beliefs, features):
    """The policies and taus that gradients find in a softmax class over features [L, S, A, D]."""
    restricted = saddle.linear_softmax(features)
    solve = lambda b: saddle.solve_by_gradients(b, restricted, jnp.zeros(features.shape[-1]))
    play = jax.jit(jax.vmap(solve))(beliefs)
    return jax.vmap(lambda theta: jnp.exp(restricted(theta)))(play.theta), jnp.exp(play.log_tau)


@pytest.mark.slow
def test_theorem_1_in_a_restricted_class(problems, each):
    """Where only some states can be steered Pi is convex, so there is a saddle point: `regret <= min Dist + min Optimism` [t-main].

    Such a class secures more than blind choice and less than K-learning.
    """
    beliefs = problems[0]
    shape = beliefs.sigma2.shape[1:]
    steered = jnp.eye(int(np.prod(shape))).reshape(*shape, -1)[..., :18]  # six of the twelve states
    policy, tau = restricted_saddle(beliefs, steered)
    secured, dist = (
        each(saddle.worst_case_value, beliefs, policy),
        np.asarray(each(saddle.dist, beliefs, policy, tau)),
    )
    assert (
        secured > each(lambda b: saddle.worst_case_value(b, mdps.uniform_policy(b.sigma2)), beliefs)
    ).all()
    assert (secured < each(lambda b: kl.start_j(b, kl.tau_star(b)), beliefs)).all()
    # The value of the class's game is what the best policy of all has, less the distance to it [proof of t-main] ...
    np.testing.assert_allclose(secured, each(kl.start_j, beliefs, tau) - dist, rtol=1e-6)
    # ... and no other policy of the class is closer.
    elsewhere = saddle.linear_softmax(steered)(
        jnp.asarray(np.random.default_rng(1).normal(size=18))
    )
    assert (
        np.asarray(each(lambda b, tau: saddle.dist(b, jnp.exp(elsewhere), tau), beliefs, tau))
        > dist
    ).all()
    regret, error = bayes_regret(beliefs, policy)
    assert (
        regret - 4 * error < dist + np.asarray(each(saddle.min_optimism, beliefs, policy)) + 1e-6
    ).all()


@pytest.mark.slow
def test_function_approximation_costs_at_most_epsilon_a_step(problems, each):
    """`regret <= Optimism + epsilon L`, epsilon the worst `tau KL` to the Boltzmann policy over states, for a class of six features."""
    beliefs = problems[0]
    features = jnp.asarray(np.random.default_rng(0).normal(size=(*beliefs.sigma2.shape[1:], 6)))
    policy, tau = restricted_saddle(beliefs, features)
    epsilon = np.asarray(each(worst_divergence, beliefs, policy, tau))
    assert (np.asarray(each(saddle.dist, beliefs, policy, tau)) <= 3 * epsilon).all()
    regret, error = bayes_regret(beliefs, policy)
    assert (
        regret - 4 * error < np.asarray(each(saddle.optimism, beliefs, policy, tau)) + 3 * epsilon
    ).all()


def worst_divergence(beliefs, policy, tau):
    """epsilon: `max_{s,l} tau KL(pi || pi*_tau)` of the policy found, an upper bound on the class's own."""
    log_star = kl.solve_at(beliefs, tau).log_policy
    return tau * jnp.max(jnp.sum(policy * (jnp.log(policy) - log_star), axis=-1))


def counting_prior(mdp: MDP, sigma2: float) -> MdpPosterior:
    """Known transitions and uncertainty that decays as sigma2 / (visits + 1): noise as wide as the prior."""
    shape = mdp.reward.shape
    return MdpPosterior(
        jnp.zeros(shape), jnp.full(shape, sigma2), jnp.asarray(sigma2), mdp.transition, mdp.rho
    )


def wanderer() -> agents.TabularAgent:
    """A new random policy in every episode; what it records as optimism is the least over tau."""

    def choose(key, prior, data, state):
        logits = 2 * jax.random.normal(key, prior.reward_mean.shape, prior.reward_mean.dtype)
        policy = jax.nn.softmax(logits)
        beliefs = agents.make_beliefs(prior, data, agents.plug_in_sigma2(1.0))
        nothing = jnp.zeros((), logits.dtype)
        return agents.EpisodePlan(
            policy, nothing, nothing, saddle.min_optimism(beliefs, policy)
        ), state

    return agents.TabularAgent(lambda prior: (), choose)


def cumulative_optimism(problems, agent, episodes):
    """Sums [200, N] in a corner of every random MDP: two layers of three states with two actions."""
    transition = problems[0].mdp.transition[:, :2, :3, :2, :3]
    reward = problems[0].mdp.reward[:, :2, :3, :2]
    mdp = MDP(reward, transition / transition.sum(-1, keepdims=True), jnp.full((200, 3), 1 / 3))
    priors = jax.vmap(lambda mdp: counting_prior(mdp, 1.0))(mdp)
    learning = jax.vmap(lambda prior: agents.init_tabular(agent, prior))(priors)
    keys = jax.random.split(jax.random.key(5), 200)
    facts = agents.run_many(agent, episodes, priors, mdp, jnp.asarray(1.0), keys, learning)[1]
    return np.cumsum(np.asarray(facts.optimism), axis=1)


def exponent(curve):
    """Slope of log(sum) over log(episodes) in the last decade."""
    episodes = np.arange(1, len(curve) + 1)
    late = episodes >= len(curve) // 10
    return np.polyfit(np.log(episodes[late]), np.log(curve[late]), 1)[0]


PLAYERS = [
    pytest.param(wanderer(), id="any-policies", marks=pytest.mark.slow),
    pytest.param(
        agents.k_learning(agents.plug_in_sigma2(1.0)), id="k-learning", marks=pytest.mark.slow
    ),
]


@pytest.mark.parametrize("agent", PLAYERS)
def test_lemma_3(problems, agent):
    """Over 10,000 episodes the sum of least optimisms stays under the proof's bound, and its exponent is <= 0.6 [l-opt-regret]."""
    episodes = 10_000
    total = cumulative_optimism(problems, agent, episodes)
    at = np.array([10, 100, 1000, 10_000])
    bound = np.asarray(
        saddle.regret_bound(
            n_states=6, n_actions=2, horizon=2, sigma2=1.0, episodes=jnp.asarray(at * 1.0)
        )
    )
    assert (total.mean(0)[at - 1] < bound).all()
    exponents = np.array([exponent(curve) for curve in total])
    slack = bound[-1] / total.mean(0)[-1]
    print(
        f"lemma 3: exponent {exponent(total.mean(0)):.3f}, at most {exponents.max():.3f}; the bound is {slack:.2f} times the sum"
    )
    assert exponent(total.mean(0)) <= 0.6
    assert exponents.max() <= 0.6
