"""Running statistics equal those of numpy, and no unit of measurement matters."""

from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac import config
from ersac.agents.build import make_agent
from ersac.algorithm import normalise, replay
from ersac.envs.base import Box, Discrete, Env, Step, spec_of
from ersac.loops.learn import learn
from ersac.loops.rollout import draw_all_noise, env_keys, init_actor, rollout, vmap_envs
from ersac.types import Learner, Trajectory

SHAPE, ENVS, STEPS, GAMMA = (3,), 2, 4, 0.9


def rollouts(seed: int, mask=None) -> Trajectory:
    """Return random rollouts of ENVS environments; a quarter of the steps end an episode."""
    rng = np.random.default_rng(seed)
    obs = rng.normal([5.0, -0.001, 2e4], [2.0, 1e-3, 3e3], (ENVS, STEPS + 1, 3))
    reward, discount = rng.normal(size=(ENVS, STEPS)), (rng.random((ENVS, STEPS)) > 0.25) * 1.0
    mask = (rng.random((ENVS, STEPS)) > 0.3) * 1.0 if mask is None else np.full((ENVS, STEPS), mask)
    zeros = np.zeros((ENVS, STEPS))
    return jax.tree.map(
        jnp.asarray, Trajectory(obs, zeros, reward, discount, mask, zeros, zeros[..., None])
    )


def initial_stats(normaliser: normalise.Normaliser):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), normaliser.init())


def test_moments_are_those_of_all_real_steps(float64):
    """Masked steps do not count, and rollouts of masked steps only change nothing."""
    normaliser = normalise.running(Box(SHAPE), ENVS, GAMMA, True, True)
    observe = jax.jit(normaliser.observe)
    memory, batches = observe(initial_stats(normaliser), rollouts(99, mask=0.0)), []
    ones = np.ones((2, *SHAPE))
    np.testing.assert_array_equal(normaliser.obs(memory, jnp.asarray(ones)), ones)  # no data yet
    for seed in range(6):
        t = rollouts(seed, mask=0.0 if seed == 3 else None)
        memory = observe(memory, t)
        batches.append(np.asarray(t.obs)[:, :-1][np.asarray(t.mask) > 0])
        so_far = np.concatenate(batches)
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
        scale * normalise.CLIP,
        rtol=1e-6,
    )


def fit(obs: np.ndarray) -> tuple[normalise.Normaliser, normalise.RunningStats]:
    """Return a normaliser and its statistics of observations [steps, n], given in three parts."""
    normaliser = normalise.running(Box(obs.shape[1:]), 1, GAMMA, True, True)
    memory, observe = (
        jax.tree.map(lambda x: jnp.asarray(x, obs.dtype), normaliser.init()),
        jax.jit(normaliser.observe),
    )
    for part in np.split(obs, 3):
        zeros = jnp.zeros((1, len(part)), obs.dtype)
        with_last = np.append(part, part[-1:], axis=0)  # the last one is not counted
        memory = observe(
            memory,
            Trajectory(
                jnp.asarray(with_last[None]), zeros, zeros, zeros + 1, zeros + 1, zeros, zeros
            ),
        )
    return normaliser, memory


def test_the_mean_square_over_all_entries_is_one(float64):
    """With a wide, a narrow, a rare and a constant entry the common factor is exact."""
    rng = np.random.default_rng(1)
    wide, narrow, rare = (
        rng.uniform(-300, 500, 3000),
        rng.uniform(0, 1e-3, 3000),
        (np.arange(3000) == 1234) * 1.0,
    )
    obs = np.stack([wide, narrow, rare, np.full(3000, 7.0)], axis=-1)
    normaliser, memory = fit(obs)
    normalised = np.asarray(normaliser.obs(memory, jnp.asarray(obs)))
    np.testing.assert_allclose(np.square(normalised).mean(), 1, rtol=1e-9)
    np.testing.assert_allclose(normalised.mean(axis=0), 0, atol=1e-9)


@pytest.mark.parametrize("constant", [0.0, 7.0, -1234.567])
def test_the_first_change_of_a_constant_entry_is_visible(constant):
    """Before statistics contain the change, it is about as large as the same change of others."""
    rng = np.random.default_rng(2)
    obs = np.stack(
        [rng.uniform(-3, 3, 3000), rng.uniform(97, 103, 3000), np.full(3000, constant)], axis=-1
    ).astype(np.float32)
    normaliser, memory = fit(obs)
    at_rest, moved = (
        np.asarray(
            normaliser.obs(memory, jnp.asarray([0.0 + by, 100.0 + by, constant + by], jnp.float32))
        )
        for by in (0, 2)
    )
    np.testing.assert_allclose(at_rest, 0, atol=0.1)
    np.testing.assert_allclose((moved - at_rest)[2], (moved - at_rest)[:2].mean(), rtol=0.05)
    assert moved[2] > 1


def test_an_entry_that_is_rarely_one_is_not_blown_up():
    """It is 100 standard deviations but only 2 half ranges; the other entry is uniform."""
    code = (np.arange(30_000) % 10_000 == 5_000) * 1.0
    obs = np.stack([np.random.default_rng(3).uniform(-1, 1, 30_000), code], axis=-1).astype(
        np.float32
    )
    normaliser, memory = fit(obs)
    normalised = np.asarray(normaliser.obs(memory, jnp.asarray(obs)))
    assert normalised[:, 0].std() == pytest.approx(np.sqrt(2), abs=0.01)
    assert normalised[code == 1, 1] == pytest.approx(2 * np.sqrt(6), abs=0.01)
    assert normalised[:, 0].max() == pytest.approx(np.sqrt(6), abs=0.02)  # half its range


def test_rounding_errors_of_a_constant_entry_are_not_blown_up():
    normaliser = normalise.running(Box((2,)), 1, GAMMA, True, False)
    memory, observe = jax.tree.map(jnp.asarray, normaliser.init()), jax.jit(normaliser.observe)
    rounding = np.spacing(np.float32(1234.567)) * (np.arange(5001) % 2)
    same = np.float32(1234.567) + rounding
    obs = np.stack([same, np.random.default_rng(0).normal(1234.567, 1.0, 5001)], axis=-1).astype(
        np.float32
    )
    zeros = jnp.zeros((1, 5000))
    for _ in range(3):
        memory = observe(
            memory,
            Trajectory(jnp.asarray(obs[None]), zeros, zeros, zeros + 1, zeros + 1, zeros, zeros),
        )
    normalised = np.asarray(normaliser.obs(memory, jnp.asarray(obs)))
    assert np.abs(normalised[:, 0]).max() < 0.1
    assert normalised[:, 1].std() == pytest.approx(
        np.sqrt(2), abs=0.03
    )  # the mean square of both is 1


def test_the_largest_discounted_return_is_scaled_to_one(float64):
    normaliser = normalise.running(Box(SHAPE), ENVS, GAMMA, True, True)
    memory, observe, returns = initial_stats(normaliser), jax.jit(normaliser.observe), []
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


def pay(*rewards: float) -> Trajectory:
    """Return a rollout of one environment without an episode end."""
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
    """Small costs and rewards are unchanged; returns above 1 are divided."""
    normaliser = normalise.running(Box(SHAPE), 1, GAMMA, True, True)
    memory, observe = initial_stats(normaliser), jax.jit(normaliser.observe)
    unchanged = lambda memory: (
        [float(normaliser.reward(memory, jnp.asarray(r))) for r in (-0.01, 0.001, 1.0)]
        == [-0.01, 0.001, 1.0]
    )
    for t in (
        pay(0.0, 0.0),
        pay(-1e-6, 0.0),
        *[pay(-0.01, -0.01)] * 20,
        pay(0.001, -0.01),
        pay(0.0, 1.0),
    ):
        memory = observe(memory, t)
        assert unchanged(memory)
    for largest in (4.0, 4000.0):
        memory = observe(memory._replace(episode_return=jnp.zeros(1)), pay(0.0, largest))
        np.testing.assert_allclose(
            normaliser.reward(memory, jnp.asarray([-0.01, largest])),
            [-0.01 / largest, 1],
            rtol=1e-12,
        )
    # The largest return is never forgotten.
    assert normaliser.reward(observe(memory, pay(-0.01)), jnp.asarray(4000.0)) == 1


def of_lengths(lengths: list[int], cut: set[int] = frozenset()) -> Trajectory:
    """Return one rollout of episodes of these lengths; those in `cut` are truncated."""
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


def test_lost_steps_are_the_discounted_steps_from_the_mean_to_the_longest(float64):
    """Truncated and unfinished episodes may be the longest, but do not count in the mean."""
    normaliser = normalise.running(Box(SHAPE), 1, GAMMA, True, True)
    memory, observe = initial_stats(normaliser), jax.jit(normaliser.observe)
    assert normaliser.lost_steps(memory) == 0
    memory = observe(memory, of_lengths([4, 9, 2], cut={0, 1, 2}))
    assert memory.max_length == 9
    assert normaliser.lost_steps(memory) == 0  # none has terminated
    lost_steps = lambda longest, *lengths: (1 - GAMMA ** (longest - np.mean(lengths))) / (1 - GAMMA)
    memory = observe(memory, of_lengths([3, 5, 6, 1], cut={2}))
    np.testing.assert_allclose(normaliser.lost_steps(memory), lost_steps(9, 3, 5, 1), rtol=1e-12)
    memory = observe(memory, of_lengths([11])._replace(discount=jnp.ones((1, 11))))  # it goes on
    np.testing.assert_allclose(normaliser.lost_steps(memory), lost_steps(11, 3, 5, 1), rtol=1e-12)
    memory = observe(memory, of_lengths([2]))  # and ends
    np.testing.assert_allclose(
        normaliser.lost_steps(memory), lost_steps(13, 3, 5, 1, 13), rtol=1e-12
    )


@pytest.mark.parametrize("length", [7, 97, 333])
def test_no_steps_are_lost_if_all_episodes_have_one_length(length):
    """Exactly, in single precision, for two million episodes: more than MAX_COUNT."""
    normaliser = normalise.running(Discrete(5), 201, 0.995, True, True)
    discount = jnp.tile(jnp.arange(length) != length - 1, (201, 1000 // length + 1)).astype(
        jnp.float32
    )
    ones = jnp.ones_like(discount)
    t = Trajectory(
        jnp.zeros((201, discount.shape[1] + 1), jnp.int32), ones, ones, discount, ones, ones, ones
    )
    memory, episodes = jax.tree.map(jnp.asarray, normaliser.init()), 201 * (1000 // length + 1)

    @jax.jit
    def repeat(memory):
        again = lambda memory, _: (normaliser.observe(memory, t), normaliser.lost_steps(memory))
        return jax.lax.scan(again, memory, length=-(-2_000_000 // episodes) // 8)

    for _ in range(8):
        memory, lost_steps = repeat(memory)
        assert (np.asarray(lost_steps) == 0).all()
    assert memory.terminated == min(normalise.MAX_COUNT, 8 * episodes * len(lost_steps))
    assert (memory.mean_length, normaliser.lost_steps(memory)) == (length, 0)


@pytest.mark.parametrize("space", [Discrete(5), Box((4, 4, 1), is_bytes=True), Box((4, 4, 2))])
def test_images_and_integers_have_no_moments(space):
    """Bytes are divided by 255."""
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
    """The state of the environment below: a point that is pushed about."""

    position: jax.Array
    age: jax.Array


def pushed_about() -> Env:
    """Return an environment that terminates at random and is truncated after seven steps.

    The reward grows to the right. `env_params` are the units of observations and rewards.
    """
    scale = jnp.array([1.0, 0.01])

    def step(env_params, ball, action, key):
        position = ball.position * 0.9 + (action - 0.5) + 0.1 * jax.random.normal(key, (2,))
        real, ends = ball.age < 7, position[1] > 0.8
        discount = jnp.where(real & ~ends, 1.0, 0.0)
        return Step(
            Ball(position, ball.age + 1),
            real * env_params[1] * position[0],
            discount,
            jnp.bool_(False),
            real * 1.0,
        )

    reset = lambda env_params, key: Ball(
        jax.random.normal(key, (2,)) * 0.1, jnp.zeros((), jnp.int32)
    )
    observe = lambda env_params, ball: env_params[0] * scale * (ball.position + 3)
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
    agent = make_agent(SETTINGS, spec_of(ENV), config.Normalise())
    act = lambda actor, noise: rollout(ENV, agent, env_params, learner, actor, noise)
    actor, newest, _ = vmap_envs(ENV.envs, act)(
        actor, draw_all_noise(SETTINGS, agent, ENV.envs, key)
    )
    return learn(agent, replay.on_policy(), learner, (), newest, key)[0], actor, newest


def trained(obs_unit: float, reward_unit: float) -> tuple[Learner, Trajectory]:
    """Return a learner in double precision after some rollouts, and all of the rollouts."""
    env_params, agent = (
        jnp.array([obs_unit, reward_unit]),
        make_agent(SETTINGS, spec_of(ENV), config.Normalise()),
    )
    learner = jax.tree.map(
        lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x,
        agent.init(np.random.default_rng(0)),
    )
    actor = jax.vmap(lambda key: init_actor(ENV, agent, env_params, learner, key))(
        env_keys(jax.random.key(0), ENV.envs)
    )
    data = []
    for number in range(12):
        learner, actor, newest = turn(learner, actor, env_params, jax.random.key(number))
        data.append(newest)
    return learner, jax.tree.map(lambda *x: np.concatenate(x), *jax.device_get(data))


def test_units_of_rewards_and_observations_do_not_matter(float64):
    """If returns are above 1 in both: all parameters and actions are the same.

    And no optimiser changes the statistics.
    """
    (learner, data), (other, other_data) = trained(1.0, 10.0), trained(100.0, 10_000.0)
    assert np.abs(data.reward[: ENV.envs]).max() > 1  # from the first rollout on
    assert 0 < np.mean(data.discount) < 1  # it did end
    assert 0 < np.mean(data.mask) < 1  # and it was cut
    np.testing.assert_array_equal(data.action, other_data.action)
    np.testing.assert_allclose(other_data.log_mu, data.log_mu, rtol=1e-6)
    np.testing.assert_allclose(other_data.reward, 1000 * data.reward, rtol=1e-6)
    trained_arrays = lambda learner: (learner.params, learner.log_tau, learner.opt)
    for ours, theirs in zip(
        jax.tree.leaves(trained_arrays(learner)),
        jax.tree.leaves(trained_arrays(other)),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6 * np.abs(ours).max(initial=0))
    np.testing.assert_allclose(
        other.memory.normaliser.mean, 100 * learner.memory.normaliser.mean, rtol=1e-9
    )
    np.testing.assert_allclose(
        other.memory.normaliser.largest_return,
        1000 * learner.memory.normaliser.largest_return,
        rtol=1e-9,
    )
    real = data.obs[:, :-1][data.mask > 0]  # updates have not changed the statistics
    np.testing.assert_allclose(learner.memory.normaliser.mean, real.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(learner.memory.normaliser.variance, real.var(axis=0), rtol=1e-9)


def test_clipped_rewards_are_scaled_by_the_largest_clipped_return():
    """The raw reward of 30 counts as 1, in what is learned from and in the return."""
    normaliser = normalise.running(Discrete(3), 1, 0.5, False, True, clip_rewards=True)
    t = Trajectory(*[None] * 7)._replace(
        obs=jnp.zeros((1, 4), int),
        reward=jnp.array([[30.0, 30.0, -4.0]]),
        discount=jnp.ones((1, 3)),
        mask=jnp.ones((1, 3)),
    )
    stats = normaliser.observe(normaliser.init(), t)
    assert stats.largest_return == 1.5  # 1, then 1 + 1/2, then -1 + 3/4
    rewards = normaliser.reward(stats, jnp.array([30.0, 0.5, -4.0]))
    np.testing.assert_allclose(rewards, np.array([1.0, 0.5, -1.0]) / 1.5, rtol=1e-6)
