"""The learners of the laboratory: each against its own definition, and all against the bars that the docs promise."""

import jax
import numpy as np
import pytest
import scipy.special
from jax import numpy as jnp

from ersac.analysis.scores import solved_bsuite, solved_reliable
from ersac.theory import agents, saddle
from ersac.theory import klearning as kl
from ersac.theory import mdp as mdps
from ersac.theory.experiments import fit_power, growth_exponent, make_tabular_agent
from ersac.theory.mdp import Data, Dirichlet
from ersac.theory.settings import TABULAR_AGENTS, Learners

REPORTED = 1000  # settings were tuned on seeds below 100; what is claimed is measured from here on

PRIOR, DRAWS, EPISODES = mdps.random_prior(3, 3, 2), range(REPORTED, REPORTED + 40), 300
LEARNERS = {name: make_tabular_agent(name, Learners(), 4.0) for name in TABULAR_AGENTS}
DIVER = agents.k_learning(agents.plug_in_sigma2(1.0))


def policy_of(agent, prior, data, key=0):
    return np.asarray(agent.plan(jax.random.key(key), prior, data, agent.init(prior))[0].policy)


@pytest.fixture(scope="module")
def halfway():
    """A prior and some data, with cells that were never visited."""
    rng = np.random.default_rng(0)
    successors = rng.poisson(1.0, size=(3, 3, 2, 3)) * rng.integers(2, size=(3, 3, 2, 1))
    visits = successors.sum(-1)
    return PRIOR, Data(
        *(
            jnp.asarray(x, jnp.float32)
            for x in (visits, visits * rng.normal(size=visits.shape), successors)
        )
    )


def test_the_empirical_model_counts(halfway):
    prior, data = halfway
    model = agents.empirical_mdp(prior, data)
    visits, successors, sums = (
        np.asarray(data.visits),
        np.asarray(data.successors),
        np.asarray(data.reward_sum),
    )
    assert (visits == 0).any()
    for at in np.ndindex(visits.shape):
        n = visits[at]
        np.testing.assert_allclose(
            model.transition[at], successors[at] / n if n else np.full(3, 1 / 3), rtol=1e-6
        )
        np.testing.assert_allclose(model.reward[at], sums[at] / n if n else 0, rtol=1e-6)


def test_ucbvi_is_its_recursion(halfway):
    """Hoeffding bonuses, unseen actions at the ceiling, values clipped: written as a loop."""
    prior, data = halfway
    visits = np.asarray(data.visits)
    model = agents.empirical_mdp(prior, data)
    log_term = np.log(5 * 3 * 2 * (3 * visits[0].sum()) / 0.05)
    value, best = np.zeros(3), np.zeros((3, 3), int)
    for layer in (2, 1, 0):
        ceiling = 2.0 * (3 - layer)
        q = np.zeros((3, 2))
        for s, a in np.ndindex(3, 2):
            bonus = 0.3 * 3 * 2.0 * np.sqrt(log_term / max(visits[layer, s, a], 1))
            plan = model.reward[layer, s, a] + model.transition[layer, s, a] @ value + bonus
            q[s, a] = min(plan, ceiling) if visits[layer, s, a] else ceiling
        value, best[layer] = q.max(-1), q.argmax(-1)
    np.testing.assert_array_equal(policy_of(agents.ucbvi(0.3, 2.0), prior, data).argmax(-1), best)


def test_psrl_acts_as_often_as_it_believes():
    """On a bandit an action is taken with the posterior probability that it is the best."""
    prior = mdps.bandit_prior(2)
    data = Data(jnp.array([[[3.0, 8.0]]]), jnp.array([[[3.0, 5.0]]]), None)
    now = mdps.update_posterior(prior, data)
    gap = float(now.reward_mean[0, 0, 0] - now.reward_mean[0, 0, 1]) / np.sqrt(
        float(now.reward_var.sum())
    )
    choose = lambda key: agents.psrl().plan(key, prior, data, ())[0].policy[0, 0, 0]
    share = float(jax.jit(jax.vmap(choose))(jax.random.split(jax.random.key(0), 20_000)).mean())
    assert share == pytest.approx(scipy.special.ndtr(gap), abs=0.015)


def test_simple_optimism_adds_mu_sigma(halfway):
    prior, data = halfway
    now = mdps.update_posterior(prior, data)
    model = mdps.mean_mdp(now)
    bonus = 1.5 * jnp.sqrt(kl.sigma2_plug_in(now))
    best = mdps.optimal_values(model._replace(reward=model.reward + bonus)).q
    np.testing.assert_array_equal(
        policy_of(agents.optimistic_bonus(1.5, agents.plug_in_sigma2(1.0)), prior, data).argmax(-1),
        best.argmax(-1),
    )


def test_epsilon_greedy_dithers(halfway):
    policy = policy_of(agents.epsilon_greedy(0.2), *halfway)
    np.testing.assert_allclose(
        np.sort(policy, axis=-1), np.broadcast_to([0.1, 0.9], policy.shape), rtol=1e-6
    )


def test_k_learning_plays_the_saddle_point(halfway):
    prior, data = halfway
    choice, _ = LEARNERS["k-learning"].plan(jax.random.key(0), prior, data, ())
    beliefs = agents.make_beliefs(prior, data, agents.plug_in_sigma2(0.7))
    assert float(saddle.duality_gap(beliefs, choice.policy, choice.tau)) == pytest.approx(
        0, abs=1e-5
    )
    assert float(choice.dist) == pytest.approx(0, abs=1e-5)
    assert float(choice.optimism) == pytest.approx(
        float(saddle.min_optimism(beliefs, choice.policy)), rel=1e-4
    )


def test_scaling_sigma_scales_the_standard_deviation(halfway):
    prior, data = halfway
    now = mdps.update_posterior(prior, data)
    for make in (agents.plug_in_sigma2, agents.bounded_sigma2):
        np.testing.assert_allclose(make(0.5)(now, data), make(1.0)(now, data) / 4, rtol=1e-6)
    np.testing.assert_array_equal(agents.deterministic_sigma2(1.0)(now, data) == 0, data.visits > 0)


def test_a_pause_changes_nothing():
    """Ten episodes and ten more are twenty, for an agent that carries its players and their optimiser along."""
    agent, prior = LEARNERS["saddle"], mdps.bandit_prior(2)
    truth, key = mdps.sample_mdp(jax.random.key(0), prior), jax.random.key(1)
    start = agents.init_tabular(agent, prior)
    _, whole = agents.run_episodes(agent, 20, prior, truth, prior.noise_var, key, start)
    half, first = agents.run_episodes(agent, 10, prior, truth, prior.noise_var, key, start)
    _, second = agents.run_episodes(agent, 10, prior, truth, prior.noise_var, key, half)
    for a, b, c in zip(whole, first, second, strict=True):
        np.testing.assert_allclose(a, np.append(b, c), rtol=1e-5, atol=1e-6)


def test_a_seed_is_its_draw_whoever_plays_and_beside_whom():
    one, other = (
        agents.draw_mdps(PRIOR, agents.keys_of_seeds(range(first, first + 40))) for first in (3, 4)
    )
    np.testing.assert_array_equal(one.reward[1:], other.reward[:-1])
    np.testing.assert_array_equal(one.transition[1:], other.transition[:-1])


@pytest.fixture(scope="module")
def played():
    """Every learner on the same draws."""
    return {
        name: agents.run_on_draws(agent, PRIOR, EPISODES, DRAWS) for name, agent in LEARNERS.items()
    }


@pytest.mark.parametrize("name", LEARNERS)
def test_everybody_learns(played, name):
    """Regret is never negative, and late episodes have less of it than early ones."""
    regret = np.asarray(played[name].regret)
    assert regret.min() > -1e-4
    assert regret[:, -50:].mean() < 0.4 * regret[:, :10].mean()


def test_gradients_keep_up_with_the_saddle_point(played):
    """Five gradient steps an episode from where the last ended: Dist stays far below Optimism and tau follows tau*."""
    late = lambda x: float(np.asarray(x)[:, 100:].mean())
    assert late(played["saddle"].dist) < 0.02 * late(played["saddle"].optimism)
    assert late(played["saddle"].tau) == pytest.approx(late(played["k-learning"].tau), rel=0.1)


@pytest.mark.slow
def test_the_bound_holds_in_every_episode():
    """Known transitions, so sigma2 is the posterior variance and optimism a theorem: `E regret <= Optimism`, and both under [c-basic]."""
    rng = np.random.default_rng(0)
    prior = PRIOR._replace(
        transition=jnp.asarray(rng.dirichlet(np.ones(3), size=(3, 3, 2)), jnp.float32)
    )
    facts = agents.run_on_draws(DIVER, prior, 1000, range(200))
    regret, bound = np.asarray(facts.regret), np.asarray(facts.dist + facts.optimism)
    error = (regret - bound).std(axis=0) / np.sqrt(len(regret))
    assert (regret.mean(axis=0) - bound.mean(axis=0) < 4 * error).all()
    episodes = np.arange(1.0, 1001.0)
    closed = np.asarray(saddle.regret_bound(9, 2, 3, 1.0, jnp.asarray(episodes)))
    assert (np.cumsum(bound.mean(axis=0)) < closed).all()
    assert growth_exponent(np.cumsum(regret.mean(axis=0))) <= 0.6


def dive(agent, depth, episodes, seeds, known_transitions=True):
    """Whether each episode reached the treasure, and the regret: [seeds, episodes] each."""
    env_params = jax.tree.map(
        lambda *x: jnp.stack(x), *[mdps.deep_sea_mdp(depth, seed) for seed in seeds]
    )
    priors = jax.vmap(
        lambda env_params: mdps.deep_sea_prior(env_params, 0.1, 0.0, known_transitions)
    )(env_params)
    learning = jax.vmap(lambda prior: agents.init_tabular(agent, prior))(priors)
    facts = agents.run_many(
        agent, episodes, priors, env_params, jnp.zeros(()), agents.keys_of_seeds(seeds), learning
    )[1]
    return np.asarray(facts.total_reward) > 0.5, np.asarray(facts.regret)


@pytest.mark.parametrize(
    ("depth", "bar"), [(10, 100), (20, 250), pytest.param(40, 1100, marks=pytest.mark.slow)]
)
def test_k_learning_solves_deep_sea(depth, bar):
    """Median of ten seeds under bsuite's rule."""
    goals, _ = dive(DIVER, depth, 8 * depth, range(REPORTED, REPORTED + 10))
    solved = [solved_bsuite(row) or np.inf for row in goals]
    assert np.median(solved) <= bar
    assert np.isfinite(solved).all()


@pytest.mark.parametrize("name", ["saddle", "psrl", "optimism"])
def test_others_that_explore_deeply_solve_it_too(name):
    agent = (
        agents.saddle_point(agents.plug_in_sigma2(1.0), 20, 0.1)
        if name == "saddle"
        else LEARNERS[name]
    )
    goals, _ = dive(agent, 10, 200, range(REPORTED, REPORTED + 5))
    assert all(solved_reliable(row) for row in goals)


def test_deep_sea_is_solved_without_knowing_where_moves_lead():
    goals, _ = dive(DIVER, 12, 200, range(REPORTED, REPORTED + 5), known_transitions=False)
    assert all(solved_reliable(row) for row in goals)


def test_epsilon_greedy_regrets_linearly_in_deep_sea():
    goals, regret = dive(agents.epsilon_greedy(0.1), 15, 2000, range(REPORTED, REPORTED + 10))
    assert growth_exponent(np.cumsum(regret.mean(axis=0))) == pytest.approx(1, abs=0.01)
    assert goals.mean() < 0.01


@pytest.mark.slow
def test_k_learning_solves_deep_sea_100():
    goals, _ = dive(DIVER, 100, 1000, range(REPORTED, REPORTED + 3))
    assert all(solved_bsuite(row) and solved_reliable(row) for row in goals)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_k_learning_regrets_no_more_than_psrl():
    """5,000 episodes, 100 draws from the prior: at most 1.5 times PSRL's even at the upper end of the interval, and sublinear."""
    prior, draws = mdps.random_prior(4, 3, 3), range(REPORTED, REPORTED + 100)
    ours = np.asarray(agents.run_on_draws(LEARNERS["k-learning"], prior, 5000, draws).regret)
    theirs = np.asarray(agents.run_on_draws(LEARNERS["psrl"], prior, 5000, draws).regret)
    total, other = ours.sum(axis=1), theirs.sum(axis=1)
    over = total - 1.5 * other
    print(
        f"regret {total.mean():.0f} of k-learning, {other.mean():.0f} of psrl; exponent {growth_exponent(np.cumsum(ours.mean(axis=0))):.2f}"
    )
    assert over.mean() + 1.96 * over.std(ddof=1) / np.sqrt(len(over)) < 0
    assert growth_exponent(np.cumsum(ours.mean(axis=0))) <= 0.6


def test_a_power_law_is_recovered():
    x = np.arange(1.0, 50.0)
    assert fit_power(x, 3 * x**1.5) == pytest.approx((1.5, 3.0))
    assert growth_exponent(np.arange(1.0, 1001.0)) == pytest.approx(1)


def test_bad_beliefs_are_refused_at_the_door():
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
