"""Tables of `ersac sweep atari57`: scores by game, aggregates over games, published scores.

The score of a seed is the mean return of its last hundred training episodes. No jax here.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ersac.analysis import atari_scores, compare, pack
from ersac.analysis.atari_scores import Aggregate, GameScores
from ersac.analysis.compare import Curve
from ersac.analysis.ladder_table import TABLE
from ersac.analysis.pack import Pack, RunRecord
from ersac.config import SettingsError, reference_scores
from ersac.runs import disk, run_dir
from ersac.sweeps.ladder import Cell, LadderPlan, LadderReport

POINTS = 200  # at which curves are aggregated

GameCurves = dict[str, list[Curve]]  # by game, a curve per seed; their steps are frames
AtariCurves = dict[str, GameCurves]  # by agent


class AtariRow(NamedTuple):
    """The scores of one agent in one game."""

    game: str
    agent: str
    frames: int  # budget
    seeds: int
    score: float  # mean over seeds
    low: float  # the lowest of the seeds
    high: float
    normalised: float  # 0: a random player, 1: a human

    def describe(self) -> str:
        """The scores in one line."""
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        interval = "" if self.seeds == 1 else f" ({self.low:.4g} to {self.high:.4g})"
        return f"{self.score:.4g}{interval}, {self.normalised:.1%} of human; {seeds}"


class AgentAggregate(NamedTuple):
    """The human-normalised scores of one agent over the games that all agents have."""

    agent: str
    games: int
    runs: int
    frames: int
    median: Aggregate
    iqm: Aggregate

    def describe(self) -> str:
        """The aggregates in one line."""
        text = lambda name, part: f"{name} {part.value:.1%} ({part.low:.1%} to {part.high:.1%})"
        return f"{text('median', self.median)}, {text('IQM', self.iqm)}"


class AgentComparison(NamedTuple):
    """The first agent beside another one."""

    agent: str
    other: str
    improvement: Aggregate  # probability that a seed is above one of the other's in the same game
    peak: float  # the highest median of the other
    other_frames: float  # at which the other reaches it
    frames: float | None  # at which the first reaches it; None: never
    speedup: float | None

    def describe(self) -> str:
        """The comparison in one line."""
        part = self.improvement
        reached = (
            f"does not reach its peak median of {self.peak:.1%}"
            if self.frames is None
            else f"reaches its peak median of {self.peak:.1%} in {self.frames:,.0f} frames"
            f" instead of {self.other_frames:,.0f} ({self.speedup:.2g} times fewer)"
        )
        return (
            f"{self.agent} is above {self.other} in {part.value:.0%} of pairs of seeds"
            f" ({part.low:.0%} to {part.high:.0%}), and {reached}"
        )


class AtariTable(NamedTuple):
    """All numbers of the table."""

    rows: list[AtariRow]
    aggregates: list[AgentAggregate]
    comparisons: list[AgentComparison]


def read_atari(
    plan: LadderPlan, source: Path | Pack, note: Callable[[str], None]
) -> tuple[AtariCurves, list[Cell]]:
    """The curves of the selected runs that have ended, and the runs that are missing."""
    curves: AtariCurves = {agent: {} for agent in plan.agents}
    missing = []
    for cell in plan.selected:
        run = read_cell(cell, source, note)
        if run is None:
            missing.append(cell)
        elif seeds := list(frame_curves(run)):
            curves[cell.agent].setdefault(cell.task, []).extend(seeds)
        else:
            note(f"{cell.name} has no score: it ended no episode")
    return {agent: games for agent, games in curves.items() if games}, missing


def read_cell(cell: Cell, source: Path | Pack, note: Callable[[str], None]) -> RunRecord | None:
    """The record of a run from a sweep directory or a pack; None where it has not ended."""
    if isinstance(source, Pack):
        return source.find_task(cell.agent, cell.env_name, cell.settings.run.seed)
    if not (source / cell.name / run_dir.SUMMARY).exists():
        return None
    try:
        return pack.read_run(source / cell.name, cell.agent)
    except (SettingsError, OSError) as error:
        note(f"left out: {error}")
        return None


def frame_curves(run: RunRecord) -> Iterator[Curve]:
    """The learning curve of each seed against frames, of those that have ended an episode."""
    frames = int(run.settings["env"]["frame_skip"])
    for stats in run.seeds:
        if len(stats.returns):
            curve = compare.learning_curve(stats, run)
            yield Curve(curve.steps * frames, curve.means, curve.end * frames)


def common_games(curves: AtariCurves) -> list[str]:
    """The games that every agent has."""
    first, *others = curves.values()
    return [game for game in first if all(game in games for games in others)]


def frame_grid(curves: AtariCurves, games: Sequence[str]) -> np.ndarray:
    """Frames from which on every seed has ended an episode, up to the end of the shortest run."""
    every = [curve for agent in curves.values() for game in games for curve in agent[game]]
    first, end = max(int(curve.steps[0]) for curve in every), min(curve.end for curve in every)
    return np.linspace(min(first, end), end, POINTS)


def normalised_curves(
    curves: GameCurves, games: Sequence[str], frames: np.ndarray
) -> list[np.ndarray]:
    """The human-normalised scores at these frames: an array [seeds, points] per game."""
    return [
        atari_scores.normalise_scores(game, np.stack([curve.at(frames) for curve in curves[game]]))
        for game in games
    ]


def atari_row(game: str, agent: str, curves: Sequence[Curve]) -> AtariRow:
    """The row of one agent in one game."""
    scores = np.array([float(curve.means[-1]) for curve in curves])
    return AtariRow(
        game=game,
        agent=agent,
        frames=min(curve.end for curve in curves),
        seeds=len(curves),
        score=float(scores.mean()),
        low=float(scores.min()),
        high=float(scores.max()),
        normalised=float(atari_scores.normalise_scores(game, scores.mean())),
    )


def atari_numbers(plan: LadderPlan, curves: AtariCurves) -> AtariTable:
    """The rows of all games, and the aggregates of those that every agent has."""
    rows = [
        atari_row(game, agent, games[game])
        for game in plan.tasks
        for agent, games in curves.items()
        if game in games
    ]
    games = common_games(curves) if curves else []
    if not games:
        return AtariTable(rows, [], [])
    frames = frame_grid(curves, games)
    scores = {agent: normalised_curves(curves[agent], games, frames) for agent in curves}
    aggregates = [agent_aggregate(agent, part, frames) for agent, part in scores.items()]
    first, *others = scores
    comparisons = [
        compare_agents(first, other, scores[first], scores[other], frames) for other in others
    ]
    return AtariTable(rows, aggregates, comparisons)


def agent_aggregate(agent: str, scores: GameScores, frames: np.ndarray) -> AgentAggregate:
    """The aggregates of an agent at the end; scores are [seeds, points] per game."""
    ends = [game[:, -1] for game in scores]
    statistics = (atari_scores.median_over_games, atari_scores.interquartile_mean)
    median, iqm = (_as_floats(atari_scores.aggregate(ends, part)) for part in statistics)
    runs = sum(len(game) for game in ends)
    return AgentAggregate(agent, len(ends), runs, int(frames[-1]), median, iqm)


def compare_agents(
    agent: str, other: str, ours: GameScores, theirs: GameScores, frames: np.ndarray
) -> AgentComparison:
    """An agent beside another one; scores are [seeds, points] per game."""
    ends = ([game[:, -1] for game in scores] for scores in (ours, theirs))
    medians = (atari_scores.median_over_games(scores) for scores in (ours, theirs))
    peak = atari_scores.frames_to_peak(frames, *medians)
    return AgentComparison(
        agent=agent,
        other=other,
        improvement=_as_floats(atari_scores.improvement_over_games(*ends)),
        peak=peak.peak,
        other_frames=peak.baseline_frames,
        frames=peak.frames,
        speedup=peak.speedup,
    )


def _as_floats(part: Aggregate) -> Aggregate:
    return Aggregate(*map(float, part))


def published_score(agent: str, game: str, frames: int) -> str:
    """A published training return at the last published point within a budget, as text."""
    curve = atari_scores.published_curves()[agent].get(game)
    if curve is None:
        return ""
    within = np.flatnonzero(curve.frames <= frames)
    return f"{curve.mean[within[-1] if len(within) else 0]:.4g}"


def atari_markdown(rows: Sequence[AtariRow]) -> str:
    """A line per game: reference scores, ours, and published ones at the same budget."""
    agents = list(dict.fromkeys(row.agent for row in rows))
    published = list(atari_scores.published_curves())
    by_name = {(row.game, row.agent): row for row in rows}
    head = ["game", "frames", "random", "human", *(f"`{name}`" for name in agents), *published]
    lines = [head, ["---"] * len(head)]
    for game, frames in {row.game: row.frames for row in rows}.items():
        reference = reference_scores()[game]
        ours = (by_name.get((game, agent)) for agent in agents)
        lines.append(
            [
                game,
                f"{frames:,}",
                f"{reference.random:.4g}",
                f"{reference.human:.4g}",
                *("" if row is None else row.describe() for row in ours),
                *(published_score(agent, game, frames) for agent in published),
            ]
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write_atari(plan: LadderPlan, home: Path, note: Callable[[str], None]) -> AtariTable:
    """Write table.json and table.md from the runs that have ended, and return the numbers."""
    curves, _ = read_atari(plan, home, note)
    table = atari_numbers(plan, curves)
    if table.rows:
        data = {"command": plan.command, **table_json(table)}
        disk.write(home / f"{TABLE}.json", (json.dumps(data, indent=2) + "\n").encode())
        disk.write(home / f"{TABLE}.md", atari_markdown(table.rows).encode())
    return table


def atari_lines(plan: LadderPlan, report: LadderReport, table: AtariTable) -> Iterator[str]:
    """What `ersac sweep atari57` prints at the end, line by line."""
    width = max((len(f"{row.game} {row.agent}") for row in table.rows), default=0)
    for row in table.rows:
        yield f"{row.game + ' ' + row.agent:<{width}}  {row.describe()}"
    for part in table.aggregates:
        games = "1 game" if part.games == 1 else f"{part.games} games"
        yield f"{part.agent} over {games} at {part.frames:,} frames: {part.describe()}"
    for comparison in table.comparisons:
        yield comparison.describe()
    for reason in dict.fromkeys(plan.unavailable.values()):
        names = [name for name, why in plan.unavailable.items() if why == reason]
        yield f"{len(names)} runs are not available: {reason}"
    yield f"{report.report.ended} of {report.report.wanted} runs have ended"


def table_json(table: AtariTable) -> dict[str, Any]:
    """The numbers as JSON."""
    plain = lambda part: {
        name: value._asdict() if isinstance(value, Aggregate) else value
        for name, value in part._asdict().items()
    }
    return {name: [plain(part) for part in parts] for name, parts in table._asdict().items()}


def atari_json(plan: LadderPlan, report: LadderReport, table: AtariTable) -> dict[str, Any]:
    """What `ersac sweep atari57 --json` prints."""
    return {
        "sweep": plan.title,
        **report.report._asdict(),
        "refused": report.refused,
        "not_available": plan.unavailable,
        **table_json(table),
    }
