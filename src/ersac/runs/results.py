"""A run that has ended: what it was, what happened, and the verdicts on it. No jax here."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ersac import config
from ersac.analysis import scores
from ersac.config import Experiment, SettingsError
from ersac.runs import run_dir
from ersac.runs.run_dir import EpisodeStats, MapSnapshot, Metrics, Timings

if TYPE_CHECKING:
    from ersac.policy.evaluate import Evaluation
    from ersac.policy.policy import Policy


@dataclass(frozen=True)
class Result:
    """A run that has ended: its settings, its facts, and the verdicts computed from them."""

    settings: Experiment
    seeds: list[EpisodeStats]
    metrics: Metrics
    map_snapshots: list[MapSnapshot]
    steps: int
    compile_seconds: float
    run_seconds: float
    wall_seconds: float
    environment_changes: list[str]  # what changed when it was resumed, so that its bits may have
    directory: Path | None = None
    last: Any = field(
        default=None, repr=False, compare=False
    )  # what its loop carried at the end, where no directory has it

    @property
    def steps_per_second(self) -> float:
        """Environment steps of all seeds together in a second, compilation excluded."""
        return self.steps / self.run_seconds

    @property
    def network(self) -> str:
        """What the agent has: mlp or table."""
        return getattr(self.settings.agent, "network", "mlp")

    def verdict(self, stats: EpisodeStats) -> dict[str, int | None]:
        """When a seed first reached the goal, and when each rule calls it solved; None where never."""
        return scores.goal_metrics(stats.goals, self.settings.env.stochastic)

    def summary(self) -> dict[str, Any]:
        """The run as one JSON object."""
        env = self.settings.env
        per_seed: list[dict[str, Any]] = [
            {"seed": stats.seed, "episodes": len(stats.goals), **self.verdict(stats)}
            for stats in self.seeds
        ]
        if not env.reports_returns:
            where: dict[str, Any] = {"depth": env.depth, "stochastic": env.stochastic}
        else:
            per_seed = [
                row | scores.return_metrics(stats)
                for row, stats in zip(per_seed, self.seeds, strict=True)
            ]
            where = {
                name: [row[name] for row in per_seed]
                for name in ("mean_return", "best_mean_return", "solved_steps")
            }
        return {
            "agent": self.settings.agent_name,
            "env": config.env_name(env),
            "network": self.network,
            **where,
            "seeds": len(self.seeds),
            "seed": self.settings.run.seed,
            "episodes": max(len(stats.goals) for stats in self.seeds),
            "steps": self.steps,
            "steps_per_second": round(self.steps_per_second, 1),
            "compile_seconds": round(self.compile_seconds, 3),
            "run_seconds": self.run_seconds,
            "wall_seconds": round(self.wall_seconds, 3),
            **{
                rule: [row[rule] for row in per_seed]
                for rule in ("first_goal", "solved_bsuite", "solved_reliable")
            },
            "per_seed": per_seed,
            "departures": self.environment_changes,
            "settings_hash": run_dir.settings_hash(self.settings),
            "run_hash": run_dir.run_hash(self.settings),
            "out": None if self.directory is None else str(self.directory),
        }

    @cached_property
    def policy(self) -> "Policy":
        """What the first seed learned: an observation as the environment gives it goes in, an action as the environment takes it out."""
        return self.policy_of(self.settings.run.seed)

    def policy_of(self, seed: int) -> "Policy":
        """What one of the seeds learned."""
        from ersac.policy.policy import Policy  # imports jax
        from ersac.policy.trained import trained_from_carry, trained_from_run

        if self.last is not None:
            return Policy(trained_from_carry(self.settings, self.last, seed))
        if self.directory is None:
            raise SettingsError("nothing of what this run learned was kept")
        return Policy(trained_from_run(self.directory, self.settings, seed))

    def save(self, path: str | Path, seed: int | None = None) -> None:
        """Keep what a seed learned, by default the first one, in one file that must not be there yet; `ersac.load` reads it."""
        (self.policy if seed is None else self.policy_of(seed)).save(path)

    def evaluate(
        self,
        episodes: int = 100,
        *,
        seed: int | None = None,
        sample: bool = False,
        eval_seed: int = 0,
        show: bool = True,
    ) -> "Evaluation":
        """Play whole episodes with what a seed learned, by default the first one: its best actions, or with `sample` drawn ones."""
        policy = self.policy if seed is None else self.policy_of(seed)
        return policy.evaluate(episodes, sample=sample, eval_seed=eval_seed, show=show)

    def picture(self) -> Any:
        """The learning curves, and of a sea four maps, as a matplotlib Figure."""
        from ersac.analysis import picture  # matplotlib takes a second to import

        env, run = self.settings.env, self.settings.run
        if not env.has_maps:
            name, seeds = config.env_name(env), f"--seeds {run.seeds} --seed {run.seed}"
            budget = f"--episodes {run.episodes}" if run.steps is None else f"--steps {run.steps}"
            caption = f"ersac train {name} --agent {self.settings.agent_name} {seeds} {budget}    settings {run_dir.settings_hash(self.settings)}"
            return picture.draw_returns(
                f"{self.settings.agent_name} on {name}", caption, self.seeds
            )
        kind = "stochastic DeepSea" if env.stochastic else "DeepSea"
        title = f"{self.settings.agent_name} ({self.network}) on {kind}, depth {env.depth}"
        of_table = " --network table" if self.network == "table" else ""
        command = (
            f"ersac train deep-sea --depth {env.depth} --agent {self.settings.agent_name}{of_table}"
        )
        command = f"{command} --seeds {run.seeds} --seed {run.seed}"
        caption = f"{command} --episodes {run.episodes}    settings {run_dir.settings_hash(self.settings)}"
        return picture.draw_picture(title, caption, self.seeds, self.map_snapshots)


def write_result(result: Result, directory: Path) -> None:
    """Leave a run's facts, verdicts and picture in its directory."""
    from ersac.analysis import picture

    image = picture.picture_png(result.picture())
    run_dir.write_results(
        directory, result.seeds, result.metrics, result.map_snapshots, image, result.summary()
    )


def index_of_seed(settings: Experiment, seed: int) -> int:
    """Which of a run's seeds one is."""
    first, last = settings.run.seed, settings.run.seed + settings.run.seeds - 1
    if not isinstance(seed, int) or not first <= seed <= last:
        raise SettingsError(
            f"seed {config.short_repr(seed)} was not trained; {f'{first} to {last} were' if last > first else f'{first} was'}"
        )
    return seed - first


def read_result(directory: Path) -> Result:
    """Return the result of a finished run from its directory."""
    stored = run_dir.read_finished_run(directory)
    summary = stored.summary
    timings = Timings(*(summary[f"{name}_seconds"] for name in ("compile", "run", "wall")))
    return Result(
        stored.settings,
        stored.seeds,
        stored.metrics,
        stored.map_snapshots,
        summary["steps"],
        *timings,
        summary["departures"],
        directory,
    )
