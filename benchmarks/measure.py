"""How things are measured: side by side in one run, taking turns, as ratios with their spread."""

import multiprocessing
import statistics
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

Tell = Callable[[str], None]  # says what is being done; 'stage: detail'
Contestant = Iterator[
    tuple[int, float]
]  # next() takes environment steps and gives (steps, seconds), without end; the first one compiles


class Plan(NamedTuple):
    """How much is measured."""

    quick: bool
    repeats: int
    seconds: float  # of each contestant in each repeat, at least
    seeds: int  # of 'many seeds'


class Finding(NamedTuple):
    """A ratio: one value of each side a repeat. Sides that took turns are divided repeat by repeat."""

    name: str
    meaning: str
    above: list[float]
    below: list[float]
    unit: str = "steps/s"


class Ratio(NamedTuple):
    """What a finding comes to."""

    median: float
    low: float
    high: float
    repeats: int


def ratio(finding: Finding) -> Ratio:
    """The median over repeats, and the least and the greatest of them."""
    each = [above / below for above, below in zip(finding.above, finding.below, strict=True)]
    return Ratio(statistics.median(each), min(each), max(each), len(each))


def steps_per_second(contestant: Contestant, seconds: float) -> float:
    """The pace of a contestant over at least that long."""
    steps, spent = 0, 0.0
    while spent < seconds:
        more_steps, more_seconds = next(contestant)
        steps, spent = steps + more_steps, spent + more_seconds
    return steps / spent


def alternate(contestants: dict[str, Contestant], plan: Plan, tell: Tell) -> dict[str, list[float]]:
    """Steps per second of each contestant, a number a repeat; they take turns, so that a slow minute hits all of them."""
    paces: dict[str, list[float]] = {name: [] for name in contestants}
    for repeat in range(plan.repeats):
        for name, contestant in contestants.items():
            tell(f"repeat {repeat + 1} of {plan.repeats}: {name}")
            paces[name].append(steps_per_second(contestant, plan.seconds))
    return paces


def prepared(makers: dict[str, Callable[[], Contestant]], tell: Tell) -> dict[str, Contestant]:
    """Every contestant by name, compiled and warm; they compile side by side, and are warmed up one after the other."""
    tell(f"compiling: {', '.join(makers)}")
    with ThreadPoolExecutor() as pool:
        made = dict(zip(makers, pool.map(lambda make: make(), makers.values()), strict=True))
    for name, contestant in made.items():
        tell(f"warming up: {name}")
        next(contestant)
    return made


def resident(make: Callable[..., Iterator[T]], *arguments: Any) -> Iterator[T]:
    """A stream that lives in a fresh process of its own. Whoever is measured counts seconds there: the way to it costs nothing."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, make, arguments), daemon=True)
    process.start()
    there.close()
    here.send("next")  # it may compile while this process goes on

    def stream() -> Iterator[T]:
        try:
            while True:
                yield receive(process, here)
                here.send("next")
        finally:
            here.close()  # which ends a process that waits for us
            process.join(timeout=5)
            if process.is_alive():
                process.terminate()

    return stream()


def receive(process: SpawnProcess, here: Connection) -> Any:
    """The next thing that a process gives; what went wrong there is raised here."""
    try:
        failed, what = here.recv()
    except (EOFError, ConnectionResetError):
        process.join()
        raise RuntimeError(
            f"a process of the benchmark ended with code {process.exitcode} and no answer"
        ) from None
    if failed:
        raise RuntimeError(what)
    return what


def _serve(
    there: Connection, make: Callable[..., Iterator[Any]], arguments: tuple[Any, ...]
) -> None:
    try:
        stream = make(*arguments)
        while there.recv():
            there.send((False, next(stream)))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return  # the other side hung up, or is being interrupted as we are
    except Exception:
        there.send((True, traceback.format_exc()))
