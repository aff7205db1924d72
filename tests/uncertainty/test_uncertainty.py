"""Properties of every estimator: a variance, no gradient, a prior that is not trained."""

from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac import config
from ersac.agents import actor_critic as ac
from ersac.agents.build import make_optimisers, make_parts
from ersac.algorithm import replay
from ersac.envs.base import spec_of
from ersac.envs.deep_sea import deep_sea
from ersac.loops.learn import learn
from ersac.nets.tables import Store
from ersac.types import Params, Trajectory

ENV = deep_sea(6)
STEPS = 8


class Setup(NamedTuple):
    parts: ac.Parts
    store: Store


def agent(uncertainty, **changes):
    settings = config.replace_at(
        config.ActorCritic(rollout=STEPS, hidden=(8, 8)), ("uncertainty",), uncertainty
    )
    settings = config.check(config.override(settings, **changes))
    parts = make_parts(settings, spec_of(ENV))
    optimisers = make_optimisers(settings, parts, 0.0)
    agent = ac.actor_critic(settings, parts, optimisers, 0.1)
    taught = lambda learner, t: learn(
        agent,
        replay.on_policy(),
        learner,
        (),
        jax.tree.map(lambda x: x[None], t),
        jax.random.key(0),
    )[0]
    return Setup(parts, optimisers.rows), agent.init(np.random.default_rng(0)), jax.jit(taught)


def trajectory(obs, action, reward=0.25, members=10) -> Trajectory:
    steps = len(action)
    full = lambda value: jnp.full(steps, value)
    noise = jnp.zeros((steps, members))
    return Trajectory(
        jnp.asarray(obs),
        jnp.asarray(action),
        full(reward),
        full(1.0),
        full(1.0),
        full(np.log(0.5)),
        noise,
    )


def sigma2(setup, learner, obs, action):
    parts, obs, action = setup.parts, jnp.asarray(obs), jnp.asarray(action)
    looked_up = setup.store.look_up(learner.params.rows, obs)
    features = parts.torso.apply(learner.params.dense["torso"], looked_up["torso"], obs)
    heads = Params(learner.params.dense["uncertainty"], looked_up["uncertainty"])
    return np.asarray(
        parts.uncertainty.sigma2(heads, learner.memory.uncertainty, obs, features, action)
    )


def test_at_the_start_sigma2_is_the_priors_variance():
    setup, learner, _ = agent(config.Ensemble(members=200, prior_scale=0.3))
    everywhere = sigma2(setup, learner, jnp.repeat(jnp.arange(36), 2), jnp.tile(jnp.arange(2), 36))
    assert everywhere.mean() == pytest.approx(0.3**2, rel=4.5 * np.sqrt(2 / (72 * 199)))


def test_each_visit_shrinks_sigma_by_the_rate_and_other_pairs_keep_theirs():
    rate = 0.1
    setup, learner, update = agent(config.Ensemble(reward_rate=rate), learning_rate=0.0)
    obs, action = np.arange(STEPS + 1), np.zeros(STEPS, int)
    before, other = (
        sigma2(setup, learner, obs[:-1], action),
        sigma2(setup, learner, obs[:-1], 1 - action),
    )
    for visits in range(1, 6):
        learner = update(learner, trajectory(obs, action))
        np.testing.assert_allclose(
            sigma2(setup, learner, obs[:-1], action), before * (1 - rate) ** (2 * visits), rtol=1e-4
        )
    np.testing.assert_allclose(sigma2(setup, learner, obs[:-1], 1 - action), other, rtol=1e-5)


def test_members_come_to_agree_though_their_trained_parts_never_do():
    setup, learner, update = agent(config.Ensemble(reward_rate=0.3))
    obs, action = np.arange(STEPS + 1), np.zeros(STEPS, int)
    before = sigma2(setup, learner, obs[:-1], action)
    for _ in range(200):
        learner = update(learner, trajectory(obs, action))
    assert np.all(sigma2(setup, learner, obs[:-1], action) < 1e-3 * before)
    trained = setup.store.unpack(learner.params.rows)["uncertainty"]["row"][: STEPS - 1].reshape(
        -1, 10, 2
    )[..., 0]
    assert np.all(np.var(trained, axis=-1) > 0.1 * before[:-1])


def test_the_prior_is_not_trained():
    _, learner, update = agent(config.Ensemble())
    after = update(learner, trajectory(np.arange(STEPS + 1), np.zeros(STEPS, int)))
    prior = learner.memory.uncertainty.prior
    np.testing.assert_array_equal(prior, after.memory.uncertainty.prior)
    assert not any(
        leaf.shape == prior.shape and np.array_equal(leaf, prior)
        for leaf in jax.tree.leaves((learner.params, learner.opt))
    )


def test_stored_noise_is_in_the_targets():
    """With the shrinkage of one visit: p^2 / (p^2 + rho)."""
    setup, learner, update = agent(
        config.Ensemble(reward_rate=1.0, prior_scale=0.3, noise_variance=0.1), learning_rate=0.0
    )
    noise, share = np.random.default_rng(0).normal(size=(STEPS, 10)), 0.09 / (0.09 + 0.1)
    t = trajectory(np.arange(STEPS + 1), np.zeros(STEPS, int))._replace(
        noise=jnp.asarray(noise, jnp.float32)
    )
    prior = np.asarray(learner.memory.uncertainty.prior)[:STEPS].reshape(STEPS, 10, 2)[..., 0]
    wanted = np.var((1 - share) * prior + share * noise, axis=-1)
    np.testing.assert_allclose(
        sigma2(setup, update(learner, t), np.arange(STEPS), np.zeros(STEPS, int)), wanted, rtol=1e-4
    )


@pytest.mark.parametrize("uncertainty", [config.Ensemble(), config.Posterior(), config.Counts()])
def test_sigma2_has_no_gradient(uncertainty):
    setup, learner, _ = agent(uncertainty)
    obs, action = jnp.arange(STEPS), jnp.zeros(STEPS, jnp.int32)

    def total(params):
        looked_up = setup.store.look_up(params.rows, obs)
        features = setup.parts.torso.apply(params.dense["torso"], looked_up["torso"], obs)
        heads = Params(params.dense["uncertainty"], looked_up["uncertainty"])
        return setup.parts.uncertainty.sigma2(
            heads, learner.memory.uncertainty, obs, features, action
        ).sum()

    assert all(not leaf.any() for leaf in jax.tree.leaves(jax.grad(total)(learner.params)))


def test_counts_ignore_masked_steps():
    setup, learner, update = agent(config.Counts(sigma_scale=0.5))
    obs, action = np.array([3, 3, 3, 3, 1, 2, 2, 2, 0]), np.array([0, 0, 0, 1, 0, 1, 1, 1])
    t = trajectory(obs, action, members=0)
    learner = update(learner, t._replace(mask=t.mask.at[0].set(0.0)))
    np.testing.assert_array_equal(
        np.asarray(learner.memory.uncertainty)[[3, 3, 1, 2]][[0, 1, 2, 3], [0, 1, 0, 1]],
        [2, 1, 1, 3],
    )
    np.testing.assert_allclose(
        sigma2(setup, learner, [3, 3, 2, 0], [0, 1, 1, 0]), 0.25 / np.array([2, 1, 3, 1])
    )
