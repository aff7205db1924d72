"""The Bayesian-regret laboratory: episode-by-episode learners on MDPs drawn from the prior, or on a given one [s-regret].

| agent          | what it does in each episode                                                                  |
|----------------|-----------------------------------------------------------------------------------------------|
| k-learning     | the Boltzmann policy at tau*: the game solved exactly [c-basic]                               |
| saddle         | a few steps of gradient ascent-descent on the same game, from where the last episode left off |
| psrl           | the optimal policy of one MDP drawn from the posterior                                        |
| ucbvi          | UCBVI with its Hoeffding bonus on the empirical model                                         |
| optimism       | the greedy policy of mean rewards plus mu sigma                                               |
| epsilon-greedy | the greedy policy of the mean MDP, or now and then any action                                 |

An agent is two functions. It sees the prior and the sufficient statistics of what has happened, so every one is told the same.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
from jax import numpy as jnp

from ersac.theory import klearning, saddle
from ersac.theory import mdp as mdps
from ersac.theory.klearning import Beliefs
from ersac.theory.mdp import MDP, Data, MdpPosterior
from ersac.types import Array, Key, Tree

Sigma2 = Callable[[MdpPosterior, Data], Array]  # how uncertain every step is: [L, S, A]


class Choice(NamedTuple):
    """What an agent will do in the next episode, and how it stands in the game (NaN for those who do not play it)."""

    policy: Array  # [L, S, A]
    tau: Array
    dist: Array
    optimism: Array


class TabularAgent(NamedTuple):
    """A learner: a state of its own beside the data, and a choice of policy for every episode."""

    init: Callable[[MdpPosterior], Tree]
    choose: Callable[[Key, MdpPosterior, Data, Tree], tuple[Choice, Tree]]


class Learning(NamedTuple):
    """A learner between two episodes."""

    data: Data
    state: Tree  # the agent's own
    episode: Array  # []  int32, how many it has played


class EpisodeFacts(NamedTuple):
    """What every episode was like."""

    regret: Array  # [N]  V* - V^pi in the true MDP, exactly
    total_reward: Array  # [N]  of the episode as it was played
    tau: Array  # [N]
    dist: Array  # [N]
    optimism: Array  # [N]


def init_learning(agent: TabularAgent, prior: MdpPosterior) -> Learning:
    """A learner that has seen nothing."""
    return Learning(mdps.no_data(prior), agent.init(prior), jnp.int32(0))


def play_agent(
    agent: TabularAgent,
    episodes: int,
    prior: MdpPosterior,
    truth: MDP,
    noise_var: Array,
    key: Key,
    learning: Learning,
) -> tuple[Learning, EpisodeFacts]:
    """Let an agent learn a true MDP for some more episodes; noise_var is the world's, which beliefs may be wrong about."""
    best = mdps.start_value(truth.rho, mdps.optimal(truth))

    def episode(learning: Learning, _: None) -> tuple[Learning, EpisodeFacts]:
        key_choose, key_walk = jax.random.split(jax.random.fold_in(key, learning.episode))
        choice, state = agent.choose(key_choose, prior, learning.data, learning.state)
        seen = mdps.walk(key_walk, truth, noise_var, choice.policy)
        regret = best - mdps.start_value(truth.rho, mdps.policy_values(truth, choice.policy))
        facts = EpisodeFacts(regret, jnp.sum(seen.reward), choice.tau, choice.dist, choice.optimism)
        return Learning(mdps.observe(learning.data, seen), state, learning.episode + 1), facts

    return jax.lax.scan(episode, learning, None, length=episodes)


@partial(jax.jit, static_argnums=(0, 1))
def play_worlds(
    agent: TabularAgent,
    episodes: int,
    priors: MdpPosterior,
    env_params: MDP,
    noise_var: Array,
    keys: Key,
    learning: Learning,
) -> tuple[Learning, EpisodeFacts]:
    """Many learners side by side, each with its own prior, world and key [draws, ...]; facts are [draws, N]."""
    one = lambda prior, truth, key, learning: play_agent(
        agent, episodes, prior, truth, noise_var, key, learning
    )
    return jax.vmap(one)(priors, env_params, keys, learning)


@jax.jit
def draw_worlds(prior: MdpPosterior, keys: Key) -> MDP:
    """True MDPs [draws, ...] from the prior, one a key."""
    return jax.vmap(lambda key: mdps.sample_mdp(jax.random.fold_in(key, 0), prior))(keys)


def seeded_keys(seeds: range) -> Key:
    """One key a seed."""
    return jax.vmap(jax.random.key)(jnp.arange(seeds.start, seeds.stop))


def play_draws(
    agent: TabularAgent, prior: MdpPosterior, episodes: int, seeds: range
) -> EpisodeFacts:
    """Bayesian regret [e-bayes-regret]: every seed draws a true MDP from the prior, the same one for every agent; facts are [draws, N]."""
    keys = seeded_keys(seeds)
    priors = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (len(seeds), *x.shape)), mdps.check_posterior(prior)
    )
    learning = jax.vmap(lambda prior: init_learning(agent, prior))(priors)
    key_play = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
    return play_worlds(
        agent, episodes, priors, draw_worlds(prior, keys), prior.noise_var, key_play, learning
    )[1]


def stateless(choose: Callable[[Key, MdpPosterior, Data], Array]) -> TabularAgent:
    """An agent that keeps nothing but the data and has no part in the game."""

    def whole(key: Key, prior: MdpPosterior, data: Data, state: Tree) -> tuple[Choice, Tree]:
        nothing = jnp.full((), jnp.nan, prior.reward_mean.dtype)
        return Choice(choose(key, prior, data), nothing, nothing, nothing), state

    return TabularAgent(lambda prior: (), whole)


def beliefs_of(prior: MdpPosterior, data: Data, sigma2: Sigma2) -> Beliefs:
    """What the game is played on after some data."""
    now = mdps.posterior(prior, data)
    return Beliefs(mdps.mean(now), sigma2(now, data))


def plug_in(scale: float) -> Sigma2:
    """scale^2 times the posterior variance of one step: the docs' recommendation [klearning.sigma2_plug_in]."""
    return lambda now, data: scale**2 * klearning.sigma2_plug_in(now)


def bounded_sigma2(scale: float) -> Sigma2:
    """scale^2 times the uncertainty under which optimism is a theorem for |r| <= 1 [klearning.sigma2_bounded]."""

    def sigma2(now: MdpPosterior, data: Data) -> Array:
        span = klearning.bounded_span(len(now.reward_mean), now.reward_mean.dtype)
        return scale**2 * klearning.sigma2_bounded(now, span)

    return sigma2


def deterministic(span: float) -> Sigma2:
    """All uncertainty until the first visit, none after, with values that range over `span` [klearning.sigma2_deterministic]."""
    return lambda now, data: klearning.sigma2_deterministic(
        now, data.visits, jnp.full(len(now.reward_mean), span)
    )


def k_learning(sigma2: Sigma2) -> TabularAgent:
    """Solve the game exactly in every episode: Dist is zero, what remains of the bound is Optimism [c-basic]."""

    def choose(key: Key, prior: MdpPosterior, data: Data, state: Tree) -> tuple[Choice, Tree]:
        beliefs = beliefs_of(prior, data, sigma2)
        solution = klearning.solve(beliefs)
        policy = jnp.exp(solution.log_policy)
        return Choice(
            policy,
            solution.tau,
            jnp.zeros_like(solution.tau),
            saddle.optimism(beliefs, policy, solution.tau),
        ), state

    return TabularAgent(lambda prior: (), choose)


def saddle_point(sigma2: Sigma2, steps: int, learning_rate: float) -> TabularAgent:
    """Play the game by gradients, a few steps an episode, as the deep agent must."""
    optimiser = saddle.minimise_adam(learning_rate)

    def init(prior: MdpPosterior) -> Tree:
        start = saddle.Play(
            jnp.zeros_like(prior.reward_mean), jnp.zeros((), prior.reward_mean.dtype)
        )
        return start, optimiser.init(start)

    def choose(key: Key, prior: MdpPosterior, data: Data, state: Tree) -> tuple[Choice, Tree]:
        beliefs = beliefs_of(prior, data, sigma2)
        players, opt = saddle.ascend_descend(
            beliefs, saddle.tabular_class, optimiser, steps, *state
        )
        policy, tau = jnp.exp(saddle.tabular_class(players.theta)), jnp.exp(players.log_tau)
        return Choice(policy, tau, *saddle.decompose(beliefs, policy, tau)), (players, opt)

    return TabularAgent(init, choose)


def psrl() -> TabularAgent:
    """Posterior sampling: believe one draw for an episode."""

    def choose(key: Key, prior: MdpPosterior, data: Data) -> Array:
        return mdps.greedy(mdps.optimal(mdps.sample_mdp(key, mdps.posterior(prior, data))).q)

    return stateless(choose)


def empirical(prior: MdpPosterior, data: Data) -> MDP:
    """The model of relative frequencies, uniform where nothing was seen: no prior but known transitions."""
    transition = mdps.mean(prior).transition
    if data.successors is not None:
        seen = data.visits[..., None]
        transition = jnp.where(
            seen > 0, data.successors / jnp.maximum(seen, 1), 1 / data.visits.shape[1]
        )
    return MDP(data.reward_sum / jnp.maximum(data.visits, 1), transition, prior.rho)


def ucbvi(scale: float, value_range: float, confidence: float = 0.05) -> TabularAgent:
    """UCBVI (Azar et al. 2017) with the Hoeffding bonus `scale L value_range sqrt(log(5 S A T / delta) / n)`, values clipped at the range.

    The published scale is 7, for rewards in [0, 1]; value_range is the range of one reward.
    """

    def choose(key: Key, prior: MdpPosterior, data: Data) -> Array:
        model = empirical(prior, data)
        horizon, n_states, n_actions = data.visits.shape
        total = horizon * jnp.maximum(jnp.sum(data.visits[0]), 1)
        log_term = jnp.log(5 * n_states * n_actions * total / confidence)
        bonus = scale * horizon * value_range * jnp.sqrt(log_term / jnp.maximum(data.visits, 1))
        ceiling = value_range * jnp.arange(horizon, 0, -1, dtype=bonus.dtype)[:, None, None]
        optimistic = lambda q, unseen, most: jnp.minimum(jnp.where(unseen, most, q), most)
        summarise = lambda q, unseen, most: jnp.max(optimistic(q, unseen, most), axis=-1)
        unseen = data.visits == 0
        values = mdps.backward(model.reward + bonus, model.transition, summarise, unseen, ceiling)
        return mdps.greedy(optimistic(values.q, unseen, ceiling))

    return stateless(choose)


def optimistic_bonus(mu: float, sigma2: Sigma2) -> TabularAgent:
    """Simple optimism: `r + mu sigma`, solved exactly and followed greedily."""

    def choose(key: Key, prior: MdpPosterior, data: Data) -> Array:
        model, variance = beliefs_of(prior, data, sigma2)
        return mdps.greedy(
            mdps.optimal(model._replace(reward=model.reward + mu * jnp.sqrt(variance))).q
        )

    return stateless(choose)


def epsilon_greedy(epsilon: float) -> TabularAgent:
    """The mean MDP's best policy, dithered: the baseline that does not explore deeply."""

    def choose(key: Key, prior: MdpPosterior, data: Data) -> Array:
        best = mdps.greedy(mdps.optimal(mdps.mean(mdps.posterior(prior, data))).q)
        return (1 - epsilon) * best + epsilon * mdps.uniform(best)

    return stateless(choose)
