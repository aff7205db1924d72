"""bsuite as Gymnasium environments, the combination lock, and grids with a fixed layout."""

import pickle
import warnings
from functools import partial

import dm_env
import gymnasium
import numpy as np
import pytest
from dm_env import specs

from ersac.envs import bsuite_gym, lock_gym
from ersac.envs.gym.check import findings
from ersac.envs.gym.make import env_factory
from ersac.envs.gym.minigrid import FixedLayout


class Scripted(dm_env.Environment):
    """Returns the given time steps one after the other."""

    def __init__(self, timesteps, shape=(2, 3)):
        self.timesteps, self.shape = iter(timesteps), shape

    def reset(self):
        return dm_env.restart(np.zeros(self.shape))

    def step(self, action):
        return next(self.timesteps)

    def observation_spec(self):
        return specs.BoundedArray(self.shape, float, -1, 2)

    def action_spec(self):
        return specs.DiscreteArray(4)


def test_an_episode_that_ends_with_a_discount_is_truncated():
    obs = np.arange(6.0).reshape(2, 3)
    env = bsuite_gym.BsuiteEnv(
        Scripted(
            [
                dm_env.transition(1.5, obs),
                dm_env.truncation(2.0, obs),
                dm_env.termination(3.0, obs),
            ]
        )
    )
    assert env.observation_space == gymnasium.spaces.Box(-1, 2, (6,), np.float32)
    assert env.action_space.n == 4
    assert env.reset()[0].shape == (6,)
    timesteps = [env.step(0) for _ in range(3)]
    assert [timestep[1:4] for timestep in timesteps] == [
        (1.5, False, False),
        (2.0, False, True),
        (3.0, True, False),
    ]
    np.testing.assert_array_equal(timesteps[0][0], np.arange(6))
    assert timesteps[0][0].dtype == np.float32


def test_the_swing_up_matches_bsuite_and_repeats_with_its_seed(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from bsuite.experiments.cartpole_swingup.cartpole_swingup import CartpoleSwingup
    env, oracle = (
        bsuite_gym.load_bsuite("cartpole_swingup/3"),
        CartpoleSwingup(height_threshold=3 / 20, x_reward_threshold=1 - 3 / 20, seed=11),
    )
    assert capsys.readouterr().out == ""
    np.testing.assert_array_equal(env.reset(seed=11)[0], oracle.reset().observation.ravel())
    rng, ends = np.random.default_rng(0), 0
    for _ in range(2500):
        action = int(rng.integers(3))
        obs, reward, terminated, truncated, _ = env.step(action)
        timestep = oracle.step(action)
        np.testing.assert_array_equal(obs, timestep.observation.ravel())
        assert (reward, terminated, truncated) == (timestep.reward, timestep.last(), False)
        if terminated:
            ends += 1
            np.testing.assert_array_equal(env.reset()[0], oracle.reset().observation.ravel())
    assert ends >= 2


@pytest.mark.parametrize("name", ["cartpole_swingup/0", "deep_sea/0", "deep_sea_stochastic/0"])
def test_the_checker_finds_nothing_fatal(name):
    assert not [
        finding for finding in findings(partial(bsuite_gym.load_bsuite, name)) if finding.fatal
    ]


def test_the_lock_opens_only_to_its_keys():
    env = pickle.loads(pickle.dumps(lock_gym.make_lock_env))()
    env.reset()
    opened = [env.step(int(key))[:2] for key in lock_gym.CombinationLock.KEYS[:10]]
    assert opened == [(n, float(n == 10)) for n in range(1, 11)]
    assert env.step(0)[0] == 0  # closed again
    assert [env.step(3)[0], env.step(0)[0], env.step(1)[0]] == [1, 2, 0]
    assert [env.step(0)[3] for _ in range(86)] == [False] * 85 + [True]


def test_a_fixed_layout_is_that_of_the_reseed_wrapper():
    from minigrid.wrappers import ReseedWrapper

    name = "MiniGrid-DoorKey-8x8-v0"
    theirs = ReseedWrapper(gymnasium.make(name), seeds=[4])
    theirs.reset()
    expected, ours = theirs.unwrapped.grid.encode(), FixedLayout(env_factory(name)(), 4)
    for seed in (None, 0, 9):
        ours.reset(seed=seed)
        np.testing.assert_array_equal(ours.unwrapped.grid.encode(), expected)
    other = FixedLayout(env_factory(name)(), 5)
    other.reset()
    assert not np.array_equal(other.unwrapped.grid.encode(), expected)
    assert ours.observation_space == env_factory(name)().observation_space  # symbolic
