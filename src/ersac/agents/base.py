"""The seam between agents and loops."""

from collections.abc import Callable
from typing import NamedTuple

from ersac.types import Array, Key, Learner, Rng, Trajectory, Tree


class Agent(NamedTuple):
    """Pure functions on arrays; a loop needs nothing else."""

    init: Callable[[Rng], Learner]  # of plain numbers, on the host
    init_episode: Callable[
        [Learner, Key], Tree
    ]  # at the start of an episode -> what the actor keeps through it
    action_noise: Callable[
        [Key, int], Tree
    ]  # key, T -> the randomness of T actions [T, ...], drawn before the first of them
    act: Callable[
        [Learner, Tree, Array, Tree], tuple[Array, Tree]
    ]  # learner, kept, obs, one step's chance -> (action, what log_mu asks for)
    actor_params: Callable[
        [Learner], Learner
    ]  # what of a learner begin, act and best ask for; a call takes longer for every array it is handed
    mode: Callable[
        [Learner, Tree, Array], Array
    ]  # learner, kept, obs -> the action that it thinks best
    to_env: Callable[[Array], Array]  # action, as it is learned from -> as the environment takes it
    log_mu: Callable[
        [Tree, Array], Array
    ]  # what act told, [T, ...], and actions [T] -> behaviour log-probabilities [T]: all steps at once
    noise: Callable[
        [Key, int], Tree
    ]  # key, T -> what goes with each of T steps to the learner [T, ...], drawn before the first of them
    observe: Callable[
        [Learner, Trajectory], Learner
    ]  # rollouts [N, ...], once, when they have been acted: what is counted, not learned
    update: Callable[
        [Learner, Trajectory], tuple[Learner, Array, dict[str, Array]]
    ]  # batch [B, ...] -> (learner, priority [B], metrics)
    sigma2: Callable[
        [Learner, Array, Array], Array
    ]  # learner, obs, action -> epistemic variance, for maps and pictures
