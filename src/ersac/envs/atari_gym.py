"""A single Atari game as a Gymnasium environment, for videos and for acting on one's own.

Its observations are single frames, which the codec of a policy stacks as it does for every
Gymnasium environment; it renders the screen of the emulator in colour.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ersac import config
from ersac.envs.atari import MAX_SEED, SIDE, Emulator

FRAMES_PER_SECOND = 60  # of the console


class AtariGame(gymnasium.Env):
    """One game with the settings of a run."""

    def __init__(self, settings: config.Atari, render_mode: str | None = None) -> None:
        self.emulator, self.render_mode = Emulator(settings), render_mode
        self.observation_space = spaces.Box(0, 255, (SIDE, SIDE, 1), np.uint8)
        self.action_space = spaces.Discrete(len(self.emulator.actions))
        fps = FRAMES_PER_SECOND / settings.frame_skip
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": fps}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start a game."""
        frame = self.emulator.reset(None if seed is None else 1 + seed % MAX_SEED)
        return frame[..., None], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Repeat an action for the frames of a step."""
        frame, reward, terminated, truncated = self.emulator.step(int(action))
        return frame[..., None], reward, terminated, truncated, {}

    def render(self) -> np.ndarray:
        """The screen [height, width, 3], each pixel twice as wide, as on a television."""
        return np.repeat(self.emulator.ale.getScreenRGB(), 2, axis=1)
