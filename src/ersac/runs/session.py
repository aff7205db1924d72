"""One execution of a run, or of a batch of a sweep, from its start or its last checkpoint on."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ersac import display
from ersac.config import Experiment, SettingsError
from ersac.runs import exits, run_dir, seal
from ersac.runs.fingerprint import exactness_fields
from ersac.runs.progress import OnChunk, Progress, make_progress
from ersac.runs.recorder import Recorder
from ersac.runs.run_dir import MapSnapshot, Timings
from ersac.runs.trackers import Tracker

if TYPE_CHECKING:
    from ersac.loops.base import Loop
    from ersac.runs.checkpointer import Checkpointer
    from ersac.types import Learner, Tree


@dataclass(frozen=True)
class Job:
    """The settings to run and the directory to keep their checkpoints in."""

    settings: Experiment
    directory: Path | None
    run_id: str  # a hash: only checkpoints with the same one are loaded
    resume_hint: str  # how to resume, for the message of a run that was stopped
    variants: Sequence[Experiment] | None = None  # a batch: the settings of every seed
    # The learners of a new run, from those that it would have and its seeds; None: those.
    start_learners: Callable[[Sequence["Learner"], Sequence[int]], Sequence["Learner"]] | None = (
        None
    )

    @property
    def is_single_run(self) -> bool:
        """Whether this is a run of its own.

        A single run records maps of its first seed and ends at a non-finite number; a batch drops
        that seed and continues with the others.
        """
        return self.variants is None


def make_job(settings: Experiment, directory: Path | None) -> Job:
    """Return the job of a single run."""
    return Job(settings, directory, run_dir.run_hash(settings), resume_hint(settings, directory))


def resume_hint(settings: Experiment, directory: Path | None) -> str:
    """Return how to continue a run, as a line that can be pasted; empty if nothing is kept."""
    if directory is None:
        return ""
    if settings.env.on_host and settings.env.make is not None:
        options = f"out={str(directory)!r}, resume=True"
        return f"resume with: ersac.train({settings.env.id}, ..., {options})"
    return f"resume with: {run_dir.how_to_resume(directory)}"


@dataclass
class Session:
    """The state of a run in this process."""

    job: Job
    program: Any  # of the loop
    recorder: Recorder
    checkpointer: "Checkpointer"
    earlier: Timings  # of the sessions before this one
    started: float  # time.perf_counter() at the start of this session
    running: float = 0.0  # seconds in chunks, of this session
    save_failed: bool = False  # the last save: another attempt would fail too
    stopped: bool = False  # by `on_chunk`, before the budget was spent

    def timings(self) -> Timings:
        """Return the seconds that the run has taken over all its sessions."""
        return Timings(
            compiling=self.earlier.compiling + self.program.compile_seconds,
            running=self.earlier.running + self.running,
            wall=self.earlier.wall + time.perf_counter() - self.started,
        )

    def progress(self, carry: Any) -> Progress:
        """Return what `on_chunk` receives."""
        return make_progress(self.job.settings, self.recorder, carry, lambda: self.codec)

    @cached_property
    def codec(self) -> Any:
        """The codec of the environment's spaces, for policies that `on_chunk` asks for."""
        from ersac.policy.codec import make_codec

        return make_codec(self.job.settings.env)

    def on_nonfinite(self, seed_index: int, reason: str) -> None:
        """End a single run, or drop one seed of a batch."""
        from ersac.loops.base import raise_nonfinite

        (raise_nonfinite if self.job.is_single_run else self.recorder.fail)(seed_index, reason)

    def save(self, carry: Any) -> None:
        """Write a checkpoint, unless nothing has been learned yet."""
        if self.recorder.rollouts:
            self.save_failed = True
            self.checkpointer.save(
                self.recorder.rollouts, lambda: self._state(carry), self.timings()
            )
            self.save_failed = False

    def leave(self, carry: Any, error: Exception) -> Exception:
        """Save the last good state of a run that `error` ends; return the error to raise.

        Not after a failed save, nor where a number is not finite.
        """
        if self.save_failed or isinstance(error, exits.NonFinite):
            return error
        with contextlib.suppress(RuntimeError, MemoryError):  # a failed call has taken its carry
            self.save(carry)
        lines = (describe_end(error), self.job.resume_hint)
        text = "; ".join(line for line in lines if line)
        match error:
            case exits.Stopped():
                return exits.Stopped(error.number, text)
            case SettingsError():
                return SettingsError(text)
            case exits.Resumable() | MemoryError():
                return exits.Resumable(text)
        return error if self.checkpointer.saved is None else exits.Resumable(text)

    def _state(self, carry: Any) -> "Tree":
        """Return everything that the rest of the run depends on."""
        loop = loop_of(self.job.settings)
        # The loop before the recorder: its snapshot reports seeds with non-finite numbers.
        return {
            "loop": loop.snapshot(self.program, carry, self.on_nonfinite),
            "recorder": self.recorder.state(),
        }


def start_session(job: Job, exact: bool, started: float) -> Session:
    """Return a session at the start of a run or, if there is a checkpoint, at the newest one.

    exact: raise SettingsError if the rest of the run would not be bit-identical.
    """
    from ersac.runs import checkpoint  # imports jax: only once nothing can be refused any more
    from ersac.runs.checkpointer import Checkpointer

    settings = job.settings
    loop = loop_of(settings)
    program = loop.prepare(settings, job.variants)
    fingerprint = exactness_fields(settings.env) | loop.describe(program)
    checkpointer = Checkpointer(
        job.directory, job.run_id, settings.run.checkpoint_seconds, fingerprint, display.note
    )
    loaded = checkpointer.load(exact)
    if loaded is None:
        if job.start_learners is not None:
            own = [loop.learner(program.carry, i) for i in range(len(program.seeds))]
            program = loop.with_learners(program, job.start_learners(own, program.seeds))
        recorder = Recorder(settings, program.seeds)
        return Session(job, program, recorder, checkpointer, Timings(), started)
    saved, earlier = loaded
    state = checkpoint.restore(saved, "loop", loop.snapshot(program, program.carry))
    recorder_state = seal.arrays_below(saved.arrays, "recorder")
    recorder = Recorder.from_state(settings, recorder_state, program.seeds)
    if not settings.env.stores_state:
        display.note(
            "continues with new episodes: the state of an environment on the host cannot be saved"
        )
    return Session(job, loop.restore(program, state), recorder, checkpointer, earlier, started)


def loop_of(settings: Experiment) -> "Loop":
    """Return the loop that steps an environment: on the device or on the host."""
    from ersac.loops import device, host

    return host.HOST_LOOP if settings.env.on_host else device.DEVICE_LOOP


def run_session(
    session: Session,
    screen: display.Display,
    trackers: Sequence[Tracker],
    poll: Callable[[], int],
    on_chunk: OnChunk | None = None,
) -> Any:
    """Run chunks until the budget is spent; return the last carry, which has been saved.

    poll: returns the number of a signal that was received, or 0. After a signal the session is
    saved and Stopped is raised. on_chunk: called after every chunk; the run stops when it returns
    True.
    """
    carry = session.program.carry
    loop = loop_of(session.job.settings)
    run = loop.run(session.program, session.on_nonfinite, poll)
    try:
        # Closing the generator stops the actor thread, whatever happens in this block.
        with contextlib.closing(run) as chunks:
            while not (session.stopped or session.recorder.is_finished()):
                if number := poll():
                    raise exits.Stopped(number, "stopped")
                chunk = next(chunks, None)
                if chunk is None:  # a signal came before anything was complete
                    continue
                carry = chunk.carry
                session.running += chunk.seconds
                session.recorder.add(chunk)
                screen.show(session.recorder.status(session.timings().running))
                for tracker in trackers:
                    tracker.update(session.recorder)
                if session.job.is_single_run and session.recorder.wants_map_snapshot():
                    session.recorder.add_map_snapshot(take_map_snapshot(session, carry))
                if session.checkpointer.due():
                    session.save(carry)
                if on_chunk is not None:
                    wants_stop = bool(on_chunk(session.progress(carry)))
                    session.stopped = wants_stop and not session.recorder.is_finished()
            session.save(carry)
    except Exception as error:
        if (left := session.leave(carry, error)) is error:
            raise
        raise left from error
    return carry


def describe_end(error: Exception) -> str:
    """Return why a run ended, in one line."""
    if isinstance(error, MemoryError):
        return "out of memory"
    if isinstance(error, exits.EXPECTED):
        return str(error)
    return f"{type(error).__name__}: {error}"


def take_map_snapshot(session: Session, carry: Any) -> MapSnapshot:
    """Return visit counts, sigma and greedy moves of the first seed as they are now."""
    from ersac.envs.make import make_env
    from ersac.loops import device

    first, settings = device.first_seed(carry), session.program.settings
    sigma, action = device.learner_maps(settings, first.learner)
    right_action = np.asarray(make_env(settings.env).env_params(session.recorder.seeds[0]))
    moves_right = action == right_action.reshape(-1)
    return session.recorder.make_map_snapshot(np.array(first.visits), sigma, moves_right)
