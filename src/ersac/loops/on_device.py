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
from ersac.agents.make import make_agent, make_feed
from ersac.checkpoint import flatten, is_key
from ersac.envs.base import Discrete, Env
from ersac.envs.make import make_env
from ersac.exits import NonFinite
from ersac.loops import guard, machine
from ersac.loops.learn import learn
from ersac.loops.machine import MESH_AXIS
from ersac.loops.rollout import Actor, Dice, Facts, begin, env_keys, of_envs, rollout, throw, throw_all
from ersac.types import Array, Key, Learner, Tree

START, FEED = 2**31 - 1, 2**31 - 2  # rollout numbers that no run reaches: for what comes before the first, and for the feed's draws
MAP_BATCH = 4096  # states evaluated at once for a map: bounds its memory at any depth


class Carry(NamedTuple):
    """Everything that influences the future of one seed."""

    learner: Learner
    food: Tree  # what the feed keeps
    actor: Actor  # [N, ...]   of each environment
    episode_return: Array  # [N]   of the episode under way
    visits: Tree  # [n_states] int32, where observations are discrete
    rollouts: Array  # [] int32


class Episodes(NamedTuple):
    """What every step tells of its episode so far; a person reads the last step of each."""

    ended: Any  # bool
    goal: Any  # bool
    episode_return: Any


class Chunk(NamedTuple):
    """What one compiled call brought to the host; seeds first."""

    facts: Episodes  # [seeds, rollouts, N, T]
    metrics: dict[str, np.ndarray]  # [seeds, rollouts]
    carry: Any  # of the loop, after it
    seconds: float


class Program(NamedTuple):
    """A run, compiled: its arrays, and what its compilation cost."""

    settings: config.Train
    seeds: tuple[int, ...]  # those that were asked for; the last core may have more, which nobody looks at
    worlds: Tree  # [seeds, ...]
    keys: Key  # [seeds]
    carry: Carry
    step: Any  # the compiled chunk
    compile_seconds: float


def build(settings: config.Train) -> tuple[Env, Agent]:
    """The environment and the agent of some settings, whose numbers may be tracers."""
    assert not settings.env.on_host
    env = make_env(settings.env)
    return env, make_agent(settings.learner, env, settings.env.seen)


Metrics = dict[str, Array]
Brought = tuple[Carry, tuple[Episodes, Metrics, Metrics]]  # carry, then of every rollout: episodes, metrics, what was seen


def chunk(settings: config.Train, carry: Carry, world: Tree, key: Key) -> Brought:
    """A fixed number of rollouts of one seed, each of which is learned from."""
    env, agent = build(settings)
    feed = make_feed(settings.learner, env.envs)

    def body(carry: Carry, drawn: tuple[Dice, Key]) -> tuple[Carry, tuple[Facts, Metrics, Metrics]]:
        dice, key_feed = drawn
        act = lambda actor, dice: rollout(env, agent, world, carry.learner, actor, dice)
        actor, newest, facts = of_envs(env.envs, act)(carry.actor, dice)
        learner, food, metrics = learn(agent, feed, carry.learner, carry.food, newest, key_feed)
        visits = jax.tree.map(lambda visits: visits.at[newest.obs[:, :-1]].add(newest.mask.astype(visits.dtype)), carry.visits)
        carry = carry._replace(learner=learner, food=food, actor=actor, visits=visits, rollouts=carry.rollouts + 1)
        return carry, (facts, metrics, guard.watch(newest, learner))

    # What can be done for the whole chunk at once is far cheaper than in each rollout or step: draws, which have an address each
    # all the same, and returns.
    numbers = carry.rollouts + jnp.arange(config.rollouts_per_chunk(settings))
    addressed = lambda key: jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
    dice = jax.vmap(partial(throw_all, settings.learner, agent, env.envs))(addressed(key))
    carry, (facts, metrics, seen) = jax.lax.scan(body, carry, (dice, addressed(jax.random.fold_in(key, FEED))))
    under_way, returns = jax.vmap(episode_returns, (0, 1, 1), (0, 1))(carry.episode_return, facts.reward, facts.ended)
    goal = facts.goal if env.target is None else facts.goal | (returns >= env.target)
    return carry._replace(episode_return=under_way), (Episodes(facts.ended, goal, returns), metrics, seen)


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


def _chunks(static: config.Train, mesh: Mesh, numbers: dict[str, Array], carry: Carry, worlds: Tree, keys: Key) -> Brought:
    one = lambda numbers, *seed: chunk(config.with_floats(static, numbers), *seed)
    each = PartitionSpec(MESH_AXIS)
    return jax.shard_map(jax.vmap(one), mesh=mesh, in_specs=each, out_specs=each, check_vma=False)(numbers, carry, worlds, keys)


@partial(jax.jit, static_argnums=0)
def _start(static: config.Train, seeds: Array, worlds: Tree, learner: Learner) -> tuple[Key, Tree, Actor]:
    env, agent = build(static)

    def one(seed: Array, world: Tree, learner: Learner) -> tuple[Key, Tree, Actor]:
        key = jax.random.key(seed)
        start = lambda key: begin(env, agent, world, learner, key)
        actors = of_envs(env.envs, start)(env_keys(jax.random.fold_in(key, START), env.envs))
        first = jax.tree.map(lambda leaf: leaf[0], actors)
        example = jax.eval_shape(lambda: rollout(env, agent, world, learner, first, throw(static.learner, agent, key))[1])
        return key, make_feed(static.learner, env.envs).init(example), actors

    return jax.vmap(one)(seeds, worlds, learner)


@partial(jax.jit, static_argnums=0)
def _sigma(static: config.Train, floats: dict[str, Array], learner: Learner) -> Array:
    env, agent = build(config.with_floats(static, floats))
    both = lambda obs: jax.vmap(lambda action: agent.sigma2(learner, obs, action))(jnp.arange(env.n_actions))
    return jnp.sqrt(jax.lax.map(lambda obs: jnp.max(both(obs)), jnp.arange(env.n_states), batch_size=MAP_BATCH))


def sigma_map(settings: config.Train, learner: Learner) -> np.ndarray:
    """Sigma of the less known action in every state [n_states], for one seed's learner."""
    return np.asarray(_sigma(program_of(settings), config.floats(settings), learner))


def first_seed(carry: Carry) -> Carry:
    """The part of a carry that is its first seed's."""
    return jax.tree.map(lambda leaf: leaf.addressable_shards[0].data[0], carry)


def seeds_of(settings: config.Train) -> range:
    """The seeds of a run."""
    return range(settings.run.seed, settings.run.seed + settings.run.seeds)


def program_of(settings: config.Train) -> config.Train:
    """What of some settings decides the compiled program: neither numbers nor seeds nor the budget."""
    length = config.rollouts_per_chunk(settings)
    return config.static(config.override(settings, seed=0, episodes=1, stop_when_solved=True, chunk=length))


@lru_cache(maxsize=32)
def _compiled(static: config.Train, mesh: Mesh, *shapes: Any) -> Any:
    """The program of all runs that differ only in numbers, in which seeds they are and in how many episodes they have."""
    each = NamedSharding(mesh, PartitionSpec(MESH_AXIS))  # said, because XLA would hand arrays of no size to every device
    compiled = jax.jit(partial(_chunks, static, mesh), donate_argnums=1, out_shardings=each)
    return compiled.lower(*(jax.tree.unflatten(tree, leaves) for tree, leaves in shapes)).compile()


def _shape(tree: Tree) -> tuple[Any, tuple[Any, ...]]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding) for leaf in leaves)


def stacked(make: Callable[[config.Train], Tree], runs: Sequence[config.Train]) -> Tree:
    """What `make` gives for each run, stacked on the host; no more than one run's is ever there twice."""
    first = make(runs[0])
    whole = jax.tree.map(lambda leaf: np.empty((len(runs), *leaf.shape), leaf.dtype), first)
    for place, run in enumerate(runs):
        jax.tree.map(lambda into, leaf: into.__setitem__(place, leaf), whole, make(run) if place else first)  # noqa: B023
    return whole


def prepare(settings: config.Train, variants: Sequence[config.Train] | None = None) -> Program:
    """Lay out the arrays of every seed and compile; seed i is the same run whatever other seeds are beside it.

    `variants`: what each place runs, where they differ in numbers as well as in seeds; each has one seed. Weights and priors are drawn
    on the host, a generator a seed. Where the cores do not divide the places, the last core runs the last one more than once:
    nobody looks at it.
    """
    machine.claim_cores()
    machine.keep_programs()
    began = time.perf_counter()
    runs = list(variants or (config.override(settings, seed=seed) for seed in seeds_of(settings)))
    asked_for = tuple(run.run.seed for run in runs)
    mesh = machine.mesh(len(runs))
    runs += [runs[-1]] * (-len(runs) % mesh.size)
    shared_out = partial(jax.device_put, device=NamedSharding(mesh, PartitionSpec(MESH_AXIS)))
    worlds = shared_out(stacked(lambda run: build(run)[0].world(run.run.seed), runs))
    learner = shared_out(stacked(lambda run: build(run)[1].init(np.random.default_rng(run.run.seed)), runs))
    seeds = np.asarray([run.run.seed for run in runs], np.uint32)
    keys, food, actor = _start(program_of(settings), shared_out(seeds), worlds, learner)
    env = build(settings)[0]
    visits = np.zeros((len(runs), env.n_states), np.int32) if isinstance(env.observations, Discrete) else ()
    counts = shared_out((np.zeros((len(runs), env.envs), np.float32), visits, np.zeros(len(runs), np.int32)))
    keys, carry = shared_out((keys, Carry(learner, food, actor, *counts)))
    numbers = shared_out({name: np.asarray([config.floats(run)[name] for run in runs], np.float32) for name in config.floats(settings)})
    step = _compiled(program_of(settings), mesh, *map(_shape, (numbers, carry, worlds, keys)))
    return Program(settings, asked_for, worlds, keys, carry, partial(step, numbers), time.perf_counter() - began)


def refuse(place: int, complaint: str) -> None:
    """What a run does about a number that is not one."""
    raise NonFinite(f"{complaint}; nothing of it was saved")


def run(program: Program, spoilt: Callable[[int, str], None] = refuse) -> Generator[Chunk]:
    """Run chunk after chunk, without end; whoever asks for the next one decides when it is enough.

    `spoilt` is told the place of every seed of a chunk that holds a bad number, and which; it cannot spread to another seed.
    """
    carry = program.carry
    done = int(np.asarray(carry.rollouts)[0])
    while True:
        began = time.perf_counter()
        carry, brought = program.step(carry, program.worlds, program.keys)
        facts, metrics, seen = jax.tree.map(lambda leaf: leaf[: len(program.seeds)], jax.device_get(brought))
        for alarm in guard.alarms(seen, metrics, program.settings.learner.rollout):
            spoilt(alarm.seed, complaint(program, alarm, done))
        done += config.rollouts_per_chunk(program.settings)
        yield Chunk(facts, metrics, carry, time.perf_counter() - began)


def complaint(program: Any, bad: guard.Alarm, done: int) -> str:
    """An alarm in one line; `done` rollouts went before its chunk. Steps and rollouts count from one."""
    steps, rollout = program.settings.learner.rollout, done + bad.rollout
    first = steps * rollout + bad.step + 1
    when = f"at step {first:,}" if bad.step < steps else f"after step {first - 1:,}"
    return f"{bad.tensor} is not finite {when} (rollout {rollout + 1:,}) of seed {program.seeds[bad.seed]}"


def layout(program: Program) -> dict[str, str | int]:
    """How a run lies on this machine's devices, and how jax was set: the part of its fingerprint that only jax knows."""
    devices: list[Any] = list(program.keys.sharding.device_set)
    return {
        "devices": f"{len(devices)} {devices[0].device_kind}",
        "seeds a device": len(program.keys) // len(devices),
        "jax options": jax_options(),
    }


def jax_options() -> str:
    """How jax was set, as far as it decides bits."""
    names = ("jax_enable_x64", "jax_default_prng_impl", "jax_threefry_partitionable", "jax_default_matmul_precision")
    return ", ".join(f"{name.removeprefix('jax_')}={getattr(jax.config, name)}" for name in names)


def snapshot(program: Program, carry: Carry, spoilt: Callable[[int, str], None] = refuse) -> Tree:
    """Everything that the future of a run depends on, for the seeds that were asked for, on the host; `spoilt` as for `run`."""
    wanted = len(program.seeds)
    host = lambda leaf: leaf if is_key(leaf) else np.asarray(leaf)
    cut = lambda leaf: leaf if len(leaf) == wanted else leaf[:wanted]
    carry, keys, worlds = jax.tree.map(lambda leaf: cut(host(leaf)), (carry, program.keys, program.worlds))
    learner = carry.learner._replace(memory=())  # a memory may mean something by infinity
    for name, array in flatten(learner)[0].items():
        for place in map(int, np.flatnonzero(~np.isfinite(array.reshape(wanted, -1).sum(axis=1)))):
            spoilt(place, f"{name} is not finite at rollout {int(carry.rollouts[0]):,}, where it was to be saved")
    return {"carry": carry, "keys": keys, "worlds": worlds}


def restored(program: Program, state: Tree) -> Program:
    """The program at the state of a snapshot. Seeds that fill up the last core start afresh: nobody looks at them."""

    def filled(saved: Any, fresh: Any) -> Any:
        if is_key(fresh):
            data = filled(jax.random.key_data(saved), jax.random.key_data(fresh))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(fresh))
        return jax.device_put(np.concatenate([saved, np.asarray(fresh)[len(saved) :]]), fresh.sharding)

    now = {"carry": program.carry, "keys": program.keys, "worlds": program.worlds}
    return program._replace(**jax.tree.map(filled, state, now))


def close(program: Program) -> None:
    """There is nothing to let go."""
