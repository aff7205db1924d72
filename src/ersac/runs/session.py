"""A run under way: from its start or its last checkpoint, chunk after chunk, to its end. A sweep runs its batches in the same way."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ersac import config, display
from ersac.config import Experiment
from ersac.runs import exits, run_dir, seal
from ersac.runs.recorder import Recorder
from ersac.runs.run_dir import MapSnapshot, Timings
from ersac.runs.trackers import Tracker

if TYPE_CHECKING:
    from ersac.loops.base import Loop
    from ersac.runs.checkpointer import Checkpointer


@dataclass(frozen=True)
class Job:
    """What is to be run, and where it is kept."""

    settings: Experiment
    directory: Path | None
    run_id: str  # the hash under which its checkpoints are kept
    resume_hint: str  # what a person does about it once it was stopped
    variants: Sequence[Experiment] | None = (
        None  # one for each seed, where they differ in more than seeds
    )

    @property
    def is_single_run(self) -> bool:
        """Whether it is one run, which keeps maps of its first seed and ends at a bad number; a batch gives up the seed and goes on."""
        return self.variants is None


def make_job(settings: Experiment, home: Path | None) -> Job:
    """One run of some settings."""
    return Job(settings, home, run_dir.run_hash(settings), f"resume with: ersac resume {home}")


@dataclass
class Session:
    """A run under way."""

    job: Job
    program: Any  # of the loop
    recorder: Recorder
    checkpointer: "Checkpointer"
    before: Timings  # before the last resume
    began: float
    running: float = 0.0  # seconds since then

    def timings(self) -> Timings:
        """Seconds since the run first started."""
        wall = time.perf_counter() - self.began
        compiling, running = (
            self.before.compiling + self.program.compile_seconds,
            self.before.running + self.running,
        )
        return Timings(compiling, running, self.before.wall + wall)

    def on_nonfinite(self, seed_index: int, why: str) -> None:
        """Give up a seed whose numbers are bad, or the run if it is alone."""
        from ersac.loops.base import raise_nonfinite

        (raise_nonfinite if self.job.is_single_run else self.recorder.fail)(seed_index, why)

    def save(self, carry: Any) -> None:
        """Keep everything that the future depends on; where nothing has been done yet, that is nothing."""
        if not self.recorder.chunks:
            return
        number = self.recorder.chunks * config.rollouts_per_chunk(self.program.settings)
        # The recorder second: seeds with non-finite numbers are reported while the loop is saved.
        tree = lambda: {
            "loop": loop_of(self.job.settings).snapshot(self.program, carry, self.on_nonfinite),
            "recorder": self.recorder.state(),
        }
        self.checkpointer.save(number, tree, self.timings())


def start_session(job: Job, exact: bool, began: float) -> Session:
    """A run at its start, or where its last checkpoint left it."""
    from ersac.runs import checkpoint  # jax, after everything that can be refused has been
    from ersac.runs.checkpointer import Checkpointer

    settings = job.settings
    loop = loop_of(settings)
    program = loop.prepare(settings, job.variants)
    fingerprint = run_dir.exactness_fields() | loop.describe(program)
    checkpointer = Checkpointer(
        job.directory, job.run_id, settings.run.checkpoint_seconds, fingerprint, display.note
    )
    found = checkpointer.load(exact)
    if found is None:
        return Session(
            job, program, Recorder(settings, program.seeds), checkpointer, Timings(), began
        )
    saved, before = found
    state = checkpoint.restore(saved, "loop", loop.snapshot(program, program.carry))
    recorder = Recorder.from_state(
        settings, seal.arrays_below(saved.arrays, "recorder"), program.seeds
    )
    if settings.env.on_host:
        display.note(
            "continues with new episodes: the state of an environment on the host cannot be saved"
        )
    return Session(job, loop.restore(program, state), recorder, checkpointer, before, began)


def loop_of(settings: Experiment) -> "Loop":
    """The loop in which an environment is stepped: on the device or on the host."""
    from ersac.loops import device, host

    return host.HOST_LOOP if settings.env.on_host else device.DEVICE_LOOP


def run_session(
    session: Session, screen: display.Display, following: Sequence[Tracker], poll: Callable[[], int]
) -> Any:
    """Chunk after chunk until it is enough; returns the last carry, which has been saved."""
    carry, run = (
        session.program.carry,
        loop_of(session.job.settings).run(session.program, session.on_nonfinite),
    )
    try:
        with contextlib.closing(run) as chunks:  # stops the actor thread whatever happens here
            while not session.recorder.is_finished():
                if number := poll():
                    session.save(carry)
                    raise exits.Stopped(number, f"stopped; {session.job.resume_hint}")
                chunk = next(chunks)
                carry = chunk.carry
                session.running += chunk.seconds
                session.recorder.add(chunk)
                screen.show(session.recorder.status(session.timings().running))
                for tracker in following:
                    tracker.follow(session.recorder)
                if session.job.is_single_run and session.recorder.wants_map_snapshot():
                    session.recorder.add_map_snapshot(take_map_snapshot(session, carry))
                if session.checkpointer.due():
                    session.save(carry)
            session.save(carry)
    except exits.EXPECTED:
        raise
    except Exception as error:
        if session.checkpointer.saved is None:
            raise
        raise exits.Resumable(
            f"{type(error).__name__}: {error}; {session.job.resume_hint}"
        ) from error
    return carry


def take_map_snapshot(session: Session, carry: Any) -> MapSnapshot:
    """Visits and sigma of the first seed now."""
    from ersac.loops import device

    first = device.first_seed(carry)
    return session.recorder.make_map_snapshot(
        np.array(first.visits), device.sigma_map(session.program.settings, first.learner)
    )
