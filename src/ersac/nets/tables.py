"""Tables whose untouched rows cost nothing.

A one-hot observation times a matrix is a row of it. So observations stay integers, a loss is differentiated with
respect to the rows that were looked up, and an optimiser moves those rows only: what is not looked up is not read,
not written and not copied, and a step costs the same at depth 25 and at depth 250.

All that a state has of its own stands in one row of one array: its parameters in every table, then what their optimisers
keep, then when it was last touched. One gather reads it and one scatter writes it, in that order, so XLA has no reason to
copy the array in between (with an array for each of these, it did).

Moments of rows that were left alone decay lazily, by the number of steps since the row was last touched. Without
momentum that is exactly the dense optimiser (a dense step leaves such rows where they are); with momentum it differs in
one thing: a row does not drift on while nobody looks at it.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from ersac.types import Array, Tree

EQUALITY_LIMIT = 128  # rows; below it an [M, M] product is faster than a sort
CLOCK = 2**24  # steps after which a row's clock begins again: as far as single precision counts


class RowInfo(NamedTuple):
    """What an optimiser may know of the rows it moves, besides their gradient."""

    idle: Array  # [M, 1]         steps since the row was last touched
    occurrences: Array  # [M, 1]  how often the row stands in this batch
    time: Array  # []             steps taken, this one included; a whole number


class Rule(NamedTuple):
    """An optimiser for rows [M, n]: how many moments of that shape it keeps, and the step it takes."""

    moments: int
    step: Callable[
        [list[Array], Array, RowInfo], tuple[Array, list[Array]]
    ]  # (moments, gradient, info) -> (step, moments)


class Store(NamedTuple):
    """Tables that are looked up by the same index, and their optimisers, in one array [S, W]."""

    pack: Callable[[Tree], np.ndarray]  # tables, each [S, n] -> the array, before the first step
    unpack: Callable[[Array], Tree]  # the array -> its tables
    look_up: Callable[[Array, Array], Tree]  # the array, index [...] -> rows, each [..., n]
    look_up_moments: Callable[
        [Array, Array, Array], tuple[Tree, list[Array], Array]
    ]  # the array, time, index -> rows, all moments, idle [..., 1]
    update: Callable[
        [Array, Array, Array, Tree], Array
    ]  # the array, time, index [...], gradients [..., n] -> the array


def per_visit(rate: float | Array, steps: int) -> Rule:
    """Descent at a known rate per visit, for a loss that is a mean over `steps` steps.

    On a squared error, one visit corrects the share `rate` of it. A row that stands m times in the batch corrects
    m rate / (1 + (m - 1) rate) of its mean error: below one whatever m is, where the plain sum would overshoot.
    """

    def step(moments: list[Array], gradient: Array, info: RowInfo) -> tuple[Array, list[Array]]:
        damping = 1 + (info.occurrences - 1) * jnp.minimum(rate, 1.0)
        return -rate * steps * gradient / damping, moments

    return Rule(0, step)


def row_descent(rate: float | Array) -> Rule:
    """Plain gradient descent."""
    return Rule(0, lambda moments, gradient, info: (-rate * gradient, moments))


def row_adam(
    learning_rate: float | Array,
    b1: float | Array = 0.9,
    b2: float | Array = 0.999,
    eps: float = 1e-8,
) -> Rule:
    """Adam whose moments decay by the steps a row has been idle; equal to dense Adam at b1 = 0."""

    def step(moments: list[Array], gradient: Array, info: RowInfo) -> tuple[Array, list[Array]]:
        first, second = moments
        time = info.time.astype(gradient.dtype)
        first = b1**info.idle * first + (1 - b1) * gradient
        second = b2**info.idle * second + (1 - b2) * jnp.square(gradient)
        size = jnp.sqrt(second / (1 - b2**time)) + eps
        return -learning_rate / (1 - b1**time) * first / size, [first, second]

    return Rule(2, step)


def sum_duplicates(index: Array, gradient: Array) -> Array:
    """Give every occurrence of a row the sum of the gradients of all its occurrences. index: [M], gradient: [M, n]."""
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
    """A number of steps as a row's clock shows it."""
    return (time % CLOCK).astype(like.dtype)


def steps_since(touched: Array, time: Array) -> Array:
    """Steps until `time` since a row's clock showed `touched`."""
    steps = on_clock(time, touched) - touched
    return jnp.where(steps < 0, steps + CLOCK, steps)


def make_store(rules: Tree, widths: Tree) -> Store:
    """Tables of those widths, each moved by its own rule (two trees of the same names)."""
    each, names = jax.tree.flatten(rules, is_leaf=lambda x: isinstance(x, Rule))
    spans = jax.tree.leaves(widths)
    kept = [span for rule, span in zip(each, spans, strict=True) for _ in range(rule.moments)]
    edges = [0, *itertools.accumulate([*spans, *kept])]
    cut = lambda data: [data[..., a:b] for a, b in itertools.pairwise(edges)]

    def pack(tables: Tree) -> np.ndarray:
        columns = np.concatenate(jax.tree.leaves(tables), axis=1)
        return np.pad(columns, [(0, 0), (0, edges[-1] + 1 - columns.shape[1])])

    def unpack(data: Array) -> Tree:
        return jax.tree.unflatten(names, cut(data)[: len(spans)])

    def look_up_moments(data: Array, time: Array, index: Array) -> tuple[Tree, list[Array], Array]:
        parts = [
            data[index, a:b] for a, b in itertools.pairwise(edges)
        ]  # one by one: what is not asked for is not read
        return (
            jax.tree.unflatten(names, parts[: len(spans)]),
            parts[len(spans) :],
            steps_since(data[index, -1:], time),
        )

    def update(data: Array, time: Array, index: Array, gradients: Tree) -> Array:
        index = index.reshape(-1)
        flat = [gradient.reshape(len(index), -1) for gradient in jax.tree.leaves(gradients)]
        ones = jnp.ones((len(index), 1), data.dtype)
        *summed, occurrences = jnp.split(
            sum_duplicates(index, jnp.concatenate([*flat, ones], axis=1)),
            edges[1 : len(spans) + 1],
            axis=1,
        )
        rows = data[index]  # [M, W]
        parts = cut(rows)
        parameters, moments = parts[: len(spans)], iter(parts[len(spans) :])
        info = RowInfo(steps_since(rows[:, -1:], time), occurrences, time)
        moved, remembered = [], []
        for rule, old, gradient in zip(each, parameters, summed, strict=True):
            step, new_moments = rule.step(
                list(itertools.islice(moments, rule.moments)), gradient, info
            )
            moved.append(old + step)
            remembered += new_moments
        # Every occurrence of a row has computed the same new row, so the order in which duplicates are written is immaterial.
        return data.at[index].set(
            jnp.concatenate([*moved, *remembered, on_clock(time, data) * ones], axis=1)
        )

    return Store(
        pack,
        unpack,
        lambda data, index: unpack(data[index, : edges[len(spans)]]),
        look_up_moments,
        update,
    )


def empty_store(names: Iterable[str]) -> Store:
    """Where there are no tables: an array of no rows, in which nothing is found and nothing is moved."""
    empty: Tree = {name: {} for name in names}
    no_idle = lambda data, index: jnp.zeros((*index.shape[:1], 1), data.dtype)
    return Store(
        lambda tables: np.zeros((0, 0), np.float32),
        lambda data: empty,
        lambda data, index: empty,
        lambda data, time, index: (empty, [], no_idle(data, index)),
        lambda data, time, index, gradients: data,
    )
