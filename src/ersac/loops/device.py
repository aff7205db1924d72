"""Acting, stepping and learning in one compiled scan of fixed length, over all seeds at once, with a host loop around it.

Seeds are shared out among the cores and vmapped on each; they never talk to one another.
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
from ersac.agents.base import Agent
from ersac.agents.build import make_agent, make_buffer
from ersac.envs.base import Discrete, Env, spec_of
from ersac.envs.make import make_env
from ersac.loops import devices, guard
from ersac.loops.base import Loop
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
    of_envs,
    rollout,
)
from ersac.runs.checkpoint import flatten, is_key
from ersac.runs.exits import NonFinite
from ersac.types import Array, Key, Learner, Tree

START, FEED = (
    2**31 - 1,
    2**31 - 2,
)  # rollout numbers that no run reaches: for what comes before the first, and for the feed's draws
MAP_BATCH = 4096  # states evaluated at once for a map: bounds its memory at any depth


class DeviceCarry(NamedTuple):
    """Everything that influences the future of one seed."""

    learner: Learner
    buffer_state: Tree  # what the feed keeps
    actor: Actor  # [N, ...]   of each environment
    episode_return: Array  # [N]   of the episode under way
    visits: Tree  # [n_states] int32, where observations are discrete
    rollouts: Array  # [] int32


class EpisodeSteps(NamedTuple):
    """What every step tells of its episode so far; a person reads the last step of each."""

    ended: Any  # bool
    goal: Any  # bool
    episode_return: Any


class Chunk(NamedTuple):
    """What one compiled call brought to the host; seeds first."""

    episodes: EpisodeSteps  # [seeds, rollouts, N, T]
    metrics: dict[str, np.ndarray]  # [seeds, rollouts]
    carry: Any  # of the loop, after it
    seconds: float


class DeviceProgram(NamedTuple):
    """A run, compiled: its arrays, and what its compilation cost."""

    settings: config.Experiment
    seeds: tuple[
        int, ...
    ]  # those that were asked for; the last core may have more, which nobody looks at
    env_params: Tree  # [seeds, ...]
    keys: Key  # [seeds]
    carry: DeviceCarry
    step: Any  # the compiled chunk
    compile_seconds: float


def build(settings: config.Experiment) -> tuple[Env, Agent]:
    """The environment and the agent of some settings, whose numbers may be tracers."""
    assert not settings.env.on_host
    env = make_env(settings.env)
    return env, make_agent(settings.agent, spec_of(env), settings.env.normalisation)


Metrics = dict[str, Array]
Brought = tuple[
    DeviceCarry, tuple[EpisodeSteps, Metrics, Metrics]
]  # carry, then of every rollout: episodes, metrics, what was seen


def chunk(settings: config.Experiment, carry: DeviceCarry, env_params: Tree, key: Key) -> Brought:
    """A fixed number of rollouts of one seed, each of which is learned from."""
    env, agent = build(settings)
    buffer = make_buffer(settings.agent, env.envs)

    def body(
        carry: DeviceCarry, drawn: tuple[RolloutNoise, Key]
    ) -> tuple[DeviceCarry, tuple[StepOutcomes, Metrics, Metrics]]:
        rollout_noise, key_feed = drawn
        act = lambda actor, rollout_noise: rollout(
            env, agent, env_params, carry.learner, actor, rollout_noise
        )
        actor, newest, facts = of_envs(env.envs, act)(carry.actor, rollout_noise)
        learner, buffer_state, metrics = learn(
            agent, buffer, carry.learner, carry.buffer_state, newest, key_feed
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
        return carry, (facts, metrics, guard.finite_sums(newest, learner))

    # What can be done for the whole chunk at once is far cheaper than in each rollout or step: draws, which have an address each
    # all the same, and returns.
    numbers = carry.rollouts + jnp.arange(config.rollouts_per_chunk(settings))
    addressed = lambda key: jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
    rollout_noise = jax.vmap(partial(draw_all_noise, settings.agent, agent, env.envs))(
        addressed(key)
    )
    carry, (facts, metrics, seen) = jax.lax.scan(
        body, carry, (rollout_noise, addressed(jax.random.fold_in(key, FEED)))
    )
    under_way, returns = jax.vmap(episode_returns, (0, 1, 1), (0, 1))(
        carry.episode_return, facts.reward, facts.ended
    )
    goal = facts.goal if env.target is None else facts.goal | (returns >= env.target)
    return carry._replace(episode_return=under_way), (
        EpisodeSteps(facts.ended, goal, returns),
        metrics,
        seen,
    )


def episode_returns(before: Array, reward: Array, ended: Array) -> tuple[Array, Array]:
    """The sum of rewards since each step's episode began [R, T], after that of the episode under way at the end.

    `before`: what the first episode had already. In each rollout first and then from one to the next, so that it does not
    depend on where a run is cut into chunks, to the last bit.
    """
    begins = jnp.pad(ended[:, :-1], [(0, 0), (1, 0)])
    join = lambda a, b: (jnp.where(b[1], b[0], a[0] + b[0]), a[1] | b[1])
    within, begun = jax.lax.associative_scan(join, (reward, begins), axis=1)

    def follow(before: Array, rollout: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        within, begun, ended = rollout
        total = jnp.where(begun, within, before + within)
        return jnp.where(ended, 0.0, total[-1]), total

    return jax.lax.scan(follow, before, (within, begun, ended[:, -1]))


def _chunks(
    static: config.Experiment,
    mesh: Mesh,
    numbers: dict[str, Array],
    carry: DeviceCarry,
    env_params: Tree,
    keys: Key,
) -> Brought:
    one = lambda numbers, *seed: chunk(config.with_floats(static, numbers), *seed)
    each = PartitionSpec(MESH_AXIS)
    return jax.shard_map(jax.vmap(one), mesh=mesh, in_specs=each, out_specs=each, check_vma=False)(
        numbers, carry, env_params, keys
    )


@partial(jax.jit, static_argnums=0)
def _start(
    static: config.Experiment, seeds: Array, env_params: Tree, learner: Learner
) -> tuple[Key, Tree, Actor]:
    env, agent = build(static)

    def one(seed: Array, env_params: Tree, learner: Learner) -> tuple[Key, Tree, Actor]:
        key = jax.random.key(seed)
        start = lambda key: init_actor(env, agent, env_params, learner, key)
        actors = of_envs(env.envs, start)(env_keys(jax.random.fold_in(key, START), env.envs))
        first = jax.tree.map(lambda leaf: leaf[0], actors)
        example = jax.eval_shape(
            lambda: rollout(
                env, agent, env_params, learner, first, draw_noise(static.agent, agent, key)
            )[1]
        )
        return key, make_buffer(static.agent, env.envs).init(example), actors

    return jax.vmap(one)(seeds, env_params, learner)


@partial(jax.jit, static_argnums=0)
def _sigma(static: config.Experiment, floats: dict[str, Array], learner: Learner) -> Array:
    env, agent = build(config.with_floats(static, floats))
    both = lambda obs: jax.vmap(lambda action: agent.sigma2(learner, obs, action))(
        jnp.arange(env.n_actions)
    )
    return jnp.sqrt(
        jax.lax.map(lambda obs: jnp.max(both(obs)), jnp.arange(env.n_states), batch_size=MAP_BATCH)
    )


def sigma_map(settings: config.Experiment, learner: Learner) -> np.ndarray:
    """Sigma of the less known action in every state [n_states], for one seed's learner."""
    return np.asarray(_sigma(static_device_settings(settings), config.floats(settings), learner))


def first_seed(carry: DeviceCarry) -> DeviceCarry:
    """The part of a carry that is its first seed's."""
    return jax.tree.map(lambda leaf: leaf.addressable_shards[0].data[0], carry)


def seeds_of(settings: config.Experiment) -> range:
    """The seeds of a run."""
    return range(settings.run.seed, settings.run.seed + settings.run.seeds)


def static_device_settings(settings: config.Experiment) -> config.Experiment:
    """What of some settings decides the compiled program: neither numbers nor seeds nor the budget."""
    length = config.rollouts_per_chunk(settings)
    return config.static(
        config.override(settings, seed=0, episodes=1, stop_when_solved=True, chunk=length)
    )


@lru_cache(maxsize=32)
def _compiled(static: config.Experiment, mesh: Mesh, *shapes: Any) -> Any:
    """The program of all runs that differ only in numbers, in which seeds they are and in how many episodes they have."""
    each = NamedSharding(
        mesh, PartitionSpec(MESH_AXIS)
    )  # said, because XLA would hand arrays of no size to every device
    compiled = jax.jit(partial(_chunks, static, mesh), donate_argnums=1, out_shardings=each)
    return compiled.lower(*(jax.tree.unflatten(tree, leaves) for tree, leaves in shapes)).compile()


def _shape(tree: Tree) -> tuple[Any, tuple[Any, ...]]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding) for leaf in leaves
    )


def stack_runs(
    make: Callable[[config.Experiment], Tree], runs: Sequence[config.Experiment]
) -> Tree:
    """What `make` gives for each run, stacked on the host; no more than one run's is ever there twice."""
    first = make(runs[0])
    whole = jax.tree.map(lambda leaf: np.empty((len(runs), *leaf.shape), leaf.dtype), first)
    for seed_index, run in enumerate(runs):
        leaves = jax.tree.leaves(make(run) if seed_index else first)
        for stacked, leaf in zip(jax.tree.leaves(whole), leaves, strict=True):
            stacked[seed_index] = leaf
    return whole


def prepare_device(
    settings: config.Experiment, variants: Sequence[config.Experiment] | None = None
) -> DeviceProgram:
    """Lay out the arrays of every seed and compile; seed i is the same run whatever other seeds are beside it.

    `variants`: what each place runs, where they differ in numbers as well as in seeds; each has one seed. Weights and priors are drawn
    on the host, a generator a seed. Where the cores do not divide the places, the last core runs the last one more than once:
    nobody looks at it.
    """
    devices.claim_cores()
    devices.keep_programs()
    began = time.perf_counter()
    runs = list(variants or (config.override(settings, seed=seed) for seed in seeds_of(settings)))
    asked_for = tuple(run.run.seed for run in runs)
    mesh = devices.mesh(len(runs))
    runs += [runs[-1]] * (-len(runs) % mesh.size)
    shared_out = partial(jax.device_put, device=NamedSharding(mesh, PartitionSpec(MESH_AXIS)))
    env_params = shared_out(stack_runs(lambda run: build(run)[0].env_params(run.run.seed), runs))
    learner = shared_out(
        stack_runs(lambda run: build(run)[1].init(np.random.default_rng(run.run.seed)), runs)
    )
    seeds = np.asarray([run.run.seed for run in runs], np.uint32)
    keys, buffer_state, actor = _start(
        static_device_settings(settings), shared_out(seeds), env_params, learner
    )
    env = build(settings)[0]
    visits = (
        np.zeros((len(runs), env.n_states), np.int32)
        if isinstance(env.observations, Discrete)
        else ()
    )
    counts = shared_out(
        (np.zeros((len(runs), env.envs), np.float32), visits, np.zeros(len(runs), np.int32))
    )
    keys, carry = shared_out((keys, DeviceCarry(learner, buffer_state, actor, *counts)))
    numbers = shared_out(
        {
            name: np.asarray([config.floats(run)[name] for run in runs], np.float32)
            for name in config.floats(settings)
        }
    )
    step = _compiled(
        static_device_settings(settings), mesh, *map(_shape, (numbers, carry, env_params, keys))
    )
    return DeviceProgram(
        settings,
        asked_for,
        env_params,
        keys,
        carry,
        partial(step, numbers),
        time.perf_counter() - began,
    )


def raise_nonfinite(seed_index: int, complaint: str) -> None:
    """What a run does about a number that is not one."""
    raise NonFinite(f"{complaint}; nothing of it was saved")


def run_device(
    program: DeviceProgram, on_nonfinite: Callable[[int, str], None] = raise_nonfinite
) -> Generator[Chunk]:
    """Run chunk after chunk, without end; whoever asks for the next one decides when it is enough.

    `on_nonfinite` is told the place of every seed of a chunk that holds a bad number, and which; it cannot spread to another seed.
    """
    carry = program.carry
    done = int(np.asarray(carry.rollouts)[0])
    while True:
        began = time.perf_counter()
        carry, brought = program.step(carry, program.env_params, program.keys)
        facts, metrics, seen = jax.tree.map(
            lambda leaf: leaf[: len(program.seeds)], jax.device_get(brought)
        )
        for alarm in guard.find_nonfinite(seen, metrics, program.settings.agent.rollout):
            on_nonfinite(alarm.seed, complaint(program, alarm, done))
        done += config.rollouts_per_chunk(program.settings)
        yield Chunk(facts, metrics, carry, time.perf_counter() - began)


def complaint(program: Any, bad: guard.NonFiniteValue, done: int) -> str:
    """An alarm in one line; `done` rollouts went before its chunk. Steps and rollouts count from one."""
    steps, rollout = program.settings.agent.rollout, done + bad.rollout
    first = steps * rollout + bad.step + 1
    when = f"at step {first:,}" if bad.step < steps else f"after step {first - 1:,}"
    return f"{bad.tensor} is not finite {when} (rollout {rollout + 1:,}) of seed {program.seeds[bad.seed]}"


def describe_device(program: DeviceProgram) -> dict[str, str | int]:
    """How a run lies on this machine's devices, and how jax was set: the part of its fingerprint that only jax knows."""
    devices: list[Any] = list(program.keys.sharding.device_set)
    return {
        "devices": f"{len(devices)} {devices[0].device_kind}",
        "seeds a device": len(program.keys) // len(devices),
        "jax options": jax_options(),
    }


def jax_options() -> str:
    """How jax was set, as far as it decides bits."""
    names = (
        "jax_enable_x64",
        "jax_default_prng_impl",
        "jax_threefry_partitionable",
        "jax_default_matmul_precision",
    )
    return ", ".join(f"{name.removeprefix('jax_')}={getattr(jax.config, name)}" for name in names)


def snapshot_device(
    program: DeviceProgram,
    carry: DeviceCarry,
    on_nonfinite: Callable[[int, str], None] = raise_nonfinite,
) -> Tree:
    """Everything that the future of a run depends on, for the seeds that were asked for, on the host; `on_nonfinite` as for `run`."""
    wanted = len(program.seeds)
    host = lambda leaf: leaf if is_key(leaf) else np.asarray(leaf)
    cut = lambda leaf: leaf if len(leaf) == wanted else leaf[:wanted]
    carry, keys, env_params = jax.tree.map(
        lambda leaf: cut(host(leaf)), (carry, program.keys, program.env_params)
    )
    learner = carry.learner._replace(memory=())  # a memory may mean something by infinity
    for name, array in flatten(learner)[0].items():
        for seed_index in map(
            int, np.flatnonzero(~np.isfinite(array.reshape(wanted, -1).sum(axis=1)))
        ):
            on_nonfinite(
                seed_index,
                f"{name} is not finite at rollout {int(carry.rollouts[0]):,}, where it was to be saved",
            )
    return {"carry": carry, "keys": keys, "env_params": env_params}


def restore_device(program: DeviceProgram, state: Tree) -> DeviceProgram:
    """The program at the state of a snapshot. Seeds that fill up the last core start afresh: nobody looks at them."""

    def filled(saved: Any, fresh: Any) -> Any:
        if is_key(fresh):
            data = filled(jax.random.key_data(saved), jax.random.key_data(fresh))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(fresh))
        return jax.device_put(
            np.concatenate([saved, np.asarray(fresh)[len(saved) :]]), fresh.sharding
        )

    now = {"carry": program.carry, "keys": program.keys, "env_params": program.env_params}
    return program._replace(**jax.tree.map(filled, state, now))


def close_device(program: DeviceProgram) -> None:
    """There is nothing to let go."""


DEVICE_LOOP = Loop(
    prepare=prepare_device,
    run=run_device,
    snapshot=snapshot_device,
    restore=restore_device,
    close=close_device,
    describe=describe_device,
    static_settings=static_device_settings,
)
