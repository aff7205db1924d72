"""Learning curves, metrics and maps of a report: thinned, quantised and encoded for its page."""

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ersac.analysis import scores
from ersac.analysis.pack import RunRecord
from ersac.report.collect import ReportRun
from ersac.runs.run_dir import EpisodeStats, MapSnapshot, Metrics

TOTAL_POINTS = 800_000  # of all curves of a page: about 4 MB
MIN_POINTS, MAX_POINTS = 12, 400  # of a curve
MAP_BYTES = 2_500_000  # of all maps of a page
LEVELS = 65_535  # to which values are quantised: more than a screen resolves
# Shown as the curves of episodes instead, which have every episode.
NOT_SHOWN = ("mean_return", "goal_share")


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
    return {"low": low, "high": high, "data": base64.b64encode(levels.tobytes()).decode()}


def encode_floats(values: np.ndarray) -> str:
    """Return numbers in single precision: the axes of curves, which may be logarithmic."""
    return base64.b64encode(np.asarray(values, "<f4").tobytes()).decode()


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
    recorded sigma2 and tau; of other agents it is shown only where it was recorded.
    """
    if metrics is None or not len(metrics.step):
        return {}
    values = {name: array for name, array in metrics.values.items() if name not in NOT_SHOWN}
    sigma2, tau = values.pop("sigma2", None), values.get("tau")
    if sigma2 is not None:
        values["sigma"] = np.sqrt(np.maximum(sigma2, 0))
        if _is_risk_seeking(record) and tau is not None and "bonus" not in values:
            with np.errstate(divide="ignore", invalid="ignore"):
                values["bonus"] = sigma2 / (2 * tau)
    return values


def _is_risk_seeking(record: RunRecord) -> bool:
    """Return whether the bonus of a run's agent is sigma2 / (2 tau) with one tau."""
    agent = record.settings.get("agent")
    risk = agent.get("risk") if isinstance(agent, dict) else None
    return isinstance(risk, dict) and risk.get("kind") == "Seeking"


def points_per_curve(runs: Sequence[ReportRun]) -> int:
    """Return how many points a curve may have, so that the page stays small."""
    curves = sum(
        len(run.record.seeds) * (2 + len(metric_curves(run.record, run.metrics)))
        for run in runs
        if run.record is not None
    )
    return int(np.clip(TOTAL_POINTS // max(1, curves), MIN_POINTS, MAX_POINTS))


def seed_curves(run: ReportRun, points: int) -> Iterator[dict[str, Any]]:
    """Yield the curves of every seed of a run, against episodes and steps."""
    assert run.record is not None
    metrics = metric_curves(run.record, run.metrics)
    for index, stats in enumerate(run.record.seeds):
        curves = _episode_curves(run.record, stats, points)
        if metrics and run.metrics is not None:
            ends = end_steps(run.record, stats)
            chosen = thin(len(run.metrics.step), points)
            step = run.metrics.step[chosen]
            episode = np.searchsorted(ends, step, side="right")
            curves["axes"]["metrics"] = _axes(episode, step)
            for name, values in metrics.items():
                curves["values"][name] = {"axes": "metrics", **encode_levels(values[index][chosen])}
        yield {"seed": stats.seed, **curves}


def end_steps(record: RunRecord, stats: EpisodeStats) -> np.ndarray:
    """Return the environment steps of a seed by the end of each episode."""
    if stats.steps is not None:
        return stats.steps
    if record.depth is None:  # a pack of goals only
        return np.arange(1, len(stats.goals) + 1)
    return np.arange(1, len(stats.goals) + 1) * record.depth


def _episode_curves(record: RunRecord, stats: EpisodeStats, points: int) -> dict[str, Any]:
    """Return the share of goals (DeepSea) and the mean return of the last hundred episodes."""
    index = thin(len(stats.goals), points)
    curves: dict[str, Any] = {
        "axes": {"episodes": _axes(index + 1, end_steps(record, stats)[index])},
        "values": {},
    }
    quantities = {"return": stats.returns} if len(stats.returns) == len(stats.goals) else {}
    if record.depth is not None:
        quantities = {"goals": stats.goals, **quantities}
    for name, values in quantities.items():
        means = scores.running_means(values, index + 1)
        curves["values"][name] = {"axes": "episodes", **encode_levels(means)}
    return curves


def _axes(episode: np.ndarray, step: np.ndarray) -> dict[str, str]:
    return {"episodes": encode_floats(episode), "steps": encode_floats(step)}


def encode_maps(snapshots: Sequence[MapSnapshot]) -> dict[str, Any]:
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
                else base64.b64encode(snapshot.moves_right[cells].astype(np.uint8)).decode(),
            }
            for snapshot in snapshots
        ],
    }


def map_bytes(snapshots: Sequence[MapSnapshot]) -> int:
    """Return about how many bytes the maps of a run take on the page."""
    depth = len(snapshots[0].visits)
    return len(snapshots) * (depth * (depth + 1) // 2 * 7 + 200)
