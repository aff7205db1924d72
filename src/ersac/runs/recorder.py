"""What the chunks of a run bring, gathered into its facts. No jax here."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from ersac import display
from ersac.analysis import scores
from ersac.config import Experiment, deep_sea_env
from ersac.runs.run_dir import EpisodeStats, MapSnapshot, Metrics

METRIC_POINTS = 2000  # kept of each metric; when there are more, every other one goes
MAP_SNAPSHOTS = 16  # maps kept while a run goes on
RECENT_PARTS = 200  # chunks of episodes that are looked at for the last hundred: at least one that ended in each


class Recorder:
    """Gathers what the chunks bring into the facts of a run."""

    def __init__(self, settings: Experiment, seeds: Sequence[int] | None = None) -> None:
        self.settings = settings
        self.seeds = list(seeds or range(settings.run.seed, settings.run.seed + settings.run.seeds))
        self.goals: list[list[np.ndarray]] = [[] for _ in self.seeds]
        self.returns: list[list[np.ndarray]] = [[] for _ in self.seeds]
        self.end_steps: list[list[np.ndarray]] = [
            [] for _ in self.seeds
        ]  # steps by which each episode had ended; at sea its depth tells
        self.env = settings.env
        self.recent_goals = [np.zeros(0, bool) for _ in self.seeds]
        self.episodes = np.zeros(len(self.seeds), int)
        self.solved_at: list[int | None] = [None] * len(self.seeds)
        self.steps, self.chunks = 0, 0
        self.rows: list[dict[str, np.ndarray]] = []
        self.map_snapshots: list[MapSnapshot] = []
        self.map_halvings = 0  # how often every other moment was dropped
        self.failed: dict[int, str] = {}  # why a seed was given up, by its place

    @property
    def metric_names(self) -> tuple[str, ...]:
        """What is kept and shown of the learner; of a loop whose actor runs ahead, how far."""
        return (*self.settings.agent.METRICS, *(("staleness",) if self.env.on_host else ()))

    def add(self, chunk: Any) -> None:
        """Take in one chunk. What goes beyond the budget of episodes is kept too: the budget may be raised."""
        before = self.steps // len(self.seeds)
        self.steps += chunk.episodes.ended.size
        self.chunks += 1
        for i in range(len(self.seeds)):
            ended = chunk.episodes.ended[i]  # [rollouts, N, T]
            self._add_episodes(
                i,
                chunk.episodes.goal[i][ended],
                chunk.episodes.episode_return[i][ended].astype(np.float32),
            )
            self.end_steps[i].append(before + (1 + np.nonzero(ended)[0]) * ended[0].size)
        per_seed = self.steps // len(self.seeds)
        told = {name: chunk.metrics[name].mean(axis=1) for name in self.metric_names}
        self.rows.append({"step": np.asarray(per_seed)} | told)
        if len(self.rows) > METRIC_POINTS:
            self.rows = self.rows[1::2]

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

    def fail(self, place: int, why: str) -> None:
        """Give up one seed; the first reason is the one that counts."""
        self.failed.setdefault(place, why)

    def wants_map_snapshot(self) -> bool:
        """Whether this chunk's maps should be kept: evenly spaced ones, whatever the length of the run."""
        return self.env.has_maps and self.chunks % 2**self.map_halvings == 0

    def make_map_snapshot(self, visits: np.ndarray, sigma: np.ndarray) -> MapSnapshot:
        """A pair of maps of the first seed as it is now."""
        shape = (deep_sea_env(self.settings).depth,) * 2
        return MapSnapshot(int(self.episodes[0]), visits.reshape(shape), sigma.reshape(shape))

    def add_map_snapshot(self, map_snapshot: MapSnapshot) -> None:
        """Keep a pair of maps; when there are too many, drop every other one."""
        self.map_snapshots.append(map_snapshot)
        if len(self.map_snapshots) > MAP_SNAPSHOTS:
            self.map_snapshots, self.map_halvings = self.map_snapshots[1::2], self.map_halvings + 1

    def solved_within_budget(self) -> list[int | None]:
        """When each seed was solved, if it was within the budget."""
        return [
            found if found is not None and found <= self.settings.run.episodes else None
            for found in self.solved_at
        ]

    def status(self, seconds: float) -> display.Status:
        """Where the run is."""
        last = self.rows[-1]
        share = np.array([recent.mean() if len(recent) else 0.0 for recent in self.recent_goals])
        told = {
            name.removesuffix("2"): np.sqrt(last[name]) if name == "sigma2" else last[name]
            for name in self.metric_names
        }
        run = self.settings.run
        done, budget, unit = min(run.episodes, int(self.episodes.min())), run.episodes, "episodes"
        if run.steps is not None:
            done, budget, unit = min(run.steps, self.steps // len(self.seeds)), run.steps, "steps"
        recent = [
            np.concatenate([np.zeros(0), *parts[-RECENT_PARTS:]])[-scores.RELIABLE_WINDOW :]
            for parts in self.returns
        ]
        means = np.array([each.mean() if len(each) else np.nan for each in recent])
        returns = means if self.env.reports_returns else None
        paced = self.steps / seconds
        return display.Status(
            self.seeds,
            done,
            budget,
            seconds,
            paced,
            share,
            told,
            self.solved_within_budget(),
            unit,
            returns,
        )

    def is_finished(self) -> bool:
        """Whether the budget is spent, or every seed that was not given up is solved and that was to be the end."""
        alive = [i for i in range(len(self.seeds)) if i not in self.failed]
        run = self.settings.run
        spent = bool((self.episodes[alive] >= run.episodes).all())
        spent |= run.steps is not None and self.steps // len(self.seeds) >= run.steps
        solved = self.solved_within_budget()
        return spent or (run.stop_when_solved and all(solved[i] is not None for i in alive))

    def episode_stats(self) -> list[EpisodeStats]:
        """What happened to each seed, up to the budget."""
        return [self._seed_stats(place) for place in range(len(self.seeds))]

    def _seed_stats(self, place: int) -> EpisodeStats:
        run = self.settings.run
        when = np.concatenate(self.end_steps[place]) if self.env.episode_length is None else None
        count = run.episodes
        if run.steps is not None:
            if when is None:
                in_time = run.steps // deep_sea_env(self.settings).episode_length
            else:
                in_time = int(np.searchsorted(when, run.steps, side="right"))
            count = min(count, in_time)
        goals, returns = (
            np.concatenate(parts[place])[:count] for parts in (self.goals, self.returns)
        )
        return EpisodeStats(
            self.seeds[place], goals, returns, None if when is None else when[:count]
        )

    def metrics(self) -> Metrics:
        """What the learner said of itself."""
        columns = {
            name: np.stack([row[name] for row in self.rows], axis=-1) for name in self.rows[0]
        }
        return Metrics(columns.pop("step"), columns)

    def select_map_snapshots(self, last: MapSnapshot) -> list[MapSnapshot]:
        """The moment at which the frontier was nearest the middle of the sea, and the last one."""
        last = last._replace(episode=min(last.episode, self.settings.run.episodes))
        earlier = [
            map_snapshot
            for map_snapshot in self.map_snapshots
            if map_snapshot.episode < last.episode
        ]
        if not earlier:
            return [last]
        reach = lambda map_snapshot: int(
            np.flatnonzero(map_snapshot.visits.any(axis=0)).max(initial=0)
        )
        half = deep_sea_env(self.settings).depth / 2
        return [min(earlier, key=lambda map_snapshot: abs(reach(map_snapshot) - half)), last]

    def state(self) -> dict[str, np.ndarray]:
        """All of it as arrays, after at least one chunk; what follows from them is left out."""
        depth = self.env.depth or 1
        maps = {
            name: [getattr(map_snapshot, name) for map_snapshot in self.map_snapshots]
            for name in MapSnapshot._fields
        }
        return {
            "goals": np.concatenate([part for parts in self.goals for part in parts]),
            "returns": np.concatenate([part for parts in self.returns for part in parts]),
            **(
                {}
                if self.env.episode_length
                else {"when": np.concatenate([part for parts in self.end_steps for part in parts])}
            ),
            "episodes": self.episodes.copy(),
            "steps": np.asarray(self.steps),
            "chunks": np.asarray(self.chunks),
            "moment_halvings": np.asarray(self.map_halvings),
            "moment_episode": np.asarray(maps["episode"], int),
            "moment_visits": np.asarray(maps["visits"], np.int32).reshape(-1, depth, depth),
            "moment_sigma": np.asarray(maps["sigma"], np.float32).reshape(-1, depth, depth),
            **{
                f"metric_{name}": np.stack([row[name] for row in self.rows], axis=-1)
                for name in self.rows[0]
            },
            **(
                {"failed": np.frombuffer(json.dumps(self.failed).encode(), np.uint8)}
                if self.failed
                else {}
            ),
        }

    @classmethod
    def from_state(
        cls, settings: Experiment, state: dict[str, np.ndarray], seeds: Sequence[int] | None = None
    ) -> "Recorder":
        """The recorder that had that state."""
        made = cls(settings, seeds)
        ends = np.cumsum(state["episodes"])[:-1]
        for i, (goals, returns) in enumerate(
            zip(np.split(state["goals"], ends), np.split(state["returns"], ends), strict=True)
        ):
            made._add_episodes(i, goals, returns)
        if "when" in state:
            made.end_steps = [[part] for part in np.split(state["when"], ends)]
        made.steps, made.chunks, made.map_halvings = (
            int(state[name]) for name in ("steps", "chunks", "moment_halvings")
        )
        maps = zip(
            state["moment_episode"], state["moment_visits"], state["moment_sigma"], strict=True
        )
        made.map_snapshots = [
            MapSnapshot(int(episode), visits, sigma) for episode, visits, sigma in maps
        ]
        if "failed" in state:
            made.failed = {
                int(place): why for place, why in json.loads(state["failed"].tobytes()).items()
            }
        columns = {name: state[f"metric_{name}"] for name in ("step", *made.metric_names)}
        made.rows = [
            {name: column[..., m] for name, column in columns.items()}
            for m in range(len(columns["step"]))
        ]
        return made
