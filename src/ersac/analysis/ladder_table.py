"""The table and the learning curves of a ladder, from its records and those of peers. No jax here.

A peer is an agent of another library, trained by benchmarks/peers.py. Its records lie in the
`peers` directory of the ladder.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ersac.analysis import scores
from ersac.analysis.compare import Curve
from ersac.config import SettingsError
from ersac.runs import disk, run_dir
from ersac.runs.run_dir import EpisodeStats
from ersac.sweeps.ladder import LadderPlan, LadderReport
from ersac.sweeps.ladder_tasks import ALPHA, CANDIDATES

PEERS, FIGURES, TABLE = "peers", "figures", "table"  # in a ladder's directory
CURVE_POINTS = 400

SeedStats = dict[tuple[str, str], list[EpisodeStats]]  # (task, agent) to its seeds


class LadderRow(NamedTuple):
    """The results of one agent in one task. Returns are means of a seed's last 100 episodes."""

    task: str
    agent: str
    steps: int  # budget
    seeds: int
    solved: int  # seeds in which 80 of the last 100 episodes reached the goal
    solved_steps: int | None  # median over seeds of the steps until then; None: most never did
    end_return: float | None  # median over seeds; None: no episode ended
    low: float | None  # the least over seeds
    high: float | None

    def describe(self) -> str:
        """The results in one line."""
        solved = "" if self.solved_steps is None else f" after {self.solved_steps:,} steps"
        returns = (
            "no episode ended"
            if self.end_return is None
            else f"return {self.end_return:.4g} ({self.low:.4g} to {self.high:.4g})"
        )
        return f"{self.solved} of {self.seeds} solved{solved}; {returns}"


class PeerRun(NamedTuple):
    """A run of another library's agent, as benchmarks/peers.py writes it."""

    task: str
    agent: str
    steps: int
    stats: EpisodeStats


def read_peer(path: Path) -> PeerRun:
    """Read a file of benchmarks/peers.py; SettingsError where it is not one."""
    try:
        data = json.loads(disk.read(path))
        steps, goals = np.array(data["when"], np.int64), np.array(data["goals"], bool)
        returns = np.array(data["returns"], np.float32)
        if not len(steps) == len(goals) == len(returns):
            raise ValueError
        stats = EpisodeStats(int(data["seed"]), goals, returns, steps)
        return PeerRun(str(data["task"]), str(data["agent"]), int(data["steps"]), stats)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SettingsError(f"{path} is not what benchmarks/peers.py writes") from None


def read_ladder(plan: LadderPlan, home: Path, note: Callable[[str], None]) -> SeedStats:
    """The selected cells that have ended, and the peers; what cannot be read is noted."""
    found: SeedStats = {}
    for cell in plan.selected:
        if not (home / cell.name / run_dir.SUMMARY).exists():
            continue
        try:
            seeds = run_dir.read_finished_run(home / cell.name).seeds
            found.setdefault((cell.task, cell.agent), []).extend(seeds)
        except (SettingsError, OSError) as error:
            note(f"left out: {error}")
    for name in disk.names(home / PEERS):
        if not name.endswith(".json"):
            continue
        try:
            peer = read_peer(home / PEERS / name)
        except (SettingsError, OSError) as error:
            note(f"left out: {error}")
            continue
        if peer.task not in plan.tasks:
            continue
        steps = plan.steps(peer.task)
        if peer.stats.seed in plan.seeds and peer.steps >= steps:
            found.setdefault((peer.task, peer.agent), []).append(first_steps(peer.stats, steps))
        else:
            note(
                f"left out: {home / PEERS / name} has seed {peer.stats.seed} and {peer.steps:,}"
                f" steps; the table needs seeds {plan.seeds.start} to {plan.seeds[-1]} and at"
                f" least {steps:,} steps"
            )
    return found


def first_steps(stats: EpisodeStats, steps: int) -> EpisodeStats:
    """The episodes that ended within a number of steps."""
    assert stats.steps is not None
    count = int(np.searchsorted(stats.steps, steps, side="right"))
    return EpisodeStats(stats.seed, stats.goals[:count], stats.returns[:count], stats.steps[:count])


def ladder_rows(plan: LadderPlan, found: SeedStats) -> list[LadderRow]:
    """A row for each task and agent that has results, in the order of the tasks."""
    order = {task: index for index, task in enumerate(plan.spec.tasks)}
    keys = sorted(found, key=lambda key: order[key[0]])  # stable: agents stay in their order
    return [ladder_row(task, agent, plan.steps(task), found[task, agent]) for task, agent in keys]


def ladder_row(task: str, agent: str, steps: int, seeds: Sequence[EpisodeStats]) -> LadderRow:
    """The row of one agent in one task; a seed that was not solved counts as the latest."""
    metrics = [scores.return_metrics(stats) for stats in seeds]
    solved_steps = [seed["solved_steps"] for seed in metrics]
    median = float(np.median([math.inf if steps is None else steps for steps in solved_steps]))
    returns = [seed["mean_return"] for seed in metrics if seed["mean_return"] is not None]
    return LadderRow(
        task=task,
        agent=agent,
        steps=steps,
        seeds=len(seeds),
        solved=sum(steps is not None for steps in solved_steps),
        solved_steps=None if math.isinf(median) else int(median),
        end_return=float(np.median(returns)) if returns else None,
        low=min(returns, default=None),
        high=max(returns, default=None),
    )


def ladder_markdown(rows: Sequence[LadderRow]) -> str:
    """The rows as a Markdown table: a line per task, a column per agent."""
    agents = list(dict.fromkeys(row.agent for row in rows))
    steps = {row.task: row.steps for row in rows}
    by_name = {(row.task, row.agent): row.describe() for row in rows}
    lines = [["task", "steps", *(f"`{agent}`" for agent in agents)], ["---"] * (len(agents) + 2)]
    lines += [
        [task, f"{steps[task]:,}", *(by_name.get((task, agent), "") for agent in agents)]
        for task in steps
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def best_alphas(rows: Sequence[LadderRow]) -> dict[str, dict[str, float]]:
    """The entropy weight with which each baseline did best in each task, in the form of ALPHA.

    More seeds solved wins, then fewer steps until solved, then the higher return. Where all are
    equal it is the weight nearest to that of ALPHA.
    """
    tried: dict[tuple[str, str], dict[float, LadderRow]] = {}
    for row in rows:
        candidate = CANDIDATES.get(row.agent)
        if candidate is not None and candidate.alpha is not None:
            tried.setdefault((candidate.preset, row.task), {})[candidate.alpha] = row
    found: dict[str, dict[str, float]] = {}
    for (agent, task), by_alpha in tried.items():
        ranks = {
            alpha: (*_rank(row), -abs(math.log(alpha / ALPHA[agent][task])))
            for alpha, row in by_alpha.items()
        }
        found.setdefault(agent, {})[task] = max(ranks, key=ranks.__getitem__)
    return found


def _rank(row: LadderRow) -> tuple[int, float, float]:
    steps = math.inf if row.solved_steps is None else row.solved_steps
    return row.solved, -steps, -math.inf if row.end_return is None else row.end_return


def draw_curves(task: str, steps: int, seeds: dict[str, list[EpisodeStats]], caption: str) -> Any:
    """Learning curves of a task as a matplotlib Figure: median over seeds, and their range."""
    from matplotlib.figure import Figure  # takes a second to import

    from ersac.analysis.figures import COLOURS, draw_caption

    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.subplots()
    for index, (agent, agent_seeds) in enumerate(seeds.items()):
        curves = [
            Curve(stats.steps, scores.running_means(stats.returns), steps)
            for stats in agent_seeds
            if stats.steps is not None and len(stats.steps)
        ]
        if not curves:
            continue
        first = max(int(curve.steps[0]) for curve in curves)  # every seed has a value from here on
        grid = np.linspace(first, max(first, steps), CURVE_POINTS)
        means = np.stack([curve.at(grid) for curve in curves])  # [seeds, CURVE_POINTS]
        colour, label = COLOURS[index % len(COLOURS)], f"{agent}, {len(curves)} seeds"
        axes.plot(grid, np.median(means, axis=0), color=colour, lw=1.5, label=label)
        low, high = means.min(axis=0), means.max(axis=0)
        axes.fill_between(grid, low, high, color=colour, alpha=0.15, lw=0)
    axes.set(
        xlabel="environment steps",
        ylabel=f"mean return of the last {scores.RELIABLE_WINDOW} episodes",
        title=task,
        xlim=(0, steps),
    )
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
    draw_caption(figure, caption)
    return figure


def write_ladder(plan: LadderPlan, home: Path, note: Callable[[str], None]) -> list[LadderRow]:
    """Write table.json, table.md and a figure per task; returns the rows, perhaps none."""
    found = read_ladder(plan, home, note)
    rows = ladder_rows(plan, found)
    if not rows:
        return []
    from ersac.analysis import figures

    disk.make_directory(home / FIGURES)
    for task in dict.fromkeys(row.task for row in rows):
        seeds = {agent: found[name, agent] for name, agent in found if name == task}
        figure = draw_curves(task, plan.steps(task), seeds, plan.command)
        disk.write(home / FIGURES / f"{task}.png", figures.figure_png(figure))
    data = {"command": plan.command, "rows": [row._asdict() for row in rows]}
    disk.write(home / f"{TABLE}.json", (json.dumps(data, indent=2) + "\n").encode())
    disk.write(home / f"{TABLE}.md", ladder_markdown(rows).encode())
    return rows


def ladder_lines(
    plan: LadderPlan, report: LadderReport, rows: Sequence[LadderRow]
) -> Iterator[str]:
    """What `ersac sweep ladder` prints at the end, line by line."""
    width = max((len(f"{row.task} {row.agent}") for row in rows), default=0)
    for row in rows:
        yield f"{row.task + ' ' + row.agent:<{width}}  {row.describe()}"
    for reason in dict.fromkeys(plan.unavailable.values()):
        names = [name for name, why in plan.unavailable.items() if why == reason]
        yield f"not available: {', '.join(names)}: {reason}"
    if plan.ladder == "ladder-tune":
        for agent, alphas in best_alphas(rows).items():
            pairs = ", ".join(f"{task} {alpha:g}" for task, alpha in alphas.items())
            yield f"best entropy weights of {agent}: {pairs}"
    yield f"{report.report.ended} of {report.report.wanted} runs have ended"


def ladder_json(
    plan: LadderPlan, report: LadderReport, rows: Sequence[LadderRow]
) -> dict[str, Any]:
    """What `ersac sweep ladder --json` prints."""
    alphas = {"best_alpha": best_alphas(rows)} if plan.ladder == "ladder-tune" else {}
    return {
        "sweep": plan.title,
        **report.report._asdict(),
        "refused": report.refused,
        "not_available": plan.unavailable,
        **alphas,
        "table": [row._asdict() for row in rows],
    }
