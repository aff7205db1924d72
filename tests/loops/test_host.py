"""The loop of environments on the host: what is acted is learned from, once and in order, and nobody is left behind."""

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
from ersac.loops import host as al
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
    """One program for all of these tests."""
    return api.make_settings("gym:CartPole-v1", "vanilla-replay", **(SMALL | changes))


class Numbered(gymnasium.Env):
    """To the compiled programs a CartPole. Pays the number of the step, never ends, and can be told to break at a step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, breaks: int | None = None, broke: threading.Event | None = None) -> None:
        self.number, self.breaks, self.broke = 0, breaks, broke

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.seen(), {}

    def step(self, action):
        self.number += 1
        if self.number == self.breaks:
            if self.broke is not None:
                self.broke.set()
            raise RuntimeError(f"step {self.number}\nis one too many")
        return self.seen(), float(self.number), False, False, {}

    def seen(self):
        return np.sin(self.number * np.arange(1, 5)).astype(np.float32)


def chunks(program: al.HostProgram, number: int) -> list:
    return list(itertools.islice(al.run_host(program), number))


def copied(tree):
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
    """Of another environment, another run, or the same run before it was resumed."""
    seeds = {al.env_seed(*start) + i for start in STARTS for i in range(16)}
    assert len(seeds) == 16 * len(STARTS)
    assert min(seeds) >= 0
    assert max(seeds) < 2**31


def test_environments_have_the_same_seeds_in_another_process():
    script = f"from ersac.loops.host import env_seed; print([env_seed(*start) for start in {STARTS[:20]}])"
    run = lambda number: subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONHASHSEED": number},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    ours = [al.env_seed(*start) for start in STARTS[:20]]
    assert [json.loads(run(number).stdout) for number in ("1", "2")] == [ours, ours]


def test_every_environment_of_a_run_is_reset_with_its_own_seed():
    """As a run of two seeds starts, and again as it is resumed."""
    seen: list[int | None] = []

    class Told(Numbered):
        def reset(self, *, seed=None, options=None):
            seen.append(seed)
            return super().reset(seed=seed)

    chosen = settings(lockstep=True, seeds=2, seed=7, make=Told)
    program = al.prepare_host(chosen)
    seen.clear()  # of the checks when it is made
    saved = al.snapshot_host(program, chunks(program, 1)[-1].carry)
    resumed = al.restore_host(al.prepare_host(chosen), saved)
    starts = [(7, 0), (8, 0), (7, CHUNK), (8, CHUNK)]
    chunks(resumed, 1)
    assert [seed for seed in seen if seed is not None] == [
        al.env_seed(*start) + i for start in starts for i in range(ENVS)
    ]


def test_in_lockstep_a_run_is_the_same_to_the_last_bit_and_seeds_differ():
    """And the torso, a flax module, is trained."""
    program = al.prepare_host(settings(lockstep=True, seeds=2))
    before = copied(program.carry)
    first, again = chunks(program, 3), chunks(al.prepare_host(settings(lockstep=True, seeds=2)), 3)
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
def test_side_by_side_all_that_is_acted_is_learned_from_in_order(monkeypatch, slow):
    """Once, and with parameters that are at most `max_staleness` rollouts old, as its metric says."""
    ages, act, bound = [], al.act_rollout, 2
    program = al.prepare_host(settings(make=Numbered, max_staleness=bound))

    def dawdled(who):
        if who == slow:
            time.sleep(0.02)

    def acted(program, seed_state, chunk_noise, first, r, enough):
        ages.append(first + r - int(seed_state.newest.learner.opt["time"]))
        dawdled("actor")
        return act(program, seed_state, chunk_noise, first, r, enough)

    def learned(*args):
        dawdled("learner")
        return program.calls.learn(*args)

    monkeypatch.setattr(al, "act_rollout", acted)
    brought = chunks(program._replace(calls=program.calls._replace(learn=learned)), 3)
    ring = brought[-1].carry[0].buffer_state
    rollouts = 3 * CHUNK
    assert ring.pushed == ENVS * rollouts
    numbers = np.arange(1, rollouts * LENGTH + 1).reshape(rollouts, 1, LENGTH)
    paid = np.asarray(ring.rollouts.reward)[: ENVS * rollouts].reshape(rollouts, ENVS, LENGTH)
    np.testing.assert_array_equal(paid, np.broadcast_to(numbers, paid.shape))
    obs = np.asarray(ring.rollouts.obs)[: ENVS * rollouts].reshape(rollouts, ENVS, LENGTH + 1, 4)
    np.testing.assert_array_equal(
        obs[1:, :, 0], obs[:-1, :, -1]
    )  # each goes on where the one before it left off
    assert (
        rollouts <= len(ages) <= rollouts + bound + 1
    )  # who acts does not wait for a next chunk, and is stopped in one more
    assert 0 <= min(ages) <= max(ages) <= bound
    staleness = np.concatenate([chunk.metrics["staleness"][0] for chunk in brought])
    assert (staleness >= 0).all()
    assert (staleness <= ages[:rollouts]).all()  # parameters may be renewed between the two looks
    assert (max(staleness) > 0) == (max(ages[:rollouts]) > 0) or slow == "actor"
    if slow == "learner":
        assert max(ages) > 0  # nobody waited for it
    assert not actors()


@pytest.mark.parametrize("lockstep", [True, False])
def test_an_environment_that_breaks_ends_the_run_in_one_line(lockstep):
    program = al.prepare_host(settings(lockstep=lockstep, make=lambda: Numbered(breaks=50)))
    with pytest.raises(Resumable) as found:
        chunks(program, 4)
    assert str(found.value) == "CartPole-v1 failed in step(): RuntimeError: step 50"
    assert 0 < program.seed_states[0].carry.rollouts < 50 / LENGTH
    assert not actors()


@pytest.mark.timeout(60)  # who is left behind is waited for
def test_who_stops_early_leaves_nobody_behind():
    """Not an actor that would go on, nor one that broke when nobody listened any more."""
    for breaks in (None, 2 * LENGTH):
        broke = threading.Event()
        program = al.prepare_host(settings(make=lambda: Numbered(breaks, broke)))  # noqa: B023
        under_way = al.stream_rollouts(program, program.seed_states[0], CHUNK)
        next(under_way)
        assert len(actors()) == 1
        if breaks is not None:
            assert broke.wait(60)  # in the second, while the first waits to be learned from
        under_way.close()
        assert not actors()


def test_a_learner_that_breaks_leaves_nobody_behind():
    program = al.prepare_host(settings(make=Numbered))

    def broken(*args):
        raise MemoryError("no more")

    program = program._replace(calls=program.calls._replace(learn=broken))
    with pytest.raises(MemoryError):
        chunks(program, 100)
    assert not actors()


def test_a_run_that_goes_on_has_the_learner_that_was_saved():
    """Exactly; and what was saved does not change when the run goes on."""
    program = al.prepare_host(settings(lockstep=True, seeds=2))
    carry = chunks(program, 2)[-1].carry
    saved = al.snapshot_host(program, carry)
    kept = copied(saved)
    later = chunks(program._replace(carry=carry), 1)[-1].carry
    assert same(saved, kept)
    resumed = al.restore_host(al.prepare_host(settings(lockstep=True, seeds=2)), saved)
    assert same(resumed.carry, list(kept.values()))
    assert not same(resumed.carry, later)
    one = chunks(resumed, 1)[-1].carry
    assert [int(each.rollouts) for each in one] == [3 * CHUNK] * 2
    assert same(saved, kept)
