"""The interface between agents and training loops."""

from collections.abc import Callable
from typing import NamedTuple

from ersac.types import Array, Key, Learner, Rng, Trajectory, Tree

Metrics = dict[str, Array]


class BehaviourPolicy(NamedTuple):
    """Pure functions that choose actions.

    `episode_state` is what the policy keeps during an episode, such as the index of an ensemble
    member; () where there is none. `dist_params` are the numbers from which `log_mu` computes
    probabilities, such as logits: for all steps of a rollout at once, which is faster.
    """

    # learner, key -> episode_state at the start of an episode
    init_episode: Callable[[Learner, Key], Tree]
    # key, T -> the randomness of T actions [T, ...]
    action_noise: Callable[[Key, int], Tree]
    # learner, episode_state, obs, action_noise of one step -> (action, dist_params)
    act: Callable[[Learner, Tree, Array, Tree], tuple[Array, Tree]]
    # dist_params [T, ...], action [T] -> log-probabilities of the actions [T]
    log_mu: Callable[[Tree, Array], Array]
    # learner, episode_state, obs -> the greedy action, for evaluation
    mode: Callable[[Learner, Tree, Array], Array]
    # action -> the environment's action; they differ where actions are bounded and continuous
    to_env: Callable[[Array], Array]
    # learner -> the part of it that the functions above read: a compiled call with fewer
    # arguments is faster
    actor_params: Callable[[Learner], Learner]


class Agent(NamedTuple):
    """Pure functions on arrays: all that a training loop needs to know about an agent."""

    # rng -> learner before the first step, on the host
    init: Callable[[Rng], Learner]
    policy: BehaviourPolicy
    # key, T -> noise [T, ...] that is stored with a rollout, as Trajectory.noise
    noise: Callable[[Key, int], Tree]
    # learner, new rollouts [N, ...], each passed in once -> learner: updates counts and statistics
    observe: Callable[[Learner, Trajectory], Learner]
    # learner, batch [B, ...] -> (learner, priority [B], metrics): one gradient step
    update: Callable[[Learner, Trajectory], tuple[Learner, Array, Metrics]]
    # learner, obs, action -> the epistemic variance, for maps and pictures
    sigma2: Callable[[Learner, Array, Array], Array]
