"""The loop for pure environments: acting, stepping and learning in one compiled scan.

A compiled call runs a chunk, a fixed number of rollouts, for all seeds. Seeds are distributed over
the devices, vmapped on each, and independent of one another.
"""

import time
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ersac import config
from ersac.agents.base import Agent, Metrics
from ersac.agents.build import agent_of, buffer_of
from ersac.envs.base import Discrete, Env, spec_of
from ersac.envs.make import make_env
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
from ersac.loops.devices import MESH_AXIS
from ersac.loops.learn import learn
from ersac.loops.rollout import (
    Actor,
    RolloutNoise,
    StepOutcomes,
    draw_all_noise,
    draw_noise,
    env_keys,
    init_actor,
    rollout,
    vmap_envs,
)
from ersac.runs.checkpoint import flatten, is_key
from ersac.runs.seal import arrays_below
from ersac.types import Array, Key, Learner, Tree

MAP_BATCH = 4096  # states evaluated at once for a map: bounds its memory at any depth


class DeviceCarry(NamedTuple):
    """The state of one seed between two rollouts."""

    learner: Learner
    buffer_state: Tree
    actor: Actor  # [N, ...]
    episode_return: Array  # [N]   of the current episode
    visits: Tree  # [n_states] int32; () where observations are not discrete
    rollouts: Array  # [] int32    rollouts so far


class DeviceProgram(NamedTuple):
    """A compiled run. Arrays have a row for each seed, and copies of the last to fill the mesh."""

    settings: config.Experiment
    seeds: tuple[int, ...]  # without the copies
    env_params: Tree  # [seeds, ...]
    keys: Key  # [seeds]
    carry: DeviceCarry  # [seeds, ...]
    step: Any  # the compiled chunk
    compile_seconds: float


# The carry, and for every rollout: episodes, metrics, sums of `guard.finite_sums`.
DeviceOutput = tuple[DeviceCarry, tuple[EpisodeSteps, Metrics, Metrics]]


def build(settings: config.Experiment) -> tuple[Env, Agent]:
    """Return the environment and the agent; floats in the settings may be tracers."""
    assert not settings.env.on_host
    env = make_env(settings.env)
    return env, agent_of(settings, spec_of(env))


def chunk(
    settings: config.Experiment, carry: DeviceCarry, env_params: Tree, key: Key
) -> DeviceOutput:
    """Act and learn for a chunk of rollouts of one seed."""
    env, agent = build(settings)
    buffer = buffer_of(settings, spec_of(env))

    def body(
        carry: DeviceCarry, x: tuple[RolloutNoise, Key]
    ) -> tuple[DeviceCarry, tuple[StepOutcomes, Metrics, Metrics]]:
        rollout_noise, buffer_key = x
        act = lambda actor, rollout_noise: rollout(
            env, agent, env_params, carry.learner, actor, rollout_noise
        )
        actor, newest, outcomes = vmap_envs(env.envs, act)(carry.actor, rollout_noise)
        learner, buffer_state, metrics = learn(
            agent, buffer, carry.learner, carry.buffer_state, newest, buffer_key
        )
        visits = jax.tree.map(
            lambda visits: visits.at[newest.obs[:, :-1]].add(newest.mask.astype(visits.dtype)),
            carry.visits,
        )
        carry = carry._replace(
            learner=learner,
            buffer_state=buffer_state,
            actor=actor,
            visits=visits,
            rollouts=carry.rollouts + 1,
        )
        return carry, (outcomes, metrics, guard.finite_sums(newest, learner))

    # Drawing noise and summing returns is far cheaper for a whole chunk than in each rollout. The
    # noise of a rollout still depends on its number only.
    numbers = carry.rollouts + jnp.arange(config.rollouts_per_chunk(settings))
    keys_of = lambda key: jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
    draw = partial(draw_all_noise, settings.agent, agent, env.envs)
    rollout_noise = jax.vmap(draw)(keys_of(key))
    buffer_keys = keys_of(jax.random.fold_in(key, BUFFER_DRAWS))
    carry, (outcomes, metrics, sums) = jax.lax.scan(body, carry, (rollout_noise, buffer_keys))
    current_return, returns = jax.vmap(episode_returns, (0, 1, 1), (0, 1))(
        carry.episode_return, outcomes.reward, outcomes.ended
    )
    goal = outcomes.goal if env.target is None else outcomes.goal | (returns >= env.target)
    episodes = EpisodeSteps(outcomes.ended, goal, returns, outcomes.is_real)
    return carry._replace(episode_return=current_return), (episodes, metrics, sums)


def episode_returns(before: Array, reward: Array, ended: Array) -> tuple[Array, Array]:
    """Return (the return of the episode that is unfinished at the end, returns so far [R, T]).

    A step's return so far is the sum of the rewards since its episode started. Sums are taken
    within rollouts and then across them, so that they have the same bits for every chunk size.

    before: the return of the first episode before these rollouts; reward, ended: [R, T].
    """
    is_start = jnp.pad(ended[:, :-1], [(0, 0), (1, 0)])
    join = lambda a, b: (jnp.where(b[1], b[0], a[0] + b[0]), a[1] | b[1])
    within, started = jax.lax.associative_scan(join, (reward, is_start), axis=1)

    def follow(before: Array, rollout: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        within, started, ended = rollout
        total = jnp.where(started, within, before + within)
        return jnp.where(ended, 0.0, total[-1]), total

    return jax.lax.scan(follow, before, (within, started, ended[:, -1]))


def _chunk_all_seeds(
    static: config.Experiment,
    mesh: Mesh,
    floats: dict[str, Array],
    carry: DeviceCarry,
    env_params: Tree,
    keys: Key,
) -> DeviceOutput:
    one = lambda floats, *seed: chunk(config.with_floats(static, floats), *seed)
    spec = PartitionSpec(MESH_AXIS)
    return jax.shard_map(jax.vmap(one), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(
        floats, carry, env_params, keys
    )


@partial(jax.jit, static_argnums=0)
def _init_seeds(
    static: config.Experiment, seeds: Array, env_params: Tree, learner: Learner
) -> tuple[Key, Tree, Actor]:
    """Return the keys, buffer states and actors of all seeds."""
    env, agent = build(static)

    def one(seed: Array, env_params: Tree, learner: Learner) -> tuple[Key, Tree, Actor]:
        key = jax.random.key(seed)
        start = lambda key: init_actor(env, agent, env_params, learner, key)
        keys = env_keys(jax.random.fold_in(key, FIRST_RESET), env.envs)
        actors = vmap_envs(env.envs, start)(keys)
        first = jax.tree.map(lambda leaf: leaf[0], actors)
        noise = lambda: draw_noise(static.agent, agent, key)
        example = jax.eval_shape(
            lambda: rollout(env, agent, env_params, learner, first, noise())[1]
        )
        buffer = buffer_of(static, spec_of(env))
        return key, buffer.init(example), actors

    return jax.vmap(one)(seeds, env_params, learner)


@partial(jax.jit, static_argnums=0)
def _maps(
    static: config.Experiment, floats: dict[str, Array], learner: Learner
) -> tuple[Array, Array]:
    env, agent = build(config.with_floats(static, floats))
    actions = jnp.arange(env.n_actions)
    sigma2s = lambda obs: jax.vmap(lambda action: agent.sigma2(learner, obs, action))(actions)
    # The key only draws the member of an ensemble that acts, which a greedy action does not have.
    episode_state = agent.policy.init_episode(learner, jax.random.key(0))
    greedy = lambda obs: agent.policy.mode(learner, episode_state, obs)
    state_maps = lambda obs: (jnp.max(sigma2s(obs)), greedy(obs))
    sigma2, action = jax.lax.map(state_maps, jnp.arange(env.n_states), batch_size=MAP_BATCH)
    return jnp.sqrt(sigma2), action


def learner_maps(settings: config.Experiment, learner: Learner) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest sigma over actions, and the greedy action, at every state [n_states].

    learner: of one seed.
    """
    sigma, action = _maps(static_device_settings(settings), config.floats(settings), learner)
    return np.asarray(sigma), np.asarray(action)


def first_seed(carry: DeviceCarry) -> DeviceCarry:
    """Return the carry of the first seed."""
    return jax.tree.map(lambda leaf: leaf.addressable_shards[0].data[0], carry)


def static_device_settings(settings: config.Experiment) -> config.Experiment:
    """Return the settings that decide the compiled program: no floats, seeds or budgets."""
    length = config.rollouts_per_chunk(settings)
    return config.static(
        config.override(settings, seed=0, episodes=1, stop_when_solved=True, chunk=length)
    )


@lru_cache(maxsize=32)
def _compiled(static: config.Experiment, mesh: Mesh, *shapes: Any) -> Any:
    """Return the compiled chunk, which all runs with these static settings and shapes share."""
    # Shardings are explicit because XLA would replicate empty arrays on every device.
    sharding = NamedSharding(mesh, PartitionSpec(MESH_AXIS))
    compiled = jax.jit(
        partial(_chunk_all_seeds, static, mesh), donate_argnums=1, out_shardings=sharding
    )
    return compiled.lower(*(jax.tree.unflatten(tree, leaves) for tree, leaves in shapes)).compile()


def _shape(tree: Tree) -> tuple[Any, tuple[Any, ...]]:
    """Return the structure and the leaves' shapes of a tree, which can be hashed."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding) for leaf in leaves
    )


def stack_runs(
    make: Callable[[config.Experiment], Tree], runs: Sequence[config.Experiment]
) -> Tree:
    """Stack `make(run)` of all runs on the host, with at most one run's tree in memory besides."""
    first = make(runs[0])
    stacked = jax.tree.map(lambda leaf: np.empty((len(runs), *leaf.shape), leaf.dtype), first)
    for index, run in enumerate(runs):
        leaves = jax.tree.leaves(make(run) if index else first)
        for array, leaf in zip(jax.tree.leaves(stacked), leaves, strict=True):
            array[index] = leaf
    return stacked


def prepare_device(
    settings: config.Experiment, variants: Sequence[config.Experiment] | None = None
) -> DeviceProgram:
    """Initialise all seeds and compile.

    A seed has the same random numbers whatever seeds are beside it, and they exchange no data. Its
    numbers agree only up to rounding, as XLA may order sums differently for another number of
    seeds; runs with the same seeds on the same cores are the same to the bit.

    Weights and priors are drawn on the host, with one generator per seed. If the seeds do not
    divide evenly among the devices, copies of the last seed fill the mesh; they are ignored.

    variants: settings of each seed, one seed each, where they differ in floats besides the seed.
    """
    devices.claim_cores()
    devices.enable_compilation_cache()
    began = time.perf_counter()
    runs = list(variants or (config.override(settings, seed=seed) for seed in run_seeds(settings)))
    seeds = tuple(run.run.seed for run in runs)
    mesh = devices.mesh(len(runs))
    runs += [runs[-1]] * (-len(runs) % mesh.size)
    shard = partial(jax.device_put, device=NamedSharding(mesh, PartitionSpec(MESH_AXIS)))
    static = static_device_settings(settings)

    env_params = shard(stack_runs(lambda run: build(run)[0].env_params(run.run.seed), runs))
    learner = shard(
        stack_runs(lambda run: build(run)[1].init(np.random.default_rng(run.run.seed)), runs)
    )
    all_seeds = np.asarray([run.run.seed for run in runs], np.uint32)
    keys, buffer_state, actor = _init_seeds(static, shard(all_seeds), env_params, learner)
    counters = shard(_zero_counters(build(settings)[0], len(runs)))
    keys, carry = shard((keys, DeviceCarry(learner, buffer_state, actor, *counters)))
    floats = shard(
        {
            name: np.asarray([config.floats(run)[name] for run in runs], np.float32)
            for name in config.floats(settings)
        }
    )
    step = _compiled(static, mesh, *map(_shape, (floats, carry, env_params, keys)))
    return DeviceProgram(
        settings=settings,
        seeds=seeds,
        env_params=env_params,
        keys=keys,
        carry=carry,
        step=partial(step, floats),
        compile_seconds=time.perf_counter() - began,
    )


def _zero_counters(env: Env, seeds: int) -> tuple[np.ndarray, Tree, np.ndarray]:
    """Return the initial episode returns, visits and rollouts of all seeds."""
    has_states = isinstance(env.observations, Discrete)
    visits = np.zeros((seeds, env.n_states), np.int32) if has_states else ()
    return np.zeros((seeds, env.envs), np.float32), visits, np.zeros(seeds, np.int32)


def run_device(
    program: DeviceProgram, on_nonfinite: OnNonFinite = raise_nonfinite, poll: Poll = no_signal
) -> Generator[ChunkOutput]:
    """Yield chunk after chunk, without end; a chunk cannot be interrupted, so `poll` is not read.

    `on_nonfinite` is called for every seed with a non-finite number; other seeds are not affected.
    """
    carry = program.carry
    rollouts = int(np.asarray(carry.rollouts)[0])
    while True:
        began = time.perf_counter()
        carry, output = program.step(carry, program.env_params, program.keys)
        episodes, metrics, sums = jax.tree.map(
            lambda leaf: leaf[: len(program.seeds)], jax.device_get(output)
        )
        for value in guard.find_nonfinite(sums, metrics, program.settings.agent.rollout):
            on_nonfinite(value.seed, nonfinite_message(program, value, rollouts))
        rollouts += config.rollouts_per_chunk(program.settings)
        yield ChunkOutput(episodes, metrics, carry, time.perf_counter() - began)


def describe_device(program: DeviceProgram) -> dict[str, str | int]:
    """Return the devices, the seeds on each and the JAX options."""
    devices: list[Any] = list(program.keys.sharding.device_set)
    return {
        "devices": f"{len(devices)} {devices[0].device_kind}",
        "seeds a device": len(program.keys) // len(devices),
        "jax options": jax_options(),
    }


def snapshot_device(
    program: DeviceProgram,
    carry: DeviceCarry,
    on_nonfinite: OnNonFinite = raise_nonfinite,
) -> Tree:
    """Return the state of all seeds, without the copies that fill the mesh, on the host."""
    wanted = len(program.seeds)
    to_host = lambda leaf: leaf if is_key(leaf) else np.asarray(leaf)
    cut = lambda leaf: leaf if len(leaf) == wanted else leaf[:wanted]
    carry, keys, env_params = jax.tree.map(
        lambda leaf: cut(to_host(leaf)), (carry, program.keys, program.env_params)
    )
    learner = carry.learner._replace(memory=())  # a memory may contain infinity
    for name, array in flatten(learner)[0].items():
        is_finite = np.isfinite(array.reshape(wanted, -1).sum(axis=1))
        for seed_index in map(int, np.flatnonzero(~is_finite)):
            rollout = int(carry.rollouts[0])
            on_nonfinite(
                seed_index, f"{name} is not finite at rollout {rollout:,}, where it was to be saved"
            )
    return {"carry": carry, "keys": keys, "env_params": env_params}


def restore_device(program: DeviceProgram, state: Tree) -> DeviceProgram:
    """Return the program at the state of a snapshot; copies that fill the mesh keep their start."""

    def fill(saved: Any, initial: Any) -> Any:
        if is_key(initial):
            data = fill(jax.random.key_data(saved), jax.random.key_data(initial))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(initial))
        return jax.device_put(
            np.concatenate([saved, np.asarray(initial)[len(saved) :]]), initial.sharding
        )

    initial = {"carry": program.carry, "keys": program.keys, "env_params": program.env_params}
    return program._replace(**jax.tree.map(fill, state, initial))


def close_device(program: DeviceProgram) -> None:
    """Do nothing: pure environments hold no resources."""


def device_learner(carry: DeviceCarry, seed_index: int) -> Learner:
    """Return the learner of one seed."""
    return jax.tree.map(lambda leaf: leaf[seed_index], carry.learner)


def with_device_learners(program: DeviceProgram, learners: Sequence[Learner]) -> DeviceProgram:
    """Return the program that starts with these learners; copies that fill the mesh keep theirs."""

    def put(initial: Array, *leaves: Array) -> Array:
        stacked = np.array(initial)
        stacked[: len(leaves)] = np.stack([np.asarray(leaf) for leaf in leaves])
        return jax.device_put(stacked, initial.sharding)

    learner = jax.tree.map(put, program.carry.learner, *learners)
    return program._replace(carry=program.carry._replace(learner=learner))


def saved_device_learner(
    arrays: dict[str, np.ndarray], seed: int, seed_index: int
) -> dict[str, np.ndarray]:
    """Return the arrays of one seed's learner from those of a snapshot."""
    stacked = arrays_below(arrays, "carry/learner")
    return {name: array[seed_index] for name, array in stacked.items()}


DEVICE_LOOP = Loop(
    prepare=prepare_device,
    run=run_device,
    snapshot=snapshot_device,
    restore=restore_device,
    close=close_device,
    describe=describe_device,
    static_settings=static_device_settings,
    learner=device_learner,
    with_learners=with_device_learners,
    saved_learner=saved_device_learner,
)
