"""Others' agents on a task of the ladder: `python benchmarks/peers.py --task doorkey-8 --agent ppo --seed 1000 --json out.json`.

Run from an environment of its own, with ersac's source on PYTHONPATH. What it writes goes into the `peers` directory of a ladder, whose
table then has it beside the others: `ersac sweep ladder` reads it.
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
PPO_ENVS = 16  # as many as ours acts in
LINE_SECONDS = 10.0


def main(argv: list[str] | None = None) -> None:
    """Train, and write what happened."""
    missing = [name for name in ("ersac", *PACKAGES) if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(
            f"peers: no {', '.join(missing)} here: pip install {' '.join(PACKAGES.values())}, and ersac's src on PYTHONPATH"
        )

    from ersac.runs import disk
    from ersac.sweeps.ladder import TASKS

    options = parsed(argv, list(TASKS))
    package = TASKS[options.task].package
    if package is not None and importlib.util.find_spec(package) is None:
        sys.exit(f"peers: {options.task} needs {package}: pip install {package}")
    if options.json.exists():
        sys.exit(f"peers: {options.json} is there already; choose another name or remove it")
    steps = TASKS[options.task].steps if options.steps is None else options.steps
    diary = Diary(steps, TASKS[options.task].env.target)
    began = time.monotonic()
    AGENTS[options.agent](options.task, options.seed, steps, diary)
    told = {
        "task": options.task,
        "agent": f"sb3-{options.agent}",
        "seed": options.seed,
        "steps": steps,
        **diary.predicted(),
    }
    told["seconds"] = round(time.monotonic() - began, 1)
    told["versions"] = {
        name: metadata.version(name)
        for name in ("stable-baselines3", "gymnasium", "torch", "numpy")
    }
    disk.make_directory(options.json.parent)
    disk.write(options.json, (json.dumps(told) + "\n").encode())
    last = diary.returns[-100:]
    print(
        f"{len(diary.returns):,} episodes, return of the last {len(last)}: {np.mean(last) if last else float('nan'):.4g}"
    )


def parsed(argv: list[str] | None, tasks: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/peers.py", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--task", choices=tasks, required=True)
    parser.add_argument("--agent", choices=list(AGENTS), required=True)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--steps", type=int, help="by default as many as the ladder has")
    parser.add_argument(
        "--json", type=Path, required=True, help="the file to write, which must not be there yet"
    )
    return parser.parse_args(argv)


class Diary:
    """What every episode came to, in the order in which they ended."""

    def __init__(self, budget: int, target: float | None) -> None:
        self.budget, self.target = budget, target
        self.steps = 0  # of all environments together
        self.returns: list[float] = []
        self.goals: list[bool] = []
        self.when: list[int] = []
        self.due = time.monotonic() + LINE_SECONDS

    def step(self) -> None:
        """An environment was stepped."""
        self.steps += 1
        if time.monotonic() >= self.due:
            self.due = time.monotonic() + LINE_SECONDS
            mean = np.mean(self.returns[-100:]) if self.returns else float("nan")
            print(f"step {self.steps:,}/{self.budget:,}  return {mean:.4g}", flush=True)

    def ended(self, earned: float, info: dict[str, Any]) -> None:
        """An episode ended; those beyond the budget do not count."""
        if self.steps <= self.budget:
            reached = any(np.any(info[key]) for key in ("is_success", "success") if key in info)
            self.returns.append(float(earned))
            self.goals.append(bool(reached or (self.target is not None and earned >= self.target)))
            self.when.append(self.steps)

    def told(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {"returns": self.returns, "goals": self.goals, "when": self.when}


def watched(task: str, seed: int, diary: Diary) -> Any:
    """An environment of the task whose episodes are written down; what ours makes one-hot of is so here as well."""
    import gymnasium

    from ersac.sweeps.ladder import TASKS

    class Watched(gymnasium.Wrapper):
        earned = 0.0

        def reset(self, **how: Any) -> Any:
            self.earned = 0.0
            return self.env.reset(**how)

        def step(self, action: Any) -> Any:
            answer = self.env.step(action)
            self.earned += float(answer[1])
            diary.step()
            if answer[2] or answer[3]:
                diary.ended(self.earned, answer[4])
            return answer

    env = TASKS[task].one(seed)
    if not isinstance(env.observation_space, gymnasium.spaces.Box):
        env = gymnasium.wrappers.FlattenObservation(env)
    return Watched(env)


def ppo(task: str, seed: int, steps: int, diary: Diary) -> None:
    """PPO of Stable-Baselines3 in as many environments as ours acts in; in all it learns from as many steps at once as by default."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    torch.set_num_threads(1)
    env = DummyVecEnv([lambda: watched(task, seed, diary)] * PPO_ENVS)
    PPO("MlpPolicy", env, seed=seed, n_steps=128, device="cpu").learn(steps)


def dqn(task: str, seed: int, steps: int, diary: Diary) -> None:
    """DQN of Stable-Baselines3 with its defaults; its epsilon falls over a tenth of the steps."""
    import torch
    from stable_baselines3 import DQN

    torch.set_num_threads(1)
    DQN("MlpPolicy", watched(task, seed, diary), seed=seed, device="cpu").learn(steps)


AGENTS = {"ppo": ppo, "dqn": dqn}


if __name__ == "__main__":
    main()
