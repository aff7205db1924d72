"""Named agents: each a frozen set of settings. No jax here, so that names are checked before it is imported."""

import dataclasses

from ersac import config
from ersac.config import ActorCritic, BootDQN, Ensemble, Neutral, Optimist, Seeking

AUXILIARY = Ensemble(shared=True)  # the baselines have the reward heads as the paper has them: a task that trains the shared layers

PRESETS: dict[str, ActorCritic | BootDQN] = {
    "ersac": ActorCritic(risk=Seeking()),
    "vanilla": ActorCritic(risk=Neutral(), uncertainty=AUXILIARY),
    "optimism": ActorCritic(risk=Optimist(), uncertainty=AUXILIARY),
    "boot-dqn": BootDQN(),
    "boot-dqn-large": BootDQN(replay=1_000_000, gamma=0.999),
}


def preset(agent: str, uncertainty: str | None = None) -> ActorCritic | BootDQN:
    """A named agent, with another source of sigma if one is named."""
    learner = config.pick("agent", agent, PRESETS)
    if uncertainty is None:
        return learner
    if not isinstance(learner, ActorCritic):
        options = [config.option(path[-1], hint) for path, hint, _ in config.leaves(learner)]
        raise config.SettingsError(f"unknown option --uncertainty of agent {agent}{config.nearest('--uncertainty', options)}")
    kind = config.pick("uncertainty", uncertainty, config.UNCERTAINTIES)
    return learner if isinstance(learner.uncertainty, kind) else dataclasses.replace(learner, uncertainty=kind())
