"""Tabular agents and their Bayesian regret on MDPs sampled from a prior [s-regret].

| agent          | policy of each episode                                                          |
|----------------|---------------------------------------------------------------------------------|
| k-learning     | the Boltzmann policy at tau*, the exact saddle point [c-basic]                  |
| saddle         | a few gradient steps on the same game, continued from the last episode [a-kac]  |
| monotone       | K-learning with a tau that may fall along an episode                            |
| vapor          | a tau for each state and action (Tarbouriech et al. 2023)                       |
| vapor-lite     | rewards r + sigma, and entropy weighted by sigma, at each state                 |
| vbos           | VAPOR in bandits (O'Donoghue and Lattimore 2021); in MDPs at each state         |
| psrl           | the optimal policy of one MDP sampled from the posterior                        |
| ucbvi          | UCBVI with its Hoeffding bonus on the empirical MDP                             |
| optimism       | the greedy policy for mean rewards plus mu sigma                                |
| epsilon-greedy | the greedy policy of the mean MDP, with uniform actions at probability epsilon  |

An agent is two functions, `init` and `plan`. All agents get the same inputs: the prior and the
sufficient statistics of the episodes so far.
"""

import contextlib
from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import numpy as jnp

from ersac.theory import klearning, saddle, vapor
from ersac.theory import mdp as mdps
from ersac.theory.klearning import Beliefs
from ersac.theory.mdp import MDP, Data, MdpPosterior
from ersac.types import Array, Key, Tree

Sigma2Fn = Callable[[MdpPosterior, Data], Array]  # the uncertainty sigma2 [L, S, A]


class EpisodePlan(NamedTuple):
    """The policy of the next episode, and its tau, Dist and Optimism (NaN for other agents)."""

    policy: Array  # [L, S, A]
    tau: Array
    dist: Array
    optimism: Array


class TabularAgent(NamedTuple):
    """Two functions: the initial state of an agent, and its plan for an episode."""

    init: Callable[[MdpPosterior], Tree]
    plan: Callable[[Key, MdpPosterior, Data, Tree], tuple[EpisodePlan, Tree]]
    double: bool = False  # plan in double precision; data and statistics stay in single precision


class TabularLearner(NamedTuple):
    """The state of a run between two episodes."""

    data: Data
    agent_state: Tree
    episode: Array  # []  int32, the number of episodes so far


class TabularStats(NamedTuple):
    """Per-episode statistics of a run."""

    regret: Array  # [N]  V* - V^pi in the true MDP, exactly
    total_reward: Array  # [N]  of the sampled episode
    tau: Array  # [N]
    dist: Array  # [N]
    optimism: Array  # [N]


def init_tabular(agent: TabularAgent, prior: MdpPosterior) -> TabularLearner:
    """Return the state of a run before its first episode."""
    return TabularLearner(mdps.empty_data(prior), agent.init(prior), jnp.int32(0))


def init_many(agent: TabularAgent, priors: MdpPosterior) -> TabularLearner:
    """Return the states of many runs [draws, ...] before their first episode."""
    return jax.vmap(lambda prior: init_tabular(agent, prior))(priors)


def run_episodes(
    agent: TabularAgent,
    episodes: int,
    prior: MdpPosterior,
    true_mdp: MDP,
    noise_var: Array,
    key: Key,
    learner: TabularLearner,
) -> tuple[TabularLearner, TabularStats]:
    """Run an agent on one MDP; noise_var is the true one, which the prior's need not equal."""
    optimal_value = mdps.start_value(true_mdp.rho, mdps.optimal_values(true_mdp))

    def step(learner: TabularLearner, _: None) -> tuple[TabularLearner, TabularStats]:
        key_plan, key_episode = jax.random.split(jax.random.fold_in(key, learner.episode))
        plan, agent_state = agent.plan(key_plan, prior, learner.data, learner.agent_state)
        episode = mdps.sample_episode(key_episode, true_mdp, noise_var, plan.policy)
        value = mdps.start_value(true_mdp.rho, mdps.policy_values(true_mdp, plan.policy))
        stats = TabularStats(
            optimal_value - value, jnp.sum(episode.reward), plan.tau, plan.dist, plan.optimism
        )
        data = mdps.add_episode(learner.data, episode)
        return TabularLearner(data, agent_state, learner.episode + 1), stats

    return jax.lax.scan(step, learner, None, length=episodes)


# Mapped over priors, true MDPs, keys and learners.
_run_many = jax.jit(jax.vmap(run_episodes, (None, None, 0, 0, None, 0, 0)), static_argnums=(0, 1))


def run_many(
    agent: TabularAgent,
    episodes: int,
    priors: MdpPosterior,
    true_mdps: MDP,
    noise_var: Array,
    keys: Key,
    learners: TabularLearner,
) -> tuple[TabularLearner, TabularStats]:
    """Run an agent on many MDPs [draws, ...] in parallel; the statistics are [draws, N]."""
    with jax.enable_x64(True) if agent.double else contextlib.nullcontext():
        return _run_many(agent, episodes, priors, true_mdps, noise_var, keys, learners)


@jax.jit
def draw_mdps(prior: MdpPosterior, keys: Key) -> MDP:
    """Sample true MDPs [draws, ...] from the prior, one per key."""
    return jax.vmap(lambda key: mdps.sample_mdp(jax.random.fold_in(key, 0), prior))(keys)


def keys_of_seeds(seeds: range) -> Key:
    """Return one key per seed."""
    return jax.vmap(jax.random.key)(jnp.arange(seeds.start, seeds.stop))


def run_on_draws(
    agent: TabularAgent, prior: MdpPosterior, episodes: int, seeds: range
) -> TabularStats:
    """Run an agent on MDPs sampled from the prior, one per seed; the statistics are [draws, N].

    The mean regret over draws is the Bayesian regret [e-bayes-regret]. A seed's MDP does not depend
    on the agent, so draws are paired across agents.
    """
    keys = keys_of_seeds(seeds)
    priors = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (len(seeds), *x.shape)), mdps.check_posterior(prior)
    )
    learners = init_many(agent, priors)
    run_keys = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
    return run_many(
        agent, episodes, priors, draw_mdps(prior, keys), prior.noise_var, run_keys, learners
    )[1]


def stateless_agent(make_policy: Callable[[Key, MdpPosterior, Data], Array]) -> TabularAgent:
    """Return an agent without state that takes no part in the game."""

    def plan(key: Key, prior: MdpPosterior, data: Data, state: Tree) -> tuple[EpisodePlan, Tree]:
        nan = jnp.full((), jnp.nan, prior.reward_mean.dtype)
        return EpisodePlan(make_policy(key, prior, data), nan, nan, nan), state

    return TabularAgent(init=lambda prior: (), plan=plan)


def make_beliefs(prior: MdpPosterior, data: Data, sigma2: Sigma2Fn) -> Beliefs:
    """Return the mean MDP and the uncertainty of the posterior after some data."""
    posterior = mdps.update_posterior(prior, data)
    return Beliefs(mdps.mean_mdp(posterior), sigma2(posterior, data))


def plug_in_sigma2(scale: float) -> Sigma2Fn:
    """Return scale^2 times `klearning.sigma2_plug_in`, the recommended uncertainty."""
    return lambda posterior, data: scale**2 * klearning.sigma2_plug_in(posterior)


def bounded_sigma2(scale: float) -> Sigma2Fn:
    """Return scale^2 times `klearning.sigma2_bounded`, which proves optimism if |r| <= 1."""

    def sigma2(posterior: MdpPosterior, data: Data) -> Array:
        mean = posterior.reward_mean
        span = klearning.bounded_span(len(mean), mean.dtype)
        return scale**2 * klearning.sigma2_bounded(posterior, span)

    return sigma2


def deterministic_sigma2(span: float) -> Sigma2Fn:
    """Return `klearning.sigma2_deterministic` for values of range `span`."""
    return lambda posterior, data: klearning.sigma2_deterministic(
        posterior, data.visits, jnp.full(len(posterior.reward_mean), span)
    )


def k_learning(sigma2: Sigma2Fn) -> TabularAgent:
    """Return the agent that solves the game exactly in every episode, so Dist is zero [c-basic]."""

    def plan(key: Key, prior: MdpPosterior, data: Data, state: Tree) -> tuple[EpisodePlan, Tree]:
        beliefs = make_beliefs(prior, data, sigma2)
        solution = klearning.solve(beliefs)
        policy, tau = jnp.exp(solution.log_policy), solution.tau
        optimism = saddle.optimism(beliefs, policy, tau)
        return EpisodePlan(policy, tau, jnp.zeros_like(tau), optimism), state

    return TabularAgent(init=lambda prior: (), plan=plan)


def saddle_point(sigma2: Sigma2Fn, steps: int, learning_rate: float) -> TabularAgent:
    """Return the agent that takes a few gradient steps on the game per episode [a-kac]."""
    optimiser = saddle.saddle_optimiser(learning_rate)

    def init(prior: MdpPosterior) -> Tree:
        zeros = jnp.zeros_like(prior.reward_mean)
        start = saddle.GameParams(zeros, jnp.zeros((), zeros.dtype))
        return start, optimiser.init(start)

    def plan(key: Key, prior: MdpPosterior, data: Data, state: Tree) -> tuple[EpisodePlan, Tree]:
        beliefs = make_beliefs(prior, data, sigma2)
        params, opt = saddle.ascend_descend(
            beliefs, saddle.tabular_softmax, optimiser, steps, *state
        )
        policy, tau = jnp.exp(saddle.tabular_softmax(params.theta)), jnp.exp(params.log_tau)
        return EpisodePlan(policy, tau, *saddle.decompose(beliefs, policy, tau)), (params, opt)

    return TabularAgent(init=init, plan=plan)


def in_double(solve: Callable[[Beliefs], Tree], beliefs: Beliefs) -> Tree:
    """Apply a solver in double precision, if it is enabled; results have that of the beliefs."""
    convert = lambda tree, dtype: jax.tree.map(
        lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree
    )
    widest = jnp.zeros(()).dtype
    return convert(solve(convert(beliefs, widest)), beliefs.sigma2.dtype)


def monotone_tau(sigma2: Sigma2Fn) -> TabularAgent:
    """Return K-learning with a tau that may fall along an episode: `vapor.solve_monotone`."""

    def plan(key: Key, prior: MdpPosterior, data: Data, state: Tree) -> tuple[EpisodePlan, Tree]:
        solution = in_double(vapor.solve_monotone, make_beliefs(prior, data, sigma2))
        zero = jnp.zeros_like(solution.tau)
        return EpisodePlan(solution.policy, solution.tau, zero, solution.optimism), state

    return TabularAgent(init=lambda prior: (), plan=plan, double=True)


def vapor_agent(sigma2: Sigma2Fn) -> TabularAgent:
    """Return VAPOR (Tarbouriech et al. 2023), which starts from the occupancy of the last episode.

    Its tau is the mean over visited states and actions; its Optimism is the certified regret, the
    dual value minus the value of the policy in the mean MDP.
    """

    def init(prior: MdpPosterior) -> Tree:
        return vapor.uniform_flow(mdps.mean_mdp(prior))

    def plan(key: Key, prior: MdpPosterior, data: Data, state: Tree) -> tuple[EpisodePlan, Tree]:
        def solve(beliefs: Beliefs) -> tuple[EpisodePlan, Tree]:
            solution = vapor.solve_vapor(beliefs, state.astype(beliefs.sigma2.dtype))
            policy = jnp.exp(solution.log_policy)
            visits = mdps.occupancy(beliefs.mdp, policy)
            optimism = solution.dual - saddle.mean_value(beliefs, policy)
            tau = jnp.sum(visits * solution.tau) / jnp.sum(visits)
            log_mass = jax.nn.logsumexp(solution.log_occupancy, axis=-1)
            return EpisodePlan(policy, tau, jnp.zeros_like(tau), optimism), log_mass

        result: tuple[EpisodePlan, Tree] = in_double(solve, make_beliefs(prior, data, sigma2))
        return result

    return TabularAgent(init=init, plan=plan, double=True)


def vapor_lite(sigma2: Sigma2Fn, scale: float, entropy_scale: float) -> TabularAgent:
    """Return VAPOR-lite (Tarbouriech et al. 2023), solved exactly: `vapor.solve_vapor_lite`."""

    def make_policy(key: Key, prior: MdpPosterior, data: Data) -> Array:
        solve = lambda beliefs: vapor.solve_vapor_lite(beliefs, scale, entropy_scale)
        return jnp.exp(in_double(solve, make_beliefs(prior, data, sigma2)))

    return stateless_agent(make_policy)._replace(double=True)


def vbos(sigma2: Sigma2Fn) -> TabularAgent:
    """Return VBOS at each state (O'Donoghue and Lattimore 2021): `vapor.solve_vbos`."""

    def make_policy(key: Key, prior: MdpPosterior, data: Data) -> Array:
        return jnp.exp(in_double(vapor.solve_vbos, make_beliefs(prior, data, sigma2)))

    return stateless_agent(make_policy)._replace(double=True)


def psrl() -> TabularAgent:
    """Return posterior sampling: the optimal policy of one sampled MDP per episode."""

    def make_policy(key: Key, prior: MdpPosterior, data: Data) -> Array:
        mdp = mdps.sample_mdp(key, mdps.update_posterior(prior, data))
        return mdps.greedy_policy(mdps.optimal_values(mdp).q)

    return stateless_agent(make_policy)


def empirical_mdp(prior: MdpPosterior, data: Data) -> MDP:
    """Return the MDP of sample means: uniform transitions and zero rewards where unvisited.

    It uses no prior except transitions that are known.
    """
    transition = mdps.mean_mdp(prior).transition
    if data.successors is not None:
        visits = data.visits[..., None]
        frequency = data.successors / jnp.maximum(visits, 1)
        transition = jnp.where(visits > 0, frequency, 1 / data.visits.shape[1])
    return MDP(data.reward_sum / jnp.maximum(data.visits, 1), transition, prior.rho)


def ucbvi(scale: float, reward_range: float, delta: float = 0.05) -> TabularAgent:
    """Return UCBVI (Azar et al. 2017) with values clipped at `reward_range` per remaining layer.

    The Hoeffding bonus is `scale L reward_range sqrt(log(5 S A T / delta) / n)`. The scale in the
    paper is 7, for rewards in [0, 1].
    """

    def make_policy(key: Key, prior: MdpPosterior, data: Data) -> Array:
        mdp = empirical_mdp(prior, data)
        horizon, n_states, n_actions = data.visits.shape
        steps = horizon * jnp.maximum(jnp.sum(data.visits[0]), 1)
        log_term = jnp.log(5 * n_states * n_actions * steps / delta)
        bonus = scale * horizon * reward_range * jnp.sqrt(log_term / jnp.maximum(data.visits, 1))
        ceiling = reward_range * jnp.arange(horizon, 0, -1, dtype=bonus.dtype)[:, None, None]
        unvisited = data.visits == 0
        clip = lambda q, unvisited, top: jnp.minimum(jnp.where(unvisited, top, q), top)
        state_value = lambda q, unvisited, top: jnp.max(clip(q, unvisited, top), axis=-1)
        values = mdps.backward_induction(
            mdp.reward + bonus, mdp.transition, state_value, unvisited, ceiling
        )
        return mdps.greedy_policy(clip(values.q, unvisited, ceiling))

    return stateless_agent(make_policy)


def optimistic_bonus(mu: float, sigma2: Sigma2Fn) -> TabularAgent:
    """Return simple optimism: the greedy policy for rewards `r + mu sigma`."""

    def make_policy(key: Key, prior: MdpPosterior, data: Data) -> Array:
        mdp, variance = make_beliefs(prior, data, sigma2)
        optimistic = mdp._replace(reward=mdp.reward + mu * jnp.sqrt(variance))
        return mdps.greedy_policy(mdps.optimal_values(optimistic).q)

    return stateless_agent(make_policy)


def epsilon_greedy(epsilon: float) -> TabularAgent:
    """Return epsilon-greedy on the mean MDP, the baseline without deep exploration."""

    def make_policy(key: Key, prior: MdpPosterior, data: Data) -> Array:
        mdp = mdps.mean_mdp(mdps.update_posterior(prior, data))
        greedy = mdps.greedy_policy(mdps.optimal_values(mdp).q)
        return (1 - epsilon) * greedy + epsilon * mdps.uniform_policy(greedy)

    return stateless_agent(make_policy)
