"""The seam behind which every estimate of epistemic uncertainty stands."""

from collections.abc import Callable
from typing import NamedTuple

from ersac.types import Array, Params, Rng, Trajectory, Tree


class Uncertainty(NamedTuple):
    """How unsure the agent is of the mean reward of (s, a), as a variance."""

    init: Callable[
        [Rng], tuple[Params, Tree]
    ]  # -> (what an optimiser trains, memory that none ever sees)
    sigma2: Callable[
        [Params, Tree, Array, Array, Array], Array
    ]  # params, memory, obs, features, action -> VARIANCE, no gradient
    loss: Callable[
        [Params, Tree, Array, Array, Trajectory], Array
    ]  # params, memory, obs, features, trajectory -> [T], minimised
    observe: Callable[[Tree, Trajectory], Tree]  # memory, trajectories [B, ...] -> memory
    rows: dict[str, int]  # the tables it has, by name, and their widths
