"""Settings of a run, and Experiment, which holds all settings that determine its results."""

from dataclasses import dataclass, field, replace
from typing import Annotated

import tyro

from ersac.config.agent import ActorCritic, BootDQN, Replay
from ersac.config.env import Atari, DeepSea, Environment, Gym, Gymnax, env_name
from ersac.config.fields import Episodes, Range, Seconds, SettingsError, Steps

CHUNK_SECONDS = 2.0  # the longest that a signal should wait
REPLAYED_PER_NEW = 2  # replayed rollouts that take as long as one new one, acting included
DEFAULT_STEPS = 200_000  # of a run in an environment whose episodes vary in length


@dataclass(frozen=True)
class Run:
    """Length of a run, seeds and checkpoints."""

    seeds: Annotated[int, Range(1, 10_000)] = 4
    """Number of seeds, trained in parallel."""
    seed: Annotated[int, Range(0, 2**31 - 1)] = 0
    """First seed; the others follow it (seed + 1, seed + 2, ...)."""
    episodes: Episodes = 100_000
    """Maximum number of episodes per seed."""
    stop_when_solved: bool = True
    """Stop once every seed is solved: the goal reached in 80 of the last 100 episodes."""
    chunk: Annotated[int, Range(1, 100_000)] | None = None
    """Rollouts per compiled call, between which progress and signals are handled; by default 100
    (boot-dqn: 1000), or as many as take about two seconds."""
    checkpoint_seconds: Seconds = 30.0
    """Seconds between checkpoints; more if they would take over 2 % of the time."""
    steps: Steps | None = None
    """Maximum number of environment steps per seed, in whole chunks; by default only episodes are
    limited."""


@dataclass(frozen=True)
class Track:
    """Experiment trackers, which do not change results."""

    tensorboard: bool = False
    """Write TensorBoard event files to the run directory (needs ersac[track])."""
    wandb: bool = False
    """Write Weights & Biases files to the run directory, offline: upload them with `wandb sync`
    (needs ersac[track])."""


UNTRACKED = Track()


@dataclass(frozen=True)
class EvalDuring:
    """Evaluation during training, which does not change results."""

    eval_every: Steps | None = None
    """Evaluate the policy whenever a seed has taken this many more environment steps, and keep the
    best one in best-policy.npz; by default never."""
    eval_episodes: Annotated[int, Range(1, 10**6)] = 20
    """Episodes of each evaluation during training."""


NO_EVALUATION = EvalDuring()


@dataclass(frozen=True)
class Evaluate:
    """How a policy is evaluated."""

    episodes: Annotated[int, Range(1, 10**7)] = 100
    """Episodes to play."""
    sample: bool = False
    """Sample actions from the policy, as in training; otherwise take its mode."""
    eval_seed: Annotated[int, Range(0, 100_000)] = 0
    """Seed of the evaluation episodes, which never coincide with those of training."""


@dataclass(frozen=True)
class Experiment:
    """All settings that determine the results of a run."""

    env: DeepSea | Gymnax | Gym | Atari = field(default_factory=DeepSea)
    agent_name: Annotated[str, tyro.conf.arg(name="agent")] = "ersac"
    agent: ActorCritic | BootDQN = field(default_factory=ActorCritic)
    run: Run = Run()


def default_run(env: Environment) -> Run:
    """The default length of a run in an environment."""
    if env.episode_length is not None:
        return Run()
    return Run(seeds=1, episodes=10**9, steps=DEFAULT_STEPS, stop_when_solved=False)


def budget_option(settings: Experiment) -> str:
    """The option that limits a run: --steps, or --episodes where there is no such limit."""
    return "--episodes" if settings.run.steps is None else "--steps"


def step_budget(settings: Experiment) -> int | None:
    """The environment steps per seed after which a run ends; None if only episodes are limited."""
    length = settings.env.episode_length
    limits = [settings.run.steps, None if length is None else settings.run.episodes * length]
    return min((limit for limit in limits if limit is not None), default=None)


def resolve_schedule(settings: Experiment) -> Experiment:
    """The settings with the steps of a schedule, which are by default the budget of the run."""
    agent = settings.agent
    if not isinstance(agent, ActorCritic) or agent.schedule == "constant" or agent.schedule_steps:
        return settings
    budget = step_budget(settings)
    if budget is None:
        raise SettingsError(f"--schedule {agent.schedule} needs --steps, or --schedule-steps")
    return replace(settings, agent=replace(agent, schedule_steps=float(budget)))


def schedule_note(settings: Experiment) -> str | None:
    """One line where a run goes on after its schedule has reached zero."""
    agent, budget = settings.agent, step_budget(settings)
    if not isinstance(agent, ActorCritic) or agent.schedule == "constant":
        return None
    if budget is not None and budget <= agent.schedule_steps:
        return None
    return (
        f"after {agent.schedule_steps:,.0f} steps nothing more is learned: --schedule "
        f"{agent.schedule} has then reached zero; start a new run with --start to learn on"
    )


def rollouts_per_chunk(settings: Experiment) -> int:
    """Rollouts per compiled call: --chunk, or an estimate that depends on the settings only.

    A resumed run therefore has the same chunks."""
    agent, envs = settings.agent, settings.env.envs
    work = 1.0  # per rollout, relative to acting and one update
    if isinstance(agent, ActorCritic) and isinstance(agent.buffer, Replay):
        work += agent.buffer.batch * agent.buffer.updates / envs / REPLAYED_PER_NEW
    speed = min(agent.STEPS_PER_SECOND, settings.env.STEPS_PER_SECOND)
    rollouts = int(CHUNK_SECONDS * speed / (work * settings.run.seeds * envs * agent.rollout))
    return settings.run.chunk or max(1, min(agent.MAX_CHUNK, rollouts))


def deep_sea_env(settings: Experiment) -> DeepSea:
    """The environment settings of a run on DeepSea."""
    assert settings.env.has_maps, f"{env_name(settings.env)} is not DeepSea"
    return settings.env
