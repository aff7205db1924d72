"""Small runs of every agent and loop reproduce the results in golden.json.

On a machine like the one that wrote the file the arrays must be identical to the bit; on other
machines, where compiled code rounds differently, some numbers must be close. After an intended
change run `python tests/test_golden.py --write`.
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
from ersac.runs.fingerprint import exactness_fields

GOLDEN = Path(__file__).with_name("golden.json")
XLA_FLAGS = "--xla_backend_optimization_level=0"  # as in `make test`
RTOL = 5e-3  # on other machines, where a hundred updates of CartPole differ by up to 0.2 %
# One seed, because several are distributed over the cores, and results depend on their number.
SMALL = {"seeds": 1, "seed": 3, "hidden": (8,), "rollout": 10, "chunk": 5, "show": False}
DEEP_SEA = SMALL | {"env": "deep-sea", "depth": 5, "episodes": 60, "stop_when_solved": False}
CART_POLE = SMALL | {"envs": 2, "steps": 400}
RESUMED = "ersac"  # this run is also stopped and resumed
FAST = ("ersac", "ersac-replay-max")  # tables in `make test`; the others compile for a minute


def deep_sea(agent: str, **changes: Any) -> dict[str, Any]:
    """Return settings of a DeepSea run, with a replay buffer small enough to be overwritten."""
    if agent.startswith("boot-dqn"):
        changes |= {"replay": 200, "least_replay": 50}
    elif "replay" in agent:
        changes |= {"capacity": 16, "batch": 4}
    return DEEP_SEA | {"agent": agent} | changes


RUNS: dict[str, dict[str, Any]] = {
    **{agent: deep_sea(agent) for agent in PRESETS},
    **{f"{agent} (table)": deep_sea(agent, network="table") for agent in TABLE_PRESETS},
    "gymnax": CART_POLE | {"env": "gymnax:CartPole-v1"},
    "gymnax, ppo-rnd": CART_POLE
    | {"env": "gymnax:CartPole-v1", "agent": "ppo-rnd", "envs": 4, "minibatch": 2},
    "gymnasium, lock-step": CART_POLE | {"env": "gym:CartPole-v1", "lockstep": True},
}
SLOW = {f"{agent} (table)" for agent in TABLE_PRESETS if agent not in FAST}
SLOW |= {"ppo", "ppo-rnd", "gymnax, ppo-rnd"}  # the parts of others
CASES = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in RUNS]


def scope() -> dict[str, Any]:
    """Return everything except source and settings that the bits depend on."""
    ignored = ("ersac", "visible cores", "python")  # a single seed runs on one core
    packages = {name: metadata.version(name) for name in ("gymnasium", "gymnax")}
    return {
        key: value for key, value in exactness_fields().items() if key not in ignored
    } | packages


def result_arrays(result: ersac.Result) -> dict[str, np.ndarray]:
    """Return the arrays of a run of one seed, by name."""
    ((_, goals, returns, steps, _),) = result.seeds
    metric_steps, metrics = result.metrics
    arrays = {"goals": goals, "returns": returns, "metric steps": metric_steps}
    arrays |= {} if steps is None else {"steps": steps}
    return arrays | {f"metric {name}": values for name, values in metrics.items()}


def digest(array: np.ndarray) -> str:
    """Return a hash of the dtype, shape and bytes of an array."""
    text = f"{array.dtype.str} {array.shape} ".encode()
    return hashlib.sha256(text + np.ascontiguousarray(array).tobytes()).hexdigest()


def fingerprint(result: ersac.Result) -> dict[str, dict[str, Any]]:
    """Return the digests of all arrays of a run, and some of its numbers."""
    arrays = result_arrays(result)
    numbers = {"episodes": len(arrays["goals"]), "goals": int(arrays["goals"].sum())}
    numbers |= {"return": float(arrays["returns"].sum()), "total steps": result.steps}
    metrics = {name: array for name, array in arrays.items() if name.startswith("metric ")}
    numbers |= {name: float(array.ravel()[-1]) for name, array in metrics.items()}
    return {"digests": {name: digest(array) for name, array in arrays.items()}, "numbers": numbers}


def check(result: ersac.Result, name: str) -> None:
    """Assert that a run reproduces its entry in golden.json."""
    golden = json.loads(GOLDEN.read_text())
    expected = golden["runs"][name]
    # Metrics that were added since the file was written are not compared.
    actual = {
        part: {key: value for key, value in found.items() if key in expected[part]}
        for part, found in fingerprint(result).items()
    }
    if scope() == golden["scope"]:
        assert actual["digests"] == expected["digests"]
    assert actual["numbers"] == pytest.approx(expected["numbers"], rel=RTOL)


@pytest.mark.parametrize("name", CASES)
def test_a_run_reproduces_its_golden_numbers(name):
    check(ersac.train(**RUNS[name]), name)


def test_a_resumed_run_reproduces_the_golden_numbers_of_the_uninterrupted_one(tmp_path):
    half = RUNS[RESUMED] | {"episodes": RUNS[RESUMED]["episodes"] // 2, "out": tmp_path / "run"}
    result = ersac.train(**half)
    assert len(result_arrays(result)["goals"]) == half["episodes"]
    check(ersac.train(**RUNS[RESUMED], out=tmp_path / "run", resume=True), RESUMED)


def test_golden_json_has_every_run():
    assert set(json.loads(GOLDEN.read_text())["runs"]) == set(RUNS)


def write() -> None:
    """Write the results of this source to golden.json."""
    os.environ["XLA_FLAGS"] = XLA_FLAGS  # before jax is used
    runs = {name: fingerprint(ersac.train(**settings)) for name, settings in RUNS.items()}
    GOLDEN.write_text(json.dumps({"scope": scope(), "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/test_golden.py --write")
    write()
