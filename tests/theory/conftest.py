"""Batches of random MDPs in double precision."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac.theory.klearning import Beliefs
from ersac.theory.mdp import MDP

MDPS, LAYERS, STATES, ACTIONS = 200, 3, 4, 3


@pytest.fixture(scope="session")
def random_problems():
    """NumPy arrays (reward, transition, rho, sigma2, policy, tau) of 200 problems [200, ...]."""
    rng = np.random.default_rng(7)
    cells = (MDPS, LAYERS, STATES, ACTIONS)
    reward = rng.normal(size=cells) * rng.choice([0.1, 1, 10], size=(MDPS, 1, 1, 1))
    transition = rng.dirichlet(np.full(STATES, 0.7), size=cells)
    rho = rng.dirichlet(np.ones(STATES), size=MDPS)
    sigma2 = rng.exponential(size=cells) * rng.choice([0.01, 1, 4], size=(MDPS, 1, 1, 1))
    policy = rng.dirichlet(np.full(ACTIONS, 0.8), size=cells[:3])
    tau = np.exp(rng.uniform(-2, 2, size=MDPS))
    return reward, transition, rho, sigma2, policy, tau


@pytest.fixture
def problems(float64, random_problems):
    """The same problems as JAX arrays: beliefs [200, ...], policy [200, ...], tau [200]."""
    reward, transition, rho, sigma2, policy, tau = (jnp.asarray(x) for x in random_problems)
    return Beliefs(MDP(reward, transition, rho), sigma2), policy, tau


@pytest.fixture
def batched():
    """Map a function over the leading axis of all arguments, compiled."""
    return lambda f, *args: jax.jit(jax.vmap(f))(*args)
