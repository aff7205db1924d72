"""bsuite environments as Gymnasium environments. bsuite is not a dependency of ersac."""

import contextlib
import io
import math
import warnings
from typing import Any

import gymnasium
import numpy as np


class BsuiteEnv(gymnasium.Env[np.ndarray, int]):
    """A dm_env environment with an array observation, which is flattened, and discrete actions."""

    def __init__(self, env: Any) -> None:
        self.env = env
        spec = env.observation_spec()
        bounds = (getattr(spec, "minimum", -np.inf), getattr(spec, "maximum", np.inf))
        low, high = (
            np.broadcast_to(bound, spec.shape).astype(np.float32).ravel() for bound in bounds
        )
        self.observation_space = gymnasium.spaces.Box(
            low, high, (math.prod(spec.shape),), np.float32
        )
        self.action_space = gymnasium.spaces.Discrete(int(env.action_spec().num_values))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        if seed is not None and hasattr(self.env, "_rng"):
            # bsuite takes a seed only when an environment is created.
            self.env._rng = np.random.RandomState(seed)
        return self._flat(self.env.reset().observation), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Step; an episode that ends with a discount above zero is truncated, not terminated."""
        timestep = self.env.step(int(action))
        terminated = bool(timestep.last() and timestep.discount == 0)
        truncated = bool(timestep.last() and not terminated)
        obs = self._flat(timestep.observation)
        return obs, float(timestep.reward), terminated, truncated, {}

    @staticmethod
    def _flat(observation: Any) -> np.ndarray:
        return np.array(observation, np.float32).ravel()


def load_bsuite(bsuite_id: str) -> BsuiteEnv:
    """The environment of a bsuite id, such as cartpole_swingup/0."""
    # bsuite prints what it loads.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        import bsuite

        return BsuiteEnv(bsuite.load_from_id(bsuite_id))
