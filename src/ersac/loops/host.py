"""Environments on the host and one learner: the loop for Gymnasium, and for everything else that jax cannot step.

An actor steps N environments together and hands over whole rollouts; the learner, `learn.learn` as in every loop, takes them in. Side by
side, the actor takes the newest parameters there are when a rollout begins, and waits where they are more than `max_staleness` rollouts
behind it: what it acted with is in the trajectory. In lock-step they take turns, and a run is reproducible to the last bit.

The functions that a run needs have the names they have in `on_device`.
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
from ersac.agents.base import Agent
from ersac.agents.build import make_agent, make_buffer
from ersac.envs.base import Env, HostEnv, HostStep, Spec, spec_of
from ersac.envs.make import make_host_env
from ersac.loops import devices, guard
from ersac.loops.base import Loop
from ersac.loops.device import (
    FEED,
    START,
    Chunk,
    EpisodeSteps,
    Metrics,
    complaint,
    jax_options,
    raise_nonfinite,
    seeds_of,
)
from ersac.loops.learn import learn
from ersac.loops.rollout import draw_all_noise, env_keys, step_keys
from ersac.runs.checkpoint import flatten
from ersac.types import Array, Key, Learner, Trajectory, Tree

PATIENCE = 0.1  # seconds after which an actor that waits looks whether it is still wanted
SMALL = 2**13  # numbers in an array, up to which it takes longer to be handed it than to copy it
ONE_THREAD = {"xla_cpu_multi_thread_eigen": False}  # to wake another takes longer than to act


class HostCarry(NamedTuple):
    """What of one seed's future can be saved. An environment's own state cannot: a run that goes on begins new episodes."""

    learner: Learner
    buffer_state: Tree
    rollouts: np.int32  # counted on the host


class SeedState:
    """One seed at work: its environments, where they stand, and the newest parameters."""

    def __init__(self, env: HostEnv, seed: int, carry: HostCarry) -> None:
        self.env, self.seed, self.carry = env, seed, carry
        self.key = jax.random.key(seed)
        self.newest: ActorParams | None = (
            None  # replaced as a whole, so that nobody who takes it sees half of a change
        )
        self.renewed = threading.Condition()  # told when it is
        self.obs: np.ndarray | None = None  # [N, ...]
        self.episode_state: Tree = ()
        self.episode_return = np.zeros(env.envs, np.float64)


class CompiledCalls(NamedTuple):
    """What is compiled: the functions below that begin with an underscore, each for settings and an environment that are known."""

    pack: Any
    init_episode: Any
    draw_noise: Any
    act: Any
    joined: Any
    learn: Any
    renewed: Any


@lru_cache(maxsize=32)
def compile_calls(static: config.Experiment, spec: Spec) -> CompiledCalls:
    """Bound once: to find them by their settings at every step would take longer than to act."""
    bound = lambda function, **options: jax.jit(partial(function, static, spec), **options)
    act = bound(_act_step, compiler_options=ONE_THREAD if jax.default_backend() == "cpu" else None)
    return CompiledCalls(
        bound(_pack),
        bound(_init_episodes),
        bound(_draw_noise),
        act,
        bound(_join_steps),
        bound(_learn, donate_argnums=2),
        bound(_restart_episodes),
    )


class HostProgram(NamedTuple):
    """A run, ready: a place a seed."""

    settings: config.Experiment
    spec: Spec
    calls: CompiledCalls
    numbers: dict[str, Array]  # that are traced
    seeds: tuple[int, ...]
    seed_states: list[SeedState]
    carry: list[HostCarry]
    compile_seconds: float


def _init_episodes(settings: config.Experiment, spec: Spec, learner: Learner, key: Key) -> Tree:
    """What the agent keeps through the episodes that now begin [N, ...]."""
    agent = _agent(settings, spec)
    return jax.vmap(lambda key: agent.policy.init_episode(learner, jax.random.split(key)[1]))(
        env_keys(key, spec.envs)
    )


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("small", "large"),
    meta_fields=("structure", "shapes"),
)
@dataclass(frozen=True)
class Packed:
    """The arrays of who acts: a compiled call takes longer for every one that it is handed, and acting is little else."""

    small: dict[str, Array]  # all of one type, one after the other
    large: list[Array]  # as they are
    structure: Any  # of the tree that they were
    shapes: tuple[tuple[str, tuple[int, ...]], ...]  # the type and shape of every array in it


def pack_arrays(tree: Tree) -> Packed:
    """A tree of arrays in few of them."""
    leaves, structure = jax.tree.flatten(tree)
    small: dict[str, list[Array]] = {}
    large = []
    for leaf in leaves:
        if leaf.size > SMALL:
            large.append(leaf)
        else:
            small.setdefault(str(leaf.dtype), []).append(leaf.ravel())
    joined = {dtype: jnp.concatenate(each) for dtype, each in small.items()}
    return Packed(joined, large, structure, tuple((str(leaf.dtype), leaf.shape) for leaf in leaves))


def unpack_arrays(arrays: Packed) -> Tree:
    """The tree that was packed."""
    taken, large = dict.fromkeys(arrays.small, 0), iter(arrays.large)

    def leaf(dtype: str, shape: tuple[int, ...]) -> Array:
        size = math.prod(shape)
        if size > SMALL:
            return next(large)
        taken[dtype] += size
        return arrays.small[dtype][taken[dtype] - size : taken[dtype]].reshape(shape)

    return arrays.structure.unflatten([leaf(*each) for each in arrays.shapes])


class ActorParams(NamedTuple):
    """The newest parameters, and what of them acting asks for."""

    learner: Learner
    packed: Packed
    rollouts: int  # that they have learned from


def _pack(settings: config.Experiment, spec: Spec, learner: Learner) -> Packed:
    return pack_arrays(_agent(settings, spec).policy.actor_params(learner))


class ChunkNoise(NamedTuple):
    """The dice of R rollouts: drawn together, because one at a time a call would take longer than what it does."""

    action_noise: Tree  # [R, N, T, ...]  what decides the actions
    noise: Tree  # [R, N, T, ...]   what goes with them to the learner, on the host; as large as the numbers say


def _draw_noise(
    settings: config.Experiment, spec: Spec, numbers: dict[str, Array], key: Key, rollouts: Array
) -> ChunkNoise:
    settings = config.with_floats(settings, numbers)
    agent = _agent(settings, spec)
    rollout_noise = jax.vmap(
        lambda rollout: draw_all_noise(
            settings.agent, agent, spec.envs, jax.random.fold_in(key, rollout)
        )
    )(rollouts)
    return ChunkNoise(rollout_noise.action_noise, rollout_noise.noise)


class ActionDraw(NamedTuple):
    """One action in each environment [N, ...]."""

    action: Array  # as it is learned from
    dist_params: Tree  # what log_mu asks for
    env_action: Array | None  # as the environment takes it, where that is something else


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
    """The actions of step t of rollout r, by its part of the chance of all [R, N, T, ...]."""
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
    """Actions [N, T] and their log-probabilities, from those of every step."""
    agent = _agent(settings, spec)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves, axis=1), *dist_params)
    actions = jnp.stack(action, axis=1)
    return actions, jax.vmap(agent.policy.log_mu)(stacked, actions)


def _learn(
    settings: config.Experiment,
    spec: Spec,
    numbers: dict[str, Array],
    learner: Learner,
    buffer_state: Tree,
    newest: Trajectory,
    key: Key,
    rollout: Array,
) -> tuple[Learner, Packed, Tree, Metrics, Metrics]:
    """Learn from new rollouts. What is kept is given away; the parameters are not, somebody may be acting with them."""
    settings = config.with_floats(settings, numbers)
    agent, buffer = _agent(settings, spec), make_buffer(settings.agent, spec.envs)
    key = jax.random.fold_in(jax.random.fold_in(key, FEED), rollout)
    learner, buffer_state, metrics = learn(agent, buffer, learner, buffer_state, newest, key)
    return (
        learner,
        pack_arrays(agent.policy.actor_params(learner)),
        buffer_state,
        metrics,
        guard.finite_sums(newest, learner),
    )


def _agent(settings: config.Experiment, spec: Spec) -> Agent:
    assert settings.env.on_host
    return make_agent(settings.agent, spec, settings.env.normalisation)


def static_host_settings(settings: config.Experiment) -> config.Experiment:
    """What of some settings decides the compiled programs: neither numbers nor seeds nor the budget."""
    assert settings.env.on_host
    of_a_run = {
        "seed": 0,
        "seeds": 1,
        "episodes": 1,
        "steps": None,
        "stop_when_solved": True,
        "chunk": 1,
    }
    return config.static(config.override(settings, **of_a_run, make=None, workers=0, lockstep=True))


def prepare_host(
    settings: config.Experiment,
    variants: Sequence[config.Experiment] | None = None,
    make: Callable[[], HostEnv] | None = None,
) -> HostProgram:
    """Make the environments and the learner of every seed, and compile."""
    assert variants is None, "a batch of variants is a matter of environments on the device"
    devices.answer_at_once()
    devices.keep_programs()
    began = time.perf_counter()
    seeds = tuple(seeds_of(settings))
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
    return program._replace(compile_seconds=time.perf_counter() - began)


def assemble(settings: config.Experiment, spec: Spec, seed_states: list[SeedState]) -> HostProgram:
    """A run of those places, nothing of which is compiled yet."""
    seeds, carry = (
        tuple(seed_state.seed for seed_state in seed_states),
        [seed_state.carry for seed_state in seed_states],
    )
    numbers = {
        name: jnp.asarray(number) for name, number in config.floats(settings).items()
    }  # put on the device once
    return HostProgram(
        settings,
        spec,
        compile_calls(static_host_settings(settings), spec),
        numbers,
        seeds,
        seed_states,
        carry,
        0.0,
    )


def size_of(spec: Spec) -> config.EnvSize:
    """How large an environment is, as far as memory goes."""
    states = getattr(spec.observations, "n", 0)
    n_actions = getattr(spec.actions, "n", 1)
    per_number = 1 if getattr(spec.observations, "is_bytes", False) else 4
    numbers = getattr(spec.observations, "size", 1)
    return config.EnvSize(states, per_number * numbers, n_actions, numbers)


def init_carry(settings: config.Experiment, spec: Spec, seed: int) -> HostCarry:
    """A learner that has seen nothing, and an empty feed."""
    learner = _agent(settings, spec).init(np.random.default_rng(seed))
    example = jax.tree.map(lambda leaf: leaf[0], _blank(settings, spec))
    return HostCarry(learner, make_buffer(settings.agent, spec.envs).init(example), np.int32(0))


def _blank(settings: config.Experiment, spec: Spec) -> Trajectory:
    """Rollouts of nothing, of the right shapes."""
    envs, length = spec.envs, settings.agent.rollout
    agent = _agent(settings, spec)
    obs = np.zeros((envs, length + 1, *getattr(spec.observations, "shape", ())), _dtype(spec))
    key = jax.random.key(0)
    learner = jax.eval_shape(lambda: agent.init(np.random.default_rng(0)))
    episode_state = jax.eval_shape(lambda key: agent.policy.init_episode(learner, key), key)
    action_noise = jax.eval_shape(lambda key: agent.policy.action_noise(key, 1), key)
    one = lambda tree: jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), tree
    )
    action, _ = jax.eval_shape(
        agent.policy.act,
        learner,
        episode_state,
        jax.ShapeDtypeStruct(obs.shape[2:], obs.dtype),
        one(action_noise),
    )
    noise = jax.eval_shape(lambda key: agent.noise(key, length), key)
    zeros = jnp.zeros((envs, length))
    filled = lambda leaf, *leading: jnp.zeros((*leading, *leaf.shape), leaf.dtype)
    actions, noises = (
        filled(action, envs, length),
        jax.tree.map(lambda leaf: filled(leaf, envs), noise),
    )
    return Trajectory(jnp.asarray(obs), actions, zeros, zeros, zeros, zeros, noises)


def _dtype(spec: Spec) -> Any:
    if hasattr(spec.observations, "n"):
        return np.int32
    return np.uint8 if spec.observations.is_bytes else jnp.zeros(()).dtype


def _warm_up(program: HostProgram) -> None:
    """Compile everything before the first step is counted."""
    settings, seed_state, compiled = program.settings, program.seed_states[0], program.calls
    blank = _blank(settings, program.spec)
    learner = seed_state.carry.learner
    chunk_noise = compiled.draw_noise(
        program.numbers, seed_state.key, np.arange(config.rollouts_per_chunk(settings))
    )
    episode_state = compiled.init_episode(learner, jax.random.fold_in(seed_state.key, START))
    drawn = compiled.act(
        compiled.pack(learner), episode_state, blank.obs[:, 0], chunk_noise.action_noise, 0, 0
    )
    length = settings.agent.rollout
    compiled.joined([drawn.dist_params] * length, [drawn.action] * length)
    buffer_state = jax.tree.map(jnp.copy, seed_state.carry.buffer_state)
    compiled.learn(
        program.numbers, seed_state.carry.learner, buffer_state, blank, seed_state.key, 0
    )


class ActedRollout(NamedTuple):
    """A rollout of all environments of a place."""

    trajectory: Trajectory
    episodes: EpisodeSteps
    learned: int  # rollouts that the parameters it was acted with had learned from


def env_seed(seed: int, rollout: int) -> int:
    """The seed of a run's first environment when acting begins at a rollout; environment i gets i more.

    Hashed by SeedSequence, so that runs with neighbouring seeds, and a run that is resumed, share no
    environment seed. 31 bits, which every environment accepts.
    """
    return int(np.random.SeedSequence((seed, rollout)).generate_state(1)[0] >> 1)


class StopActing(Exception):
    """Nobody wants the rollout that is under way."""


def act_rollout(
    program: HostProgram,
    seed_state: SeedState,
    chunk_noise: ChunkNoise,
    first: int,
    r: int,
    enough: threading.Event,
) -> ActedRollout:
    """T steps in every environment of a place with its newest parameters: rollout `first + r`, with the r-th of the dice."""
    compiled, length, rollout, actor_params = (
        program.calls,
        program.settings.agent.rollout,
        first + r,
        seed_state.newest,
    )
    assert actor_params is not None
    if seed_state.obs is None:
        seed_state.obs = seed_state.env.reset(env_seed(seed_state.seed, rollout))
        seed_state.episode_state = compiled.init_episode(
            actor_params.learner, jax.random.fold_in(seed_state.key, START)
        )
    keeps = bool(jax.tree.leaves(seed_state.episode_state))
    obs, steps, actions, dist_params = [seed_state.obs], [], [], []
    for t in range(length):
        if enough.is_set():
            raise StopActing
        drawn = compiled.act(
            actor_params.packed,
            seed_state.episode_state,
            seed_state.obs,
            chunk_noise.action_noise,
            r,
            t,
        )
        actions.append(drawn.action)
        dist_params.append(drawn.dist_params)
        step = seed_state.env.step(
            np.asarray(drawn.action if drawn.env_action is None else drawn.env_action)
        )
        seed_state.obs = step.obs
        obs.append(step.obs)
        steps.append(step)
        if keeps and step.ended.any():
            seed_state.episode_state = compiled.renewed(
                actor_params.learner,
                seed_state.episode_state,
                seed_state.key,
                rollout,
                t,
                step.ended,
            )
    joined, log_mu = compiled.joined(dist_params, actions)
    column = lambda name: of_steps((getattr(step, name) for step in steps), log_mu.dtype)
    noise = jax.tree.map(lambda chunk_noise: chunk_noise[r], chunk_noise.noise)
    trajectory = Trajectory(
        of_steps(obs), joined, column("reward"), column("discount"), column("mask"), log_mu, noise
    )
    return ActedRollout(trajectory, _episodes(seed_state, steps), actor_params.rollouts)


def of_steps(each: Iterable[np.ndarray], dtype: Any = None) -> Any:
    """What every step has [N, ...], as one array [N, T, ...], on the host: a compiled call takes it along in less time than jnp."""
    return np.array(list(each), dtype).swapaxes(0, 1)


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
    """What the agent keeps, drawn anew where an episode ended."""
    begins = lambda key: jax.random.split(step_keys(key, settings.agent.rollout)[t])[1]
    keys = jax.vmap(begins)(env_keys(jax.random.fold_in(key, rollout), spec.envs))
    agent = _agent(settings, spec)
    new = jax.vmap(lambda key: agent.policy.init_episode(learner, jax.random.split(key)[1]))(keys)
    return jax.tree.map(
        lambda new, old: jnp.where(ended.reshape(-1, *[1] * (new.ndim - 1)), new, old),
        new,
        episode_state,
    )


def _episodes(seed_state: SeedState, steps: list[HostStep]) -> EpisodeSteps:
    """What the steps tell of their episodes [N, T]."""
    ended, goal = of_steps(step.ended for step in steps), of_steps(step.goal for step in steps)
    returns = np.empty(ended.shape)
    for t, step in enumerate(steps):
        seed_state.episode_return += step.reward
        returns[:, t] = seed_state.episode_return
        seed_state.episode_return[step.ended] = 0.0
    if seed_state.env.target is not None:
        goal = goal | (returns >= seed_state.env.target)
    return EpisodeSteps(ended, goal, returns)


def wait_for_parameters(seed_state: SeedState, rollouts: int, enough: threading.Event) -> None:
    """Wait until the newest parameters have learned from so many rollouts; Enough where nobody wants another."""
    with seed_state.renewed:
        while seed_state.newest is not None and seed_state.newest.rollouts < rollouts:
            if enough.is_set():
                raise StopActing
            seed_state.renewed.wait(PATIENCE)


class Failure(NamedTuple):
    """What went wrong where the actor was at work."""

    error: BaseException


def stream_rollouts(
    program: HostProgram, seed_state: SeedState, count: int
) -> Generator[ActedRollout]:
    """The rollouts of a place, without end, each acted with the parameters that are newest when it begins; dice are thrown for `count`."""
    learner, begun = seed_state.carry.learner, int(seed_state.carry.rollouts)
    seed_state.newest = ActorParams(learner, program.calls.pack(learner), begun)
    enough = threading.Event()

    def each() -> Iterator[ActedRollout]:
        for first in itertools.count(begun, count):
            chunk_noise = program.calls.draw_noise(
                program.numbers, seed_state.key, np.arange(first, first + count)
            )
            chunk_noise = chunk_noise._replace(noise=jax.tree.map(np.asarray, chunk_noise.noise))
            for r in range(count):
                wait_for_parameters(seed_state, first + r - bound, enough)
                yield act_rollout(program, seed_state, chunk_noise, first, r, enough)

    assert program.settings.env.on_host
    bound = program.settings.env.max_staleness
    if program.settings.env.lockstep:
        yield from each()
        return
    done: queue.Queue[Any] = queue.Queue(bound)  # no more than these are ever under way

    def hand_over(found: Any) -> None:
        """Wait until there is room, or nobody who wants it."""
        while not enough.is_set():
            with contextlib.suppress(queue.Full):
                done.put(found, timeout=PATIENCE)
                return

    def work() -> None:
        try:
            for found in each():
                hand_over(found)
        except StopActing:
            return
        except BaseException as error:
            hand_over(Failure(error))

    actor = threading.Thread(target=work, name="actor", daemon=True)
    actor.start()
    try:
        while True:
            found = done.get()
            if isinstance(found, Failure):
                raise found.error
            yield found
    finally:
        enough.set()
        actor.join()


def learn_rollout(
    program: HostProgram, seed_state: SeedState, found: ActedRollout
) -> tuple[EpisodeSteps, Metrics, Metrics]:
    """Learn from a rollout of a place; what it brought. In few words: while one thread speaks Python, the other waits."""
    learner, buffer_state, rollouts = seed_state.carry
    learner, actor_params, buffer_state, metrics, seen = program.calls.learn(
        program.numbers, learner, buffer_state, found.trajectory, seed_state.key, rollouts
    )
    jax.block_until_ready(
        actor_params
    )  # an actor that took parameters under way would wait for them
    with seed_state.renewed:
        seed_state.newest, seed_state.carry = (
            ActorParams(learner, actor_params, int(rollouts) + 1),
            HostCarry(learner, buffer_state, rollouts + 1),
        )
        seed_state.renewed.notify_all()
    return found.episodes, metrics | {"staleness": np.float32(rollouts - found.learned)}, seen


def run_host(
    program: HostProgram, on_nonfinite: Callable[[int, str], None] = raise_nonfinite
) -> Generator[Chunk]:
    """Run chunk after chunk, without end, as `on_device.run_device` does; seeds take turns.

    Whoever acts goes on between chunks, and until this is closed.
    """
    done, count = int(program.carry[0].rollouts), config.rollouts_per_chunk(program.settings)
    with contextlib.ExitStack() as stack:
        streams = [
            stack.enter_context(contextlib.closing(stream_rollouts(program, seed_state, count)))
            for seed_state in program.seed_states
        ]
        while True:
            began = time.perf_counter()
            turns = zip(program.seed_states, streams, strict=True)
            brought = [
                [
                    learn_rollout(program, seed_state, found)
                    for found in itertools.islice(stream, count)
                ]
                for seed_state, stream in turns
            ]
            stacked = jax.tree.map(
                lambda *leaves: np.stack(leaves),
                *(jax.tree.map(lambda *x: np.stack(x), *each) for each in brought),
            )
            facts, metrics, seen = stacked
            for alarm in guard.find_nonfinite(seen, metrics, program.settings.agent.rollout):
                on_nonfinite(alarm.seed, complaint(program, alarm, done))
            done += count
            yield Chunk(
                facts,
                metrics,
                [seed_state.carry for seed_state in program.seed_states],
                time.perf_counter() - began,
            )


def describe_host(program: HostProgram) -> dict[str, str | int]:
    """How a run lies on this machine: the part of its fingerprint that only jax knows."""
    devices = jax.local_devices()
    return {
        "devices": f"1 {devices[0].device_kind}",
        "environments": program.spec.envs,
        "jax options": jax_options(),
    }


def snapshot_host(
    program: HostProgram,
    carry: list[HostCarry],
    on_nonfinite: Callable[[int, str], None] = raise_nonfinite,
) -> Tree:
    """Everything of a run that can be saved, on the host."""
    saved = jax.tree.map(
        np.asarray, {str(seed): each for seed, each in zip(program.seeds, carry, strict=True)}
    )
    for seed_state, each in enumerate(carry):
        for name, array in flatten(each.learner._replace(memory=()))[0].items():
            if not np.isfinite(array).all():
                on_nonfinite(
                    seed_state,
                    f"{name} is not finite at rollout {int(each.rollouts):,}, where it was to be saved",
                )
    return saved


def restore_host(program: HostProgram, state: Tree) -> HostProgram:
    """The program at the state of a snapshot, at the start of new episodes."""
    for seed_state, seed in zip(program.seed_states, program.seeds, strict=True):
        saved = jax.tree.map(jnp.asarray, state[str(seed)])
        seed_state.carry = saved._replace(rollouts=np.int32(saved.rollouts))
    return program._replace(carry=[seed_state.carry for seed_state in program.seed_states])


def close_host(program: HostProgram) -> None:
    """Let the environments go."""
    for seed_state in program.seed_states:
        seed_state.env.close()


def to_host_env(env: Env, settings: config.Experiment) -> HostEnv:
    """A pure environment turned into a host one, with the randomness that it has on the device, draw for draw.

    As there, an episode that a time limit cut is told of on its fake step.
    """
    length, seed = settings.agent.rollout, settings.run.seed
    env_params, base = jax.tree.map(jnp.asarray, env.env_params(seed)), jax.random.key(seed)
    begin = jax.jit(jax.vmap(lambda key: env.reset(env_params, jax.random.split(key)[0])))
    look = jax.jit(jax.vmap(lambda state: env.observe(env_params, state)))
    now: dict[str, Any] = {"t": 0}

    @jax.jit
    def stepped(state: Tree, action: Array, rollout: Array, t: Array) -> tuple[Tree, Any]:
        def one(state: Tree, action: Array, key: Key) -> tuple[Tree, Any]:
            key_step, key_begin = jax.random.split(step_keys(key, length)[t])
            step = env.step(env_params, state, action, key_step)
            fresh = env.reset(env_params, jax.random.split(key_begin)[0])
            ended = step.discount == 0
            following = jax.tree.map(lambda new, old: jnp.where(ended, new, old), fresh, step.state)
            return following, step._replace(
                state=(), mask=jnp.asarray(step.mask, step.reward.dtype)
            )

        return jax.vmap(one)(state, action, env_keys(jax.random.fold_in(base, rollout), env.envs))

    def reset(seed: int) -> np.ndarray:
        now["state"] = begin(env_keys(jax.random.fold_in(base, START), env.envs))
        return np.asarray(look(now["state"]))

    def step(action: np.ndarray) -> HostStep:
        now["state"], step = stepped(now["state"], action, now["t"] // length, now["t"] % length)
        now["t"] += 1
        reward, discount, goal, mask = map(
            np.asarray, (step.reward, step.discount, step.goal, step.mask)
        )
        return HostStep(np.asarray(look(now["state"])), reward, discount, mask, discount == 0, goal)

    return HostEnv(
        env.name, env.observations, env.actions, env.envs, reset, step, lambda: None, env.target
    )


HOST_LOOP = Loop(
    prepare=prepare_host,
    run=run_host,
    snapshot=snapshot_host,
    restore=restore_host,
    close=close_host,
    describe=describe_host,
    static_settings=static_host_settings,
)
