"""Make the trained agents that come with the package: `python -m benchmarks.make_zoo [NAME ...]`.

Trains what has no run directory below --runs, writes src/ersac/zoo/NAME.npz, plays it and records
the result in src/ersac/zoo/index.json. Seeds are held-out ones. Weights are
rounded to twelve bits, and in the first layer of a DeepSea agent the rows of cells that were never
updated are set to zero, which makes a file a third as large.
"""

import argparse
import json
import math
import shlex
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
from jax import numpy as jnp

from ersac.policy.policy import Policy, load_policy, open_policy, policy_bytes
from ersac.policy.trained import TrainedAgent
from ersac.policy.zoo import DIRECTORY, INDEX, ZooAgent
from ersac.runs import run_dir
from ersac.types import Params

MAX_BYTES = 2_000_000
BITS = 12  # of the mantissa
SEED = "--seeds 1 --seed 1000"
# The most probable actions of this agent go in circles in some layouts.
SAMPLED = ("minigrid-doorkey",)
# The command, and the episodes of the evaluation.
ZOO: dict[str, tuple[str, int]] = {
    "lock": (f"ersac.envs.lock_gym:LimitedLock {SEED} --steps 60000", 20),
    "deep-sea-20": (f"deep-sea --depth 20 {SEED}", 100),
    "deep-sea-50": (f"deep-sea --depth 50 {SEED}", 100),
    "cartpole": (f"gym:CartPole-v1 {SEED} --steps 150000", 100),
    "frozen-lake": (f"gym:FrozenLake8x8-v1 {SEED} --steps 400000", 400),
    "mountain-car": (f"gym:MountainCar-v0 {SEED} --steps 100000", 100),
    "minigrid-doorkey": (f"gym:MiniGrid-DoorKey-8x8-v0 {SEED} --steps 500000", 100),
    "breakout": (f"gymnax:Breakout-MinAtar --agent ersac-replay {SEED} --steps 100000", 100),
}


def train(name: str, runs: Path) -> Path:
    """The run directory of an agent, which is trained unless it exists."""
    out = runs / name
    if not out.exists():
        command = [sys.executable, "-m", "ersac", "train", *shlex.split(ZOO[name][0])]
        subprocess.run([*command, "--out", str(out)], check=True)
    return out


def shrink(trained: TrainedAgent) -> TrainedAgent:
    """The agent with rounded weights, and zeros in the rows of its table that never learned."""
    learner = trained.learner
    rows = np.asarray(learner.params.rows)
    if rows.size:
        values, last_update = np.split(rows, [-1], axis=1)
        rounded = np.concatenate([round_bits(values), last_update], axis=1)
        learned = np.where(last_update > 0, rounded, 0)
        rows = jnp.asarray(learned, rows.dtype)
    dense = jax.tree.map(round_bits, learner.params.dense)
    memory = learner.memory
    memory = memory._replace(uncertainty=jax.tree.map(round_bits, memory.uncertainty))
    return trained._replace(learner=learner._replace(params=Params(dense, rows), memory=memory))


def round_bits(array: jax.Array | np.ndarray) -> np.ndarray:
    """Numbers with a short mantissa, which compress well; integers as they are."""
    array = np.asarray(array)
    if not np.issubdtype(array.dtype, np.floating):
        return array
    mantissa, exponent = np.frexp(array)
    return np.ldexp(np.round(mantissa * 2**BITS) / 2**BITS, exponent).astype(array.dtype)


def record(name: str, run: Path) -> ZooAgent:
    """Write the file of an agent, play what it holds, and return the record."""
    policy = open_policy(run)
    data = policy_bytes(shrink(policy.trained), compress=True)
    assert len(data) < MAX_BYTES, (name, len(data))
    path = DIRECTORY / f"{name}.npz"
    path.write_bytes(data)
    return evaluate(name, load_policy(path), run, len(data))


def evaluate(name: str, policy: Policy, run: Path, size: int) -> ZooAgent:
    """The record of an agent: episodes with a normal 95 % interval of their mean."""
    arguments, episodes = ZOO[name]
    result = policy.evaluate(episodes, sample=name in SAMPLED, show=False)
    error = 1.96 * (result.stderr_return or 0.0)
    settings, summary = run_dir.read_finished_summary(run)
    return ZooAgent(
        name=name,
        env=arguments.split()[0],
        agent=settings.agent_name,
        command=f"ersac train {arguments}",
        settings_hash=run_dir.settings_hash(settings),
        seed=policy.seed,
        steps=summary["steps"],
        episodes=episodes,
        sample=name in SAMPLED,
        mean_return=round_to(result.mean_return),
        low=round_to(result.mean_return - error),
        high=round_to(result.mean_return + error),
        goal_share=round_to(result.goal_share),
        bytes=size,
    )


def round_to(value: float, digits: int = 6) -> float:
    """A number with so many significant digits."""
    return value if value == 0 or not math.isfinite(value) else float(f"{value:.{digits}g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *ZOO], help="default: all")
    parser.add_argument("--runs", type=Path, default=Path("runs/zoo"))
    options = parser.parse_args()
    known = json.loads(INDEX.read_text())["agents"] if INDEX.exists() else []
    records = {entry["name"]: entry for entry in known}
    for name in options.names or ZOO:
        agent = record(name, train(name, options.runs))
        records[name] = agent._asdict()
        print(agent, flush=True)
        ordered = [records[name] for name in ZOO if name in records]
        INDEX.write_text(json.dumps({"agents": ordered}, indent=2) + "\n")


if __name__ == "__main__":
    main()
