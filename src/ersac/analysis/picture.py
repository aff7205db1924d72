"""The picture of a run: learning curves of all seeds and, for DeepSea, maps of visits and sigma."""

import io

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from ersac.analysis.scores import RELIABLE_WINDOW, running_means
from ersac.runs.exits import printable
from ersac.runs.run_dir import EpisodeStats, MapSnapshot

POINTS = 1000  # of a curve: more than a picture resolves


class Picture(Figure):
    """A figure that a notebook shows, also without pyplot."""

    def _repr_png_(self) -> bytes:
        return picture_png(self)


def draw_picture(
    title: str, caption: str, seeds: list[EpisodeStats], map_snapshots: list[MapSnapshot]
) -> Figure:
    """Learning curves of every seed beside maps of visits and sigma at each snapshot."""
    figure = Picture(figsize=(13, 5.6), layout="constrained")
    curves, maps = figure.subfigures(1, 2, width_ratios=(1.15, 1), squeeze=False)[0]
    draw_learning_curves(curves.subplots(), seeds)
    if map_snapshots:
        axes = maps.subplots(2, len(map_snapshots), squeeze=False)
        max_sigma = max(float(snapshot.sigma.max()) for snapshot in map_snapshots)
        for column, snapshot in enumerate(map_snapshots):
            draw_visits_map(axes[0, column], snapshot)
            draw_sigma_map(axes[1, column], snapshot, max_sigma)
    figure.suptitle(printable(title), parse_math=False)
    _draw_caption(figure, caption)
    return figure


def select_map_snapshots(snapshots: list[MapSnapshot]) -> list[MapSnapshot]:
    """Return two snapshots for the picture: exploration half way across, and the last one."""
    if len(snapshots) < 2:
        return snapshots
    *earlier, last = snapshots
    half = len(last.visits) / 2

    def distance_from_half(snapshot: MapSnapshot) -> float:
        rightmost = int(np.flatnonzero(snapshot.visits.any(axis=0)).max(initial=0))
        return abs(rightmost - half)

    return [min(earlier, key=distance_from_half), last]


def draw_returns(title: str, caption: str, seeds: list[EpisodeStats]) -> Figure:
    """The mean return of the last hundred episodes of every seed against environment steps."""
    figure = Picture(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for stats in seeds:
        if not len(stats.returns) or stats.steps is None:
            continue
        episode = np.unique(np.linspace(1, len(stats.returns), POINTS).astype(int))
        axes.plot(
            stats.steps[episode - 1],
            running_means(stats.returns, episode),
            lw=1.2,
            label=f"seed {stats.seed}",
        )
    axes.set(
        xlabel="environment steps",
        ylabel=f"mean return of the last {RELIABLE_WINDOW} episodes",
    )
    axes.set_title(printable(title), parse_math=False)
    if 1 < len(seeds) <= 10:
        axes.legend(frameon=False, fontsize=8)
    _draw_caption(figure, caption)
    return figure


def _draw_caption(figure: Figure, caption: str) -> None:
    """A small line below; a $ in a name does not start a formula."""
    style = {"fontsize": 6, "color": "0.4", "family": "monospace", "x": 0.005, "ha": "left"}
    figure.supxlabel(printable(caption), parse_math=False, **style)


def draw_learning_curves(axes: Axes, seeds: list[EpisodeStats]) -> None:
    """The share of the last 100 episodes that reached the goal, one line per seed."""
    for stats in seeds:
        episode = np.unique(np.linspace(1, len(stats.goals), POINTS).astype(int))
        axes.plot(
            episode,
            running_means(stats.goals, episode),
            lw=1.2,
            label=f"seed {stats.seed}",
        )
    axes.axhline(0.8, color="0.6", lw=0.8, ls="--")
    axes.set(
        xlabel="episode",
        ylabel=f"share of the last {RELIABLE_WINDOW} episodes that reached the goal",
        ylim=(-0.02, 1.02),
    )
    if len(seeds) <= 10:
        axes.legend(frameon=False, fontsize=8)


def draw_visits_map(axes: Axes, snapshot: MapSnapshot) -> None:
    """Visits of each cell on a logarithmic scale; cells without a visit are white."""
    image = axes.imshow(
        np.ma.masked_equal(snapshot.visits, 0),
        norm=LogNorm(1, max(2, int(snapshot.visits.max()))),
        cmap="viridis",
        interpolation="nearest",
    )
    _set_title(axes, f"visits up to episode {snapshot.episode:,}")
    axes.figure.colorbar(image, ax=axes, shrink=0.8)


def draw_sigma_map(axes: Axes, snapshot: MapSnapshot, max_sigma: float) -> None:
    """The uncertainty sigma of each cell that the agent can reach."""
    reachable = np.tril(np.ones_like(snapshot.sigma, bool))
    image = axes.imshow(
        np.ma.masked_where(~reachable, snapshot.sigma),
        vmin=0,
        vmax=max_sigma or 1,
        cmap="magma",
        interpolation="nearest",
    )
    _set_title(axes, "sigma")
    axes.figure.colorbar(image, ax=axes, shrink=0.8)


def picture_png(figure: Figure) -> bytes:
    """The figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _set_title(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])
