"""The first number that is not one: seen in what the compiled loop brings, named by the host, never saved."""

from typing import NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from ersac.types import Array, Learner, Trajectory, Tree

# In the order in which one spoils the next. What an agent's metrics hold besides stands between the last loss and the gradient.
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
METRIC_NAMES = {
    "critic": "critic loss",
    "reward": "reward loss",
}  # metrics under whose name something else is known here


class NonFiniteValue(NamedTuple):
    """Where a run went wrong first."""

    tensor: str
    seed: int  # its place among the seeds
    rollout: int  # its place in the chunk
    step: int  # how many steps of the rollout had been done; all of them, if it went wrong when it learned


def finite_sums(t: Trajectory, learner: Learner) -> dict[str, Array]:
    """What tells of rollouts [N, ...] and of the learner after them whether all was finite: a number a step, or one.

    Of the learner only what is small is looked at, a hundredth of it: a bias has the gradient that flows into its layer, so a bad one
    cannot reach a matrix or a row without reaching a bias, and an optimiser remembers it. Checkpoints look at all.
    """
    sums = {"logits": t.log_mu.sum(axis=0), "reward": t.reward.sum(axis=0)}  # [T]
    if jnp.issubdtype(t.obs.dtype, jnp.floating):
        envs, length = t.reward.shape
        sums["observation"] = t.obs[:, :-1].reshape(envs, length, -1).sum(axis=(0, 2))
    return sums | {
        "gradient": _biases(learner.opt),
        "log_tau": learner.log_tau,
        "params": _biases(learner.params.dense),
    }


def _biases(tree: Tree) -> Array:
    """The sum of all vectors and single numbers, and of the last matrices of networks without biases, which is finite if they are."""
    looked_at = lambda path, leaf: leaf.ndim <= 1 or getattr(path[-1], "key", None) == "top"
    small = [
        leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree) if looked_at(path, leaf)
    ]
    return sum((jnp.sum(leaf, dtype=jnp.float32) for leaf in small), jnp.zeros(()))


def find_nonfinite(
    seen: dict[str, np.ndarray], metrics: dict[str, np.ndarray], steps: int
) -> list[NonFiniteValue]:
    """The first alarm of every seed that has one, the earliest first; everything is [seeds, rollouts] or [seeds, rollouts, steps]."""
    bad = {name: ~np.isfinite(values) for name, values in seen.items()}
    bad |= {METRIC_NAMES.get(name, name): ~np.isfinite(values) for name, values in metrics.items()}
    if not any(where.any() for where in bad.values()):
        return []
    others = sorted(bad.keys() - {*BEFORE, *AFTER})
    order = [name for name in (*BEFORE, *others, *AFTER) if name in bad]
    when = np.stack(
        [_first_nonfinite_step(bad[name], steps) for name in order]
    )  # [tensors, seeds, rollouts]
    on_nonfinite: np.ndarray = np.min(when, axis=0) <= steps  # [seeds, rollouts]
    found = []
    for seed in map(int, np.flatnonzero(on_nonfinite.any(axis=1))):
        rollout = int(np.argmax(on_nonfinite[seed]))
        tensor = int(np.argmin(when[:, seed, rollout]))
        found.append(NonFiniteValue(order[tensor], seed, rollout, int(when[tensor, seed, rollout])))
    return sorted(found, key=lambda alarm: alarm.rollout)


def _first_nonfinite_step(bad: np.ndarray, steps: int) -> np.ndarray:
    """The step of each rollout at which something went wrong [seeds, rollouts]; steps + 1 where nothing did."""
    if bad.ndim == 2:
        return np.where(bad, steps, steps + 1)
    return np.where(bad.any(axis=2), bad.argmax(axis=2), steps + 1)
