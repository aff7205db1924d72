"""What `import ersac` offers: train() and its Result."""

import contextlib
import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ersac import config, display, exits
from ersac.agents.presets import PRESETS
from ersac.config import ENVIRONMENTS, UNCERTAINTIES, ActorCritic, Run, SettingsError, Train, check, override, pick
from ersac.study import records, verdicts
from ersac.study.recorder import Recorder
from ersac.study.records import Metrics, Moment, SeedFacts, Spent

if TYPE_CHECKING:
    from ersac.loops import on_device
    from ersac.study.keeper import Keeper

__all__ = ["Result", "SettingsError", "make_settings", "read", "run", "train"]


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
            "run_seconds": self.run_seconds,
            "wall_seconds": round(self.wall_seconds, 3),
            **{rule: [row[rule] for row in per_seed] for rule in ("first_goal", "solved_bsuite", "solved_reliable")},
            "per_seed": per_seed,
            "departures": self.departures,
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
    resume: bool = False,
    exact: bool = False,
    show: bool = True,
    **changes: Any,
) -> Result:
    """Train an agent and return what happened; with `out`, leave a run directory too, and with `resume` go on with the run in it.

    Any setting can be given by its name: `ersac.train("deep-sea", depth=30, agent="ersac", seeds=4, gamma=0.999)`.
    """
    settings = make_settings(env, agent, uncertainty, **changes)
    return run(settings, None if out is None else Path(out), display.choose(show), resume, exact)


def run(
    settings: Train,
    out: Path | None,
    screen: display.Display,
    resume: bool = False,
    exact: bool = False,
    caught: Callable[[], int] = lambda: 0,
) -> Result:
    """Run checked settings to their end, or until `caught` gives the number of a signal: then Stopped, after a checkpoint."""
    began = time.perf_counter()
    with contextlib.ExitStack() as held:
        held.callback(screen.close)
        if out is not None:
            held.enter_context(records.hold(out, settings, resume))
            if records.ended(out, settings):
                display.note(f"{out} has ended already; --episodes can raise its budget")
                return read(out)
        run = _begin(settings, out, exact, began)
        carry = _loop(run, screen, caught)
        screen.close()
        result = _result(run, carry, out)
        if out is not None:
            write(result, out)
        return result


@dataclass
class _Run:
    """A run under way."""

    program: "on_device.Program"
    recorder: Recorder
    keeper: "Keeper"
    before: Spent  # in earlier lives
    began: float
    running: float = 0.0  # seconds in this life

    def spent(self) -> Spent:
        wall = time.perf_counter() - self.began
        compiling, running = self.before.compiling + self.program.compile_seconds, self.before.running + self.running
        return Spent(compiling, running, self.before.wall + wall)

    def save(self, carry: Any) -> None:
        from ersac.loops import on_device

        number = self.recorder.chunks * config.rollouts_per_chunk(self.program.settings)
        tree = lambda: {"loop": on_device.snapshot(self.program, carry), "recorder": self.recorder.state()}
        self.keeper.save(number, tree, self.spent())


def _begin(settings: Train, out: Path | None, exact: bool, began: float) -> _Run:
    """A run at its start, or where its last checkpoint left it."""
    from ersac import checkpoint  # jax, after everything that can be refused has been
    from ersac.loops import on_device
    from ersac.study.keeper import Keeper

    program = on_device.prepare(settings)
    keeper = Keeper(out, settings, records.scope() | on_device.layout(program), display.note)
    found = keeper.load(exact)
    if found is None:
        return _Run(program, Recorder(settings), keeper, Spent(), began)
    saved, before = found
    state = checkpoint.restore(saved, "loop", on_device.snapshot(program, program.carry))
    recorder = Recorder.restored(settings, checkpoint.part(saved.arrays, "recorder"))
    return _Run(on_device.restored(program, state), recorder, keeper, before, began)


def _loop(run: _Run, screen: display.Display, caught: Callable[[], int]) -> Any:
    """Chunk after chunk until it is enough; returns the last carry, which has been saved."""
    from ersac.loops import on_device

    carry, chunks = run.program.carry, on_device.run(run.program)
    try:
        while not run.recorder.enough():
            if number := caught():
                run.save(carry)
                raise exits.Stopped(number, f"stopped; {_how_to_go_on(run)}")
            chunk = next(chunks)
            carry = chunk.carry
            run.running += chunk.seconds
            run.recorder.add(chunk)
            screen.show(run.recorder.status(run.spent().running))
            if run.recorder.wants_moment():
                run.recorder.add_moment(_moment(run, carry))
            if run.keeper.due():
                run.save(carry)
        run.save(carry)
    except exits.EXPECTED:
        raise
    except Exception as error:
        if run.keeper.saved is None:
            raise
        raise exits.Resumable(f"{type(error).__name__}: {error}; {_how_to_go_on(run)}") from error
    return carry


def _how_to_go_on(run: _Run) -> str:
    return f"go on with: ersac resume {run.keeper.home}"


def _moment(run: _Run, carry: Any) -> Moment:
    """What the first seed knows of its sea now."""
    from ersac.loops import on_device

    first = on_device.first_seed(carry)
    return run.recorder.moment(np.array(first.visits), on_device.sigma_map(run.program.settings, first.learner))


def _result(run: _Run, carry: Any, out: Path | None) -> Result:
    facts = (run.recorder.facts(), run.recorder.metrics(), run.recorder.two_moments(_moment(run, carry)))
    return Result(run.program.settings, *facts, run.recorder.steps, *run.spent(), run.keeper.departures, out)


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
