"""bsuite's environments as Gymnasium's. Imported only where bsuite is installed, which is no dependency of ours."""

import contextlib
import io
import math
import warnings
from typing import Any

import gymnasium
import numpy as np


class FromBsuite(gymnasium.Env[np.ndarray, int]):
    """An environment of bsuite's, or any of dm_env with one array to observe and a choice of actions; the array is flattened."""

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
        """Begin an episode."""
        super().reset(seed=seed)
        if seed is not None and hasattr(self.env, "_rng"):
            self.env._rng = np.random.RandomState(
                seed
            )  # bsuite takes a seed only where it makes an environment
        return self._flat(self.env.reset().observation), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Go on; an episode that ends with a discount above zero was cut, not ended."""
        answer = self.env.step(int(action))
        terminated = bool(answer.last() and answer.discount == 0)
        return (
            self._flat(answer.observation),
            float(answer.reward),
            terminated,
            bool(answer.last() and not terminated),
            {},
        )

    @staticmethod
    def _flat(observation: Any) -> np.ndarray:
        return np.array(observation, np.float32).ravel()


def load_bsuite(bsuite_id: str) -> FromBsuite:
    """The environment of a bsuite id, such as cartpole_swingup/0."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
    ):  # it says on standard output what it loads
        warnings.simplefilter("ignore")
        import bsuite

        return FromBsuite(bsuite.load_from_id(bsuite_id))
