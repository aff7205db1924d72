"""What commands print for people when they end."""

from collections.abc import Iterable
from typing import Any

from ersac import config, display
from ersac.runs.exits import printable


def print_result(result: Any) -> None:
    """Print what every seed of a run reached, its speed, and where its picture is."""
    from rich.console import Console

    from ersac.runs.run_dir import short_path

    print_seeds(result.summary()["per_seed"])
    speed = f"{describe_steps(result)} at {result.steps_per_second:,.0f} steps/s"
    compiling = f"{result.compile_seconds:.1f} s compiling"
    Console().print(
        printable(f"{speed}, {compiling}; picture: {short_path(result.directory) / 'picture.png'}"),
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def describe_steps(result: Any) -> str:
    """Return the steps of all seeds, and why they are more than the budget."""
    settings, text = result.settings, f"{result.steps:,} steps"
    budget = settings.run.steps
    if budget is None or result.steps_per_seed <= budget:
        return text
    per_rollout = settings.agent.rollout * settings.env.envs
    chunk = config.rollouts_per_chunk(settings) * per_rollout
    return f"{text} (in whole chunks of {chunk:,} a seed, which --chunk can shorten)"


def print_evaluation(title: str, evaluation: dict[str, Any]) -> None:
    """Print mean, spread and length of the evaluated episodes."""
    stderr = evaluation["stderr_return"]
    error = "" if stderr is None else f" ± {stderr:.2g}"
    spread = f"from {evaluation['min_return']:.4g} to {evaluation['max_return']:.4g}"
    goals = f"goal in {evaluation['goal_share']:.0%} of {len(evaluation['returns']):,} episodes"
    print(
        f"{printable(title)}: return {evaluation['mean_return']:.4g}{error} ({spread}), "
        f"length {evaluation['mean_length']:,.1f}, {goals}",
        flush=True,
    )


def print_seeds(per_seed: list[dict[str, Any]]) -> None:
    """Print a table with a row a seed: its episodes, and when it was solved."""
    from rich.console import Console
    from rich.table import Table

    from ersac.display import format_number

    names = {
        "first_goal": "first goal",
        "solved_bsuite": "solved (bsuite)",
        "solved_reliable": "solved (reliable)",
    }
    if "mean_return" in per_seed[0]:  # bsuite has no rule for this environment
        names = {
            "mean_return": "return, last 100",
            "best_mean_return": "best",
            "solved_steps": "solved (steps)",
        }
    table = Table("seed", "episodes", *names.values(), box=None, header_style="bold")
    for row in per_seed:
        table.add_row(
            str(row["seed"]), *(format_number(row[name]) for name in ("episodes", *names))
        )
    Console().print(table)


def print_comparisons(comparisons: Iterable[Any]) -> None:
    """Print how pairs of agents compare, four lines a pair."""
    for pair in comparisons:
        sides = [(pair.agent, pair.seeds, pair.score, pair.low, pair.high)]
        sides.append(
            (pair.other, pair.other_seeds, pair.other_score, pair.other_low, pair.other_high)
        )
        print(
            f"{printable(pair.env)} after {pair.steps:,} steps: return of the last 100 episodes, "
            "median over seeds (95 %)"
        )
        for agent, seeds, score, low, high in sides:
            print(f"  {printable(agent):<16}  {score:.4g} ({low:.4g} to {high:.4g})  {seeds} seeds")
        reached = (
            "does not reach the other's score"
            if pair.steps_to_other is None
            else f"stays at or above the other's score from step {pair.steps_to_other:,}"
        )
        print(
            f"  {printable(pair.agent)} is above in {pair.improvement:.0%} of pairs of seeds, "
            f"and {reached}",
            flush=True,
        )


def print_runs(rows: list[Any]) -> None:
    """Print a line a run, then how much of each sweep has ended."""
    from ersac.sweeps import listing

    width = max((len(printable(row.run)) for row in rows), default=0)
    for row in rows:
        solved = "" if row.solved is None else f"{row.solved}/{row.seeds} solved"
        env = row.env if row.depth is None else f"depth {row.depth}"
        setup = "" if row.agent is None else printable(f"{row.agent}, {env}, seeds {row.seeds}")
        state = printable(row.describe_state())
        print(f"{printable(row.run):<{width}}  {setup:<32}  {solved:<16}  {state}".rstrip())
    for sweep in listing.count_sweeps(rows):
        ended = f"{sweep.ended} of {sweep.wanted} ended, {sweep.failed} failed"
        print(printable(f"sweep {sweep.sweep}: {ended} ({sweep.directory})"))
    if not rows:
        print("no runs here")


def print_grid(runs: Iterable[Any], home: Any, report: Any) -> None:
    """Print a line for each combination of a grid: the results of its seeds."""
    from ersac.runs import run_dir

    points: dict[str, list[float]] = {}
    for run in runs:
        name = ", ".join(f"{name} {value}" for name, value in run.point.items()) or "all"
        found = points.setdefault(name, [])
        if summary := run_dir.valid_summary(home / run.name, run.settings):
            row = summary["per_seed"][0]
            found.append(row["mean_return"] if "mean_return" in row else row["solved_reliable"])
    for name, found in points.items():
        ended = [display.format_number(value) for value in found]
        print(f"{name}: {', '.join(ended) or 'no run has ended'}")
    print(f"{report.ended} of {report.wanted} runs have ended; they are in {home}", flush=True)
