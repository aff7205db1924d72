"""The environments of `benchmarks/practitioner.py` are correct, and are what the table says."""

import gymnasium
import numpy as np
import pytest
from benchmarks.practitioner import ENVS, Masked, play

from ersac.envs.gym.check import findings

SIX = ("camera", "switches", "masked", "sparse", "money", "two-ranges")


@pytest.mark.parametrize("name", SIX)
def test_the_checker_has_nothing_against_it(name):
    fatal = [finding.text for finding in findings(ENVS[name]) if finding.fatal]
    assert fatal == []


def test_a_perfect_policy_has_the_highest_score():
    """The score of the corridor is that of twenty right doors, and of the switches one a step."""
    right_door = lambda obs, mask: int(np.argmax(obs[:12]))
    assert play("masked", right_door) == pytest.approx(1 - 0.01 * (Masked.ROOMS - 1))
    sizes = np.array([3, 4, 2])
    right = lambda obs, mask: np.minimum(((obs + 1) / 2 * sizes).astype(int), sizes - 1)
    assert play("switches", right) == 50
    assert play("sparse", lambda obs, mask: 2) == 1


def test_a_forbidden_door_ends_the_episode():
    env = Masked()
    _, info = env.reset(seed=0)
    wrong = int(np.argmin(info["action_mask"]))
    assert isinstance(env.action_space, gymnasium.spaces.Discrete)
    assert env.step(wrong)[1:3] == (-1.0, True)
