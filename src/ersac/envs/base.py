"""The interfaces of environments: `Env` is pure and stepped on the device, `HostEnv` on the host.

No jax here: worker processes that step environments do not need it.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ersac import config

if TYPE_CHECKING:
    from ersac.types import Array, Key, Tree

ANY_ERROR = (Exception, SystemExit)  # environments raise anything; a KeyboardInterrupt passes


class Discrete(NamedTuple):
    """Integers from 0 to n - 1."""

    n: int


class Box(NamedTuple):
    """Arrays of one shape. Three axes are an image with the channels last.

    Images of bytes stay bytes until they enter a network.
    """

    shape: tuple[int, ...]
    is_bytes: bool = False
    low: tuple[float, ...] = ()  # of actions: the bounds of all entries, flattened
    high: tuple[float, ...] = ()
    # how a replay stores floats: as they are, as bits where all are 0 or 1, as bytes where all are
    # whole numbers from 0 to 255
    stored_as: Literal["floats", "bits", "bytes"] = "floats"
    frames: int = 1  # consecutive observations that are stacked along the last axis, oldest first

    @property
    def size(self) -> int:
        """The number of entries of one array."""
        return math.prod(self.shape)

    @property
    def stored_bytes(self) -> int:
        """The bytes of one array in a replay."""
        if self.stored_as == "bits":
            return -(-self.size // 8)
        return self.size if self.is_bytes or self.stored_as == "bytes" else 4 * self.size


class MultiDiscrete(NamedTuple):
    """Actions of several factors: a choice below sizes[i] for each factor i."""

    sizes: tuple[int, ...]


class PackedSpace(NamedTuple):
    """Several arrays, and the mask of allowed actions, as one array of bytes.

    An observation has the entries in their order, flattened: a byte for each number of an image of
    bytes, four for any other number. Then there is a byte for each choice of the action: 1 where it
    is allowed. So a mask is stored, replayed and sent between processes with its observation.
    """

    entries: tuple[Discrete | Box, ...]  # images first
    choices: int = 0  # of actions, all factors together; 0 without a mask
    frames: int = 1  # observations that are stacked, the oldest first

    @property
    def frame_bytes(self) -> int:
        """The bytes of one frame."""
        return sum(map(entry_bytes, self.entries)) + self.choices

    @property
    def size(self) -> int:
        """The bytes of an observation."""
        return self.frames * self.frame_bytes

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an observation."""
        return (self.size,)

    @property
    def is_bytes(self) -> bool:
        """Whether observations are bytes, as for a Box."""
        return True


def entry_bytes(entry: Discrete | Box) -> int:
    """The bytes of an entry of a packed observation."""
    if isinstance(entry, Discrete):
        return 4
    return entry.size if entry.is_bytes else 4 * entry.size


Space = Discrete | Box | PackedSpace  # of observations
ActionSpace = Discrete | Box | MultiDiscrete


class Step(NamedTuple):
    """The result of one step of a pure environment.

    Where a time limit truncates an episode, its last real step has discount 1 and leads to the
    true last observation. The next step is fake: it ignores the action, has reward 0, discount 0
    and mask 0, and starts the next episode. Only the environment's adapter handles truncation.
    """

    state: Tree
    reward: Array
    discount: Array  # 0 where the episode terminated, and on a fake step; else 1
    goal: Array  # bool; whether the episode succeeded, read where it ended
    mask: Array | float = 1.0  # 0 on a fake step


class Env(NamedTuple):
    """A pure environment, as functions of arrays.

    `env_params`: arrays that differ between seeds and never change, such as DeepSea's action map.
    """

    name: str
    observations: Space
    actions: ActionSpace
    env_params: Callable[[int], Any]  # seed -> numpy arrays
    reset: Callable[[Tree, Key], Tree]
    observe: Callable[[Tree, Tree], Array]
    step: Callable[[Tree, Tree, Array, Key], Step]
    envs: int = 1  # copies that are stepped in parallel
    target: float | None = None  # an episode with at least this return reached its goal
    unroll: int = 1  # steps in an iteration of the acting loop; XLA fuses them to one kernel

    @property
    def n_states(self) -> int:
        """The number of discrete observations."""
        return cardinality(self.observations)

    @property
    def n_actions(self) -> int:
        """The number of discrete actions."""
        return cardinality(self.actions)


class HostStep(NamedTuple):
    """The result of one step of N host environments; truncation is handled as in `Step`."""

    obs: np.ndarray  # [N, ...]           the next observation; the true last one at a truncation
    reward: np.ndarray  # [N] float32
    discount: np.ndarray  # [N] float32   0 where the episode terminated, and on a fake step; else 1
    mask: np.ndarray  # [N] float32       0 on a fake step
    ended: np.ndarray  # [N] bool         the last real step of an episode, terminated or truncated
    goal: np.ndarray  # [N] bool          whether the episode succeeded, read where `ended`
    lost: np.ndarray | None = None  # [N] bool   a fake step: the episode broke off unrecorded


class HostEnv(NamedTuple):
    """N environments on the host, stepped together."""

    name: str
    observations: Space
    actions: ActionSpace
    envs: int
    reset: Callable[[int], np.ndarray]  # seed -> the first observations [N, ...]
    step: Callable[[np.ndarray], HostStep]  # actions [N, ...]
    close: Callable[[], None]
    target: float | None = None  # an episode with at least this return reached its goal
    # its whole state as a tree of arrays, after a reset; None where it cannot be stored
    snapshot: Callable[[], Tree] | None = None
    restore: Callable[[Tree], None] | None = None


class Spec(NamedTuple):
    """What an agent needs to know of an environment; hashable, a key of compiled programs."""

    name: str
    observations: Space
    actions: ActionSpace
    envs: int


def spec_of(env: Env | HostEnv | Spec) -> Spec:
    """The specification of an environment."""
    return Spec(env.name, env.observations, env.actions, env.envs)


def size_of(spec: Spec) -> config.EnvSize:
    """The sizes of an environment that decide how much memory a run needs."""
    states = getattr(spec.observations, "n", 0)
    n_actions = sum(getattr(spec.actions, "sizes", (getattr(spec.actions, "n", 1),)))
    bytes_per_number = 1 if getattr(spec.observations, "is_bytes", False) else 4
    numbers = getattr(spec.observations, "size", 1)
    stored = getattr(spec.observations, "stored_bytes", 4)
    # Packed observations are stored with all of their frames.
    frames = spec.observations.frames if isinstance(spec.observations, Box) else 1
    return config.EnvSize(states, bytes_per_number * numbers, n_actions, numbers, stored, frames)


def cardinality(space: Space | ActionSpace) -> int:
    """The number of values of a discrete space."""
    assert isinstance(space, Discrete), f"{space} is not discrete"
    return space.n


def error_line(error: BaseException) -> str:
    """The type of an exception and the first line of its text."""
    try:
        lines = str(error).strip().splitlines()[:1]
    except ANY_ERROR:  # an environment's exception may fail in __str__
        lines = []
    return ": ".join([type(error).__name__, *lines])


def error_source(error: BaseException, within: Path) -> str:
    """Where an exception was raised, ' (file.py, line 3)'; empty if in the directory `within`."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    path = Path(frame.filename)
    return "" if path.parent == within else f" ({path.name}, line {frame.lineno})"
