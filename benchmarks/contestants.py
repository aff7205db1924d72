"""Who is measured: ours, bsuite's, the dense version and the kernel; each a stream of (steps, seconds)."""

import itertools
import os
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks import dense, kernel
from benchmarks.measure import Contestant
from ersac import api, config
from ersac.config.presets import PRESETS
from ersac.envs.base import cardinality
from ersac.envs.deep_sea import action_map
from ersac.envs.make import make_host_env
from ersac.loops import device, host

HOST_ENV, HOST_ENVS = "CartPole-v1", 16
RANDOM_STEPS = 500  # of the whole vector, in one turn
KERNEL_ROLLOUTS = 200  # in one call
BOOT_DQN_WARM_STEPS = 140  # past the 128 of its least replay: from there on it learns at every step


def ours(depth: int, seeds: int = 1, **changes: bool) -> Contestant:
    """The `ersac` preset on as many seeds as are asked for, by the library's own loop: on as many cores as it takes."""
    chunks = device.run_device(
        device.prepare_device(api.make_settings(depth=depth, seeds=seeds, **changes))
    )
    return ((chunk.episodes.ended.size, chunk.seconds) for chunk in chunks)


def boot_dqn(depth: int) -> Contestant:
    """The `boot-dqn` preset on one seed, learning at every step."""
    chunks = device.run_device(
        device.prepare_device(
            api.make_settings(agent="boot-dqn", depth=depth, seeds=1, chunk=BOOT_DQN_WARM_STEPS)
        )
    )
    return ((chunk.episodes.ended.size, chunk.seconds) for chunk in chunks)


def host_loop() -> Contestant:
    """The `ersac` preset on Gymnasium's environments, acting and learning side by side."""
    chunks = host.run_host(host.prepare_host(api.make_settings(f"gym:{HOST_ENV}", envs=HOST_ENVS)))
    for _ in chunks:  # not counted: while others had their turn, whoever acts here has gone ahead
        chunk = next(chunks)
        yield chunk.episodes.ended.size, chunk.seconds


def random_actions() -> Contestant:
    """The same environments, stepped as that loop steps them, by nobody who thinks or learns."""
    env = make_host_env(config.Gym(id=HOST_ENV, envs=HOST_ENVS))
    env.reset(0)
    return randomly(env.step, cardinality(env.actions))


def gymnasium_random_actions() -> Contestant:
    """As many in Gymnasium's own vector."""
    import gymnasium  # an extra

    vector = gymnasium.make_vec(HOST_ENV, HOST_ENVS, vectorization_mode="sync")
    vector.reset(seed=0)
    return randomly(vector.step, vector.single_action_space.n)


def randomly(step: Callable[[np.ndarray], Any], n_actions: int) -> Contestant:
    """Steps with random actions, without end."""
    rng = np.random.default_rng(0)
    while True:
        began = time.perf_counter()
        for action in rng.integers(0, n_actions, (RANDOM_STEPS, HOST_ENVS)):
            step(action)
        yield RANDOM_STEPS * HOST_ENVS, time.perf_counter() - began


def dense_ours(depth: int) -> Contestant:
    """The same learner with one-hot inputs and dense optimisers; about as much work in each call at every depth."""
    return dense.run(
        api.make_settings(depth=depth, seeds=1, agent="ersac-sampled", network="table"),
        rollouts=max(1, 12_500 // depth**2),
    )


def ours_on_core(core: int, depth: int, seeds: int) -> Contestant:
    """Ours with the kernel's reward heads, which read features, in a process that has one core: before jax counts them."""
    pin(core)
    return ours(depth, seeds, shared_reward_heads=True)


def kernel_on_core(core: int, depth: int) -> Contestant:
    """The hand-written kernel, one seed, on one core once it is compiled."""
    settings = api.make_settings(
        depth=depth, seeds=1, agent="ersac-sampled", network="table", shared_reward_heads=True
    )
    length, rng = settings.agent.rollout, np.random.default_rng(0)
    state, numbers = kernel.start(settings), kernel.numbers(settings.agent, depth, np.float32)
    scratch, steps, right = (
        kernel.make_scratch(length),
        kernel.make_steps(length),
        action_map(depth, 0),
    )
    goals = np.zeros(KERNEL_ROLLOUTS * length // depth + 1, np.int8)
    while True:
        state.diver[3] = 0  # episodes are counted anew in every call
        began = time.perf_counter()
        kernel.run(state, scratch, steps, numbers, right, goals, rng, KERNEL_ROLLOUTS)
        yield KERNEL_ROLLOUTS * length, time.perf_counter() - began
        pin(core)


def pin(core: int) -> None:
    """Keep this process, and threads that it will start, on one core; where the system cannot, leave them."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def bsuite_actor_critic(depth: int) -> Contestant:
    """bsuite's JAX actor-critic as published: its default agent, its environment, its loop."""
    episodes = max(1, 500 // depth)
    return bsuite_chunks("actor_critic", depth, episodes, episodes)


def bsuite_boot_dqn(depth: int, **options: int) -> Contestant:
    """bsuite's JAX Bootstrapped DQN as published or with other options, learning at every step."""
    return bsuite_chunks("boot_dqn", depth, -(-BOOT_DQN_WARM_STEPS // depth), 1, **options)


def bsuite_boot_dqn_of_ten(depth: int) -> Contestant:
    """The same with as many members as the `boot-dqn` preset has."""
    return bsuite_boot_dqn(depth, num_ensemble=PRESETS["boot-dqn"].members)


def bsuite_chunks(name: str, depth: int, first: int, then: int, **options: int) -> Contestant:
    """One of bsuite's JAX baselines: its first episodes, then some at a time."""
    make_agent, make_environment, run = bsuite_parts(name)
    environment = make_environment(depth, mapping_seed=0)
    agent = make_agent(environment.observation_spec(), environment.action_spec(), **options)
    for episodes in itertools.chain([first], itertools.repeat(then)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # rlax warns of its future while it is traced
            began = time.perf_counter()
            run(agent, environment, episodes)
            seconds = time.perf_counter() - began
        yield episodes * depth, seconds


def bsuite_parts(name: str) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., None]]:
    """bsuite's makers of an agent and of DeepSea, and its loop; what its imports warn of is not ours to hear."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from bsuite.baselines import experiment
        from bsuite.environments import deep_sea

        agent = import_module(f"bsuite.baselines.jax.{name}.agent")
    return agent.default_agent, deep_sea.DeepSea, experiment.run
