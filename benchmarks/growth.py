"""How pace, memory and compile time of ersac grow with depth and with the number of seeds."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from benchmarks import workloads
from benchmarks.measure import (
    Comparison,
    OnProgress,
    Plan,
    Workload,
    in_subprocess,
    measure_paces,
    warm_up,
)

DEPTHS, BASE_DEPTH = (10, 25, 50, 100, 250), 25
SEEDS, SEEDS_DEPTH = (1, 4, 16, 64), 50  # seeds are varied at that depth
MANY_SEEDS = 8  # at the greatest depth, for the memory of one more seed


class Footprint(NamedTuple):
    """Memory and compile time of one run, measured in its own process."""

    carry_bytes: int  # the arrays of all seeds
    peak_bytes: int  # resident memory of the process, with Python, jax and the compiler
    compile_seconds: float  # without any cache


def measure_growth(plan: Plan, on_progress: OnProgress) -> list[Comparison]:
    """Paces, measured in turns; then memory and compile time of each run in its own process."""
    depths = (BASE_DEPTH, 250) if plan.quick else DEPTHS
    found = compare_paces(plan, on_progress, "depth", depths, BASE_DEPTH, workloads.ersac)
    if plan.quick:
        return found
    with_seeds = partial(workloads.ersac, SEEDS_DEPTH)
    found += compare_paces(plan, on_progress, "seeds", SEEDS, 1, with_seeds)
    return found + compare_footprints(on_progress)


def compare_paces(
    plan: Plan,
    on_progress: OnProgress,
    noun: str,
    values: tuple[int, ...],
    base: int,
    make: Callable[[int], Workload],
) -> list[Comparison]:
    """The pace at each value of depth or seeds against that at the base."""
    makers = {f"{noun} {value}": partial(make, value) for value in values}
    paces = measure_paces(warm_up(makers, on_progress), plan, on_progress)
    return [
        Comparison(
            f"growth/{noun}_{value}_over_{base}",
            f"pace of ersac, {noun} {value} / {noun} {base}",
            paces[f"{noun} {value}"],
            paces[f"{noun} {base}"],
        )
        for value in values
        if value != base
    ]


def compare_footprints(on_progress: OnProgress) -> list[Comparison]:
    """Memory and compile time against the smallest run, and the memory of more seeds."""
    deepest = DEPTHS[-1]
    cases = (
        [(depth, 1) for depth in DEPTHS]
        + [(SEEDS_DEPTH, seeds) for seeds in SEEDS if seeds > 1]
        + [(deepest, MANY_SEEDS)]
    )
    footprints: dict[tuple[int, int], Footprint] = {}
    for depth, seeds in cases:
        on_progress(f"alone in a process: depth {depth}, seeds {seeds}")
        footprints[depth, seeds] = next(in_subprocess(footprint, depth, seeds))
    found: list[Comparison] = []
    for depth, seeds in cases[1:]:
        found += against_smallest(depth, seeds, footprints[depth, seeds], footprints[cases[0]])
    one, many = footprints[deepest, 1], footprints[deepest, MANY_SEEDS]
    peak = (many.peak_bytes - one.peak_bytes) / 1e6
    arrays = (many.carry_bytes - one.carry_bytes) / 1e6
    # The ratio is 1 where no array is ever copied.
    meaning = f"peak memory / arrays, of {MANY_SEEDS - 1} more seeds at depth {deepest}"
    return [*found, Comparison(f"growth/copies/depth_{deepest}", meaning, [peak], [arrays], "MB")]


def against_smallest(
    depth: int, seeds: int, run: Footprint, smallest: Footprint
) -> list[Comparison]:
    """Arrays, peak memory and compile time of a run against those of the smallest run."""
    case, suffix = f"depth {depth}, seeds {seeds}", f"depth_{depth}_seeds_{seeds}"
    rows = (
        ("arrays", "arrays", run.carry_bytes / 1e6, smallest.carry_bytes / 1e6, "MB"),
        ("memory", "peak memory", run.peak_bytes / 1e6, smallest.peak_bytes / 1e6, "MB"),
        ("compile", "compile time", run.compile_seconds, smallest.compile_seconds, "s"),
    )
    return [
        Comparison(
            f"growth/{name}/{suffix}",
            f"{meaning}, {case} / depth {DEPTHS[0]}, seeds 1",
            [above],
            [below],
            units,
        )
        for name, meaning, above, below, units in rows
    ]


def footprint(depth: int, seeds: int) -> Iterator[Footprint]:
    """Compile a run without any cache and take a few chunks; to be called in a new process."""
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
    """The peak resident memory of this process; getrusage's is inherited from the parent."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
