"""What a person sees while a run goes on: a live table on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

LINE_SECONDS = 2.0  # between plain lines


class Status(NamedTuple):
    """Where a run is; an entry a seed."""

    seeds: list[int]
    done: int  # of the seed that has fewest
    budget: int
    seconds: float  # since the first step
    steps_per_second: float
    goal_share: np.ndarray  # of the last 100 episodes
    told: dict[str, np.ndarray]  # what the learner says of itself
    solved: list[int | None]
    unit: str = "episodes"  # that is budgeted
    returns: np.ndarray | None = (
        None  # means of the last 100 episodes, where these tell more than goals
    )


class SweepStatus(NamedTuple):
    """Where a sweep is."""

    steps: int
    steps_wanted: int
    steps_here: int  # of those, in this life of the sweep
    seconds: float  # of this life
    batches: int  # that have an end
    batches_wanted: int
    runs: int  # that have ended
    runs_wanted: int
    failed: int


class Display(Protocol):
    """Somewhere to show a run, or a sweep."""

    def show(self, status: Any) -> None:
        """Show where it is now."""

    def close(self) -> None:
        """Leave the last state on the screen."""


class NullDisplay:
    """Shows nothing."""

    def show(self, status: Any) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class LineDisplay:
    """A plain line every two seconds."""

    def __init__(self, console: Console, words: Callable[[Any], str]) -> None:
        self.console, self.words = console, words
        self.next = 0.0
        self.last: Any = None
        self.shown: Any = None

    def show(self, status: Any) -> None:
        """Print a line unless one was printed just now."""
        self.last = status
        if time.monotonic() >= self.next:
            self._print(status)

    def close(self) -> None:
        """Print the last state, if it was not."""
        if self.last is not None and self.last is not self.shown:
            self._print(self.last)

    def _print(self, status: Any) -> None:
        self.next, self.shown = time.monotonic() + LINE_SECONDS, status
        self.console.print(self.words(status), soft_wrap=True, highlight=False)


def format_status(status: Status) -> str:
    """Where a run is, in a line."""
    spread = lambda values, form: f"{np.min(values):{form}}..{np.max(values):{form}}"
    done = sum(solved is not None for solved in status.solved)
    told = "".join(f"  {name} {spread(values, '.3g')}" for name, values in status.told.items())
    reached = (
        f"goal {spread(status.goal_share, '.2f')}"
        if status.returns is None
        else f"return {spread(status.returns, '.4g')}"
    )
    return (
        f"{status.unit.removesuffix('s')} {status.done:,}/{status.budget:,}  {status.steps_per_second:,.0f} steps/s  eta {eta(status)}"
        f"  solved {done}/{len(status.seeds)}  {reached}{told}"
    )


def format_sweep_status(status: SweepStatus) -> str:
    """Where a sweep is, in a line."""
    left = status.seconds * (status.steps_wanted - status.steps) / max(1, status.steps_here)
    eta = duration(left) if status.steps_here else "?"
    return (
        f"{status.steps / max(1, status.steps_wanted):.0%} of {status.steps_wanted:,} steps  eta {eta}"
        f"  batches {status.batches}/{status.batches_wanted}  runs {status.runs}/{status.runs_wanted}  failed {status.failed}"
    )


def progress_bar(console: Console) -> Progress:
    """A bar with what is done, how long it took and how long it will."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
    )
    return Progress(
        *columns, TimeElapsedColumn(), TextColumn("{task.fields[eta]}"), console=console
    )


class BarDisplay:
    """A sweep's progress, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self.progress = progress_bar(console)
        self.task = self.progress.add_task("compiling", total=None, eta="")
        self.progress.start()

    def show(self, status: SweepStatus) -> None:
        """Redraw."""
        self.progress.update(
            self.task,
            description=format_sweep_status(status),
            total=status.steps_wanted,
            completed=status.steps,
        )

    def close(self) -> None:
        """Stop redrawing."""
        self.progress.stop()


class TableDisplay:
    """A progress bar and a table, a row a seed, redrawn in place."""

    ROWS = 16  # more seeds than this are counted, not listed

    def __init__(self, console: Console) -> None:
        self.progress = progress_bar(console)
        self.task = self.progress.add_task("compiling", total=None, eta="")
        self.live = Live(self.progress, console=console, refresh_per_second=4)
        self.live.start()

    def show(self, status: Status) -> None:
        """Redraw."""
        text = f"{status.done:,} of {status.budget:,} {status.unit}, {status.steps_per_second:,.0f} steps/s"
        self.progress.update(
            self.task,
            description=text,
            total=status.budget,
            completed=status.done,
            eta=f"eta {eta(status)}",
        )
        reached = "goal, last 100" if status.returns is None else "return, last 100"
        table = Table("seed", reached, *status.told, "solved at", box=None, header_style="bold")
        for i, seed in enumerate(status.seeds[: self.ROWS]):
            solved = "" if status.solved[i] is None else f"{status.solved[i]:,}"
            numbers = (f"{values[i]:.3g}" for values in status.told.values())
            share = (
                f"{status.goal_share[i]:.0%}"
                if status.returns is None
                else f"{status.returns[i]:.4g}"
            )
            table.add_row(str(seed), share, *numbers, solved)
        hidden = len(status.seeds) - self.ROWS
        if hidden > 0:
            rest = sum(solved is not None for solved in status.solved[self.ROWS :])
            table.add_row("...", f"and {hidden} more, {rest} of them solved")
        self.live.update(Group(self.progress, table))

    def close(self) -> None:
        """Stop redrawing."""
        self.live.stop()


def note(text: str) -> None:
    """Say one thing that a person must know, even where nothing else is shown."""
    print(f"ersac: {' '.join(text.split())}", file=sys.stderr, flush=True)


def make_display(show: bool, console: Console | None = None) -> Display:
    """The display of a run that fits the output."""
    console = console or Console()
    if not show:
        return NullDisplay()
    return TableDisplay(console) if console.is_terminal else LineDisplay(console, format_status)


def make_sweep_display(show: bool) -> Display:
    """The display of a sweep that fits the output."""
    console = Console()
    if not show:
        return NullDisplay()
    return BarDisplay(console) if console.is_terminal else LineDisplay(console, format_sweep_status)


def eta(status: Status) -> str:
    """The time that the rest of the budget will take at this pace."""
    return duration(status.seconds * (status.budget - status.done) / max(1, status.done))


def duration(seconds: float) -> str:
    """A time as a person would say it."""
    if seconds >= 7200:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
