"""The paper's Atari figures, from the records of `ersac sweep atari57`. No jax here.

Dopamine's published training returns are drawn in the same axes. Theirs are means over a million
frames, ours means over the last hundred episodes.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ersac.analysis import atari_scores, atari_table, figures
from ersac.analysis.atari_table import AtariCurves
from ersac.analysis.pack import Pack
from ersac.runs import exits
from ersac.sweeps.ladder import LadderPlan
from ersac.sweeps.ladder_tasks import HARD_EXPLORATION

MILLION = 1e6
LEAST_FRAMES = 1e6  # on the axis: the first published point is at half a million
PUBLISHED_COLOURS = {"DQN": "0.45", "Rainbow": "#b08d57", "IQN": "#7a9e7e", "QR-DQN": "#9d8aa5"}
PANEL_COLUMNS = {7: 4, 57: 8}  # by the number of panels; else three


class AtariFigure(NamedTuple):
    """A figure of the paper, and the function that draws it."""

    title: str
    draw: Callable[[Figure, LadderPlan, AtariCurves], figures.Numbers]


def draw_median(figure: Figure, plan: LadderPlan, curves: AtariCurves) -> figures.Numbers:
    """The median human-normalised score against frames, with 95 % intervals.

    Published agents are points: their medians over the same games.
    """
    axes = figure.subplots()
    games = atari_table.common_games(curves)
    if not games:
        raise exits.Resumable("no game has an ended run of every agent: there is no median yet")
    frames = atari_table.frame_grid(curves, games)
    for colour, (agent, found) in zip(figures.COLOURS, curves.items(), strict=False):
        scores = atari_table.normalised_curves(found, games, frames)
        median = atari_scores.aggregate(scores, atari_scores.median_over_games)
        runs = sum(len(game) for game in scores)
        label = f"{agent}, {runs} runs"
        axes.plot(frames / MILLION, 100 * median.value, color=colour, lw=1.6, label=label)
        low, high = 100 * median.low, 100 * median.high
        axes.fill_between(frames / MILLION, low, high, color=colour, alpha=0.15, lw=0)
    end = max(float(frames[-1]), LEAST_FRAMES)
    _draw_published_medians(axes, games, end)
    axes.set(
        xlabel="frames (millions)",
        ylabel=f"median human-normalised score of {len(games)} games (%)",
        xlim=(0, end / MILLION),
    )
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figures.draw_watermark(axes, plan.scale)
    return {"games": games, **atari_table.table_json(atari_table.atari_numbers(plan, curves))}


def _draw_published_medians(axes: Axes, games: Sequence[str], end: float) -> None:
    """The medians of published agents over those of the games that they were run on."""
    for agent, found in atari_scores.published_curves().items():
        present = [game for game in games if game in found]
        if not present:
            continue
        frames = found[present[0]].frames
        means = [atari_scores.normalise_scores(game, found[game].mean) for game in present]
        within = frames <= end
        missing = "" if len(present) == len(games) else f", {len(present)} games"
        axes.plot(
            frames[within] / MILLION,
            100 * np.median(means, axis=0)[within],
            "o--",
            ms=3,
            lw=0.7,
            color=PUBLISHED_COLOURS[agent],
            label=f"{agent} (Dopamine{missing})",
        )


def draw_hard_exploration(figure: Figure, plan: LadderPlan, curves: AtariCurves) -> figures.Numbers:
    """The score against frames in each of the seven games of hard exploration."""
    return draw_panels(figure, plan, curves, HARD_EXPLORATION)


def draw_all_games(figure: Figure, plan: LadderPlan, curves: AtariCurves) -> figures.Numbers:
    """The score against frames in each game of the scale."""
    return draw_panels(figure, plan, curves, plan.tasks)


def draw_panels(
    figure: Figure, plan: LadderPlan, curves: AtariCurves, games: Sequence[str]
) -> figures.Numbers:
    """A panel per game: a line per seed and their median, and the published agents as bands."""
    columns = PANEL_COLUMNS.get(len(games), 3)
    rows = -(-(len(games) + 1) // columns)  # the last panel has the legend
    figure.set_size_inches(2.6 * columns, 2.0 * rows + 0.4)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    colours = dict(zip(plan.agents, figures.COLOURS * 2, strict=False))
    handles: dict[str, Any] = {}
    for axes, game in zip(panels, games, strict=False):
        budget = plan.spec.frames(plan.steps(game))
        handles |= draw_game(axes, game, max(budget, LEAST_FRAMES), curves, colours)
        figures.draw_watermark(axes, plan.scale, 22)
    for axes in panels[len(games) :]:
        axes.axis("off")
    panels[len(games)].legend(handles.values(), handles, frameon=False, fontsize=8, loc="center")
    found = {agent: games_of.keys() & set(games) for agent, games_of in curves.items()}
    numbers = atari_table.atari_numbers(plan, curves).rows
    return {
        "panels": list(games),
        "games with runs": {agent: sorted(names) for agent, names in found.items()},
        "rows": [row._asdict() for row in numbers if row.game in games],
    }


def draw_game(
    axes: Axes, game: str, end: float, curves: AtariCurves, colours: dict[str, str]
) -> dict[str, Any]:
    """One panel up to a number of frames; returns what its legend has, by name."""
    handles: dict[str, Any] = {}
    for agent, found in atari_scores.published_curves().items():
        if (published := found.get(game)) is None:
            continue
        within, colour = published.frames <= end, PUBLISHED_COLOURS[agent]
        frames, name = published.frames[within] / MILLION, f"{agent} (Dopamine)"
        mean, low, high = (part[within] for part in published[1:])
        (handles[name],) = axes.plot(frames, mean, "o--", ms=2, lw=0.6, color=colour)
        axes.fill_between(frames, low, high, color=colour, alpha=0.15, lw=0)
    for agent, games in curves.items():
        seeds = [curve for curve in games.get(game, []) if curve.steps[0] < curve.end]
        for curve in seeds:
            frames = np.linspace(curve.steps[0], curve.end, figures.CURVE_POINTS)
            axes.plot(frames / MILLION, curve.at(frames), lw=0.5, alpha=0.6, color=colours[agent])
        if seeds:
            grid = atari_table.frame_grid({agent: {game: seeds}}, [game])
            median = np.median([curve.at(grid) for curve in seeds], axis=0)
            (handles[agent],) = axes.plot(grid / MILLION, median, lw=1.5, color=colours[agent])
    axes.set_title(game.replace("_", " "), fontsize=8)
    axes.set_xlim(0, end / MILLION)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(labelsize=6)
    axes.spines[["top", "right"]].set_visible(False)
    return handles


ATARI_FIGURES: dict[str, AtariFigure] = {
    "f-atari_human_normalized_median": AtariFigure(
        "Atari: median human-normalised score", draw_median
    ),
    "f-atari_hard_exp": AtariFigure(
        "Atari: seven games of hard exploration, score against millions of frames",
        draw_hard_exploration,
    ),
    "f-atari_all_games": AtariFigure("Atari: score against millions of frames", draw_all_games),
}


def draw_atari_figure(
    label: str, plan: LadderPlan, curves: AtariCurves, caption: str
) -> tuple[Figure, figures.Numbers]:
    """A figure and its numbers."""
    spec = ATARI_FIGURES[label]
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    numbers = spec.draw(figure, plan, curves)
    figure.suptitle(spec.title, fontsize=11)
    figures.draw_caption(figure, caption)
    return figure, numbers


def make_atari_figure(
    label: str, plan: LadderPlan, source: Path | Pack, caption: str, out: Path
) -> dict[str, Any]:
    """Draw a figure from the runs that have ended and write it as PNG, its numbers as JSON."""
    curves, missing = atari_table.read_atari(plan, source, lambda text: None)
    if not curves:
        path = source.path if isinstance(source, Pack) else source
        raise exits.Resumable(f"no run in {path} has ended: there is nothing to draw")
    draw = lambda text: draw_atari_figure(label, plan, curves, text)
    records = figures.FigureRecords(
        {cell.name: cell.settings.run.seed for cell in plan.selected},
        [cell.name for cell in missing],
    )
    return figures.write_figure(label, plan.scale, caption, records, draw, out)
