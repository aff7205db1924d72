"""Tiny runs of every agent and loop come to what golden.json says: a change of any number is seen.

On a machine like the one that wrote the file every bit must be the same; on another, whose compiled
code rounds differently, a few plain numbers must be close. An intended change is written by
`python tests/test_golden.py --write`.
"""

import hashlib
import json
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ersac
from ersac.config.presets import PRESETS, TABLE_PRESETS
from ersac.runs import run_dir

GOLDEN = Path(__file__).with_name("golden.json")
XLA_FLAGS = "--xla_backend_optimization_level=0"  # as `make test` has it
RTOL = 1e-3  # of the plain numbers, on another machine
# One seed: several are spread over the cores, whose number would then decide the bits.
SMALL = {"seeds": 1, "seed": 3, "hidden": (8,), "rollout": 10, "chunk": 5, "show": False}
DEEP_SEA = SMALL | {"env": "deep-sea", "depth": 5, "episodes": 60, "stop_when_solved": False}
CART_POLE = SMALL | {"envs": 2, "steps": 400}
RESUMED = "ersac"  # the run that is also stopped and resumed
OFTEN = ("ersac", "ersac-replay-max")  # tables in `make test`; the others compile for a minute


def deep_sea(agent: str, **changes: Any) -> dict[str, Any]:
    """Settings of a run on DeepSea, with a replay buffer that is overwritten."""
    if agent.startswith("boot-dqn"):
        changes |= {"replay": 200, "least_replay": 50}
    elif "replay" in agent:
        changes |= {"capacity": 16, "batch": 4}
    return DEEP_SEA | {"agent": agent} | changes


RUNS: dict[str, dict[str, Any]] = {
    **{agent: deep_sea(agent) for agent in PRESETS},
    **{f"{agent} (table)": deep_sea(agent, network="table") for agent in TABLE_PRESETS},
    "gymnax": CART_POLE | {"env": "gymnax:CartPole-v1"},
    "gymnasium, lock-step": CART_POLE | {"env": "gym:CartPole-v1", "lockstep": True},
}
SLOW = {f"{agent} (table)" for agent in TABLE_PRESETS if agent not in OFTEN}
CASES = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in RUNS]


def scope() -> dict[str, Any]:
    """All that decides the bits besides the source and the settings."""
    ignored = ("ersac", "visible cores")  # of one seed, which runs on one core
    packages = {name: metadata.version(name) for name in ("gymnasium", "gymnax")}
    return {
        key: value for key, value in run_dir.exactness_fields().items() if key not in ignored
    } | packages


def arrays_of(result: ersac.Result) -> dict[str, np.ndarray]:
    """What a run of one seed leaves, by names that a failure is reported with."""
    ((_, goals, returns, steps),) = result.seeds
    metric_steps, metrics = result.metrics
    found = {"goals": goals, "returns": returns, "metric steps": metric_steps}
    found |= {} if steps is None else {"steps": steps}
    return found | {f"metric {name}": values for name, values in metrics.items()}


def digest(array: np.ndarray) -> str:
    """Of its type, its shape and its bits."""
    text = f"{array.dtype.str} {array.shape} ".encode()
    return hashlib.sha256(text + np.ascontiguousarray(array).tobytes()).hexdigest()


def run_arrays(result: ersac.Result) -> dict[str, dict[str, Any]]:
    """The digests and the plain numbers of a run."""
    arrays = arrays_of(result)
    numbers = {"episodes": len(arrays["goals"]), "goals": int(arrays["goals"].sum())}
    numbers |= {"return": float(arrays["returns"].sum()), "total steps": result.steps}
    metrics = {name: array for name, array in arrays.items() if name.startswith("metric ")}
    numbers |= {name: float(array.ravel()[-1]) for name, array in metrics.items()}
    return {"digests": {name: digest(array) for name, array in arrays.items()}, "numbers": numbers}


def check(result: ersac.Result, name: str) -> None:
    """A run comes to what was written of it."""
    golden = json.loads(GOLDEN.read_text())
    ours, theirs = run_arrays(result), golden["runs"][name]
    if scope() == golden["scope"]:
        assert ours["digests"] == theirs["digests"]
    assert ours["numbers"] == pytest.approx(theirs["numbers"], rel=RTOL)


@pytest.mark.parametrize("name", CASES)
def test_run(name):
    check(ersac.train(**RUNS[name]), name)


def test_resumed_run(tmp_path):
    """Stopped after half its episodes and resumed, it is the run that was not."""
    half = RUNS[RESUMED] | {"episodes": RUNS[RESUMED]["episodes"] // 2, "out": tmp_path / "run"}
    result = ersac.train(**half)
    assert len(arrays_of(result)["goals"]) == half["episodes"]
    check(ersac.train(**RUNS[RESUMED], out=tmp_path / "run", resume=True), RESUMED)


def test_every_run_is_written():
    assert set(json.loads(GOLDEN.read_text())["runs"]) == set(RUNS)


def write() -> None:
    """Make what this source comes to the golden numbers."""
    os.environ["XLA_FLAGS"] = XLA_FLAGS  # before jax is used
    runs = {name: run_arrays(ersac.train(**settings)) for name, settings in RUNS.items()}
    GOLDEN.write_text(json.dumps({"scope": scope(), "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/test_golden.py --write")
    write()
