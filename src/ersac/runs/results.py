"""The result of a run, as `ersac.train` and `ersac.read` return it. No jax unless it is needed."""

import base64
import html
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ersac import config, display
from ersac.analysis import scores
from ersac.config import Experiment, SettingsError
from ersac.packages import require_package
from ersac.runs import run_dir
from ersac.runs.progress import BEST, read_evaluations
from ersac.runs.run_dir import EpisodeStats, MapSnapshot, Metrics, Timings

if TYPE_CHECKING:
    from ersac.policy.evaluate import Evaluation
    from ersac.policy.policy import Policy

MAX_SHOWN = 10  # seeds in the text and the table of a result


@dataclass(frozen=True, repr=False)
class Result:
    """A run: ended, stopped, or up to the last checkpoint of one that is under way.

    returns, goals, lengths, end_steps: plain arrays by seed, an entry an episode.
    metrics: the learner's metrics: `metrics.values["tau"]` is [seeds, points] at `metrics.step`.
    settings: all settings, `settings.env`, `settings.agent` and `settings.run`.
    state: ended, stopped or running; `stopped` is whether it has not ended.
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
    state: str = run_dir.ENDED
    # a row an evaluation during training: step, seed, mean_return, ...
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    # the best policy of those evaluations; None if it is in the directory
    best_in_memory: Any = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        """Three lines: what was run, what was reached, where it is."""
        run, env = self.settings.run, config.env_name(self.settings.env)
        episodes = sum(len(stats.goals) for stats in self.seeds)
        seeds = f"{run.seeds} seed{'s' if run.seeds > 1 else ''} from {run.seed}"
        done = f"{self.steps:,} steps, {episodes:,} episodes, {self.steps_per_second:,.0f} steps/s"
        where = "not stored" if self.directory is None else str(self.directory)
        return (
            f"<Result of {self.settings.agent_name} on {env}, {seeds}: {self.state}, {done}\n"
            f" {self._describe_scores()}\n"
            f" {where}>"
        )

    def _describe_scores(self) -> str:
        """Return what every seed reached, in one line of limited length."""
        rows = self.summary()["per_seed"]
        name, text = "solved_reliable", "solved at episode"
        if self.settings.env.reports_returns:
            name, text = "mean_return", "mean return of the last 100 episodes"
        shown = [display.format_number(row[name]) for row in rows[:MAX_SHOWN]]
        return f"{text}: {', '.join(shown)}{', ...' if len(rows) > MAX_SHOWN else ''}"

    def _repr_html_(self) -> str:
        """A table, a row a seed, and the picture, for notebooks."""
        from ersac.analysis import picture

        rows = self.summary()["per_seed"]
        head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in rows[0])
        cells = (
            "".join(f"<td>{display.format_number(value)}</td>" for value in row.values())
            for row in rows[:MAX_SHOWN]
        )
        body = "".join(f"<tr>{row}</tr>" for row in cells)
        image = base64.b64encode(picture.picture_png(self.picture())).decode()
        title = html.escape(repr(self).split("\n")[0].lstrip("<"))
        return (
            f"<p>{title}</p><table><tr>{head}</tr>{body}</table>"
            f'<img alt="learning curves" width="640" src="data:image/png;base64,{image}">'
        )

    def to_pandas(self) -> Any:
        """Return the episodes of all seeds as a pandas DataFrame, as `ersac export` writes them."""
        from ersac.analysis.export import episode_tables

        require_package("to_pandas()", "pandas")
        pandas: Any = importlib.import_module("pandas")
        return pandas.concat(map(pandas.DataFrame, episode_tables(self)), ignore_index=True)

    @property
    def stopped(self) -> bool:
        """Whether the run has not reached its end: it can be resumed."""
        return self.state != run_dir.ENDED

    @property
    def returns(self) -> dict[int, np.ndarray]:
        """The return of every episode, by seed."""
        return {stats.seed: stats.returns for stats in self.seeds}

    @property
    def goals(self) -> dict[int, np.ndarray]:
        """Whether each episode reached its goal, by seed."""
        return {stats.seed: stats.goals for stats in self.seeds}

    @property
    def lengths(self) -> dict[int, np.ndarray]:
        """The steps of every episode, by seed."""
        return {stats.seed: np.asarray(self._complete(stats).lengths) for stats in self.seeds}

    @property
    def end_steps(self) -> dict[int, np.ndarray]:
        """The environment steps that a seed had taken by the end of each episode, by seed.

        Outside DeepSea, by the end of the rollout in which the episode ended.
        """
        return {stats.seed: np.asarray(self._complete(stats).steps) for stats in self.seeds}

    def _complete(self, stats: EpisodeStats) -> EpisodeStats:
        return complete_stats(stats, self.settings.env)

    @property
    def steps_per_seed(self) -> int:
        """Environment steps of each seed."""
        return self.steps // len(self.seeds)

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

    @cached_property
    def best_policy(self) -> "Policy":
        """The policy with the largest mean return of all evaluations during training."""
        from ersac.policy.policy import load_policy

        if self.best_in_memory is not None:
            return self.best_in_memory
        if self.directory is None or not (self.directory / BEST).exists():
            raise SettingsError("no policy was evaluated during training: give eval_every")
        return load_policy(self.directory / BEST, **run_dir.python_objects(self.settings))

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
        snapshots = picture.select_map_snapshots(self.map_snapshots)
        return picture.draw_picture(title, caption, self.seeds, snapshots)


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


def complete_stats(stats: EpisodeStats, env: config.Environment) -> EpisodeStats:
    """Return a seed's episodes with their steps and lengths, which DeepSea does not store."""
    if env.episode_length is not None:
        lengths = np.full(len(stats.goals), env.episode_length)
        return stats._replace(steps=lengths.cumsum(), lengths=lengths)
    if stats.lengths is None:  # a record of an older version
        return stats._replace(lengths=np.zeros(len(stats.goals), int))
    return stats


def read_result(path: str | Path, note: Callable[[str], None] = display.note) -> Result:
    """Read a run from its directory: one that has ended, was stopped, or is under way.

    Args:
        path: the run directory.
        note: is called with a line about a run that has not ended; by default it is printed.

    Returns:
        A Result. `returns`, `goals`, `lengths` and `end_steps` are plain arrays by seed, `settings`
        the settings, `state` one of ended, stopped and running. If the run has not ended, this is
        what its last checkpoint has.

    Raises:
        SettingsError: there is no run, or it has no checkpoint yet.

    Example:
        run = ersac.read("runs/first")
        run.returns[0]  # of every episode of seed 0
    """
    directory = Path(path)
    settings = run_dir.read_settings(directory)
    if run_dir.checked_summary(directory, settings) is not None:
        return _read_finished(directory)
    from ersac.runs import latest  # imports jax

    found = latest.read_latest(directory, settings, note)
    recorder = found.recorder
    note(latest.describe_unfinished(directory, found.state, recorder.steps_per_seed))
    return Result(
        settings,
        recorder.episode_stats(),
        recorder.metrics(),
        recorder.recent_map_snapshots(),
        recorder.steps,
        *found.timings,
        found.environment_changes,
        directory,
        state=found.state,
        evaluations=read_evaluations(directory)[0],
    )


def _read_finished(directory: Path) -> Result:
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
        evaluations=read_evaluations(directory)[0],
    )
