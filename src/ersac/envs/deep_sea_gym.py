"""DeepSea as a Gymnasium environment with one-hot observations, for networks."""

from typing import Any

import gymnasium
import numpy as np

from ersac.envs.deep_sea import MOVE_COST, action_map


class OneHotDeepSea(gymnasium.Env[np.ndarray, int]):
    """Deterministic DeepSea; `noise` uninformative entries of N(0, 1) follow the one-hot cell."""

    def __init__(self, depth: int, seed: int, noise: int = 0) -> None:
        self.depth, self.noise = depth, noise
        self.right = action_map(depth, seed)  # the action that moves right in each cell
        cells, entries = np.ones(depth * depth, np.float32), np.full(noise, np.inf, np.float32)
        low, high = np.concatenate([0 * cells, -entries]), np.concatenate([cells, entries])
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.row = self.column = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start in the top left corner."""
        super().reset(seed=seed)
        self.row = self.column = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move one row down, and one column to the left or to the right."""
        moves_right = bool(action == self.right[self.row, self.column])
        treasure = moves_right and self.column == self.depth - 1  # tested before moving
        reward = float(treasure) - (MOVE_COST / self.depth if moves_right else 0.0)
        self.row += 1
        self.column = (
            min(self.column + 1, self.depth - 1) if moves_right else max(self.column - 1, 0)
        )
        ended = self.row == self.depth
        return self._observation(), reward, ended, False, {"is_success": treasure} if ended else {}

    def _observation(self) -> np.ndarray:
        """The one-hot cell, below the last row zeros as in bsuite, then noise, new at each step."""
        obs = np.zeros(self.depth * self.depth + self.noise, np.float32)
        if self.row < self.depth:
            obs[self.row * self.depth + self.column] = 1
        if self.noise:
            obs[-self.noise :] = self.np_random.standard_normal(self.noise)
        return obs
