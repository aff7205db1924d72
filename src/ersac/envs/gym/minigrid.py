"""MiniGrid and BabyAI: symbolic observations, and one layout for all episodes."""

import importlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

ID_PREFIXES = ("MiniGrid-", "BabyAI-")


def symbolic(env: gymnasium.Env) -> gymnasium.Env:
    """A grid whose image space is MultiDiscrete, so that `observation_codec` makes it one-hot.

    minigrid declares the image as bytes, but each cell holds the index of one of 11 objects, of 6
    colours and of 3 states. The mission, a sentence, is left out.
    """
    constants = importlib.import_module("minigrid.core.constants")
    sizes = [len(constants.OBJECT_TO_IDX), len(constants.COLOR_TO_IDX), len(constants.STATE_TO_IDX)]
    declared = env.observation_space
    assert isinstance(declared, spaces.Dict)
    image = spaces.MultiDiscrete(np.broadcast_to(sizes, declared["image"].shape or ()))
    space = spaces.Dict({"direction": declared["direction"], "image": image})
    return gymnasium.wrappers.TransformObservation(
        env, lambda obs: {key: obs[key] for key in space}, space
    )


class FixedLayout(gymnasium.Wrapper):
    """The same layout in every episode.

    minigrid's ReseedWrapper with one seed does the same, but warns at every other seed it is given.
    """

    def __init__(self, env: gymnasium.Env, layout: int) -> None:
        super().__init__(env)
        self.layout = layout

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in the fixed layout, whatever the seed."""
        return self.env.reset(seed=self.layout, options=options)
