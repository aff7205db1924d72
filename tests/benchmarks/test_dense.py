"""The dense agent of the benchmark learns exactly as the library's sparse one does."""

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
LENGTH = 30  # with 25 cells: every batch repeats states, whose damping is compared too


def settings(**changes):
    return config.check(
        config.override(TABLE_PRESETS["ersac-sampled"], rollout=LENGTH, hidden=(8, 8), **changes)
    )


def draw_batch(rng: np.random.Generator) -> Trajectory:
    shape = (2, LENGTH)
    bits = lambda share: jnp.asarray(rng.random(shape) < share, jnp.float64)
    return Trajectory(
        jnp.asarray(rng.integers(0, 20, (2, LENGTH + 1))),  # five cells are never visited
        jnp.asarray(rng.integers(0, 2, shape)),
        jnp.asarray(rng.normal(size=shape)),
        bits(0.8),
        bits(0.9),
        jnp.asarray(np.log(rng.uniform(0.2, 0.9, shape))),
        jnp.zeros((*shape, 10)),
    )


def learner_after_updates(agent):
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
    # With momentum, rows that are not visited still move in the dense agent.
    chosen = settings(b1=0.0)
    store = build.make_optimisers(chosen, build.make_parts(chosen, spec_of(ENV)), 0.0).rows
    ours, theirs = (
        learner_after_updates(build.make_agent(chosen, spec_of(ENV))),
        learner_after_updates(dense.dense_agent(chosen, ENV)),
    )
    first = dense.dense_agent(chosen, ENV).init(np.random.default_rng(0))
    sparse = (ours.params.dense, store.unpack(ours.params.rows), ours.log_tau)
    dense_params, before = (*theirs.params, theirs.log_tau), (*first.params, first.log_tau)
    for a, b, at_first in zip(*map(jax.tree.leaves, (sparse, dense_params, before)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
        assert np.abs(np.asarray(a) - at_first).max() > 1e-6


def test_run_dense_reports_its_steps():
    chosen = config.Experiment(config.DeepSea(5), "ersac", settings(), config.Run(seeds=1))
    chunks = dense.run_dense(chosen, rollouts=3)
    assert [next(chunks)[0] for _ in range(2)] == [3 * LENGTH, 3 * LENGTH]
