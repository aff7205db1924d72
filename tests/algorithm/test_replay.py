"""Buffers: what they store, and how often it is drawn."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from scipy import stats

from ersac.algorithm import replay
from ersac.envs.base import Box
from ersac.types import Trajectory

STEPS, MEMBERS = 4, 2
CAPACITY, HELD, DRAWS = 60, 43, 1_000_000
BUFFER = replay.prioritised(3, 16, 2, 0.97, 1.0)
PUSH, DRAW, SET_PRIORITIES = map(jax.jit, (BUFFER.push, BUFFER.draw, BUFFER.set_priorities))


def rollout(seed: int) -> Trajectory:
    """Return a random rollout; no two seeds share a number."""
    rng = np.random.default_rng(seed)
    integers = lambda *shape: rng.integers(0, 10**6, shape).astype(np.int32)
    real = lambda *shape: rng.normal(size=shape).astype(np.float32)
    return Trajectory(
        integers(STEPS + 1),
        integers(STEPS),
        real(STEPS),
        real(STEPS),
        real(STEPS),
        real(STEPS),
        real(STEPS, MEMBERS),
    )


def alone(seed: int) -> Trajectory:
    """Return the rollout as a batch of one environment."""
    return jax.tree.map(lambda x: x[None], rollout(seed))


UNUSED = alone(0)  # the newest rollouts, in tests that never draw them


def filled(number: int) -> replay.RingState:
    ring = BUFFER.init(rollout(0))
    for seed in range(number):
        ring = PUSH(ring, alone(seed))
    return ring


def held_bits(ring: replay.RingState, slot: int) -> list[bytes]:
    return [leaf[slot].tobytes() for leaf in jax.tree.leaves(jax.device_get(ring.rollouts))]


def bits(t: Trajectory) -> list[bytes]:
    return [leaf.tobytes() for leaf in jax.tree.leaves(t)]


@pytest.mark.parametrize("kind", ["bits", "bytes", "floats"])
@pytest.mark.parametrize("shape", [(3, 5, 2), (8,), (1,)], ids=str)
def test_what_is_drawn_has_the_bits_of_what_was_pushed(kind, shape):
    """However it is stored."""
    rng = np.random.default_rng(0)
    values = {"bits": 2, "bytes": 256, "floats": 10**6}[kind]
    storage = replay.rollout_storage(Box(shape, stored_as=kind))
    buffer = replay.prioritised(4, 8, 1, 0.5, 1.0, storage)
    obs = rng.integers(values, size=(6, 2, STEPS + 1, *shape)).astype(np.float32)
    ring = buffer.init(rollout(0)._replace(obs=obs[0, 0]))
    for pushed in obs:
        newest = jax.tree.map(lambda x: np.stack([x, x]), rollout(0))._replace(obs=pushed)
        ring = buffer.push(ring, newest)
    batch, drawn = buffer.draw(ring, newest, 0, jax.random.key(0))
    assert batch.obs.dtype == np.float32
    held = np.concatenate([obs[4], obs[5]])  # slots 0 to 3, after 12 pushes into 4
    np.testing.assert_array_equal(batch.obs, held[np.asarray(drawn)])
    size = int(np.prod(shape))
    per_step = {"bits": -(-size // 8), "bytes": size, "floats": 4 * size}[kind]
    assert ring.rollouts.obs.nbytes == 4 * (STEPS + 1) * per_step
    assert Box(shape, stored_as=kind).stored_bytes == per_step


def stacked_rollouts(rng, shape: tuple[int, ...], frames: int, steps: int, resets: float):
    """Return observations [T+1, *shape] that stack the newest frames, and the masks [T]."""
    draw = lambda: rng.integers(256, size=(*shape[:-1], shape[-1] // frames), dtype=np.uint8)
    windows, masks = [[draw() for _ in range(frames)]], []
    for _ in range(steps):
        masks.append(float(rng.random() > resets))
        newest = draw()
        windows.append([*windows[-1][1:], newest] if masks[-1] else [newest] * frames)
    return np.stack([np.concatenate(w, axis=-1) for w in windows]), np.array(masks, np.float32)


@pytest.mark.parametrize(("shape", "frames"), [((4, 3, 4), 4), ((3, 2, 6), 2), ((8,), 4)], ids=str)
@pytest.mark.parametrize("kind", ["bytes", "floats"])
def test_frames_are_stored_once_and_drawn_as_they_were_stacked(shape, frames, kind):
    """Whatever steps start an episode, the first and the last included."""
    rng, steps = np.random.default_rng(0), 6
    space = Box(shape, is_bytes=kind == "bytes", frames=frames)
    pairs = [stacked_rollouts(rng, shape, frames, steps, resets=0.3) for _ in range(20)]
    obs, mask = (np.stack(arrays) for arrays in zip(*pairs, strict=True))
    obs = obs if kind == "bytes" else obs.astype(np.float32)
    assert {0.0, 1.0} == set(mask[:, 0]) == set(mask[:, -1])
    storage = replay.rollout_storage(space)
    stored = storage.pack(jnp.asarray(obs))
    single = (*shape[:-1], shape[-1] // frames)
    assert stored.shape == (20, steps + frames, *single)
    assert stored.dtype == obs.dtype
    np.testing.assert_array_equal(storage.unpack(stored, jnp.asarray(mask), obs.dtype), obs)
    one = storage.unpack(storage.pack(jnp.asarray(obs[0])), jnp.asarray(mask[0]), obs.dtype)
    np.testing.assert_array_equal(one, obs[0])


@jax.jit
def slots(priority, exponent, key):
    """Draw a million slots; the last 17 are empty, and no draw is reserved for the newest."""
    ring = replay.RingState(Trajectory(*[()] * 7), priority, jnp.asarray(HELD))
    return replay.prioritised(CAPACITY, DRAWS, 1, 1.0, exponent).draw(ring, UNUSED, 0, key)[1]


@pytest.mark.parametrize(
    ("exponent", "scale"), [(0.0, 1.0), (0.6, 1.0), (1.0, 1.0), (6.0, 1e-7), (6.0, 1e7)]
)
def test_rollouts_are_drawn_in_proportion_to_a_power_of_their_priority(exponent, scale):
    """At any scale, even if powers overflow single precision. Empty slots are never drawn."""
    priority = np.zeros(CAPACITY)
    priority[:HELD] = scale * np.random.default_rng(0).lognormal(sigma=0.7, size=HELD)
    drawn = np.asarray(slots(jnp.asarray(priority, jnp.float32), exponent, jax.random.key(1)))
    assert drawn.max() < HELD
    counts, share = np.bincount(drawn, minlength=HELD), (priority[:HELD] / scale) ** exponent
    expected = DRAWS * share / share.sum()
    often = expected > 20
    groups = lambda x: np.append(x[often], x[~often].sum() + 1e-9)
    assert stats.chisquare(groups(counts), groups(expected), sum_check=False).pvalue > 1e-4


@pytest.mark.parametrize(
    "share", [0.0, np.nextafter(np.float32(1), np.float32(0))], ids=["least", "most"]
)
def test_rounding_never_draws_an_empty_slot(monkeypatch, share):
    """The smallest and the largest draw select the first and the last full slot."""
    monkeypatch.setattr(
        jax.random, "uniform", lambda key, shape: jnp.full(shape, share, jnp.float32)
    )
    for capacity, held in ((1_000_000, 700_000), (3, 2)):
        buffer = replay.prioritised(capacity, 1, 1, 1.0, 1.0)
        drawn = jax.jit(
            lambda priority, buffer=buffer, held=held: buffer.draw(
                replay.RingState(Trajectory(*[()] * 7), priority, jnp.asarray(held)), UNUSED, 0, ()
            )[1]
        )
        for seed in range(20):
            priority = np.zeros(capacity, np.float32)
            priority[:held] = np.random.default_rng(seed).exponential(size=held)
            assert drawn(priority) == (held - 1 if share else 0)


def test_the_ring_holds_the_last_rollouts_bit_for_bit():
    ring = BUFFER.init(rollout(0))
    for seed in range(8):
        ring = PUSH(ring, alone(seed))
        last = range(max(0, seed - 2), seed + 1)
        assert [held_bits(ring, one % 3) for one in last] == [bits(rollout(one)) for one in last]
        batch, slots = DRAW(ring, alone(seed), 0, jax.random.key(seed))
        assert set(np.asarray(slots).tolist()) == {one % 3 for one in last}
        for one, slot in enumerate(np.asarray(slots)):
            assert bits(
                jax.tree.map(lambda leaf, one=one: np.asarray(leaf[one]), jax.device_get(batch))
            ) == held_bits(ring, slot)
    assert ring.pushed == 8


def test_a_new_rollout_has_the_largest_priority():
    ring = filled(1)
    assert ring.priority.tolist() == [1, 0, 0]
    ring = PUSH(ring._replace(priority=np.float32([7, 0, 0])), alone(1))
    assert ring.priority.tolist() == [7, 7, 0]
    ring = PUSH(ring._replace(priority=np.float32([0.25, 0.5, 0])), alone(2))
    assert ring.priority.tolist() == [0.25, 0.5, 0.5]  # the largest now, not of all time


def test_set_priorities_changes_no_other_slot():
    ring = filled(5)._replace(priority=np.float32([0.1, 0.2, 0.3]))
    after = SET_PRIORITIES(ring, np.array([2, 0]), np.float32([3.0, 0.0]))
    assert after.priority[1] == ring.priority[1]
    assert after.priority[2] == 3
    assert 0 < after.priority[0] < 1e-6  # distinguishable from an empty slot
    assert [held_bits(after, slot) for slot in range(3)] == [
        held_bits(ring, slot) for slot in range(3)
    ]
    assert after.pushed == ring.pushed


IS_NEWEST = jax.jit(replay.is_newest)


def newest_of(fraction: float, draws: int) -> list[bool]:
    """Return which draws are of the newest, with a fraction in single precision, as in settings."""
    return np.asarray(IS_NEWEST(np.float32(fraction), np.arange(draws))).tolist()


def test_of_32_draws_at_97_percent_the_first_is_the_newest():
    assert newest_of(0.97, 32) == [True] + [False] * 31


def test_the_newest_have_their_share_of_any_number_of_draws():
    """The share of the first n draws is rounded up, exactly, for every fraction in thousandths."""
    thousandths, draws = np.arange(1001), np.arange(1, 257)
    newest = jax.jit(jax.vmap(replay.is_newest, (0, None)))(
        np.float32(thousandths / 1000), draws - 1
    )  # [1001, 256]
    np.testing.assert_array_equal(
        np.cumsum(newest, axis=1), -(-np.outer(1000 - thousandths, draws) // 1000)
    )


def test_offline_fractions_of_zero_and_one():
    assert all(newest_of(0.0, 500))
    assert not any(newest_of(1.0, 500))


def test_the_share_of_the_newest_is_of_all_updates_after_a_push():
    """Of two updates with a batch of 16 only the first draws the newest."""
    ring = filled(5)._replace(priority=np.float32([1.0, 0.0, 0.0]))
    drawn = [DRAW(ring, alone(4), update, jax.random.key(0))[1].tolist() for update in range(2)]
    assert drawn == [[1] + [0] * 15, [0] * 16]


def test_on_policy_stores_nothing_and_draws_the_newest():
    buffer = replay.on_policy()
    assert buffer.updates == 1
    buffer_state = buffer.push(buffer.init(rollout(0)), alone(0))
    both = jax.tree.map(lambda a, b: np.stack([a, b]), rollout(3), rollout(4))
    batch, slots = buffer.draw(buffer_state, both, 0, jax.random.key(0))
    assert buffer_state == ()
    assert bits(jax.tree.map(np.asarray, batch)) == bits(both)
    assert buffer.set_priorities(buffer_state, slots, jnp.ones(2)) == ()


@pytest.mark.parametrize(
    ("passes", "envs", "minibatch"),
    [(1, 16, 4), (2, 16, 4), (3, 6, 2), (2, 6, 6), (2, 6, 100), (3, 6, None), (2, 7, 1)],
)
def test_on_policy_draws_every_rollout_once_a_pass(passes, envs, minibatch):
    """An update draws at most a minibatch, and every pass draws every rollout."""
    buffer, size = replay.on_policy(passes, envs, minibatch), min(envs, minibatch or envs)
    newest = jax.tree.map(lambda *x: np.stack(x), *map(rollout, range(envs)))
    batches = [
        buffer.draw((), newest, update, jax.random.key(0))[0] for update in range(buffer.updates)
    ]
    assert buffer.updates == passes * envs // size
    assert all(len(batch.reward) == size for batch in batches)
    known = {tuple(bits(rollout(number))): number for number in range(envs)}
    rollouts = [
        jax.tree.map(lambda x, n=n: np.asarray(x[n]), batch)
        for batch in batches
        for n in range(size)
    ]
    drawn = np.reshape([known[tuple(bits(one))] for one in rollouts], (passes, envs))
    np.testing.assert_array_equal(np.sort(drawn, axis=1), np.tile(np.arange(envs), (passes, 1)))


@pytest.mark.parametrize(
    ("passes", "envs", "minibatch"), [(1, 5, 2), (2, 5, 2), (3, 7, 4), (2, 17, 16)]
)
def test_uneven_minibatches_are_not_larger_and_leave_no_rollout_out(passes, envs, minibatch):
    buffer = replay.on_policy(passes, envs, minibatch)
    newest = jax.tree.map(lambda *x: np.stack(x), *map(rollout, range(envs)))
    drawn = [
        np.asarray(buffer.draw((), newest, update, jax.random.key(0))[1]).tolist()
        for update in range(buffer.updates)
    ]
    assert all(len(set(slots)) == len(slots) <= minibatch for slots in drawn)
    turns = buffer.updates // passes
    slots_of_passes = [
        np.concatenate(drawn[first : first + turns]) for first in range(0, buffer.updates, turns)
    ]
    assert len(slots_of_passes) == passes
    assert all(set(slots.tolist()) == set(range(envs)) for slots in slots_of_passes)


def test_rollouts_of_several_envs_are_stored_in_order_and_drawn_in_turn():
    """Three environments, a ring of seven: the oldest are overwritten, the newest take turns."""
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
