"""Settings of `ersac theory`: frozen dataclasses, parsed and checked before jax is imported."""

from dataclasses import dataclass, field
from typing import Annotated

from ersac.config import Count, NonNegative, Positive, Range, Unit

AGENTS = ("k-learning", "saddle", "psrl", "ucbvi", "optimism", "epsilon-greedy")

Seed = Annotated[int, Range(0, 2**31 - 1)]


@dataclass(frozen=True)
class Learners:
    """How the tabular agents are set; every agent reads only its own."""

    sigma_scale: Positive = 0.7
    """k-learning, saddle: multiple of the posterior standard deviation of one step that is taken for sigma (docs/theory.md)."""
    gradient_steps: Count = 5
    """saddle: steps of gradient ascent-descent in every episode."""
    learning_rate: Positive = 0.1
    """saddle: Adam step of theta and log tau."""
    ucb_scale: NonNegative = 0.05
    """ucbvi: multiple of the Hoeffding bonus; 7 in its paper, which is far too much for a few thousand episodes."""
    mu: NonNegative = 2.0
    """optimism: multiple of sigma that is added to every reward."""
    epsilon: Unit = 0.1
    """epsilon-greedy: probability of a blind action."""


@dataclass(frozen=True)
class TheoryDeepSea:
    """Let a tabular agent dive."""

    depth: Annotated[int, Range(1, 1000)] = 20
    """Rows and columns of the grid; an episode has this many steps."""
    agent: str = "k-learning"
    """The agent: k-learning, saddle, psrl, ucbvi, optimism or epsilon-greedy."""
    seeds: Annotated[int, Range(1, 10_000)] = 5
    """How many seeds run side by side; each has its own map of actions."""
    seed: Seed = 0
    """The first seed; the others follow it."""
    episodes: Count = 3000
    """Episodes a seed; it stops early where every seed is solved by both rules."""
    sigma: Positive = 0.1
    """Prior standard deviation of every mean reward."""
    noise: NonNegative = 0.0
    """Standard deviation of the noise that the agent believes in; zero says that one visit is enough, as it is in this sea."""
    known_transitions: bool = True
    """Tell the agent where moves lead; otherwise it knows only that a move goes one column left or right."""
    learners: Learners = field(
        default_factory=lambda: Learners(sigma_scale=1.0, gradient_steps=20, ucb_scale=0.001)
    )
    """The agents' own settings."""


@dataclass(frozen=True)
class TheoryRegret:
    """Print and draw all of it: regret against the bound, its decomposition, tau*, and DeepSea against depth."""

    horizon: Annotated[int, Range(1, 100)] = 4
    """Layers of the random MDPs."""
    states: Annotated[int, Range(1, 100)] = 3
    """States of every layer."""
    actions: Annotated[int, Range(2, 100)] = 3
    """Actions of every state."""
    reward_std: Positive = 0.5
    """Prior standard deviation of every mean reward; at 0.5, 95 in 100 satisfy the theory's |r| <= 1."""
    noise_std: Positive = 0.5
    """Standard deviation of one reward about its mean."""
    draws: Annotated[int, Range(2)] = 64
    """MDPs drawn from the prior, the same ones for every agent."""
    episodes: Annotated[int, Range(10)] = 2000
    """Episodes on every one."""
    seed: Seed = 1000
    """The first seed; settings were tuned on seeds 0 to 99."""
    depths: tuple[Annotated[int, Range(1, 1000)], ...] = (5, 10, 15, 20, 30, 40, 60)
    """Depths of DeepSea at which k-learning's episodes are counted."""
    deep_sea_seeds: Annotated[int, Range(1)] = 10
    """Seeds at every depth."""
    learners: Learners = field(default_factory=Learners)
    """The agents' own settings."""
