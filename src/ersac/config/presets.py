"""The named agents, each a set of settings.

With `--network mlp`, the default, an agent has the same settings in every environment; only the
first layer depends on the observations (integers, vectors or images). With `--network table`, for
integer observations only, every state has its own row of parameters.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from ersac.config.agent import (
    UNCERTAINTIES,
    ActorCritic,
    BootDQN,
    CustomEstimator,
    Ensemble,
    LocalSeeking,
    Neutral,
    OnPolicy,
    Optimist,
    Posterior,
    Replay,
    Rnd,
    Seeking,
)
from ersac.config.env import DeepSea, Environment
from ersac.config.fields import SettingsError, leaves, option, override, pick, suggest

DEEP_SEA = DeepSea()

# Shared by all agents with networks.
NETWORK = ActorCritic(
    risk=Seeking(tau0=0.03, tau_min=3e-4),
    uncertainty=Ensemble(sigma_scale=0.3, reward_rate=0.3),
    buffer=OnPolicy(passes=1, minibatch=4),
    critic="expected-bonus",
    gamma=0.995,
    network="mlp",
    hidden=(128,),
    policy_rate=0.05,
    value_rate=0.3,
    advantage_limit=30.0,
    normalise_advantages=True,
    spread_share=0.25,
    spread_decay=0.99,
    credit_early_ends=True,
)

# After each rollout three batches of 16: about two of these 48 rollouts are the newest one.
NETWORK_REPLAY = dataclasses.replace(
    NETWORK,
    risk=Seeking(tau0=0.2, tau_learning_rate=0.1),
    uncertainty=Ensemble(prior_scale=0.25, noise_variance=1e-5, reward_rate=0.6),
    buffer=Replay(updates=3),
    critic="all-actions",
    rollout=20,
    gamma=0.998,
    lam=0.95,
    policy_rate=0.3,
    value_rate=0.1,
)

# PPO's form of an agent: several passes over every rollout, with clipped ratios.
CLIPPED: dict[str, Any] = {
    "objective": "clipped",
    "buffer": OnPolicy(passes=2, minibatch=4),
    "policy_rate": 0.1,
}

PRESETS: dict[str, ActorCritic | BootDQN] = {
    "ersac": NETWORK,
    "ersac-local": dataclasses.replace(
        NETWORK,
        risk=LocalSeeking(),
        # Bonuses of 0.1 add up to ten at depth 100: values change by that much at first.
        uncertainty=Ensemble(prior_scale=0.1, sigma_scale=1.0, reward_rate=0.9),
        critic_init_scale=16,
        policy_rate=0.1,
        lam=0.9,
    ),
    "ersac-local-replay": dataclasses.replace(NETWORK_REPLAY, risk=LocalSeeking()),
    "ersac-ppo": dataclasses.replace(NETWORK, **CLIPPED),
    "ersac-sampled": dataclasses.replace(NETWORK, critic="sampled"),
    "vanilla": dataclasses.replace(NETWORK, risk=Neutral()),
    "optimism": dataclasses.replace(NETWORK, risk=Optimist()),
    "ppo": dataclasses.replace(NETWORK, risk=Neutral(), **CLIPPED),
    "ppo-rnd": dataclasses.replace(NETWORK, risk=Optimist(), uncertainty=Rnd(), **CLIPPED),
    "rnd": dataclasses.replace(NETWORK, risk=Optimist(), uncertainty=Rnd()),
    "ersac-replay": NETWORK_REPLAY,
    "ersac-replay-max": dataclasses.replace(NETWORK_REPLAY, buffer=Replay(updates=6)),
    "vanilla-replay": dataclasses.replace(
        NETWORK, risk=Neutral(alpha=0.02), buffer=Replay(), critic="sampled"
    ),
    "boot-dqn": BootDQN(),
    "boot-dqn-large": BootDQN(replay=1_000_000, gamma=0.999),
}

# As in the paper, the baselines' reward heads are an auxiliary task that trains the shared layers.
AUXILIARY = Ensemble(shared_reward_heads=True, prior_scale=0.1)

TABLE_REPLAY = ActorCritic(
    risk=Seeking(tau0=0.2, tau_learning_rate=0.1),
    uncertainty=Ensemble(prior_scale=0.1, noise_variance=1e-5, reward_rate=0.6),
    buffer=Replay(),
    critic="all-actions",
    rollout=20,
    lam=0.95,
    policy_rate=0.6,
    value_rate=0.4,
)

# With the expected bonus, sigma may shrink faster and the policy may learn more slowly.
TABLE = ActorCritic(
    risk=Seeking(tau_min=3e-4),
    uncertainty=Ensemble(reward_rate=0.3),
    critic="expected-bonus",
    policy_rate=0.03,
    advantage_limit=30.0,
)

TABLE_PRESETS: dict[str, ActorCritic] = {
    "ersac": TABLE,
    "ersac-ppo": dataclasses.replace(TABLE, **CLIPPED | {"policy_rate": 0.06}),
    "ersac-local": ActorCritic(
        risk=LocalSeeking(),
        uncertainty=Ensemble(prior_scale=0.1, sigma_scale=2.5, reward_rate=0.9),
        critic="expected-bonus",
        policy_rate=0.03,
        value_rate=0.3,
        advantage_limit=30.0,
    ),
    "ersac-local-replay": dataclasses.replace(TABLE_REPLAY, risk=LocalSeeking()),
    "ersac-sampled": ActorCritic(risk=Seeking()),
    "vanilla": ActorCritic(risk=Neutral(), uncertainty=AUXILIARY),
    "optimism": ActorCritic(risk=Optimist(), uncertainty=AUXILIARY),
    "ersac-replay": TABLE_REPLAY,
    "ersac-replay-max": dataclasses.replace(
        TABLE_REPLAY, uncertainty=Posterior(), buffer=Replay(updates=4)
    ),
    "vanilla-replay": ActorCritic(risk=Neutral(alpha=0.02), uncertainty=AUXILIARY, buffer=Replay()),
}


# Parallel environments collect many rollouts at once, so each can be shorter and is used twice.
# gamma is the usual 0.99; the paper's longer horizon suits DeepSea, which is deterministic.
PARALLEL: dict[str, Any] = {"rollout": 16, "gamma": 0.99, "lam": 0.9}

# Convolutions on the CPU are fastest for few images, so every rollout has an update of its own.
LARGE_IMAGES: dict[str, Any] = {"passes": 1, "minibatch": 1}
IMAGE_LEARNING_RATE = 2.5e-4  # of Adam, which trains convolutions


def preset(
    agent_name: str,
    uncertainty: str | Callable[..., Any] | None = None,
    network: str | None = None,
    env: Environment = DEEP_SEA,
) -> ActorCritic | BootDQN:
    """The settings of a named agent in `env`, with another estimator or network if one is given.

    uncertainty: a name in UNCERTAINTIES, or a function that makes an estimator.
    """
    if network is not None and not isinstance(pick("agent", agent_name, PRESETS), ActorCritic):
        raise unknown_option(agent_name, "--network")
    tables: dict[str, dict[str, Any]] = {"mlp": PRESETS, "table": TABLE_PRESETS}
    table = pick("network", "mlp" if network is None else network, tables)
    agent: ActorCritic | BootDQN = pick("agent", agent_name, table)
    if isinstance(agent, ActorCritic) and env.envs > 1:
        agent = for_parallel_envs(agent)
    if isinstance(agent, ActorCritic) and env.large_images:
        on_policy = isinstance(agent.buffer, OnPolicy) and agent.objective == "payoff"
        changes = LARGE_IMAGES if on_policy else {}
        agent = override(agent, **changes, learning_rate=IMAGE_LEARNING_RATE)
    if uncertainty is None:
        return agent
    if not isinstance(agent, ActorCritic):
        raise unknown_option(agent_name, "--uncertainty")
    if callable(uncertainty):
        name = getattr(uncertainty, "__qualname__", type(uncertainty).__qualname__)
        return dataclasses.replace(agent, uncertainty=CustomEstimator(name, uncertainty))
    cls = pick("uncertainty", uncertainty, UNCERTAINTIES)
    if isinstance(agent.uncertainty, cls):
        return agent
    return dataclasses.replace(agent, uncertainty=cls())


def for_parallel_envs(agent: ActorCritic) -> ActorCritic:
    """The settings of an agent with its defaults for many environments in parallel."""
    changes = dict(PARALLEL)
    if isinstance(agent.buffer, Replay):
        changes["updates"] = 8
    else:
        changes["passes"] = 4 if agent.objective == "clipped" else 2
    if isinstance(agent.uncertainty, Ensemble):
        changes["sigma_scale"] = 0.1
    if isinstance(agent.risk, Seeking):
        changes["tau0"] = 0.01
    return override(agent, **changes)


def unknown_option(agent_name: str, name: str) -> SettingsError:
    """The error for an option that an agent does not have; it names the nearest that it has."""
    options = [option(path[-1], hint) for path, hint, _ in leaves(PRESETS[agent_name])]
    return SettingsError(f"unknown option {name} of agent {agent_name}{suggest(name, options)}")
