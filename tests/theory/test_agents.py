"""Tabular agents: each against its definition, and their regret against the documented claims."""

import functools

import jax
import numpy as np
import pytest
import scipy.special
from jax import numpy as jnp

from ersac.analysis.scores import solved_bsuite, solved_reliable
from ersac.theory import agents, saddle
from ersac.theory import klearning as kl
from ersac.theory import mdp as mdps
from ersac.theory.experiments import (
    deep_sea_problems,
    fit_power,
    growth_exponent,
    make_tabular_agent,
)
from ersac.theory.mdp import Data, Dirichlet
from ersac.theory.settings import TABULAR_AGENTS, Learners

FIRST_SEED = 1000  # hyperparameters were tuned on seeds below 100; claims are measured from here

PRIOR, DRAWS, EPISODES = mdps.random_prior(3, 3, 2), range(FIRST_SEED, FIRST_SEED + 40), 300
AGENTS = {name: make_tabular_agent(name, Learners(), 4.0) for name in TABULAR_AGENTS}
K_LEARNING = agents.k_learning(agents.plug_in_sigma2(1.0))


def plan_policy(agent, prior, data, key=0):
    """The policy that a new agent plans after some data."""
    return np.asarray(agent.plan(jax.random.key(key), prior, data, agent.init(prior))[0].policy)


@pytest.fixture(scope="module")
def prior_and_data():
    """A prior and data in which some state-actions were never visited."""
    rng = np.random.default_rng(0)
    successors = rng.poisson(1.0, size=(3, 3, 2, 3)) * rng.integers(2, size=(3, 3, 2, 1))
    visits = successors.sum(-1)
    return PRIOR, Data(
        *(
            jnp.asarray(x, jnp.float32)
            for x in (visits, visits * rng.normal(size=visits.shape), successors)
        )
    )


def test_the_empirical_mdp_has_the_sample_means(prior_and_data):
    prior, data = prior_and_data
    mdp = agents.empirical_mdp(prior, data)
    visits, successors, sums = (
        np.asarray(data.visits),
        np.asarray(data.successors),
        np.asarray(data.reward_sum),
    )
    assert (visits == 0).any()
    for index in np.ndindex(visits.shape):
        n = visits[index]
        np.testing.assert_allclose(
            mdp.transition[index], successors[index] / n if n else np.full(3, 1 / 3), rtol=1e-6
        )
        np.testing.assert_allclose(mdp.reward[index], sums[index] / n if n else 0, rtol=1e-6)


def test_ucbvi_equals_its_recursion(prior_and_data):
    """Hoeffding bonus, unvisited actions at the ceiling and clipped values, in an explicit loop."""
    prior, data = prior_and_data
    visits = np.asarray(data.visits)
    mdp = agents.empirical_mdp(prior, data)
    log_term = np.log(5 * 3 * 2 * (3 * visits[0].sum()) / 0.05)
    value, greedy = np.zeros(3), np.zeros((3, 3), int)
    for layer in (2, 1, 0):
        ceiling = 2.0 * (3 - layer)
        q = np.zeros((3, 2))
        for s, a in np.ndindex(3, 2):
            bonus = 0.3 * 3 * 2.0 * np.sqrt(log_term / max(visits[layer, s, a], 1))
            q_value = mdp.reward[layer, s, a] + mdp.transition[layer, s, a] @ value + bonus
            q[s, a] = min(q_value, ceiling) if visits[layer, s, a] else ceiling
        value, greedy[layer] = q.max(-1), q.argmax(-1)
    np.testing.assert_array_equal(
        plan_policy(agents.ucbvi(0.3, 2.0), prior, data).argmax(-1), greedy
    )


def test_psrl_takes_an_action_with_its_probability_of_being_optimal():
    """On a bandit with two arms, where the posterior probability has a closed form."""
    prior = mdps.bandit_prior(2)
    data = Data(jnp.array([[[3.0, 8.0]]]), jnp.array([[[3.0, 5.0]]]), None)
    posterior = mdps.update_posterior(prior, data)
    gap = float(posterior.reward_mean[0, 0, 0] - posterior.reward_mean[0, 0, 1]) / np.sqrt(
        float(posterior.reward_var.sum())
    )
    first_arm = lambda key: agents.psrl().plan(key, prior, data, ())[0].policy[0, 0, 0]
    share = float(jax.jit(jax.vmap(first_arm))(jax.random.split(jax.random.key(0), 20_000)).mean())
    assert share == pytest.approx(scipy.special.ndtr(gap), abs=0.015)


def test_simple_optimism_adds_mu_sigma(prior_and_data):
    prior, data = prior_and_data
    posterior = mdps.update_posterior(prior, data)
    mdp = mdps.mean_mdp(posterior)
    bonus = 1.5 * jnp.sqrt(kl.sigma2_plug_in(posterior))
    q = mdps.optimal_values(mdp._replace(reward=mdp.reward + bonus)).q
    np.testing.assert_array_equal(
        plan_policy(agents.optimistic_bonus(1.5, agents.plug_in_sigma2(1.0)), prior, data).argmax(
            -1
        ),
        q.argmax(-1),
    )


def test_epsilon_greedy_takes_uniform_actions_with_probability_epsilon(prior_and_data):
    policy = plan_policy(agents.epsilon_greedy(0.2), *prior_and_data)
    np.testing.assert_allclose(
        np.sort(policy, axis=-1), np.broadcast_to([0.1, 0.9], policy.shape), rtol=1e-6
    )


def test_k_learning_plays_the_saddle_point(prior_and_data):
    prior, data = prior_and_data
    plan, _ = AGENTS["k-learning"].plan(jax.random.key(0), prior, data, ())
    beliefs = agents.make_beliefs(prior, data, agents.plug_in_sigma2(0.7))
    assert float(saddle.duality_gap(beliefs, plan.policy, plan.tau)) == pytest.approx(0, abs=1e-5)
    assert float(plan.dist) == pytest.approx(0, abs=1e-5)
    assert float(plan.optimism) == pytest.approx(
        float(saddle.min_optimism(beliefs, plan.policy)), rel=1e-4
    )


def test_the_scale_of_sigma2_multiplies_the_standard_deviation(prior_and_data):
    prior, data = prior_and_data
    posterior = mdps.update_posterior(prior, data)
    for make in (agents.plug_in_sigma2, agents.bounded_sigma2):
        np.testing.assert_allclose(
            make(0.5)(posterior, data), make(1.0)(posterior, data) / 4, rtol=1e-6
        )
    np.testing.assert_array_equal(
        agents.deterministic_sigma2(1.0)(posterior, data) == 0, data.visits > 0
    )


def test_a_run_in_two_parts_equals_one_run():
    """Also for an agent that carries its parameters and the state of their optimiser."""
    agent, prior = AGENTS["saddle"], mdps.bandit_prior(2)
    true_mdp, key = mdps.sample_mdp(jax.random.key(0), prior), jax.random.key(1)
    start = agents.init_tabular(agent, prior)
    _, full = agents.run_episodes(agent, 20, prior, true_mdp, prior.noise_var, key, start)
    learner, first = agents.run_episodes(agent, 10, prior, true_mdp, prior.noise_var, key, start)
    _, second = agents.run_episodes(agent, 10, prior, true_mdp, prior.noise_var, key, learner)
    for a, b, c in zip(full, first, second, strict=True):
        np.testing.assert_allclose(a, np.append(b, c), rtol=1e-5, atol=1e-6)


def test_the_mdp_of_a_seed_does_not_depend_on_the_other_seeds():
    """So the Bayesian regret [e-bayes-regret] is a mean over paired draws."""
    one, other = (
        agents.draw_mdps(PRIOR, agents.keys_of_seeds(range(first, first + 40))) for first in (3, 4)
    )
    np.testing.assert_array_equal(one.reward[1:], other.reward[:-1])
    np.testing.assert_array_equal(one.transition[1:], other.transition[:-1])


@functools.cache
def run_on_same_draws(name):
    """The statistics of an agent on the draws that all agents share."""
    return agents.run_on_draws(AGENTS[name], PRIOR, EPISODES, DRAWS)


SLOW_AGENTS = ("monotone", "vapor", "vbos")  # to compile, or to plan


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in SLOW_AGENTS else name
        for name in AGENTS
    ],
)
def test_regret_decreases(name):
    """Regret is never negative, and smaller in late episodes than in early ones."""
    regret = np.asarray(run_on_same_draws(name).regret)
    assert regret.min() > -1e-4
    assert regret[:, -50:].mean() < 0.4 * regret[:, :10].mean()


def test_five_gradient_steps_per_episode_follow_the_saddle_point():
    """Dist stays far below Optimism, and tau is close to tau*."""
    late = lambda x: float(np.asarray(x)[:, 100:].mean())
    saddle_stats = run_on_same_draws("saddle")
    assert late(saddle_stats.dist) < 0.02 * late(saddle_stats.optimism)
    assert late(saddle_stats.tau) == pytest.approx(
        late(run_on_same_draws("k-learning").tau), rel=0.1
    )


@pytest.mark.slow
def test_vapor_has_less_regret_than_k_learning_on_the_same_draws():
    """On average over 40 paired draws with noise, at the same scale of sigma."""
    total = lambda name: np.asarray(run_on_same_draws(name).regret).sum(axis=1)
    less = total("k-learning") - total("vapor")
    print(f"k-learning minus vapor: {less.mean():.1f}, sd of the mean {less.std() / 40**0.5:.1f}")
    assert less.mean() > 0


@pytest.mark.slow
def test_optimism_bounds_regret_in_every_episode():
    """`E regret <= Optimism`, below the bound of [c-basic], with known transitions."""
    rng = np.random.default_rng(0)
    prior = PRIOR._replace(
        transition=jnp.asarray(rng.dirichlet(np.ones(3), size=(3, 3, 2)), jnp.float32)
    )
    stats = agents.run_on_draws(K_LEARNING, prior, 1000, range(200))
    regret, bound = np.asarray(stats.regret), np.asarray(stats.dist + stats.optimism)
    error = (regret - bound).std(axis=0) / np.sqrt(len(regret))
    assert (regret.mean(axis=0) - bound.mean(axis=0) < 4 * error).all()
    episodes = np.arange(1.0, 1001.0)
    closed = np.asarray(saddle.regret_bound(9, 2, 3, 1.0, jnp.asarray(episodes)))
    assert (np.cumsum(bound.mean(axis=0)) < closed).all()
    assert growth_exponent(np.cumsum(regret.mean(axis=0))) <= 0.6


def run_deep_sea(agent, depth, episodes, seeds, known_transitions=True):
    """Whether an episode reached the goal, and its regret: [seeds, episodes] each."""
    true_mdps, priors = deep_sea_problems(depth, seeds, 0.1, 0.0, known_transitions)
    learners = agents.init_many(agent, priors)
    stats = agents.run_many(
        agent, episodes, priors, true_mdps, jnp.zeros(()), agents.keys_of_seeds(seeds), learners
    )[1]
    return np.asarray(stats.total_reward) > 0.5, np.asarray(stats.regret)


@pytest.mark.parametrize(
    ("depth", "bar"), [(10, 100), (20, 250), pytest.param(40, 1100, marks=pytest.mark.slow)]
)
def test_k_learning_solves_deep_sea(depth, bar):
    """The median of ten seeds by bsuite's rule."""
    goals, _ = run_deep_sea(K_LEARNING, depth, 8 * depth, range(FIRST_SEED, FIRST_SEED + 10))
    solved = [solved_bsuite(row) or np.inf for row in goals]
    assert np.median(solved) <= bar
    assert np.isfinite(solved).all()


@pytest.mark.parametrize("name", ["saddle", "psrl", "optimism"])
def test_other_deep_explorers_solve_deep_sea(name):
    agent = (
        agents.saddle_point(agents.plug_in_sigma2(1.0), 20, 0.1)
        if name == "saddle"
        else AGENTS[name]
    )
    goals, _ = run_deep_sea(agent, 10, 200, range(FIRST_SEED, FIRST_SEED + 5))
    assert all(solved_reliable(row) for row in goals)


def test_k_learning_solves_deep_sea_with_unknown_transitions():
    goals, _ = run_deep_sea(
        K_LEARNING, 12, 200, range(FIRST_SEED, FIRST_SEED + 5), known_transitions=False
    )
    assert all(solved_reliable(row) for row in goals)


def test_epsilon_greedy_has_linear_regret_in_deep_sea():
    goals, regret = run_deep_sea(
        agents.epsilon_greedy(0.1), 15, 2000, range(FIRST_SEED, FIRST_SEED + 10)
    )
    assert growth_exponent(np.cumsum(regret.mean(axis=0))) == pytest.approx(1, abs=0.01)
    assert goals.mean() < 0.01


@pytest.mark.slow
def test_k_learning_solves_deep_sea_100():
    goals, _ = run_deep_sea(K_LEARNING, 100, 1000, range(FIRST_SEED, FIRST_SEED + 3))
    assert all(solved_bsuite(row) and solved_reliable(row) for row in goals)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_regret_of_k_learning_is_at_most_1_5_times_that_of_psrl():
    """At the upper end of the interval, over 5,000 episodes and 100 draws; and it is sublinear."""
    prior, draws = mdps.random_prior(4, 3, 3), range(FIRST_SEED, FIRST_SEED + 100)
    k_learning = np.asarray(agents.run_on_draws(AGENTS["k-learning"], prior, 5000, draws).regret)
    psrl = np.asarray(agents.run_on_draws(AGENTS["psrl"], prior, 5000, draws).regret)
    total, other = k_learning.sum(axis=1), psrl.sum(axis=1)
    over = total - 1.5 * other
    print(
        f"regret {total.mean():.0f} of k-learning, {other.mean():.0f} of psrl; "
        f"exponent {growth_exponent(np.cumsum(k_learning.mean(axis=0))):.2f}"
    )
    assert over.mean() + 1.96 * over.std(ddof=1) / np.sqrt(len(over)) < 0
    assert growth_exponent(np.cumsum(k_learning.mean(axis=0))) <= 0.6


def test_a_power_law_is_recovered():
    x = np.arange(1.0, 50.0)
    assert fit_power(x, 3 * x**1.5) == pytest.approx((1.5, 3.0))
    assert growth_exponent(np.arange(1.0, 1001.0)) == pytest.approx(1)


def test_an_invalid_prior_is_an_error():
    prior = mdps.random_prior(2, 2, 2)
    with pytest.raises(ValueError, match="layer 2 of 2, state 0, action 0: a concentration"):
        agents.run_on_draws(
            agents.psrl(),
            prior._replace(
                transition=Dirichlet(prior.transition.concentration.at[1, 0, 0, 0].set(-1))
            ),
            5,
            range(2),
        )
