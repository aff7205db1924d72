"""The noise that an actor-critic stores with each step."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac.agents.build import make_agent
from ersac.config import ActorCritic, Counts, Ensemble, Estimator
from ersac.envs.base import Discrete, Spec
from ersac.types import Array

SPEC = Spec("states", Discrete(4), Discrete(2), 1)


def stored_noise(estimator: Estimator, length: int) -> Array:
    """The noise [T, members] of the agent with an estimator."""
    agent = make_agent(ActorCritic(uncertainty=estimator), SPEC)
    return agent.noise(jax.random.key(0), length)


@pytest.mark.parametrize("variance", [0.09, 4.0])
def test_stored_noise_has_the_variance_of_the_settings(variance):
    noise = np.asarray(stored_noise(Ensemble(members=50, noise_variance=variance), 2000))
    assert noise.shape == (2000, 50)
    # 0.03 is seven standard errors of 100,000 draws
    assert noise.var() == pytest.approx(variance, rel=0.03)
    # members have independent noise
    assert abs(np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]) < 0.15


def test_without_a_variance_the_noise_is_zero_and_without_members_it_is_empty():
    assert not jnp.any(stored_noise(Ensemble(members=3), 7))
    assert stored_noise(Counts(), 7).shape == (7, 0)
