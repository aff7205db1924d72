"""Settings to agents."""

import optax

from ersac import config, feeds, nets, rows
from ersac import risk as risks
from ersac.agents import critics
from ersac.agents.actor_critic import Optimisers, Parts, actor_critic
from ersac.agents.base import Agent
from ersac.agents.boot_dqn import Net, boot_dqn, trailing
from ersac.envs.base import Env
from ersac.feeds import Feed
from ersac.risk import Risk
from ersac.types import Array
from ersac.uncertainty.base import Uncertainty
from ersac.uncertainty.counts import visit_counts
from ersac.uncertainty.ensemble import reward_ensemble
from ersac.uncertainty.posterior import posterior_ensemble

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


def make_uncertainty(settings: config.Ensemble | config.Posterior | config.Counts, env: Env, width: int) -> Uncertainty:
    """The estimator that some settings describe."""
    match settings:
        case config.Ensemble():
            outputs = settings.members * env.n_actions
            head = nets.row_head(env.n_states, width, outputs, gain=0.0) if settings.shared else nets.table_head(env.n_states, outputs)
            scales = (settings.prior_scale, settings.noise_variance, settings.sigma_scale)
            return reward_ensemble(head, env.n_states, env.n_actions, settings.members, *scales)
        case config.Posterior():
            scales = (settings.prior_scale, settings.noise_variance, settings.sigma_scale)
            return posterior_ensemble(env.n_states, env.n_actions, settings.members, *scales)
        case config.Counts():
            return visit_counts(env.n_states, env.n_actions, settings.sigma_scale)


def make_parts(settings: config.ActorCritic, env: Env) -> Parts:
    """The networks, the estimator and the attitude to risk that some settings describe."""
    torso = nets.row_torso(env.n_states, settings.hidden, row_scale=env.n_states**-0.5)
    critic = critics.EVERY if settings.every_action else critics.SAMPLED
    return Parts(
        torso=torso,
        policy=nets.row_head(env.n_states, torso.width, env.n_actions, HEAD_GAIN),
        value=nets.row_head(env.n_states, torso.width, critic.outputs(env.n_actions), HEAD_GAIN),
        uncertainty=make_uncertainty(settings.uncertainty, env, torso.width),
        risk=make_risk(settings.risk),
        critic=critic,
    )


def make_agent(settings: config.ActorCritic | config.BootDQN, env: Env) -> Agent:
    """The agent that some settings describe, for an environment."""
    match settings:
        case config.ActorCritic():
            return make_actor_critic(settings, env)
        case config.BootDQN():
            return make_boot_dqn(settings, env)


def make_feed(settings: config.ActorCritic | config.BootDQN) -> Feed:
    """What that agent learns from; Bootstrapped DQN has a replay of its own."""
    match settings:
        case config.ActorCritic(feed=config.Replay() as kept):
            return feeds.replay(kept.capacity, kept.batch, kept.updates, kept.offline_fraction, kept.priority_exponent)
        case _:
            return feeds.fresh()


def make_boot_dqn(settings: config.BootDQN, env: Env) -> Agent:
    """Bootstrapped DQN: one Adam for the rows of the first layer and for what is above it."""
    net = Net(settings.members, settings.hidden, env.n_states, env.n_actions)
    adam = rows.adam(settings.learning_rate, settings.b1, settings.b2)
    return boot_dqn(settings, net, adam, rows.store(trailing(adam, settings.target_period), net.members * net.hidden[0]))


def make_actor_critic(settings: config.ActorCritic, env: Env) -> Agent:
    """The actor-critic with the attitude to risk that some settings describe."""
    match settings.risk:
        case config.Seeking(tau0, tau_rate, tau_least, learn_tau=True):
            pass
        case config.Seeking(tau0):
            tau_rate, tau_least = 0.0, 0.0
        case _:  # nothing depends on tau
            tau0, tau_rate, tau_least = 1.0, 0.0, 0.0
    parts = make_parts(settings, env)
    return actor_critic(settings, parts, make_optimisers(settings, parts, tau_rate, tau_least), tau0, env.n_actions)


def make_optimisers(settings: config.ActorCritic, parts: Parts, tau_rate: float | Array, tau_least: float | Array = 0.0) -> Optimisers:
    """Adam for what states share; plain descent at a rate per visit for what is a state's own."""
    reward_rate = settings.uncertainty.reward_rate if isinstance(settings.uncertainty, config.Ensemble) else 0.0
    rates = {"policy": settings.policy_rate, "value": settings.value_rate, "uncertainty": reward_rate}
    batch = settings.feed.batch if isinstance(settings.feed, config.Replay) else 1
    widths = {name: getattr(parts, name).rows for name in ("torso", *rates)}
    rules = {name: dict.fromkeys(widths[name], rows.per_visit(rate, batch * settings.rollout)) for name, rate in rates.items()}
    rules["torso"] = {"first": rows.adam(settings.learning_rate, settings.b1, settings.b2)}
    dense = optax.flatten(optax.adam(settings.learning_rate, settings.b1, settings.b2))
    return Optimisers(dense, optax.adam(tau_rate), tau_least, rows.store(rules, widths))
