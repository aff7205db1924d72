"""Atari: the emulator alone, the learner alone, and both together, in frames per second."""

import importlib.util
import time
from typing import Any

import jax
import numpy as np

from benchmarks.measure import Comparison, OnProgress, Plan, Workload, measure_paces, warm_up
from ersac import api, config
from ersac.envs.base import Discrete, spec_of
from ersac.envs.make import make_host_env
from ersac.loops import host, host_actor
from ersac.loops.host_state import SeedState

GAME, ENVS = "atari:freeway", 8
RANDOM_STEPS = 32  # of all games at once, per call
SETTINGS: dict[str, Any] = {"envs": ENVS, "passes": 1, "minibatch": 1}


def measure_atari(plan: Plan, on_progress: OnProgress) -> list[Comparison]:
    """Acting and learning together, as a share of the slower of the two alone."""
    if importlib.util.find_spec("ale_py") is None:
        on_progress("skipped: it needs ale_py")
        return []
    makers = {"emulator": emulator_alone, "learner": learner_alone, "together": together}
    paces = measure_paces(warm_up(makers, on_progress), plan, on_progress)
    pairs = zip(paces["emulator"], paces["learner"], strict=True)
    rows = {
        "together_over_slower": ("the slower of emulator and learner alone", map(min, pairs)),
        "together_over_emulator": ("the emulator alone, random actions", paces["emulator"]),
        "together_over_learner": ("the learner alone, on one rollout", paces["learner"]),
    }
    return [
        Comparison(
            f"atari/{name}",
            f"ersac on {ENVS} x {GAME}, acting and learning / {meaning}",
            paces["together"],
            list(below),
            "frames/s",
        )
        for name, (meaning, below) in rows.items()
    ]


def settings_and_skip() -> tuple[config.Experiment, int]:
    """The settings of all three, and the frames of a step."""
    settings = api.make_settings(GAME, **SETTINGS)
    assert isinstance(settings.env, config.Atari)
    return settings, settings.env.frame_skip


def emulator_alone() -> Workload:
    """The games with random actions, stepped by the emulator's threads."""
    settings, skip = settings_and_skip()
    env, rng = make_host_env(settings.env), np.random.default_rng(0)
    assert isinstance(env.actions, Discrete)
    env.reset(0)
    while True:
        start = time.perf_counter()
        for actions in rng.integers(0, env.actions.n, (RANDOM_STEPS, ENVS)):
            env.step(actions)
        yield skip * RANDOM_STEPS * ENVS, time.perf_counter() - start


def learner_alone() -> Workload:
    """The updates of one rollout, again and again."""
    settings, skip = settings_and_skip()
    env = make_host_env(settings.env)
    spec = spec_of(env)
    seed_state = SeedState(env, 0, host.init_carry(settings, spec, 0))
    program = host.assemble(settings, spec, [seed_state])
    acted = next(host_actor.stream_rollouts(program, seed_state, 1))
    while True:
        start = time.perf_counter()
        host.learn_rollout(program, seed_state, acted)
        jax.block_until_ready(seed_state.carry.learner)
        yield skip * settings.agent.rollout * ENVS, time.perf_counter() - start


def together() -> Workload:
    """Acting and learning at once, as in training."""
    settings, skip = settings_and_skip()
    chunks = host.run_host(host.prepare_host(settings))
    for _ in chunks:  # not counted: the actor kept running while other workloads had their turn
        chunk = next(chunks)
        yield skip * chunk.episodes.ended.size, chunk.seconds
