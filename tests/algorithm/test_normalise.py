"""What the learner sees of the world: numpy over everything seen so far is the oracle, and no unit of measurement matters."""

from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac import config
from ersac.agents.build import make_agent
from ersac.algorithm import normalise, replay
from ersac.envs.base import Box, Discrete, Env, Step
from ersac.loops.learn import learn
from ersac.loops.rollout import draw_all_noise, env_keys, init_actor, of_envs, rollout
from ersac.types import Learner, Trajectory

SHAPE, ENVS, STEPS, GAMMA = (3,), 2, 4, 0.9


def rollouts(seed: int, mask=None) -> Trajectory:
    """Random ones of ENVS environments; a quarter of the steps end an episode."""
    rng = np.random.default_rng(seed)
    obs = rng.normal([5.0, -0.001, 2e4], [2.0, 1e-3, 3e3], (ENVS, STEPS + 1, 3))
    reward, discount = rng.normal(size=(ENVS, STEPS)), (rng.random((ENVS, STEPS)) > 0.25) * 1.0
    mask = (rng.random((ENVS, STEPS)) > 0.3) * 1.0 if mask is None else np.full((ENVS, STEPS), mask)
    zeros = np.zeros((ENVS, STEPS))
    return jax.tree.map(
        jnp.asarray, Trajectory(obs, zeros, reward, discount, mask, zeros, zeros[..., None])
    )


def started(normaliser: normalise.Normaliser):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), normaliser.init())


def test_moments_are_those_of_everything_real_that_was_seen(float64):
    """A masked step counts for nothing, and rollouts of nothing else leave all as it is: the first of all, and any later."""
    normaliser = normalise.running(Box(SHAPE), ENVS, GAMMA, True, True)
    observe = jax.jit(normaliser.observe)
    memory, seen = observe(started(normaliser), rollouts(99, mask=0.0)), []
    np.testing.assert_array_equal(
        normaliser.obs(memory, jnp.ones((2, *SHAPE))), np.ones((2, *SHAPE))
    )  # nothing is known of any unit yet
    for seed in range(6):
        t = rollouts(seed, mask=0.0 if seed == 3 else None)
        memory = observe(memory, t)
        seen.append(np.asarray(t.obs)[:, :-1][np.asarray(t.mask) > 0])
        so_far = np.concatenate(seen)
        np.testing.assert_allclose(memory.mean, so_far.mean(axis=0), rtol=1e-10)
        np.testing.assert_allclose(memory.variance, so_far.var(axis=0), rtol=1e-8)
        assert memory.steps == len(so_far)
        np.testing.assert_array_equal(memory.low, so_far.min(axis=0))
        np.testing.assert_array_equal(memory.high, so_far.max(axis=0))
    centred = (so_far - so_far.mean(axis=0)) / (np.ptp(so_far, axis=0) / 2)
    scale = 1 / np.sqrt(np.square(centred).mean())
    np.testing.assert_allclose(
        normaliser.obs(memory, jnp.asarray(so_far)), scale * centred, atol=1e-6
    )
    np.testing.assert_allclose(
        np.abs(normaliser.obs(memory, 1e9 * jnp.ones((1, *SHAPE)))).max(),
        scale * normalise.FURTHEST,
        rtol=1e-6,
    )


def shows(obs: np.ndarray) -> tuple[normalise.Normaliser, normalise.RunningStats]:
    """A lens that has seen observations [steps, n] of one environment, in three parts, in their precision."""
    normaliser = normalise.running(Box(obs.shape[1:]), 1, GAMMA, True, True)
    memory, observe = (
        jax.tree.map(lambda x: jnp.asarray(x, obs.dtype), normaliser.init()),
        jax.jit(normaliser.observe),
    )
    for part in np.split(obs, 3):
        zeros = jnp.zeros((1, len(part)), obs.dtype)
        with_last = np.append(
            part, part[-1:], axis=0
        )  # what came after the last step is not seen yet
        memory = observe(
            memory,
            Trajectory(
                jnp.asarray(with_last[None]), zeros, zeros, zeros + 1, zeros + 1, zeros, zeros
            ),
        )
    return normaliser, memory


def test_what_was_shown_has_a_mean_square_of_one_over_all_entries_together(float64):
    """Wide and narrow ones, a rare one, and one that never varied: the one number over all of them is exact."""
    rng = np.random.default_rng(1)
    wide, narrow, rare = (
        rng.uniform(-300, 500, 3000),
        rng.uniform(0, 1e-3, 3000),
        (np.arange(3000) == 1234) * 1.0,
    )
    obs = np.stack([wide, narrow, rare, np.full(3000, 7.0)], axis=-1)
    normaliser, memory = shows(obs)
    shown = np.asarray(normaliser.obs(memory, jnp.asarray(obs)))
    np.testing.assert_allclose(np.square(shown).mean(), 1, rtol=1e-9)
    np.testing.assert_allclose(shown.mean(axis=0), 0, atol=1e-9)


@pytest.mark.parametrize("constant", [0.0, 7.0, -1234.567])
def test_an_entry_that_never_varied_is_seen_when_it_first_does(constant):
    """At acting time, before any statistics have it, and about as large as the others by as much."""
    rng = np.random.default_rng(2)
    obs = np.stack(
        [rng.uniform(-3, 3, 3000), rng.uniform(97, 103, 3000), np.full(3000, constant)], axis=-1
    ).astype(np.float32)
    normaliser, memory = shows(obs)
    at_rest, moved = (
        np.asarray(
            normaliser.obs(memory, jnp.asarray([0.0 + by, 100.0 + by, constant + by], jnp.float32))
        )
        for by in (0, 2)
    )
    np.testing.assert_allclose(at_rest, 0, atol=0.1)
    np.testing.assert_allclose((moved - at_rest)[2], (moved - at_rest)[:2].mean(), rtol=0.05)
    assert moved[2] > 1


def test_a_code_that_is_one_once_in_ten_thousand_steps_is_not_blown_up():
    """Of its standard deviations it is 100; of what it is measured in, half its range, it is 2, beside an entry that is evenly spread."""
    code = (np.arange(30_000) % 10_000 == 5_000) * 1.0
    obs = np.stack([np.random.default_rng(3).uniform(-1, 1, 30_000), code], axis=-1).astype(
        np.float32
    )
    normaliser, memory = shows(obs)
    shown = np.asarray(normaliser.obs(memory, jnp.asarray(obs)))
    assert shown[:, 0].std() == pytest.approx(np.sqrt(2), abs=0.01)
    assert shown[code == 1, 1] == pytest.approx(2 * np.sqrt(6), abs=0.01)
    assert shown[:, 0].max() == pytest.approx(np.sqrt(6), abs=0.02)  # half its range


def test_what_never_varies_tells_nothing_though_sums_are_rounded():
    normaliser = normalise.running(Box((2,)), 1, GAMMA, True, False)
    memory, observe = jax.tree.map(jnp.asarray, normaliser.init()), jax.jit(normaliser.observe)
    same = np.float32(1234.567) + np.spacing(np.float32(1234.567)) * (
        np.arange(5001) % 2
    )  # but for how it was rounded
    obs = np.stack([same, np.random.default_rng(0).normal(1234.567, 1.0, 5001)], axis=-1).astype(
        np.float32
    )
    zeros = jnp.zeros((1, 5000))
    for _ in range(3):
        memory = observe(
            memory,
            Trajectory(jnp.asarray(obs[None]), zeros, zeros, zeros + 1, zeros + 1, zeros, zeros),
        )
    shown = np.asarray(normaliser.obs(memory, jnp.asarray(obs)))
    assert np.abs(shown[:, 0]).max() < 0.1
    assert shown[:, 1].std() == pytest.approx(np.sqrt(2), abs=0.03)  # all that both entries have


def test_the_largest_discounted_return_above_one_is_one(float64):
    normaliser = normalise.running(Box(SHAPE), ENVS, GAMMA, True, True)
    memory, observe, returns = started(normaliser), jax.jit(normaliser.observe), []
    assert normaliser.reward(memory, 3.0) == 3.0  # before any was paid
    running = np.zeros(ENVS)
    for seed in range(6):  # episodes go on from one rollout to the next
        t = rollouts(seed)
        memory = observe(memory, t)
        for step in range(STEPS):
            running = GAMMA * running + np.asarray(t.reward[:, step])
            returns.append(np.abs(running).max())
            running = running * np.asarray(t.discount[:, step])
        assert max(returns) > 1
        np.testing.assert_allclose(normaliser.reward(memory, max(returns)), 1, rtol=1e-12)


def paid(*rewards: float) -> Trajectory:
    """One rollout of one environment that does not end."""
    reward = jnp.asarray([rewards])
    return Trajectory(
        jnp.zeros((1, len(rewards) + 1, 3)),
        reward,
        reward,
        reward * 0 + 1,
        reward * 0 + 1,
        reward,
        reward,
    )


def test_rewards_are_never_scaled_up(float64):
    """Costs that are all there is before a goal is found stay what they are, and so after a first small reward; beyond one they shrink."""
    normaliser = normalise.running(Box(SHAPE), 1, GAMMA, True, True)
    memory, observe = started(normaliser), jax.jit(normaliser.observe)
    unchanged = lambda memory: (
        [float(normaliser.reward(memory, jnp.asarray(each))) for each in (-0.01, 0.001, 1.0)]
        == [-0.01, 0.001, 1.0]
    )
    for t in (
        paid(0.0, 0.0),
        paid(-1e-6, 0.0),
        *[paid(-0.01, -0.01)] * 20,
        paid(0.001, -0.01),
        paid(0.0, 1.0),
    ):
        memory = observe(memory, t)
        assert unchanged(memory)
    for largest in (4.0, 4000.0):
        memory = observe(memory._replace(running=jnp.zeros(1)), paid(0.0, largest))
        np.testing.assert_allclose(
            normaliser.reward(memory, jnp.asarray([-0.01, largest])),
            [-0.01 / largest, 1],
            rtol=1e-12,
        )
    assert (
        normaliser.reward(observe(memory, paid(-0.01)), jnp.asarray(4000.0)) == 1
    )  # and what was paid once is not forgotten


def of_lengths(lengths: list[int], cut: set[int] = frozenset()) -> Trajectory:
    """One environment's episodes in one rollout: each terminates, or, those that are cut, goes on and is ended by a step that is none."""
    discount = [
        step
        for number, n in enumerate(lengths)
        for step in ([1.0] * n + [0.0] if number in cut else [1.0] * (n - 1) + [0.0])
    ]
    mask = [
        step
        for number, n in enumerate(lengths)
        for step in ([1.0] * n + [0.0] if number in cut else [1.0] * n)
    ]
    zeros = jnp.zeros((1, len(mask)))
    return Trajectory(
        jnp.zeros((1, len(mask) + 1, 3)),
        zeros,
        zeros,
        jnp.asarray([discount]),
        jnp.asarray([mask]),
        zeros,
        zeros,
    )


def test_what_an_episode_forgoes_is_the_discounted_steps_from_the_mean_to_the_longest(float64):
    """A cut is no end: its episode may be the longest, but counts for nothing in the mean, nor does one that goes on."""
    normaliser = normalise.running(Box(SHAPE), 1, GAMMA, True, True)
    memory, observe = started(normaliser), jax.jit(normaliser.observe)
    assert normaliser.forgone(memory) == 0
    memory = observe(memory, of_lengths([4, 9, 2], cut={0, 1, 2}))
    assert memory.longest == 9
    assert normaliser.forgone(memory) == 0  # none has terminated
    forgone = lambda longest, *lengths: (1 - GAMMA ** (longest - np.mean(lengths))) / (1 - GAMMA)
    memory = observe(memory, of_lengths([3, 5, 6, 1], cut={2}))
    np.testing.assert_allclose(normaliser.forgone(memory), forgone(9, 3, 5, 1), rtol=1e-12)
    memory = observe(memory, of_lengths([11])._replace(discount=jnp.ones((1, 11))))  # it goes on
    np.testing.assert_allclose(normaliser.forgone(memory), forgone(11, 3, 5, 1), rtol=1e-12)
    memory = observe(memory, of_lengths([2]))  # and ends
    np.testing.assert_allclose(normaliser.forgone(memory), forgone(13, 3, 5, 1, 13), rtol=1e-12)


@pytest.mark.parametrize("length", [7, 97, 333])
def test_where_all_episodes_terminate_at_one_length_nothing_is_forgone(length):
    """To the last bit, in single precision, for two million episodes: more than the statistics are means over."""
    normaliser = normalise.running(Discrete(5), 201, 0.995, True, True)
    discount = jnp.tile(jnp.arange(length) != length - 1, (201, 1000 // length + 1)).astype(
        jnp.float32
    )
    ones = jnp.ones_like(discount)
    t = Trajectory(
        jnp.zeros((201, discount.shape[1] + 1), jnp.int32), ones, ones, discount, ones, ones, ones
    )
    memory, each = jax.tree.map(jnp.asarray, normaliser.init()), 201 * (1000 // length + 1)

    @jax.jit
    def observed(memory):
        again = lambda memory, _: (normaliser.observe(memory, t), normaliser.forgone(memory))
        return jax.lax.scan(again, memory, length=-(-2_000_000 // each) // 8)

    for _ in range(8):
        memory, forgone = observed(memory)
        assert (np.asarray(forgone) == 0).all()
    assert memory.terminated == min(normalise.LONGEST, 8 * each * len(forgone))
    assert (memory.mean_length, normaliser.forgone(memory)) == (length, 0)


@pytest.mark.parametrize("space", [Discrete(5), Box((4, 4, 1), is_bytes=True), Box((4, 4, 2))])
def test_images_and_whole_numbers_have_no_moments(space):
    """Bytes become shares of 255, and stay bytes till then."""
    normaliser = normalise.running(space, 1, GAMMA, True, True)
    memory, is_bytes = (
        jax.tree.map(jnp.asarray, normaliser.init()),
        getattr(space, "is_bytes", False),
    )
    obs = jnp.full((6, *getattr(space, "shape", ())), 3, jnp.uint8 if is_bytes else jnp.int32)
    ones = jnp.ones((1, 5))
    memory = normaliser.observe(memory, Trajectory(obs[None], ones, ones, ones, ones, ones, ones))
    np.testing.assert_allclose(
        normaliser.obs(memory, obs), np.asarray(obs) / (255 if is_bytes else 1), rtol=1e-6
    )
    assert memory.mean.shape == ()


class Ball(NamedTuple):
    """A point that is pushed about: a state for the environment below."""

    place: jax.Array
    age: jax.Array


def pushed_about() -> Env:
    """Pays for being far to the right; ends by chance, and is cut after seven steps. Its world: the units of observations and rewards."""
    scale = jnp.array([1.0, 0.01])

    def step(env_params, ball, action, key):
        place = ball.place * 0.9 + (action - 0.5) + 0.1 * jax.random.normal(key, (2,))
        real, ends = ball.age < 7, place[1] > 0.8
        discount = jnp.where(real & ~ends, 1.0, 0.0)
        return Step(
            Ball(place, ball.age + 1),
            real * env_params[1] * place[0],
            discount,
            jnp.bool_(False),
            real * 1.0,
        )

    reset = lambda env_params, key: Ball(
        jax.random.normal(key, (2,)) * 0.1, jnp.zeros((), jnp.int32)
    )
    observe = lambda env_params, ball: env_params[0] * scale * (ball.place + 3)
    return Env("ball", Box((2,)), Discrete(2), lambda seed: (), reset, observe, step, envs=3)


ENV = pushed_about()
SETTINGS = config.ActorCritic(
    uncertainty=config.Rnd(outputs=4),
    rollout=5,
    network="mlp",
    hidden=(8,),
    estimator_hidden=(8,),
    gamma=0.9,
)


@jax.jit
def turn(learner, actor, env_params, key):
    """Act a rollout and learn from it."""
    agent = make_agent(SETTINGS, ENV, config.Normalise())
    act = lambda actor, dice: rollout(ENV, agent, env_params, learner, actor, dice)
    actor, newest, _ = of_envs(ENV.envs, act)(actor, draw_all_noise(SETTINGS, agent, ENV.envs, key))
    return learn(agent, replay.on_policy(), learner, (), newest, key)[0], actor, newest


def trained(obs_unit: float, reward_unit: float) -> tuple[Learner, Trajectory]:
    """A learner in double precision after some rollouts, and all of them."""
    env_params, agent = (
        jnp.array([obs_unit, reward_unit]),
        make_agent(SETTINGS, ENV, config.Normalise()),
    )
    learner = jax.tree.map(
        lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x,
        agent.init(np.random.default_rng(0)),
    )
    actor = jax.vmap(lambda key: init_actor(ENV, agent, env_params, learner, key))(
        env_keys(jax.random.key(0), ENV.envs)
    )
    acted = []
    for number in range(12):
        learner, actor, newest = turn(learner, actor, env_params, jax.random.key(number))
        acted.append(newest)
    return learner, jax.tree.map(lambda *x: np.concatenate(x), *jax.device_get(acted))


def test_a_thousandfold_reward_and_a_hundredfold_observation_are_the_same_to_the_learner(float64):
    """Where both pay more than 1: all that it learns, and all that it does from the first step on.

    And no optimiser moves what the lens keeps.
    """
    (learner, acted), (again, acted_again) = trained(1.0, 10.0), trained(100.0, 10_000.0)
    assert np.abs(acted.reward[: ENV.envs]).max() > 1  # from the first rollout on
    assert 0 < np.mean(acted.discount) < 1  # it did end
    assert 0 < np.mean(acted.mask) < 1  # and it was cut
    np.testing.assert_array_equal(acted.action, acted_again.action)
    np.testing.assert_allclose(acted_again.log_mu, acted.log_mu, rtol=1e-6)
    np.testing.assert_allclose(acted_again.reward, 1000 * acted.reward, rtol=1e-6)
    taught = lambda learner: (learner.params, learner.log_tau, learner.opt)
    for one, other in zip(
        jax.tree.leaves(taught(learner)), jax.tree.leaves(taught(again)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6 * np.abs(one).max(initial=0))
    np.testing.assert_allclose(
        again.memory.normaliser.mean, 100 * learner.memory.normaliser.mean, rtol=1e-9
    )
    np.testing.assert_allclose(
        again.memory.normaliser.largest, 1000 * learner.memory.normaliser.largest, rtol=1e-9
    )
    real = acted.obs[:, :-1][
        acted.mask > 0
    ]  # what a lens keeps is of what was seen, and nothing of an update is in it
    np.testing.assert_allclose(learner.memory.normaliser.mean, real.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(learner.memory.normaliser.variance, real.var(axis=0), rtol=1e-9)
