"""Six environments as practitioners write them; ersac and Stable-Baselines3 with their defaults.

    python -m benchmarks.practitioner camera --seeds 3 --json ersac.json
    python -m benchmarks.practitioner camera --agent ppo --seeds 3 --json ppo.json

The second command needs an environment of its own with Stable-Baselines3 and sb3-contrib. The score
is the mean return of 20 episodes of the greedy policy after training, in fresh environments.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

STEPS = 30_000
EPISODES = 20  # of the greedy policy, after training
EVAL_SEED = 10_000  # of the first of these episodes


class Camera(gymnasium.Env):
    """Walk to the bright spot that only the camera shows; the own position is a vector."""

    SIDE: ClassVar[int] = 40

    def __init__(self) -> None:
        image = spaces.Box(0, 255, (self.SIDE, self.SIDE, 1), np.uint8)
        position = spaces.Box(0.0, 1.0, (2,), np.float32)
        self.observation_space = spaces.Dict({"camera": image, "position": position})
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.position, self.target = self.np_random.integers(0, 8, (2, 2))
        self.age = 0
        return self.observe(), {}

    def observe(self) -> dict[str, np.ndarray]:
        image = np.zeros((self.SIDE, self.SIDE, 1), np.uint8)
        row, column = self.target * self.SIDE // 8
        image[row : row + 5, column : column + 5] = 255
        return {"camera": image, "position": (self.position / 7).astype(np.float32)}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        before = np.abs(self.position - self.target).sum()
        move = np.array([(1, 0), (-1, 0), (0, 1), (0, -1)][action])
        self.position = np.clip(self.position + move, 0, 7)
        distance = np.abs(self.position - self.target).sum()
        self.age += 1
        reached = bool(distance == 0)
        reward = 1.0 if reached else 0.1 * float(before - distance) - 0.01
        return self.observe(), reward, reached, self.age >= 40, {}


class Switches(gymnasium.Env):
    """MultiDiscrete([3, 4, 2]): each factor has one right choice, which the observation encodes."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = spaces.MultiDiscrete([3, 4, 2])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.age = 0
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        self.obs = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return self.obs

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        sizes = np.array([3, 4, 2])
        right = np.minimum(((self.obs + 1) / 2 * sizes).astype(int), sizes - 1)
        reward = float(np.mean(np.asarray(action) == right))
        self.age += 1
        return self.observe(), reward, False, self.age >= 50, {}


class Masked(gymnasium.Env):
    """A corridor of 20 rooms with 12 doors each, of which two open; another door ends the episode.

    The mask names the doors that open; the observation says which of them leads on.
    """

    ROOMS: ClassVar[int] = 20

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (13,), np.float32)
        self.action_space = spaces.Discrete(12)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.room, self.age = 0, 0
        return self.enter()

    def enter(self) -> tuple[np.ndarray, dict]:
        self.forward, self.back = self.np_random.choice(12, 2, replace=False)
        obs = np.zeros(13, np.float32)
        obs[self.forward], obs[12] = 1.0, self.room / self.ROOMS
        mask = np.zeros(12, np.int8)
        mask[[self.forward, self.back]] = 1
        return obs, {"action_mask": mask}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        self.age += 1
        if action not in (self.forward, self.back):
            obs, info = self.enter()
            return obs, -1.0, True, False, info
        self.room = max(0, self.room + (1 if action == self.forward else -1))
        reached = self.room == self.ROOMS
        obs, info = self.enter()
        return obs, 1.0 if reached else -0.01, reached, self.age >= 100, info


class Sparse(gymnasium.Env):
    """Episodes of up to 20,000 steps with one reward, at the end of a walk of 30 cells."""

    CELLS: ClassVar[int] = 30

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.cell, self.age = 0, 0
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        return np.array([self.cell / self.CELLS], np.float32)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        self.cell = max(0, self.cell + (-1, 0, 1)[action])
        self.age += 1
        reached = self.cell == self.CELLS
        return self.observe(), float(reached), reached, self.age >= 20_000, {}


class Money(gymnasium.Env):
    """Buy low and sell high, with rewards of the order of 1e4 in both directions."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.price, self.held, self.age = self.np_random.uniform(80, 120), 0, 0
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        return np.array([self.price, self.held], np.float32)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        self.held = action - 1  # short, nothing, long
        change = 0.2 * (100 - self.price) + self.np_random.normal(0, 3)
        self.price += change
        self.age += 1
        return self.observe(), 1e4 * self.held * change / 10, False, self.age >= 100, {}


class TwoRanges(gymnasium.Env):
    """Two continuous actions, one in 0..1 and one in -30..30, each with a target that is seen."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        low, high = np.array([0, -30], np.float32), np.array([1, 30], np.float32)
        self.action_space = spaces.Box(low, high)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.age = 0
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        self.obs = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.obs

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict]:
        scaled = np.array([2 * action[0] - 1, action[1] / 30])
        error = np.abs(scaled - 0.8 * self.obs)
        self.age += 1
        return self.observe(), float(np.sum(1 - error)), False, self.age >= 50, {}


ENVS: dict[str, Callable[[], gymnasium.Env]] = {
    "camera": Camera,
    "switches": Switches,
    "masked": Masked,
    "sparse": Sparse,
    "money": Money,
    "two-ranges": TwoRanges,
    # public tasks with continuous actions
    "pendulum": lambda: gymnasium.make("Pendulum-v1"),
    "mountain-car": lambda: gymnasium.make("MountainCarContinuous-v0"),
}


def train_ersac(name: str, seed: int, steps: int, **settings: Any) -> Callable[[Any, Any], Any]:
    """Return the greedy policy that `ersac.train` learns with its defaults."""
    import ersac

    policy = ersac.train(ENVS[name], steps=steps, seed=seed, show=False, **settings).policy
    return lambda obs, mask: policy(obs, action_mask=mask)


def train_ppo(name: str, seed: int, steps: int) -> Callable[[Any, Any], Any]:
    """Return the greedy policy of Stable-Baselines3's PPO, or MaskablePPO where there are masks."""
    import torch
    from sb3_contrib import MaskablePPO
    from sb3_contrib.common.wrappers import ActionMasker
    from stable_baselines3 import PPO

    torch.set_num_threads(1)
    env = ENVS[name]()
    kind = "MultiInputPolicy" if isinstance(env.observation_space, spaces.Dict) else "MlpPolicy"
    if name != "masked":
        model = PPO(kind, env, seed=seed, device="cpu").learn(steps)
        return lambda obs, mask: model.predict(obs, deterministic=True)[0]
    mask_of = lambda env: np.isin(np.arange(12), (env.forward, env.back))
    model = MaskablePPO(kind, ActionMasker(env, mask_of), seed=seed, device="cpu").learn(steps)
    return lambda obs, mask: model.predict(obs, deterministic=True, action_masks=mask)[0]


def play(name: str, policy: Callable[[Any, Any], Any]) -> float:
    """Return the mean return of the policy in fresh environments."""
    env, returns = ENVS[name](), []
    for episode in range(EPISODES if name != "sparse" else 3):
        obs, info = env.reset(seed=EVAL_SEED + episode)
        total, ended = 0.0, False
        while not ended:
            action = policy(obs, info.get("action_mask"))
            if isinstance(env.action_space, spaces.Discrete):
                action = int(action)
            obs, reward, terminated, truncated, info = env.step(action)
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def main() -> None:
    """Train each seed, play with what was learned, and print and write the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env", choices=ENVS)
    parser.add_argument("--agent", choices=("ersac", "ppo"), default="ersac")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    train = {"ersac": train_ersac, "ppo": train_ppo}[options.agent]
    scores, began = [], time.perf_counter()
    for seed in range(options.seeds):
        scores.append(play(options.env, train(options.env, seed, options.steps)))
        print(f"{options.env} {options.agent} seed {seed}: {scores[-1]:,.2f}", flush=True)
    seconds = (time.perf_counter() - began) / options.seeds
    print(f"{options.env} {options.agent}: mean {np.mean(scores):,.2f}, {seconds:.0f} s a seed")
    if options.json is not None:
        record = {"env": options.env, "agent": options.agent, "steps": options.steps}
        record |= {"scores": scores, "seconds": round(seconds, 1)}
        options.json.write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
