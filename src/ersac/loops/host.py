"""The loop for environments on the host: Gymnasium, and everything else that JAX cannot step.

An actor steps N environments together and passes whole rollouts to the learner, which is
`learn.learn` as in every loop. They have a thread each: the actor takes the newest parameters at
the start of each rollout, and waits if they are more than `max_staleness` rollouts behind. With
`lockstep` they may not be behind, so that acting and learning take turns, and a run is reproducible
to the bit. The learner's thread never steps an environment, so it hears a signal in any step.

`host_calls.py` has the compiled calls, `host_state.py` what the threads share, `host_actor.py` the
actor; here are preparation, the learner and checkpoints.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from ersac import config
from ersac.agents.base import Metrics
from ersac.agents.build import agent_of, buffer_of
from ersac.config.run import CHUNK_SECONDS
from ersac.envs.base import HostEnv, Spec, size_of, spec_of
from ersac.envs.make import make_host_env
from ersac.loops import devices, guard
from ersac.loops.base import (
    FIRST_RESET,
    ChunkOutput,
    EpisodeSteps,
    Loop,
    OnNonFinite,
    Poll,
    jax_options,
    no_signal,
    nonfinite_message,
    raise_nonfinite,
    run_seeds,
)
from ersac.loops.host_actor import (
    POLL_SECONDS,
    ActedRollout,
    Failure,
    StopActing,
    current_episodes,
    restore_episodes,
    start_episodes,
    stream_rollouts,
)
from ersac.loops.host_calls import LearnOutput, compile_calls
from ersac.loops.host_state import ActorParams, HostCarry, HostProgram, SeedState
from ersac.runs import exits
from ersac.runs.checkpoint import flatten
from ersac.runs.seal import arrays_below
from ersac.types import Learner, Trajectory, Tree

LEARN_SECONDS = 0.5  # an update that takes longer is left behind when a signal comes


def static_host_settings(settings: config.Experiment) -> config.Experiment:
    """Return the settings that decide the compiled programs: no floats, seeds or budgets."""
    assert settings.env.on_host
    run = {"seed": 0, "seeds": 1, "episodes": 1, "steps": None, "stop_when_solved": True}
    options = {"chunk": 1, "workers": 0, "lockstep": True}
    factory = {"make": None} if isinstance(settings.env, config.Gym) else {}
    return config.static(config.override(settings, **run, **options, **factory))


def prepare_host(
    settings: config.Experiment,
    variants: Sequence[config.Experiment] | None = None,
    make: Callable[[], HostEnv] | None = None,
) -> HostProgram:
    """Make the environments and the learner of every seed, and compile.

    make: makes the environments of a seed instead of Gymnasium.
    """
    assert variants is None, "seeds of a host loop cannot have different settings"
    devices.disable_async_dispatch()
    devices.enable_compilation_cache()
    began = time.perf_counter()
    seeds = tuple(run_seeds(settings))
    assert settings.env.on_host
    envs = [make_host_env(settings.env) if make is None else make() for _ in seeds]
    spec = spec_of(envs[0])
    config.check_memory(settings, size_of(spec))
    seed_states = [
        SeedState(env, seed, init_carry(settings, spec, seed))
        for env, seed in zip(envs, seeds, strict=True)
    ]
    program = assemble(settings, spec, seed_states)
    _warm_up(program)
    for seed_state in seed_states:
        if seed_state.env.snapshot is not None:  # a checkpoint is restored into this form
            start_episodes(program, seed_state, 0)
            episodes = current_episodes(seed_state)
            seed_state.carry = seed_state.carry._replace(episodes=episodes)
    program = program._replace(carry=[seed_state.carry for seed_state in seed_states])
    return program._replace(compile_seconds=time.perf_counter() - began)


def assemble(settings: config.Experiment, spec: Spec, seed_states: list[SeedState]) -> HostProgram:
    """Return the program of these seeds, without compiling."""
    return HostProgram(
        settings=settings,
        spec=spec,
        calls=compile_calls(static_host_settings(settings), spec),
        floats={name: jnp.asarray(value) for name, value in config.floats(settings).items()},
        seeds=tuple(seed_state.seed for seed_state in seed_states),
        seed_states=seed_states,
        carry=[seed_state.carry for seed_state in seed_states],
        compile_seconds=0.0,
    )


def init_carry(settings: config.Experiment, spec: Spec, seed: int) -> HostCarry:
    """Return the learner before its first step, and an empty buffer."""
    learner = agent_of(settings, spec).init(np.random.default_rng(seed))
    example = jax.tree.map(lambda leaf: leaf[0], _zero_rollouts(settings, spec))
    return HostCarry(learner, buffer_of(settings, spec).init(example), np.int32(0))


def _zero_rollouts(settings: config.Experiment, spec: Spec) -> Trajectory:
    """Return rollouts of zeros [N, T], with the right shapes and types."""
    envs, length = spec.envs, settings.agent.rollout
    agent, key = agent_of(settings, spec), jax.random.key(0)
    obs = np.zeros((envs, length + 1, *getattr(spec.observations, "shape", ())), _dtype(spec))
    learner = jax.eval_shape(lambda: agent.init(np.random.default_rng(0)))
    episode_state = jax.eval_shape(lambda key: agent.policy.init_episode(learner, key), key)
    action_noise = jax.eval_shape(lambda key: agent.policy.action_noise(key, 1), key)
    one_step = lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
    action, _ = jax.eval_shape(
        agent.policy.act,
        learner,
        episode_state,
        jax.ShapeDtypeStruct(obs.shape[2:], obs.dtype),
        jax.tree.map(one_step, action_noise),
    )
    noise = jax.eval_shape(lambda key: agent.noise(key, length), key)
    zeros = jnp.zeros((envs, length))
    filled = lambda leaf, *leading: jnp.zeros((*leading, *leaf.shape), leaf.dtype)
    return Trajectory(
        obs=jnp.asarray(obs),
        action=filled(action, envs, length),
        reward=zeros,
        discount=zeros,
        mask=zeros,
        log_mu=zeros,
        noise=jax.tree.map(lambda leaf: filled(leaf, envs), noise),
    )


def _dtype(spec: Spec) -> Any:
    if hasattr(spec.observations, "n"):
        return np.int32
    return np.uint8 if spec.observations.is_bytes else jnp.zeros(()).dtype


def _warm_up(program: HostProgram) -> None:
    """Call every compiled function once, so that the first step is not slower than others."""
    settings, seed_state, calls = program.settings, program.seed_states[0], program.calls
    zeros = _zero_rollouts(settings, program.spec)
    learner, key = seed_state.carry.learner, seed_state.key
    numbers = np.arange(config.rollouts_per_chunk(settings))
    chunk_noise = calls.draw_noise(program.floats, key, numbers)
    episode_state = calls.init_episodes(learner, jax.random.fold_in(key, FIRST_RESET))
    drawn = calls.act_step(
        calls.pack(learner), episode_state, zeros.obs[:, 0], chunk_noise.action_noise, 0, 0
    )
    length = settings.agent.rollout
    calls.join_steps([drawn.dist_params] * length, [drawn.action] * length)
    buffer_state = jax.tree.map(jnp.copy, seed_state.carry.buffer_state)
    calls.learn(program.floats, learner, buffer_state, zeros, key, 0)


Learned = tuple[EpisodeSteps, dict[str, Any], Metrics]  # of a rollout: the last are finite sums


def learn_rollout(program: HostProgram, seed_state: SeedState, acted: ActedRollout) -> Learned:
    """Learn from a rollout of a seed; return its episodes, metrics and finite sums.

    There is little Python here: while one thread runs Python, the other waits.
    """
    return publish(seed_state, acted, update(program, seed_state, acted))


def update(program: HostProgram, seed_state: SeedState, acted: ActedRollout) -> LearnOutput:
    """Return what the compiled update returns for a rollout of a seed, once it is there."""
    learner, buffer_state, rollouts, _ = seed_state.carry
    updated = program.calls.learn(
        program.floats, learner, buffer_state, acted.trajectory, seed_state.key, rollouts
    )
    jax.block_until_ready(updated[1])  # the parameters: else the actor would wait for them
    return updated


def publish(seed_state: SeedState, acted: ActedRollout, updated: LearnOutput) -> Learned:
    """Make an update the newest state of a seed."""
    learner, packed, buffer_state, metrics, sums = updated
    rollouts = seed_state.carry.rollouts
    with seed_state.updated:
        seed_state.newest = ActorParams(learner, packed, int(rollouts) + 1)
        seed_state.carry = HostCarry(learner, buffer_state, rollouts + 1, acted.current)
        seed_state.updated.notify_all()
    return acted.episodes, metrics | {"staleness": np.float32(rollouts - acted.learned)}, sums


def run_host(
    program: HostProgram, on_nonfinite: OnNonFinite = raise_nonfinite, poll: Poll = no_signal
) -> Generator[ChunkOutput]:
    """Yield chunk after chunk until a signal comes; a chunk that takes long comes in parts.

    Actors go on between chunks, until the generator is closed. After a signal, or where an actor
    fails, the rollouts that all seeds have learned from are yielded first.
    """
    rollouts, length = int(program.carry[0].rollouts), config.rollouts_per_chunk(program.settings)
    with contextlib.ExitStack() as stack:
        streams = [
            stack.enter_context(
                contextlib.closing(stream_rollouts(program, seed_state, length, poll))
            )
            for seed_state in program.seed_states
        ]
        while True:
            began = time.perf_counter()
            outputs, error = learn_part(program, streams, length - rollouts % length, poll)
            if outputs:
                stack_leaves = lambda *leaves: np.stack(leaves)
                by_seed = [
                    jax.tree.map(stack_leaves, *of_seed) for of_seed in zip(*outputs, strict=True)
                ]
                episodes, metrics, sums = jax.tree.map(stack_leaves, *by_seed)
                for value in guard.find_nonfinite(sums, metrics, program.settings.agent.rollout):
                    on_nonfinite(value.seed, nonfinite_message(program, value, rollouts))
                rollouts += len(outputs)
                carry = [seed_state.carry for seed_state in program.seed_states]
                yield ChunkOutput(episodes, metrics, carry, time.perf_counter() - began)
            if isinstance(error, StopActing):
                return
            if error is not None:
                raise error


def learn_all(program: HostProgram, acted: Sequence[ActedRollout], poll: Poll) -> list[Learned]:
    """Learn from a rollout of every seed.

    Where an update takes long and leaves the state before it as it was, a signal does not wait for
    it: StopActing is raised, and the update is left behind in its thread.
    """
    pairs = list(zip(program.seed_states, acted, strict=True))
    first, began = program.seed_states[0], time.perf_counter()
    donates = bool(jax.tree.leaves(first.carry.buffer_state))
    if first.learn_seconds < LEARN_SECONDS or donates:
        learned = [learn_rollout(program, *pair) for pair in pairs]
    else:
        updates = call_unless_signal(lambda: [update(program, *pair) for pair in pairs], poll)
        learned = [publish(*pair, one) for pair, one in zip(pairs, updates, strict=True)]
    first.learn_seconds = time.perf_counter() - began
    return learned


def call_unless_signal(function: Callable[[], Any], poll: Poll) -> Any:
    """Call a function in another thread; StopActing if a signal comes and it does not return."""
    results: queue.Queue[Any] = queue.Queue()

    def work() -> None:
        try:
            results.put(function())
        except BaseException as error:
            results.put(Failure(error))

    threading.Thread(target=work, name=exits.LEFT_BEHIND[1], daemon=True).start()
    waited = 0.0  # since the signal
    while waited < LEARN_SECONDS:
        try:
            result = results.get(timeout=POLL_SECONDS)
        except queue.Empty:
            waited += POLL_SECONDS * bool(poll())
        else:
            if isinstance(result, Failure):
                raise result.error
            return result
    raise StopActing


def learn_part(
    program: HostProgram, streams: Sequence[Iterator[ActedRollout]], most: int, poll: Poll
) -> tuple[list[list[Learned]], Exception | None]:
    """Learn from up to `most` rollouts of every seed, for about two seconds.

    Returns the outputs by rollout and seed, and the error that ended acting, if any. A rollout of
    all seeds is acted before any is learned from, because learning uses up the state before it.
    """
    deadline = time.perf_counter() + CHUNK_SECONDS
    outputs: list[list[Learned]] = []
    while len(outputs) < most and (not outputs or time.perf_counter() < deadline):
        try:
            acted = [next(stream) for stream in streams]
        except Exception as error:
            return outputs, error
        try:
            outputs.append(learn_all(program, acted, poll))
        except StopActing as error:
            return outputs, error
    return outputs, None


def describe_host(program: HostProgram) -> dict[str, str | int]:
    """Return the device, the number of environments and the JAX options."""
    devices = jax.local_devices()
    return {
        "devices": f"1 {devices[0].device_kind}",
        "environments": program.spec.envs,
        "jax options": jax_options(),
    }


def snapshot_host(
    program: HostProgram, carry: list[HostCarry], on_nonfinite: OnNonFinite = raise_nonfinite
) -> Tree:
    """Return the state of all seeds that can be saved, on the host."""
    for seed_index, seed_carry in enumerate(carry):
        learner = seed_carry.learner._replace(memory=())  # a memory may contain infinity
        for name, array in flatten(learner)[0].items():
            if not np.isfinite(array).all():
                where = f"at rollout {int(seed_carry.rollouts):,}, where it was to be saved"
                on_nonfinite(seed_index, f"{name} is not finite {where}")
    by_seed = {str(seed): carry for seed, carry in zip(program.seeds, carry, strict=True)}
    return jax.tree.map(np.asarray, by_seed)


def restore_host(program: HostProgram, state: Tree) -> HostProgram:
    """Return the program at the state of a snapshot.

    Environments start new episodes unless their state was stored.
    """
    for seed_state, seed in zip(program.seed_states, program.seeds, strict=True):
        learner, buffer_state = jax.tree.map(jnp.asarray, state[str(seed)][:2])
        rollouts, episodes = np.int32(state[str(seed)].rollouts), state[str(seed)].episodes
        seed_state.carry = HostCarry(learner, buffer_state, rollouts, episodes)
        if episodes:
            restore_episodes(seed_state, episodes)
    return program._replace(carry=[seed_state.carry for seed_state in program.seed_states])


def close_host(program: HostProgram) -> None:
    """Close the environments, except those in which an actor is stuck."""
    for seed_state in program.seed_states:
        if seed_state.actor is None or not seed_state.actor.is_alive():
            seed_state.env.close()


def host_learner(carry: list[HostCarry], seed_index: int) -> Learner:
    """Return the learner of one seed."""
    return carry[seed_index].learner


def with_host_learners(program: HostProgram, learners: Sequence[Learner]) -> HostProgram:
    """Return the program that starts with these learners."""
    for seed_state, learner in zip(program.seed_states, learners, strict=True):
        seed_state.carry = seed_state.carry._replace(learner=jax.tree.map(jnp.asarray, learner))
    return program._replace(carry=[seed_state.carry for seed_state in program.seed_states])


def saved_host_learner(
    arrays: dict[str, np.ndarray], seed: int, seed_index: int
) -> dict[str, np.ndarray]:
    """Return the arrays of one seed's learner from those of a snapshot."""
    return arrays_below(arrays, f"{seed}/learner")


HOST_LOOP = Loop(
    prepare=prepare_host,
    run=run_host,
    snapshot=snapshot_host,
    restore=restore_host,
    close=close_host,
    describe=describe_host,
    static_settings=static_host_settings,
    learner=host_learner,
    with_learners=with_host_learners,
    saved_learner=saved_host_learner,
)
