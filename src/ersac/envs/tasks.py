"""Environments of the ladder (study/ladder.py) that no package has: a lock, and grids whose layout stays."""

from typing import Any

import gymnasium

from ersac.envs import gym

LOCK_LIMIT = 100  # steps of an episode


class Lock(gymnasium.Env[int, int]):
    """Four keys; ten of them in a row open it, and a wrong one starts it over. Only how many were right is shown."""

    KEYS = "3021132010-"  # after the last one nothing fits: it closes again

    def __init__(self) -> None:
        self.observation_space, self.action_space = (
            gymnasium.spaces.Discrete(11),
            gymnasium.spaces.Discrete(4),
        )
        self.right = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Close it."""
        super().reset(seed=seed)
        self.right = 0
        return 0, {}

    def step(self, key: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Try a key."""
        self.right = self.right + 1 if str(key) == self.KEYS[self.right] else 0
        return self.right, float(self.right == 10), False, False, {}


class FixedLayout(gymnasium.Wrapper):
    """The same layout in every episode: minigrid's ReseedWrapper with one seed, which warns whenever it is given another."""

    def __init__(self, env: gymnasium.Env, layout: int) -> None:
        super().__init__(env)
        self.layout = layout

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in that layout, whatever the seed."""
        return self.env.reset(seed=self.layout, options=options)


def make_lock_env() -> gymnasium.Env:
    """The lock, with its time limit."""
    return gymnasium.wrappers.TimeLimit(Lock(), LOCK_LIMIT)


def fixed_grid(name: str, layout: int) -> gymnasium.Env:
    """A grid of minigrid, observed as codes, that keeps one layout."""
    return FixedLayout(gym.resolve(name)(), layout)
