"""How ours grows: pace, memory and compile time against depth and against the number of seeds."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from benchmarks import contestants
from benchmarks.measure import Contestant, Finding, Plan, Tell, alternate, prepared, resident

DEPTHS, BASE_DEPTH = (10, 25, 50, 100, 250), 25
SEEDS, SEEDS_DEPTH = (1, 4, 16, 64), 50  # seeds are counted at that depth
MANY = 8  # seeds at the greatest depth: what one more seed takes there


class Footprint(NamedTuple):
    """What one run takes of the machine, measured in a process of its own."""

    carry_bytes: int  # the arrays of all seeds
    peak_bytes: int  # resident, of the whole process: Python, jax and the compiler included
    compile_seconds: float  # without any cache


def measure(plan: Plan, tell: Tell) -> list[Finding]:
    """Paces taken in turns; then every run alone for its memory and its compile time."""
    depths = (BASE_DEPTH, 250) if plan.quick else DEPTHS
    found = paces_by(plan, tell, "depth", depths, BASE_DEPTH, contestants.ours)
    if plan.quick:
        return found
    found += paces_by(
        plan, tell, "seeds", SEEDS, 1, lambda seeds: contestants.ours(SEEDS_DEPTH, seeds)
    )
    return found + footprints(tell)


def paces_by(
    plan: Plan,
    tell: Tell,
    what: str,
    values: tuple[int, ...],
    base: int,
    make: Callable[[int], Contestant],
) -> list[Finding]:
    """The pace at each value against that at the base."""
    made: dict[str, Contestant] = prepared(
        {f"{what} {value}": partial(make, value) for value in values}, tell
    )
    paces = alternate(made, plan, tell)
    below = paces[f"{what} {base}"]
    name = lambda value: f"growth/{what}_{value}_over_{base}"
    meaning = lambda value: f"pace of ours at {what} {value} / at {what} {base}"
    return [
        Finding(name(value), meaning(value), paces[f"{what} {value}"], below)
        for value in values
        if value != base
    ]


def footprints(tell: Tell) -> list[Finding]:
    """Memory and compile time against those of the smallest run, and what more seeds take beyond their arrays."""
    cases = (
        [(depth, 1) for depth in DEPTHS]
        + [(SEEDS_DEPTH, seeds) for seeds in SEEDS if seeds > 1]
        + [(DEPTHS[-1], MANY)]
    )
    taken: dict[tuple[int, int], Footprint] = {}
    for depth, seeds in cases:
        tell(f"alone in a process: depth {depth}, seeds {seeds}")
        taken[depth, seeds] = next(resident(footprint, depth, seeds))
    least, deep, many = taken[cases[0]], taken[DEPTHS[-1], 1], taken[DEPTHS[-1], MANY]
    found = [against_least(depth, seeds, taken[depth, seeds], least) for depth, seeds in cases[1:]]
    peak, carry = (
        (many.peak_bytes - deep.peak_bytes) / 1e6,
        (many.carry_bytes - deep.carry_bytes) / 1e6,
    )
    meaning = f"peak memory / arrays, of {MANY - 1} seeds more at depth {DEPTHS[-1]}"  # 1 where nothing is ever copied
    return [
        *itertools.chain(*found),
        Finding(f"growth/copies/depth_{DEPTHS[-1]}", meaning, [peak], [carry], "MB"),
    ]


def against_least(depth: int, seeds: int, one: Footprint, least: Footprint) -> list[Finding]:
    """A run's arrays, whole memory and compile time over those of the smallest run."""
    what = f"depth {depth}, seeds {seeds} / depth {DEPTHS[0]}, seeds 1"
    where = f"depth_{depth}_seeds_{seeds}"
    return [
        Finding(
            f"growth/arrays/{where}",
            f"arrays, {what}",
            [one.carry_bytes / 1e6],
            [least.carry_bytes / 1e6],
            "MB",
        ),
        Finding(
            f"growth/memory/{where}",
            f"peak memory, {what}",
            [one.peak_bytes / 1e6],
            [least.peak_bytes / 1e6],
            "MB",
        ),
        Finding(
            f"growth/compile/{where}",
            f"compile time, {what}",
            [one.compile_seconds],
            [least.compile_seconds],
            "s",
        ),
    ]


def footprint(depth: int, seeds: int) -> Iterator[Footprint]:
    """To be called in a process of its own: compile a run without any cache and take a few chunks of it."""
    import jax

    jax.config.update("jax_enable_compilation_cache", False)
    from ersac import api
    from ersac.loops import device

    program = device.prepare_device(api.make_settings(depth=depth, seeds=seeds))
    carry_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(program.carry))
    chunks = device.run_device(program)
    for _ in range(3):
        next(chunks)
    yield Footprint(carry_bytes, peak_resident_bytes(), program.compile_seconds)


def peak_resident_bytes() -> int:
    """The most memory that this process has held. Not getrusage's number, which a child inherits from its parent."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
