"""The seams between environments and loops: pure ones, which are stepped on the device, and those that live on the host.

No jax here: a worker process that steps environments has no use for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from ersac.types import Array, Key, Tree


class Discrete(NamedTuple):
    """Whole numbers from 0 to n - 1."""

    n: int


class Box(NamedTuple):
    """Arrays of one shape. Three axes are an image, whose last one is the channels; bytes are kept as bytes until a network sees them."""

    shape: tuple[int, ...]
    is_bytes: bool = False
    low: tuple[float, ...] = ()  # of actions: the bounds of each entry
    high: tuple[float, ...] = ()

    @property
    def size(self) -> int:
        """Numbers in one of them."""
        return math.prod(self.shape)


Space = Discrete | Box


class Step(NamedTuple):
    """What an environment answers.

    Where a time limit cuts an episode, its last real step has discount 1 and leads to its true last observation. The step after it is a
    fake one: whatever the action, reward 0, discount 0 and mask 0, and the next episode begins. Nothing past an adapter has to know.
    """

    state: Tree
    reward: Array
    discount: Array  # 0 where the MDP ended, or was begun anew; else 1
    goal: Array  # bool; read where the episode ended: did it succeed?
    mask: Array | float = 1.0  # 0 on a fake step


class Env(NamedTuple):
    """A pure environment. `env_params` is what stays fixed for its life and differs between seeds: arrays, made on the host."""

    name: str
    observations: Space
    actions: Space
    env_params: Callable[[int], Any]  # seed -> numpy arrays
    reset: Callable[[Tree, Key], Tree]
    observe: Callable[[Tree, Tree], Array]
    step: Callable[[Tree, Tree, Array, Key], Step]
    envs: int = 1  # copies of it that are acted in side by side
    target: float | None = None  # the return from which on an episode reached its goal
    unroll: int = 1  # steps in one turn of the acting loop; XLA makes one kernel of them, which may compute things many times over

    @property
    def n_states(self) -> int:
        """How many observations there are, where they are discrete."""
        return states(self.observations)

    @property
    def n_actions(self) -> int:
        """How many actions there are, where they are discrete."""
        return states(self.actions)


class HostStep(NamedTuple):
    """What N environments on the host answer to N actions. A truncation is followed by a fake step, as in `Step`."""

    obs: (
        np.ndarray
    )  # [N, ...]   to be acted on next; the true last observation where a time limit cut
    reward: np.ndarray  # [N] float32
    discount: np.ndarray  # [N] float32   0 where the MDP ended, and on a fake step; else 1
    mask: np.ndarray  # [N] float32       0 on a fake step
    ended: (
        np.ndarray
    )  # [N] bool         the episode's last real step: just once an episode, whatever ended it
    goal: np.ndarray  # [N] bool          read where `ended`: did it succeed?


class HostEnv(NamedTuple):
    """N environments on the host, stepped together."""

    name: str
    observations: Space
    actions: Space
    envs: int
    reset: Callable[[int], np.ndarray]  # seed -> the first observations [N, ...]
    step: Callable[[np.ndarray], HostStep]  # actions [N, ...]
    close: Callable[[], None]
    target: float | None = None  # the return from which on an episode reached its goal


class Spec(NamedTuple):
    """What an agent has to know of an environment: something that a compiled program can be found by."""

    name: str
    observations: Space
    actions: Space
    envs: int


def spec_of(env: Env | HostEnv | Spec) -> Spec:
    """The specification of an environment."""
    return Spec(env.name, env.observations, env.actions, env.envs)


def states(space: Space) -> int:
    """How many values a discrete space has."""
    assert isinstance(space, Discrete), f"{space} is not discrete"
    return space.n
