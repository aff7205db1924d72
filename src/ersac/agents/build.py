"""Settings to agents."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import optax
from jax import numpy as jnp

from ersac import config
from ersac.agents import critics
from ersac.agents.actor_critic import Optimisers, Parts, actor_critic
from ersac.agents.base import Agent
from ersac.agents.boot_dqn import (
    Members,
    QNetwork,
    boot_dqn,
    dense_layer,
    lookup_layer,
    with_target,
)
from ersac.algorithm import normalise, replay
from ersac.algorithm import risk as risks
from ersac.algorithm.action_dist import make_action_dist
from ersac.algorithm.normalise import Normaliser
from ersac.algorithm.replay import Buffer
from ersac.algorithm.risk import Risk
from ersac.envs.base import Box, Discrete, Env, HostEnv, Space, Spec, cardinality, spec_of
from ersac.nets import heads, layers, tables
from ersac.types import Array, Tree
from ersac.uncertainty.base import Uncertainty
from ersac.uncertainty.counts import visit_counts
from ersac.uncertainty.ensemble import reward_ensemble
from ersac.uncertainty.hashed import hashed_counts
from ersac.uncertainty.linear import bayesian_linear
from ersac.uncertainty.posterior import posterior_ensemble
from ersac.uncertainty.rnd import random_network_distillation

HEAD_GAIN = 0.01  # small, so that the first policy is uniform and the first values are zero


def make_risk(settings: config.Seeking | config.Neutral | config.Optimist) -> Risk:
    """The attitude to risk that some settings describe."""
    match settings:
        case config.Seeking(learn_tau=True):
            return risks.risk_seeking()
        case config.Seeking():
            return risks.frozen(risks.risk_seeking())
        case config.Neutral(alpha):
            return risks.risk_neutral(alpha)
        case config.Optimist(mu, alpha):
            return risks.simple_optimism(mu, alpha)


def make_uncertainty(
    settings: config.Estimator, env: Env | HostEnv | Spec, parts: "Networks", n_actions: int
) -> Uncertainty:
    """The estimator that some settings describe, for so many actions."""
    match settings, env.observations:
        case config.Ensemble(shared_reward_heads=True), _ if not parts.torso.width:
            raise config.SettingsError(
                "--shared-reward-heads needs --network table: networks have no layers that policy and value share"
            )
        case config.Ensemble(), observations:
            outputs = settings.members * n_actions
            head = (
                parts.reward_head(outputs)
                if settings.shared_reward_heads
                else parts.own_head(outputs)
            )
            counted = cardinality(observations) if parts.is_table else None
            scales = (settings.prior_scale, settings.noise_variance, settings.sigma_scale)
            return reward_ensemble(
                head,
                parts.prior(outputs, settings.prior_scale),
                counted,
                n_actions,
                settings.members,
                *scales,
            )
        case config.Rnd(), _ if not parts.is_table:
            outputs = settings.outputs * n_actions
            head, target = parts.own_head(outputs), parts.prior(outputs, 1.0)
            return random_network_distillation(
                head, target, n_actions, settings.outputs, settings.sigma_scale
            )
        case config.HashedCounts(bits, scale), Box(shape) if len(shape) == 1:
            return hashed_counts(shape[0], n_actions, bits, scale)
        case config.BayesianLinear(), Box(shape) if len(shape) == 1:
            scales = (settings.prior_scale, settings.noise_variance, settings.sigma_scale)
            return bayesian_linear(shape[0], n_actions, settings.features, *scales)
        case config.Posterior(), Discrete(n):
            scales = (settings.prior_scale, settings.noise_variance, settings.sigma_scale)
            return posterior_ensemble(n, n_actions, settings.members, *scales)
        case config.Counts(), Discrete(n):
            return visit_counts(n, n_actions, settings.sigma_scale)
        case config.CustomEstimator(name, estimator), _:
            if not callable(estimator):
                raise config.SettingsError(
                    f"the estimator {name} is known to Python only: go on with this run from there"
                )
            return estimator(spec_of(env), n_actions)
    name = next(name for name, kind in config.UNCERTAINTIES.items() if isinstance(settings, kind))
    served = (
        "ensemble, rnd, and of vectors hashed or linear"
        if isinstance(env.observations, Box)
        else "ensemble, posterior, counts, or with networks rnd"
    )
    raise config.SettingsError(
        f"--uncertainty {name} does not fit the observations of {env.name}: choose {served}"
    )


class Networks(NamedTuple):
    """What is built for a space of observations: rows where they are integers, layers or filters where they are arrays."""

    torso: heads.Torso
    policy: Callable[[int], heads.Head]  # outputs -> head
    value: Callable[[int], heads.Head]
    reward_head: Callable[[int], heads.Head]  # which reads the shared features, and trains them
    own_head: Callable[[int], heads.Head]  # which shares nothing
    prior: Callable[[int, float], layers.Net]  # outputs, scale
    per_visit: (
        bool  # plain descent at a rate per visit; else rows are moved so, and all else by Adam
    )
    is_table: bool = False  # every observation has rows of its own


# Of the features of two orthogonal observations. A batch of N steps moves what they share by N times a rate and this: beyond 2 it diverges.
RELU_CORRELATION = 1 / math.pi
# Logits move by tens, values and rewards by about one. A small network that has moved so far has other features than it began with, and
# learns at another rate at every observation: with a scale of 1 replay solved no seed at depth 40, with 16 all.
LOGIT_SCALE = 16.0
PRIOR_WIDTH = 256  # random features of a prior network: two states' priors correlate by about one over its square root


def make_networks(settings: config.ActorCritic, observations: Space) -> Networks:
    """The networks that fit a space: a network for each head, filters where observations are images, or tables."""
    hidden, torso = settings.hidden, settings.torso
    match observations:
        case Discrete(n) if settings.network == "mlp" and torso is None:
            return per_visit_networks(settings, observations)
        case Box(shape) if settings.network == "mlp" and torso is None and len(shape) < 3:
            return per_visit_networks(settings, observations)
        case Discrete(n):
            if torso is not None:
                raise config.SettingsError(
                    "a torso of your own needs observations that are arrays; these are integers, and have tables"
                )
            rows_torso = heads.row_torso(n, hidden, row_scale=n**-0.5)
            head = lambda gain: lambda outputs: heads.row_head(n, rows_torso.width, outputs, gain)
            table = lambda outputs: heads.table_head(n, outputs)
            prior = lambda outputs, scale: heads.random_table(n, outputs, scale)
            gains = (head(HEAD_GAIN), head(HEAD_GAIN), head(0.0))
            return Networks(rows_torso, *gains, table, prior, per_visit=False, is_table=True)
        case Box(shape):
            make = layers.conv_net if len(shape) == 3 else layers.mlp
            if isinstance(torso, config.NotStored):
                raise config.SettingsError(
                    "the torso of this run is known to Python only: go on with it from there"
                )
            net = make(shape, hidden) if torso is None else layers.flax_net(torso, shape)
            own = heads.dense_torso(net, shape)
            return Networks(
                own,
                lambda outputs: heads.linear_head(own.width, outputs, HEAD_GAIN),
                lambda outputs: heads.separate_head(net, shape, outputs, HEAD_GAIN),
                lambda outputs: heads.linear_head(own.width, outputs, 0.0),
                lambda outputs: heads.separate_head(net, shape, outputs, 0.0),
                lambda outputs, scale: heads.random_net(make(shape, hidden), shape, outputs, scale),
                per_visit=False,
            )


def per_visit_networks(settings: config.ActorCritic, observations: Space) -> Networks:
    """A network for each head that learns at a rate per visit, and a random network as the prior."""
    network = lambda hidden, *init_scale: (
        lambda outputs: heads.mirrored_mlp(
            observations, hidden, outputs, settings.upper_percent / 100, *init_scale
        )
    )
    policy, value = network(settings.hidden, LOGIT_SCALE), network(settings.hidden)
    wide = network(settings.estimator_hidden)
    prior = lambda outputs, scale: heads.random_features(observations, PRIOR_WIDTH, outputs, scale)
    return Networks(heads.no_torso(), policy, value, wide, wide, prior, per_visit=True)


def make_parts(
    settings: config.ActorCritic,
    env: Env | HostEnv | Spec,
    seen: config.Normalise = config.NO_NORMALISATION,
) -> Parts:
    """The networks, the estimator and the attitude to risk that some settings describe."""
    networks, action_dist = make_networks(settings, env.observations), make_action_dist(env.actions)
    refused = {
        "--critic all-actions": settings.critic == "all-actions",
        "--max-logit-gap": settings.max_logit_gap is not None,
    }
    for option, is_set in refused.items():
        if is_set and isinstance(env.actions, Box):
            raise config.SettingsError(
                f"{option} needs actions that can be counted; those of {env.name} are continuous"
            )
    critic = critics.CRITICS[settings.critic]
    return Parts(
        torso=networks.torso,
        policy=networks.policy(action_dist.outputs),
        value=networks.value(critic.outputs(action_dist.n_actions)),
        uncertainty=make_uncertainty(settings.uncertainty, env, networks, action_dist.n_actions),
        risk=make_risk(settings.risk),
        critic=critic,
        action_dist=action_dist,
        normaliser=make_normaliser(settings, env, seen),
        max_logit_gap=settings.max_logit_gap,
        per_visit=networks.per_visit,
    )


def make_normaliser(
    settings: config.ActorCritic | config.BootDQN, env: Env | HostEnv | Spec, seen: config.Normalise
) -> Normaliser:
    """How the learner sees an environment."""
    is_bytes = isinstance(env.observations, Box) and env.observations.is_bytes
    credits_ends = (
        isinstance(settings, config.ActorCritic) and settings.credit_early_ends
    )  # which takes the lengths of episodes
    if seen == config.NO_NORMALISATION and not is_bytes and not credits_ends:
        return normalise.identity()
    return normalise.running(
        env.observations, env.envs, settings.gamma, seen.normalise, seen.scale_rewards
    )


def make_agent(
    settings: config.ActorCritic | config.BootDQN,
    env: Env | HostEnv | Spec,
    seen: config.Normalise = config.NO_NORMALISATION,
) -> Agent:
    """The agent that some settings describe, for an environment."""
    match settings:
        case config.ActorCritic():
            return make_actor_critic(settings, env, seen)
        case config.BootDQN():
            return make_boot_dqn(settings, env, seen)


def make_buffer(settings: config.ActorCritic | config.BootDQN, envs: int = 1) -> Buffer:
    """What that agent learns from; Bootstrapped DQN has a replay of its own."""
    match settings:
        case config.ActorCritic(buffer=config.Replay() as kept):
            return replay.prioritised(
                kept.capacity,
                kept.batch,
                kept.updates,
                kept.offline_fraction,
                kept.priority_exponent,
            )
        case config.ActorCritic(buffer=config.OnPolicy(passes, minibatch)):
            return replay.on_policy(passes, envs, minibatch)
        case _:
            return replay.on_policy(envs=envs)


def make_boot_dqn(
    settings: config.BootDQN,
    env: Env | HostEnv | Spec,
    seen: config.Normalise = config.NO_NORMALISATION,
) -> Agent:
    """Bootstrapped DQN: one Adam for the first layer, rows or weights, and for what is above it."""
    if not isinstance(env.actions, Discrete):
        why = f"those of {env.name} are continuous"
        raise config.SettingsError(f"boot-dqn needs actions that can be counted; {why}")
    adam = tables.row_adam(settings.learning_rate, settings.b1, settings.b2)
    shape = lambda n_inputs: QNetwork(settings.members, settings.hidden, n_inputs, env.actions.n)
    match env.observations:
        case Discrete(n):
            net, rule = shape(n), with_target(adam, settings.target_period)
            store = tables.make_store(rule, net.members * net.hidden[0])
            first = lookup_layer(net, store, settings.target_period)
        case Box() as box:
            net = shape(box.size)
            first = dense_layer(net)
    normaliser = make_normaliser(settings, env, seen)
    return boot_dqn(settings, Members(net, first, adam, normaliser, env.observations))


def make_actor_critic(
    settings: config.ActorCritic,
    env: Env | HostEnv | Spec,
    seen: config.Normalise = config.NO_NORMALISATION,
) -> Agent:
    """The actor-critic with the attitude to risk that some settings describe."""
    match settings.risk:
        case config.Seeking(tau0, tau_rate, tau_min, learn_tau=True):
            pass
        case config.Seeking(tau0):
            tau_rate, tau_min = 0.0, 0.0
        case _:  # nothing depends on tau
            tau0, tau_rate, tau_min = 1.0, 0.0, 0.0
    parts = make_parts(settings, env, seen)
    return actor_critic(
        settings, parts, make_optimisers(settings, parts, tau_rate, tau_min, env.envs), tau0
    )


def make_optimisers(
    settings: config.ActorCritic,
    parts: Parts,
    tau_rate: float | Array,
    tau_min: float | Array = 0.0,
    envs: int = 1,
) -> Optimisers:
    """Descent at a rate per visit for networks that are made for it and for what is a state's own; Adam for everything else."""
    rates = {
        "policy": settings.policy_rate,
        "value": settings.value_rate,
        "uncertainty": estimator_rate(settings.uncertainty),
    }
    widths = {name: getattr(parts, name).rows for name in ("torso", *rates)}
    steps = batch_size(settings, envs) * settings.rollout  # that a loss is a mean over
    tau, adam = optax.adam(tau_rate), optax.adam(settings.learning_rate, settings.b1, settings.b2)
    if parts.per_visit:
        per_step = {name: rate * steps for name, rate in rates.items()}
        rules: dict[str, Any] = {"torso": {}} | {
            name: dict.fromkeys(widths[name], tables.row_descent(rate))
            for name, rate in per_step.items()
        }
        others: tuple[str, ...] = ()
        if isinstance(
            settings.uncertainty, config.CustomEstimator
        ):  # whose networks know of no rate
            others = ("uncertainty",)
            rules["uncertainty"] = dict.fromkeys(
                widths["uncertainty"],
                tables.row_adam(settings.learning_rate, settings.b1, settings.b2),
            )
        store = (
            tables.make_store(rules, widths) if parts.policy.rows else tables.empty_store(widths)
        )
        damping = lambda obs: {
            name: visit_damping(repeats(obs), rate) for name, rate in rates.items()
        }
        slow = {
            name: 1 / jnp.maximum(1.0, rate * settings.upper_percent / 100 * RELU_CORRELATION)
            for name, rate in per_step.items()
        }
        return Optimisers(
            per_visit_descent(per_step, slow, others, adam), tau, tau_min, store, damping
        )
    dense = optax.flatten(adam)
    undamped = lambda obs: dict.fromkeys(rates, jnp.ones(obs.shape[:2]))
    if not parts.torso.rows:
        return Optimisers(dense, tau, tau_min, tables.empty_store(widths), undamped)
    rules = {
        name: dict.fromkeys(widths[name], tables.per_visit(rate, steps))
        for name, rate in rates.items()
    }
    rules["torso"] = {"first": tables.row_adam(settings.learning_rate, settings.b1, settings.b2)}
    return Optimisers(dense, tau, tau_min, tables.make_store(rules, widths), undamped)


def estimator_rate(settings: config.Estimator) -> float | Array:
    """The share of its error that an estimator's network, or its row, corrects at a visit."""
    match settings:
        case config.Ensemble():
            return settings.reward_rate
        case config.Rnd():
            return settings.predictor_rate
    return 0.0


def batch_size(settings: config.ActorCritic, envs: int) -> int:
    """Rollouts in an update."""
    if isinstance(settings.buffer, config.Replay):
        return settings.buffer.batch
    return -(-envs // -(-envs // (settings.buffer.minibatch or envs)))


def per_visit_descent(
    rates: dict[str, Any],
    upper: dict[str, Any],
    others: tuple[str, ...],
    other: optax.GradientTransformation,
) -> optax.GradientTransformation:
    """Plain gradient descent, every head at its own rate, times a factor above the first layer; `others` are moved by another optimiser."""

    def step(gradient: dict[str, Tree], state: Tree, params: Tree = None) -> tuple[Tree, Tree]:
        def moved(name: str, path: Any, g: Array) -> Array:
            return -rates[name] * g if path[0].key == "first" else -rates[name] * upper[name] * g

        own = {
            name: jax.tree_util.tree_map_with_path(partial(moved, name), gradient[name])
            for name in rates
            if name not in others
        }
        steps = {name: other.update(gradient[name], state[name]) for name in others}
        moves = {name: move for name, (move, _) in steps.items()}
        return gradient | own | moves, {name: new for name, (_, new) in steps.items()}

    return optax.GradientTransformation(
        lambda params: {name: other.init(params[name]) for name in others}, step
    )


def repeats(obs: Array) -> Array:
    """How often each observation of a batch [B, T, ...] stands in it [B, T]: of vectors, the sum of their squared positive cosines."""
    leading = obs.shape[:2]
    if jnp.issubdtype(obs.dtype, jnp.integer):
        flat = obs.reshape(-1)
        return jnp.sum(flat[:, None] == flat[None, :], axis=1).reshape(leading)
    flat = layers.on_sphere(obs.reshape(leading[0] * leading[1], -1))
    cosines = flat @ flat.T / flat.shape[1]
    return jnp.sum(jnp.square(jnp.maximum(cosines, 0.0)), axis=1).reshape(leading)


def visit_damping(repeats: Array, rate: float | Array) -> Array:
    """What m visits in a batch count for each, `1 / (1 + (m - 1) rate)`: together they correct less than the whole error."""
    return 1 / (1 + (repeats - 1) * jnp.minimum(rate, 1.0))
