"""Rates per visit where a batch has an observation many times, and how networks learn at them."""

import dataclasses

import jax
import numpy as np
import optax
import pytest
from jax import numpy as jnp

from ersac import config
from ersac.agents.build import (
    batch_size,
    make_agent,
    make_parts,
    per_visit_descent,
    repeats,
    visit_damping,
)
from ersac.algorithm import normalise
from ersac.config.presets import PRESETS
from ersac.envs.base import Box, Discrete, Spec
from ersac.types import Trajectory

STATES, RATE = 25, 0.2


def drawn(seed: int, shape: tuple[int, ...] = (3, 20)) -> np.ndarray:
    """Integer observations of a batch, with repeats."""
    return np.random.default_rng(seed).geometric(0.15, shape) % STATES


def normalised_one_hot(obs: np.ndarray) -> jax.Array:
    """The same as normalised one-hot vectors, after every state was visited equally often."""
    normaliser = normalise.running(Box((STATES,)), 1, 0.99, normalise=True, scale_rewards=False)
    every, ones = jnp.eye(STATES), jnp.ones((1, STATES))
    met = Trajectory(jnp.concatenate([every, every[:1]])[None], ones, ones, ones, ones, ones, ones)
    return normaliser.obs(
        normaliser.observe(jax.tree.map(jnp.asarray, normaliser.init()), met),
        jnp.eye(STATES)[obs],
    )


@pytest.mark.parametrize("seed", range(3))
def test_repeats_of_integers_are_counts_over_the_whole_batch(seed):
    obs = drawn(seed)
    np.testing.assert_array_equal(repeats(jnp.asarray(obs)), np.bincount(obs.ravel())[obs])


@pytest.mark.parametrize("seed", range(3))
def test_repeats_of_one_hot_vectors_are_those_of_integers(seed):
    obs = drawn(seed)
    np.testing.assert_allclose(
        repeats(normalised_one_hot(obs)), repeats(jnp.asarray(obs)), rtol=1e-3
    )


def test_repeats_of_vectors_are_squared_cosines_and_opposites_do_not_count(float64):
    obs = jnp.asarray(
        [[[1e9, 0.0], [-1e9, 0.0], [1e9, 1e9]]]
    )  # so large that the constant of `on_sphere` is negligible
    np.testing.assert_allclose(repeats(obs), [[1.5, 1.0, 1.5]], rtol=1e-6)


@pytest.mark.parametrize("rate", [0.01, 0.3, 1.0])
def test_many_visits_together_correct_less_than_all(float64, rate):
    """m r / (1 + (m - 1) r), as in `tables.per_visit`; a single visit is not damped."""
    m = jnp.arange(1.0, 50.0)
    together = m * rate * visit_damping(m, rate)
    np.testing.assert_allclose(together, m * rate / (1 + (m - 1) * rate), rtol=1e-12)
    assert visit_damping(jnp.ones(()), rate) == 1
    assert np.all(together <= 1 + 1e-12)
    np.testing.assert_array_equal(
        visit_damping(m, 7.0), visit_damping(m, 1.0)
    )  # rates above 1 are those of logits


@pytest.mark.parametrize("space", [Discrete(STATES), Box((STATES,))], ids=["integers", "vectors"])
def test_the_critics_initial_scale_is_that_of_its_weights_and_of_no_others(space):
    def weights(scale: int) -> dict[str, list[np.ndarray]]:
        settings = dataclasses.replace(PRESETS["ersac"], critic_init_scale=scale)
        parts = make_parts(settings, Spec("places", space, Discrete(2), 1))
        heads = {"policy": parts.policy, "value": parts.value}
        return {
            name: jax.tree.leaves(head.init(np.random.default_rng(0)))
            for name, head in heads.items()
        }

    one, many = weights(1), weights(9)
    for name, factor in (("policy", 1.0), ("value", 9.0)):
        for small, large in zip(one[name], many[name], strict=True):
            np.testing.assert_allclose(large, factor * small, rtol=1e-5)


@pytest.mark.parametrize("observed", ["integers", "vectors"])
@pytest.mark.parametrize("minibatch", [None, 2])
@pytest.mark.parametrize(
    "uncertainty",
    [
        config.Ensemble(members=20, reward_rate=RATE, prior_scale=0.3),
        config.Rnd(predictor_rate=RATE),
    ],
    ids=["ensemble", "rnd"],
)
def test_an_update_of_a_network_corrects_the_share_of_its_visits(observed, minibatch, uncertainty):
    """Of an estimator without rewards, after one batch: sigma2 falls by the square of the share."""
    rate, rollouts = RATE, minibatch or 4
    space = Discrete(STATES) if observed == "integers" else Box((STATES,))
    settings = dataclasses.replace(
        PRESETS["ersac"],
        uncertainty=uncertainty,
        buffer=config.OnPolicy(minibatch=minibatch),
        estimator_hidden=(4096,),
        upper_percent=1,  # layers that states share
        credit_early_ends=False,
        rollout=4,
    )
    agent = make_agent(settings, Spec("places", space, Discrete(2), 4))
    states = np.arange(rollouts * 5).reshape(rollouts, 5) % 20 + 5
    states[0, :4], states[1, :2] = (
        [0, 0, 0, 1],
        [0, 1],
    )  # four times the first, twice the second, once the others
    obs = (
        (lambda x: jnp.asarray(x))
        if observed == "integers"
        else (lambda x: STATES**0.5 * jnp.eye(STATES)[x])
    )
    zeros, ones = jnp.zeros((rollouts, 4)), jnp.ones((rollouts, 4))
    action = jnp.zeros((rollouts, 4), jnp.int32)
    t = Trajectory(
        obs(states), action, zeros, ones, ones, jnp.log(0.5 * ones), jnp.zeros((rollouts, 4, 20))
    )
    learner = agent.init(np.random.default_rng(0))
    after, _, _ = jax.jit(agent.update)(learner, t)
    places, first = jnp.asarray([0, 1, int(states[1, 2])]), jnp.zeros(3, jnp.int32)
    sigma2 = lambda learner, action: np.asarray(agent.sigma2(learner, obs(places), action))
    left = np.sqrt(sigma2(after, first) / sigma2(learner, first))
    m = np.array([4, 2, 1])
    np.testing.assert_allclose(1 - left, m * rate / (1 + (m - 1) * rate), rtol=0.1)
    np.testing.assert_allclose(
        sigma2(after, first + 1), sigma2(learner, first + 1), rtol=0.1
    )  # the other action was not taken


@pytest.mark.parametrize(
    ("envs", "minibatch", "size"),
    [(1, None, 1), (16, None, 16), (16, 4, 4), (5, 2, 2), (5, 4, 3), (3, 8, 3)],
)
def test_the_batch_size_is_that_of_the_buffer(envs, minibatch, size):
    settings = config.ActorCritic(buffer=config.OnPolicy(minibatch=minibatch))
    assert batch_size(settings, envs) == size
    assert batch_size(config.ActorCritic(buffer=config.Replay(batch=7)), envs) == 7


def test_per_visit_descent_has_a_rate_per_head_and_a_factor_above_the_first_layer():
    tree = {"first": jnp.ones(2), "inner": [jnp.ones(3)], "top": jnp.ones(1)}
    gradient = {"torso": {}, "policy": tree, "value": tree}
    rule = per_visit_descent(
        {"policy": 0.5, "value": 3.0}, {"policy": 0.1, "value": 1.0}, (), optax.identity()
    )
    step, _ = rule.update(gradient, rule.init(gradient))
    for name, first, above in (("policy", -0.5, -0.05), ("value", -3.0, -3.0)):
        np.testing.assert_allclose(step[name]["first"], first)
        for leaf in jax.tree.leaves((step[name]["inner"], step[name]["top"])):
            np.testing.assert_allclose(leaf, above)


def test_the_clipped_objective_needs_the_ratio_of_an_action_taken():
    settings = config.override(PRESETS["ersac-replay"], hidden=(4,), objective="clipped")
    with pytest.raises(config.SettingsError, match=r"^--objective clipped needs --critic sampled"):
        make_agent(settings, Spec("bandit", Discrete(1), Discrete(2), 1))
