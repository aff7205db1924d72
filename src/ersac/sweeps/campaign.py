"""Several sweeps run one after the other, with one progress display and one time left for all.

No jax here.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ersac import display
from ersac.config import BootDQN, DeepSea, Experiment, Replay
from ersac.packages import is_missing
from ersac.sweeps import catalogue, ladder, runner
from ersac.sweeps.cells import CellUnit
from ersac.sweeps.ladder_tasks import LADDERS
from ersac.sweeps.runner import Engine, Plan, Report, Unit

# Rough costs on two cores, which weigh sweeps against each other in the time left.
COMPILE_SECONDS = 15.0
ON_POLICY_SECONDS, REPLAY_SECONDS, BOOT_SECONDS = 1 / 250_000, 1 / 8_000, 1 / 400  # a step
EXTRAS = {"atari57": ("ale_py", "atari")}  # sweep -> the package it needs, and its extra


class Planned(NamedTuple):
    """The sweeps that can be run, and the reason for each that cannot."""

    plans: list[Plan]
    refused: dict[str, str]


def plan_sweeps(
    names: Sequence[str], scale: str, suffix: str, root: Path, train: Callable[..., Any]
) -> Planned:
    """Plan sweeps below a directory; suffix: `-table`, or nothing for networks.

    train: `ersac.api.run_experiment`, which this module may not import.
    """
    plans, refused = [], {}
    for name in names:
        if (reason := why_not(name, suffix)) is not None:
            refused[name] = reason
            continue
        if name in LADDERS:
            plans.append(plan_cells(name, scale, root, train))
            continue
        sweep = catalogue.SWEEPS[name + suffix]
        title = f"{name}{suffix}-{scale}"
        wanted = catalogue.instances(sweep, sweep.sizes[scale])
        home = root / title
        plans.append(Plan(title, home, wanted, runner.make_batches(home, wanted)))
    return Planned(plans, refused)


def plan_cells(name: str, scale: str, root: Path, train: Callable[..., Any]) -> Plan:
    """Plan a ladder below a directory."""
    plan = ladder.plan_ladder(name, scale)
    home = (root / plan.title).absolute()  # an environment may change the directory
    return Plan(plan.title, home, plan.cells, [CellUnit(home, c, train) for c in plan.selected])


def why_not(name: str, suffix: str = "") -> str | None:
    """Why a sweep cannot be run: its package is missing, or there is no such sweep."""
    package, extra = EXTRAS.get(name, (None, None))
    if package is not None and is_missing(package):
        return f"needs {package}: pip install '.[{extra}]'"
    if name not in LADDERS and name + suffix not in catalogue.SWEEPS:
        return f"there is no sweep {name}{suffix}"
    return None


def unit_seconds(unit: Unit) -> float:
    """A rough estimate of the time that a unit takes on two cores."""
    return COMPILE_SECONDS + unit.steps * step_seconds(unit.instances[0].settings)


def step_seconds(settings: Experiment) -> float:
    """A rough estimate of the time of a step of one environment."""
    if not isinstance(settings.env, DeepSea):
        return 1 / settings.env.STEPS_PER_SECOND
    if isinstance(settings.agent, BootDQN):
        return BOOT_SECONDS
    return REPLAY_SECONDS if isinstance(settings.agent.buffer, Replay) else ON_POLICY_SECONDS


class PartDisplay:
    """The display of one sweep: reports the share that is done to the display of all."""

    def __init__(self, total: "TotalProgress", title: str) -> None:
        self.total, self.title = total, title

    def prepare(self) -> None:
        """Nothing: the display of all says so once."""

    def show(self, status: display.SweepStatus) -> None:
        """Report the progress."""
        self.total.update(self.title, status)

    def close(self) -> None:
        """Nothing: the next sweep uses the same screen."""


class TotalProgress:
    """Adds up the progress of all sweeps, in estimated seconds."""

    def __init__(self, plans: Sequence[Plan], screen: display.Display) -> None:
        self.screen, self.start = screen, time.monotonic()
        self.titles = [plan.title for plan in plans]
        self.seconds = {plan.title: sum(map(unit_seconds, plan.units)) for plan in plans}
        self.runs_wanted = sum(len(plan.wanted) for plan in plans)
        self.share = dict.fromkeys(self.titles, 0.0)
        self.runs = dict.fromkeys(self.titles, 0)
        self.failed = dict.fromkeys(self.titles, 0)
        for plan in plans:
            todo = runner.unfinished(plan.units)
            left = sum(map(unit_seconds, todo))
            self.share[plan.title] = 1 - left / max(self.seconds[plan.title], 1e-9)
            self.runs[plan.title] = len(plan.wanted) - sum(len(unit.instances) for unit in todo)
        self.at_start = self._done()

    def update(self, title: str, status: display.SweepStatus) -> None:
        """Set the progress of one sweep and show that of all."""
        share = status.steps / max(1, status.steps_wanted)
        self.share[title] = max(share, self.share[title])
        self.runs[title], self.failed[title] = status.runs, status.failed
        self.show(title)

    def end(self, title: str) -> None:
        """Count a sweep as done."""
        self.share[title] = 1.0
        self.show(title)

    def show(self, title: str) -> None:
        """Show the progress of all, and the sweep that is run."""
        done = self._done()
        self.screen.show(
            display.CampaignStatus(
                done,
                sum(self.seconds.values()),
                done - self.at_start,
                time.monotonic() - self.start,
                title,
                self.titles.index(title) + 1,
                len(self.titles),
                sum(self.runs.values()),
                self.runs_wanted,
                sum(self.failed.values()),
            )
        )

    def _done(self) -> float:
        return sum(self.seconds[title] * share for title, share in self.share.items())


def run_plans(
    plans: Sequence[Plan], engine: Engine, screen: display.Display, poll: Callable[[], int]
) -> dict[str, Report]:
    """Run what is missing of each plan, the cheapest first; the report of each by its title.

    Plans that have nothing left to do are not opened, so that finished sweeps may be read-only.
    """
    reports: dict[str, Report] = {}
    todo = [plan for plan in plans if runner.unfinished(plan.units)]
    progress = TotalProgress(plans, screen)
    try:
        for plan in sorted(todo, key=lambda plan: progress.seconds[plan.title]):
            part = PartDisplay(progress, plan.title)
            reports[plan.title] = runner.run_plan(plan, engine, part, poll)
            progress.end(plan.title)
    finally:
        screen.close()
    return reports
