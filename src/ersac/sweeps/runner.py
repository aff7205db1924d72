"""A sweep, run: the plan is wanted minus present, and resuming is the default. No jax before a batch begins.

Runs that share a compiled program, a budget and a rule for stopping are lived through together, as a batch. Which runs make a batch
depends on the sweep and the machine alone, never on what is there already: a run has the same neighbours, and so the same bits, in
however many lives its sweep is run.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from ersac import config, display
from ersac.config import Experiment, SettingsError
from ersac.runs import disk, exits, run_dir, seal
from ersac.runs.results import Result
from ersac.runs.run_dir import Metrics, Timings
from ersac.runs.session import Job, Session, run_session, start_session
from ersac.sweeps.catalogue import Instance

SWEEP, BATCH, BATCHES, GONE = "sweep.json", "batch.json", "batches", ".gone"
WIDTH = 8  # runs a core in one batch: more are slower
MEMORY_SHARE = 0.5  # of the machine's, that a batch may take
GO_ON = "go on with the same command"


class Wanted(Protocol):
    """A run of one seed, of this kind of sweep or of another."""

    @property
    def name(self) -> str:
        """A name that no run with other settings has."""

    @property
    def settings(self) -> Experiment:
        """Everything that decides its numbers."""


class Batch(NamedTuple):
    """Runs that are lived through together."""

    home: Path  # of the sweep
    instances: tuple[Instance, ...]

    @property
    def settings(self) -> Experiment:
        """What they share, as the settings of one run with as many seeds."""
        return config.override(self.instances[0].settings, seeds=len(self.instances))

    @property
    def name(self) -> str:
        """Twelve digits that no other batch has."""
        return disk.digest(
            " ".join(run_dir.settings_hash(each.settings) for each in self.instances).encode()
        )[:12]

    @property
    def directory(self) -> Path:
        """Where it keeps its checkpoints while it is under way."""
        return self.home / BATCHES / self.name

    @property
    def steps(self) -> int:
        """Environment steps of all its runs, if none is stopped early."""
        return self.settings.run.episodes * self.steps_an_episode

    @property
    def steps_an_episode(self) -> int:
        """Environment steps in which each of its runs has one episode."""
        return len(self.instances) * config.sea(self.settings).episode_length

    def steps_saved(self) -> int:
        """How far it was when it was last saved: all that can be known of it from elsewhere."""
        from ersac.runs import checkpoint  # jax, seal

        saved = checkpoint.checkpoint_numbers(self.directory / checkpoint.DIRECTORY)
        return min(
            self.steps, max(saved, default=0) * self.settings.learner.rollout * len(self.instances)
        )


class Outcome(NamedTuple):
    """How a batch ended: with some of its runs given up for good, or not at all."""

    batch: Batch
    failed: dict[str, str]  # the reason by the run's name
    broken: str | None = None  # why there is nothing of it yet


class Report(NamedTuple):
    """How a sweep ended."""

    ended: int
    wanted: int
    failed: dict[str, str]  # the reason by the run's name: bad numbers, and they will be bad again
    missing: dict[str, str]  # what may be tried again

    def verdict(self, home: Path) -> None:
        """Raise what tells the shell that something is missing."""
        if self.missing:
            raise exits.Resumable(
                f"{len(self.missing)} of {self.wanted} runs are missing in {home}; {GO_ON}"
            )
        if self.failed:
            raise exits.NonFinite(
                f"{len(self.failed)} of {self.wanted} runs failed; ersac runs {home} lists them"
            )


Told = Callable[[Batch, int], None]  # how many steps a batch has behind it
Engine = Callable[[Sequence[Batch], Told, Callable[[], int]], Iterator[Outcome]]


def batches(home: Path, wanted: Sequence[Instance]) -> list[Batch]:
    """All of a sweep, in batches, in the order of the sweep."""
    alike: dict[Experiment, list[Instance]] = {}
    for instance in wanted:
        alike.setdefault(config.static(config.override(instance.settings, seed=0)), []).append(
            instance
        )
    return [
        Batch(home, tuple(part))
        for group in alike.values()
        for part in _even_parts(group, width(group[0].settings))
    ]


def width(settings: Experiment) -> int:
    """How many runs with these settings a batch may have on this machine."""
    fit = int(MEMORY_SHARE * config.memory_bytes() // config.bytes_needed(settings))
    return max(1, min(fit, WIDTH * run_dir.fingerprint()["visible_cores"]))


def _even_parts(group: list[Instance], most: int) -> list[list[Instance]]:
    """Parts of nearly one size, so that most have the shape, and with it the compiled program, of the first."""
    size = -(-len(group) // -(-len(group) // most))
    return [group[start : start + size] for start in range(0, len(group), size)]


def has_ended(home: Path, instance: Wanted) -> bool:
    """Whether there is nothing left to do for a run: it has ended, and what it left is sound, or it has failed for good."""
    directory, settings = home / instance.name, instance.settings
    with contextlib.suppress(OSError):  # what cannot be read is not there
        return (
            run_dir.valid_summary(directory, settings) is not None
            or run_dir.read_failure(directory, settings) is not None
        )
    return False


def plan_batches(home: Path, wanted: Sequence[Instance]) -> list[Batch]:
    """The batches of which something is missing."""
    return [
        batch
        for batch in batches(home, wanted)
        if not all(has_ended(home, instance) for instance in batch.instances)
    ]


@contextlib.contextmanager
def hold_sweep(home: Path, title: str, wanted: Sequence[Wanted]) -> Iterator[None]:
    """Be the only one to run a sweep in a directory: a new one, or that of the same sweep."""
    begun = (home / SWEEP).exists() or (
        home.is_dir() and not set(disk.names(home)) - {run_dir.LOCK, SWEEP + disk.PARTIAL}
    )
    if home.exists() and not begun:
        raise SettingsError(
            f"--out {home} already holds something that is not a sweep; choose another directory"
        )
    disk.make_directory(home)
    with disk.lock(home / run_dir.LOCK):
        if (home / SWEEP).exists() and (before := title_of(home)) not in (title, None):
            raise SettingsError(
                f"--out {home} holds another sweep: {before}; choose another directory"
            )
        seal.write_sealed(
            home / SWEEP, {"sweep": title, "runs": [instance.name for instance in wanted]}
        )
        yield


def title_of(home: Path) -> str | None:
    """Which sweep a directory holds; None where what says so is damaged, for then it is written again."""
    with contextlib.suppress(ValueError, RecursionError):
        return str(seal.unseal_json(disk.read(home / SWEEP)).get("sweep"))
    return None


def run_sweep(
    title: str,
    wanted: Sequence[Instance],
    home: Path,
    engine: Engine,
    screen: display.Display,
    poll: Callable[[], int] = lambda: 0,
) -> Report:
    """Run what is missing of a sweep; Stopped after a checkpoint if `poll` gives the number of a signal."""
    with hold_sweep(home, title, wanted), contextlib.closing(screen):
        todo = plan_batches(home, wanted)
        _clear(home, {batch.name for batch in todo})
        missing: dict[str, str] = {}
        progress = Progress(batches(home, wanted), todo, len(wanted), screen)
        for outcome in engine(todo, progress.told, poll):
            for name, why in outcome.failed.items():
                display.note(f"{name} failed: {why}")
            if outcome.broken is not None:
                names = [each.name for each in outcome.batch.instances if not has_ended(home, each)]
                display.note(
                    f"a batch of {len(names)} runs from {names[0]} broke: {outcome.broken}"
                )
                missing |= dict.fromkeys(names, outcome.broken)
            progress.ended(outcome)
        reasons = {
            each.name: run_dir.read_failure(home / each.name, each.settings) for each in wanted
        }
        failed = {name: why for name, why in reasons.items() if why is not None}
        return Report(len(wanted) - len(failed) - len(missing), len(wanted), failed, missing)


def _clear(home: Path, kept: set[str]) -> None:
    """Remove what batches left that have ended, or that a crash kept from removing it."""
    for name in disk.names(home / BATCHES):
        if name not in kept:
            disk.remove_tree(home / BATCHES / name)


class Progress:
    """Where a sweep is, from what its batches tell; steps that a batch did not need count as done once it has ended."""

    def __init__(
        self,
        every: Sequence[Batch],
        todo: Sequence[Batch],
        runs_wanted: int,
        screen: display.Display,
    ) -> None:
        self.screen, self.began = screen, time.monotonic()
        self.wanted, self.batches_wanted, self.runs_wanted = (
            sum(batch.steps for batch in every),
            len(every),
            runs_wanted,
        )
        self.done = self.wanted - sum(batch.steps for batch in todo)
        self.batches = len(every) - len(todo)
        self.runs = runs_wanted - sum(len(batch.instances) for batch in todo)
        self.failed = 0
        self.before = {
            batch.name: batch.steps_saved() for batch in todo if batch.directory.exists()
        }  # steps of earlier lives
        self.under_way = dict(self.before)  # steps of a batch that has no end yet
        self.here = 0  # steps of batches that ended in this life

    def told(self, batch: Batch, steps: int) -> None:
        """A batch has come so far."""
        self.under_way[batch.name] = min(steps, batch.steps)
        self._show()

    def ended(self, outcome: Outcome) -> None:
        """A batch has ended, well or not."""
        batch = outcome.batch
        self.under_way.pop(batch.name, None)
        if outcome.broken is None:
            self.done += batch.steps
            self.here += batch.steps - self.before.get(batch.name, 0)
            self.batches += 1
            self.runs += len(batch.instances) - len(outcome.failed)
            self.failed += len(outcome.failed)
        else:
            self.failed += len(batch.instances)
        self._show()

    def _show(self) -> None:
        now = sum(self.under_way.values())
        here = self.here + sum(
            steps - self.before.get(name, 0) for name, steps in self.under_way.items()
        )
        batches, runs = (self.batches, self.batches_wanted), (self.runs, self.runs_wanted)
        seconds = time.monotonic() - self.began
        self.screen.show(
            display.SweepStatus(
                self.done + now, self.wanted, here, seconds, *batches, *runs, self.failed
            )
        )


class _BatchDisplay:
    """A batch's own display: it tells the sweep's how far it is."""

    def __init__(self, batch: Batch, told: Callable[[int], None]) -> None:
        self.steps_an_episode, self.told = batch.steps_an_episode, told

    def show(self, status: display.Status) -> None:
        """Pass it on."""
        self.told(status.done * self.steps_an_episode)

    def close(self) -> None:
        """Nothing."""


def attempt(batch: Batch, told: Callable[[int], None], poll: Callable[[], int]) -> Outcome:
    """Run a batch; whatever breaks it is its outcome, for the others shall go on. Stopped passes."""
    try:
        return Outcome(batch, run_batch(batch, told, poll))
    except exits.Stopped:
        raise
    except Exception as error:  # of any kind at all
        kind = "" if isinstance(error, exits.EXPECTED) else f"{type(error).__name__}: "
        return Outcome(batch, {}, kind + " ".join(str(error).split()))


def run_batch(batch: Batch, told: Callable[[int], None], poll: Callable[[], int]) -> dict[str, str]:
    """Run a batch to its end, or go on with it, and leave a record of each of its runs; returns those that failed, with the reason."""
    began = time.perf_counter()
    config.check_memory(batch.settings)
    disk.make_directory(batch.directory)
    with disk.lock(batch.directory / run_dir.LOCK):
        seal.write_sealed(
            batch.directory / BATCH, {"runs": [instance.name for instance in batch.instances]}
        )
        variants = [instance.settings for instance in batch.instances]
        session = start_session(
            Job(batch.settings, batch.directory, batch.name, GO_ON, variants), False, began
        )
        run_session(session, _BatchDisplay(batch, told), (), poll)
        failed = write_records(batch, session)
    # Under another name first: half a checkpoint must not look like a damaged one.
    gone = batch.directory.with_name(batch.name + GONE)
    disk.move(batch.directory, gone)
    disk.remove_tree(gone)
    return failed


def write_records(batch: Batch, session: Session) -> dict[str, str]:
    """Leave the record of each run that has none yet; what says that it has ended is written last."""
    seeds, metrics = session.recorder.episode_stats(), session.recorder.metrics()
    share = Timings(*(seconds / len(batch.instances) for seconds in session.timings()))
    for place, instance in enumerate(batch.instances):
        directory, settings = batch.home / instance.name, instance.settings
        if has_ended(batch.home, instance):
            continue
        disk.make_directory(directory)
        run_dir.write_fingerprint(directory)
        run_dir.write_settings(directory, settings)
        if place in session.recorder.failed:
            run_dir.write_failure(directory, settings, session.recorder.failed[place])
            continue
        own = Metrics(
            metrics.step,
            {name: column[place : place + 1] for name, column in metrics.values.items()},
        )
        steps = session.recorder.steps // len(batch.instances)
        result = Result(
            settings,
            [seeds[place]],
            own,
            [],
            steps,
            *share,
            session.checkpointer.environment_changes,
            directory,
        )
        run_dir.write_results(directory, result.seeds, own, [], None, result.summary())
    return {batch.instances[place].name: why for place, why in session.recorder.failed.items()}
