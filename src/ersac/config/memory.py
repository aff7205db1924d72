"""The memory that a run needs, from its settings: checked before jax is imported.

`jax.eval_shape` of the initialisers would not do: they draw on the host with numpy, so they
allocate what they describe, and the search for a size that fits needs dozens of estimates.
"""

import bisect
import itertools
import os
import sys
from dataclasses import dataclass
from typing import NamedTuple

from ersac.config.agent import ActorCritic, BootDQN, Ensemble, Posterior, Replay, Rnd
from ersac.config.cgroup import memory_limit
from ersac.config.env import env_name
from ersac.config.fields import SettingsError, leaves, override
from ersac.config.run import Experiment, rollouts_per_chunk


@dataclass(frozen=True)
class EnvSize:
    """The sizes of an environment's observations and actions."""

    states: int  # 0 unless observations are discrete
    observation_bytes: int
    n_actions: int
    numbers: int = 1  # in an observation
    stored_bytes: int = 4  # of an observation in a replay
    frames: int = 1  # that an observation stacks, stored once each in a replay of rollouts


class FloatCounts(NamedTuple):
    """How many 4-byte numbers the parts of one seed take."""

    per_state: int  # rows of every table
    layers: int  # dense parameters with their optimisers
    replay: int
    update: int  # activations of a batch
    per_step: int  # noise and episode statistics of a chunk
    members: int  # with a prior each


def bytes_needed(settings: Experiment, size: EnvSize | None = None) -> int:
    """About the bytes that a run takes: its state on the host and on the device, and a chunk.

    size: of the environment; by default that of DeepSea, which its settings determine.
    """
    if size is None:
        assert settings.env.depth is not None
        size = EnvSize(settings.env.depth**2, 4, 2)
    agent, envs = settings.agent, settings.env.envs
    if isinstance(agent, ActorCritic):
        counts = count_actor_critic(agent, size)
    else:
        counts = count_boot_dqn(agent, size, envs)
    # priors, counts, visits, the action mapping
    per_state = counts.per_state + (counts.members + 1) * size.n_actions + 2
    state = size.states * per_state + counts.layers + counts.replay
    steps = rollouts_per_chunk(settings) * agent.rollout * envs
    return settings.run.seeds * 4 * (2 * state + counts.update + steps * counts.per_step)


def count_actor_critic(agent: ActorCritic, size: EnvSize) -> FloatCounts:
    """Count the numbers of an actor-critic agent."""
    uncertainty, buffer, hidden = agent.uncertainty, agent.buffer, agent.hidden
    ensemble = isinstance(uncertainty, Ensemble)
    members = uncertainty.members if isinstance(uncertainty, Ensemble | Posterior) else 0
    heads = members * size.n_actions if ensemble else 0
    values = size.n_actions if agent.critic == "all-actions" else 1
    outputs = size.n_actions + values  # policy and critic
    if agent.network == "mlp":  # three networks, trained without moments
        has_network = isinstance(uncertainty, Ensemble | Rnd)
        estimator_hidden = agent.estimator_hidden if has_network else (0,)
        per_state = 2 * hidden[0] + estimator_hidden[0] + 1
        layers = upper_size(hidden, size.n_actions) + upper_size(hidden, values)
        layers += upper_size(estimator_hidden, heads)
    else:  # the first layer with Adam's moments, a row of every head, the time of the last update
        per_state = 3 * hidden[0] + outputs + heads + 1
        shared = isinstance(uncertainty, Ensemble) and uncertainty.shared_reward_heads
        layers = 3 * dense_size(hidden, outputs + (heads if shared else 0))
    if not size.states:  # policy, critic and estimator have a first layer each
        layers = 3 * layers + 9 * hidden[0] * size.observation_bytes
    observation = -(-size.observation_bytes // 4)
    replay = update = 0
    if isinstance(buffer, Replay):
        frame = -(-size.stored_bytes // (4 * size.frames))
        rollout = frame * (agent.rollout + size.frames) + agent.rollout * (5 + members)
        replay = buffer.capacity * (rollout + 1)  # with its priority
        update = buffer.batch * agent.rollout * 8 * sum(hidden)
    return FloatCounts(per_state, layers, replay, update, members + 7 + observation, members)


def count_boot_dqn(agent: BootDQN, size: EnvSize, envs: int) -> FloatCounts:
    """Count the numbers of a bootstrapped DQN agent."""
    members, hidden, batch = agent.members, agent.hidden, agent.batch
    # Parameters, Adam's moments and the target's difference; the time of the last update.
    per_state = 4 * members * hidden[0] + 1
    layers = 4 * members * dense_size(hidden, size.n_actions)
    if not size.states:  # the first layer is dense, and priors are networks
        layers = 5 * members * (dense_size(hidden, size.n_actions) + hidden[0] * size.numbers)
    observations = 2 * -(-size.observation_bytes // 4)  # of a transition: before and after
    rewards = 1 if agent.noise_variance is None else members
    mask = -(-agent.replay * members // 4)  # a byte a member
    stored = 2 * -(-size.stored_bytes // 4)
    replay = agent.replay * (2 + stored + rewards) + mask
    update = 16 * batch * members * sum(hidden)
    update += 2 * batch * (envs * observations + size.numbers)
    return FloatCounts(per_state, layers, replay, update, members + batch + 8, members)


def upper_size(hidden: tuple[int, ...], outputs: int) -> int:
    """Weights of a network without biases, except those of the first layer."""
    return sum(n_in * n_out for n_in, n_out in itertools.pairwise((*hidden, outputs)))


def dense_size(hidden: tuple[int, ...], outputs: int) -> int:
    """Weights and biases of a network, except the weights of the first layer."""
    return hidden[0] + sum(
        (n_in + 1) * n_out for n_in, n_out in itertools.pairwise((*hidden, outputs))
    )


def memory_bytes() -> int:
    """The memory of this machine, or the part of it that this process may use."""
    physical = sys.maxsize  # Windows does not say: nothing is refused
    if hasattr(os, "sysconf"):
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(physical, memory_limit() or physical)


def check_memory(settings: Experiment, size: EnvSize | None = None) -> None:
    """SettingsError if a run does not fit into the memory of this machine."""
    have, need = memory_bytes(), bytes_needed(settings, size)
    if need <= have:
        return
    names = {path[-1] for path, _, _ in leaves(settings)}
    for name in ("capacity", "replay", "seeds"):
        if name in names and (fit := largest_fit(settings, name, have, size)):
            advice = f"--{name} {fit} would fit"
            break
    else:
        smaller = ("depth", "envs", "hidden", "members", "batch", "rollout")
        options = ", ".join(f"--{name}" for name in smaller if name in names)
        advice = f"choose a smaller {options} or --chunk"
    depth = settings.env.depth
    env = f"of {env_name(settings.env)}" if depth is None else f"at --depth {depth}"
    raise SettingsError(
        f"--seeds {settings.run.seeds} {env} needs about {_gigabytes(need)} GB, "
        f"and this machine has {_gigabytes(have)}; {advice}"
    )


def _gigabytes(size: int) -> str:
    """Whole gigabytes, or two digits where there are less than two: in a small container."""
    return f"{size / 1e9:,.0f}" if size >= 2e9 else f"{size / 1e9:.2g}"


def largest_fit(settings: Experiment, name: str, have: int, size: EnvSize | None = None) -> int:
    """The largest value of a setting, up to its present one, with which a run fits; else 0."""
    present = next(value for path, _, value in leaves(settings) if path[-1] == name)
    return bisect.bisect(
        range(1, present + 1),
        have,
        key=lambda value: bytes_needed(override(settings, **{name: value}), size),
    )
