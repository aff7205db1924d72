"""Settings to agents."""

from collections.abc import Callable
from typing import Any, NamedTuple

import optax

from ersac import config, feeds, lenses, nets, rows
from ersac import risk as risks
from ersac.agents import critics
from ersac.agents.actor_critic import Optimisers, Parts, actor_critic
from ersac.agents.base import Agent
from ersac.agents.boot_dqn import Members, Net, boot_dqn, looked_up, multiplied, trailing
from ersac.envs.base import Box, Discrete, Env, HostEnv, Space, Spec, spec_of
from ersac.feeds import Feed
from ersac.lenses import Lens
from ersac.policies import make_policy
from ersac.risk import Risk
from ersac.types import Array
from ersac.uncertainty.base import Uncertainty
from ersac.uncertainty.counts import visit_counts
from ersac.uncertainty.ensemble import reward_ensemble
from ersac.uncertainty.posterior import posterior_ensemble
from ersac.uncertainty.rnd import random_network_distillation

HEAD_GAIN = 0.01  # small, so that the first policy is uniform and the first values are zero


def make_risk(settings: config.Seeking | config.Neutral | config.Optimist) -> Risk:
    """The attitude to risk that some settings describe."""
    match settings:
        case config.Seeking(learn_tau=True):
            return risks.seeking()
        case config.Seeking():
            return risks.frozen(risks.seeking())
        case config.Neutral(alpha):
            return risks.neutral(alpha)
        case config.Optimist(mu, alpha):
            return risks.optimist(mu, alpha)


def make_uncertainty(settings: config.Estimator, env: Env | HostEnv | Spec, parts: "Networks", n_actions: int) -> Uncertainty:
    """The estimator that some settings describe, for so many actions."""
    match settings, env.observations:
        case config.Ensemble(), observations:
            outputs = settings.members * n_actions
            head = parts.reward_head(outputs) if settings.shared else parts.own_head(outputs)
            counted = observations.n if isinstance(observations, Discrete) else None
            scales = (settings.prior_scale, settings.noise_variance, settings.sigma_scale)
            return reward_ensemble(head, parts.prior(outputs, settings.prior_scale), counted, n_actions, settings.members, *scales)
        case config.Rnd(), Box(shape):
            return random_network_distillation(parts.net, shape, n_actions, settings.outputs, settings.sigma_scale)
        case config.Posterior(), Discrete(n):
            scales = (settings.prior_scale, settings.noise_variance, settings.sigma_scale)
            return posterior_ensemble(n, n_actions, settings.members, *scales)
        case config.Counts(), Discrete(n):
            return visit_counts(n, n_actions, settings.sigma_scale)
        case config.Own(name, estimator), _:
            if not callable(estimator):
                raise config.SettingsError(f"the estimator {name} is known to Python only: go on with this run from there")
            return estimator(spec_of(env), n_actions)
    name = next(name for name, kind in config.UNCERTAINTIES.items() if isinstance(settings, kind))
    served = "ensemble or rnd" if isinstance(env.observations, Box) else "ensemble, posterior or counts"
    raise config.SettingsError(f"--uncertainty {name} does not fit the observations of {env.name}: choose {served}")


class Networks(NamedTuple):
    """What is built for a space of observations: rows where they are integers, layers or filters where they are arrays."""

    torso: nets.Torso
    policy: Callable[[int], nets.Head]  # outputs -> head
    value: Callable[[int], nets.Head]
    reward_head: Callable[[int], nets.Head]  # which reads the shared features, and trains them
    own_head: Callable[[int], nets.Head]  # which shares nothing
    prior: Callable[[int, float], nets.Net]  # outputs, scale
    net: nets.Net  # a torso by itself, for whoever wants one more


def make_networks(observations: Space, hidden: tuple[int, ...], torso: Any = None) -> Networks:
    """The networks that fit a space; `torso`: a flax module that is to be used instead of ours."""
    match observations:
        case Discrete(n):
            if torso is not None:
                raise config.SettingsError("a torso of your own needs observations that are arrays; these are integers, and have tables")
            rows_torso = nets.row_torso(n, hidden, row_scale=n**-0.5)
            head = lambda gain: lambda outputs: nets.row_head(n, rows_torso.width, outputs, gain)
            table = lambda outputs: nets.table_head(n, outputs)
            prior = lambda outputs, scale: nets.random_table(n, outputs, scale)
            no_net = nets.Net(lambda rng: {}, lambda params, obs: obs)
            return Networks(rows_torso, head(HEAD_GAIN), head(HEAD_GAIN), head(0.0), table, prior, no_net)
        case Box(shape):
            make = nets.convolutional if len(shape) == 3 else nets.mlp
            if isinstance(torso, config.Kept):
                raise config.SettingsError("the torso of this run is known to Python only: go on with it from there")
            net = make(shape, hidden) if torso is None else nets.flax_net(torso, shape)
            own = nets.dense_torso(net, shape)
            return Networks(
                own,
                lambda outputs: nets.linear_head(own.width, outputs, HEAD_GAIN),
                lambda outputs: nets.apart(net, shape, outputs, HEAD_GAIN),
                lambda outputs: nets.linear_head(own.width, outputs, 0.0),
                lambda outputs: nets.apart(net, shape, outputs, 0.0),
                lambda outputs, scale: nets.random_net(make(shape, hidden), shape, outputs, scale),
                net,
            )


def make_parts(settings: config.ActorCritic, env: Env | HostEnv | Spec, seen: config.Seen = config.PLAIN) -> Parts:
    """The networks, the estimator and the attitude to risk that some settings describe."""
    networks, kind = make_networks(env.observations, settings.hidden, settings.torso), make_policy(env.actions)
    for name in ("every_action", "every_bonus", "logit_limit"):
        if getattr(settings, name) and isinstance(env.actions, Box):
            raise config.SettingsError(f"{config.option(name)} needs actions that can be counted; those of {env.name} are continuous")
    critic = critics.EVERY if settings.every_action else critics.EXPECTED if settings.every_bonus else critics.SAMPLED
    return Parts(
        torso=networks.torso,
        policy=networks.policy(kind.outputs),
        value=networks.value(critic.outputs(kind.n_actions)),
        uncertainty=make_uncertainty(settings.uncertainty, env, networks, kind.n_actions),
        risk=make_risk(settings.risk),
        critic=critic,
        kind=kind,
        lens=make_lens(settings, env, seen),
        bound=make_bound(settings.logit_limit),
    )


def make_bound(limit: int | None) -> Callable[[Array], Array]:
    """How far logits may differ."""
    return (lambda logits: logits) if limit is None else (lambda logits: nets.bounded(logits, limit))


def make_lens(settings: config.ActorCritic | config.BootDQN, env: Env | HostEnv | Spec, seen: config.Seen) -> Lens:
    """How the learner sees an environment."""
    if seen == config.PLAIN and not (isinstance(env.observations, Box) and env.observations.is_bytes):
        return lenses.plain()
    return lenses.relative(env.observations, env.envs, settings.gamma, seen.normalise, seen.scale_rewards)


def make_agent(settings: config.ActorCritic | config.BootDQN, env: Env | HostEnv | Spec, seen: config.Seen = config.PLAIN) -> Agent:
    """The agent that some settings describe, for an environment."""
    match settings:
        case config.ActorCritic():
            return make_actor_critic(settings, env, seen)
        case config.BootDQN():
            return make_boot_dqn(settings, env, seen)


def make_feed(settings: config.ActorCritic | config.BootDQN) -> Feed:
    """What that agent learns from; Bootstrapped DQN has a replay of its own."""
    match settings:
        case config.ActorCritic(feed=config.Replay() as kept):
            return feeds.replay(kept.capacity, kept.batch, kept.updates, kept.offline_fraction, kept.priority_exponent)
        case _:
            return feeds.fresh()


def make_boot_dqn(
    settings: config.BootDQN,
    env: Env | HostEnv | Spec,
    seen: config.Seen = config.PLAIN,
) -> Agent:
    """Bootstrapped DQN: one Adam for the first layer, rows or weights, and for what is above it."""
    if not isinstance(env.actions, Discrete):
        why = f"those of {env.name} are continuous"
        raise config.SettingsError(f"boot-dqn needs actions that can be counted; {why}")
    adam = rows.adam(settings.learning_rate, settings.b1, settings.b2)
    shape = lambda n_inputs: Net(settings.members, settings.hidden, n_inputs, env.actions.n)
    match env.observations:
        case Discrete(n):
            net, rule = shape(n), trailing(adam, settings.target_period)
            store = rows.store(rule, net.members * net.hidden[0])
            first = looked_up(net, store, settings.target_period)
        case Box() as box:
            net = shape(box.size)
            first = multiplied(net)
    lens = make_lens(settings, env, seen)
    return boot_dqn(settings, Members(net, first, adam, lens, env.observations))


def make_actor_critic(settings: config.ActorCritic, env: Env | HostEnv | Spec, seen: config.Seen = config.PLAIN) -> Agent:
    """The actor-critic with the attitude to risk that some settings describe."""
    match settings.risk:
        case config.Seeking(tau0, tau_rate, tau_least, learn_tau=True):
            pass
        case config.Seeking(tau0):
            tau_rate, tau_least = 0.0, 0.0
        case _:  # nothing depends on tau
            tau0, tau_rate, tau_least = 1.0, 0.0, 0.0
    parts = make_parts(settings, env, seen)
    return actor_critic(settings, parts, make_optimisers(settings, parts, tau_rate, tau_least, env.envs), tau0)


def make_optimisers(
    settings: config.ActorCritic, parts: Parts, tau_rate: float | Array, tau_least: float | Array = 0.0, envs: int = 1
) -> Optimisers:
    """Adam for what states share; plain descent at a rate per visit for what is a state's own."""
    reward_rate = settings.uncertainty.reward_rate if isinstance(settings.uncertainty, config.Ensemble) else 0.0
    rates = {"policy": settings.policy_rate, "value": settings.value_rate, "uncertainty": reward_rate}
    batch = settings.feed.batch if isinstance(settings.feed, config.Replay) else envs
    widths = {name: getattr(parts, name).rows for name in ("torso", *rates)}
    dense = optax.flatten(optax.adam(settings.learning_rate, settings.b1, settings.b2))
    if not parts.torso.rows:
        return Optimisers(dense, optax.adam(tau_rate), tau_least, rows.nothing(widths))
    rules = {name: dict.fromkeys(widths[name], rows.per_visit(rate, batch * settings.rollout)) for name, rate in rates.items()}
    rules["torso"] = {"first": rows.adam(settings.learning_rate, settings.b1, settings.b2)}
    return Optimisers(dense, optax.adam(tau_rate), tau_least, rows.store(rules, widths))
