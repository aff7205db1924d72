"""What an actor-critic draws to go with each step."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac.agents.actor_critic import reward_noise
from ersac.config import Counts, Ensemble


@pytest.mark.parametrize("variance", [0.09, 4.0])
def test_stored_noise_has_the_variance_it_was_asked_for(variance):
    noise = np.asarray(
        reward_noise(Ensemble(members=50, noise_variance=variance), 2000, jax.random.key(0))
    )
    assert noise.shape == (2000, 50)
    assert noise.var() == pytest.approx(
        variance, rel=0.03
    )  # seven standard errors of 100,000 draws
    assert abs(np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]) < 0.15  # a member's own


def test_none_is_none():
    key = jax.random.key(0)
    assert not jnp.any(reward_noise(Ensemble(members=3), 7, key))
    assert reward_noise(Counts(), 7, key).shape == (7, 0)
