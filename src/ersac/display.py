"""The progress of a run or a sweep: a live table on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ersac.runs import exits

LINE_SECONDS = 2.0  # between plain lines


class Status(NamedTuple):
    """The progress of a run; arrays and lists have an entry a seed."""

    seeds: list[int]
    done: int  # of the budget, by the seed that has done least
    budget: int
    budget_unit: str  # episodes or steps
    seconds: float  # since the first step
    steps_per_second: float
    goal_share: np.ndarray  # of the last 100 episodes
    returns: np.ndarray | None  # means of the last 100 episodes; None: goal_share is shown
    metrics: dict[str, np.ndarray]  # of the learner
    solved_at: list[int | None]  # episodes
    note: str = ""  # what else is to be said, such as how old these numbers are


class SweepStatus(NamedTuple):
    """The progress of a sweep."""

    steps: int
    steps_wanted: int
    steps_here: int  # of those, taken since the sweep was started or resumed
    seconds: float  # since then
    batches: int  # that have ended
    batches_wanted: int
    runs: int  # that have ended
    runs_wanted: int
    failed: int


class CampaignStatus(NamedTuple):
    """The progress of several sweeps; steps differ in cost, so it is in estimated seconds."""

    steps: float  # estimated seconds of what is done
    steps_wanted: float
    steps_here: float  # of those, done since the command was started
    seconds: float  # since then
    sweep: str  # that is run
    number: int  # of that sweep
    sweeps: int
    runs: int  # that have ended
    runs_wanted: int
    failed: int


class Display(Protocol):
    """Shows the progress of a run or a sweep."""

    def prepare(self) -> None:
        """Show that the run or sweep is being prepared."""

    def show(self, status: Any) -> None:
        """Show the latest progress."""

    def close(self) -> None:
        """Show the last progress and stop."""


class NullDisplay:
    """Shows nothing."""

    def prepare(self) -> None:
        """Nothing."""

    def show(self, status: Any) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class LineDisplay:
    """Prints a line every two seconds."""

    def __init__(self, console: Console, to_line: Callable[[Any], str]) -> None:
        self.console, self.to_line = console, to_line
        self.next = 0.0
        self.last: Any = None
        self.shown: Any = None

    def prepare(self) -> None:
        """Say that it compiles, which may take a minute."""
        self.console.print("compiling", soft_wrap=True, highlight=False)

    def show(self, status: Any) -> None:
        """Print a line unless the previous one is less than two seconds old."""
        self.last = status
        if time.monotonic() >= self.next:
            self._print(status)

    def close(self) -> None:
        """Print the last progress if it has not been printed."""
        if self.last is not None and self.last is not self.shown:
            self._print(self.last)

    def _print(self, status: Any) -> None:
        self.next, self.shown = time.monotonic() + LINE_SECONDS, status
        line = exits.printable(self.to_line(status))
        self.console.print(line, soft_wrap=True, highlight=False, markup=False)


def format_status(status: Status) -> str:
    """Return a run's progress as a line."""
    min_max = lambda values, form: f"{np.min(values):{form}}..{np.max(values):{form}}"
    solved = sum(episode is not None for episode in status.solved_at)
    score = f"goal {min_max(status.goal_share, '.2f')}"
    if status.returns is not None:
        score = f"return {min_max(status.returns, '.4g')}"
    parts = [
        f"{status.budget_unit.removesuffix('s')} {status.done:,}/{status.budget:,}",
        f"{status.steps_per_second:,.0f} steps/s",
        f"eta {eta(status)}",
        f"solved {solved}/{len(status.seeds)}",
        score,
        *(f"{name} {min_max(values, '.3g')}" for name, values in status.metrics.items()),
    ]
    return "  ".join([*parts, *([status.note] if status.note else [])])


def format_sweep_status(status: SweepStatus) -> str:
    """Return a sweep's progress as a line."""
    share = status.steps / max(1, status.steps_wanted)
    parts = [
        f"{share:.0%} of {status.steps_wanted:,} steps",
        f"eta {time_left(status)}",
        f"batches {status.batches}/{status.batches_wanted}",
        f"runs {status.runs}/{status.runs_wanted}",
        f"failed {status.failed}",
    ]
    return "  ".join(parts)


def format_campaign_status(status: CampaignStatus) -> str:
    """Return the progress of several sweeps as a line."""
    parts = [
        f"{status.steps / max(1, status.steps_wanted):.0%}",
        f"eta {time_left(status)}",
        f"sweep {status.number}/{status.sweeps} {status.sweep}",
        f"runs {status.runs}/{status.runs_wanted}",
        f"failed {status.failed}",
    ]
    return "  ".join(parts)


def time_left(status: SweepStatus | CampaignStatus) -> str:
    """Return the time left at the pace since the start; '?' before anything is done."""
    left = status.seconds * (status.steps_wanted - status.steps) / max(1, status.steps_here)
    return format_duration(left) if status.steps_here > 0 else "?"


def make_progress_bar(console: Console) -> Progress:
    """Return a bar with the share done, the time elapsed and the time left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
    )
    return Progress(
        *columns, TimeElapsedColumn(), TextColumn("{task.fields[eta]}"), console=console
    )


class BarDisplay:
    """The progress bar of one sweep or of several, redrawn in place."""

    def __init__(self, console: Console, to_line: Callable[[Any], str]) -> None:
        self.to_line = to_line
        self.progress = make_progress_bar(console)
        self.task = self.progress.add_task("compiling", total=None, eta="")
        self.progress.start()

    def prepare(self) -> None:
        """Nothing: the bar says so already."""

    def show(self, status: SweepStatus | CampaignStatus) -> None:
        """Redraw."""
        self.progress.update(
            self.task,
            description=self.to_line(status),
            total=status.steps_wanted,
            completed=status.steps,
        )

    def close(self) -> None:
        """Stop redrawing."""
        self.progress.stop()


class TableDisplay:
    """A progress bar and a table, a row a seed, redrawn in place."""

    ROWS = 16  # seeds that are listed; further ones are counted

    def __init__(self, console: Console) -> None:
        self.progress = make_progress_bar(console)
        self.task = self.progress.add_task("compiling", total=None, eta="")
        self.screen = Live(self.progress, console=console, refresh_per_second=4)
        self.screen.start()

    def prepare(self) -> None:
        """Nothing: the bar says so already."""

    def show(self, status: Status) -> None:
        """Redraw."""
        done = f"{status.done:,} of {status.budget:,} {status.budget_unit}"
        self.progress.update(
            self.task,
            description=", ".join(
                filter(None, [done, f"{status.steps_per_second:,.0f} steps/s", status.note])
            ),
            total=status.budget,
            completed=status.done,
            eta=f"eta {eta(status)}",
        )
        score = "goal, last 100" if status.returns is None else "return, last 100"
        names = map(escape, status.metrics)
        table = Table("seed", score, *names, "solved at", box=None, header_style="bold")
        for i, seed in enumerate(status.seeds[: self.ROWS]):
            solved = "" if status.solved_at[i] is None else f"{status.solved_at[i]:,}"
            metrics = (f"{values[i]:.3g}" for values in status.metrics.values())
            score = f"{status.goal_share[i]:.0%}"
            if status.returns is not None:
                score = f"{status.returns[i]:.4g}"
            table.add_row(str(seed), score, *metrics, solved)
        hidden = len(status.seeds) - self.ROWS
        if hidden > 0:
            rest = sum(solved is not None for solved in status.solved_at[self.ROWS :])
            table.add_row("...", f"and {hidden} more, {rest} of them solved")
        self.screen.update(Group(self.progress, table))

    def close(self) -> None:
        """Stop redrawing."""
        self.screen.stop()


class SafeDisplay:
    """A display that never ends a run: where it fails, progress is not shown any more."""

    # rich ends the process where standard output is a broken pipe
    FAILURES = (OSError, ValueError, SystemExit)

    def __init__(self, display: Display) -> None:
        self.display = display

    def prepare(self) -> None:
        """Show that the run is being prepared."""
        self._call(self.display.prepare)

    def show(self, status: Any) -> None:
        """Show the latest progress."""
        self._call(lambda: self.display.show(status))

    def close(self) -> None:
        """Show the last progress and stop."""
        self._call(self.display.close)

    def _call(self, method: Callable[[], None]) -> None:
        try:
            method()
        except self.FAILURES as error:
            self.display = NullDisplay()
            reason = "broken pipe" if isinstance(error, SystemExit) else str(error)
            note(f"progress cannot be shown ({reason}); the run continues")


def note(text: str) -> None:
    """Print one line to stderr, even if the display is off."""
    exits.print_error(text)


def make_display(show: bool, console: Console | None = None) -> Display:
    """Return a run's display: a table on a terminal, lines elsewhere, nothing if not `show`."""
    console = console or Console()
    if not show:
        return NullDisplay()
    return SafeDisplay(
        TableDisplay(console) if console.is_terminal else LineDisplay(console, format_status)
    )


def make_sweep_display(show: bool, to_line: Callable[[Any], str] = format_sweep_status) -> Display:
    """Return a sweep's display: a bar on a terminal, lines elsewhere, nothing if not `show`.

    to_line: `format_campaign_status` for several sweeps.
    """
    console = Console()
    if not show:
        return NullDisplay()
    return SafeDisplay(
        BarDisplay(console, to_line) if console.is_terminal else LineDisplay(console, to_line)
    )


def eta(status: Status) -> str:
    """Return the time left at the present pace."""
    return format_duration(status.seconds * (status.budget - status.done) / max(1, status.done))


def format_number(value: float | None) -> str:
    """Return a number with thousands separated; '-' for None."""
    if value is None:
        return "-"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"


def format_duration(seconds: float) -> str:
    """Return a duration in hours, minutes or seconds."""
    if seconds >= 7200:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
