"""The workloads that are measured: ersac, bsuite, the dense agent, the kernel, random actions."""

import itertools
import os
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks import dense, kernel
from benchmarks.measure import Workload
from ersac import api, config
from ersac.config.presets import PRESETS
from ersac.envs.base import cardinality
from ersac.envs.deep_sea import action_map
from ersac.envs.make import make_host_env
from ersac.loops import device, host

HOST_ENV, HOST_ENVS = "CartPole-v1", 16
TABLE: dict[str, Any] = {"agent": "ersac-sampled", "network": "table"}  # of dense.py, kernel.py
RANDOM_STEPS = 500  # of all environments at once, per call
KERNEL_ROLLOUTS = 200  # per call
BOOT_DQN_WARM_STEPS = 140  # past the 128 of its minimum replay: it then learns at every step


def ersac(depth: int, seeds: int = 1, **changes: Any) -> Workload:
    """The `ersac` preset, or one with changes, in the library's own loop on all cores."""
    chunks = device.run_device(
        device.prepare_device(api.make_settings(depth=depth, seeds=seeds, **changes))
    )
    return ((chunk.episodes.ended.size, chunk.seconds) for chunk in chunks)


def boot_dqn(depth: int) -> Workload:
    """The `boot-dqn` preset on one seed, learning at every step."""
    chunks = device.run_device(
        device.prepare_device(
            api.make_settings(agent="boot-dqn", depth=depth, seeds=1, chunk=BOOT_DQN_WARM_STEPS)
        )
    )
    return ((chunk.episodes.ended.size, chunk.seconds) for chunk in chunks)


def host_loop() -> Workload:
    """The `ersac` preset on Gymnasium environments, acting and learning in parallel."""
    chunks = host.run_host(host.prepare_host(api.make_settings(f"gym:{HOST_ENV}", envs=HOST_ENVS)))
    for _ in chunks:  # not counted: the actor kept running while other workloads had their turn
        chunk = next(chunks)
        yield chunk.episodes.ended.size, chunk.seconds


def random_actions() -> Workload:
    """The same environments through ersac's adapter, with random actions and no learning."""
    env = make_host_env(config.Gym(id=HOST_ENV, envs=HOST_ENVS))
    env.reset(0)
    return random_steps(env.step, cardinality(env.actions))


def gymnasium_random_actions() -> Workload:
    """As many environments in Gymnasium's own vector environment."""
    import gymnasium  # an extra

    vector = gymnasium.make_vec(HOST_ENV, HOST_ENVS, vectorization_mode="sync")
    vector.reset(seed=0)
    return random_steps(vector.step, vector.single_action_space.n)


def random_steps(step: Callable[[np.ndarray], Any], n_actions: int) -> Workload:
    """Endless steps with random actions."""
    rng = np.random.default_rng(0)
    while True:
        start = time.perf_counter()
        for action in rng.integers(0, n_actions, (RANDOM_STEPS, HOST_ENVS)):
            step(action)
        yield RANDOM_STEPS * HOST_ENVS, time.perf_counter() - start


def dense_ersac(depth: int) -> Workload:
    """The TABLE agent with one-hot inputs and dense optimisers; calls take similar time."""
    return dense.run_dense(
        api.make_settings(depth=depth, seeds=1, **TABLE),
        rollouts=max(1, 12_500 // depth**2),
    )


def ersac_on_core(core: int, depth: int, seeds: int) -> Workload:
    """The TABLE agent with the reward heads of the kernel, pinned to a core before jax starts."""
    pin(core)
    return ersac(depth, seeds, shared_reward_heads=True, **TABLE)


def kernel_on_core(core: int, depth: int) -> Workload:
    """The hand-written kernel with one seed; pinned to one core once it is compiled."""
    settings = api.make_settings(depth=depth, seeds=1, shared_reward_heads=True, **TABLE)
    length, rng = settings.agent.rollout, np.random.default_rng(0)
    state, constants = (
        kernel.init_state(settings),
        kernel.make_constants(settings.agent, depth, np.float32),
    )
    scratch, steps, right = (
        kernel.make_scratch(length),
        kernel.make_steps(length),
        action_map(depth, 0),
    )
    goals = np.zeros(KERNEL_ROLLOUTS * length // depth + 1, np.int8)
    while True:
        state.position[3] = 0  # episodes are counted from zero in every call
        start = time.perf_counter()
        kernel.run(state, scratch, steps, constants, right, goals, rng, KERNEL_ROLLOUTS)
        yield KERNEL_ROLLOUTS * length, time.perf_counter() - start
        pin(core)


def pin(core: int) -> None:
    """Keep this process and its future threads on one core, where the system allows it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def bsuite_actor_critic(depth: int) -> Workload:
    """bsuite's JAX actor-critic: its default agent, its environment, its loop."""
    episodes = max(1, 500 // depth)
    return bsuite_chunks("actor_critic", depth, episodes, episodes)


def bsuite_boot_dqn(depth: int, **options: int) -> Workload:
    """bsuite's JAX Bootstrapped DQN, by default as published, learning at every step."""
    return bsuite_chunks("boot_dqn", depth, -(-BOOT_DQN_WARM_STEPS // depth), 1, **options)


def bsuite_boot_dqn_of_ten(depth: int) -> Workload:
    """bsuite's Bootstrapped DQN with as many members as the `boot-dqn` preset."""
    return bsuite_boot_dqn(depth, num_ensemble=PRESETS["boot-dqn"].members)


def bsuite_chunks(name: str, depth: int, first: int, then: int, **options: int) -> Workload:
    """A bsuite JAX baseline: `first` episodes in the first call, `then` in later ones."""
    make_agent, make_environment, run = bsuite_parts(name)
    environment = make_environment(depth, mapping_seed=0)
    agent = make_agent(environment.observation_spec(), environment.action_spec(), **options)
    for episodes in itertools.chain([first], itertools.repeat(then)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecation warnings of rlax while it is traced
            start = time.perf_counter()
            run(agent, environment, episodes)
            seconds = time.perf_counter() - start
        yield episodes * depth, seconds


def bsuite_parts(name: str) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., None]]:
    """bsuite's agent factory, DeepSea class and loop; warnings of its imports are ignored."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from bsuite.baselines import experiment
        from bsuite.environments import deep_sea

        agent = import_module(f"bsuite.baselines.jax.{name}.agent")
    return agent.default_agent, deep_sea.DeepSea, experiment.run
