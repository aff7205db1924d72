"""What a run needs of a loop, whether environments are stepped on the device or on the host."""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from ersac.config import Experiment
from ersac.types import Tree

Program = Any  # of the loop that prepared it: it has settings, seeds, carry and compile_seconds
OnNonFinite = Callable[[int, str], None]  # index of a seed, what is not finite and where


class Loop(NamedTuple):
    """Functions on a program, which is a run that is compiled and ready."""

    prepare: Callable[..., Program]  # settings, variants or None -> program
    run: Callable[[Program, OnNonFinite], Generator[Any]]  # yields chunks without end
    snapshot: Callable[..., Tree]  # program, carry, on_nonfinite -> what a checkpoint holds
    restore: Callable[[Program, Tree], Program]  # program, what a checkpoint held
    close: Callable[[Program], None]
    describe: Callable[[Program], dict[str, str | int]]  # devices and jax options, for fingerprints
    static_settings: Callable[[Experiment], Experiment]  # the part that decides what is compiled
