"""Run the missing runs of a sweep, in batches; the same command resumes it.

No jax is imported before the first batch starts. Runs that share a compiled program, a budget and
a stopping rule are trained together as a batch. Which runs form a batch depends on the sweep and
the machine only, never on which runs already exist: so a run has the same neighbours, and the same
bits, however often its sweep is interrupted.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from ersac import config, display
from ersac.config import Experiment, SettingsError
from ersac.runs import disk, exits, run_dir, seal
from ersac.runs.fingerprint import fingerprint
from ersac.runs.results import Result
from ersac.runs.run_dir import Metrics, Timings
from ersac.runs.session import Job, Session, run_session, start_session

SWEEP, BATCH, BATCHES, REMOVED = "sweep.json", "batch.json", "batches", ".gone"
RUNS_PER_CORE = 8  # in one batch: more are slower
MEMORY_SHARE = 0.5  # of the machine's memory that a batch may use
RESUME_HINT = "resume with the same command"


class SingleRun(Protocol):
    """A run of one seed: an Instance of a sweep, or a Cell of a ladder or a grid."""

    @property
    def name(self) -> str:
        """A directory name that no run with other settings has."""

    @property
    def settings(self) -> Experiment:
        """The settings of one seed."""


class Unit(Protocol):
    """What an engine runs at a time: a Batch, or a CellUnit of one run."""

    @property
    def home(self) -> Path:
        """The directory of the sweep."""

    @property
    def instances(self) -> Sequence[SingleRun]:
        """Its runs."""

    @property
    def name(self) -> str:
        """A name that no other unit of the sweep has."""

    @property
    def directory(self) -> Path:
        """Where its checkpoints are until it ends."""

    @property
    def steps(self) -> int:
        """Environment steps of all its runs, if none stops early."""

    def steps_saved(self) -> int:
        """Environment steps up to its newest checkpoint."""

    def run(self, on_steps: Callable[[int], None], poll: Callable[[], int]) -> dict[str, str]:
        """Run or resume it and write its records; returns failed runs by name."""

    def at(self, home: Path) -> "Unit":
        """The same in another directory."""


class Batch(NamedTuple):
    """Runs that are trained together."""

    home: Path  # of the sweep
    instances: tuple[SingleRun, ...]  # on DeepSea

    @property
    def settings(self) -> Experiment:
        """The shared settings, as those of one run with as many seeds."""
        return config.override(self.instances[0].settings, seeds=len(self.instances))

    @property
    def name(self) -> str:
        """Twelve hex digits that no other batch has."""
        hashes = [run_dir.settings_hash(instance.settings) for instance in self.instances]
        return disk.digest(" ".join(hashes).encode())[:12]

    @property
    def directory(self) -> Path:
        """Where its checkpoints are until it ends."""
        return self.home / BATCHES / self.name

    @property
    def steps(self) -> int:
        """Environment steps of all its runs, if none stops early."""
        return self.settings.run.episodes * self.steps_per_episode

    @property
    def steps_per_episode(self) -> int:
        """Environment steps of one episode of each of its runs."""
        return len(self.instances) * config.deep_sea_env(self.settings).episode_length

    def steps_saved(self) -> int:
        """Environment steps up to its newest checkpoint."""
        from ersac.runs import checkpoint  # jax

        saved = checkpoint.checkpoint_numbers(self.directory / checkpoint.DIRECTORY)
        rollouts = max(saved, default=0)
        return min(self.steps, rollouts * self.settings.agent.rollout * len(self.instances))

    def run(self, on_steps: Callable[[int], None], poll: Callable[[], int]) -> dict[str, str]:
        """Run or resume it and write its records; returns failed runs by name."""
        return run_batch(self, on_steps, poll)

    def at(self, home: Path) -> "Batch":
        """The same in another directory."""
        return self._replace(home=home)


class Outcome(NamedTuple):
    """How a unit ended."""

    unit: Unit
    failed: dict[str, str]  # runs with non-finite numbers: name to reason
    error: str | None = None  # why the whole unit has no results yet
    refused: bool = False  # whether the error is that of its settings


class Report(NamedTuple):
    """How a sweep ended."""

    ended: int
    wanted: int
    failed: dict[str, str]  # name to reason: non-finite numbers, another attempt fails again
    missing: dict[str, str]  # name to reason: another attempt may succeed
    refused: dict[str, str] = {}  # name to reason: the settings were not accepted  # noqa: RUF012

    def raise_if_incomplete(self, home: Path) -> None:
        """Raise an error, which sets the exit code, where runs are missing."""
        if self.refused:
            reason = next(iter(self.refused.values()))
            raise SettingsError(
                f"{len(self.refused)} of {self.wanted} runs cannot be run: {reason}"
            )
        if self.missing:
            raise exits.Resumable(
                f"{len(self.missing)} of {self.wanted} runs are missing in {home}; {RESUME_HINT}"
            )
        if self.failed:
            raise exits.NonFinite(
                f"{len(self.failed)} of {self.wanted} runs failed; ersac runs {home} lists them"
            )


OnUnitSteps = Callable[[Unit, int], None]  # is called with the steps a unit has taken so far
Engine = Callable[[Sequence[Unit], OnUnitSteps, Callable[[], int]], Iterator[Outcome]]


class Plan(NamedTuple):
    """A sweep to be run."""

    title: str
    home: Path
    wanted: Sequence[SingleRun]  # all runs that its directory is meant to hold
    units: Sequence[Unit]  # those to be run, unless they have ended


def make_batches(home: Path, wanted: Sequence[SingleRun]) -> list[Batch]:
    """All runs of a sweep in batches, in the order of the sweep."""
    groups: dict[Experiment, list[SingleRun]] = {}
    for instance in wanted:
        program = config.static(config.override(instance.settings, seed=0))
        groups.setdefault(program, []).append(instance)
    return [
        Batch(home, tuple(part))
        for group in groups.values()
        for part in _even_parts(group, max_batch_size(group[0].settings))
    ]


def max_batch_size(settings: Experiment) -> int:
    """How many runs with these settings a batch may have on this machine."""
    fit = int(MEMORY_SHARE * config.memory_bytes() // config.bytes_needed(settings))
    return max(1, min(fit, RUNS_PER_CORE * fingerprint()["visible_cores"]))


def _even_parts(group: list[SingleRun], max_size: int) -> list[list[SingleRun]]:
    """Parts of nearly equal size, so that most share one shape and one compiled program."""
    size = -(-len(group) // -(-len(group) // max_size))
    return [group[start : start + size] for start in range(0, len(group), size)]


def is_finished(home: Path, run: SingleRun) -> bool:
    """Whether a run needs no more work: it has ended with valid records, or failed for good."""
    directory = home / run.name
    with contextlib.suppress(OSError):  # unreadable counts as missing
        return (
            run_dir.valid_summary(directory, run.settings) is not None
            or run_dir.read_failure(directory, run.settings) is not None
        )
    return False


def unfinished(units: Sequence[Unit]) -> list[Unit]:
    """The units with at least one run that is not finished."""
    return [
        unit for unit in units if not all(is_finished(unit.home, run) for run in unit.instances)
    ]


@contextlib.contextmanager
def lock_sweep(home: Path, title: str, wanted: Sequence[SingleRun]) -> Iterator[None]:
    """Lock a directory that is new or holds the same sweep, and write sweep.json."""
    is_sweep = (home / SWEEP).exists() or (
        home.is_dir() and not set(disk.names(home)) - {run_dir.LOCK, SWEEP + disk.PARTIAL}
    )
    if home.exists() and not is_sweep:
        raise SettingsError(
            f"--out {home} already holds something that is not a sweep; choose another directory"
        )
    disk.make_directory(home)
    with disk.lock(home / run_dir.LOCK):
        if (home / SWEEP).exists() and (present := read_title(home)) not in (title, None):
            raise SettingsError(
                f"--out {home} holds another sweep: {present}; choose another directory"
            )
        names = [run.name for run in wanted]
        seal.write_sealed(home / SWEEP, {"sweep": title, "runs": names})
        yield


def read_title(home: Path) -> str | None:
    """The sweep that a directory holds; None where sweep.json is damaged (it is rewritten)."""
    with contextlib.suppress(ValueError, RecursionError):
        return str(seal.read_sealed(home / SWEEP).get("sweep"))
    return None


def run_sweep(
    title: str,
    wanted: Sequence[SingleRun],
    home: Path,
    engine: Engine,
    screen: display.Display,
    poll: Callable[[], int] = lambda: 0,
) -> Report:
    """Run the missing runs of a sweep in batches; as `run_plan`."""
    plan = Plan(title, home, wanted, make_batches(home, wanted))
    report = run_plan(plan, engine, screen, poll)
    # On another machine a batch may fit into the memory.
    return report._replace(missing=report.missing | report.refused, refused={})


def run_plan(
    plan: Plan, engine: Engine, screen: display.Display, poll: Callable[[], int] = lambda: 0
) -> Report:
    """Run the units of a plan that have not ended.

    poll: returns the number of a signal, or 0; after a signal the unit writes a checkpoint and
    Stopped is raised.
    """
    home = plan.home
    with lock_sweep(home, plan.title, plan.wanted), contextlib.closing(screen):
        todo = unfinished(plan.units)
        _remove_stale_batches(home, {unit.name for unit in todo})
        missing: dict[str, str] = {}
        refused: dict[str, str] = {}
        progress = SweepProgress(plan.units, todo, screen)
        for outcome in engine(todo, progress.update_unit, poll):
            for name, reason in outcome.failed.items():
                display.note(f"{name} failed: {reason}")
            if outcome.error is not None:
                runs = outcome.unit.instances
                names = [run.name for run in runs if not is_finished(home, run)]
                display.note(_describe_failure(names, outcome))
                (refused if outcome.refused else missing).update(
                    dict.fromkeys(names, outcome.error)
                )
            progress.end_unit(outcome)
        runs = [run for unit in plan.units for run in unit.instances]
        reasons = {run.name: run_dir.read_failure(home / run.name, run.settings) for run in runs}
        failed = {name: reason for name, reason in reasons.items() if reason is not None}
        ended = len(runs) - len(failed) - len(missing) - len(refused)
        return Report(ended, len(runs), failed, missing, refused)


def _describe_failure(names: list[str], outcome: Outcome) -> str:
    what = names[0] if len(names) == 1 else f"a batch of {len(names)} runs from {names[0]}"
    return f"{what} {'cannot be run' if outcome.refused else 'failed'}: {outcome.error}"


def _remove_stale_batches(home: Path, names: set[str]) -> None:
    """Remove the directories of all batches but those named: left over from a crash."""
    for name in disk.names(home / BATCHES):
        if name not in names:
            disk.remove_tree(home / BATCHES / name)


class SweepProgress:
    """Shows the progress of a sweep; an ended unit counts with its whole step budget."""

    def __init__(
        self, units: Sequence[Unit], todo: Sequence[Unit], screen: display.Display
    ) -> None:
        """units: all of the sweep; todo: those that are run now."""
        self.screen, self.start = screen, time.monotonic()
        self.total_steps = sum(unit.steps for unit in units)
        self.total_units = len(units)
        self.total_runs = sum(len(unit.instances) for unit in units)
        self.steps = self.total_steps - sum(unit.steps for unit in todo)  # of ended units
        self.units = len(units) - len(todo)
        self.runs = self.total_runs - sum(len(unit.instances) for unit in todo)
        self.failed = 0
        self.resumed_steps = {  # of earlier sessions, by unit
            unit.name: unit.steps_saved() for unit in todo if unit.directory.exists()
        }
        self.running_steps = dict(self.resumed_steps)  # of units that have not ended
        self.steps_this_session = 0  # of ended units

    def update_unit(self, unit: Unit, steps: int) -> None:
        """Set the steps that a unit has taken."""
        self.running_steps[unit.name] = min(steps, unit.steps)
        self._show()

    def end_unit(self, outcome: Outcome) -> None:
        """Count a unit that has ended or failed."""
        unit = outcome.unit
        self.running_steps.pop(unit.name, None)
        if outcome.error is None:
            self.steps += unit.steps
            self.steps_this_session += unit.steps - self.resumed_steps.get(unit.name, 0)
            self.units += 1
            self.runs += len(unit.instances) - len(outcome.failed)
            self.failed += len(outcome.failed)
        else:
            self.failed += len(unit.instances)
        self._show()

    def _show(self) -> None:
        running_now = sum(
            steps - self.resumed_steps.get(name, 0) for name, steps in self.running_steps.items()
        )
        self.screen.show(
            display.SweepStatus(
                self.steps + sum(self.running_steps.values()),
                self.total_steps,
                self.steps_this_session + running_now,
                time.monotonic() - self.start,
                self.units,
                self.total_units,
                self.runs,
                self.total_runs,
                self.failed,
            )
        )


class _BatchDisplay:
    """The display of a batch: reports its steps to the display of the sweep."""

    def __init__(self, batch: Batch, on_steps: Callable[[int], None]) -> None:
        self.steps_per_episode, self.on_steps = batch.steps_per_episode, on_steps

    def prepare(self) -> None:
        """Nothing."""

    def show(self, status: display.Status) -> None:
        """Report the steps of the episodes done."""
        self.on_steps(status.done * self.steps_per_episode)

    def close(self) -> None:
        """Nothing."""


def try_unit(unit: Unit, on_steps: Callable[[int], None], poll: Callable[[], int]) -> Outcome:
    """Run a unit; any error but Stopped becomes its outcome, so that the others still run."""
    try:
        return Outcome(unit, unit.run(on_steps, poll))
    except exits.Stopped:
        raise
    except Exception as error:
        return Outcome(unit, {}, describe_error(error), isinstance(error, SettingsError))


def describe_error(error: Exception) -> str:
    """An error in one line; the class is named where ersac did not raise it itself."""
    prefix = "" if isinstance(error, exits.EXPECTED) else f"{type(error).__name__}: "
    return prefix + " ".join(str(error).split())


def run_batch(
    batch: Batch, on_steps: Callable[[int], None], poll: Callable[[], int]
) -> dict[str, str]:
    """Run or resume a batch and write the record of each run; returns failed runs by name."""
    start = time.perf_counter()
    config.check_memory(batch.settings)
    disk.make_directory(batch.directory)
    with disk.lock(batch.directory / run_dir.LOCK):
        names = [instance.name for instance in batch.instances]
        seal.write_sealed(batch.directory / BATCH, {"runs": names})
        variants = [instance.settings for instance in batch.instances]
        job = Job(batch.settings, batch.directory, batch.name, RESUME_HINT, variants)
        session = start_session(job, False, start)
        run_session(session, _BatchDisplay(batch, on_steps), (), poll)
        failed = write_records(batch, session)
    # Renamed first: a half-removed checkpoint must not look like a damaged one.
    removed = batch.directory.with_name(batch.name + REMOVED)
    disk.move(batch.directory, removed)
    disk.remove_tree(removed)
    return failed


def write_records(batch: Batch, session: Session) -> dict[str, str]:
    """Write the record of each run that has none yet; returns failed runs by name.

    The summary, which marks a run as ended, is written last.
    """
    recorder = session.recorder
    seeds, metrics = recorder.episode_stats(), recorder.metrics()
    share = Timings(*(seconds / len(batch.instances) for seconds in session.timings()))
    for index, instance in enumerate(batch.instances):
        directory, settings = batch.home / instance.name, instance.settings
        if is_finished(batch.home, instance):
            continue
        disk.make_directory(directory)
        run_dir.write_fingerprint(directory, settings.env)
        run_dir.write_settings(directory, settings)
        if index in recorder.failed:
            run_dir.write_failure(directory, settings, recorder.failed[index])
            continue
        columns = {name: column[index : index + 1] for name, column in metrics.values.items()}
        run_metrics = Metrics(metrics.step, columns)
        result = Result(
            settings,
            [seeds[index]],
            run_metrics,
            [],
            recorder.steps // len(batch.instances),
            *share,
            session.checkpointer.environment_changes,
            directory,
        )
        run_dir.write_results(directory, result.seeds, run_metrics, [], None, result.summary())
    return {batch.instances[index].name: reason for index, reason in recorder.failed.items()}
