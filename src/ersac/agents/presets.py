"""Named agents: each a frozen set of settings. No jax here, so that names are checked before it is imported.

With `--network mlp`, the default, a name is one set of settings for every environment: what differs between observations that are integers,
vectors and images is how the network begins. With `--network table`, for integer observations only, every state has rows of its own.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from ersac import config
from ersac.config import (
    ActorCritic,
    BootDQN,
    Ensemble,
    Neutral,
    OnPolicy,
    Optimist,
    Posterior,
    Replay,
    Rnd,
    Seeking,
)

DEEP_SEA = config.DeepSea()

# What all agents with networks have. The scale of advantages is a third of their running root mean square, or the entropy weight.
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

# Three batches of sixteen rollouts after each, two of the 48 fresh.
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

PRESETS: dict[str, ActorCritic | BootDQN] = {
    "ersac": NETWORK,
    "ersac-sampled": dataclasses.replace(NETWORK, critic="sampled"),
    "vanilla": dataclasses.replace(NETWORK, risk=Neutral()),
    "optimism": dataclasses.replace(NETWORK, risk=Optimist()),
    "rnd": dataclasses.replace(NETWORK, risk=Optimist(), uncertainty=Rnd()),
    "ersac-replay": NETWORK_REPLAY,
    "ersac-replay-max": dataclasses.replace(NETWORK_REPLAY, buffer=Replay(updates=6)),
    "vanilla-replay": dataclasses.replace(
        NETWORK, risk=Neutral(alpha=0.02), buffer=Replay(), critic="sampled"
    ),
    "boot-dqn": BootDQN(),
    "boot-dqn-large": BootDQN(replay=1_000_000, gamma=0.999),
}

# The baselines have the reward heads as the paper has them, a task that trains the shared layers, and are tuned with this prior.
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

TABLE_PRESETS: dict[str, ActorCritic] = {
    # Where the bonus of every action is known, sigma may fall faster, the policy follow more slowly, and what is far away count for more.
    "ersac": ActorCritic(
        risk=Seeking(tau_min=3e-4),
        uncertainty=Ensemble(reward_rate=0.3),
        critic="expected-bonus",
        policy_rate=0.03,
        advantage_limit=30.0,
    ),
    "ersac-sampled": ActorCritic(risk=Seeking()),
    "vanilla": ActorCritic(risk=Neutral(), uncertainty=AUXILIARY),
    "optimism": ActorCritic(risk=Optimist(), uncertainty=AUXILIARY),
    "ersac-replay": TABLE_REPLAY,
    "ersac-replay-max": dataclasses.replace(
        TABLE_REPLAY, uncertainty=Posterior(), buffer=Replay(updates=4)
    ),
    "vanilla-replay": ActorCritic(risk=Neutral(alpha=0.02), uncertainty=AUXILIARY, buffer=Replay()),
}


# Many environments bring many rollouts at once, so each may be shorter and is learned from twice. Their discount is the field's; the
# longer one of the paper is for its one environment, in which nothing is random.
SIDE_BY_SIDE: dict[str, Any] = {"rollout": 16, "gamma": 0.99, "lam": 0.9}


def preset(
    agent: str,
    uncertainty: str | Callable[..., Any] | None = None,
    network: str | None = None,
    env: config.Environment = DEEP_SEA,
) -> ActorCritic | BootDQN:
    """A named agent, with another source of sigma or another network if one is named, for as many environments side by side."""
    presets: dict[str, Any] = {"mlp": PRESETS, "table": TABLE_PRESETS}
    if network is not None and not isinstance(config.pick("agent", agent, PRESETS), ActorCritic):
        raise unknown_option(agent, "--network")
    learner = config.pick(
        "agent", agent, config.pick("network", "mlp" if network is None else network, presets)
    )
    if isinstance(learner, ActorCritic) and env.envs > 1:
        learner = side_by_side(learner)
    if uncertainty is None:
        return learner
    if not isinstance(learner, ActorCritic):
        raise unknown_option(agent, "--uncertainty")
    if callable(uncertainty):
        name = getattr(uncertainty, "__qualname__", type(uncertainty).__qualname__)
        return dataclasses.replace(learner, uncertainty=config.CustomEstimator(name, uncertainty))
    kind = config.pick("uncertainty", uncertainty, config.UNCERTAINTIES)
    return (
        learner
        if isinstance(learner.uncertainty, kind)
        else dataclasses.replace(learner, uncertainty=kind())
    )


def side_by_side(learner: ActorCritic) -> ActorCritic:
    """A named agent as it is with many environments."""
    often = {"updates": 8} if isinstance(learner.buffer, Replay) else {"passes": 2}
    quiet = {"sigma_scale": 0.1} if isinstance(learner.uncertainty, Ensemble) else {}
    warm = {"tau0": 0.01} if isinstance(learner.risk, Seeking) else {}
    return config.override(learner, **SIDE_BY_SIDE, **often, **quiet, **warm)


def unknown_option(agent: str, name: str) -> config.SettingsError:
    """What is said of an option that an agent has not, with the nearest that it has."""
    options = [config.option(path[-1], hint) for path, hint, _ in config.leaves(PRESETS[agent])]
    return config.SettingsError(
        f"unknown option {name} of agent {agent}{config.nearest(name, options)}"
    )
