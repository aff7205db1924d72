"""The state of a run of the host loop: what is saved, and what the actor and the learner share."""

import threading
from typing import NamedTuple

import jax
import numpy as np

from ersac import config
from ersac.envs.base import HostEnv, Spec
from ersac.loops.host_calls import CompiledCalls, Packed
from ersac.types import Array, Learner, Tree


class HostCarry(NamedTuple):
    """The state of one seed that can be saved."""

    learner: Learner
    buffer_state: Tree
    rollouts: np.int32  # rollouts so far, counted on the host
    episodes: Tree = ()  # CurrentEpisodes; () where a resumed run starts new ones


class CurrentEpisodes(NamedTuple):
    """The current episodes of N environments whose state can be stored, between two rollouts."""

    env: Tree  # as `HostEnv.snapshot` returns it
    obs: np.ndarray  # [N, ...]
    policy: Tree  # the policy's episode states
    returns: np.ndarray  # [N]
    steps: np.ndarray  # [N]


class ActorParams(NamedTuple):
    """The newest parameters."""

    learner: Learner
    packed: Packed  # the part of the learner that acting reads
    rollouts: int  # rollouts that they have learned from


class SeedState:
    """One seed: its environments, their current episodes and the newest parameters."""

    def __init__(self, env: HostEnv, seed: int, carry: HostCarry) -> None:
        self.env, self.seed, self.carry = env, seed, carry
        self.key = jax.random.key(seed)
        self.newest: ActorParams | None = None  # replaced in one assignment: threads share it
        self.updated = threading.Condition()  # notified after `newest` was replaced
        self.actor: threading.Thread | None = None
        self.steps = 0  # that the actor has begun: whether it is stuck in one
        self.learn_seconds = 0.0  # of the last update
        self.obs: np.ndarray | None = None  # [N, ...]
        self.episode_state: Tree = ()
        self.episode_return = np.zeros(env.envs, np.float64)
        self.episode_steps = np.zeros(env.envs, np.int32)


class HostProgram(NamedTuple):
    """A run that is compiled and ready."""

    settings: config.Experiment
    spec: Spec
    calls: CompiledCalls
    floats: dict[str, Array]  # the traced settings
    seeds: tuple[int, ...]
    seed_states: list[SeedState]
    carry: list[HostCarry]
    compile_seconds: float
