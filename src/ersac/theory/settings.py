"""Settings of `ersac theory`: frozen dataclasses, parsed and checked before jax is imported."""

from dataclasses import dataclass, field
from typing import Annotated

from ersac.config import Count, Fraction, NonNegative, Positive, Range

TABULAR_AGENTS = (
    "k-learning",
    "saddle",
    "monotone",
    "vapor",
    "vapor-lite",
    "vbos",
    "psrl",
    "ucbvi",
    "optimism",
    "epsilon-greedy",
)

Seed = Annotated[int, Range(0, 2**31 - 1)]


@dataclass(frozen=True)
class Learners:
    """Hyperparameters of the tabular agents."""

    sigma_scale: Positive = 0.7
    """k-learning, saddle, monotone, vapor, vbos: sigma as a multiple of the posterior standard
    deviation of one step."""
    gradient_steps: Count = 5
    """saddle: gradient ascent-descent steps per episode."""
    learning_rate: Positive = 0.1
    """saddle: learning rate of Adam for theta and log tau."""
    lite_scale: NonNegative = 1.0
    """vapor-lite: multiple of sigma that is added to every reward."""
    lite_entropy: Positive = 0.3
    """vapor-lite: weight of an action's entropy, as a multiple of its sigma."""
    ucb_scale: NonNegative = 0.05
    """ucbvi: multiple of the Hoeffding bonus; the 7 of its paper is too large for short runs."""
    mu: NonNegative = 2.0
    """optimism: multiple of sigma that is added to every reward."""
    epsilon: Fraction = 0.1
    """epsilon-greedy: probability of a uniformly random action."""


@dataclass(frozen=True)
class TheoryDeepSea:
    """Run a tabular agent on DeepSea."""

    depth: Annotated[int, Range(1, 1000)] = 20
    """Rows and columns of the grid; an episode has this many steps."""
    agent: str = "k-learning"
    """The agent: k-learning, saddle, monotone, vapor, vapor-lite, vbos, psrl, ucbvi, optimism or
    epsilon-greedy."""
    seeds: Annotated[int, Range(1, 10_000)] = 5
    """Number of seeds, run in parallel; every seed has its own action mapping."""
    seed: Seed = 0
    """The first seed; the others are consecutive."""
    episodes: Count = 3000
    """Episodes per seed; the run stops early once every seed is solved by both rules."""
    sigma: Positive = 0.1
    """Prior standard deviation of every mean reward."""
    noise: NonNegative = 0.0
    """Reward noise (standard deviation) that the agent assumes; with 0 one visit is enough."""
    known_transitions: bool = True
    """Give the agent the transitions; otherwise it knows that moves go one column left or right."""
    learners: Learners = field(
        default_factory=lambda: Learners(sigma_scale=1.0, gradient_steps=20, ucb_scale=0.001)
    )
    """Hyperparameters of the agents."""


@dataclass(frozen=True)
class TheoryRegret:
    """Print and draw regret against its bound, the decomposition, tau*, and DeepSea by depth."""

    horizon: Annotated[int, Range(1, 100)] = 4
    """Layers of the random MDPs."""
    states: Annotated[int, Range(1, 100)] = 3
    """States per layer."""
    actions: Annotated[int, Range(2, 100)] = 3
    """Actions per state."""
    reward_std: Positive = 0.5
    """Prior standard deviation of every mean reward; at 0.5, 95 % satisfy |r| <= 1."""
    noise_std: Positive = 0.5
    """Standard deviation of a reward around its mean."""
    draws: Annotated[int, Range(2)] = 64
    """Number of MDPs sampled from the prior, the same for every agent."""
    episodes: Annotated[int, Range(10)] = 2000
    """Episodes on every MDP."""
    seed: Seed = 1000
    """The first seed; hyperparameters were tuned on seeds 0 to 99."""
    depths: tuple[Annotated[int, Range(1, 1000)], ...] = (5, 10, 15, 20, 30, 40, 60)
    """Depths of DeepSea at which k-learning is run."""
    deep_sea_seeds: Annotated[int, Range(1)] = 10
    """Seeds per depth."""
    learners: Learners = field(default_factory=Learners)
    """Hyperparameters of the agents."""


@dataclass(frozen=True)
class TheoryGames:
    """Print and draw regret in matrix games with bandit feedback and in a constrained bandit."""

    rounds: Annotated[int, Range(20)] = 1000
    """Rounds of every game."""
    seeds: Annotated[int, Range(2)] = 20
    """Number of seeds."""
    seed: Seed = 1000
    """The first seed; the others are consecutive."""
    noise_std: Positive = 1.0
    """Standard deviation of an observed payoff around its mean."""
    samples: Count = 32
    """thompson: matrices sampled per round; the policy is their mean maximin strategy."""
    self_play: bool = True
    """Also let every strategy play against itself."""
