"""A run that has ended: what it was, what happened, and the verdicts on it. No jax here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ersac.config import SettingsError, Train
from ersac.study import records, verdicts
from ersac.study.records import Metrics, Moment, SeedFacts, Spent


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
    departures: list[str]  # what changed when it was resumed, so that its bits may have
    directory: Path | None = None

    @property
    def steps_per_second(self) -> float:
        """Environment steps of all seeds together in a second, compilation excluded."""
        return self.steps / self.run_seconds

    def verdict(self, facts: SeedFacts) -> dict[str, int | None]:
        """When a seed first reached the goal, and when each rule calls it solved; None where never."""
        return verdicts.every(facts.goals, self.settings.env.stochastic)

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
            "run_seconds": self.run_seconds,
            "wall_seconds": round(self.wall_seconds, 3),
            **{rule: [row[rule] for row in per_seed] for rule in ("first_goal", "solved_bsuite", "solved_reliable")},
            "per_seed": per_seed,
            "departures": self.departures,
            "settings_hash": records.settings_hash(self.settings),
            "run_hash": records.run_hash(self.settings),
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


def write(result: Result, directory: Path) -> None:
    """Leave a run's facts, verdicts and picture in its directory."""
    from ersac.study import picture

    image = picture.as_png(result.picture())
    records.write_results(directory, result.seeds, result.metrics, result.moments, image, result.summary())


def read(directory: Path) -> Result:
    """A run that has ended, from its directory."""
    settings = records.read_settings(directory)
    summary = records.ended(directory, settings)
    if summary is None:
        raise SettingsError(f"{directory} has not ended; go on with: ersac resume {directory}")
    spent = Spent(*(summary[f"{name}_seconds"] for name in ("compile", "run", "wall")))
    return Result(settings, *records.read_facts(directory), summary["steps"], *spent, summary["departures"], directory)
