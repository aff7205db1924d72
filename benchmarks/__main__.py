"""`ersac bench`: parse options, measure, print ratios with their spread."""

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import time
from functools import partial
from importlib.metadata import version
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Comparison, Plan, ratio

NAMES = (
    "bsuite_actor_critic",
    "bsuite_boot_dqn",
    "boot_dqn",
    "dense",
    "numba",
    "growth",
    "sampling",
    "host",
    "atari",
)
PACKAGES = ("jax", "jaxlib", "numpy", "optax", "numba", "bsuite", "dm-haiku", "rlax")
BUSY_LOAD = 0.5  # per core: a higher load at the start gets a warning
LINE_SECONDS = 2.0  # between lines of progress where there is no terminal


class Progress:
    """Progress on standard error: a status line on a terminal, lines elsewhere."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.status = self.console.status("starting") if self.console.is_terminal else None
        self.start, self.next_line = time.monotonic(), 0.0
        if self.status:
            self.status.start()

    def show(self, name: str, text: str) -> None:
        """Show what is being measured; lines about repeats at most every two seconds."""
        line = f"{name}: {text} [{time.monotonic() - self.start:.0f} s]"
        if self.status:
            self.status.update(line, spinner="dots")
        elif time.monotonic() >= self.next_line or not text.startswith("repeat"):
            self.console.print(line, markup=False, soft_wrap=True)
            self.next_line = time.monotonic() + LINE_SECONDS

    def close(self) -> None:
        """Remove the status line."""
        if self.status:
            self.status.stop()


def main(argv: list[str] | None = None) -> int:
    """`ersac bench`."""
    options = parse(argv)
    context = machine_and_date()
    warn_if_busy(context)
    comparisons = measure(options)
    if options.markdown:
        print(markdown(comparisons, context, options))
    else:
        print_table(comparisons, context)
    if options.json:
        ratios = {comparison.name: ratio(comparison)._asdict() for comparison in comparisons}
        report = {"ratios": ratios, "measured": medians(comparisons), **context}
        print(json.dumps(report), flush=True)
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="ersac bench", description="Compare ersac with other implementations, side by side."
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer depths and repeats: under a minute"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=NAMES,
        default=list(NAMES),
        metavar="NAME",
        help=f"comparisons to run: {', '.join(NAMES)} (default: all)",
    )
    parser.add_argument(
        "--repeats", type=positive, help="repeats of each comparison (default 7; 3 with --quick)"
    )
    parser.add_argument(
        "--seeds", type=positive, default=16, help="seeds of the many-seed rows (default 16)"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object as the last line")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    return parser.parse_args(argv)


def positive(text: str) -> int:
    """A positive integer, for argparse."""
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def measure(options: argparse.Namespace) -> list[Comparison]:
    """The results of every comparison that was selected."""
    from benchmarks.suite import SUITE  # jax, after the options have been accepted
    from ersac.loops import devices

    devices.claim_cores()  # before the first use of jax
    plan = Plan(
        options.quick,
        options.repeats or (3 if options.quick else 7),
        0.3 if options.quick else 1.0,
        options.seeds,
    )
    progress, comparisons = Progress(), []
    try:
        for name in NAMES:
            if name in options.only:
                comparisons += SUITE[name](plan, partial(progress.show, name))
    finally:
        progress.close()
    return comparisons


def machine_and_date() -> dict[str, Any]:
    """The machine, the package versions and the date, as the JSON has them."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    machine = {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_gb": round(memory, 1),
        "load": round(os.getloadavg()[0], 2),
    }
    packages = {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}
    return {
        "machine": machine | packages,
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def cpu_name() -> str:
    """The processor's name, where the system has it."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(
                line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
            )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def warn_if_busy(context: dict[str, Any]) -> None:
    """Warn where other processes use the cores, which widens every spread."""
    load, cores = context["machine"]["load"], context["machine"]["cores"]
    if load > BUSY_LOAD * cores:
        print(
            f"ersac bench: the machine is busy (load {load} on {cores} cores); ratios will spread",
            file=sys.stderr,
        )


def medians(comparisons: list[Comparison]) -> dict[str, dict[str, Any]]:
    """The median of both sides of every ratio, by name."""
    return {
        comparison.name: {
            "above": statistics.median(comparison.above),
            "below": statistics.median(comparison.below),
            "unit": comparison.units,
        }
        for comparison in comparisons
    }


def format_target(comparison: Comparison) -> str:
    """The target of a ratio and whether it is met; empty where there is none."""
    from benchmarks.suite import TARGETS

    if comparison.name not in TARGETS:
        return ""
    target = TARGETS[comparison.name]
    return f">= {target:g}: {'yes' if ratio(comparison).median >= target else 'no'}"


def format_row(comparison: Comparison) -> tuple[str, str, str, str, str]:
    """A row of the table: comparison, ratio, spread, target, medians."""
    result = ratio(comparison)
    above, below = statistics.median(comparison.above), statistics.median(comparison.below)
    sides = f"{format_number(above)} / {format_number(below)} {comparison.units}"
    spread = f"{format_number(result.low)} to {format_number(result.high)}"
    return (
        comparison.meaning,
        f"{format_number(result.median)}x",
        spread if result.repeats > 1 else "once",
        format_target(comparison),
        sides,
    )


def format_number(number: float) -> str:
    """Three significant digits, with separators from a thousand on."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def format_machine(context: dict[str, Any]) -> str:
    """The machine and the date in one line."""
    machine = context["machine"]
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']:.0f} GB;"
        f" jax {machine['jax']}; load {machine['load']} before; {context['date'][:10]}"
    )


def print_table(comparisons: list[Comparison], context: dict[str, Any]) -> None:
    """Print the table and the machine."""
    headers = ("comparison", "ratio", "spread", "target", "medians")
    table = Table(*headers, box=None, header_style="bold")
    for comparison in comparisons:
        table.add_row(*format_row(comparison))
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    console.print(format_machine(context), highlight=False, soft_wrap=True)


def markdown(
    comparisons: list[Comparison], context: dict[str, Any], options: argparse.Namespace
) -> str:
    """The table of docs/speed.md."""
    rows = ["| comparison | ratio | spread | target |", "|---|---|---|---|"]
    rows += [f"| {' | '.join(format_row(comparison)[:4])} |" for comparison in comparisons]
    command = f"ersac bench{' --quick' if options.quick else ''} --markdown"
    return "\n".join([*rows, "", f"Made by `{command}` on {format_machine(context)}."])


if __name__ == "__main__":
    sys.exit(main())
