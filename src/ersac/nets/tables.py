"""Tables with sparse optimisers: an update reads and writes only the rows that were looked up.

A one-hot observation times a matrix is a row of the matrix. So observations stay integers, the loss
is differentiated with respect to the rows that were looked up, and an optimiser changes only those
rows. An update costs the same at depth 25 and at depth 250.

All rows of a state are one row of a single array: its parameters in every table, then the moments
of their optimisers, then the time of its last update. One gather reads it and one scatter writes
it, so XLA has no reason to copy the array in between; with one array per table it did.

The moments of a row decay lazily, by the number of steps since its last update. Without momentum
this is exactly the dense optimiser, which does not change rows with zero gradient. With momentum
there is one difference: a row does not move between its updates.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from ersac.types import Array, Tree

EQUALITY_LIMIT = 128  # rows in a batch up to which an [M, M] product is faster than a sort
CLOCK = 2**24  # steps after which the clock of a row restarts: single precision counts no further


class RowInfo(NamedTuple):
    """What an optimiser is given about the rows of a batch, besides their gradients."""

    idle: Array  # [M, 1]         steps since the last update of the row
    occurrences: Array  # [M, 1]  how often the row is in the batch
    time: Array  # []             number of this step, from 1; an integer


class Rule(NamedTuple):
    """An optimiser for rows [M, n]."""

    moments: int  # arrays of the shape of the rows that it stores
    # moments, gradient, info -> (step, moments)
    step: Callable[[list[Array], Array, RowInfo], tuple[Array, list[Array]]]


class Store(NamedTuple):
    """Tables that share an index, and the state of their optimisers, in one array `data` [S, W]."""

    # tables, each [S, n] -> data before the first step
    pack: Callable[[Tree], np.ndarray]
    # data -> tables
    unpack: Callable[[Array], Tree]
    # data, index [...] -> rows, each [..., n]
    look_up: Callable[[Array, Array], Tree]
    # data, time, index [...] -> (rows, moments of all tables, steps since the last update [..., 1])
    look_up_moments: Callable[[Array, Array, Array], tuple[Tree, list[Array], Array]]
    # data, time, index [...], gradients of the rows [..., n] -> data
    update: Callable[[Array, Array, Array, Tree], Array]


def per_visit(rate: float | Array, steps: int) -> Rule:
    """Return gradient descent with a known rate per visit, for a loss that is a mean over `steps`.

    With a squared error, one visit corrects the share `rate` of the error. A row that occurs m
    times in the batch corrects m rate / (1 + (m - 1) rate) of its mean error: never more than all
    of it, whereas the sum of m such steps could overshoot.
    """

    def step(moments: list[Array], gradient: Array, info: RowInfo) -> tuple[Array, list[Array]]:
        damping = 1 + (info.occurrences - 1) * jnp.minimum(rate, 1.0)
        return -rate * steps * gradient / damping, moments

    return Rule(0, step)


def row_descent(rate: float | Array) -> Rule:
    """Return plain gradient descent."""
    return Rule(0, lambda moments, gradient, info: (-rate * gradient, moments))


def row_adam(
    learning_rate: float | Array,
    b1: float | Array = 0.9,
    b2: float | Array = 0.999,
    eps: float = 1e-8,
) -> Rule:
    """Return Adam with lazily decayed moments: equal to dense Adam if b1 = 0."""

    def step(moments: list[Array], gradient: Array, info: RowInfo) -> tuple[Array, list[Array]]:
        first, second = moments
        time = info.time.astype(gradient.dtype)
        first = b1**info.idle * first + (1 - b1) * gradient
        second = b2**info.idle * second + (1 - b2) * jnp.square(gradient)
        size = jnp.sqrt(second / (1 - b2**time)) + eps
        return -learning_rate / (1 - b1**time) * first / size, [first, second]

    return Rule(2, step)


def sum_duplicates(index: Array, gradient: Array) -> Array:
    """Return, for every occurrence of a row, the sum of the gradients of all its occurrences.

    index: [M]; gradient: [M, n].
    """
    if len(index) <= EQUALITY_LIMIT:
        return (index[:, None] == index[None, :]).astype(gradient.dtype) @ gradient
    order = jnp.argsort(index)
    ordered = index[order]
    segment = jnp.cumsum(jnp.append(0, ordered[1:] != ordered[:-1]))
    total = jax.ops.segment_sum(
        gradient[order], segment, num_segments=len(index), indices_are_sorted=True
    )
    return jnp.zeros_like(gradient).at[order].set(total[segment], unique_indices=True)


def on_clock(time: Array, like: Array) -> Array:
    """Return a number of steps modulo CLOCK, in the precision of `like`."""
    return (time % CLOCK).astype(like.dtype)


def steps_since(updated: Array, time: Array) -> Array:
    """Return the steps from the clock reading `updated` until `time`."""
    steps = on_clock(time, updated) - updated
    return jnp.where(steps < 0, steps + CLOCK, steps)


def make_store(rules: Tree, widths: Tree) -> Store:
    """Return the store of tables with these widths and optimisers: two trees with the same keys.

    The columns of `data` are the parameters of all tables, the moments of all rules, and the clock.
    """
    table_rules, names = jax.tree.flatten(rules, is_leaf=lambda x: isinstance(x, Rule))
    table_widths = jax.tree.leaves(widths)
    n_tables = len(table_widths)
    moment_widths = [
        width
        for rule, width in zip(table_rules, table_widths, strict=True)
        for _ in range(rule.moments)
    ]
    edges = [0, *itertools.accumulate([*table_widths, *moment_widths])]
    split = lambda data: [data[..., a:b] for a, b in itertools.pairwise(edges)]

    def pack(tables: Tree) -> np.ndarray:
        columns = np.concatenate(jax.tree.leaves(tables), axis=1)
        return np.pad(columns, [(0, 0), (0, edges[-1] + 1 - columns.shape[1])])

    def unpack(data: Array) -> Tree:
        return jax.tree.unflatten(names, split(data)[:n_tables])

    def look_up(data: Array, index: Array) -> Tree:
        return unpack(data[index, : edges[n_tables]])

    def look_up_moments(data: Array, time: Array, index: Array) -> tuple[Tree, list[Array], Array]:
        # Gathered one by one, so that XLA drops the parts that the caller does not use.
        parts = [data[index, a:b] for a, b in itertools.pairwise(edges)]
        rows, moments = jax.tree.unflatten(names, parts[:n_tables]), parts[n_tables:]
        return rows, moments, steps_since(data[index, -1:], time)

    def update(data: Array, time: Array, index: Array, gradients: Tree) -> Array:
        index = index.reshape(-1)
        columns = [gradient.reshape(len(index), -1) for gradient in jax.tree.leaves(gradients)]
        ones = jnp.ones((len(index), 1), data.dtype)  # whose sums count occurrences
        *summed, occurrences = jnp.split(
            sum_duplicates(index, jnp.concatenate([*columns, ones], axis=1)),
            edges[1 : n_tables + 1],
            axis=1,
        )
        rows = data[index]  # [M, W]
        parts = split(rows)
        moments = iter(parts[n_tables:])
        info = RowInfo(steps_since(rows[:, -1:], time), occurrences, time)
        new_params, new_moments = [], []
        for rule, params, gradient in zip(table_rules, parts[:n_tables], summed, strict=True):
            rule_moments = list(itertools.islice(moments, rule.moments))
            step, rule_moments = rule.step(rule_moments, gradient, info)
            new_params.append(params + step)
            new_moments += rule_moments
        # All occurrences of a row computed the same new row: the order of writing does not matter.
        return data.at[index].set(
            jnp.concatenate([*new_params, *new_moments, on_clock(time, data) * ones], axis=1)
        )

    return Store(
        pack=pack,
        unpack=unpack,
        look_up=look_up,
        look_up_moments=look_up_moments,
        update=update,
    )


def empty_store(names: Iterable[str]) -> Store:
    """Return a store without tables, for networks that have none; `names` are the heads'."""
    empty: Tree = {name: {} for name in names}
    no_idle = lambda data, index: jnp.zeros((*index.shape[:1], 1), data.dtype)
    return Store(
        pack=lambda tables: np.zeros((0, 0), np.float32),
        unpack=lambda data: empty,
        look_up=lambda data, index: empty,
        look_up_moments=lambda data, time, index: (empty, [], no_idle(data, index)),
        update=lambda data, time, index, gradients: data,
    )
