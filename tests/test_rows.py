"""A sparse step is the dense step, restricted to where it does something."""

import functools

import jax
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import numpy as jnp

from ersac import rows

STATES, WIDTH = 40, 3
PAIRS = {
    "adam, long memory": (rows.adam(0.05, b1=0.0, b2=0.999), optax.adam(0.05, b1=0.0, b2=0.999)),
    "adam, short memory": (rows.adam(0.05, b1=0.0, b2=0.9), optax.adam(0.05, b1=0.0, b2=0.9)),
}


def batches(rows_in_batch: int, steps: int = 30):
    rng = np.random.default_rng(0)
    for _ in range(steps):
        yield jnp.asarray(rng.integers(0, STATES // 2, rows_in_batch)), jnp.asarray(rng.normal(size=(rows_in_batch, WIDTH)))


@pytest.mark.parametrize("rows_in_batch", [1, 17, rows.EQUALITY_LIMIT + 40])  # below and above the sort
@pytest.mark.parametrize("name", PAIRS)
def test_sparse_steps_are_dense_steps_where_there_is_no_momentum(float64, name, rows_in_batch):
    rule, dense_rule = PAIRS[name]
    table = jnp.asarray(np.random.default_rng(1).normal(size=(STATES, WIDTH)))
    dense, state, dense_state = table, rows.init(rule, table), dense_rule.init(table)
    untouched = np.asarray(table[STATES // 2 :])

    @jax.jit
    def both(table, state, dense, dense_state, index, gradient):
        step, dense_state = dense_rule.update(jnp.zeros_like(dense).at[index].add(gradient), dense_state)
        return *rows.update(rule, table, state, index, gradient), optax.apply_updates(dense, step), dense_state

    for index, gradient in batches(rows_in_batch):
        table, state, dense, dense_state = both(table, state, dense, dense_state, index, gradient)
    np.testing.assert_allclose(table, dense, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(table[STATES // 2 :], untouched)


def test_momentum_does_not_move_rows_that_nobody_looks_at(float64):
    rule, table = rows.adam(0.1, b1=0.9), jnp.ones((STATES, WIDTH))
    state = rows.init(rule, table)
    table, state = rows.update(rule, table, state, jnp.array([3]), jnp.ones((1, WIDTH)))
    moved = np.asarray(table[3])
    for _ in range(5):
        table, state = rows.update(rule, table, state, jnp.array([7]), jnp.ones((1, WIDTH)))
    np.testing.assert_array_equal(table[3], moved)
    table, state = rows.update(rule, table, state, jnp.array([3]), jnp.zeros((1, WIDTH)))
    first, _ = state.moments
    np.testing.assert_allclose(first[3], 0.1 * 0.9**6, atol=1e-12)  # six steps since, decayed at once


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=rows.EQUALITY_LIMIT + 30), st.integers(0, 2**31 - 1))
def test_duplicates_are_summed_for_every_occurrence(index, seed):
    index = index + [index[-1]] * (-len(index) % 79)  # few lengths, so that few programs are compiled
    gradient = np.random.default_rng(seed).integers(-8, 8, (len(index), 2)).astype(np.float32)
    total = np.zeros((10, 2), np.float32)
    np.add.at(total, index, gradient)
    np.testing.assert_array_equal(rows.sum_duplicates(jnp.array(index), jnp.asarray(gradient)), total[index])
    np.testing.assert_array_equal(rows.occurrences(jnp.array(index)), np.bincount(index, minlength=10)[index])


def test_a_visit_corrects_its_share_of_a_squared_error(float64):
    rate, steps, target = 0.2, 5, 3.0
    rule, table = rows.per_visit(rate, steps), jnp.zeros((STATES, 1))
    state, loss = rows.init(rule, table), lambda looked_up: jnp.sum(0.5 * jnp.square(looked_up - target)) / steps
    index = jnp.array([4, 8, 8, 8, 1])
    table, _ = rows.update(rule, table, state, index, jax.grad(loss)(table[index]))
    assert float(table[4, 0]) == pytest.approx(rate * target)
    assert float(table[8, 0]) == pytest.approx(3 * rate / (1 + 2 * rate) * target)


@settings(deadline=None, max_examples=15)
@given(st.floats(0, 1), st.sampled_from([1, 2, 7, 50, 500]))
def test_no_number_of_visits_overshoots(rate, visits):
    assert 0 <= float(corrected(rate, visits)) <= 1 + 1e-4


@functools.partial(jax.jit, static_argnums=1)
def corrected(rate, visits):
    """Where a row at zero is after that many visits with an error of one."""
    rule, table = rows.per_visit(rate, visits), jnp.zeros((2, 1))
    index = jnp.zeros(visits, jnp.int32)
    return rows.update(rule, table, rows.init(rule, table), index, jnp.full((visits, 1), -1.0 / visits))[0][0, 0]


def test_gradients_of_looked_up_rows_are_those_of_the_table(float64):
    table = jnp.asarray(np.random.default_rng(2).normal(size=(STATES, WIDTH)))
    index = jnp.array([1, 5, 5, 2])
    loss = lambda looked_up: jnp.sum(jnp.sin(looked_up) * jnp.arange(4.0)[:, None])
    whole = jax.grad(lambda table: loss(rows.gather(table, index)))(table)
    parts = rows.sum_duplicates(index, jax.grad(loss)(table[index]))
    np.testing.assert_allclose(parts, whole[index], atol=1e-14)
