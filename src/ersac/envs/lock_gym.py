"""A combination lock as a Gymnasium environment, for the exploration ladder (sweeps/ladder.py)."""

from typing import Any

import gymnasium

TIME_LIMIT = 100  # steps in an episode


class CombinationLock(gymnasium.Env[int, int]):
    """Ten right keys in a row, out of four keys, open the lock and pay 1; a wrong key starts over.

    The observation is the number of right keys so far.
    """

    KEYS = "3021132010-"  # no key matches '-': once open, the next key closes the lock again

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Discrete(11)
        self.action_space = gymnasium.spaces.Discrete(4)
        self.right = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Close the lock."""
        super().reset(seed=seed)
        self.right = 0
        return 0, {}

    def step(self, key: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Try a key."""
        self.right = self.right + 1 if str(key) == self.KEYS[self.right] else 0
        return self.right, float(self.right == 10), False, False, {}


class LimitedLock(gymnasium.wrappers.TimeLimit):
    """The lock with its time limit."""

    def __init__(self) -> None:
        super().__init__(CombinationLock(), TIME_LIMIT)


def make_lock_env() -> gymnasium.Env:
    """The lock with its time limit."""
    return LimitedLock()
