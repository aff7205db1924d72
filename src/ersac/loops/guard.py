"""Detects non-finite numbers: the compiled loop returns sums, the host finds the first bad one."""

from typing import NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from ersac.types import Array, Learner, Trajectory, Tree

# The order in which a bad number spreads, before and after any other metrics of an agent.
BEFORE = (
    "observation",
    "logits",
    "reward",
    "tau",
    "sigma2",
    "entropy",
    "payoff",
    "critic loss",
    "reward loss",
)
AFTER = ("gradient", "log_tau", "params")
METRIC_NAMES = {"critic": "critic loss", "reward": "reward loss"}  # metric -> name in BEFORE


class NonFiniteValue(NamedTuple):
    """The first non-finite tensor of a seed."""

    tensor: str
    seed: int  # index of the seed
    rollout: int  # index in the chunk
    step: int  # steps of the rollout that were finite; all of them if the update was not


def finite_sums(t: Trajectory, learner: Learner) -> dict[str, Array]:
    """Return sums over rollouts [N, ...] and over the learner that are finite if their terms are.

    A sum is [T] or []. Of the learner only small arrays are summed, about a hundredth of it: a bias
    has the gradient of its layer, so a bad gradient cannot reach a matrix or a row without reaching
    a bias, and the optimiser's moments store it. Checkpoints test all arrays.
    """
    sums = {"logits": t.log_mu.sum(axis=0), "reward": t.reward.sum(axis=0)}  # [T]
    if jnp.issubdtype(t.obs.dtype, jnp.floating):
        envs, length = t.reward.shape
        sums["observation"] = t.obs[:, :-1].reshape(envs, length, -1).sum(axis=(0, 2))
    return sums | {
        "gradient": _sum_small_arrays(learner.opt),
        "log_tau": learner.log_tau,
        "params": _sum_small_arrays(learner.params.dense),
    }


def _sum_small_arrays(tree: Tree) -> Array:
    """Return the sum of all vectors and scalars, and of the last matrix of nets without biases."""
    is_summed = lambda path, leaf: leaf.ndim <= 1 or getattr(path[-1], "key", None) == "top"
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    small = [leaf for path, leaf in leaves if is_summed(path, leaf)]
    return sum((jnp.sum(leaf, dtype=jnp.float32) for leaf in small), jnp.zeros(()))


def find_nonfinite(
    sums: dict[str, np.ndarray], metrics: dict[str, np.ndarray], steps: int
) -> list[NonFiniteValue]:
    """Return the first non-finite value of each seed that has one, ordered by rollout.

    sums, metrics: [seeds, rollouts] or [seeds, rollouts, steps].
    """
    bad = {name: ~np.isfinite(values) for name, values in sums.items()}
    bad |= {METRIC_NAMES.get(name, name): ~np.isfinite(values) for name, values in metrics.items()}
    if not any(is_bad.any() for is_bad in bad.values()):
        return []
    others = sorted(bad.keys() - {*BEFORE, *AFTER})
    order = [name for name in (*BEFORE, *others, *AFTER) if name in bad]
    # [tensors, seeds, rollouts]
    first_steps = np.stack([_first_nonfinite_step(bad[name], steps) for name in order])
    is_nonfinite: np.ndarray = np.min(first_steps, axis=0) <= steps  # [seeds, rollouts]
    values = []
    for seed in map(int, np.flatnonzero(is_nonfinite.any(axis=1))):
        rollout = int(np.argmax(is_nonfinite[seed]))
        tensor = int(np.argmin(first_steps[:, seed, rollout]))
        step = int(first_steps[tensor, seed, rollout])
        values.append(NonFiniteValue(order[tensor], seed, rollout, step))
    return sorted(values, key=lambda value: value.rollout)


def _first_nonfinite_step(bad: np.ndarray, steps: int) -> np.ndarray:
    """Return the first bad step of each rollout [seeds, rollouts]; steps + 1 where all are good."""
    if bad.ndim == 2:
        return np.where(bad, steps, steps + 1)
    return np.where(bad.any(axis=2), bad.argmax(axis=2), steps + 1)
