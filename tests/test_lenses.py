"""What the learner sees of the world: numpy over everything seen so far is the oracle, and no unit of measurement matters."""

from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac import config, feeds, lenses
from ersac.agents.make import make_agent
from ersac.envs.base import Box, Discrete, Env, Step
from ersac.loops.learn import learn
from ersac.loops.rollout import begin, env_keys, of_envs, rollout, throw_all
from ersac.types import Learner, Trajectory

SHAPE, ENVS, STEPS, GAMMA = (3,), 2, 4, 0.9


def rollouts(seed: int, mask=None) -> Trajectory:
    """Random ones of ENVS environments; a quarter of the steps end an episode."""
    rng = np.random.default_rng(seed)
    obs = rng.normal([5.0, -0.001, 2e4], [2.0, 1e-3, 3e3], (ENVS, STEPS + 1, 3))
    reward, discount = rng.normal(size=(ENVS, STEPS)), (rng.random((ENVS, STEPS)) > 0.25) * 1.0
    mask = (rng.random((ENVS, STEPS)) > 0.3) * 1.0 if mask is None else np.full((ENVS, STEPS), mask)
    zeros = np.zeros((ENVS, STEPS))
    return jax.tree.map(jnp.asarray, Trajectory(obs, zeros, reward, discount, mask, zeros, zeros[..., None]))


def started(lens: lenses.Lens):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), lens.wrap(()))


def test_moments_are_those_of_everything_real_that_was_seen(float64):
    """A masked step counts for nothing, and rollouts of nothing else leave all as it is: the first of all, and any later."""
    lens = lenses.relative(Box(SHAPE), ENVS, GAMMA, True, True)
    observe = jax.jit(lens.observe)
    memory, seen = observe(started(lens), rollouts(99, mask=0.0)), []
    np.testing.assert_array_equal(lens.obs(memory, jnp.ones((2, *SHAPE))), np.zeros((2, *SHAPE)))  # nothing is known of any unit yet
    for seed in range(6):
        t = rollouts(seed, mask=0.0 if seed == 3 else None)
        memory = observe(memory, t)
        seen.append(np.asarray(t.obs)[:, :-1][np.asarray(t.mask) > 0])
        so_far = np.concatenate(seen)
        np.testing.assert_allclose(memory.mean, so_far.mean(axis=0), rtol=1e-10)
        np.testing.assert_allclose(memory.variance, so_far.var(axis=0), rtol=1e-8)
        assert memory.steps == len(so_far)
    shown = lens.obs(memory, jnp.asarray(so_far))
    np.testing.assert_allclose(shown, (so_far - so_far.mean(axis=0)) / so_far.std(axis=0), atol=1e-6)
    assert np.abs(lens.obs(memory, 1e9 * jnp.ones((1, *SHAPE)))).max() == lenses.FURTHEST


def test_what_never_varies_tells_nothing_though_sums_are_rounded():
    lens = lenses.relative(Box((2,)), 1, GAMMA, True, False)
    memory, observe = jax.tree.map(jnp.asarray, lens.wrap(())), jax.jit(lens.observe)
    obs = np.stack([np.full(5001, 1234.567), np.random.default_rng(0).normal(1234.567, 1.0, 5001)], axis=-1).astype(np.float32)
    zeros = jnp.zeros((1, 5000))
    for _ in range(3):
        memory = observe(memory, Trajectory(jnp.asarray(obs[None]), zeros, zeros, zeros + 1, zeros + 1, zeros, zeros))
    shown = np.asarray(lens.obs(memory, jnp.asarray(obs)))
    assert np.abs(shown[:, 0]).max() < 0.1
    assert shown[:, 1].std() == pytest.approx(1, abs=0.02)


def test_the_largest_discounted_return_is_one(float64):
    lens = lenses.relative(Box(SHAPE), ENVS, GAMMA, True, True)
    memory, observe, returns = started(lens), jax.jit(lens.observe), []
    assert lens.reward(memory, 3.0) == 3.0  # before any was paid
    running = np.zeros(ENVS)
    for seed in range(6):  # episodes go on from one rollout to the next
        t = rollouts(seed)
        memory = observe(memory, t)
        for step in range(STEPS):
            running = GAMMA * running + np.asarray(t.reward[:, step])
            returns.append(np.abs(running).max())
            running = running * np.asarray(t.discount[:, step])
        np.testing.assert_allclose(lens.reward(memory, max(returns)), 1, rtol=1e-12)


@pytest.mark.parametrize("space", [Discrete(5), Box((4, 4, 1), is_bytes=True), Box((4, 4, 2))])
def test_images_and_whole_numbers_have_no_moments(space):
    """Bytes become shares of 255, and stay bytes till then."""
    lens = lenses.relative(space, 1, GAMMA, True, True)
    memory, is_bytes = jax.tree.map(jnp.asarray, lens.wrap(())), getattr(space, "is_bytes", False)
    obs = jnp.full((6, *getattr(space, "shape", ())), 3, jnp.uint8 if is_bytes else jnp.int32)
    ones = jnp.ones((1, 5))
    memory = lens.observe(memory, Trajectory(obs[None], ones, ones, ones, ones, ones, ones))
    np.testing.assert_allclose(lens.obs(memory, obs), np.asarray(obs) / (255 if is_bytes else 1), rtol=1e-6)
    assert memory.mean.shape == ()


class Ball(NamedTuple):
    """A point that is pushed about: a state for the environment below."""

    place: jax.Array
    age: jax.Array


def pushed_about() -> Env:
    """Pays for being far to the right; ends by chance, and is cut after seven steps. Its world: the units of observations and rewards."""
    scale = jnp.array([1.0, 0.01])

    def step(world, ball, action, key):
        place = ball.place * 0.9 + (action - 0.5) + 0.1 * jax.random.normal(key, (2,))
        real, ends = ball.age < 7, place[1] > 0.8
        discount = jnp.where(real & ~ends, 1.0, 0.0)
        return Step(Ball(place, ball.age + 1), real * world[1] * place[0], discount, jnp.bool_(False), real * 1.0)

    reset = lambda world, key: Ball(jax.random.normal(key, (2,)) * 0.1, jnp.zeros((), jnp.int32))
    observe = lambda world, ball: world[0] * scale * (ball.place + 3)
    return Env("ball", Box((2,)), Discrete(2), lambda seed: (), reset, observe, step, envs=3)


ENV = pushed_about()
SETTINGS = config.ActorCritic(uncertainty=config.Rnd(outputs=4), rollout=5, hidden=(8,), learning_rate=1e-2, gamma=0.9)


@jax.jit
def turn(learner, actor, world, key):
    """Act a rollout and learn from it."""
    agent = make_agent(SETTINGS, ENV, config.Seen())
    act = lambda actor, dice: rollout(ENV, agent, world, learner, actor, dice)
    actor, newest, _ = of_envs(ENV.envs, act)(actor, throw_all(SETTINGS, agent, ENV.envs, key))
    return learn(agent, feeds.fresh(), learner, (), newest, key)[0], actor, newest


def trained(obs_unit: float, reward_unit: float) -> tuple[Learner, Trajectory]:
    """A learner in double precision after some rollouts, and all of them."""
    world, agent = jnp.array([obs_unit, reward_unit]), make_agent(SETTINGS, ENV, config.Seen())
    learner = jax.tree.map(lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x, agent.init(np.random.default_rng(0)))
    actor = jax.vmap(lambda key: begin(ENV, agent, world, learner, key))(env_keys(jax.random.key(0), ENV.envs))
    acted = []
    for number in range(12):
        learner, actor, newest = turn(learner, actor, world, jax.random.key(number))
        acted.append(newest)
    return learner, jax.tree.map(lambda *x: np.concatenate(x), *jax.device_get(acted))


def test_a_thousandfold_reward_and_a_hundredfold_observation_are_the_same_to_the_learner(float64):
    """All that it learns, and all that it does from the first step on; and no optimiser moves what the lens keeps."""
    (learner, acted), (again, acted_again) = trained(1.0, 1.0), trained(100.0, 1000.0)
    assert 0 < np.mean(acted.discount) < 1  # it did end
    assert 0 < np.mean(acted.mask) < 1  # and it was cut
    np.testing.assert_array_equal(acted.action, acted_again.action)
    np.testing.assert_allclose(acted_again.log_mu, acted.log_mu, rtol=1e-6)
    np.testing.assert_allclose(acted_again.reward, 1000 * acted.reward, rtol=1e-6)
    taught = lambda learner: (learner.params, learner.log_tau, learner.opt)
    for one, other in zip(jax.tree.leaves(taught(learner)), jax.tree.leaves(taught(again)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6 * np.abs(one).max(initial=0))
    np.testing.assert_allclose(again.memory.mean, 100 * learner.memory.mean, rtol=1e-9)
    np.testing.assert_allclose(again.memory.largest, 1000 * learner.memory.largest, rtol=1e-9)
    real = acted.obs[:, :-1][acted.mask > 0]  # what a lens keeps is of what was seen, and nothing of an update is in it
    np.testing.assert_allclose(learner.memory.mean, real.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(learner.memory.variance, real.var(axis=0), rtol=1e-9)
