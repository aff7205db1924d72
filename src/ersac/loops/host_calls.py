"""The compiled calls of the host loop: to act, to join the steps of a rollout, and to learn.

Acting is dominated by the overhead of compiled calls, so there is one call per step, with few
arguments: parameters are packed into few arrays, and the noise of a chunk is drawn at once.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from ersac import config
from ersac.agents.base import Agent, Metrics
from ersac.agents.build import agent_of, buffer_of
from ersac.algorithm.replay import Buffer
from ersac.envs.base import Spec
from ersac.loops import guard
from ersac.loops.base import BUFFER_DRAWS
from ersac.loops.learn import learn, store_new, update_once
from ersac.loops.rollout import draw_all_noise, env_keys, step_keys
from ersac.nets.layers import is_large_image
from ersac.nets.packed import unpack
from ersac.types import Array, Key, Learner, Trajectory, Tree

MAX_PACKED = 2**13  # numbers: copying a larger array takes longer than passing it as an argument
ONE_THREAD = {"xla_cpu_multi_thread_eigen": False}  # waking a thread takes longer than acting


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


def _agent_and_buffer(
    settings: config.Experiment, spec: Spec, floats: dict[str, Array]
) -> tuple[Agent, Buffer]:
    """Return the agent and the buffer that have these floats."""
    settings = config.with_floats(settings, floats)
    return agent_of(settings, spec), buffer_of(settings, spec)


# The functions that are compiled. Each takes static settings and a specification first.


def _pack(settings: config.Experiment, spec: Spec, learner: Learner) -> Packed:
    return pack_arrays(agent_of(settings, spec).policy.actor_params(learner))


def _init_episodes(settings: config.Experiment, spec: Spec, learner: Learner, key: Key) -> Tree:
    """Return the policy's episode states [N, ...] at the first reset."""
    agent = agent_of(settings, spec)
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
    agent = agent_of(settings, spec)
    new = jax.vmap(lambda key: agent.policy.init_episode(learner, jax.random.split(key)[1]))(keys)
    return jax.tree.map(
        lambda new, old: jnp.where(ended.reshape(-1, *[1] * (new.ndim - 1)), new, old),
        new,
        episode_state,
    )


class ChunkNoise(NamedTuple):
    """The randomness of R rollouts in N environments."""

    action_noise: Tree  # [R, N, T, ...]   on the device
    noise: Tree  # [R, N, T, ...]          stored in trajectories, on the host


def _draw_noise(
    settings: config.Experiment, spec: Spec, floats: dict[str, Array], key: Key, rollouts: Array
) -> ChunkNoise:
    settings = config.with_floats(settings, floats)
    agent = agent_of(settings, spec)
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
    agent, learner = agent_of(settings, spec), unpack_arrays(actor_params)
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
    agent = agent_of(settings, spec)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves, axis=1), *dist_params)
    actions = jnp.stack(action, axis=1)
    return actions, jax.vmap(agent.policy.log_mu)(stacked, actions)


# The learner, its packed parameters, the buffer's state, metrics, sums of `guard.finite_sums`.
LearnOutput = tuple[Learner, Packed, Tree, Metrics, Metrics]


def _learn(
    settings: config.Experiment,
    spec: Spec,
    floats: dict[str, Array],
    learner: Learner,
    buffer_state: Tree,
    newest: Trajectory,
    key: Key,
    rollout: Array,
) -> LearnOutput:
    """Learn from new rollouts; also return the packed parameters, metrics and finite sums.

    The buffer's state is donated. The learner is not: the actor may be using it.
    """
    agent, buffer = _agent_and_buffer(settings, spec, floats)
    key = draws_key(key, rollout)
    learner, buffer_state, metrics = learn(agent, buffer, learner, buffer_state, newest, key)
    packed, sums = _summarise(agent, spec, learner, newest)
    return learner, packed, buffer_state, metrics, sums


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
    agent, buffer = _agent_and_buffer(settings, spec, floats)
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
    agent, buffer = _agent_and_buffer(settings, spec, floats)
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
    packed, sums = _summarise(agent_of(settings, spec), spec, learner, newest)
    return packed, jax.tree.map(lambda *x: jnp.mean(jnp.stack(x)), *metrics), sums


def learn_in_calls(static: config.Experiment, spec: Spec) -> Callable[..., LearnOutput]:
    """Return the function that does what `_learn` does in a compiled call for each update."""
    bind = lambda function, **options: jax.jit(partial(function, static, spec), **options)
    store, finish = bind(_store_new, donate_argnums=2), bind(_finish_updates)
    update = bind(_update_once, donate_argnums=2)
    updates = buffer_of(static, spec).updates

    def learn_rollouts(
        floats: dict[str, Array],
        learner: Learner,
        buffer_state: Tree,
        newest: Trajectory,
        key: Key,
        rollout: Array,
    ) -> LearnOutput:
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
