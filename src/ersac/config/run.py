"""Settings of a run, and Experiment, which holds all settings that determine its results."""

from dataclasses import dataclass, field
from typing import Annotated

import tyro

from ersac.config.agent import ActorCritic, BootDQN, Replay
from ersac.config.env import DeepSea, Environment, Gym, Gymnax, env_name
from ersac.config.fields import Episodes, Range, Seconds

CHUNK_SECONDS = 2.0  # how long a signal may have to wait
LEARNED_AT_ONCE = (
    2  # replayed rollouts that take as long to learn from as one new rollout takes to act and learn
)
DEFAULT_STEPS = 200_000  # of a run in an environment whose episodes vary in length


@dataclass(frozen=True)
class Run:
    """How much is run, and where it goes."""

    seeds: Annotated[int, Range(1, 10_000)] = 4
    """How many seeds are trained side by side."""
    seed: Annotated[int, Range(0, 2**31 - 1)] = 0
    """The first seed; the others follow it."""
    episodes: Episodes = 100_000
    """Episodes of each seed, at most."""
    stop_when_solved: bool = True
    """Stop early once every seed is solved (reliable: 80 of the last 100 episodes)."""
    chunk: Annotated[int, Range(1, 100_000)] | None = None
    """Rollouts in one compiled call, between two of which progress is shown and signals are heard; by default 100, of boot-dqn
    1000, or as many as fit into two seconds."""
    checkpoint_seconds: Seconds = 30.0
    """Seconds between checkpoints; more where that would cost over 2 % of the time."""
    steps: Annotated[int, Range(1, 10**12)] | None = None
    """Steps of each seed, after which episodes do not count and the run ends with its chunk; by default only episodes are counted."""


@dataclass(frozen=True)
class Track:
    """Who else is told how a run goes; decides none of its numbers."""

    tensorboard: bool = False
    """Leave TensorBoard event files in the run's directory (needs ersac[track])."""
    wandb: bool = False
    """Leave Weights & Biases files in the run's directory, offline; `wandb sync` uploads them, nothing else does (needs ersac[track])."""


UNTRACKED = Track()


@dataclass(frozen=True)
class Evaluate:
    """How what was trained is judged."""

    episodes: Annotated[int, Range(1, 10**7)] = 100
    """Episodes that are played, each to its end."""
    sample: bool = False
    """Draw actions from the policy, as in training; else the best one is taken."""
    eval_seed: Annotated[int, Range(0, 100_000)] = 0
    """Which episodes: another number gives others, and none gives those of training."""


@dataclass(frozen=True)
class Experiment:
    """Everything that decides a run's numbers."""

    env: DeepSea | Gymnax | Gym = field(default_factory=DeepSea)
    agent_name: Annotated[str, tyro.conf.arg(name="agent")] = "ersac"
    agent: ActorCritic | BootDQN = field(default_factory=ActorCritic)
    run: Run = Run()


def default_run(env: Environment) -> Run:
    """How much is run where nothing was said."""
    if env.episode_length is not None:
        return Run()
    return Run(seeds=1, episodes=10**9, steps=DEFAULT_STEPS, stop_when_solved=False)


def rollouts_per_chunk(settings: Experiment) -> int:
    """Rollouts in one compiled call: as set, or else an estimate from the settings alone, so that a resumed run is cut the same way."""
    agent, envs = settings.agent, settings.env.envs
    buffer = agent.buffer if isinstance(agent, ActorCritic) else None
    learned = (
        1 + buffer.batch * buffer.updates / envs / LEARNED_AT_ONCE
        if isinstance(buffer, Replay)
        else 1
    )  # against one update a rollout
    pace = min(agent.STEPS_PER_SECOND, settings.env.STEPS_PER_SECOND)
    fits = int(CHUNK_SECONDS * pace / (learned * settings.run.seeds * envs * agent.rollout))
    return settings.run.chunk or max(1, min(agent.MAX_CHUNK, fits))


def deep_sea_env(settings: Experiment) -> DeepSea:
    """The sea of a run that is on one."""
    assert settings.env.has_maps, f"{env_name(settings.env)} is no sea"
    return settings.env
