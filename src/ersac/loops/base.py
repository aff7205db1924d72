"""The interface between runs and training loops.

A loop acts, stores rollouts and updates the agent. There are two: `device.py` steps pure
environments inside a compiled scan, `host.py` steps Gymnasium environments in Python.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from ersac.config import Experiment
from ersac.loops.guard import NonFiniteValue
from ersac.runs.exits import NonFinite
from ersac.types import Learner, Tree

# Rollout numbers that no run reaches: their keys are those of the first reset and of the buffer.
FIRST_RESET, BUFFER_DRAWS = 2**31 - 1, 2**31 - 2

Carry = Any  # the state of all seeds between two chunks; each loop has its own type
OnNonFinite = Callable[[int, str], None]  # index of a seed, message
Poll = Callable[[], int]  # the number of a signal that was received, or 0


class EpisodeSteps(NamedTuple):
    """For every step, the state of its episode so far; an episode's result is its last step's."""

    ended: Any  # bool
    goal: Any  # bool   read only where `ended`
    episode_return: Any
    # Steps to add to the episode's length: 1, 0 for the fake step after a truncation, and minus its
    # length where an episode broke off. None: 1 everywhere.
    counted: Any = None


def no_signal() -> int:
    """Return 0: the `Poll` where signals are not received."""
    return 0


class ChunkOutput(NamedTuple):
    """What a chunk of rollouts, or a part of one, returns to the host."""

    episodes: EpisodeSteps  # [seeds, rollouts, N, T]
    metrics: dict[str, np.ndarray]  # [seeds, rollouts]
    carry: Carry  # after the chunk
    seconds: float


class Program(Protocol):
    """A run that is compiled and ready to start; each loop has its own type."""

    @property
    def settings(self) -> Experiment:
        """The settings of the run."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, in the order of the first axis of a chunk's outputs."""

    @property
    def carry(self) -> Carry:
        """The state at the start of the run, or at the checkpoint that was restored."""

    @property
    def compile_seconds(self) -> float:
        """How long preparation and compilation took."""


class Loop(NamedTuple):
    """The functions of a training loop."""

    # settings, settings of each seed where they differ -> program at its start
    prepare: Callable[..., Any]
    # program, on_nonfinite, poll -> chunks without end; the caller decides when to stop
    run: Callable[[Any, OnNonFinite, Poll], Generator[ChunkOutput]]
    # program, carry, on_nonfinite -> the tree that a checkpoint stores, on the host
    snapshot: Callable[..., Tree]
    # program, tree of a snapshot -> program at that state
    restore: Callable[[Any, Tree], Any]
    # releases the environments
    close: Callable[[Any], None]
    # program -> devices and JAX options, for the fingerprint of a run
    describe: Callable[[Any], dict[str, str | int]]
    # settings -> the part of them that decides the compiled program
    static_settings: Callable[[Experiment], Experiment]
    # carry, index of a seed -> that seed's learner
    learner: Callable[[Carry, int], Learner]
    # program at its start, a learner for each seed -> the program that starts with them
    with_learners: Callable[[Any, Sequence[Learner]], Any]
    # arrays of a snapshot by name, seed, its index -> the arrays of that seed's learner by name
    saved_learner: Callable[[dict[str, np.ndarray], int, int], dict[str, np.ndarray]]


def run_seeds(settings: Experiment) -> range:
    """Return the seeds of a run."""
    return range(settings.run.seed, settings.run.seed + settings.run.seeds)


def raise_nonfinite(seed_index: int, message: str) -> None:
    """Raise NonFinite: the `OnNonFinite` of a single run."""
    raise NonFinite(f"{message}; nothing of it was saved")


def nonfinite_message(program: Program, value: NonFiniteValue, rollouts: int) -> str:
    """Return one line about a non-finite value in the chunk after `rollouts` rollouts.

    In the message steps and rollouts are counted from one.
    """
    steps, rollout = program.settings.agent.rollout, rollouts + value.rollout
    step = steps * rollout + value.step + 1
    where = f"at step {step:,}" if value.step < steps else f"after step {step - 1:,}"
    seed = program.seeds[value.seed]
    return f"{value.tensor} is not finite {where} (rollout {rollout + 1:,}) of seed {seed}"


def jax_options() -> str:
    """Return the JAX options that influence the bits of a result."""
    names = (
        "jax_enable_x64",
        "jax_default_prng_impl",
        "jax_threefry_partitionable",
        "jax_default_matmul_precision",
    )
    return ", ".join(f"{name.removeprefix('jax_')}={getattr(jax.config, name)}" for name in names)
