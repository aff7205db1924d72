"""The host loop: every rollout is learned from once and in order, and no thread is left running."""

import itertools
import json
import os
import subprocess
import sys
import threading
import time

import flax.linen as nn
import gymnasium
import jax
import numpy as np
import pytest

from ersac import api, config
from ersac.loops import host, host_actor
from ersac.loops.host_state import HostProgram
from ersac.runs.exits import Resumable

ENVS, LENGTH, CHUNK = 2, 5, 4
TORSO = nn.Sequential((nn.Dense(8), nn.tanh))
SMALL = {
    "envs": ENVS,
    "rollout": LENGTH,
    "chunk": CHUNK,
    "capacity": 64,
    "batch": 2,
    "updates": 1,
    "torso": TORSO,
    "seeds": 1,
}


def settings(**changes) -> config.Experiment:
    """Settings that share one compiled program."""
    return api.make_settings("gym:CartPole-v1", "vanilla-replay", **(SMALL | changes))


class Numbered(gymnasium.Env):
    """An environment with the spaces of CartPole; rewards are step numbers, a step may fail."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, breaks: int | None = None, broke: threading.Event | None = None) -> None:
        self.number, self.breaks, self.broke = 0, breaks, broke

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action):
        self.number += 1
        if self.number == self.breaks:
            if self.broke is not None:
                self.broke.set()
            raise RuntimeError(f"step {self.number}\nis one too many")
        return self.observe(), float(self.number), False, False, {}

    def observe(self):
        return np.sin(self.number * np.arange(1, 5)).astype(np.float32)


def chunks(program: HostProgram, number: int) -> list:
    return list(itertools.islice(host.run_host(program), number))


def copy_tree(tree):
    return jax.tree.map(np.array, tree)


def same(one, other) -> bool:
    return all(
        np.array_equal(x, y)
        for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def actors() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "actor"]


STARTS = [
    (seed, rollout) for seed in (*range(100), *range(1000, 1100)) for rollout in (0, 1, 2, 40)
]


def test_no_environment_has_the_seed_of_another():
    """Seeds differ between environments, between runs, and before and after a resume."""
    seeds = {host_actor.env_seed(*start) + i for start in STARTS for i in range(16)}
    assert len(seeds) == 16 * len(STARTS)
    assert min(seeds) >= 0
    assert max(seeds) < 2**31


def test_environments_have_the_same_seeds_in_another_process():
    seeds = f"[env_seed(*start) for start in {STARTS[:20]}]"
    script = f"from ersac.loops.host_actor import env_seed; print({seeds})"
    run = lambda number: subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONHASHSEED": number},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    ours = [host_actor.env_seed(*start) for start in STARTS[:20]]
    assert [json.loads(run(number).stdout) for number in ("1", "2")] == [ours, ours]


def test_every_environment_of_a_run_is_reset_with_its_own_seed():
    """At the start of a run with two seeds, and after it was resumed."""
    seeds: list[int | None] = []

    class Recorded(Numbered):
        def reset(self, *, seed=None, options=None):
            seeds.append(seed)
            return super().reset(seed=seed)

    chosen = settings(lockstep=True, seeds=2, seed=7, make=Recorded)
    program, later = host.prepare_host(chosen), host.prepare_host(chosen)
    seeds.clear()  # those of the checks in prepare_host
    saved = host.snapshot_host(program, chunks(program, 1)[-1].carry)
    resumed = host.restore_host(later, saved)
    starts = [(7, 0), (8, 0), (7, CHUNK), (8, CHUNK)]
    chunks(resumed, 1)
    assert [seed for seed in seeds if seed is not None] == [
        host_actor.env_seed(*start) + i for start in starts for i in range(ENVS)
    ]


def test_in_lockstep_a_run_is_the_same_to_the_last_bit_and_seeds_differ():
    """The torso, a flax module, is trained."""
    program = host.prepare_host(settings(lockstep=True, seeds=2))
    before = copy_tree(program.carry)
    first, again = (
        chunks(program, 3),
        chunks(host.prepare_host(settings(lockstep=True, seeds=2)), 3),
    )
    assert same(first[-1].carry, again[-1].carry)
    for one, other in zip(first, again, strict=True):
        assert same((one.episodes, one.metrics), (other.episodes, other.metrics))
    mine, theirs = first[-1].carry
    assert not same(before[0].learner.params, before[1].learner.params)
    assert not np.array_equal(mine.buffer_state.rollouts.obs, theirs.buffer_state.rollouts.obs)
    assert first[0].episodes.ended.shape == (2, CHUNK, ENVS, LENGTH)
    torso = lambda carry: carry.learner.params.dense["torso"]
    assert jax.tree.all(
        jax.tree.map(lambda x, y: not np.allclose(x, y), torso(before[0]), torso(mine))
    )


@pytest.mark.parametrize("slow", ["actor", "learner"])
def test_threads_learn_from_every_rollout_in_order(monkeypatch, slow):
    """Parameters are at most `max_staleness` rollouts old, as the metric says."""
    staleness_at_start, act, max_staleness = [], host_actor.act_rollout, 2
    program = host.prepare_host(settings(make=Numbered, max_staleness=max_staleness))

    def delay(thread_name):
        if thread_name == slow:
            time.sleep(0.02)

    def record_act(program, seed_state, chunk_noise, first, r, stop):
        staleness_at_start.append(first + r - int(seed_state.newest.learner.opt["time"]))
        delay("actor")
        return act(program, seed_state, chunk_noise, first, r, stop)

    def slow_learn(*args):
        delay("learner")
        return program.calls.learn(*args)

    monkeypatch.setattr(host_actor, "act_rollout", record_act)
    outputs = chunks(program._replace(calls=program.calls._replace(learn=slow_learn)), 3)
    ring = outputs[-1].carry[0].buffer_state
    rollouts = 3 * CHUNK
    assert ring.pushed == ENVS * rollouts
    numbers = np.arange(1, rollouts * LENGTH + 1).reshape(rollouts, 1, LENGTH)
    paid = np.asarray(ring.rollouts.reward)[: ENVS * rollouts].reshape(rollouts, ENVS, LENGTH)
    np.testing.assert_array_equal(paid, np.broadcast_to(numbers, paid.shape))
    obs = np.asarray(ring.rollouts.obs)[: ENVS * rollouts].reshape(rollouts, ENVS, LENGTH + 1, 4)
    np.testing.assert_array_equal(
        obs[1:, :, 0], obs[:-1, :, -1]
    )  # each rollout starts where the last one stopped
    assert (
        rollouts <= len(staleness_at_start) <= rollouts + max_staleness + 1
    )  # the actor does not wait for the next chunk, and is stopped in a rollout
    assert 0 <= min(staleness_at_start) <= max(staleness_at_start) <= max_staleness
    staleness = np.concatenate([chunk.metrics["staleness"][0] for chunk in outputs])
    assert (staleness >= 0).all()
    assert (
        staleness <= staleness_at_start[:rollouts]
    ).all()  # parameters may be updated between the two measurements
    assert (max(staleness) > 0) == (max(staleness_at_start[:rollouts]) > 0) or slow == "actor"
    if slow == "learner":
        assert max(staleness_at_start) > 0  # the actor did not wait for the learner
    assert not actors()


@pytest.mark.parametrize("lockstep", [True, False])
def test_an_error_of_the_environment_ends_the_run_in_one_line(lockstep):
    program = host.prepare_host(settings(lockstep=lockstep, make=lambda: Numbered(breaks=50)))
    with pytest.raises(Resumable) as found:
        chunks(program, 4)
    error, _, source = str(found.value).partition(" (")
    assert error == "CartPole-v1 failed in step(): RuntimeError: step 50"
    assert source.startswith("test_host.py, line ")
    assert 0 < program.seed_states[0].carry.rollouts < 50 / LENGTH
    assert not actors()


@pytest.mark.timeout(60)  # a thread that is left running is waited for
def test_closing_the_stream_stops_the_actor_thread():
    """Neither an actor that is running, nor one that failed after the loop was closed."""
    for breaks in (None, 2 * LENGTH):
        broke = threading.Event()
        program = host.prepare_host(settings(make=lambda: Numbered(breaks, broke)))  # noqa: B023
        stream = host_actor.stream_rollouts(program, program.seed_states[0], CHUNK)
        next(stream)
        if breaks is None:
            assert len(actors()) == 1
        else:
            assert broke.wait(60)  # in the second rollout; the thread may have ended since
        stream.close()
        assert not actors()


def test_a_step_that_never_returns_ends_the_run(monkeypatch):
    """After the limit of one step, times the environments."""
    released = threading.Event()

    class Stuck(Numbered):
        def step(self, action):
            if self.number == 2 * LENGTH:
                released.wait()
            return super().step(action)

    program = host.prepare_host(settings(make=Stuck))
    monkeypatch.setattr(host_actor, "STEP_SECONDS", 0.5)
    monkeypatch.setattr(host_actor, "JOIN_SECONDS", 0.1)
    try:
        with pytest.raises(Resumable, match=r"^CartPole-v1: a step has not returned for 1 s: "):
            chunks(program, 100)
        assert actors()
    finally:
        released.set()
        for thread in actors():
            thread.join()
    assert program.seed_states[0].carry.rollouts == 2


def test_an_error_of_the_learner_stops_the_actor_thread():
    program = host.prepare_host(settings(make=Numbered))

    def fail(*args):
        raise MemoryError("no more")

    program = program._replace(calls=program.calls._replace(learn=fail))
    with pytest.raises(MemoryError):
        chunks(program, 100)
    assert not actors()


def test_a_restored_run_has_the_learner_of_the_snapshot():
    """The snapshot does not change while the run goes on."""
    program = host.prepare_host(settings(lockstep=True, seeds=2))
    carry = chunks(program, 2)[-1].carry
    saved = host.snapshot_host(program, carry)
    copy_of_saved = copy_tree(saved)
    later = chunks(program._replace(carry=carry), 1)[-1].carry
    assert same(saved, copy_of_saved)
    resumed = host.restore_host(host.prepare_host(settings(lockstep=True, seeds=2)), saved)
    assert same(resumed.carry, list(copy_of_saved.values()))
    assert not same(resumed.carry, later)
    one = chunks(resumed, 1)[-1].carry
    assert [int(seed_carry.rollouts) for seed_carry in one] == [3 * CHUNK] * 2
    assert same(saved, copy_of_saved)


@pytest.mark.parametrize("replay", [False, True])
def test_a_signal_does_not_wait_for_a_long_update_unless_it_uses_up_the_state(monkeypatch, replay):
    """A signal comes in the third update; the state before it is yielded, and it is left behind."""
    monkeypatch.setattr(host, "LEARN_SECONDS", 0.2)
    shared = ("envs", "rollout", "chunk", "seeds", "torso")
    on_policy = {name: SMALL[name] for name in shared} | {"make": Numbered}
    chosen = api.make_settings("gym:CartPole-v1", "vanilla", **on_policy)
    program = host.prepare_host(settings(make=Numbered) if replay else chosen)
    learn, calls, sent = program.calls.learn, itertools.count(1), threading.Event()

    def slow(*args):
        result = jax.block_until_ready(learn(*args))
        if next(calls) >= 3:
            sent.set()
        time.sleep(1.0 if sent.is_set() else 0.3)
        return result

    program = program._replace(calls=program.calls._replace(learn=slow))
    signal_number = lambda: 15 if sent.is_set() else 0
    outputs = list(host.run_host(program, poll=signal_number))
    learned = sum(output.metrics["staleness"].shape[1] for output in outputs)
    assert learned == (3 if replay else 2)
    assert int(outputs[-1].carry[0].rollouts) == learned
    assert int(program.seed_states[0].carry.rollouts) == learned
