"""The nouns that every part shares."""

from typing import Any, NamedTuple

import jax
import numpy as np

Array = jax.Array
Key = jax.Array
Rng = (
    np.random.Generator
)  # what is drawn once, before the first step, is drawn on the host: nothing to compile
Tree = Any  # a pytree of arrays


class Trajectory(NamedTuple):
    """What one environment gave in T steps, time-major; batch and seed axes are added by vmap only."""

    obs: Array  # [T+1, ...]  trusted as a successor only where discount > 0
    action: Array  # [T]
    reward: Array  # [T]      raw
    discount: Array  # [T]    0 where the MDP ended, else 1; gamma belongs to the learner
    mask: Array  # [T]        0 on the fake step between a truncation and its reset
    log_mu: Array  # [T]      behaviour log-probability, as acted
    noise: Tree  # [T, ...]   what the agent drew to go with each step; of an ensemble, what is added to its K members' targets [T, K]


class Params(NamedTuple):
    """Everything an optimiser moves: dense arrays, and tables of which a step touches only a few rows."""

    dense: Tree
    rows: Tree  # in a learner: one array, see nets/tables.py; inside a loss: the rows looked up, name -> [T, n]


class Memory(NamedTuple):
    """The state of an actor-critic that no optimiser trains."""

    normaliser: Tree  # running statistics of observations and rewards; () without normalisation
    uncertainty: Tree  # priors and counts of the estimator


class Learner(NamedTuple):
    """The whole state of an agent: arrays only, so that it can be a scan carry and a file."""

    params: Params
    log_tau: Array  # []   the risk parameter is learned as its logarithm, so it stays positive
    memory: Tree  # what no optimiser trains: Memory, or ReplayMemory of Bootstrapped DQN
    opt: Tree
