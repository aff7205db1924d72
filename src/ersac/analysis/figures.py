"""The paper's figures, one pure function each, from the records of a sweep; keyed by the paper's labels. No jax here."""

import contextlib
import io
import json
from collections.abc import Callable, Sequence
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
FAILED = "x"  # how a run is marked that was not solved in its budget
CURVE_POINTS = 400


class SolveRun(NamedTuple):
    """One run of a sweep, as far as figures show it."""

    line: str
    depth: int
    budget: int  # episodes
    goals: np.ndarray  # [episodes] bool

    @property
    def solved(self) -> int | None:
        """The episode at which it was solved by the reliable rule."""
        return scores.solved_reliable(self.goals)


Numbers = dict[str, Any]  # what a figure shows, as JSON
Draw = Callable[[Axes, Sequence[SolveRun]], Numbers]


class FigureSpec(NamedTuple):
    """How a figure is made: from which sweeps, and by which function."""

    sweeps: tuple[str, ...]  # none: a draw_diagram
    title: str
    draw: Draw


def group_by_line(runs: Sequence[SolveRun]) -> dict[str, list[SolveRun]]:
    """Runs by their line, in the order of the sweep."""
    lines: dict[str, list[SolveRun]] = {}
    for run in runs:
        lines.setdefault(run.line, []).append(run)
    return lines


def group_by_depth(runs: Sequence[SolveRun]) -> dict[int, list[SolveRun]]:
    """Runs by their depth, shallow first."""
    return {
        depth: [run for run in runs if run.depth == depth]
        for depth in sorted({run.depth for run in runs})
    }


def median_solved(runs: Sequence[SolveRun]) -> float | None:
    """The median episode of being solved; None where it lies beyond the budget: failures count as later than any other."""
    found = sorted(run.solved if run.solved is not None else np.inf for run in runs)
    middle = float(np.median(found))
    return middle if np.isfinite(middle) else None


def draw_solve_times(axes: Axes, runs: Sequence[SolveRun]) -> Numbers:
    """Episodes until solved against depth: a point a seed, a line through the medians, a cross at the budget for a failure."""
    told: Numbers = {}
    for colour, (name, line) in zip(COLOURS * 2, group_by_line(runs).items(), strict=False):
        per_depth = group_by_depth(line)
        for depth, some in per_depth.items():
            solved = [run.solved for run in some if run.solved is not None]
            axes.plot([depth] * len(solved), solved, "o", ms=3, color=colour, alpha=0.5)
            failed = [run.budget for run in some if run.solved is None]
            axes.plot([depth] * len(failed), failed, FAILED, ms=5, color=colour)
        medians = {
            depth: median
            for depth, some in per_depth.items()
            if (median := median_solved(some)) is not None
        }
        axes.plot(list(medians), list(medians.values()), "-", lw=1.4, color=colour, label=name)
        told[name] = {
            "solved": {
                depth: f"{sum(run.solved is not None for run in some)} of {len(some)}"
                for depth, some in per_depth.items()
            },
            "median": medians,
            "deepest": max(medians, default=None),
        }
    axes.set(xlabel="depth", ylabel="episodes until solved (reliable)", xscale="log", yscale="log")
    ticks = sorted({run.depth for run in runs})
    axes.set_xticks(ticks, [str(depth) for depth in ticks])
    axes.tick_params(axis="x", which="minor", bottom=False)
    axes.legend(frameon=False, fontsize=8)
    return told


def draw_solve_times_linear(axes: Axes, runs: Sequence[SolveRun]) -> Numbers:
    """The same on even scales."""
    told = draw_solve_times(axes, runs)
    axes.set(xscale="linear", yscale="linear")
    return told


def draw_power_law(axes: Axes, runs: Sequence[SolveRun]) -> Numbers:
    """Solve times of the first line with the power of depth that fits their medians, and its interval."""
    name, line = next(iter(group_by_line(runs).items()))
    told = draw_solve_times(axes, line)
    samples = {
        depth: [run.solved or run.budget for run in some]
        for depth, some in group_by_depth(line).items()
    }
    if len(samples) < 3:
        return told
    fit = scores.power_law(samples)
    depth = np.geomspace(min(samples), max(samples), 50)
    label = f"{fit.scale:.2g} depth^{fit.exponent:.2f}  (95 %: {fit.low:.2f} to {fit.high:.2f})"
    axes.plot(depth, fit.scale * depth**fit.exponent, "--", color="0.4", lw=1, label=label)
    axes.legend(frameon=False, fontsize=8)
    return told | {"fit": {name: fit._asdict()}}


def draw_solved_share(axes: Axes, runs: Sequence[SolveRun]) -> Numbers:
    """The share of all seeds and depths that was solved by each episode, a line a setting."""
    told: Numbers = {}
    most = max(run.budget for run in runs)
    episode = np.unique(np.geomspace(10, most, CURVE_POINTS).astype(int))
    for colour, (name, line) in zip(COLOURS * 2, group_by_line(runs).items(), strict=False):
        when = np.array([run.solved if run.solved is not None else np.inf for run in line])
        style = "--" if name.endswith("fixed") else "-"
        axes.plot(
            episode,
            (when[:, None] <= episode).mean(axis=0),
            style,
            lw=1.4,
            color=colour,
            label=name,
        )
        low, high = scores.wilson_interval(int(np.isfinite(when).sum()), len(when))
        told[name] = {
            "solved": int(np.isfinite(when).sum()),
            "of": len(when),
            "interval": [low, high],
        }
    axes.set(
        xlabel="episode",
        ylabel="share of seeds and depths solved",
        xscale="log",
        ylim=(-0.02, 1.02),
    )
    axes.legend(frameon=False, fontsize=7)
    return told


def draw_goal_share(axes: Axes, runs: Sequence[SolveRun]) -> Numbers:
    """The share of episodes that reach the goal, averaged over seeds, between the worst and the best tenth of them."""
    told: Numbers = {}
    for colour, (name, line) in zip(COLOURS, group_by_line(runs).items(), strict=False):
        episode = np.unique(
            np.linspace(
                scores.RELIABLE_WINDOW, max(len(run.goals) for run in line), CURVE_POINTS
            ).astype(int)
        )
        shares = np.stack(
            [recent_goal_share(run.goals, episode) for run in line]
        )  # [seeds, points]
        axes.plot(
            episode, shares.mean(axis=0), color=colour, lw=1.5, label=f"{name}, {len(line)} seeds"
        )
        axes.fill_between(
            episode, *np.quantile(shares, (0.1, 0.9), axis=0), color=colour, alpha=0.15, lw=0
        )
        reached = sum(bool(run.goals.any()) for run in line)
        solved = [run.solved for run in line if run.solved is not None]
        fell = sum(scores.fell_back(run.goals) for run in line)
        told[name] = {
            "seeds": len(line),
            "reached": reached,
            "solved": len(solved),
            "median": median_solved(line),
            "fell back": fell,
        }
    axes.set(
        xlabel="episode",
        ylabel=f"share of the last {scores.RELIABLE_WINDOW} that reached the goal",
        ylim=(-0.02, 1.02),
    )
    axes.legend(frameon=False, fontsize=8)
    return told


def recent_goal_share(goals: np.ndarray, episode: np.ndarray) -> np.ndarray:
    """The share of goals among the last hundred before each episode; a run that ended early keeps its last value."""
    return scores.running_means(goals, np.minimum(episode, len(goals)))


def draw_diagram(axes: Axes, runs: Sequence[SolveRun]) -> Numbers:
    """DeepSea itself: the one path to the treasure, and all the others."""
    depth = 6
    for row in range(depth):
        for column in range(row + 1):
            axes.add_patch(_cell(row, column, "#fdf3d8" if row == column else "white"))
            if row < depth - 1:
                down = {"arrowstyle": "-|>", "lw": 0.8, "shrinkA": 8, "shrinkB": 8}
                right = "#1b6ca8" if row == column else "0.7"
                axes.annotate(
                    "", (column + 1, -row - 1), (column, -row), arrowprops=down | {"color": right}
                )
                axes.annotate(
                    "",
                    (max(0, column - 1), -row - 1),
                    (column, -row),
                    arrowprops=down | {"color": "0.7"},
                )
    axes.text(0, 0.65, "start", ha="center", fontsize=9)
    axes.text(
        depth - 0.4, -depth + 1, " +1", va="center", fontsize=11, color="#1b6ca8", weight="bold"
    )
    axes.text(depth * 0.62, -1.1, "right: costs 0.01 / depth", fontsize=9, color="#1b6ca8")
    axes.set(xlim=(-0.7, depth + 0.4), ylim=(-depth + 0.3, 1.1), aspect="equal")
    axes.axis("off")
    return {"depth": depth}


def _cell(row: int, column: int, colour: str) -> Any:
    from matplotlib.patches import Circle

    return Circle((column, -row), 0.16, facecolor=colour, edgecolor="0.3", zorder=3)


FIGURES: dict[str, FigureSpec] = {
    "f-DeepSea": FigureSpec((), "DeepSea", draw_diagram),
    "f-DeepSea_solved_v_boot_dqn": FigureSpec(
        ("solve-time", "boot-dqn"), "Who solves DeepSea, and how deep", draw_solve_times
    ),
    "f-solve_time_v_depth": FigureSpec(
        ("solve-time",), "ERSAC's solve time against depth", draw_power_law
    ),
    "f-robustness_lambda": FigureSpec(("robustness-lambda",), "TD(lambda)", draw_solved_share),
    "f-robustness_rollout": FigureSpec(
        ("robustness-rollout",), "Steps between updates", draw_solved_share
    ),
    "f-robustness_tau": FigureSpec(
        ("robustness-tau",), "tau learned and tau fixed", draw_solved_share
    ),
    "f-depth_250": FigureSpec(("depth-250",), "Depth 250", draw_goal_share),
    "f-replay_v_no_replay": FigureSpec(("replay",), "With replay and without", draw_solve_times),
    "f-replay_v_no_replay_not_log": FigureSpec(
        ("replay",), "With replay and without", draw_solve_times_linear
    ),
    "f-depth_100_kimpala_100_seeds": FigureSpec(
        ("replay-100",), "Depth 100: reaching the goal, and staying there", draw_goal_share
    ),
    "f-replay_noise_v_no_noise": FigureSpec(
        ("replay-noise",), "Noise that is stored with each step, and none", draw_solved_share
    ),
    "f-solve_time_v_depth_kimpala": FigureSpec(
        ("replay-law",), "ERSAC + replay's solve time against depth", draw_power_law
    ),
}


def draw_figure(
    label: str, runs: Sequence[SolveRun], scale: str, caption: str
) -> tuple[Figure, Numbers]:
    """A figure and the numbers in it. Anything below the paper's scale says so across the picture."""
    spec = FIGURES[label]
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.subplots()
    numbers = spec.draw(axes, runs)
    axes.set_title(spec.title, fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    if spec.sweeps and scale == "smoke":
        axes.text(
            0.5,
            0.5,
            scale,
            transform=axes.transAxes,
            ha="center",
            va="center",
            fontsize=60,
            color="0.92",
            rotation=20,
            zorder=0,
        )
    figure.supxlabel(caption, fontsize=6, color="0.4", family="monospace", x=0.005, ha="left")
    return figure, numbers


def make_figure(
    label: str,
    wanted: Sequence[tuple[Path | Pack, Instance]],
    scale: str,
    caption: str,
    out: Path,
) -> dict[str, Any]:
    """Draw a figure from the runs that a directory or a pack has, and write it with its numbers."""
    found = [(instance, read_instance(source, instance)) for source, instance in wanted]
    present = [(instance_depth(instance), run) for instance, run in found if run is not None]
    runs = [SolveRun(run.line, depth, run.episodes, run.seeds[0].goals) for depth, run in present]
    missing = [instance.name for instance, run in found if run is None]
    if wanted and not runs:
        source = wanted[0][0]
        where = source.path if isinstance(source, Pack) else source
        raise exits.Resumable(f"no run in {where} has ended: there is nothing to draw")
    absent = f"    {len(missing)} of {len(wanted)} runs missing" if missing else ""
    made_of = provenance({(run or each).name: each.settings.run.seed for each, run in found})
    whence = "".join(f"    {name.replace('_', ' ')} {value}" for name, value in made_of.items())
    figure, numbers = draw_figure(label, runs, scale, caption + whence + absent)
    disk.make_directory(out)
    picture = out / f"{label}-{scale}.png"
    disk.write(picture, figure_png(figure))
    told = {
        "figure": label,
        "scale": scale,
        "command": caption,
        **made_of,
        "runs": len(runs),
        "missing": missing,
        "numbers": numbers,
    }
    disk.write(picture.with_suffix(".json"), (json.dumps(told, indent=2) + "\n").encode())
    return told | {"picture": str(picture)}


def read_instance(source: Path | Pack, instance: Instance) -> RunRecord | None:
    """A run in a directory, by the name with the hash of its settings, or in a pack."""
    if isinstance(source, Pack):
        return source.find(instance.line, instance_depth(instance), instance.settings.run.seed)
    with contextlib.suppress(SettingsError, OSError):
        return pack.read_run(source / instance.name, instance.line)
    return None


def instance_depth(instance: Instance) -> int:
    """The depth of a run of DeepSea."""
    return config.deep_sea_env(instance.settings).depth


def provenance(seeds: dict[str, int]) -> dict[str, str]:
    """What a figure is of, from its runs' names and seeds: a hash, the seeds, and the date."""
    drawn = {"date": datetime.now(UTC).date().isoformat()}
    if not seeds:
        return drawn
    names = disk.digest("\n".join(sorted(seeds)).encode())[:12]
    first, last = min(seeds.values()), max(seeds.values())
    return {"settings_hash": names, "seeds": f"{first}-{last}", **drawn}


def figure_png(figure: Figure) -> bytes:
    """The picture as a file's bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()
