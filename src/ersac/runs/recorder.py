"""The episode statistics and metrics of a run, collected chunk by chunk. No jax here."""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ersac import display
from ersac.analysis import scores
from ersac.config import Experiment, deep_sea_env, rollouts_per_chunk
from ersac.runs.run_dir import EpisodeStats, MapSnapshot, Metrics

METRIC_POINTS = 2000  # stored of each metric; beyond this every other point is dropped
MAP_SNAPSHOTS = 16  # stored while a run goes on; beyond this every other one is dropped


class Recorder:
    """Collects episode statistics, metrics and map snapshots of all seeds of a run."""

    def __init__(self, settings: Experiment, seeds: Sequence[int] | None = None) -> None:
        self.settings, self.env = settings, settings.env
        self.seeds = list(seeds or range(settings.run.seed, settings.run.seed + settings.run.seeds))
        # By seed, an array a chunk. `end_steps` and `lengths` are those of EpisodeStats.
        self.goals: list[list[np.ndarray]] = [[] for _ in self.seeds]
        self.returns: list[list[np.ndarray]] = [[] for _ in self.seeds]
        self.end_steps: list[list[np.ndarray]] = [[] for _ in self.seeds]
        self.lengths: list[list[np.ndarray]] = [[] for _ in self.seeds]
        self.unfinished: list[np.ndarray] = []  # by seed: steps of the current episodes [N]
        self.recent_goals = [np.zeros(0, bool) for _ in self.seeds]  # the last 99
        self.episodes = np.zeros(len(self.seeds), int)
        self.solved_at: list[int | None] = [None] * len(self.seeds)  # episodes
        self.steps, self.chunks = 0, 0
        self.rows: list[dict[str, np.ndarray]] = []  # metrics, a row a chunk
        # Metrics [seeds, rollouts] of a chunk that has not ended: on the host a part of a chunk may
        # be added, and how long the parts are depends on a clock.
        self.pending: dict[str, np.ndarray] = {}
        self.pending_seconds = 0.0
        self.paces: list[float] = []  # steps of all seeds per second, in the chunk of each row
        self.map_snapshots: list[MapSnapshot] = []
        self.map_halvings = 0  # how often every other map snapshot was dropped
        self.failed: dict[int, str] = {}  # reason by index of a seed

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The metrics that are shown; all of them are stored."""
        return (*self.settings.agent.METRICS, *(("staleness",) if self.env.on_host else ()))

    @property
    def rollouts(self) -> int:
        """Rollouts that every seed has learned from."""
        return self.chunks * rollouts_per_chunk(self.settings) + self._pending_rollouts()

    @property
    def steps_per_seed(self) -> int:
        """Environment steps that every seed has taken."""
        return self.steps // len(self.seeds)

    def add(self, chunk: Any) -> None:
        """Add a chunk, or the next part of one.

        Episodes beyond the budget are stored too: the budget may be raised.
        """
        before = self.steps_per_seed
        self.steps += chunk.episodes.ended.size
        for i in range(len(self.seeds)):
            ended = chunk.episodes.ended[i]  # [rollouts, N, T]
            goals, returns = chunk.episodes.goal[i][ended], chunk.episodes.episode_return[i][ended]
            self._add_episodes(i, goals, returns.astype(np.float32))
            self.end_steps[i].append(before + (1 + np.nonzero(ended)[0]) * ended[0].size)
            if self.env.episode_length is None:
                counted = chunk.episodes.counted
                self._add_lengths(i, ended, np.ones_like(ended) if counted is None else counted[i])
        self._add_metrics(chunk.metrics, chunk.seconds)

    def _add_metrics(self, metrics: dict[str, np.ndarray], seconds: float) -> None:
        """Add metrics [seeds, rollouts]; those of a whole chunk become a row."""
        if self.pending:
            join = lambda name: np.concatenate([self.pending[name], metrics[name]], axis=1)
            metrics = {name: join(name) for name in metrics}
        self.pending, self.pending_seconds = metrics, self.pending_seconds + seconds
        if self._pending_rollouts() < rollouts_per_chunk(self.settings):
            return
        self.chunks += 1
        self.rows.append(self._pending_row())
        self.paces.append(self.steps / self.chunks / self.pending_seconds)
        self.pending, self.pending_seconds = {}, 0.0
        if len(self.rows) > METRIC_POINTS:
            self.rows, self.paces = self.rows[1::2], self.paces[1::2]

    def _recent(self) -> dict[str, np.ndarray]:
        """Return statistics of the last 100 episodes of every seed; nan before the first."""
        if not self.env.reports_returns:
            return {"goal_share": recent_means(self.goals, np.nan)}
        return {
            "mean_return": recent_means(self.returns, np.nan),
            "mean_length": recent_means(self.lengths, np.nan),
        }

    def _add_lengths(self, i: int, ended: np.ndarray, counted: np.ndarray) -> None:
        """Add the lengths of the episodes that ended, from two arrays [rollouts, N, T]."""
        if len(self.unfinished) <= i:
            self.unfinished.append(np.zeros(ended[0].size // ended.shape[-1], np.int32))
        self.unfinished[i], lengths = episode_lengths(self.unfinished[i], ended, counted)
        self.lengths[i].append(lengths)

    def last_row(self) -> dict[str, np.ndarray]:
        """Return the metrics of the newest chunk, or of its part so far."""
        return self._pending_row() if self.pending else self.rows[-1]

    def _pending_rollouts(self) -> int:
        return next(iter(self.pending.values())).shape[1] if self.pending else 0

    def _pending_row(self) -> dict[str, np.ndarray]:
        means = {name: values.mean(axis=1) for name, values in self.pending.items()}
        return {"step": np.asarray(self.steps_per_seed)} | means | self._recent()

    def _add_episodes(self, i: int, goals: np.ndarray, returns: np.ndarray) -> None:
        self.goals[i].append(goals)
        self.returns[i].append(returns)
        self._update_solved(i, goals)
        self.episodes[i] += len(goals)

    def _update_solved(self, i: int, goals: np.ndarray) -> None:
        window = scores.RELIABLE_WINDOW - 1
        recent = np.concatenate([self.recent_goals[i], goals])
        if self.solved_at[i] is None and (found := scores.solved_reliable(recent)) is not None:
            self.solved_at[i] = int(self.episodes[i]) - len(self.recent_goals[i]) + found
        self.recent_goals[i] = recent[-window:]

    def fail(self, seed_index: int, reason: str) -> None:
        """Drop one seed of a batch; the first reason counts."""
        self.failed.setdefault(seed_index, reason)

    def wants_map_snapshot(self) -> bool:
        """Return whether to store maps after this chunk; snapshots stay evenly spaced."""
        return self.env.has_maps and self.chunks % 2**self.map_halvings == 0

    def make_map_snapshot(self, visits: np.ndarray, sigma: np.ndarray) -> MapSnapshot:
        """Return a snapshot of the first seed's maps, [cells] each, after its latest episode."""
        shape = (deep_sea_env(self.settings).depth,) * 2
        return MapSnapshot(int(self.episodes[0]), visits.reshape(shape), sigma.reshape(shape))

    def add_map_snapshot(self, map_snapshot: MapSnapshot) -> None:
        """Store a snapshot; if there are too many, drop every other one."""
        self.map_snapshots.append(map_snapshot)
        if len(self.map_snapshots) > MAP_SNAPSHOTS:
            self.map_snapshots, self.map_halvings = self.map_snapshots[1::2], self.map_halvings + 1

    def solved_within_budget(self) -> list[int | None]:
        """Return the episode at which each seed was solved; None if not within the budget."""
        budget = self.settings.run.episodes
        return [None if at is None or at > budget else at for at in self.solved_at]

    def status(self, seconds: float) -> display.Status:
        """Return the progress of the run, for display."""
        last, run = self.last_row(), self.settings.run
        done, budget, unit = min(run.episodes, int(self.episodes.min())), run.episodes, "episodes"
        if run.steps is not None:
            done, budget, unit = min(run.steps, self.steps_per_seed), run.steps, "steps"
        return display.Status(
            seeds=self.seeds,
            done=done,
            budget=budget,
            budget_unit=unit,
            seconds=seconds,
            steps_per_second=self.steps / seconds,
            goal_share=recent_means(self.goals, otherwise=0.0),
            returns=recent_means(self.returns, np.nan) if self.env.reports_returns else None,
            metrics={
                name.removesuffix("2"): np.sqrt(last[name]) if name == "sigma2" else last[name]
                for name in self.metric_names
            },
            solved_at=self.solved_within_budget(),
        )

    def is_finished(self) -> bool:
        """Return whether the budget is spent, or all seeds are solved and that ends the run.

        Only whole chunks end a run: where it ends must not depend on a clock.
        """
        if self.pending:
            return False
        active = [i for i in range(len(self.seeds)) if i not in self.failed]
        run = self.settings.run
        spent = bool((self.episodes[active] >= run.episodes).all())
        spent |= run.steps is not None and self.steps_per_seed >= run.steps
        solved = self.solved_within_budget()
        return spent or (run.stop_when_solved and all(solved[i] is not None for i in active))

    def episode_stats(self) -> list[EpisodeStats]:
        """Return the episodes of every seed, up to the budget."""
        return [self._seed_stats(i) for i in range(len(self.seeds))]

    def _seed_stats(self, i: int) -> EpisodeStats:
        run = self.settings.run
        steps = np.concatenate(self.end_steps[i]) if self.env.episode_length is None else None
        count = run.episodes
        if run.steps is not None:
            if steps is None:
                within = run.steps // deep_sea_env(self.settings).episode_length
            else:
                within = int(np.searchsorted(steps, run.steps, side="right"))
            count = min(count, within)
        goals, returns = (np.concatenate(parts[i])[:count] for parts in (self.goals, self.returns))
        if steps is None:
            return EpisodeStats(self.seeds[i], goals, returns)
        lengths = np.concatenate(self.lengths[i])[:count]
        return EpisodeStats(self.seeds[i], goals, returns, steps[:count], lengths)

    def metrics(self) -> Metrics:
        """Return the metrics of all chunks that are stored."""
        columns = self._metric_columns()
        return Metrics(columns.pop("step"), columns)

    def _metric_columns(self) -> dict[str, np.ndarray]:
        rows = self.rows or [self._pending_row()]
        return {
            name: np.stack([row[name] for row in rows], axis=-1)[..., : len(self.rows)]
            for name in sorted(rows[0])  # a resumed run has read them in another order
        }

    def select_map_snapshots(self, last: MapSnapshot) -> list[MapSnapshot]:
        """Return two snapshots for the picture: exploration half way across, and the last one."""
        last = last._replace(episode=min(last.episode, self.settings.run.episodes))
        earlier = [snapshot for snapshot in self.map_snapshots if snapshot.episode < last.episode]
        if not earlier:
            return [last]
        half = deep_sea_env(self.settings).depth / 2

        def distance_from_half(snapshot: MapSnapshot) -> float:
            rightmost = int(np.flatnonzero(snapshot.visits.any(axis=0)).max(initial=0))
            return abs(rightmost - half)

        return [min(earlier, key=distance_from_half), last]

    def recent_map_snapshots(self) -> list[MapSnapshot]:
        """Return the two snapshots of a run that has not ended; none outside DeepSea."""
        return self.select_map_snapshots(self.map_snapshots[-1]) if self.map_snapshots else []

    def state(self) -> dict[str, np.ndarray]:
        """Return all of it as arrays, after at least one chunk; derived values are left out."""
        depth = self.env.depth or 1
        maps = {
            name: [getattr(snapshot, name) for snapshot in self.map_snapshots]
            for name in MapSnapshot._fields
        }
        state = {
            "goals": _join(self.goals),
            "returns": _join(self.returns),
            "episodes": self.episodes.copy(),
            "steps": np.asarray(self.steps),
            "chunks": np.asarray(self.chunks),
            "moment_halvings": np.asarray(self.map_halvings),
            "moment_episode": np.asarray(maps["episode"], int),
            "moment_visits": np.asarray(maps["visits"], np.int32).reshape(-1, depth, depth),
            "moment_sigma": np.asarray(maps["sigma"], np.float32).reshape(-1, depth, depth),
            **{f"metric_{name}": column for name, column in self._metric_columns().items()},
            **{f"pending_{name}": values for name, values in self.pending.items()},
        }
        if not self.env.episode_length:
            state["when"] = _join(self.end_steps)
            state["lengths"] = _join(self.lengths)
            if self.unfinished:
                state["unfinished"] = np.stack(self.unfinished)
        if self.failed:
            state["failed"] = np.frombuffer(json.dumps(self.failed).encode(), np.uint8)
        return state

    @classmethod
    def from_state(
        cls, settings: Experiment, state: dict[str, np.ndarray], seeds: Sequence[int] | None = None
    ) -> "Recorder":
        """Return the recorder that `state` was taken from."""
        recorder = cls(settings, seeds)
        ends = np.cumsum(state["episodes"])[:-1]
        for i, (goals, returns) in enumerate(
            zip(np.split(state["goals"], ends), np.split(state["returns"], ends), strict=True)
        ):
            recorder._add_episodes(i, goals, returns)
        if "when" in state:
            recorder.end_steps = [[part] for part in np.split(state["when"], ends)]
            # An older version recorded no lengths: they are 0.
            lengths = state.get("lengths", np.zeros(len(state["when"]), np.int32))
            recorder.lengths = [[part] for part in np.split(lengths, ends)]
            if "unfinished" in state and recorder.env.stores_state:
                recorder.unfinished = list(state["unfinished"])  # else new episodes start
        recorder.steps, recorder.chunks, recorder.map_halvings = (
            int(state[name]) for name in ("steps", "chunks", "moment_halvings")
        )
        maps = zip(
            state["moment_episode"], state["moment_visits"], state["moment_sigma"], strict=True
        )
        recorder.map_snapshots = [
            MapSnapshot(int(episode), visits, sigma) for episode, visits, sigma in maps
        ]
        if "failed" in state:
            failed = json.loads(state["failed"].tobytes())
            recorder.failed = {int(i): reason for i, reason in failed.items()}
        recorder.pending, columns = (
            {
                name.removeprefix(prefix): values
                for name, values in state.items()
                if name.startswith(prefix)
            }
            for prefix in ("pending_", "metric_")
        )
        recorder.rows = [
            {name: column[..., m] for name, column in columns.items()}
            for m in range(len(columns["step"]))
        ]
        recorder.paces = [math.nan] * len(recorder.rows)  # a checkpoint depends on no clock
        return recorder


def episode_lengths(
    before: np.ndarray, ended: np.ndarray, counted: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (the steps of the unfinished episodes [N], the length of every episode that ended).

    before: the steps of the current episodes before these rollouts [N]; ended, counted:
    [rollouts, N, T]. Lengths are in the order of `ended[ended]`.
    """
    by_env = lambda array: array.reshape(len(ended), len(before), -1).swapaxes(0, 1)  # [N, R, T]
    ends = by_env(ended)
    total = before[:, None] + by_env(counted).reshape(len(before), -1).cumsum(axis=1)  # [N, RT]
    env, at = np.nonzero(ends.reshape(total.shape))
    counts = total[env, at]
    is_first = np.diff(env, prepend=-1) > 0
    lengths = np.zeros(ends.shape, np.int32)
    lengths[ends] = counts - np.where(is_first, 0, np.roll(counts, 1))
    unfinished = total[:, -1].astype(np.int32)
    is_last = np.diff(env, append=len(before)) > 0
    unfinished[env[is_last]] -= counts[is_last].astype(np.int32)
    return unfinished, lengths.swapaxes(0, 1)[ends.swapaxes(0, 1)]


def recent_means(parts: Sequence[list[np.ndarray]], otherwise: float) -> np.ndarray:
    """Return the mean of every seed's last 100 episodes; `otherwise` if it has none."""
    recent = (last_entries(seed_parts, scores.RELIABLE_WINDOW) for seed_parts in parts)
    return np.array([entries.mean() if len(entries) else otherwise for entries in recent])


def last_entries(parts: list[np.ndarray], count: int) -> np.ndarray:
    """Return the last `count` entries of the arrays in a list, or as many as there are."""
    taken: list[np.ndarray] = []
    missing = count
    for part in reversed(parts):
        if missing <= 0:
            break
        taken.append(part[-missing:])
        missing -= len(part)
    return np.concatenate([np.zeros(0), *reversed(taken)])


def _join(parts: list[list[np.ndarray]]) -> np.ndarray:
    """Return all episodes of all seeds in one array."""
    return np.concatenate([array for arrays in parts for array in arrays])
