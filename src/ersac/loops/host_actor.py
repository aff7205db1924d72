"""The actor of the host loop: it steps the N environments of a seed, in a thread of its own."""

import itertools
import queue
import threading
from collections.abc import Generator, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from ersac.envs.base import HostStep
from ersac.loops.base import FIRST_RESET, EpisodeSteps, Poll, no_signal
from ersac.loops.host_calls import ChunkNoise
from ersac.loops.host_state import ActorParams, CurrentEpisodes, HostProgram, SeedState
from ersac.runs import exits
from ersac.runs.exits import Resumable
from ersac.types import Trajectory, Tree

POLL_SECONDS = 0.1  # how often a waiting thread checks whether it was stopped
JOIN_SECONDS = 1.0  # for the actor to end; one that is still in a step is left there
STEP_SECONDS = 300.0  # for a step of an environment to return


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
