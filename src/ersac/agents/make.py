"""Settings to agents."""

import optax

from ersac import config, nets, rows
from ersac import risk as risks
from ersac.agents.actor_critic import Optimisers, Parts, actor_critic
from ersac.agents.base import Agent
from ersac.agents.boot_dqn import Net, boot_dqn, trailing
from ersac.envs.base import Env
from ersac.risk import Risk
from ersac.types import Array
from ersac.uncertainty.base import Uncertainty
from ersac.uncertainty.counts import visit_counts
from ersac.uncertainty.ensemble import reward_ensemble

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


def make_uncertainty(settings: config.Ensemble | config.Counts, env: Env, width: int) -> Uncertainty:
    """The estimator that some settings describe."""
    match settings:
        case config.Ensemble():
            outputs = settings.members * env.n_actions
            head = nets.row_head(env.n_states, width, outputs, gain=0.0) if settings.shared else nets.table_head(env.n_states, outputs)
            return reward_ensemble(head, env.n_states, env.n_actions, settings.members, settings.prior_scale, settings.sigma_scale)
        case config.Counts():
            return visit_counts(env.n_states, env.n_actions, settings.sigma_scale)


def make_parts(settings: config.ActorCritic, env: Env) -> Parts:
    """The networks, the estimator and the attitude to risk that some settings describe."""
    torso = nets.row_torso(env.n_states, settings.hidden, row_scale=env.n_states**-0.5)
    return Parts(
        torso=torso,
        policy=nets.row_head(env.n_states, torso.width, env.n_actions, HEAD_GAIN),
        value=nets.row_head(env.n_states, torso.width, 1, HEAD_GAIN),
        uncertainty=make_uncertainty(settings.uncertainty, env, torso.width),
        risk=make_risk(settings.risk),
    )


def make_agent(settings: config.ActorCritic | config.BootDQN, env: Env) -> Agent:
    """The agent that some settings describe, for an environment."""
    match settings:
        case config.ActorCritic():
            return make_actor_critic(settings, env)
        case config.BootDQN():
            return make_boot_dqn(settings, env)


def make_boot_dqn(settings: config.BootDQN, env: Env) -> Agent:
    """Bootstrapped DQN: one Adam for the rows of the first layer and for what is above it."""
    net = Net(settings.members, settings.hidden, env.n_states, env.n_actions)
    adam = rows.adam(settings.learning_rate, settings.b1, settings.b2)
    return boot_dqn(settings, net, adam, rows.store(trailing(adam, settings.target_period), net.members * net.hidden[0]))


def make_actor_critic(settings: config.ActorCritic, env: Env) -> Agent:
    """The actor-critic with the attitude to risk that some settings describe."""
    match settings.risk:
        case config.Seeking(tau0, tau_rate):
            pass
        case _:  # nothing depends on tau
            tau0, tau_rate = 1.0, 0.0
    parts = make_parts(settings, env)
    return actor_critic(settings, parts, make_optimisers(settings, parts, tau_rate), tau0, env.n_actions)


def make_optimisers(settings: config.ActorCritic, parts: Parts, tau_rate: float | Array) -> Optimisers:
    """Adam for what states share; plain descent at a rate per visit for what is a state's own."""
    reward_rate = settings.uncertainty.reward_rate if isinstance(settings.uncertainty, config.Ensemble) else 0.0
    rates = {"policy": settings.policy_rate, "value": settings.value_rate, "uncertainty": reward_rate}
    widths = {name: getattr(parts, name).rows for name in ("torso", *rates)}
    rules = {name: dict.fromkeys(widths[name], rows.per_visit(rate, settings.rollout)) for name, rate in rates.items()}
    rules["torso"] = {"first": rows.adam(settings.learning_rate, settings.b1, settings.b2)}
    dense = optax.flatten(optax.adam(settings.learning_rate, settings.b1, settings.b2))
    return Optimisers(dense, optax.adam(tau_rate), rows.store(rules, widths))
