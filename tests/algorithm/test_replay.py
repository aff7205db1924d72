"""What is kept, and what of it is drawn how often."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from scipy import stats

from ersac.algorithm import replay
from ersac.types import Trajectory

STEPS, MEMBERS = 4, 2
CAPACITY, HELD, DRAWS = 60, 43, 1_000_000
FEED = replay.prioritised(3, 16, 2, 0.97, 1.0)
PUSH, DRAW, REWEIGHT = map(jax.jit, (FEED.push, FEED.draw, FEED.set_priorities))


def rollout(seed: int) -> Trajectory:
    """Of no meaning, and unlike any other in every number."""
    rng = np.random.default_rng(seed)
    whole = lambda *shape: rng.integers(0, 10**6, shape).astype(np.int32)
    real = lambda *shape: rng.normal(size=shape).astype(np.float32)
    return Trajectory(
        whole(STEPS + 1),
        whole(STEPS),
        real(STEPS),
        real(STEPS),
        real(STEPS),
        real(STEPS),
        real(STEPS, MEMBERS),
    )


def alone(seed: int) -> Trajectory:
    """The rollout of one environment."""
    return jax.tree.map(lambda x: x[None], rollout(seed))


NOBODY = alone(0)  # where the newest is never drawn


def filled(number: int) -> replay.RingState:
    ring = FEED.init(rollout(0))
    for seed in range(number):
        ring = PUSH(ring, alone(seed))
    return ring


def held_bits(ring: replay.RingState, slot: int) -> list[bytes]:
    return [leaf[slot].tobytes() for leaf in jax.tree.leaves(jax.device_get(ring.rollouts))]


def bits(t: Trajectory) -> list[bytes]:
    return [leaf.tobytes() for leaf in jax.tree.leaves(t)]


@jax.jit
def slots(priority, exponent, key):
    """A million draws from slots of which the last 17 hold nothing, none of them the newest by right."""
    ring = replay.RingState((), priority, jnp.asarray(HELD))
    return replay.prioritised(CAPACITY, DRAWS, 1, 1.0, exponent).draw(ring, NOBODY, 0, key)[1]


@pytest.mark.parametrize(
    ("exponent", "unit"), [(0.0, 1.0), (0.6, 1.0), (1.0, 1.0), (6.0, 1e-7), (6.0, 1e7)]
)
def test_rollouts_are_drawn_in_proportion_to_a_power_of_their_priority(exponent, unit):
    """Whatever the unit of errors is: its power need not fit into single precision. What is empty is never drawn."""
    priority = np.zeros(CAPACITY)
    priority[:HELD] = unit * np.random.default_rng(0).lognormal(sigma=0.7, size=HELD)
    drawn = np.asarray(slots(jnp.asarray(priority, jnp.float32), exponent, jax.random.key(1)))
    assert drawn.max() < HELD
    seen, share = np.bincount(drawn, minlength=HELD), (priority[:HELD] / unit) ** exponent
    wanted = DRAWS * share / share.sum()
    often = wanted > 20
    groups = lambda counts: np.append(counts[often], counts[~often].sum() + 1e-9)
    assert stats.chisquare(groups(seen), groups(wanted), sum_check=False).pvalue > 1e-4


@pytest.mark.parametrize(
    "share", [0.0, np.nextafter(np.float32(1), np.float32(0))], ids=["least", "most"]
)
def test_rounding_draws_nothing_from_where_nothing_is(monkeypatch, share):
    """The smallest and the largest draw there are fall on the first and the last that are held, however running sums are rounded."""
    monkeypatch.setattr(
        jax.random, "uniform", lambda key, shape: jnp.full(shape, share, jnp.float32)
    )
    for capacity, held in ((1_000_000, 700_000), (3, 2)):
        buffer = replay.prioritised(capacity, 1, 1, 1.0, 1.0)
        drawn = jax.jit(
            lambda priority, buffer=buffer, held=held: buffer.draw(
                replay.RingState((), priority, jnp.asarray(held)), NOBODY, 0, ()
            )[1]
        )
        for seed in range(20):
            priority = np.zeros(capacity, np.float32)
            priority[:held] = np.random.default_rng(seed).exponential(size=held)
            assert drawn(priority) == (held - 1 if share else 0)


def test_the_ring_holds_the_last_rollouts_bit_for_bit():
    ring = FEED.init(rollout(0))
    for seed in range(8):
        ring = PUSH(ring, alone(seed))
        last = range(max(0, seed - 2), seed + 1)
        assert [held_bits(ring, one % 3) for one in last] == [bits(rollout(one)) for one in last]
        batch, places = DRAW(ring, alone(seed), 0, jax.random.key(seed))
        assert set(np.asarray(places).tolist()) == {one % 3 for one in last}
        for one, place in enumerate(np.asarray(places)):  # what is drawn is what is held
            assert bits(
                jax.tree.map(lambda leaf, one=one: np.asarray(leaf[one]), jax.device_get(batch))
            ) == held_bits(ring, place)
    assert ring.pushed == 8


def test_a_new_rollout_has_the_greatest_priority():
    ring = filled(1)
    assert ring.priority.tolist() == [1, 0, 0]
    ring = PUSH(ring._replace(priority=np.float32([7, 0, 0])), alone(1))
    assert ring.priority.tolist() == [7, 7, 0]
    ring = PUSH(ring._replace(priority=np.float32([0.25, 0.5, 0])), alone(2))
    assert ring.priority.tolist() == [0.25, 0.5, 0.5]  # of what is there now, not of all time


def test_reweighting_changes_its_slots_and_no_others():
    ring = filled(5)._replace(priority=np.float32([0.1, 0.2, 0.3]))
    after = REWEIGHT(ring, np.array([2, 0]), np.float32([3.0, 0.0]))
    assert after.priority[1] == ring.priority[1]
    assert after.priority[2] == 3
    assert 0 < after.priority[0] < 1e-6  # nothing left to tell, yet not empty
    assert [held_bits(after, slot) for slot in range(3)] == [
        held_bits(ring, slot) for slot in range(3)
    ]
    assert after.pushed == ring.pushed


IS_NEWEST = jax.jit(replay.is_newest)


def newest_of(fraction: float, draws: int) -> list[bool]:
    """In single precision, as settings are."""
    return np.asarray(IS_NEWEST(np.float32(fraction), np.arange(draws))).tolist()


def test_of_32_draws_at_97_percent_the_first_is_the_newest():
    assert newest_of(0.97, 32) == [True] + [False] * 31


def test_the_newest_has_its_share_of_any_number_of_draws():
    """Of the first n draws the smallest whole number that is not less, for every fraction in thousandths: none is lost to rounding."""
    thousandths, draws = np.arange(1001), np.arange(1, 257)
    newest = jax.jit(jax.vmap(replay.is_newest, (0, None)))(
        np.float32(thousandths / 1000), draws - 1
    )  # [1001, 256]
    np.testing.assert_array_equal(
        np.cumsum(newest, axis=1), -(-np.outer(1000 - thousandths, draws) // 1000)
    )


def test_all_are_the_newest_or_none():
    assert all(newest_of(0.0, 500))
    assert not any(newest_of(1.0, 500))


def test_the_share_of_the_newest_is_that_of_all_updates_of_a_push():
    """Of two updates with a batch of 16 only the first has the newest by right."""
    ring = filled(5)._replace(priority=np.float32([1.0, 0.0, 0.0]))
    drawn = [DRAW(ring, alone(4), update, jax.random.key(0))[1].tolist() for update in range(2)]
    assert drawn == [[1] + [0] * 15, [0] * 16]


def test_fresh_keeps_nothing_and_gives_the_newest_alone():
    buffer = replay.on_policy()
    assert buffer.updates == 1
    buffer_state = buffer.push(buffer.init(rollout(0)), alone(0))
    both = jax.tree.map(lambda a, b: np.stack([a, b]), rollout(3), rollout(4))
    batch, places = buffer.draw(buffer_state, both, 0, jax.random.key(0))
    assert buffer_state == ()
    assert bits(jax.tree.map(np.asarray, batch)) == bits(both)
    assert buffer.set_priorities(buffer_state, places, jnp.ones(2)) == ()


@pytest.mark.parametrize(
    ("passes", "envs", "minibatch"),
    [(1, 16, 4), (2, 16, 4), (3, 6, 2), (2, 6, 6), (2, 6, 100), (3, 6, None), (2, 7, 1)],
)
def test_every_fresh_rollout_is_drawn_as_often_as_there_are_passes(passes, envs, minibatch):
    """At most a minibatch of them in an update, what is drawn is what came, and every pass has all of them."""
    buffer, size = replay.on_policy(passes, envs, minibatch), min(envs, minibatch or envs)
    newest = jax.tree.map(lambda *x: np.stack(x), *map(rollout, range(envs)))
    batches = [
        buffer.draw((), newest, update, jax.random.key(0))[0] for update in range(buffer.updates)
    ]
    assert buffer.updates == passes * envs // size
    assert all(len(batch.reward) == size for batch in batches)
    known = {tuple(bits(rollout(number))): number for number in range(envs)}
    each = [
        jax.tree.map(lambda x, n=n: np.asarray(x[n]), batch)
        for batch in batches
        for n in range(size)
    ]
    drawn = np.reshape([known[tuple(bits(one))] for one in each], (passes, envs))
    np.testing.assert_array_equal(np.sort(drawn, axis=1), np.tile(np.arange(envs), (passes, 1)))


@pytest.mark.parametrize(
    ("passes", "envs", "minibatch"), [(1, 5, 2), (2, 5, 2), (3, 7, 4), (2, 17, 16)]
)
def test_where_minibatches_do_not_fit_none_is_larger_and_no_rollout_is_left_out(
    passes, envs, minibatch
):
    buffer = replay.on_policy(passes, envs, minibatch)
    newest = jax.tree.map(lambda *x: np.stack(x), *map(rollout, range(envs)))
    places = [
        np.asarray(buffer.draw((), newest, update, jax.random.key(0))[1]).tolist()
        for update in range(buffer.updates)
    ]
    assert all(len(set(each)) == len(each) <= minibatch for each in places)
    turns = buffer.updates // passes
    each_pass = [
        np.concatenate(places[first : first + turns]) for first in range(0, buffer.updates, turns)
    ]
    assert len(each_pass) == passes
    assert all(set(each.tolist()) == set(range(envs)) for each in each_pass)


def test_rollouts_that_come_together_are_kept_in_their_order_and_drawn_in_turn():
    """Three environments, a ring of seven: what is written last takes the place of the oldest, and each of the three has its share."""
    buffer = replay.prioritised(7, 6, 2, 0.5, 1.0)
    ring = buffer.init(rollout(0))
    for first in (0, 3, 6):
        ring = buffer.push(
            ring, jax.tree.map(lambda *x: np.stack(x), *map(rollout, range(first, first + 3)))
        )
    assert ring.pushed == 9
    assert [held_bits(ring, one % 7) for one in range(2, 9)] == [
        bits(rollout(one)) for one in range(2, 9)
    ]
    newest = jax.tree.map(lambda *x: np.stack(x), *map(rollout, range(6, 9)))
    slots = np.concatenate(
        [buffer.draw(ring, newest, update, jax.random.key(update))[1] for update in range(2)]
    )
    now = np.asarray(replay.is_newest(0.5, np.arange(12)))
    assert slots[now].tolist() == [1, 0, 6, 1, 0, 6]
