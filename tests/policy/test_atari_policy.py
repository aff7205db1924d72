"""A policy trained on Atari: evaluation, videos, files."""

import imageio.v3 as iio
import numpy as np
import pytest

import ersac
from ersac import api
from ersac.envs.make import make_host_env

# As in tests/loops/test_atari.py, so that the programs are compiled once.
SMALL = {"chunk": 2, "rollout": 4, "passes": 1, "envs": 2, "max_frames": 60, "sticky": 0.0}


@pytest.fixture(scope="module")
def result():
    return api.train("atari:pong", steps=16, show=False, **SMALL)


def test_an_evaluation_plays_whole_games(result):
    evaluation = result.policy.evaluate(episodes=2, sample=True, show=False)
    assert evaluation.mean_length == 15  # steps of four frames


def test_a_video_has_a_frame_for_each_step(result, tmp_path):
    path = tmp_path / "pong.gif"
    result.policy.film(path, show=False)
    frames = iio.imread(path)
    assert frames.shape[1:3] == (210, 320)
    assert 2 <= len(frames) <= 16  # equal frames are merged


def test_a_loaded_policy_acts_on_single_frames_as_the_loop_does_on_stacks(result, tmp_path):
    result.policy.save(tmp_path / "pong.npz")
    policy = ersac.load(tmp_path / "pong.npz")
    env = make_host_env(result.settings.env)
    obs = env.reset(0)
    policy.reset()
    for _ in range(6):
        action = policy(obs[0, ..., -1:])
        np.testing.assert_array_equal(policy._window[0], obs[0])
        obs = env.step(np.array([action, 0])).obs
