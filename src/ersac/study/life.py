"""A run under way: from its start or its last checkpoint, chunk after chunk, to its end. A sweep's batch is lived through just so."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ersac import config, display, exits
from ersac.config import Train
from ersac.study import records
from ersac.study.recorder import Recorder
from ersac.study.records import Moment, Spent
from ersac.study.trackers import Tracker

if TYPE_CHECKING:
    from ersac.study.keeper import Keeper


@dataclass(frozen=True)
class Order:
    """What is to be run, and where it is kept."""

    settings: Train
    home: Path | None
    owner: str  # the hash under which its checkpoints are kept
    go_on: str  # what a person does about it once it was stopped
    variants: Sequence[Train] | None = None  # what each place runs, where they differ in more than seeds

    @property
    def alone(self) -> bool:
        """Whether it is one run, which keeps maps of its first seed and ends at a bad number; a batch gives up the seed and goes on."""
        return self.variants is None


def order(settings: Train, home: Path | None) -> Order:
    """One run of some settings."""
    return Order(settings, home, records.run_hash(settings), f"go on with: ersac resume {home}")


@dataclass
class Life:
    """A run under way."""

    order: Order
    program: Any  # of the loop
    recorder: Recorder
    keeper: "Keeper"
    before: Spent  # in earlier lives
    began: float
    running: float = 0.0  # seconds in this life

    def spent(self) -> Spent:
        """Seconds in all its lives."""
        wall = time.perf_counter() - self.began
        compiling, running = self.before.compiling + self.program.compile_seconds, self.before.running + self.running
        return Spent(compiling, running, self.before.wall + wall)

    def spoilt(self, place: int, why: str) -> None:
        """Give up a seed whose numbers are bad, or the run if it is alone."""
        (loop_of(self.order.settings).refuse if self.order.alone else self.recorder.fail)(place, why)

    def save(self, carry: Any) -> None:
        """Keep everything that the future depends on; where nothing has been done yet, that is nothing."""
        if not self.recorder.chunks:
            return
        number = self.recorder.chunks * config.rollouts_per_chunk(self.program.settings)
        # The recorder second: it is told what is spoilt while the first is fetched.
        tree = lambda: {"loop": loop_of(self.order.settings).snapshot(self.program, carry, self.spoilt), "recorder": self.recorder.state()}
        self.keeper.save(number, tree, self.spent())


def begin(order: Order, exact: bool, began: float) -> Life:
    """A run at its start, or where its last checkpoint left it."""
    from ersac import checkpoint  # jax, after everything that can be refused has been
    from ersac.study.keeper import Keeper

    settings = order.settings
    loop = loop_of(settings)
    program = loop.prepare(settings, order.variants)
    fingerprint = records.scope() | loop.layout(program)
    keeper = Keeper(order.home, order.owner, settings.run.checkpoint_seconds, fingerprint, display.note)
    found = keeper.load(exact)
    if found is None:
        return Life(order, program, Recorder(settings, program.seeds), keeper, Spent(), began)
    saved, before = found
    state = checkpoint.restore(saved, "loop", loop.snapshot(program, program.carry))
    recorder = Recorder.restored(settings, checkpoint.part(saved.arrays, "recorder"), program.seeds)
    if settings.env.on_host:
        display.note("continues with new episodes: the state of an environment on the host cannot be saved")
    return Life(order, loop.restored(program, state), recorder, keeper, before, began)


def loop_of(settings: Train) -> Any:
    """The loop that an environment runs in: on the device, or beside it."""
    from ersac.loops import actor_learner, on_device

    return actor_learner if settings.env.on_host else on_device


def live(life: Life, screen: display.Display, following: Sequence[Tracker], caught: Callable[[], int]) -> Any:
    """Chunk after chunk until it is enough; returns the last carry, which has been saved."""
    carry, run = life.program.carry, loop_of(life.order.settings).run(life.program, life.spoilt)
    try:
        with contextlib.closing(run) as chunks:  # whatever happens here, nobody acts on
            while not life.recorder.enough():
                if number := caught():
                    life.save(carry)
                    raise exits.Stopped(number, f"stopped; {life.order.go_on}")
                chunk = next(chunks)
                carry = chunk.carry
                life.running += chunk.seconds
                life.recorder.add(chunk)
                screen.show(life.recorder.status(life.spent().running))
                for tracker in following:
                    tracker.follow(life.recorder)
                if life.order.alone and life.recorder.wants_moment():
                    life.recorder.add_moment(moment(life, carry))
                if life.keeper.due():
                    life.save(carry)
            life.save(carry)
    except exits.EXPECTED:
        raise
    except Exception as error:
        if life.keeper.saved is None:
            raise
        raise exits.Resumable(f"{type(error).__name__}: {error}; {life.order.go_on}") from error
    return carry


def moment(life: Life, carry: Any) -> Moment:
    """What the first seed knows of its sea now."""
    from ersac.loops import on_device

    first = on_device.first_seed(carry)
    return life.recorder.moment(np.array(first.visits), on_device.sigma_map(life.program.settings, first.learner))
