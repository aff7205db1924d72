"""Same settings, same bits in another process; other seeds, other bits; no key used twice."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import pytest

from ersac import api, config
from ersac.config.presets import PRESETS
from ersac.loops import device


@pytest.fixture(scope="module")
def twins() -> list[list[list[str]]]:
    """The digests from two processes with different hash seeds."""
    script = str(Path(__file__).with_name("twin.py"))
    cache = {
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    run = lambda number: subprocess.run(
        [sys.executable, script],
        env=os.environ | cache | {"PYTHONHASHSEED": number},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(run(number).stdout) for number in ("1", "2")]


def test_twenty_configs_in_two_processes(twins):
    first, second = twins
    assert len(first) == 21
    assert first == second


def test_no_two_seeds_are_alike(twins):
    """In one run, in all runs, and among sixty-four seeds with one action mapping."""
    *configs, many = twins[0]
    assert len(set(many)) == 64
    found = [digest for config in configs for digest in config]
    assert len(set(found)) == len(found) == 60


def trace(settings: config.Experiment) -> None:
    """Trace a chunk of one seed under jax's check of key reuse, which does not see into a vmap."""
    program = device.prepare_device(settings)
    carry, env_params, key = jax.tree.map(
        lambda leaf: leaf[0], (program.carry, program.env_params, program.keys)
    )
    with jax.debug_key_reuse(True):
        jax.jit(partial(device.chunk, settings)).lower(carry, env_params, key)


# Each draws its random numbers where another preset does.
ALIKE = ("vanilla", "optimism", "ersac-replay", "vanilla-replay", "boot-dqn-large", "ppo")
ALIKE += ("ersac-ppo", "ppo-rnd")
CASES = [
    *(
        pytest.param({"agent": agent}, marks=pytest.mark.slow if agent in ALIKE else ())
        for agent in PRESETS
    ),
    {"noise_variance": 0.1},
    {"stochastic": True},
]


@pytest.mark.parametrize("changes", CASES, ids=str)
def test_no_key_is_used_twice(changes, monkeypatch):
    monkeypatch.setattr(device, "_compiled", lambda *_: dict)
    trace(
        api.make_settings(
            **{"depth": 4, "seeds": 1, "hidden": (4,), "rollout": 5, "chunk": 2} | changes
        )
    )


def test_a_key_that_is_used_twice_is_noticed(monkeypatch):
    monkeypatch.setattr(device, "_compiled", lambda *_: dict)
    twice = lambda settings, agent, envs, key, original=device.draw_all_noise: (
        jax.random.normal(key),
        original(settings, agent, envs, key),
    )[1]
    monkeypatch.setattr(device, "draw_all_noise", twice)
    with pytest.raises(jax.errors.KeyReuseError):
        trace(api.make_settings(depth=4, seeds=1, hidden=(4,), rollout=5, chunk=2))
