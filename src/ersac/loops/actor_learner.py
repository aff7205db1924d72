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
from ersac.agents.make import make_agent, make_feed
from ersac.checkpoint import flatten
from ersac.envs.base import Env, HostEnv, HostStep, Spec, spec_of
from ersac.envs.make import make_host_env
from ersac.loops import guard, machine
from ersac.loops.learn import learn
from ersac.loops.on_device import FEED, START, Chunk, Episodes, Metrics, complaint, jax_options, refuse, seeds_of
from ersac.loops.rollout import env_keys, step_keys, throw_all
from ersac.types import Array, Key, Learner, Trajectory, Tree

PATIENCE = 0.1  # seconds after which an actor that waits looks whether it is still wanted
SMALL = 2**13  # numbers in an array, up to which it takes longer to be handed it than to copy it
ONE_THREAD = {"xla_cpu_multi_thread_eigen": False}  # to wake another takes longer than to act


class Carry(NamedTuple):
    """What of one seed's future can be saved. An environment's own state cannot: a run that goes on begins new episodes."""

    learner: Learner
    food: Tree
    rollouts: np.int32  # counted on the host


class Place:
    """One seed at work: its environments, where they stand, and the newest parameters."""

    def __init__(self, env: HostEnv, seed: int, carry: Carry) -> None:
        self.env, self.seed, self.carry = env, seed, carry
        self.key = jax.random.key(seed)
        self.newest: Acting | None = None  # replaced as a whole, so that nobody who takes it sees half of a change
        self.renewed = threading.Condition()  # told when it is
        self.obs: np.ndarray | None = None  # [N, ...]
        self.kept: Tree = ()
        self.episode_return = np.zeros(env.envs, np.float64)


class Calls(NamedTuple):
    """What is compiled: the functions below that begin with an underscore, each for settings and an environment that are known."""

    pack: Any
    begin: Any
    throw: Any
    act: Any
    joined: Any
    learn: Any
    renewed: Any


@lru_cache(maxsize=32)
def calls(static: config.Train, spec: Spec) -> Calls:
    """Bound once: to find them by their settings at every step would take longer than to act."""
    bound = lambda function, **options: jax.jit(partial(function, static, spec), **options)
    act = bound(_act, compiler_options=ONE_THREAD if jax.default_backend() == "cpu" else None)
    return Calls(bound(_pack), bound(_begin), bound(_throw), act, bound(_joined), bound(_learn, donate_argnums=2), bound(_renewed))


class Program(NamedTuple):
    """A run, ready: a place a seed."""

    settings: config.Train
    spec: Spec
    calls: Calls
    numbers: dict[str, Array]  # that are traced
    seeds: tuple[int, ...]
    places: list[Place]
    carry: list[Carry]
    compile_seconds: float


def _begin(settings: config.Train, spec: Spec, learner: Learner, key: Key) -> Tree:
    """What the agent keeps through the episodes that now begin [N, ...]."""
    agent = _agent(settings, spec)
    return jax.vmap(lambda key: agent.begin(learner, jax.random.split(key)[1]))(env_keys(key, spec.envs))


@partial(jax.tree_util.register_dataclass, data_fields=("small", "large"), meta_fields=("structure", "shapes"))
@dataclass(frozen=True)
class Packed:
    """The arrays of who acts: a compiled call takes longer for every one that it is handed, and acting is little else."""

    small: dict[str, Array]  # all of one type, one after the other
    large: list[Array]  # as they are
    structure: Any  # of the tree that they were
    shapes: tuple[tuple[str, tuple[int, ...]], ...]  # the type and shape of every array in it


def packed(tree: Tree) -> Packed:
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


def unpacked(arrays: Packed) -> Tree:
    """The tree that was packed."""
    taken, large = dict.fromkeys(arrays.small, 0), iter(arrays.large)

    def leaf(dtype: str, shape: tuple[int, ...]) -> Array:
        size = math.prod(shape)
        if size > SMALL:
            return next(large)
        taken[dtype] += size
        return arrays.small[dtype][taken[dtype] - size : taken[dtype]].reshape(shape)

    return arrays.structure.unflatten([leaf(*each) for each in arrays.shapes])


class Acting(NamedTuple):
    """The newest parameters, and what of them acting asks for."""

    learner: Learner
    packed: Packed
    rollouts: int  # that they have learned from


def _pack(settings: config.Train, spec: Spec, learner: Learner) -> Packed:
    return packed(_agent(settings, spec).acting(learner))


class Thrown(NamedTuple):
    """The dice of R rollouts: drawn together, because one at a time a call would take longer than what it does."""

    chance: Tree  # [R, N, T, ...]  what decides the actions
    noise: Tree  # [R, N, T, ...]   what goes with them to the learner, on the host; as large as the numbers say


def _throw(settings: config.Train, spec: Spec, numbers: dict[str, Array], key: Key, rollouts: Array) -> Thrown:
    settings = config.with_floats(settings, numbers)
    agent = _agent(settings, spec)
    dice = jax.vmap(lambda rollout: throw_all(settings.learner, agent, spec.envs, jax.random.fold_in(key, rollout)))(rollouts)
    return Thrown(dice.chance, dice.noise)


class Drawn(NamedTuple):
    """One action in each environment [N, ...]."""

    action: Array  # as it is learned from
    told: Tree  # what log_mu asks for
    emitted: Array | None  # as the environment takes it, where that is something else


def _act(settings: config.Train, spec: Spec, acting: Packed, kept: Tree, obs: Array, chance: Tree, r: Array, t: Array) -> Drawn:
    """The actions of step t of rollout r, by its part of the chance of all [R, N, T, ...]."""
    agent, learner = _agent(settings, spec), unpacked(acting)
    one = lambda kept, obs, chance: agent.act(learner, kept, obs, jax.tree.map(lambda thrown: thrown[r, t], chance))
    action, told = jax.vmap(one, in_axes=(0, 0, 1))(kept, obs, chance)
    emitted = agent.emit(action)
    return Drawn(action, told, None if emitted is action else emitted)


def _joined(settings: config.Train, spec: Spec, told: list[Tree], action: list[Array]) -> tuple[Array, Array]:
    """Actions [N, T] and their log-probabilities, from those of every step."""
    agent = _agent(settings, spec)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves, axis=1), *told)
    actions = jnp.stack(action, axis=1)
    return actions, jax.vmap(agent.log_mu)(stacked, actions)


def _learn(
    settings: config.Train,
    spec: Spec,
    numbers: dict[str, Array],
    learner: Learner,
    food: Tree,
    newest: Trajectory,
    key: Key,
    rollout: Array,
) -> tuple[Learner, Packed, Tree, Metrics, Metrics]:
    """Learn from new rollouts. What is kept is given away; the parameters are not, somebody may be acting with them."""
    settings = config.with_floats(settings, numbers)
    agent, feed = _agent(settings, spec), make_feed(settings.learner, spec.envs)
    key = jax.random.fold_in(jax.random.fold_in(key, FEED), rollout)
    learner, food, metrics = learn(agent, feed, learner, food, newest, key)
    return learner, packed(agent.acting(learner)), food, metrics, guard.watch(newest, learner)


def _agent(settings: config.Train, spec: Spec) -> Agent:
    assert settings.env.on_host
    return make_agent(settings.learner, spec, settings.env.seen)


def program_of(settings: config.Train) -> config.Train:
    """What of some settings decides the compiled programs: neither numbers nor seeds nor the budget."""
    assert settings.env.on_host
    of_a_run = {"seed": 0, "seeds": 1, "episodes": 1, "steps": None, "stop_when_solved": True, "chunk": 1}
    return config.static(config.override(settings, **of_a_run, make=None, workers=0, lockstep=True))


def prepare(settings: config.Train, variants: Sequence[config.Train] | None = None, make: Callable[[], HostEnv] | None = None) -> Program:
    """Make the environments and the learner of every seed, and compile."""
    assert variants is None, "a batch of variants is a matter of environments on the device"
    machine.answer_at_once()
    machine.keep_programs()
    began = time.perf_counter()
    seeds = tuple(seeds_of(settings))
    assert settings.env.on_host
    envs = [make_host_env(settings.env) if make is None else make() for _ in seeds]
    spec = spec_of(envs[0])
    config.refuse_if_too_large(settings, size_of(spec))
    places = [Place(env, seed, first_carry(settings, spec, seed)) for env, seed in zip(envs, seeds, strict=True)]
    program = assembled(settings, spec, places)
    _warm_up(program)
    return program._replace(compile_seconds=time.perf_counter() - began)


def assembled(settings: config.Train, spec: Spec, places: list[Place]) -> Program:
    """A run of those places, nothing of which is compiled yet."""
    seeds, carry = tuple(place.seed for place in places), [place.carry for place in places]
    numbers = {name: jnp.asarray(number) for name, number in config.floats(settings).items()}  # put on the device once
    return Program(settings, spec, calls(program_of(settings), spec), numbers, seeds, places, carry, 0.0)


def size_of(spec: Spec) -> config.Size:
    """How large an environment is, as far as memory goes."""
    states = getattr(spec.observations, "n", 0)
    n_actions = getattr(spec.actions, "n", 1)
    per_number = 1 if getattr(spec.observations, "is_bytes", False) else 4
    numbers = getattr(spec.observations, "size", 1)
    return config.Size(states, per_number * numbers, n_actions, numbers)


def first_carry(settings: config.Train, spec: Spec, seed: int) -> Carry:
    """A learner that has seen nothing, and an empty feed."""
    learner = _agent(settings, spec).init(np.random.default_rng(seed))
    example = jax.tree.map(lambda leaf: leaf[0], _blank(settings, spec))
    return Carry(learner, make_feed(settings.learner, spec.envs).init(example), np.int32(0))


def _blank(settings: config.Train, spec: Spec) -> Trajectory:
    """Rollouts of nothing, of the right shapes."""
    envs, length = spec.envs, settings.learner.rollout
    agent = _agent(settings, spec)
    obs = np.zeros((envs, length + 1, *getattr(spec.observations, "shape", ())), _dtype(spec))
    key = jax.random.key(0)
    learner = jax.eval_shape(lambda: agent.init(np.random.default_rng(0)))
    kept = jax.eval_shape(lambda key: agent.begin(learner, key), key)
    chance = jax.eval_shape(lambda key: agent.chance(key, 1), key)
    one = lambda tree: jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), tree)
    action, _ = jax.eval_shape(agent.act, learner, kept, jax.ShapeDtypeStruct(obs.shape[2:], obs.dtype), one(chance))
    noise = jax.eval_shape(lambda key: agent.noise(key, length), key)
    zeros = jnp.zeros((envs, length))
    filled = lambda leaf, *leading: jnp.zeros((*leading, *leaf.shape), leaf.dtype)
    actions, noises = filled(action, envs, length), jax.tree.map(lambda leaf: filled(leaf, envs), noise)
    return Trajectory(jnp.asarray(obs), actions, zeros, zeros, zeros, zeros, noises)


def _dtype(spec: Spec) -> Any:
    if hasattr(spec.observations, "n"):
        return np.int32
    return np.uint8 if spec.observations.is_bytes else jnp.zeros(()).dtype


def _warm_up(program: Program) -> None:
    """Compile everything before the first step is counted."""
    settings, place, compiled = program.settings, program.places[0], program.calls
    blank = _blank(settings, program.spec)
    learner = place.carry.learner
    thrown = compiled.throw(program.numbers, place.key, np.arange(config.rollouts_per_chunk(settings)))
    kept = compiled.begin(learner, jax.random.fold_in(place.key, START))
    drawn = compiled.act(compiled.pack(learner), kept, blank.obs[:, 0], thrown.chance, 0, 0)
    length = settings.learner.rollout
    compiled.joined([drawn.told] * length, [drawn.action] * length)
    food = jax.tree.map(jnp.copy, place.carry.food)
    compiled.learn(program.numbers, place.carry.learner, food, blank, place.key, 0)


class Acted(NamedTuple):
    """A rollout of all environments of a place."""

    trajectory: Trajectory
    episodes: Episodes
    learned: int  # rollouts that the parameters it was acted with had learned from


def env_seed(seed: int, rollout: int) -> int:
    """The seed of a run's first environment when acting begins at a rollout; environment i gets i more.

    Hashed by SeedSequence, so that runs with neighbouring seeds, and a run that is resumed, share no
    environment seed. 31 bits, which every environment accepts.
    """
    return int(np.random.SeedSequence((seed, rollout)).generate_state(1)[0] >> 1)


class Enough(Exception):
    """Nobody wants the rollout that is under way."""


def act(program: Program, place: Place, thrown: Thrown, first: int, r: int, enough: threading.Event) -> Acted:
    """T steps in every environment of a place with its newest parameters: rollout `first + r`, with the r-th of the dice."""
    compiled, length, rollout, acting = program.calls, program.settings.learner.rollout, first + r, place.newest
    assert acting is not None
    if place.obs is None:
        place.obs = place.env.reset(env_seed(place.seed, rollout))
        place.kept = compiled.begin(acting.learner, jax.random.fold_in(place.key, START))
    keeps = bool(jax.tree.leaves(place.kept))
    obs, steps, actions, told = [place.obs], [], [], []
    for t in range(length):
        if enough.is_set():
            raise Enough
        drawn = compiled.act(acting.packed, place.kept, place.obs, thrown.chance, r, t)
        actions.append(drawn.action)
        told.append(drawn.told)
        step = place.env.step(np.asarray(drawn.action if drawn.emitted is None else drawn.emitted))
        place.obs = step.obs
        obs.append(step.obs)
        steps.append(step)
        if keeps and step.ended.any():
            place.kept = compiled.renewed(acting.learner, place.kept, place.key, rollout, t, step.ended)
    joined, log_mu = compiled.joined(told, actions)
    column = lambda name: of_steps((getattr(step, name) for step in steps), log_mu.dtype)
    noise = jax.tree.map(lambda thrown: thrown[r], thrown.noise)
    trajectory = Trajectory(of_steps(obs), joined, column("reward"), column("discount"), column("mask"), log_mu, noise)
    return Acted(trajectory, _episodes(place, steps), acting.rollouts)


def of_steps(each: Iterable[np.ndarray], dtype: Any = None) -> Any:
    """What every step has [N, ...], as one array [N, T, ...], on the host: a compiled call takes it along in less time than jnp."""
    return np.array(list(each), dtype).swapaxes(0, 1)


def _renewed(settings: config.Train, spec: Spec, learner: Learner, kept: Tree, key: Key, rollout: Array, t: Array, ended: Array) -> Tree:
    """What the agent keeps, drawn anew where an episode ended."""
    begins = lambda key: jax.random.split(step_keys(key, settings.learner.rollout)[t])[1]
    keys = jax.vmap(begins)(env_keys(jax.random.fold_in(key, rollout), spec.envs))
    agent = _agent(settings, spec)
    new = jax.vmap(lambda key: agent.begin(learner, jax.random.split(key)[1]))(keys)
    return jax.tree.map(lambda new, old: jnp.where(ended.reshape(-1, *[1] * (new.ndim - 1)), new, old), new, kept)


def _episodes(place: Place, steps: list[HostStep]) -> Episodes:
    """What the steps tell of their episodes [N, T]."""
    ended, goal = of_steps(step.ended for step in steps), of_steps(step.goal for step in steps)
    returns = np.empty(ended.shape)
    for t, step in enumerate(steps):
        place.episode_return += step.reward
        returns[:, t] = place.episode_return
        place.episode_return[step.ended] = 0.0
    if place.env.target is not None:
        goal = goal | (returns >= place.env.target)
    return Episodes(ended, goal, returns)


def wait_for_parameters(place: Place, rollouts: int, enough: threading.Event) -> None:
    """Wait until the newest parameters have learned from so many rollouts; Enough where nobody wants another."""
    with place.renewed:
        while place.newest is not None and place.newest.rollouts < rollouts:
            if enough.is_set():
                raise Enough
            place.renewed.wait(PATIENCE)


class Failure(NamedTuple):
    """What went wrong where the actor was at work."""

    error: BaseException


def acted(program: Program, place: Place, count: int) -> Generator[Acted]:
    """The rollouts of a place, without end, each acted with the parameters that are newest when it begins; dice are thrown for `count`."""
    learner, begun = place.carry.learner, int(place.carry.rollouts)
    place.newest = Acting(learner, program.calls.pack(learner), begun)
    enough = threading.Event()

    def each() -> Iterator[Acted]:
        for first in itertools.count(begun, count):
            thrown = program.calls.throw(program.numbers, place.key, np.arange(first, first + count))
            thrown = thrown._replace(noise=jax.tree.map(np.asarray, thrown.noise))
            for r in range(count):
                wait_for_parameters(place, first + r - bound, enough)
                yield act(program, place, thrown, first, r, enough)

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
        except Enough:
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


def learned(program: Program, place: Place, found: Acted) -> tuple[Episodes, Metrics, Metrics]:
    """Learn from a rollout of a place; what it brought. In few words: while one thread speaks Python, the other waits."""
    learner, food, rollouts = place.carry
    learner, acting, food, metrics, seen = program.calls.learn(program.numbers, learner, food, found.trajectory, place.key, rollouts)
    jax.block_until_ready(acting)  # an actor that took parameters under way would wait for them
    with place.renewed:
        place.newest, place.carry = Acting(learner, acting, int(rollouts) + 1), Carry(learner, food, rollouts + 1)
        place.renewed.notify_all()
    return found.episodes, metrics | {"staleness": np.float32(rollouts - found.learned)}, seen


def run(program: Program, spoilt: Callable[[int, str], None] = refuse) -> Generator[Chunk]:
    """Run chunk after chunk, without end, as `on_device.run` does; seeds take turns.

    Whoever acts goes on between chunks, and until this is closed.
    """
    done, count = int(program.carry[0].rollouts), config.rollouts_per_chunk(program.settings)
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(contextlib.closing(acted(program, place, count))) for place in program.places]
        while True:
            began = time.perf_counter()
            turns = zip(program.places, streams, strict=True)
            brought = [[learned(program, place, found) for found in itertools.islice(stream, count)] for place, stream in turns]
            stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *(jax.tree.map(lambda *x: np.stack(x), *each) for each in brought))
            facts, metrics, seen = stacked
            for alarm in guard.alarms(seen, metrics, program.settings.learner.rollout):
                spoilt(alarm.seed, complaint(program, alarm, done))
            done += count
            yield Chunk(facts, metrics, [place.carry for place in program.places], time.perf_counter() - began)


def layout(program: Program) -> dict[str, str | int]:
    """How a run lies on this machine: the part of its fingerprint that only jax knows."""
    devices = jax.local_devices()
    return {"devices": f"1 {devices[0].device_kind}", "environments": program.spec.envs, "jax options": jax_options()}


def snapshot(program: Program, carry: list[Carry], spoilt: Callable[[int, str], None] = refuse) -> Tree:
    """Everything of a run that can be saved, on the host."""
    saved = jax.tree.map(np.asarray, {str(seed): each for seed, each in zip(program.seeds, carry, strict=True)})
    for place, each in enumerate(carry):
        for name, array in flatten(each.learner._replace(memory=()))[0].items():
            if not np.isfinite(array).all():
                spoilt(place, f"{name} is not finite at rollout {int(each.rollouts):,}, where it was to be saved")
    return saved


def restored(program: Program, state: Tree) -> Program:
    """The program at the state of a snapshot, at the start of new episodes."""
    for place, seed in zip(program.places, program.seeds, strict=True):
        saved = jax.tree.map(jnp.asarray, state[str(seed)])
        place.carry = saved._replace(rollouts=np.int32(saved.rollouts))
    return program._replace(carry=[place.carry for place in program.places])


def close(program: Program) -> None:
    """Let the environments go."""
    for place in program.places:
        place.env.close()


def as_host(env: Env, settings: config.Train) -> HostEnv:
    """A pure environment turned into a host one, with the randomness that it has on the device, draw for draw.

    As there, an episode that a time limit cut is told of on its fake step.
    """
    length, seed = settings.learner.rollout, settings.run.seed
    world, base = jax.tree.map(jnp.asarray, env.world(seed)), jax.random.key(seed)
    begin = jax.jit(jax.vmap(lambda key: env.reset(world, jax.random.split(key)[0])))
    look = jax.jit(jax.vmap(lambda state: env.observe(world, state)))
    now: dict[str, Any] = {"t": 0}

    @jax.jit
    def stepped(state: Tree, action: Array, rollout: Array, t: Array) -> tuple[Tree, Any]:
        def one(state: Tree, action: Array, key: Key) -> tuple[Tree, Any]:
            key_step, key_begin = jax.random.split(step_keys(key, length)[t])
            step = env.step(world, state, action, key_step)
            fresh = env.reset(world, jax.random.split(key_begin)[0])
            ended = step.discount == 0
            following = jax.tree.map(lambda new, old: jnp.where(ended, new, old), fresh, step.state)
            return following, step._replace(state=(), mask=jnp.asarray(step.mask, step.reward.dtype))

        return jax.vmap(one)(state, action, env_keys(jax.random.fold_in(base, rollout), env.envs))

    def reset(seed: int) -> np.ndarray:
        now["state"] = begin(env_keys(jax.random.fold_in(base, START), env.envs))
        return np.asarray(look(now["state"]))

    def step(action: np.ndarray) -> HostStep:
        now["state"], step = stepped(now["state"], action, now["t"] // length, now["t"] % length)
        now["t"] += 1
        reward, discount, goal, mask = map(np.asarray, (step.reward, step.discount, step.goal, step.mask))
        return HostStep(np.asarray(look(now["state"])), reward, discount, mask, discount == 0, goal)

    return HostEnv(env.name, env.observations, env.actions, env.envs, reset, step, lambda: None, env.target)
