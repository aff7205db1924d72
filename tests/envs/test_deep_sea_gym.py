"""DeepSea as a Gymnasium environment against the pure one."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac.envs.deep_sea import deep_sea
from ersac.envs.deep_sea_gym import OneHotDeepSea
from ersac.envs.gym.check import findings


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_every_step_is_that_of_the_pure_environment(depth):
    ours, theirs = OneHotDeepSea(depth, seed=5), deep_sea(depth)
    env_params, key = jnp.asarray(theirs.env_params(5)), jax.random.key(0)
    observe, step = jax.jit(theirs.observe), jax.jit(theirs.step)
    rng, treasures = np.random.default_rng(0), 0
    for episode in range(12):
        obs, info = ours.reset(seed=episode)
        state = theirs.reset(env_params, key)
        for row in range(depth):
            assert info == {}
            np.testing.assert_array_equal(
                obs, np.eye(depth * depth)[int(observe(env_params, state))]
            )
            right = int(env_params[row, ours.column])
            action = right if episode % 2 or rng.random() < 0.5 else 1 - right
            obs, reward, terminated, truncated, info = ours.step(action)
            result = step(env_params, state, jnp.int32(action), key)
            state = result.state
            assert reward == pytest.approx(float(result.reward), abs=1e-6)
            assert (terminated, truncated) == (float(result.discount) == 0, False)
        assert terminated
        assert info["is_success"] == bool(result.goal)
        assert not obs.any()
        treasures += info["is_success"]
    assert 6 <= treasures <= 12


def test_each_seed_has_its_own_map():
    assert not np.array_equal(OneHotDeepSea(9, 0).right, OneHotDeepSea(9, 1).right)
    np.testing.assert_array_equal(OneHotDeepSea(9, 3).right, deep_sea(9).env_params(3))


def test_noise_follows_the_cell_and_is_new_at_every_step_but_the_same_for_one_seed():
    env, again = OneHotDeepSea(4, 0, noise=8), OneHotDeepSea(4, 0, noise=8)
    assert env.observation_space.shape == (24,)
    assert np.isinf(env.observation_space.high[16:]).all()
    assert (env.observation_space.high[:16] == 1).all()
    plays = [
        np.array([copy.reset(seed=7)[0], *(copy.step(1)[0] for _ in range(4))])
        for copy in (env, again)
    ]
    np.testing.assert_array_equal(*plays)
    cells, noise = plays[0][:, :16], plays[0][:, 16:]
    np.testing.assert_array_equal(cells.sum(axis=1), [1, 1, 1, 1, 0])
    assert len(np.unique(noise)) == noise.size
    drawn = np.concatenate([env.reset()[0][16:] for _ in range(500)])
    assert abs(drawn.mean()) < 0.1
    assert abs(drawn.std() - 1) < 0.1


@pytest.mark.parametrize("noise", [0, 8])
def test_the_checker_finds_nothing_fatal(noise):
    assert not [
        finding for finding in findings(lambda: OneHotDeepSea(6, 0, noise)) if finding.fatal
    ]
