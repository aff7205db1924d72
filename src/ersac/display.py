"""What a person sees while a run goes on: a live table on a terminal, plain lines elsewhere."""

import sys
import time
from typing import NamedTuple, Protocol

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

LINE_SECONDS = 2.0  # between plain lines


class Status(NamedTuple):
    """Where a run is; an entry a seed."""

    seeds: list[int]
    episodes: int  # of the seed that has fewest
    budget: int
    seconds: float  # since the first step
    steps_per_second: float
    goal_share: np.ndarray  # of the last 100 episodes
    tau: np.ndarray
    entropy: np.ndarray
    sigma: np.ndarray
    solved: list[int | None]


class Display(Protocol):
    """Somewhere to show a run."""

    def show(self, status: Status) -> None:
        """Show where the run is now."""

    def close(self) -> None:
        """Leave the last state on the screen."""


class Silent:
    """Shows nothing."""

    def show(self, status: Status) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Lines:
    """A plain line every two seconds."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.next = 0.0
        self.last: Status | None = None
        self.shown: Status | None = None

    def show(self, status: Status) -> None:
        """Print a line unless one was printed just now."""
        self.last = status
        if time.monotonic() >= self.next:
            self._print(status)

    def close(self) -> None:
        """Print the last state, if it was not."""
        if self.last is not None and self.last is not self.shown:
            self._print(self.last)

    def _print(self, status: Status) -> None:
        self.next, self.shown = time.monotonic() + LINE_SECONDS, status
        spread = lambda values, form: f"{np.min(values):{form}}..{np.max(values):{form}}"
        done = sum(solved is not None for solved in status.solved)
        self.console.print(
            f"episode {status.episodes:,}/{status.budget:,}  {status.steps_per_second:,.0f} steps/s  eta {eta(status)}"
            f"  solved {done}/{len(status.seeds)}  goal {spread(status.goal_share, '.2f')}  tau {spread(status.tau, '.2g')}"
            f"  entropy {spread(status.entropy, '.3f')}  sigma {spread(status.sigma, '.2g')}",
            soft_wrap=True,
            highlight=False,
        )


class Screen:
    """A progress bar and a table, a row a seed, redrawn in place."""

    ROWS = 16  # more seeds than this are counted, not listed

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
        self.progress = Progress(*columns, TimeElapsedColumn(), TextColumn("{task.fields[eta]}"), console=console)
        self.task = self.progress.add_task("compiling", total=None, eta="")
        self.live = Live(self.progress, console=console, refresh_per_second=4)
        self.live.start()

    def show(self, status: Status) -> None:
        """Redraw."""
        text = f"{status.episodes:,} of {status.budget:,} episodes, {status.steps_per_second:,.0f} steps/s"
        self.progress.update(self.task, description=text, total=status.budget, completed=status.episodes, eta=f"eta {eta(status)}")
        table = Table("seed", "goal, last 100", "tau", "entropy", "mean sigma", "solved at", box=None, header_style="bold")
        for i, seed in enumerate(status.seeds[: self.ROWS]):
            solved = "" if status.solved[i] is None else f"{status.solved[i]:,}"
            numbers = (f"{status.goal_share[i]:.0%}", f"{status.tau[i]:.3g}", f"{status.entropy[i]:.3f}", f"{status.sigma[i]:.3g}")
            table.add_row(str(seed), *numbers, solved)
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


def choose(show: bool, console: Console | None = None) -> Display:
    """The display that fits the output."""
    console = console or Console()
    if not show:
        return Silent()
    return Screen(console) if console.is_terminal else Lines(console)


def eta(status: Status) -> str:
    """The time that the rest of the budget will take at this pace."""
    left = status.seconds * (status.budget - status.episodes) / max(1, status.episodes)
    return f"{left / 60:.0f} min" if left >= 120 else f"{left:.0f} s"
