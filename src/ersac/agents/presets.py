"""Named agents: each a frozen set of settings. No jax here, so that names are checked before it is imported."""

import dataclasses
from collections.abc import Callable
from typing import Any

from ersac import config
from ersac.config import ActorCritic, BootDQN, Ensemble, Neutral, Optimist, Posterior, Replay, Seeking

AT_SEA = config.DeepSea()

# The baselines have the reward heads as the paper has them, a task that trains the shared layers, and are tuned with this prior.
AUXILIARY = Ensemble(shared=True, prior_scale=0.1)

# Two batches of sixteen after each rollout, one of the 32 fresh.
REPLAYED = ActorCritic(
    risk=Seeking(tau0=0.2, tau_learning_rate=0.1),
    uncertainty=Ensemble(prior_scale=0.1, noise_variance=1e-5, reward_rate=0.6),
    feed=Replay(),
    every_action=True,
    rollout=20,
    lam=0.95,
    policy_rate=0.6,
    value_rate=0.4,
)

# Where the bonus of every action is known, sigma may fall faster, the policy follow more slowly, and what is far away count for more.
EXPECTING = ActorCritic(
    risk=Seeking(tau_least=3e-4), uncertainty=Ensemble(reward_rate=0.3), every_bonus=True, policy_rate=0.03, advantage_limit=30.0
)

PRESETS: dict[str, ActorCritic | BootDQN] = {
    "ersac": ActorCritic(risk=Seeking()),
    "ersac-expected": EXPECTING,
    "vanilla": ActorCritic(risk=Neutral(), uncertainty=AUXILIARY),
    "optimism": ActorCritic(risk=Optimist(), uncertainty=AUXILIARY),
    "ersac-replay": REPLAYED,
    "ersac-replay-max": dataclasses.replace(REPLAYED, uncertainty=Posterior(), feed=Replay(updates=4)),
    "vanilla-replay": ActorCritic(risk=Neutral(alpha=0.02), uncertainty=AUXILIARY, feed=Replay()),
    "boot-dqn": BootDQN(),
    "boot-dqn-large": BootDQN(replay=1_000_000, gamma=0.999),
}


# Away from the sea chance has a say, and the discount is not the paper's: what an update sees is many environments, a few steps each.
# Networks never come to agree as tables do: what is left of sigma where all is known would be sought for ever, so it counts half.
ABROAD: dict[str, Any] = {"gamma": 0.995, "lam": 0.95, "rollout": 16, "by_spread": True, "past_ends": True, "sigma_scale": 0.5}

# There replay is what the paper makes of it, with the sampled critic: K of every action is learned too slowly where it is no table, and a
# rate that is right where an action has one outcome is far too fast where it has many.
REPLAYED_ABROAD = ActorCritic(risk=Seeking(), uncertainty=Ensemble(prior_scale=0.1, noise_variance=1e-5), feed=Replay())


# Sixteen environments bring as many rollouts at once: eight updates follow, not two. What is climbed that often needs less of sigma.
WITH_REPLAY_ABROAD = {"updates": 8, "sigma_scale": 0.25}


def abroad(learner: ActorCritic | BootDQN) -> ActorCritic | BootDQN:
    """A named agent as it is away from the sea."""
    if not isinstance(learner, ActorCritic):
        return learner
    return config.override(learner, **ABROAD | (WITH_REPLAY_ABROAD if isinstance(learner.feed, Replay) else {}))


PRESETS_ABROAD = {agent: abroad(learner) for agent, learner in (PRESETS | {"ersac-replay": REPLAYED_ABROAD}).items()}


def preset(agent: str, uncertainty: str | Callable[..., Any] | None = None, env: config.Environment = AT_SEA) -> ActorCritic | BootDQN:
    """A named agent, with another source of sigma if one is named, as it is for an environment of that kind."""
    learner = config.pick("agent", agent, PRESETS if isinstance(env, config.DeepSea) else PRESETS_ABROAD)
    if uncertainty is None:
        return learner
    if not isinstance(learner, ActorCritic):
        options = [config.option(path[-1], hint) for path, hint, _ in config.leaves(learner)]
        raise config.SettingsError(f"unknown option --uncertainty of agent {agent}{config.nearest('--uncertainty', options)}")
    if callable(uncertainty):
        name = getattr(uncertainty, "__qualname__", type(uncertainty).__qualname__)
        return dataclasses.replace(learner, uncertainty=config.Own(name, uncertainty))
    kind = config.pick("uncertainty", uncertainty, config.UNCERTAINTIES)
    if isinstance(env, config.DeepSea) and kind is config.Rnd:
        raise config.SettingsError("--uncertainty rnd is for observations that are arrays; at sea choose ensemble, posterior or counts")
    return learner if isinstance(learner.uncertainty, kind) else dataclasses.replace(learner, uncertainty=kind())
