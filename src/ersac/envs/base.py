"""The seam between environments and loops."""

from collections.abc import Callable
from typing import Any, NamedTuple

from ersac.types import Array, Key, Tree


class Step(NamedTuple):
    """What an environment answers."""

    state: Tree
    reward: Array
    discount: Array  # 0 where the MDP ended, else 1
    goal: Array  # bool; read where the episode ended: did it succeed?


class Env(NamedTuple):
    """A pure environment. `world` is what stays fixed for its life and differs between seeds: arrays, made on the host."""

    name: str
    n_states: int  # observations are integers below this
    n_actions: int
    world: Callable[[int], Any]  # seed -> numpy arrays
    reset: Callable[[Tree, Key], Tree]
    observe: Callable[[Tree, Tree], Array]
    step: Callable[[Tree, Tree, Array, Key], Step]
