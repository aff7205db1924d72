"""Train Stable-Baselines3's PPO or DQN on a ladder task and record every episode.

    python benchmarks/peers.py --task doorkey-8 --agent ppo --seed 1000 --json out.json

Run it in an environment that has Stable-Baselines3, with ersac's source on PYTHONPATH. Put the
JSON file into the `peers` directory of a ladder: `ersac sweep ladder` adds it to the table.
"""

import argparse
import importlib.util
import json
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

PACKAGES = {"stable_baselines3": "stable-baselines3"} | {
    name: name for name in ("gymnasium", "minigrid", "jax", "tyro", "rich")
}
VERSIONS = ("stable-baselines3", "gymnasium", "torch", "numpy")  # that the record names
PPO_ENVS = 16  # as many as ersac's agents have
PROGRESS_SECONDS = 10.0
WINDOW = 100  # episodes of the mean return that is printed


def main(argv: list[str] | None = None) -> None:
    """Train one agent on one task and write its record."""
    require_packages()
    from ersac.runs import disk
    from ersac.sweeps.ladder_tasks import TASKS

    options = parse_options(argv, list(TASKS))
    task = TASKS[options.task]
    if task.package is not None and importlib.util.find_spec(task.package) is None:
        sys.exit(f"peers: {options.task} needs {task.package}: pip install {task.package}")
    if options.json.exists():
        sys.exit(f"peers: {options.json} already exists; choose another name or remove it")
    steps = task.steps if options.steps is None else options.steps
    recorder = EpisodeRecorder(steps, task.env.target)
    start = time.monotonic()
    AGENTS[options.agent](options.task, options.seed, steps, recorder)
    record = {
        "task": options.task,
        "agent": f"sb3-{options.agent}",
        "seed": options.seed,
        "steps": steps,
        **recorder.as_json(),
        "seconds": round(time.monotonic() - start, 1),
        "versions": {name: package_version(name) for name in VERSIONS},
    }
    disk.make_directory(options.json.parent)
    disk.write(options.json, (json.dumps(record) + "\n").encode())
    print(f"{len(recorder.returns):,} episodes; mean return {recorder.mean_return():.4g}")


def require_packages() -> None:
    """Exit with the pip command where a package is missing."""
    missing = [name for name in ("ersac", *PACKAGES) if importlib.util.find_spec(name) is None]
    if missing:
        packages = " ".join(PACKAGES.values())
        sys.exit(
            f"peers: {', '.join(missing)} not installed: pip install {packages}, and put ersac's"
            " src on PYTHONPATH"
        )


def package_version(name: str) -> str | None:
    """The version of an installed package; None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def parse_options(argv: list[str] | None, tasks: list[str]) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/peers.py", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--task", choices=tasks, required=True)
    parser.add_argument("--agent", choices=list(AGENTS), required=True)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--steps", type=int, help="environment steps (default: the task's)")
    parser.add_argument("--json", type=Path, required=True, help="the file to write; must be new")
    return parser.parse_args(argv)


class EpisodeRecorder:
    """Return, goal and end step of every episode, in the order in which they end."""

    def __init__(self, budget: int, target: float | None) -> None:
        """budget: environment steps; target: a return that counts as reaching the goal."""
        self.budget, self.target = budget, target
        self.steps = 0  # of all environments together
        self.returns: list[float] = []
        self.goals: list[bool] = []
        self.end_steps: list[int] = []
        self.next_print = time.monotonic() + PROGRESS_SECONDS

    def count_step(self) -> None:
        """Count one environment step; print the progress every ten seconds."""
        self.steps += 1
        if time.monotonic() >= self.next_print:
            self.next_print = time.monotonic() + PROGRESS_SECONDS
            print(
                f"step {self.steps:,}/{self.budget:,}  mean return {self.mean_return():.4g}",
                flush=True,
            )

    def end_episode(self, episode_return: float, info: dict[str, Any]) -> None:
        """Record an episode; those that end beyond the budget are dropped."""
        if self.steps > self.budget:
            return
        success = any(np.any(info[key]) for key in ("is_success", "success") if key in info)
        on_target = self.target is not None and episode_return >= self.target
        self.returns.append(float(episode_return))
        self.goals.append(bool(success or on_target))
        self.end_steps.append(self.steps)

    def mean_return(self) -> float:
        """The mean return of the last hundred episodes."""
        return float(np.mean(self.returns[-WINDOW:])) if self.returns else float("nan")

    def as_json(self) -> dict[str, Any]:
        """The episodes as `ersac.analysis.ladder_table.read_peer` reads them."""
        return {"returns": self.returns, "goals": self.goals, "when": self.end_steps}


def make_recorded_env(task: str, seed: int, recorder: EpisodeRecorder) -> Any:
    """An environment of a task that reports its episodes to the recorder.

    Observations that ersac encodes as one-hot vectors are flattened to the same vectors.
    """
    import gymnasium

    from ersac.sweeps.ladder_tasks import TASKS

    class RecordedEnv(gymnasium.Wrapper):
        episode_return = 0.0

        def reset(self, **options: Any) -> Any:
            self.episode_return = 0.0
            return self.env.reset(**options)

        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated, info = self.env.step(action)
            self.episode_return += float(reward)
            recorder.count_step()
            if terminated or truncated:
                recorder.end_episode(self.episode_return, info)
            return obs, reward, terminated, truncated, info

    env = TASKS[task].make_gym_env(seed)
    if not isinstance(env.observation_space, gymnasium.spaces.Box):
        env = gymnasium.wrappers.FlattenObservation(env)
    return RecordedEnv(env)


def train_ppo(task: str, seed: int, steps: int, recorder: EpisodeRecorder) -> None:
    """PPO of Stable-Baselines3 in sixteen environments.

    n_steps is 128, so that one update sees 2,048 steps, as it does by default.
    """
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    torch.set_num_threads(1)
    env = DummyVecEnv([lambda: make_recorded_env(task, seed, recorder)] * PPO_ENVS)
    PPO("MlpPolicy", env, seed=seed, n_steps=128, device="cpu").learn(steps)


def train_dqn(task: str, seed: int, steps: int, recorder: EpisodeRecorder) -> None:
    """DQN of Stable-Baselines3 with its defaults; epsilon decays over a tenth of the steps."""
    import torch
    from stable_baselines3 import DQN

    torch.set_num_threads(1)
    DQN("MlpPolicy", make_recorded_env(task, seed, recorder), seed=seed, device="cpu").learn(steps)


AGENTS = {"ppo": train_ppo, "dqn": train_dqn}


if __name__ == "__main__":
    main()
