"""The command: parse, measure, print. Everything is a ratio with its spread; paces stand beside it to be understood, not judged."""

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import time
from importlib.metadata import version
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Finding, Plan, ratio

NAMES = (
    "bsuite_actor_critic",
    "bsuite_boot_dqn",
    "boot_dqn",
    "dense",
    "numba",
    "growth",
    "sampling",
    "host",
)
PACKAGES = ("jax", "jaxlib", "numpy", "optax", "numba", "bsuite", "dm-haiku", "rlax")
BUSY = 0.5  # of the cores: a load above it, before we start, is worth a word
LINE_SECONDS = 2.0  # between plain lines of progress


class Progress:
    """Says what is being measured, on standard error: in place on a terminal, in lines elsewhere."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.status = self.console.status("starting") if self.console.is_terminal else None
        self.began, self.next = time.monotonic(), 0.0
        if self.status:
            self.status.start()

    def tell(self, name: str, text: str) -> None:
        """Say it, unless the last line is too young and this is only the next repeat."""
        line = f"{name}: {text} [{time.monotonic() - self.began:.0f} s]"
        if self.status:
            self.status.update(line, spinner="dots")
        elif time.monotonic() >= self.next or not text.startswith("repeat"):
            self.console.print(line, markup=False, soft_wrap=True)
            self.next = time.monotonic() + LINE_SECONDS

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self.status:
            self.status.stop()


def main(argv: list[str] | None = None) -> int:
    """`ersac bench`."""
    options = parse(argv)
    facts = machine()
    warn_if_busy(facts)
    findings = measure(options)
    report = {
        "ratios": {finding.name: ratio(finding)._asdict() for finding in findings},
        "measured": measured(findings),
        **facts,
    }
    print(markdown(findings, facts, options)) if options.markdown else show(findings, facts)
    if options.json:
        print(json.dumps(report), flush=True)
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="ersac bench", description="Measure side by side and print ratios with their spread."
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
        help=f"of {', '.join(NAMES)}",
    )
    parser.add_argument(
        "--repeats", type=positive, help="turns of each side (default 7; 3 with --quick)"
    )
    parser.add_argument(
        "--seeds", type=positive, default=16, help="what 'many seeds' means (default 16)"
    )
    parser.add_argument(
        "--json", action="store_true", help="end with one JSON object on the last line"
    )
    parser.add_argument("--markdown", action="store_true", help="print the README's table")
    return parser.parse_args(argv)


def positive(text: str) -> int:
    """A whole number of at least one, for argparse."""
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def measure(options: argparse.Namespace) -> list[Finding]:
    """Every finding of every comparison that was asked for."""
    from benchmarks.suite import SUITE  # jax, after the options have been accepted
    from ersac.loops import devices

    devices.claim_cores()  # before jax's first use, whoever of the contestants that is
    plan = Plan(
        options.quick,
        options.repeats or (3 if options.quick else 7),
        0.3 if options.quick else 1.0,
        options.seeds,
    )
    progress, findings = Progress(), []
    try:
        for name in NAMES:
            if name in options.only:
                findings += SUITE[name](plan, lambda text, name=name: progress.tell(name, text))
    finally:
        progress.close()
    return findings


def machine() -> dict[str, Any]:
    """What it was measured on, and when."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    facts = {
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(memory, 1),
        "load": round(os.getloadavg()[0], 2),
    }
    packages = {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}
    return {
        "machine": facts | packages,
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def cpu() -> str:
    """The processor's name, where the system tells."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(
                line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
            )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def warn_if_busy(facts: dict[str, Any]) -> None:
    """Others at work on the same cores widen every spread."""
    load, cores = facts["machine"]["load"], facts["machine"]["cores"]
    if load > BUSY * cores:
        print(
            f"ersac bench: the machine is busy (load {load} on {cores} cores); expect a wide spread",
            file=sys.stderr,
        )


def measured(findings: list[Finding]) -> dict[str, dict[str, Any]]:
    """The two sides of every ratio, as medians."""
    median = statistics.median
    return {
        each.name: {"above": median(each.above), "below": median(each.below), "unit": each.unit}
        for each in findings
    }


def verdict(finding: Finding) -> str:
    """What was promised of a ratio, and whether it was kept; empty where nothing was."""
    from benchmarks.suite import WANTED

    if finding.name not in WANTED:
        return ""
    return f">= {WANTED[finding.name]:g}: {'yes' if ratio(finding).median >= WANTED[finding.name] else 'no'}"


def cells(finding: Finding) -> tuple[str, str, str, str, str]:
    """A finding as it is printed: meaning, ratio, spread, promise, both sides."""
    found = ratio(finding)
    sides = f"{three(statistics.median(finding.above))} / {three(statistics.median(finding.below))} {finding.unit}"
    spread = f"{three(found.low)} to {three(found.high)}" if found.repeats > 1 else "once"
    return finding.meaning, f"{three(found.median)}x", spread, verdict(finding), sides


def three(number: float) -> str:
    """Three digits, and thousands apart."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def machine_line(facts: dict[str, Any]) -> str:
    """The machine and the date in one line."""
    its = facts["machine"]
    return f"{its['cpu']}, {its['cores']} cores, {its['memory_gb']:.0f} GB; jax {its['jax']}; load {its['load']} before; {facts['date'][:10]}"


def show(findings: list[Finding], facts: dict[str, Any]) -> None:
    """The table."""
    table = Table("measured", "ratio", "spread", "wanted", "medians", box=None, header_style="bold")
    for finding in findings:
        table.add_row(*cells(finding))
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    console.print(machine_line(facts), highlight=False, soft_wrap=True)


def markdown(findings: list[Finding], facts: dict[str, Any], options: argparse.Namespace) -> str:
    """The README's table."""
    rows = ["| measured | ratio | spread | wanted |", "|---|---|---|---|"]
    rows += [f"| {' | '.join(cells(finding)[:4])} |" for finding in findings]
    command = f"ersac bench{' --quick' if options.quick else ''} --markdown"
    return "\n".join([*rows, "", f"Made by `{command}` on {machine_line(facts)}."])


if __name__ == "__main__":
    sys.exit(main())
