"""Types that all packages share."""

from typing import Any, NamedTuple

import jax
import numpy as np

Array = jax.Array
Key = jax.Array
Rng = np.random.Generator  # for what is drawn once, on the host, where nothing is compiled for it
Tree = Any  # a pytree of arrays


class Trajectory(NamedTuple):
    """T steps of one environment, time-major. Batch and seed axes are added by vmap only."""

    obs: Array  # [T+1, ...]  obs[t+1] is the successor of obs[t] only where discount > 0
    action: Array  # [T]
    reward: Array  # [T]      raw
    discount: Array  # [T]    0 where the MDP terminated, else 1; gamma is not included
    mask: Array  # [T]        0 on the fake step between a truncation and its reset
    log_mu: Array  # [T]      log-probability of the action under the behaviour policy
    noise: Tree  # [T, ...]   drawn by the agent for each step; an ensemble's target noise is [T, K]


class Params(NamedTuple):
    """Everything an optimiser changes."""

    dense: Tree
    # In a learner, one array of all tables (see nets/tables.py). Inside a loss, the rows that were
    # looked up: name -> [T, n].
    rows: Tree


class Memory(NamedTuple):
    """The state of an actor-critic that no optimiser trains."""

    normaliser: Tree  # running statistics of observations and rewards; () without normalisation
    uncertainty: Tree  # priors and counts of the estimator


class Learner(NamedTuple):
    """The whole state of an agent: arrays only, so that it can be a scan carry and a file."""

    params: Params
    log_tau: Array  # []   log of the risk parameter, which keeps tau positive
    memory: Tree  # what no optimiser trains: Memory, or ReplayMemory of Bootstrapped DQN
    opt: Tree  # optimiser state
