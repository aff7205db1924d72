"""The seam between agents and loops."""

from collections.abc import Callable
from typing import NamedTuple

from ersac.types import Array, Key, Learner, Rng, Trajectory, Tree


class Agent(NamedTuple):
    """Five pure functions on arrays; a loop needs nothing else."""

    init: Callable[[Rng], Learner]  # of plain numbers, on the host
    begin: Callable[[Learner, Key], Tree]  # at the start of an episode -> what the actor keeps through it
    act: Callable[[Learner, Tree, Array, Array], tuple[Array, Array]]  # learner, kept, obs, uniform -> (action, log_mu)
    update: Callable[[Learner, Trajectory], tuple[Learner, Array, dict[str, Array]]]  # batch [B, ...] -> (learner, priority [B], metrics)
    sigma2: Callable[[Learner, Array, Array], Array]  # learner, obs, action -> epistemic variance, for maps and pictures
