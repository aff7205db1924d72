"""The result of a finished run, as `ersac.train` returns it. No jax here."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ersac import config, display
from ersac.analysis import scores
from ersac.config import Experiment, SettingsError
from ersac.runs import run_dir
from ersac.runs.run_dir import EpisodeStats, MapSnapshot, Metrics, Timings

if TYPE_CHECKING:
    from ersac.policy.evaluate import Evaluation
    from ersac.policy.policy import Policy


@dataclass(frozen=True)
class Result:
    """A finished run.

    seeds: the episodes of every seed (`goals`, `returns` and, outside DeepSea, `steps`).
    metrics: the learner's metrics: `metrics.values["tau"]` is [seeds, points] at `metrics.step`.
    steps: environment steps of all seeds together.
    directory: the run directory, or None if `out` was not given.

    Example:
        result = ersac.train("deep-sea", depth=20, seeds=4)
        result.summary()["solved_reliable"]  # episodes until solved, for each seed
        result.policy(obs)                   # the action of the first seed's policy
        result.evaluate(episodes=100).mean_return
        result.picture()                     # a matplotlib figure
    """

    settings: Experiment
    seeds: list[EpisodeStats]
    metrics: Metrics
    map_snapshots: list[MapSnapshot]  # DeepSea only
    steps: int
    compile_seconds: float
    run_seconds: float
    wall_seconds: float
    environment_changes: list[str]  # at resumes: why the run may not be bit-exact
    directory: Path | None = None
    # the loop's final state; None if a checkpoint in the directory has it
    last_carry: Any = field(default=None, repr=False, compare=False)

    @property
    def steps_per_second(self) -> float:
        """Environment steps of all seeds per second, compilation excluded."""
        return self.steps / self.run_seconds

    @property
    def network(self) -> str:
        """The agent's network: mlp or table."""
        return getattr(self.settings.agent, "network", "mlp")

    def solve_episodes(self, stats: EpisodeStats) -> dict[str, int | None]:
        """Return the episode of a seed's first goal, and those at which each rule calls it solved.

        None stands for never.
        """
        return scores.goal_metrics(stats.goals, self.settings.env.stochastic)

    def summary(self) -> dict[str, Any]:
        """Return the run as one JSON object, as `ersac train --json` prints it."""
        env = self.settings.env
        per_seed: list[dict[str, Any]] = [
            {"seed": stats.seed, "episodes": len(stats.goals), **self.solve_episodes(stats)}
            for stats in self.seeds
        ]
        if not env.reports_returns:
            extra_fields: dict[str, Any] = {"depth": env.depth, "stochastic": env.stochastic}
        else:
            per_seed = [
                row | scores.return_metrics(stats)
                for row, stats in zip(per_seed, self.seeds, strict=True)
            ]
            extra_fields = {
                name: [row[name] for row in per_seed]
                for name in ("mean_return", "best_mean_return", "solved_steps")
            }
        return {
            "agent": self.settings.agent_name,
            "env": config.env_name(env),
            "network": self.network,
            **extra_fields,
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
        """The policy of the first seed: call it with an observation to get an action."""
        return self.policy_of(self.settings.run.seed)

    def policy_of(self, seed: int) -> "Policy":
        """Return the trained policy of one seed.

        Observations and actions are the environment's own.
        """
        from ersac.policy.policy import Policy  # imports jax
        from ersac.policy.trained import trained_from_carry, trained_from_run

        if self.last_carry is not None:
            return Policy(trained_from_carry(self.settings, self.last_carry, seed))
        if self.directory is None:
            raise SettingsError("this run has no stored parameters")
        return Policy(trained_from_run(self.directory, self.settings, seed))

    def save(self, path: str | Path, seed: int | None = None) -> None:
        """Save the policy of one seed, by default the first, in one file for `ersac.load`.

        Raises SettingsError if the file already exists.
        """
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
        """Play whole episodes with the trained policy of one seed.

        Args:
            episodes: how many to play.
            seed: the training seed whose policy plays; None: the first one.
            sample: sample actions as in training instead of taking the greedy ones.
            eval_seed: another number gives other episodes.
            show: show progress.

        Returns:
            An Evaluation: mean_return, stderr_return, min_return, max_return, mean_length,
            goal_share, and the returns of all episodes.
        """
        policy = self.policy if seed is None else self.policy_of(seed)
        return policy.evaluate(episodes, sample=sample, eval_seed=eval_seed, show=show)

    def picture(self) -> Any:
        """Return the learning curves, and for DeepSea four maps, as a matplotlib Figure."""
        from ersac.analysis import picture  # matplotlib takes a second to import

        env, run, agent = self.settings.env, self.settings.run, self.settings.agent_name
        settings = f"settings {run_dir.settings_hash(self.settings)}"
        seeds = f"--seeds {run.seeds} --seed {run.seed}"
        if not env.has_maps:
            name = config.env_name(env)
            budget = f"--episodes {run.episodes}" if run.steps is None else f"--steps {run.steps}"
            caption = f"ersac train {name} --agent {agent} {seeds} {budget}    {settings}"
            return picture.draw_returns(f"{agent} on {name}", caption, self.seeds)
        name = "stochastic DeepSea" if env.stochastic else "DeepSea"
        title = f"{agent} ({self.network}) on {name}, depth {env.depth}"
        network = " --network table" if self.network == "table" else ""
        command = f"ersac train deep-sea --depth {env.depth} --agent {agent}{network} {seeds}"
        caption = f"{command} --episodes {run.episodes}    {settings}"
        return picture.draw_picture(title, caption, self.seeds, self.map_snapshots)


def write_result(result: Result, directory: Path) -> None:
    """Write a run's arrays, picture and summary to its directory.

    A picture that cannot be drawn is reported and left out: it can be drawn later from the arrays.
    """
    from ersac.analysis import picture

    image = None
    try:
        image = picture.picture_png(result.picture())
    except Exception as error:
        display.note(f"no picture was drawn: {type(error).__name__}: {error}")
    run_dir.write_results(
        directory, result.seeds, result.metrics, result.map_snapshots, image, result.summary()
    )


def index_of_seed(settings: Experiment, seed: int) -> int:
    """Return the index of a seed among those of a run; SettingsError if it was not trained."""
    first, last = settings.run.seed, settings.run.seed + settings.run.seeds - 1
    if not isinstance(seed, int) or not first <= seed <= last:
        trained = f"{first} to {last} were" if last > first else f"{first} was"
        raise SettingsError(f"seed {config.short_repr(seed)} was not trained; {trained}")
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
