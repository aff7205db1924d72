"""What `import ersac` offers: train() and its Result."""

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ersac import disk, display
from ersac.agents.presets import PRESETS
from ersac.config import ENVIRONMENTS, UNCERTAINTIES, ActorCritic, Run, SettingsError, Train, check, override, pick
from ersac.study import records, verdicts
from ersac.study.records import Metrics, Moment, SeedFacts

__all__ = ["Result", "SettingsError", "make_settings", "run", "train"]

METRIC_POINTS = 2000  # kept of each metric; the rest is averaged into them
MOMENTS = 16  # maps kept while a run goes on


@dataclass(frozen=True)
class Result:
    """A run that has ended: its settings, its facts, and the verdicts computed from them."""

    settings: Train
    seeds: list[SeedFacts]
    metrics: Metrics
    moments: list[Moment]
    steps: int
    compile_seconds: float
    run_seconds: float
    wall_seconds: float
    directory: Path | None = None

    @property
    def steps_per_second(self) -> float:
        """Environment steps of all seeds together in a second, compilation excluded."""
        return self.steps / self.run_seconds

    def verdict(self, facts: SeedFacts) -> dict[str, int | None]:
        """When a seed first reached the goal, and when each rule calls it solved; None where never."""
        return {
            "first_goal": verdicts.first_goal(facts.goals),
            "solved_bsuite": verdicts.solved_bsuite(facts.goals, self.settings.env.stochastic),
            "solved_reliable": verdicts.solved_reliable(facts.goals),
        }

    def summary(self) -> dict[str, Any]:
        """The run as one JSON object."""
        per_seed = [{"seed": facts.seed, "episodes": len(facts.goals), **self.verdict(facts)} for facts in self.seeds]
        return {
            "agent": self.settings.agent,
            "env": "deep-sea",
            "depth": self.settings.env.depth,
            "stochastic": self.settings.env.stochastic,
            "seeds": len(self.seeds),
            "seed": self.settings.run.seed,
            "episodes": max(len(facts.goals) for facts in self.seeds),
            "steps": self.steps,
            "steps_per_second": round(self.steps_per_second, 1),
            "compile_seconds": round(self.compile_seconds, 3),
            "wall_seconds": round(self.wall_seconds, 3),
            **{rule: [row[rule] for row in per_seed] for rule in ("first_goal", "solved_bsuite", "solved_reliable")},
            "per_seed": per_seed,
            "settings_hash": records.settings_hash(self.settings),
            "out": None if self.directory is None else str(self.directory),
        }

    def picture(self) -> Any:
        """The learning curves beside four maps of the sea, as a matplotlib Figure."""
        from ersac.study import picture  # matplotlib takes a second to import

        env, run = self.settings.env, self.settings.run
        kind = "stochastic DeepSea" if env.stochastic else "DeepSea"
        title = f"{self.settings.agent} on {kind}, depth {env.depth}"
        command = f"ersac train deep-sea --depth {env.depth} --agent {self.settings.agent} --seeds {run.seeds} --seed {run.seed}"
        caption = f"{command} --episodes {run.episodes}    settings {records.settings_hash(self.settings)}"
        return picture.draw(title, caption, self.seeds, self.moments)


class Recorder:
    """Gathers what the chunks bring into the facts of a run."""

    def __init__(self, settings: Train) -> None:
        self.settings = settings
        self.numbers = list(range(settings.run.seed, settings.run.seed + settings.run.seeds))
        self.goals: list[list[np.ndarray]] = [[] for _ in self.numbers]
        self.returns: list[list[np.ndarray]] = [[] for _ in self.numbers]
        self.recent = [np.zeros(0, bool) for _ in self.numbers]
        self.episodes = np.zeros(len(self.numbers), int)
        self.solved: list[int | None] = [None] * len(self.numbers)
        self.steps = 0
        self.rows: list[dict[str, np.ndarray]] = []
        self.moments: list[Moment] = []
        self.moment_every, self.chunks = 1, 0

    def add(self, chunk: Any) -> None:
        """Take in one chunk, up to the budget of episodes."""
        self.steps += chunk.facts.ended.size
        self.chunks += 1
        for i in range(len(self.numbers)):
            ended = chunk.facts.ended[i]
            room = self.settings.run.episodes - self.episodes[i]
            goals, returns = chunk.facts.goal[i][ended][:room], chunk.facts.episode_return[i][ended][:room]
            self.goals[i].append(goals)
            self.returns[i].append(returns.astype(np.float32))
            self._judge(i, goals)
            self.episodes[i] += len(goals)
        per_seed = self.steps // len(self.numbers)
        self.rows.append({"step": np.asarray(per_seed)} | {name: chunk.metrics[name].mean(axis=1) for name in ("tau", "entropy", "sigma2")})
        if len(self.rows) > METRIC_POINTS:
            self.rows = self.rows[1::2]

    def _judge(self, i: int, goals: np.ndarray) -> None:
        window = verdicts.RELIABLE_WINDOW - 1
        recent = np.concatenate([self.recent[i], goals])
        if self.solved[i] is None and (found := verdicts.solved_reliable(recent)) is not None:
            self.solved[i] = int(self.episodes[i]) - len(self.recent[i]) + found
        self.recent[i] = recent[-window:]

    def wants_moment(self) -> bool:
        """Whether this chunk's maps should be kept: evenly spaced ones, whatever the length of the run."""
        return self.chunks % self.moment_every == 0

    def add_moment(self, visits: np.ndarray, sigma: np.ndarray) -> None:
        """Keep a pair of maps of the first seed; when there are too many, drop every other one."""
        shape = (self.settings.env.depth, self.settings.env.depth)
        self.moments.append(Moment(int(self.episodes[0]), visits.reshape(shape), sigma.reshape(shape)))
        if len(self.moments) > MOMENTS:
            self.moments, self.moment_every = self.moments[1::2], 2 * self.moment_every

    def status(self, seconds: float) -> display.Status:
        """Where the run is."""
        last = self.rows[-1]
        share = np.array([recent.mean() if len(recent) else 0.0 for recent in self.recent])
        numbers = (last["tau"], last["entropy"], np.sqrt(last["sigma2"]))
        done, budget = int(self.episodes.min()), self.settings.run.episodes
        return display.Status(self.numbers, done, budget, seconds, self.steps / seconds, share, *numbers, list(self.solved))

    def enough(self) -> bool:
        """Whether the budget is spent, or every seed is solved and that was to be the end."""
        spent = bool((self.episodes >= self.settings.run.episodes).all())
        return spent or (self.settings.run.stop_when_solved and all(found is not None for found in self.solved))

    def facts(self) -> list[SeedFacts]:
        """What happened to each seed."""
        parts = zip(self.numbers, self.goals, self.returns, strict=True)
        return [SeedFacts(seed, np.concatenate(goals), np.concatenate(returns)) for seed, goals, returns in parts]

    def metrics(self) -> Metrics:
        """What the learner said of itself."""
        columns = {name: np.stack([row[name] for row in self.rows], axis=-1) for name in self.rows[0]}
        return Metrics(**columns)

    def two_moments(self) -> list[Moment]:
        """The moment at which the frontier was nearest the middle of the sea, and the last one."""
        *earlier, last = self.moments
        if not earlier:
            return [last]
        reach = lambda moment: int(np.flatnonzero(moment.visits.any(axis=0)).max())
        half = self.settings.env.depth / 2
        return [min(earlier, key=lambda moment: abs(reach(moment) - half)), last]


def make_settings(env: str = "deep-sea", agent: str = "ersac", uncertainty: str | None = None, **changes: Any) -> Train:
    """Settings by name, checked: an agent's preset with some of its settings, or of its parts', changed."""
    learner: ActorCritic = pick("agent", agent, PRESETS)
    if uncertainty is not None:
        learner = dataclasses.replace(learner, uncertainty=pick("uncertainty", uncertainty, UNCERTAINTIES)())
    if "lambda" in changes:
        changes["lam"] = changes.pop("lambda")
    settings = Train(pick("environment", env, ENVIRONMENTS)(), agent, learner, Run())
    return check(override(settings, **changes))


def train(
    env: str = "deep-sea",
    *,
    agent: str = "ersac",
    uncertainty: str | None = None,
    out: str | Path | None = None,
    show: bool = True,
    **changes: Any,
) -> Result:
    """Train an agent and return what happened; with `out`, leave a run directory too.

    Any setting can be given by its name: `ersac.train("deep-sea", depth=30, agent="ersac", seeds=4, gamma=0.999)`.
    """
    settings = make_settings(env, agent, uncertainty, **changes)
    return run(settings, None if out is None else Path(out), display.choose(show))


def run(settings: Train, out: Path | None, screen: display.Display) -> Result:
    """Run checked settings to their end."""
    began = time.perf_counter()
    if out is not None:
        records.claim(out)
        records.write_settings(out, settings)
    from ersac.loops import on_device  # jax, after everything that can be refused has been

    program = on_device.prepare(settings)
    recorder, seconds = Recorder(settings), 0.0
    try:
        for chunk in on_device.run(program):
            seconds += chunk.seconds
            recorder.add(chunk)
            screen.show(recorder.status(seconds))
            if recorder.enough() or recorder.wants_moment():
                first = on_device.first_seed(chunk.carry)
                recorder.add_moment(np.asarray(first.visits), on_device.sigma_map(settings, first.learner))
            if recorder.enough():
                break
    finally:
        screen.close()
    facts = (recorder.facts(), recorder.metrics(), recorder.two_moments())
    result = Result(settings, *facts, recorder.steps, program.compile_seconds, seconds, time.perf_counter() - began, out)
    if out is not None:
        write(result, out)
    return result


def write(result: Result, directory: Path) -> None:
    """Leave a run's facts, verdicts and picture in its directory."""
    from ersac.study import picture

    records.write_results(directory, result.seeds, result.metrics, result.moments, result.summary())
    disk.write(directory / records.PICTURE, picture.as_png(result.picture()))
