"""The dense version that is measured against is the same learner, not a straw man."""

import jax
import numpy as np
from jax import numpy as jnp

from benchmarks import dense
from ersac import config
from ersac.agents import build
from ersac.config.presets import TABLE_PRESETS
from ersac.envs.base import spec_of
from ersac.envs.deep_sea import deep_sea
from ersac.types import Trajectory

ENV = deep_sea(5)
LENGTH = 30  # in a sea of 25 cells: every batch has duplicates, and their damping is part of what is compared


def settings(**changes):
    return config.check(
        config.override(TABLE_PRESETS["ersac-sampled"], rollout=LENGTH, hidden=(8, 8), **changes)
    )


def draw_batch(rng: np.random.Generator) -> Trajectory:
    shape = (2, LENGTH)
    chance = lambda share: jnp.asarray(rng.random(shape) < share, jnp.float64)
    return Trajectory(
        jnp.asarray(rng.integers(0, 20, (2, LENGTH + 1))),  # five cells are never seen
        jnp.asarray(rng.integers(0, 2, shape)),
        jnp.asarray(rng.normal(size=shape)),
        chance(0.8),
        chance(0.9),
        jnp.asarray(np.log(rng.uniform(0.2, 0.9, shape))),
        jnp.zeros((*shape, 10)),
    )


def after(agent):
    """An agent's learner after five updates, in double precision."""
    rng = np.random.default_rng(1)
    double = lambda x: (
        jnp.asarray(x, jnp.float64)
        if jnp.issubdtype(jnp.asarray(x).dtype, jnp.floating)
        else jnp.asarray(x)
    )
    learner, update = (
        jax.tree.map(double, agent.init(np.random.default_rng(0))),
        jax.jit(agent.update),
    )
    for _ in range(5):
        learner, _, _ = update(learner, draw_batch(rng))
    return learner


def test_dense_updates_are_sparse_updates(float64):
    chosen = settings(b1=0.0)  # with momentum, rows that nobody looks at drift on in the dense one
    store = build.make_optimisers(chosen, build.make_parts(chosen, spec_of(ENV)), 0.0).rows
    ours, theirs = (
        after(build.make_agent(chosen, spec_of(ENV))),
        after(dense.dense_agent(chosen, ENV)),
    )
    first = dense.dense_agent(chosen, ENV).init(np.random.default_rng(0))
    sparse = (ours.params.dense, store.unpack(ours.params.rows), ours.log_tau)
    whole, before = (*theirs.params, theirs.log_tau), (*first.params, first.log_tau)
    for a, b, at_first in zip(*map(jax.tree.leaves, (sparse, whole, before)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
        assert np.abs(np.asarray(a) - at_first).max() > 1e-6


def test_a_run_takes_the_steps_it_says():
    chosen = config.Experiment(config.DeepSea(5), "ersac", settings(), config.Run(seeds=1))
    chunks = dense.run(chosen, rollouts=3)
    assert [next(chunks)[0] for _ in range(2)] == [3 * LENGTH, 3 * LENGTH]
