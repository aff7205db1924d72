"""Tables whose untouched rows cost nothing.

A one-hot observation times a matrix is a row of it. So observations stay integers, a loss is differentiated with
respect to the rows that were looked up, and an optimiser moves those rows only: what is not looked up is not read,
not written and not copied, and a step costs the same at depth 25 and at depth 250.

Moments of rows that were left alone decay lazily, by the number of steps since the row was last touched. Without
momentum that is exactly the dense optimiser (a dense step leaves such rows where they are); with momentum it differs in
one thing: a row does not drift on while nobody looks at it.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import numpy as jnp

from ersac.types import Array, Tree

EQUALITY_LIMIT = 128  # rows; below it an [M, M] product is faster than a sort


class Touch(NamedTuple):
    """What an optimiser may know of the rows it moves, besides their gradient."""

    idle: Array  # [M] int32   steps since the row was last touched
    occurrences: Array  # [M]  how often the row stands in this batch
    time: Array  # [] int32    steps taken, this one included


class Rule(NamedTuple):
    """An optimiser for rows: the state a row keeps, and the step it takes."""

    init: Callable[[Array], Tree]  # table [S, ...] -> state of every row, each leaf [S, ...]
    step: Callable[[Tree, Array, Touch], tuple[Array, Tree]]  # (state, gradient [M, ...], touch) -> (step [M, ...], state)


class RowState(NamedTuple):
    """What the optimiser keeps of one table."""

    moments: Tree  # each leaf [S, ...]
    touched: Array  # [S] int32   time of the row's last step
    time: Array  # [] int32       steps taken so far


def per_visit(rate: float | Array, steps: int) -> Rule:
    """Descent at a known rate per visit, for a loss that is a mean over `steps` steps.

    On a squared error, one visit corrects the share `rate` of it. A row that stands m times in the batch corrects
    m rate / (1 + (m - 1) rate) of its mean error: below one whatever m is, where the plain sum would overshoot.
    """

    def step(state: Tree, gradient: Array, touch: Touch) -> tuple[Array, Tree]:
        damping = 1 + (touch.occurrences - 1) * jnp.minimum(rate, 1.0)
        return -rate * steps * gradient / _column(damping, gradient), state

    return Rule(lambda table: (), step)


def adam(learning_rate: float | Array, b1: float | Array = 0.9, b2: float | Array = 0.999, eps: float = 1e-8) -> Rule:
    """Adam whose moments decay by the steps a row has been idle; equal to dense Adam at b1 = 0."""

    def step(state: Tree, gradient: Array, touch: Touch) -> tuple[Array, Tree]:
        first, second = state
        idle, time = _column(touch.idle, gradient), touch.time.astype(gradient.dtype)
        first = b1**idle * first + (1 - b1) * gradient
        second = b2**idle * second + (1 - b2) * jnp.square(gradient)
        size = jnp.sqrt(second / (1 - b2**time)) + eps
        return -learning_rate * first / (1 - b1**time) / size, (first, second)

    return Rule(lambda table: (jnp.zeros_like(table), jnp.zeros_like(table)), step)


def _column(x: Array, like: Array) -> Array:
    return x.reshape(x.shape + (1,) * (like.ndim - x.ndim)).astype(like.dtype)


def gather(tables: Tree, index: Array) -> Tree:
    """Look the rows up: each table [S, ...] becomes [*index.shape, ...]."""
    return jax.tree.map(lambda table: table[index], tables)


class Moved(NamedTuple):
    """A table and its optimiser after a step."""

    table: Array
    state: RowState


def sum_duplicates(index: Array, gradient: Array) -> Array:
    """Give every occurrence of a row the sum of the gradients of all its occurrences. index: [M], gradient: [M, ...]."""
    flat = gradient.reshape(len(index), -1)
    if len(index) <= EQUALITY_LIMIT:
        same = (index[:, None] == index[None, :]).astype(flat.dtype)
        return (same @ flat).reshape(gradient.shape)
    order = jnp.argsort(index)
    ordered = index[order]
    segment = jnp.cumsum(jnp.append(0, ordered[1:] != ordered[:-1]))
    total = jax.ops.segment_sum(flat[order], segment, num_segments=len(index), indices_are_sorted=True)
    return jnp.zeros_like(flat).at[order].set(total[segment], unique_indices=True).reshape(gradient.shape)


def occurrences(index: Array) -> Array:
    """How often each entry of `index` [M] stands in it [M]."""
    return sum_duplicates(index, jnp.ones(len(index)))


def init(rule: Rule, table: Array) -> RowState:
    """The state of an optimiser that has not yet moved anything."""
    return RowState(rule.init(table), jnp.zeros(len(table), jnp.int32), jnp.zeros((), jnp.int32))


def update(rule: Rule, table: Array, state: RowState, index: Array, gradient: Array) -> Moved:
    """Move the rows `index` [M] of a table along `gradient` [M, ...]; duplicates are one row with the summed gradient."""
    time = state.time + 1
    touch = Touch(time - state.touched[index], occurrences(index), time)
    # Every occurrence of a row computes the same new row, so the order in which duplicates are written is immaterial.
    step, moments = rule.step(gather(state.moments, index), sum_duplicates(index, gradient), touch)
    table = table.at[index].set(table[index] + step)
    moments = jax.tree.map(lambda whole, part: whole.at[index].set(part), state.moments, moments)
    return Moved(table, RowState(moments, state.touched.at[index].set(time), time))


def init_all(rules: Tree, tables: Tree) -> Tree:
    """`init` for every table of a tree, each with its own rule."""
    return jax.tree.map(init, rules, tables, is_leaf=lambda x: isinstance(x, Rule))


def update_all(rules: Tree, tables: Tree, states: Tree, index: Array, gradients: Tree) -> tuple[Tree, Tree]:
    """`update` for every table of a tree; index: any shape, gradients: that shape in front of a row's own."""
    flat = lambda gradient, table: gradient.reshape(-1, *table.shape[1:])
    one = lambda rule, table, state, gradient: update(rule, table, state, index.reshape(-1), flat(gradient, table))
    pairs = jax.tree.map(one, rules, tables, states, gradients, is_leaf=lambda x: isinstance(x, Rule))
    part = lambda i: jax.tree.map(lambda pair: pair[i], pairs, is_leaf=lambda x: isinstance(x, Moved))
    return part(0), part(1)
