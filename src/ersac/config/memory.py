"""How much memory a run needs, computed from its settings before anything is allocated."""

import bisect
import itertools
import os
from dataclasses import dataclass

from ersac.config.agent import ActorCritic, BootDQN, Ensemble, Posterior, Replay, Rnd
from ersac.config.env import env_name
from ersac.config.fields import SettingsError, leaves, override
from ersac.config.run import Experiment, rollouts_per_chunk


@dataclass(frozen=True)
class EnvSize:
    """How large an environment is, as far as memory goes."""

    states: int  # where observations are discrete, else 0
    observation_bytes: int
    n_actions: int
    numbers: int = 1  # in an observation


def bytes_needed(settings: Experiment, size: EnvSize | None = None) -> int:
    """About what the state of a run and one of its chunks take; the state is once on the host and once on its device when it begins.

    size: of the environment; that of DeepSea is in its settings.
    """
    if size is None:
        assert settings.env.depth is not None
        size = EnvSize(settings.env.depth**2, 4, 2)
    states, n_actions, envs = size.states, size.n_actions, settings.env.envs
    steps = rollouts_per_chunk(settings) * settings.agent.rollout * envs
    match settings.agent:
        case ActorCritic(
            uncertainty=uncertainty, buffer=buffer, hidden=hidden, rollout=length, critic=critic
        ):
            members = uncertainty.members if isinstance(uncertainty, Ensemble | Posterior) else 0
            heads = members * n_actions if isinstance(uncertainty, Ensemble) else 0
            outputs = n_actions + (n_actions if critic == "all-actions" else 1)  # policy, value
            own = (
                3 * hidden[0] + outputs + heads + 1
            )  # the first layer with Adam's moments, the heads' rows, when a row was last touched
            reading = outputs + (
                heads
                if isinstance(uncertainty, Ensemble) and uncertainty.shared_reward_heads
                else 0
            )
            layers = 3 * dense_size(hidden, reading)  # with Adam's moments
            if settings.agent.network == "mlp":  # three networks, moved by plain descent
                wide = (
                    settings.agent.estimator_hidden
                    if isinstance(uncertainty, Ensemble | Rnd)
                    else (0,)
                )
                own = 2 * hidden[0] + wide[0] + 1
                layers = (
                    upper_size(hidden, n_actions)
                    + upper_size(hidden, outputs - n_actions)
                    + upper_size(wide, heads)
                )
            if not states:  # policy, value and heads have layers of their own
                layers *= 3
                layers += 9 * hidden[0] * size.observation_bytes
            observed = -(-size.observation_bytes // 4)
            kept = observed + length * (5 + observed + members)  # of a rollout
            replay, update = (
                (buffer.capacity * (kept + 1), buffer.batch * length * 8 * sum(hidden))
                if isinstance(buffer, Replay)
                else (0, 0)
            )
            drawn = members + 7 + observed
        case BootDQN(
            members=members, hidden=hidden, batch=batch, replay=slots, noise_variance=variance
        ):
            own = (
                4 * members * hidden[0] + 1
            )  # with Adam's moments and what the target lags behind, when a row was last touched
            layers = (
                4 * members * dense_size(hidden, n_actions)
            )  # with Adam's moments and the target's
            if not states:  # the first layer is one of them, and priors are networks too
                layers = 5 * members * (dense_size(hidden, n_actions) + hidden[0] * size.numbers)
            both = 2 * -(-size.observation_bytes // 4)  # of a transition: before it and after
            rewards = 1 if variance is None else members
            replay = slots * (2 + both + rewards) + -(
                -slots * members // 4
            )  # of a mask each bit is a byte
            update = 16 * batch * members * sum(hidden)  # about what a batch passes through
            update += 2 * batch * (envs * both + size.numbers)  # drawn at once, then normalised
            drawn = members + batch + 8
    remembered = (members + 1) * n_actions + 2  # priors, counts, visits, the map of actions
    return (
        settings.run.seeds
        * 4
        * (2 * (states * (own + remembered) + layers + replay) + update + steps * drawn)
    )


def upper_size(hidden: tuple[int, ...], outputs: int) -> int:
    """Weights above the first layer of a network without biases."""
    return sum(n_in * n_out for n_in, n_out in itertools.pairwise((*hidden, outputs)))


def dense_size(hidden: tuple[int, ...], outputs: int) -> int:
    """Weights and biases of layers of those widths, but for the first weights: these are rows."""
    return hidden[0] + sum(
        (n_in + 1) * n_out for n_in, n_out in itertools.pairwise((*hidden, outputs))
    )


def memory_bytes() -> int:
    """What this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(settings: Experiment, size: EnvSize | None = None) -> None:
    """SettingsError where a run cannot fit into this machine."""
    have, need = memory_bytes(), bytes_needed(settings, size)
    if need > have:
        names = {path[-1] for path, _, _ in leaves(settings)}
        fit = (
            (name, largest_fit(settings, name, have, size))
            for name in ("capacity", "replay", "seeds")
            if name in names
        )
        fits = [f"--{name} {most}" for name, most in fit if most]
        smaller = ", ".join(
            f"--{name}"
            for name in ("depth", "envs", "hidden", "members", "batch", "rollout")
            if name in names
        )
        other = f"{fits[0]} would fit" if fits else f"choose a smaller {smaller} or --chunk"
        depth = settings.env.depth
        where = f"of {env_name(settings.env)}" if depth is None else f"at --depth {depth}"
        what = f"--seeds {settings.run.seeds} {where}"
        raise SettingsError(
            f"{what} needs about {need / 1e9:,.0f} GB, and this machine has {have / 1e9:,.0f}; {other}"
        )


def largest_fit(settings: Experiment, name: str, have: int, size: EnvSize | None = None) -> int:
    """The largest value of a setting, up to the one it has, for which a run fits, or 0."""
    now = next(value for path, _, value in leaves(settings) if path[-1] == name)
    return bisect.bisect(
        range(1, now + 1),
        have,
        key=lambda value: bytes_needed(override(settings, **{name: value}), size),
    )
