"""The paper's figures, one function each, from the records of sweeps; named by the paper's labels.

No jax here.
"""

import contextlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ersac import config
from ersac.analysis import pack, scores
from ersac.analysis.pack import Pack, RunRecord
from ersac.config import SettingsError
from ersac.runs import disk, exits
from ersac.sweeps.catalogue import Instance

COLOURS = (
    "#1b6ca8",
    "#d1495b",
    "#edae49",
    "#3c8d5a",
    "#7b4b94",
    "#6b705c",
    "#00798c",
    "#a44a3f",
    "#444444",
    "#9a8c98",
)
FAILED = "x"  # the marker of a run that was not solved within its budget
CURVE_POINTS = 400


class SolveRun(NamedTuple):
    """The part of a run that figures show."""

    line: str
    depth: int
    budget: int  # episodes
    goals: np.ndarray  # [episodes] bool

    @property
    def solved(self) -> int | None:
        """The episode at which it was solved by the reliable rule; None: never."""
        return scores.solved_reliable(self.goals)

    @property
    def solved_or_inf(self) -> float:
        """The same with infinity for never."""
        solved = self.solved
        return np.inf if solved is None else solved


Numbers = dict[str, Any]  # what a figure shows, as JSON
Draw = Callable[[Axes, Sequence[SolveRun]], Numbers]


class FigureSpec(NamedTuple):
    """The sweeps that a figure needs, and the function that draws it."""

    sweeps: tuple[str, ...]  # none: a diagram
    title: str
    draw: Draw


def group_by_line(runs: Sequence[SolveRun]) -> dict[str, list[SolveRun]]:
    """Runs by their line, in the order of the sweep."""
    lines: dict[str, list[SolveRun]] = {}
    for run in runs:
        lines.setdefault(run.line, []).append(run)
    return lines


def group_by_depth(runs: Sequence[SolveRun]) -> dict[int, list[SolveRun]]:
    """Runs by their depth, in ascending order."""
    return {
        depth: [run for run in runs if run.depth == depth]
        for depth in sorted({run.depth for run in runs})
    }


def coloured_lines(runs: Sequence[SolveRun]) -> Iterator[tuple[str, str, list[SolveRun]]]:
    """Colour, name and runs of each line."""
    for colour, (name, line) in zip(COLOURS * 2, group_by_line(runs).items(), strict=False):
        yield colour, name, line


def median_solved(runs: Sequence[SolveRun]) -> float | None:
    """The median episode until solved; None where most runs were not solved."""
    median = float(np.median([run.solved_or_inf for run in runs]))
    return median if np.isfinite(median) else None


def draw_solve_times(axes: Axes, runs: Sequence[SolveRun]) -> Numbers:
    """Episodes until solved against depth: a dot per seed, a line through the medians.

    A seed that was not solved is a cross at its budget.
    """
    numbers: Numbers = {}
    for colour, name, line in coloured_lines(runs):
        depths = group_by_depth(line)
        for depth, seeds in depths.items():
            solved = [run.solved for run in seeds if run.solved is not None]
            axes.plot([depth] * len(solved), solved, "o", ms=3, color=colour, alpha=0.5)
            failed = [run.budget for run in seeds if run.solved is None]
            axes.plot([depth] * len(failed), failed, FAILED, ms=5, color=colour)
        medians = {
            depth: median
            for depth, seeds in depths.items()
            if (median := median_solved(seeds)) is not None
        }
        axes.plot(list(medians), list(medians.values()), "-", lw=1.4, color=colour, label=name)
        numbers[name] = {
            "solved": {
                depth: f"{sum(run.solved is not None for run in seeds)} of {len(seeds)}"
                for depth, seeds in depths.items()
            },
            "median": medians,
            "deepest": max(medians, default=None),
        }
    axes.set(xlabel="depth of DeepSea", ylabel="episodes until solved", xscale="log", yscale="log")
    ticks = sorted({run.depth for run in runs})
    axes.set_xticks(ticks, [str(depth) for depth in ticks])
    axes.tick_params(axis="x", which="minor", bottom=False)
    axes.legend(frameon=False, fontsize=8)
    return numbers


def draw_solve_times_linear(axes: Axes, runs: Sequence[SolveRun]) -> Numbers:
    """Episodes until solved against depth on linear axes."""
    numbers = draw_solve_times(axes, runs)
    axes.set(xscale="linear", yscale="linear")
    return numbers


def draw_power_law(axes: Axes, runs: Sequence[SolveRun]) -> Numbers:
    """Solve times of the first line, with a power law of depth fitted to their medians."""
    name, line = next(iter(group_by_line(runs).items()))
    numbers = draw_solve_times(axes, line)
    samples = {
        depth: [run.solved or run.budget for run in seeds]
        for depth, seeds in group_by_depth(line).items()
    }
    if len(samples) < 3:
        return numbers
    fit = scores.power_law(samples)
    depth = np.geomspace(min(samples), max(samples), 50)
    label = f"{fit.scale:.2g} depth^{fit.exponent:.2f}  (95 %: {fit.low:.2f} to {fit.high:.2f})"
    axes.plot(depth, fit.scale * depth**fit.exponent, "--", color="0.4", lw=1, label=label)
    axes.legend(frameon=False, fontsize=8)
    return numbers | {"fit": {name: fit._asdict()}}


def draw_solved_share(axes: Axes, runs: Sequence[SolveRun]) -> Numbers:
    """The share of all seeds and depths that were solved by each episode, one curve per line."""
    numbers: Numbers = {}
    budget = max(run.budget for run in runs)
    episode = np.unique(np.geomspace(10, budget, CURVE_POINTS).astype(int))
    for colour, name, line in coloured_lines(runs):
        solved_at = np.array([run.solved_or_inf for run in line])
        share = (solved_at[:, None] <= episode).mean(axis=0)
        style = "--" if name.endswith("fixed") else "-"
        axes.plot(episode, share, style, lw=1.4, color=colour, label=name)
        solved = int(np.isfinite(solved_at).sum())
        interval = list(scores.wilson_interval(solved, len(line)))
        numbers[name] = {"solved": solved, "of": len(line), "interval": interval}
    axes.set(
        xlabel="episode",
        ylabel="share of seeds and depths solved",
        xscale="log",
        ylim=(-0.02, 1.02),
    )
    axes.legend(frameon=False, fontsize=7)
    return numbers


def draw_goal_share(axes: Axes, runs: Sequence[SolveRun]) -> Numbers:
    """The share of episodes that reach the goal: mean over seeds, and the middle 80 % of them."""
    numbers: Numbers = {}
    for colour, name, line in coloured_lines(runs):
        longest = max(len(run.goals) for run in line)
        grid = np.linspace(scores.RELIABLE_WINDOW, longest, CURVE_POINTS)
        episode = np.unique(grid.astype(int))
        shares = np.stack([recent_goal_share(run.goals, episode) for run in line])  # [seeds, N]
        label = f"{name}, {len(line)} seeds"
        axes.plot(episode, shares.mean(axis=0), color=colour, lw=1.5, label=label)
        low, high = np.quantile(shares, (0.1, 0.9), axis=0)
        axes.fill_between(episode, low, high, color=colour, alpha=0.15, lw=0)
        numbers[name] = {
            "seeds": len(line),
            "reached": sum(bool(run.goals.any()) for run in line),
            "solved": sum(run.solved is not None for run in line),
            "median": median_solved(line),
            "fell back": sum(scores.fell_back(run.goals) for run in line),
        }
    axes.set(
        xlabel="episode",
        ylabel=f"share of the last {scores.RELIABLE_WINDOW} episodes that reached the goal",
        ylim=(-0.02, 1.02),
    )
    axes.legend(frameon=False, fontsize=8)
    return numbers


def recent_goal_share(goals: np.ndarray, episode: np.ndarray) -> np.ndarray:
    """The share of goals in the last hundred episodes; after its end a run keeps its last value."""
    return scores.running_means(goals, np.minimum(episode, len(goals)))


def draw_diagram(axes: Axes, runs: Sequence[SolveRun]) -> Numbers:
    """DeepSea: the one path to the treasure in blue, all other moves in grey."""
    depth = 6
    for row in range(depth):
        for column in range(row + 1):
            axes.add_patch(_cell(row, column, "#fdf3d8" if row == column else "white"))
            if row < depth - 1:
                arrow = {"arrowstyle": "-|>", "lw": 0.8, "shrinkA": 8, "shrinkB": 8}
                colour = "#1b6ca8" if row == column else "0.7"
                axes.annotate(
                    "", (column + 1, -row - 1), (column, -row), arrowprops=arrow | {"color": colour}
                )
                axes.annotate(
                    "",
                    (max(0, column - 1), -row - 1),
                    (column, -row),
                    arrowprops=arrow | {"color": "0.7"},
                )
    axes.text(0, 0.65, "start", ha="center", fontsize=9)
    axes.text(
        depth - 0.4, -depth + 1, " +1", va="center", fontsize=11, color="#1b6ca8", weight="bold"
    )
    axes.text(depth * 0.62, -1.1, "right: reward -0.01 / depth", fontsize=9, color="#1b6ca8")
    axes.set(xlim=(-0.7, depth + 0.4), ylim=(-depth + 0.3, 1.1), aspect="equal")
    axes.axis("off")
    return {"depth": depth}


def _cell(row: int, column: int, colour: str) -> Any:
    from matplotlib.patches import Circle

    return Circle((column, -row), 0.16, facecolor=colour, edgecolor="0.3", zorder=3)


FIGURES: dict[str, FigureSpec] = {
    "f-DeepSea": FigureSpec((), "DeepSea", draw_diagram),
    "f-DeepSea_solved_v_boot_dqn": FigureSpec(
        ("solve-time", "boot-dqn"), "DeepSea: episodes until solved, by agent", draw_solve_times
    ),
    "f-solve_time_v_depth": FigureSpec(
        ("solve-time",), "ERSAC: solve time against depth", draw_power_law
    ),
    "f-robustness_lambda": FigureSpec(
        ("robustness-lambda",), "ERSAC with other values of lambda", draw_solved_share
    ),
    "f-robustness_rollout": FigureSpec(
        ("robustness-rollout",), "ERSAC with other rollout lengths", draw_solved_share
    ),
    "f-robustness_tau": FigureSpec(
        ("robustness-tau",), "ERSAC with tau learned and tau fixed", draw_solved_share
    ),
    "f-depth_250": FigureSpec(
        ("depth-250",), "Depth 250: episodes that reach the goal", draw_goal_share
    ),
    "f-replay_v_no_replay": FigureSpec(
        ("replay",), "ERSAC with and without replay", draw_solve_times
    ),
    "f-replay_v_no_replay_not_log": FigureSpec(
        ("replay",), "ERSAC with and without replay", draw_solve_times_linear
    ),
    "f-depth_100_kimpala_100_seeds": FigureSpec(
        ("replay-100",), "Depth 100: episodes that reach the goal", draw_goal_share
    ),
    "f-replay_noise_v_no_noise": FigureSpec(
        ("replay-noise",), "Replay with and without stored reward noise", draw_solved_share
    ),
    "f-solve_time_v_depth_kimpala": FigureSpec(
        ("replay-law",), "ERSAC with replay: solve time against depth", draw_power_law
    ),
}


def draw_figure(
    label: str, runs: Sequence[SolveRun], scale: str, caption: str
) -> tuple[Figure, Numbers]:
    """A figure and its numbers; at the scale `smoke` the figure has a watermark that says so."""
    spec = FIGURES[label]
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.subplots()
    numbers = spec.draw(axes, runs)
    axes.set_title(spec.title, fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    if spec.sweeps:
        draw_watermark(axes, scale)
    draw_caption(figure, caption)
    return figure, numbers


def draw_watermark(axes: Axes, scale: str, size: int = 60) -> None:
    """The scale across the axes if it is `smoke`, whose runs are too few for conclusions."""
    if scale == "smoke":
        axes.text(
            0.5,
            0.5,
            scale,
            transform=axes.transAxes,
            ha="center",
            va="center",
            fontsize=size,
            color="0.92",
            rotation=20,
            zorder=0,
        )


def draw_caption(figure: Figure, caption: str) -> None:
    """The command and the origin of a figure below it."""
    figure.supxlabel(caption, fontsize=6, color="0.4", family="monospace", x=0.005, ha="left")


class FigureRecords(NamedTuple):
    """The runs of a figure."""

    seeds: dict[str, int]  # of every run by its name
    missing: list[str]  # the names of those that have not ended


def make_figure(
    label: str,
    wanted: Sequence[tuple[Path | Pack, Instance]],
    scale: str,
    caption: str,
    out: Path,
) -> dict[str, Any]:
    """Draw a figure from the runs that exist and write it as PNG, its numbers as JSON.

    wanted: each run with the sweep directory or the pack to read it from.
    """
    found = [(instance, read_instance(source, instance)) for source, instance in wanted]
    runs = [
        SolveRun(run.line, instance_depth(instance), run.episodes, run.seeds[0].goals)
        for instance, run in found
        if run is not None
    ]
    missing = [instance.name for instance, run in found if run is None]
    if wanted and not runs:
        source = wanted[0][0]
        path = source.path if isinstance(source, Pack) else source
        raise exits.Resumable(f"no run in {path} has ended: there is nothing to draw")
    records = FigureRecords(
        {(run or instance).name: instance.settings.run.seed for instance, run in found}, missing
    )
    draw = lambda text: draw_figure(label, runs, scale, text)
    return write_figure(label, scale, caption, records, draw, out)


def write_figure(
    label: str,
    scale: str,
    caption: str,
    records: FigureRecords,
    draw: Callable[[str], tuple[Figure, Numbers]],
    out: Path,
) -> dict[str, Any]:
    """Write a figure as PNG and its numbers as JSON; `draw` gets the caption with its origin."""
    source_data = provenance(records.seeds)
    notes = [f"{name.replace('_', ' ')} {value}" for name, value in source_data.items()]
    if records.missing:
        notes.append(f"{len(records.missing)} of {len(records.seeds)} runs missing")
    figure, numbers = draw("    ".join([caption, *notes]))
    disk.make_directory(out)
    picture = out / f"{label}-{scale}.png"
    disk.write(picture, figure_png(figure))
    result = {
        "figure": label,
        "scale": scale,
        "command": caption,
        **source_data,
        "runs": len(records.seeds) - len(records.missing),
        "missing": records.missing,
        "numbers": numbers,
    }
    disk.write(picture.with_suffix(".json"), (json.dumps(result, indent=2) + "\n").encode())
    return result | {"picture": str(picture)}


def read_instance(source: Path | Pack, instance: Instance) -> RunRecord | None:
    """A run from a sweep directory, by its name, or from a pack; None where it is missing."""
    if isinstance(source, Pack):
        return source.find(instance.line, instance_depth(instance), instance.settings.run.seed)
    with contextlib.suppress(SettingsError, OSError):
        return pack.read_run(source / instance.name, instance.line)
    return None


def instance_depth(instance: Instance) -> int:
    """The depth of a run of DeepSea."""
    return config.deep_sea_env(instance.settings).depth


def provenance(seeds: dict[str, int]) -> dict[str, str]:
    """A hash of the runs' names, the range of their seeds, and the date; seeds by name."""
    date = {"date": datetime.now(UTC).date().isoformat()}
    if not seeds:
        return date
    names = disk.digest("\n".join(sorted(seeds)).encode())[:12]
    first, last = min(seeds.values()), max(seeds.values())
    return {"settings_hash": names, "seeds": f"{first}-{last}", **date}


def figure_png(figure: Figure) -> bytes:
    """The figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()
