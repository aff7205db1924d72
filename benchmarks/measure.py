"""Measure workloads side by side in one run, taking turns, and compare them as ratios."""

import multiprocessing
import statistics
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

OnProgress = Callable[[str], None]  # is called with 'stage: detail'
# next() runs some environment steps and returns (steps, seconds); the first call may compile.
Workload = Iterator[tuple[int, float]]


class Plan(NamedTuple):
    """How much is measured."""

    quick: bool
    repeats: int
    seconds: float  # of each workload in each repeat, at least
    seeds: int  # of 'many seeds'


class Comparison(NamedTuple):
    """Two sides of a ratio, one value per repeat."""

    name: str
    meaning: str
    above: list[float]  # numerators
    below: list[float]  # denominators
    units: str = "steps/s"


class Ratio(NamedTuple):
    """The ratio of a comparison over its repeats."""

    median: float
    low: float
    high: float
    repeats: int


def ratio(comparison: Comparison) -> Ratio:
    """The median, the least and the greatest ratio; sides are divided repeat by repeat."""
    pairs = zip(comparison.above, comparison.below, strict=True)
    ratios = [above / below for above, below in pairs]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios), len(ratios))


def steps_per_second(workload: Workload, seconds: float) -> float:
    """The pace of a workload over at least that long."""
    total_steps, total_seconds = 0, 0.0
    while total_seconds < seconds:
        steps, elapsed = next(workload)
        total_steps, total_seconds = total_steps + steps, total_seconds + elapsed
    return total_steps / total_seconds


def measure_paces(
    workloads: dict[str, Workload], plan: Plan, on_progress: OnProgress
) -> dict[str, list[float]]:
    """Steps per second of each workload, one value per repeat.

    The workloads take turns, so that a slow minute of the machine affects all of them.
    """
    paces: dict[str, list[float]] = {name: [] for name in workloads}
    for repeat in range(plan.repeats):
        for name, workload in workloads.items():
            on_progress(f"repeat {repeat + 1} of {plan.repeats}: {name}")
            paces[name].append(steps_per_second(workload, plan.seconds))
    return paces


def warm_up(
    makers: dict[str, Callable[[], Workload]], on_progress: OnProgress
) -> dict[str, Workload]:
    """Make every workload in parallel, then take its first step, which compiles."""
    on_progress(f"compiling: {', '.join(makers)}")
    with ThreadPoolExecutor() as pool:
        workloads = dict(zip(makers, pool.map(lambda make: make(), makers.values()), strict=True))
    for name, workload in workloads.items():
        on_progress(f"warming up: {name}")
        next(workload)
    return workloads


def in_subprocess(make: Callable[..., Iterator[T]], *arguments: Any) -> Iterator[T]:
    """An iterator that runs in a new process; seconds are counted there, without the pipe."""
    context = multiprocessing.get_context("spawn")
    connection, child_connection = context.Pipe()
    process = context.Process(target=_serve, args=(child_connection, make, arguments), daemon=True)
    process.start()
    child_connection.close()
    connection.send("next")  # so that it compiles in parallel with this process

    def stream() -> Iterator[T]:
        try:
            while True:
                yield receive(process, connection)
                connection.send("next")
        finally:
            connection.close()  # ends a process that waits for the next request
            process.join(timeout=5)
            if process.is_alive():
                process.terminate()

    return stream()


def receive(process: SpawnProcess, connection: Connection) -> Any:
    """The next value of a process; an exception in it is raised as RuntimeError."""
    try:
        failed, value = connection.recv()
    except (EOFError, ConnectionResetError):
        process.join()
        raise RuntimeError(
            f"a process of the benchmark ended with code {process.exitcode} and no answer"
        ) from None
    if failed:
        raise RuntimeError(value)
    return value


def _serve(
    connection: Connection, make: Callable[..., Iterator[Any]], arguments: tuple[Any, ...]
) -> None:
    try:
        stream = make(*arguments)
        while connection.recv():
            connection.send((False, next(stream)))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return  # the parent closed the connection, or both are interrupted
    except Exception:
        connection.send((True, traceback.format_exc()))
