"""Acting, stepping and learning in one compiled scan of fixed length, vmapped over seeds, with a host loop around it."""

import time
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from ersac import config
from ersac.agents.base import Agent
from ersac.agents.make import make_agent
from ersac.envs.base import Env
from ersac.envs.make import make_env
from ersac.loops.rollout import Actor, Facts, begin, rollout
from ersac.types import Array, Key, Learner, Tree

START = 2**31 - 1  # the rollout number that stands for 'before the first': no run gets that far
MAP_BATCH = 4096  # states evaluated at once for a map: bounds its memory at any depth


class Carry(NamedTuple):
    """Everything that influences the future of one seed."""

    learner: Learner
    actor: Actor
    visits: Array  # [n_states] int32
    rollouts: Array  # [] int32


class Chunk(NamedTuple):
    """What one compiled call brought to the host; seeds first."""

    facts: Facts  # [seeds, rollouts, T]
    metrics: dict[str, np.ndarray]  # [seeds, rollouts]
    carry: Carry
    seconds: float


class Program(NamedTuple):
    """A run, compiled: its arrays, and what its compilation cost."""

    settings: config.Train
    worlds: Tree  # [seeds, ...]
    keys: Key  # [seeds]
    carry: Carry
    step: Any  # the compiled chunk
    compile_seconds: float


def build(settings: config.Train) -> tuple[Env, Agent]:
    """The environment and the agent of some settings, whose numbers may be tracers."""
    env = make_env(settings.env)
    return env, make_agent(settings.learner, env)


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def _chunk(static: config.Train, floats: dict[str, Array], carry: Carry, worlds: Tree, keys: Key) -> tuple[Carry, Facts, dict[str, Array]]:
    settings = config.with_floats(static, floats)
    env, agent = build(settings)

    def one(carry: Carry, world: Tree, key: Key) -> tuple[Carry, tuple[Facts, dict[str, Array]]]:
        def body(carry: Carry, nothing: None) -> tuple[Carry, tuple[Facts, dict[str, Array]]]:
            address = jax.random.fold_in(key, carry.rollouts)
            actor, trajectory, facts = rollout(env, agent, world, carry.learner, carry.actor, settings.learner, address)
            learner, _, metrics = agent.update(carry.learner, jax.tree.map(lambda x: x[None], trajectory))
            visits = carry.visits.at[trajectory.obs[:-1]].add(1)
            return Carry(learner, actor, visits, carry.rollouts + 1), (facts, metrics)

        return jax.lax.scan(body, carry, length=settings.run.chunk)

    carry, (facts, metrics) = jax.vmap(one)(carry, worlds, keys)
    return carry, facts, metrics


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
    return jax.tree.map(lambda x: x[0], carry)


def start(settings: config.Train, worlds: Tree, keys: Key) -> Carry:
    """The arrays of every seed before its first step [seeds, ...]; weights and priors are drawn on the host, a generator a seed."""
    env, agent = build(settings)
    learners = [agent.init(np.random.default_rng(seed)) for seed in seeds_of(settings)]
    learner = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *learners)
    actor = jax.vmap(partial(begin, env, agent))(worlds, learner, jax.vmap(jax.random.fold_in, (0, None))(keys, START))
    count = len(learners)
    return Carry(learner, actor, jnp.zeros((count, env.n_states), jnp.int32), jnp.zeros(count, jnp.int32))


def seeds_of(settings: config.Train) -> range:
    """The seeds of a run."""
    return range(settings.run.seed, settings.run.seed + settings.run.seeds)


@lru_cache(maxsize=32)
def _compiled(static: config.Train, *shapes: Any) -> Any:
    """The program of all runs that differ only in numbers, in which seeds they are and in how many episodes they have."""
    numbers, carry, worlds, keys = (jax.tree.unflatten(tree, leaves) for tree, leaves in shapes)
    return _chunk.lower(static, numbers, carry, worlds, keys).compile()


def prepare(settings: config.Train) -> Program:
    """Lay out the arrays of every seed and compile; seed i is the same run whatever other seeds are beside it."""
    began = time.perf_counter()
    seeds = seeds_of(settings)
    env = make_env(settings.env)
    worlds = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *(env.world(seed) for seed in seeds))
    keys = jax.vmap(jax.random.key)(jnp.asarray(list(seeds), jnp.uint32))
    carry = start(settings, worlds, keys)
    numbers = {name: jnp.float32(value) for name, value in config.floats(settings).items()}
    step = _compiled(program_of(settings), *map(_shape, (numbers, carry, worlds, keys)))
    return Program(settings, worlds, keys, carry, partial(step, numbers), time.perf_counter() - began)


def program_of(settings: config.Train) -> config.Train:
    """What of some settings decides the compiled program: neither numbers nor seeds nor the budget."""
    return config.static(config.override(settings, seed=0, episodes=1, stop_when_solved=True))


def _shape(tree: Tree) -> tuple[Any, tuple[Any, ...]]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)


def run(program: Program) -> Iterator[Chunk]:
    """Run chunk after chunk, without end; whoever asks for the next one decides when it is enough."""
    carry = program.carry
    while True:
        began = time.perf_counter()
        carry, facts, metrics = program.step(carry, program.worlds, program.keys)
        facts, metrics = jax.device_get((facts, metrics))
        yield Chunk(facts, metrics, carry, time.perf_counter() - began)
