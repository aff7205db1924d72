"""A sparse update equals the dense update at the rows that it changes."""

import functools

import jax
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import numpy as jnp

from ersac.nets import tables as table_store

STATES = 40
WIDTHS = {"a": 3, "b": {"c": 1}}  # two tables looked up by the same index


def draw_tables(seed: int):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda width: rng.normal(size=(STATES, width)), WIDTHS)


def batches(rows_in_batch: int, steps: int = 30):
    rng = np.random.default_rng(0)
    for _ in range(steps):
        index = rng.integers(0, STATES // 2, rows_in_batch)  # the other half is never touched
        yield index, jax.tree.map(lambda width: rng.normal(size=(rows_in_batch, width)), WIDTHS)


@pytest.mark.parametrize(
    "rows_in_batch", [1, 17, table_store.EQUALITY_LIMIT + 40]
)  # below and above the sort
@pytest.mark.parametrize("b2", [0.9, 0.999])
def test_without_momentum_sparse_updates_equal_dense_updates(float64, b2, rows_in_batch):
    rule, dense_rule = table_store.row_adam(0.05, b1=0.0, b2=b2), optax.adam(0.05, b1=0.0, b2=b2)
    store = table_store.make_store({"a": rule, "b": {"c": rule}}, WIDTHS)
    dense = jax.tree.map(jnp.asarray, draw_tables(1))
    data, dense_state = jnp.asarray(store.pack(draw_tables(1))), dense_rule.init(dense)

    @jax.jit
    def both(data, time, dense, dense_state, index, gradients):
        dense_gradients = jax.tree.map(
            lambda table, part: jnp.zeros_like(table).at[index].add(part), dense, gradients
        )
        step, dense_state = dense_rule.update(dense_gradients, dense_state)
        return (
            store.update(data, time, index, gradients),
            optax.apply_updates(dense, step),
            dense_state,
        )

    for time, (index, gradients) in enumerate(batches(rows_in_batch), start=1):
        data, dense, dense_state = both(
            data, jnp.asarray(time), dense, dense_state, jnp.asarray(index), gradients
        )
    for sparse, full, first in zip(
        *map(jax.tree.leaves, (store.unpack(data), dense, draw_tables(1))), strict=True
    ):
        np.testing.assert_allclose(sparse, full, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(sparse[STATES // 2 :], first[STATES // 2 :])
        assert np.abs(np.asarray(sparse) - first).max() > 0


def test_momentum_does_not_move_rows_between_updates(float64):
    store = table_store.make_store(table_store.row_adam(0.1, b1=0.9), 2)
    data = jnp.asarray(store.pack(np.ones((STATES, 2))))
    update = lambda row, gradient, time: store.update(
        data, jnp.asarray(time), jnp.array([row]), jnp.full((1, 2), gradient)
    )
    data = update(3, 1.0, 1)
    moved = np.asarray(store.unpack(data)[3])
    for time in range(2, 7):
        data = update(7, 1.0, time)
    np.testing.assert_array_equal(store.unpack(data)[3], moved)
    data = update(3, 0.0, 7)
    # The first moment, decayed by six steps at once.
    np.testing.assert_allclose(data[3, 2:4], 0.1 * 0.9**6, atol=1e-12)


def test_a_clock_that_restarts_loses_no_step():
    """A run may be longer than single precision counts, which is as far as the clock goes."""
    store = table_store.make_store(table_store.row_adam(0.1, b1=0.5), 1)
    data = jnp.asarray(store.pack(np.ones((STATES, 1), np.float32)))
    update = lambda data, time: store.update(
        data, jnp.asarray(time), jnp.array([3]), jnp.zeros((1, 1))
    )
    data = update(data, table_store.CLOCK - 2).at[3, 1].set(1.0)  # the first moment
    for time in (table_store.CLOCK + 1, table_store.CLOCK + 2, 2 * table_store.CLOCK + 4):
        before, idle = data[3, 1], store.look_up_moments(data, jnp.asarray(time), jnp.array([3]))[2]
        data = update(data, time)
        assert data[3, 1] == before * 0.5 ** int(idle[0, 0])
    assert [
        int(
            store.look_up_moments(data, jnp.asarray(2 * table_store.CLOCK + later), jnp.array([3]))[
                2
            ][0, 0]
        )
        for later in (4, 5, 9)
    ] == [0, 1, 5]


def test_look_up_moments_returns_what_update_stored(float64):
    store, tables = (
        table_store.make_store(
            {"a": table_store.row_adam(0.1), "b": {"c": table_store.per_visit(0.1, 1)}}, WIDTHS
        ),
        draw_tables(0),
    )
    data, index = jnp.asarray(store.pack(tables)), jnp.array([3, 5, 5])
    ones = jax.tree.map(lambda width: jnp.ones((3, width)), WIDTHS)
    data = store.update(data, jnp.asarray(1), index, ones)
    found, (first, second), idle = store.look_up_moments(data, jnp.asarray(8), jnp.array([5, 3, 0]))
    for rows, table in zip(*map(jax.tree.leaves, (found, store.unpack(data))), strict=True):
        np.testing.assert_array_equal(rows, table[jnp.array([5, 3, 0])])
    np.testing.assert_allclose(first[:, 0], [0.2, 0.1, 0])  # row 5 is in the batch twice
    np.testing.assert_allclose(second[:, 0], [0.004, 0.001, 0])
    np.testing.assert_array_equal(idle[:, 0], [7, 7, 8])


def test_pack_and_unpack_are_inverse():
    rules = {"a": table_store.row_adam(0.1), "b": {"c": table_store.per_visit(0.1, 1)}}
    store, tables = table_store.make_store(rules, WIDTHS), draw_tables(0)
    data = jnp.asarray(store.pack(tables))
    index = jnp.array([[3, 5], [5, 0]])
    looked_up = store.look_up(data, index)
    assert jax.tree.structure(looked_up) == jax.tree.structure(tables)
    for table, unpacked, found in zip(
        *map(jax.tree.leaves, (tables, store.unpack(data), looked_up)), strict=True
    ):
        np.testing.assert_allclose(unpacked, table, rtol=1e-6)
        np.testing.assert_array_equal(found, unpacked[index])


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=table_store.EQUALITY_LIMIT + 30),
    st.integers(0, 2**31 - 1),
)
def test_duplicates_are_summed_for_every_occurrence(index, seed):
    index = index + [index[-1]] * (-len(index) % 79)  # few lengths, so that few are compiled
    gradient = np.random.default_rng(seed).integers(-8, 8, (len(index), 2)).astype(np.float32)
    total = np.zeros((10, 2), np.float32)
    np.add.at(total, index, gradient)
    np.testing.assert_array_equal(
        table_store.sum_duplicates(jnp.array(index), jnp.asarray(gradient)), total[index]
    )


def test_one_visit_corrects_the_share_rate_of_an_error(float64):
    rate, steps, target = 0.2, 5, 3.0
    store = table_store.make_store(table_store.per_visit(rate, steps), 1)
    data, index = jnp.asarray(store.pack(np.zeros((STATES, 1)))), jnp.array([4, 8, 8, 8, 1])
    loss = lambda looked_up: jnp.sum(0.5 * jnp.square(looked_up - target)) / steps
    table = store.unpack(
        store.update(data, jnp.asarray(1), index, jax.grad(loss)(store.look_up(data, index)))
    )
    assert float(table[4, 0]) == pytest.approx(rate * target)
    assert float(table[8, 0]) == pytest.approx(3 * rate / (1 + 2 * rate) * target)


@settings(deadline=None, max_examples=15)
@given(st.floats(0, 1), st.sampled_from([1, 2, 7, 50, 500]))
def test_no_number_of_visits_overshoots(rate, visits):
    assert 0 <= float(corrected(rate, visits)) <= 1 + 1e-4


@functools.partial(jax.jit, static_argnums=1)
def corrected(rate, visits):
    """Return a row, zero at first, after so many visits in one batch with an error of one."""
    store = table_store.make_store(table_store.per_visit(rate, visits), 1)
    data, index = (
        jnp.asarray(store.pack(np.zeros((2, 1), np.float32))),
        jnp.zeros(visits, jnp.int32),
    )
    return store.unpack(
        store.update(data, jnp.asarray(1), index, jnp.full((visits, 1), -1.0 / visits))
    )[0, 0]
