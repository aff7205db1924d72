"""DeepSea against bsuite's, which is the oracle."""

import warnings

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac.envs.deep_sea import DeepSeaState, action_map, deep_sea

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from bsuite.environments.deep_sea import DeepSea as BsuiteDeepSea

STEPS = 10_000


def play(env, env_params, actions, key):
    """Step our environment with the actions, resetting it where an episode ends."""

    def step(state, x):
        action, key = x
        obs = env.observe(env_params, state)
        result = env.step(env_params, state, action, key)
        ended = result.discount == 0
        state = jax.tree.map(
            lambda new, old: jnp.where(ended, new, old), env.reset(env_params, key), result.state
        )
        return state, (obs, result.reward, ended, result.goal)

    return jax.jit(
        lambda: jax.lax.scan(
            step, env.reset(env_params, key), (actions, jax.random.split(key, len(actions)))
        )[1]
    )()


@pytest.mark.parametrize("depth", [1, 2, 7, 20, 50])
def test_ten_thousand_random_steps_match_bsuite(depth):
    oracle = BsuiteDeepSea(depth, mapping_seed=depth + 3, seed=0)
    env = deep_sea(depth, mapping_seed=depth + 3)
    # Half the episodes mostly move right, so that the treasure is reached too.
    rng = np.random.default_rng(depth)
    actions, obs, rewards, ended, goals = [], [], [], [], []
    step = oracle.reset()
    helped = False
    for _ in range(STEPS):
        if step.last():
            step = oracle.reset()
        row, column = np.argwhere(step.observation)[0]
        if row == 0:
            helped = rng.random() < 0.5
        right = oracle._action_mapping[row, column]
        action = int(right) if helped and rng.random() < 0.98 else int(rng.integers(2))
        bad_before = oracle.bsuite_info()["total_bad_episodes"]
        step = oracle.step(action)
        actions.append(action)
        obs.append(row * depth + column)
        rewards.append(step.reward)
        ended.append(step.last())
        goals.append(step.last() and oracle.bsuite_info()["total_bad_episodes"] == bad_before)
    ours = play(env, jnp.asarray(env.env_params(0)), jnp.asarray(actions), jax.random.key(0))
    np.testing.assert_array_equal(ours[0], obs)
    np.testing.assert_allclose(ours[1], rewards, atol=1e-6)
    np.testing.assert_array_equal(ours[2], ended)
    np.testing.assert_array_equal(ours[3], goals)
    assert sum(goals) > 0
    assert np.array_equal(goals, np.asarray(rewards) > 0.5)  # here a goal is a treasure


def test_the_action_map_is_that_of_bsuites_sweep():
    np.testing.assert_array_equal(
        action_map(20, 42), BsuiteDeepSea(20, mapping_seed=42)._action_mapping
    )


def test_each_seed_has_its_own_action_map_unless_a_mapping_seed_is_given():
    assert not np.array_equal(deep_sea(9).env_params(0), deep_sea(9).env_params(1))
    np.testing.assert_array_equal(
        deep_sea(9, mapping_seed=42).env_params(0), deep_sea(9, mapping_seed=42).env_params(1)
    )


@pytest.mark.parametrize("depth", [1, 30])
def test_the_optimal_return(depth):
    env = deep_sea(depth)
    env_params = jnp.asarray(env.env_params(5))
    actions = jnp.asarray([env_params[i, i] for i in range(depth)])
    _, reward, ended, goal = play(env, env_params, actions, jax.random.key(0))
    assert float(reward.sum()) == pytest.approx(0.99, abs=1e-5)
    assert bool(ended[-1])
    assert bool(goal[-1])


def test_stochastic_deep_sea_slips_and_has_noisy_rewards_as_in_bsuite():
    depth, episodes = 5, 4000
    env = deep_sea(depth, stochastic=True)
    env_params = jnp.asarray(env.env_params(5))
    keys = jax.random.split(jax.random.key(1), episodes)

    def episode(key):
        """Right moves only: the last column shows the slips, the last reward the noise."""

        def step(state, key):
            result = env.step(env_params, state, env_params[state.row, state.column], key)
            return result.state, (state.column, result.reward, result.goal)

        return jax.lax.scan(step, env.reset(env_params, key), jax.random.split(key, depth))[1]

    columns, rewards, goals = map(np.asarray, jax.jit(jax.vmap(episode))(keys))
    assert goals[:, -1].all()  # a slip is not a left move
    stays = np.diff(columns, axis=1) == 0
    tolerance = lambda p, n: 4.5 * np.sqrt(p * (1 - p) / n)
    assert abs(stays.mean() - 1 / depth) < tolerance(1 / depth, stays.size)
    at_corner = columns[:, -1] == depth - 1
    assert abs(at_corner.mean() - (1 - 1 / depth) ** (depth - 1)) < tolerance(0.4096, episodes)
    noise = rewards[at_corner, -1] - (1 - 0.01 / depth)
    assert abs(noise.mean()) < 4.5 / np.sqrt(len(noise))
    assert abs(noise.var() - 1) < 4.5 * np.sqrt(2 / len(noise))
    between = (columns[:, -1] > 0) & ~at_corner  # the other end cell, column 0, is noisy too
    np.testing.assert_allclose(rewards[between, -1], -0.01 / depth, atol=1e-6)


def test_only_a_left_move_on_the_diagonal_misses_the_goal():
    """After a slip off the diagonal, left moves do not make a bad episode in bsuite."""
    env = deep_sea(5, stochastic=True)
    env_params = env.env_params(0)
    for row, column in ((0, 0), (3, 3), (2, 1), (4, 0), (4, 4)):
        for strayed in (False, True):
            state = DeepSeaState(jnp.int32(row), jnp.int32(column), jnp.bool_(strayed))
            left, right = (
                env.step(env_params, state, move, jax.random.key(1))
                for move in (1 - env_params[row, column], env_params[row, column])
            )
            assert bool(left.state.strayed) == (strayed or row == column)
            assert bool(right.state.strayed) == strayed
            assert bool(left.goal) == (row == 4 and not left.state.strayed)
