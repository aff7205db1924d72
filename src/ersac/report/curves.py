"""Learning curves, metrics and maps of a report: thinned, quantised and encoded for its page."""

import base64
import functools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ersac.analysis import scores
from ersac.analysis.pack import RunRecord
from ersac.report.collect import ReportRun
from ersac.runs.run_dir import EpisodeStats, MapSnapshot, Metrics

TOTAL_POINTS = 800_000  # of all seeds of a page: about 4 MB
MIN_POINTS, MAX_POINTS = 12, 400  # of a curve
TOTAL_SEEDS, MAX_SEEDS = 1_000, 100  # drawn one by one: of a page, of an agent
BAND_POINTS = 200
QUANTILES = (0.25, 0.5, 0.75)  # the middle half of the seeds around their median
MAP_BYTES = 2_500_000  # of all maps of a page
LEVELS = 65_535  # to which values are quantised: more than a screen resolves
EPISODES, STEPS = "episodes", "steps"  # what curves are drawn against
LOGARITHMIC = ("bonus", "tau", "sigma")  # quantities that are drawn so
# Shown as the curves of episodes instead, which have every episode.
NOT_SHOWN = ("mean_return", "goal_share")


class PageCurve(NamedTuple):
    """A quantity of one seed, thinned."""

    episodes: np.ndarray  # [P]
    steps: np.ndarray  # [P]   environment steps of the seed
    values: np.ndarray  # [P]


Curves = dict[str, PageCurve]  # by quantity


def encode_levels(values: np.ndarray) -> dict[str, Any]:
    """Return numbers as 16-bit levels between their smallest and largest; not finite ones as nan.

    The inverse is `decodeLevels` of the page.
    """
    values = np.asarray(values, float).ravel()
    finite = np.isfinite(values)
    low, high = (float(f(values[finite])) if finite.any() else 0.0 for f in (np.min, np.max))
    scale = (LEVELS - 1) / (high - low) if high > low else 0.0
    levels = np.full(values.shape, LEVELS, "<u2")
    levels[finite] = np.round((values[finite] - low) * scale)
    low, high = (float(f"{value:.9g}") for value in (low, high))
    return {"low": low, "high": high, "data": base64.b64encode(levels.tobytes()).decode()}


def encode_values(name: str, values: np.ndarray) -> dict[str, Any]:
    """Return the values of a quantity: levels, or floats where small ones differ too."""
    return {"floats": encode_floats(values)} if name in LOGARITHMIC else encode_levels(values)


def encode_floats(values: np.ndarray) -> str:
    """Return numbers in single precision, such as axes, which may be logarithmic."""
    return base64.b64encode(np.asarray(values, "<f4").tobytes()).decode()


@functools.lru_cache(maxsize=1024)
def thin(count: int, points: int) -> np.ndarray:
    """Return indices of about so many of `count` entries: close together at the start."""
    if count <= points:
        return np.arange(count)
    even = np.linspace(0, count - 1, points - points // 3)
    early = np.geomspace(1, count, points // 3) - 1
    return np.unique(np.concatenate([even, early]).astype(int))


def metric_curves(record: RunRecord, metrics: Metrics | None) -> dict[str, np.ndarray]:
    """Return the metrics of a run [seeds, M] by the name on the page.

    Sigma is the root of the recorded sigma2. Of ERSAC with one tau the bonus follows from the
    recorded sigma2 and tau; of other agents it is shown only where it was recorded. Agents that are
    not risk-seeking record a tau that they never use: it is left out.
    """
    if metrics is None or not len(metrics.step):
        return {}
    values = {name: array for name, array in metrics.values.items() if name not in NOT_SHOWN}
    risk, sigma2, tau = risk_attitude(record), values.pop("sigma2", None), values.get("tau")
    if sigma2 is not None:
        values["sigma"] = np.sqrt(np.maximum(sigma2, 0))
        if risk == "Seeking" and tau is not None and "bonus" not in values:
            with np.errstate(divide="ignore", invalid="ignore"):
                values["bonus"] = sigma2 / (2 * tau)
    if risk in ("Neutral", "Optimist"):
        values.pop("tau", None)
    return values


def risk_attitude(record: RunRecord) -> str | None:
    """Return the name of an agent's attitude to risk; None if it has none."""
    agent = record.settings.get("agent")
    risk = agent.get("risk") if isinstance(agent, dict) else None
    return risk.get("kind") if isinstance(risk, dict) else None


def encode_groups(
    runs: Sequence[ReportRun], members: Sequence[Sequence[int]]
) -> list[dict[str, Any]]:
    """Return the curves of groups of runs: of a bounded number of seeds, and bands of them all.

    members: the indices of the runs of each group.
    """
    shown = int(np.clip(TOTAL_SEEDS // max(1, len(members)), 1, MAX_SEEDS))
    groups = [
        [(index, seed, curves) for index in indices for seed, curves in seed_curves(runs[index])]
        for indices in members
    ]
    chosen = [group[:: -(-len(group) // shown)] for group in groups]
    count = sum(len(curves) for group in chosen for _, _, curves in group)
    points = int(np.clip(TOTAL_POINTS // max(1, count), MIN_POINTS, MAX_POINTS))
    return [
        {
            "seeds": [encode_seed(index, seed, curves, points) for index, seed, curves in part],
            "total": len(group),
            # Where all seeds are in the page it computes the bands, after smoothing.
            "bands": {} if len(part) == len(group) else encode_bands([c for _, _, c in group]),
        }
        for group, part in zip(groups, chosen, strict=True)
    ]


def seed_curves(run: ReportRun) -> Iterator[tuple[int, Curves]]:
    """Yield every seed of a run that has ended an episode, with its curves."""
    assert run.record is not None
    metrics = metric_curves(run.record, run.metrics)
    for index, stats in enumerate(run.record.seeds):
        if not len(stats.goals):
            continue
        ends = end_steps(run.record, stats)
        curves = _episode_curves(run.record, stats, ends)
        if metrics and run.metrics is not None:
            chosen = thin(len(run.metrics.step), MAX_POINTS)
            step = run.metrics.step[chosen]
            episode = np.searchsorted(ends, step, side="right")
            for name, values in metrics.items():
                curves[name] = PageCurve(episode, step, values[index][chosen])
        yield stats.seed, curves


def end_steps(record: RunRecord, stats: EpisodeStats) -> np.ndarray:
    """Return the environment steps of a seed by the end of each episode."""
    if stats.steps is not None:
        return stats.steps
    if record.depth is None:  # a pack of goals only
        return np.arange(1, len(stats.goals) + 1)
    return np.arange(1, len(stats.goals) + 1) * record.depth


def _episode_curves(record: RunRecord, stats: EpisodeStats, ends: np.ndarray) -> Curves:
    """Return the share of goals (DeepSea) and the mean return of the last hundred episodes."""
    index = thin(len(stats.goals), MAX_POINTS)
    quantities = {"return": stats.returns} if len(stats.returns) == len(stats.goals) else {}
    if record.depth is not None:
        quantities = {"goals": stats.goals, **quantities}
    return {
        name: PageCurve(index + 1, ends[index], scores.running_means(values, index + 1))
        for name, values in quantities.items()
    }


def encode_seed(run: int, seed: int, curves: Curves, points: int) -> dict[str, Any]:
    """Return the curves of a seed; those with the same axes share them."""
    axes: dict[bytes, dict[str, str]] = {}
    values = {}
    for name, curve in curves.items():
        chosen = thin(len(curve.values), points)
        episodes, steps = (array[chosen] for array in curve[:2])
        key = np.asarray(steps, float).tobytes()
        axes.setdefault(key, {EPISODES: encode_floats(episodes), STEPS: encode_floats(steps)})
        number = list(axes).index(key)
        values[name] = {"axes": number, **encode_values(name, curve.values[chosen])}
    return {"run": run, "seed": seed, "axes": list(axes.values()), "values": values}


def encode_bands(seeds: Sequence[Curves]) -> dict[str, dict[str, Any]]:
    """Return quantiles over seeds of every quantity against episodes and steps."""
    names = dict.fromkeys(name for curves in seeds for name in curves)
    curves_of = lambda name: [curves[name] for curves in seeds if name in curves]
    return {
        name: {axis: _band(name, curves_of(name), axis) for axis in (EPISODES, STEPS)}
        for name in names
    }


def _band(name: str, curves: Sequence[PageCurve], axis: str) -> dict[str, Any]:
    """Return the quantiles of curves on one grid.

    A curve counts with its last value after its end, and not before its first point; a point needs
    half of the curves.
    """
    at = [np.asarray(getattr(curve, axis), float) for curve in curves]
    low, high = min(x[0] for x in at), max(x[-1] for x in at)
    grid = low + (high - low) * thin(100_000, BAND_POINTS) / 99_999
    rows = np.stack(
        [np.interp(grid, x, curve.values, left=np.nan) for x, curve in zip(at, curves, strict=True)]
    )
    missing = np.isnan(rows)
    if missing.any():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of a column without any number
            levels = np.nanquantile(rows, QUANTILES, axis=0)
        levels[:, missing.mean(axis=0) > 0.5] = np.nan
    else:
        levels = np.quantile(rows, QUANTILES, axis=0)
    parts = zip(("low", "middle", "high"), levels, strict=True)
    return {"x": encode_floats(grid), **{part: encode_values(name, row) for part, row in parts}}


def encode_map_frames(snapshots: Sequence[MapSnapshot]) -> dict[str, Any]:
    """Return the maps of a DeepSea run: of every cell that can be reached, row by row."""
    cells = np.tril_indices(len(snapshots[0].visits))
    max_sigma = max(float(snapshot.sigma[cells].max()) for snapshot in snapshots)
    max_visits = max(int(snapshot.visits.max()) for snapshot in snapshots)
    return {
        "depth": len(snapshots[0].visits),
        "max_sigma": max_sigma,
        "max_visits": max_visits,
        "frames": [
            {
                "episode": snapshot.episode,
                # On a logarithmic scale, as they are shown.
                "log_visits": encode_levels(np.log1p(snapshot.visits[cells])),
                "sigma": encode_levels(snapshot.sigma[cells]),
                "right": None
                if snapshot.moves_right is None
                else base64.b64encode(
                    snapshot.moves_right[cells].astype(np.uint8).tobytes()
                ).decode(),
            }
            for snapshot in snapshots
        ],
    }


def encode_flags(flags: np.ndarray | None, cells: tuple[np.ndarray, ...]) -> str | None:
    """Return whether cells have a flag, a byte a cell; None where that was not recorded."""
    if flags is None:
        return None
    return base64.b64encode(flags[cells].astype(np.uint8).tobytes()).decode()


def map_bytes(snapshots: Sequence[MapSnapshot]) -> int:
    """Return about how many bytes the maps of a run take on the page."""
    depth = len(snapshots[0].visits)
    return len(snapshots) * (depth * (depth + 1) // 2 * 7 + 200)
