"""Named agents: each a frozen set of settings. No jax here, so that names are checked before it is imported."""

from ersac.config import ActorCritic, Neutral, Optimist, Seeking

PRESETS: dict[str, ActorCritic] = {
    "ersac": ActorCritic(risk=Seeking()),
    "vanilla": ActorCritic(risk=Neutral()),
    "optimism": ActorCritic(risk=Optimist()),
}
