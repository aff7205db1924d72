"""The loop for environments on the host: Gymnasium, and everything else that JAX cannot step.

An actor steps N environments together and passes whole rollouts to the learner, which is
`learn.learn` as in every loop. They have a thread each: the actor takes the newest parameters at
the start of each rollout, and waits if they are more than `max_staleness` rollouts behind. With
`lockstep` they may not be behind, so that acting and learning take turns, and a run is reproducible
to the bit. The learner's thread never steps an environment, so it hears a signal in any step.

Acting is dominated by the overhead of compiled calls, so there is one call per step, with few
arguments: parameters are packed into few arrays, and the noise of a chunk is drawn at once.
"""

import contextlib
import itertools
import math
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from ersac import config
from ersac.agents.base import Agent, Metrics
from ersac.agents.build import make_agent, make_buffer
from ersac.algorithm.replay import Buffer
from ersac.config.run import CHUNK_SECONDS
from ersac.envs.base import Box, Env, HostEnv, HostStep, Spec, spec_of
from ersac.envs.make import make_host_env
from ersac.loops import devices, guard
from ersac.loops.base import (
    BUFFER_DRAWS,
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
from ersac.loops.learn import learn, store_new, update_once
from ersac.loops.rollout import draw_all_noise, env_keys, step_keys
from ersac.nets.layers import is_large_image
from ersac.nets.packed import unpack
from ersac.runs import exits
from ersac.runs.checkpoint import flatten
from ersac.runs.exits import Resumable
from ersac.runs.seal import arrays_below
from ersac.types import Array, Key, Learner, Trajectory, Tree

POLL_SECONDS = 0.1  # how often a waiting thread checks whether it was stopped
JOIN_SECONDS = 1.0  # for the actor to end; one that is still in a step is left there
LEARN_SECONDS = 0.5  # an update that takes longer is left behind when a signal comes
STEP_SECONDS = 300.0  # for a step of an environment to return
MAX_PACKED = 2**13  # numbers: copying a larger array takes longer than passing it as an argument
ONE_THREAD = {"xla_cpu_multi_thread_eigen": False}  # waking a thread takes longer than acting


class HostCarry(NamedTuple):
    """The state of one seed that can be saved."""

    learner: Learner
    buffer_state: Tree
    rollouts: np.int32  # rollouts so far, counted on the host
    episodes: Tree = ()  # CurrentEpisodes; () where a resumed run starts new ones


class CurrentEpisodes(NamedTuple):
    """The current episodes of N environments whose state can be stored, between two rollouts."""

    env: Tree  # as `HostEnv.snapshot` returns it
    obs: np.ndarray  # [N, ...]
    policy: Tree  # the policy's episode states
    returns: np.ndarray  # [N]
    steps: np.ndarray  # [N]


class SeedState:
    """One seed: its environments, their current episodes and the newest parameters."""

    def __init__(self, env: HostEnv, seed: int, carry: HostCarry) -> None:
        self.env, self.seed, self.carry = env, seed, carry
        self.key = jax.random.key(seed)
        self.newest: ActorParams | None = None  # replaced in one assignment: threads share it
        self.updated = threading.Condition()  # notified after `newest` was replaced
        self.actor: threading.Thread | None = None
        self.steps = 0  # that the actor has begun: whether it is stuck in one
        self.learn_seconds = 0.0  # of the last update
        self.obs: np.ndarray | None = None  # [N, ...]
        self.episode_state: Tree = ()
        self.episode_return = np.zeros(env.envs, np.float64)
        self.episode_steps = np.zeros(env.envs, np.int32)


# The functions that are compiled. Each takes static settings and a specification first.


def _agent(settings: config.Experiment, spec: Spec) -> Agent:
    assert settings.env.on_host
    return make_agent(settings.agent, spec, settings.env.normalisation)


def _init_episodes(settings: config.Experiment, spec: Spec, learner: Learner, key: Key) -> Tree:
    """Return the policy's episode states [N, ...] at the first reset."""
    agent = _agent(settings, spec)
    return jax.vmap(lambda key: agent.policy.init_episode(learner, jax.random.split(key)[1]))(
        env_keys(key, spec.envs)
    )


def _restart_episodes(
    settings: config.Experiment,
    spec: Spec,
    learner: Learner,
    episode_state: Tree,
    key: Key,
    rollout: Array,
    t: Array,
    ended: Array,
) -> Tree:
    """Return the episode states [N, ...], new where an episode ended at step t of a rollout."""
    reset_key = lambda key: jax.random.split(step_keys(key, settings.agent.rollout)[t])[1]
    keys = jax.vmap(reset_key)(env_keys(jax.random.fold_in(key, rollout), spec.envs))
    agent = _agent(settings, spec)
    new = jax.vmap(lambda key: agent.policy.init_episode(learner, jax.random.split(key)[1]))(keys)
    return jax.tree.map(
        lambda new, old: jnp.where(ended.reshape(-1, *[1] * (new.ndim - 1)), new, old),
        new,
        episode_state,
    )


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("small", "large"),
    meta_fields=("structure", "shapes"),
)
@dataclass(frozen=True)
class Packed:
    """A tree of arrays in few arrays: a compiled call takes longer for every argument."""

    small: dict[str, Array]  # by dtype, all small arrays concatenated
    large: list[Array]
    structure: Any  # of the tree
    shapes: tuple[tuple[str, tuple[int, ...]], ...]  # dtype and shape of every array


def pack_arrays(tree: Tree) -> Packed:
    """Pack a tree of arrays."""
    leaves, structure = jax.tree.flatten(tree)
    small: dict[str, list[Array]] = {}
    large = []
    for leaf in leaves:
        if leaf.size > MAX_PACKED:
            large.append(leaf)
        else:
            small.setdefault(str(leaf.dtype), []).append(leaf.ravel())
    vectors = {dtype: jnp.concatenate(arrays) for dtype, arrays in small.items()}
    shapes = tuple((str(leaf.dtype), leaf.shape) for leaf in leaves)
    return Packed(vectors, large, structure, shapes)


def unpack_arrays(packed: Packed) -> Tree:
    """Return the tree that was packed."""
    offsets, large = dict.fromkeys(packed.small, 0), iter(packed.large)

    def take(dtype: str, shape: tuple[int, ...]) -> Array:
        size = math.prod(shape)
        if size > MAX_PACKED:
            return next(large)
        offsets[dtype] += size
        return packed.small[dtype][offsets[dtype] - size : offsets[dtype]].reshape(shape)

    return packed.structure.unflatten([take(dtype, shape) for dtype, shape in packed.shapes])


def _pack(settings: config.Experiment, spec: Spec, learner: Learner) -> Packed:
    return pack_arrays(_agent(settings, spec).policy.actor_params(learner))


class ChunkNoise(NamedTuple):
    """The randomness of R rollouts in N environments."""

    action_noise: Tree  # [R, N, T, ...]   on the device
    noise: Tree  # [R, N, T, ...]          stored in trajectories, on the host


def _draw_noise(
    settings: config.Experiment, spec: Spec, floats: dict[str, Array], key: Key, rollouts: Array
) -> ChunkNoise:
    settings = config.with_floats(settings, floats)
    agent = _agent(settings, spec)
    rollout_noise = jax.vmap(
        lambda rollout: draw_all_noise(
            settings.agent, agent, spec.envs, jax.random.fold_in(key, rollout)
        )
    )(rollouts)
    return ChunkNoise(rollout_noise.action_noise, rollout_noise.noise)


class ActionDraw(NamedTuple):
    """One action in each environment [N, ...]."""

    action: Array
    dist_params: Tree  # input of the policy's log_mu
    env_action: Array | None  # the environment's action; None where it equals `action`


def _act_step(
    settings: config.Experiment,
    spec: Spec,
    actor_params: Packed,
    episode_state: Tree,
    obs: Array,
    action_noise: Tree,
    r: Array,
    t: Array,
) -> ActionDraw:
    """Return the actions of step t of rollout r; action_noise: [R, N, T, ...]."""
    agent, learner = _agent(settings, spec), unpack_arrays(actor_params)
    one = lambda episode_state, obs, action_noise: agent.policy.act(
        learner,
        episode_state,
        obs,
        jax.tree.map(lambda chunk_noise: chunk_noise[r, t], action_noise),
    )
    action, dist_params = jax.vmap(one, in_axes=(0, 0, 1))(episode_state, obs, action_noise)
    env_action = agent.policy.to_env(action)
    return ActionDraw(action, dist_params, None if env_action is action else env_action)


def _join_steps(
    settings: config.Experiment, spec: Spec, dist_params: list[Tree], action: list[Array]
) -> tuple[Array, Array]:
    """Return the actions [N, T] of a rollout and their log-probabilities, from those of T steps."""
    agent = _agent(settings, spec)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves, axis=1), *dist_params)
    actions = jnp.stack(action, axis=1)
    return actions, jax.vmap(agent.policy.log_mu)(stacked, actions)


def _learn(
    settings: config.Experiment,
    spec: Spec,
    floats: dict[str, Array],
    learner: Learner,
    buffer_state: Tree,
    newest: Trajectory,
    key: Key,
    rollout: Array,
) -> tuple[Learner, Packed, Tree, Metrics, Metrics]:
    """Learn from new rollouts; also return the packed parameters, metrics and finite sums.

    The buffer's state is donated. The learner is not: the actor may be using it.
    """
    settings = config.with_floats(settings, floats)
    agent, buffer = _agent(settings, spec), _buffer(settings, spec)
    key = draws_key(key, rollout)
    learner, buffer_state, metrics = learn(agent, buffer, learner, buffer_state, newest, key)
    packed, sums = _summarise(agent, spec, learner, newest)
    return learner, packed, buffer_state, metrics, sums


def _buffer(settings: config.Experiment, spec: Spec) -> Buffer:
    return make_buffer(settings.agent, spec.envs, spec.observations)


def draws_key(key: Key, rollout: Array) -> Key:
    """Return the key of the buffer's draws after a rollout."""
    return jax.random.fold_in(jax.random.fold_in(key, BUFFER_DRAWS), rollout)


def _summarise(
    agent: Agent, spec: Spec, learner: Learner, newest: Trajectory
) -> tuple[Packed, Metrics]:
    """Return the packed parameters and the finite sums."""
    packed = pack_arrays(agent.policy.actor_params(learner))
    newest = newest._replace(obs=unpack(spec.observations, newest.obs)[0])
    return packed, guard.finite_sums(newest, learner)


# The same in one call for each update. XLA's convolution is twenty times as slow inside a loop.


def _store_new(
    settings: config.Experiment,
    spec: Spec,
    floats: dict[str, Array],
    learner: Learner,
    buffer_state: Tree,
    newest: Trajectory,
) -> tuple[Learner, Tree]:
    settings = config.with_floats(settings, floats)
    agent, buffer = _agent(settings, spec), _buffer(settings, spec)
    return store_new(agent, buffer, learner, buffer_state, newest)


def _update_once(
    settings: config.Experiment,
    spec: Spec,
    floats: dict[str, Array],
    learner: Learner,
    buffer_state: Tree,
    newest: Trajectory,
    key: Key,
    rollout: Array,
    number: Array,
) -> tuple[Learner, Tree, Metrics]:
    settings = config.with_floats(settings, floats)
    agent, buffer = _agent(settings, spec), _buffer(settings, spec)
    key = draws_key(key, rollout)
    return update_once(agent, buffer, learner, buffer_state, newest, key, number)


def _finish_updates(
    settings: config.Experiment,
    spec: Spec,
    learner: Learner,
    newest: Trajectory,
    metrics: list[Metrics],
) -> tuple[Packed, Metrics, Metrics]:
    """Return the packed parameters, the mean of the metrics, and the finite sums."""
    packed, sums = _summarise(_agent(settings, spec), spec, learner, newest)
    return packed, jax.tree.map(lambda *x: jnp.mean(jnp.stack(x)), *metrics), sums


def learn_in_calls(
    static: config.Experiment, spec: Spec
) -> Callable[..., tuple[Learner, Packed, Tree, Metrics, Metrics]]:
    """Return the function that does what `_learn` does in a compiled call for each update."""
    bind = lambda function, **options: jax.jit(partial(function, static, spec), **options)
    store, finish = bind(_store_new, donate_argnums=2), bind(_finish_updates)
    update = bind(_update_once, donate_argnums=2)
    updates = _buffer(static, spec).updates

    def learn_rollouts(
        floats: dict[str, Array],
        learner: Learner,
        buffer_state: Tree,
        newest: Trajectory,
        key: Key,
        rollout: Array,
    ) -> tuple[Learner, Packed, Tree, Metrics, Metrics]:
        newest = jax.tree.map(jnp.asarray, newest)  # copied to the device once
        learner, buffer_state = store(floats, learner, buffer_state, newest)
        metrics = []
        for number in range(updates):
            learner, buffer_state, numbers = update(
                floats, learner, buffer_state, newest, key, rollout, number
            )
            metrics.append(numbers)
        packed, means, sums = finish(learner, newest, metrics)
        return learner, packed, buffer_state, means, sums

    return learn_rollouts


class CompiledCalls(NamedTuple):
    """The compiled functions of a run."""

    pack: Any
    init_episodes: Any
    restart_episodes: Any
    draw_noise: Any
    act_step: Any
    join_steps: Any
    learn: Any


@lru_cache(maxsize=32)
def compile_calls(static: config.Experiment, spec: Spec) -> CompiledCalls:
    """Return the jitted functions; looking them up at every step would take longer than acting."""
    bind = lambda function, **options: jax.jit(partial(function, static, spec), **options)
    in_calls = is_large_image(spec.observations)
    act_options = ONE_THREAD if jax.default_backend() == "cpu" else None
    return CompiledCalls(
        pack=bind(_pack),
        init_episodes=bind(_init_episodes),
        restart_episodes=bind(_restart_episodes),
        draw_noise=bind(_draw_noise),
        act_step=bind(_act_step, compiler_options=act_options),
        join_steps=bind(_join_steps),
        learn=learn_in_calls(static, spec) if in_calls else bind(_learn, donate_argnums=2),
    )


class HostProgram(NamedTuple):
    """A run that is compiled and ready."""

    settings: config.Experiment
    spec: Spec
    calls: CompiledCalls
    floats: dict[str, Array]  # the traced settings
    seeds: tuple[int, ...]
    seed_states: list[SeedState]
    carry: list[HostCarry]
    compile_seconds: float


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


def size_of(spec: Spec) -> config.EnvSize:
    """Return the sizes of an environment that decide how much memory a run needs."""
    states = getattr(spec.observations, "n", 0)
    n_actions = sum(getattr(spec.actions, "sizes", (getattr(spec.actions, "n", 1),)))
    bytes_per_number = 1 if getattr(spec.observations, "is_bytes", False) else 4
    numbers = getattr(spec.observations, "size", 1)
    stored = getattr(spec.observations, "stored_bytes", 4)
    # Packed observations are stored with all of their frames.
    frames = spec.observations.frames if isinstance(spec.observations, Box) else 1
    return config.EnvSize(states, bytes_per_number * numbers, n_actions, numbers, stored, frames)


def init_carry(settings: config.Experiment, spec: Spec, seed: int) -> HostCarry:
    """Return the learner before its first step, and an empty buffer."""
    learner = _agent(settings, spec).init(np.random.default_rng(seed))
    example = jax.tree.map(lambda leaf: leaf[0], _zero_rollouts(settings, spec))
    buffer = make_buffer(settings.agent, spec.envs, spec.observations)
    return HostCarry(learner, buffer.init(example), np.int32(0))


def _zero_rollouts(settings: config.Experiment, spec: Spec) -> Trajectory:
    """Return rollouts of zeros [N, T], with the right shapes and types."""
    envs, length = spec.envs, settings.agent.rollout
    agent, key = _agent(settings, spec), jax.random.key(0)
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


class ActorParams(NamedTuple):
    """The newest parameters."""

    learner: Learner
    packed: Packed  # the part of the learner that acting reads
    rollouts: int  # rollouts that they have learned from


class ActedRollout(NamedTuple):
    """A rollout of all environments of a seed."""

    trajectory: Trajectory  # [N, T]
    episodes: EpisodeSteps  # [N, T]
    learned: int  # rollouts that the parameters it was acted with had learned from
    current: Tree = ()  # CurrentEpisodes after it, where they can be stored


def env_seed(seed: int, rollout: int) -> int:
    """Return the seed of the first environment when acting starts at a rollout; others follow it.

    It is hashed by SeedSequence, so that runs with neighbouring seeds, and a resumed run, have
    different environment seeds. It has 31 bits, which every environment accepts.
    """
    return int(np.random.SeedSequence((seed, rollout)).generate_state(1)[0] >> 1)


def start_episodes(program: HostProgram, seed_state: SeedState, rollout: int) -> None:
    """Reset the environments of a seed before a rollout."""
    seed_state.obs = seed_state.env.reset(env_seed(seed_state.seed, rollout))
    first_key = jax.random.fold_in(seed_state.key, FIRST_RESET)
    seed_state.episode_state = program.calls.init_episodes(seed_state.carry.learner, first_key)


def current_episodes(seed_state: SeedState) -> Tree:
    """Return the CurrentEpisodes of a seed, or () where its environments cannot be stored."""
    env = seed_state.env
    if env.snapshot is None:
        return ()
    assert seed_state.obs is not None
    return CurrentEpisodes(
        env=env.snapshot(),
        obs=seed_state.obs,
        policy=seed_state.episode_state,
        returns=seed_state.episode_return.copy(),
        steps=seed_state.episode_steps.copy(),
    )


def restore_episodes(seed_state: SeedState, episodes: CurrentEpisodes) -> None:
    """Continue the episodes of a seed."""
    assert seed_state.env.restore is not None
    seed_state.env.restore(episodes.env)
    seed_state.obs = episodes.obs
    seed_state.episode_state = jax.tree.map(jnp.asarray, episodes.policy)
    seed_state.episode_return = np.array(episodes.returns)
    seed_state.episode_steps = np.array(episodes.steps)


class StopActing(Exception):
    """The loop was closed while a rollout was being acted."""


def act_rollout(
    program: HostProgram,
    seed_state: SeedState,
    chunk_noise: ChunkNoise,
    first: int,
    r: int,
    stop: threading.Event,
) -> ActedRollout:
    """Act T steps in every environment of a seed with its newest parameters.

    first, r: the rollout has the number first + r, and the r-th noise of the chunk.
    """
    calls, length, rollout = program.calls, program.settings.agent.rollout, first + r
    env, actor_params = seed_state.env, seed_state.newest
    assert actor_params is not None
    if seed_state.obs is None:
        start_episodes(program, seed_state, rollout)
    assert seed_state.obs is not None
    has_episode_state = bool(jax.tree.leaves(seed_state.episode_state))
    obs, steps, actions, dist_params = [seed_state.obs], [], [], []
    for t in range(length):
        if stop.is_set():
            raise StopActing
        seed_state.steps += 1
        drawn = calls.act_step(
            actor_params.packed,
            seed_state.episode_state,
            seed_state.obs,
            chunk_noise.action_noise,
            r,
            t,
        )
        actions.append(drawn.action)
        dist_params.append(drawn.dist_params)
        step = env.step(np.asarray(drawn.action if drawn.env_action is None else drawn.env_action))
        seed_state.obs = step.obs
        obs.append(step.obs)
        steps.append(step)
        restarts = step.ended if step.lost is None else step.ended | step.lost
        if has_episode_state and restarts.any():
            seed_state.episode_state = calls.restart_episodes(
                actor_params.learner,
                seed_state.episode_state,
                seed_state.key,
                rollout,
                t,
                restarts,
            )
    action, log_mu = calls.join_steps(dist_params, actions)
    column = lambda name: stack_steps((getattr(step, name) for step in steps), log_mu.dtype)
    trajectory = Trajectory(
        obs=stack_steps(obs),
        action=action,
        reward=column("reward"),
        discount=column("discount"),
        mask=column("mask"),
        log_mu=log_mu,
        noise=jax.tree.map(lambda noise: noise[r], chunk_noise.noise),
    )
    episodes = _episodes(seed_state, steps)
    return ActedRollout(trajectory, episodes, actor_params.rollouts, current_episodes(seed_state))


def stack_steps(arrays: Iterable[np.ndarray], dtype: Any = None) -> Any:
    """Stack arrays [N, ...] of T steps to [N, T, ...], on the host: faster than in JAX."""
    return np.array(list(arrays), dtype).swapaxes(0, 1)


def _episodes(seed_state: SeedState, steps: list[HostStep]) -> EpisodeSteps:
    """Return the state of the episodes after each step [N, T]."""
    ended = stack_steps(step.ended for step in steps)
    goal = stack_steps(step.goal for step in steps)
    counted = stack_steps((step.mask for step in steps), np.int32)
    returns = np.empty(ended.shape)
    for t, step in enumerate(steps):
        seed_state.episode_return += step.reward
        seed_state.episode_steps += counted[:, t]
        returns[:, t] = seed_state.episode_return
        over = step.ended
        if step.lost is not None:
            over = over | step.lost
            counted[step.lost, t] -= seed_state.episode_steps[step.lost]
        seed_state.episode_return[over] = 0.0
        seed_state.episode_steps[over] = 0
    if seed_state.env.target is not None:
        goal = goal | (returns >= seed_state.env.target)
    return EpisodeSteps(ended, goal, returns, counted)


def wait_for_parameters(seed_state: SeedState, rollouts: int, stop: threading.Event) -> None:
    """Wait until the newest parameters have learned from that many rollouts; or StopActing."""
    with seed_state.updated:
        while seed_state.newest is not None and seed_state.newest.rollouts < rollouts:
            if stop.is_set():
                raise StopActing
            seed_state.updated.wait(POLL_SECONDS)


class Failure(NamedTuple):
    """An exception of the actor's thread, passed to the learner's."""

    error: BaseException


def next_rollout(seed_state: SeedState, acted: queue.Queue[Any], poll: Poll) -> ActedRollout:
    """Wait for the actor's next rollout; StopActing after a signal."""
    limit = STEP_SECONDS * seed_state.env.envs
    waited, steps = 0.0, seed_state.steps
    while not poll():
        try:
            item = acted.get(timeout=POLL_SECONDS)
        except queue.Empty:
            # Waits are counted instead of a clock read: the whole job may have been suspended.
            waited = waited + POLL_SECONDS if steps == seed_state.steps else 0.0
            steps = seed_state.steps
            if waited > limit:
                raise Resumable(
                    f"{seed_state.env.name}: a step has not returned for {limit:g} s: "
                    "check what step() or reset() waits for"
                ) from None
        else:
            if isinstance(item, Failure):
                raise item.error
            return item
    raise StopActing


def stream_rollouts(
    program: HostProgram, seed_state: SeedState, count: int, poll: Poll = no_signal
) -> Generator[ActedRollout]:
    """Yield rollouts of a seed without end, acted in another thread; StopActing after a signal.

    count: rollouts whose noise is drawn at once.
    """
    learner, start = seed_state.carry.learner, int(seed_state.carry.rollouts)
    seed_state.newest = ActorParams(learner, program.calls.pack(learner), start)
    stop = threading.Event()
    assert program.settings.env.on_host
    max_staleness = 0 if program.settings.env.lockstep else program.settings.env.max_staleness

    def act() -> Iterator[ActedRollout]:
        for first in itertools.count(start, count):
            chunk_noise = program.calls.draw_noise(
                program.floats, seed_state.key, np.arange(first, first + count)
            )
            chunk_noise = chunk_noise._replace(noise=jax.tree.map(np.asarray, chunk_noise.noise))
            for r in range(count):
                wait_for_parameters(seed_state, first + r - max_staleness, stop)
                yield act_rollout(program, seed_state, chunk_noise, first, r, stop)

    acted: queue.Queue[Any] = queue.Queue()  # wait_for_parameters bounds its length

    def work() -> None:
        try:
            for acted_rollout in act():
                acted.put(acted_rollout)
        except StopActing:
            return
        except BaseException as error:
            acted.put(Failure(error))

    seed_state.actor = threading.Thread(target=work, name=exits.LEFT_BEHIND[0], daemon=True)
    seed_state.actor.start()
    try:
        while True:
            yield next_rollout(seed_state, acted, poll)
    finally:
        stop.set()
        seed_state.actor.join(JOIN_SECONDS)


Learned = tuple[EpisodeSteps, Metrics, Metrics]  # of a rollout: the last are its finite sums


def learn_rollout(program: HostProgram, seed_state: SeedState, acted: ActedRollout) -> Learned:
    """Learn from a rollout of a seed; return its episodes, metrics and finite sums.

    There is little Python here: while one thread runs Python, the other waits.
    """
    return publish(seed_state, acted, update(program, seed_state, acted))


def update(program: HostProgram, seed_state: SeedState, acted: ActedRollout) -> Any:
    """Return what the compiled update returns for a rollout of a seed, once it is there."""
    learner, buffer_state, rollouts, _ = seed_state.carry
    updated = program.calls.learn(
        program.floats, learner, buffer_state, acted.trajectory, seed_state.key, rollouts
    )
    jax.block_until_ready(updated[1])  # the parameters: else the actor would wait for them
    return updated


def publish(seed_state: SeedState, acted: ActedRollout, updated: Any) -> Learned:
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


def to_host_env(env: Env, settings: config.Experiment) -> HostEnv:
    """Return a pure environment as a host environment, with the randomness of the device loop.

    As in that loop, a truncated episode ends on its fake step.
    """
    length, seed = settings.agent.rollout, settings.run.seed
    env_params, base_key = jax.tree.map(jnp.asarray, env.env_params(seed)), jax.random.key(seed)
    reset_all = jax.jit(jax.vmap(lambda key: env.reset(env_params, jax.random.split(key)[0])))
    observe_all = jax.jit(jax.vmap(lambda state: env.observe(env_params, state)))
    current: dict[str, Any] = {"t": 0}

    @jax.jit
    def step_all(state: Tree, action: Array, rollout: Array, t: Array) -> tuple[Tree, Any]:
        def one(state: Tree, action: Array, key: Key) -> tuple[Tree, Any]:
            key_step, key_reset = jax.random.split(step_keys(key, length)[t])
            step = env.step(env_params, state, action, key_step)
            restarted = env.reset(env_params, jax.random.split(key_reset)[0])
            ended = step.discount == 0
            state = jax.tree.map(lambda new, old: jnp.where(ended, new, old), restarted, step.state)
            return state, step._replace(state=(), mask=jnp.asarray(step.mask, step.reward.dtype))

        keys = env_keys(jax.random.fold_in(base_key, rollout), env.envs)
        return jax.vmap(one)(state, action, keys)

    def reset(seed: int) -> np.ndarray:
        current["state"] = reset_all(env_keys(jax.random.fold_in(base_key, FIRST_RESET), env.envs))
        return np.asarray(observe_all(current["state"]))

    def step(action: np.ndarray) -> HostStep:
        rollout, t = divmod(current["t"], length)
        current["state"], step = step_all(current["state"], action, rollout, t)
        current["t"] += 1
        reward, discount, goal, mask = map(
            np.asarray, (step.reward, step.discount, step.goal, step.mask)
        )
        obs = np.asarray(observe_all(current["state"]))
        return HostStep(obs, reward, discount, mask, ended=discount == 0, goal=goal)

    return HostEnv(
        name=env.name,
        observations=env.observations,
        actions=env.actions,
        envs=env.envs,
        reset=reset,
        step=step,
        close=lambda: None,
        target=env.target,
    )


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
