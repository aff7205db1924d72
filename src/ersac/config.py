"""Settings: frozen dataclasses, checked before jax is imported.

Numbers of type float are traced, so a sweep over them compiles once; everything else is static. Every setting has one name,
which is its option on the command line and its keyword in Python.
"""

import bisect
import dataclasses
import difflib
import functools
import itertools
import math
import numbers
import os
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import tyro


class SettingsError(ValueError):
    """A setting that cannot be used; its text is one line that says what to change."""


@dataclass(frozen=True)
class Range:
    """The values a number may take, ends included unless `above`."""

    low: float
    high: float = math.inf
    above: bool = False  # low itself is excluded

    def __contains__(self, value: float) -> bool:
        """Whether a number is inside; NaN and infinity never are. A whole number may be too long for a float: it is only compared."""
        return (
            (self.low < value if self.above else self.low <= value)
            and value <= self.high
            and value < math.inf
        )

    def __str__(self) -> str:
        """As it reads after 'must be'."""
        if self.above and self.high < math.inf:
            return f"above {self.low:.10g} and at most {self.high:.10g}"
        if self.high < math.inf:
            return f"between {self.low:.10g} and {self.high:.10g}"
        return f"above {self.low:.10g}" if self.above else f"at least {self.low:.10g}"


@dataclass(frozen=True)
class Callables:
    """Something from Python that has functions of these names."""

    what: str
    names: tuple[str, ...]

    def __contains__(self, value: Any) -> bool:
        """Whether a thing has them."""
        return all(callable(getattr(value, name, None)) for name in self.names)


class NotStored(str):
    """What is left of something from Python once its settings were written: its text."""


Count = Annotated[int, Range(1)]
Episodes = Annotated[int, Range(1, 10**9)]
Seconds = Annotated[float, Range(0, 1e9)]
Positive = Annotated[float, Range(0, above=True)]
NonNegative = Annotated[float, Range(0)]
Unit = Annotated[float, Range(0, 1)]
Decay = Annotated[float, Range(0, 0.999999)]
# Far beyond what is sensible, yet no product of them in a first update leaves single precision: tests/reliability/test_fuzz.py runs them.
Tau = Annotated[float, Range(1e-5, 1e3)]
Alpha = Annotated[float, Range(1e-5, 1e3)]
Scale = Annotated[float, Range(0, 10)]
Weight = Annotated[float, Range(0, 10)]
Mu = Annotated[float, Range(0, 100)]
Rate = Annotated[float, Range(0, 1)]


@dataclass(frozen=True)
class Normalise:
    """In whose units the learner sees an environment: the environment's, or those of what was seen so far."""

    normalise: bool = True
    """Observations less their running mean, over their running standard deviation; images of bytes are divided by 255 in any case."""
    scale_rewards: bool = True
    """Rewards over the largest discounted return so far, so that returns are at most about one."""


NO_NORMALISATION = Normalise(normalise=False, scale_rewards=False)


# Traits of an environment are class attributes and properties, so they are no settings.
# mypy tells the three classes apart by those that are Literal or None.
@dataclass(frozen=True)
class DeepSea:
    """DeepSea, exactly as bsuite has it."""

    STEPS_PER_SECOND: ClassVar = math.inf  # the learner decides
    id: ClassVar = ""  # there is one only
    envs: ClassVar = 1
    seen: ClassVar = NO_NORMALISATION
    on_host: ClassVar[Literal[False]] = False  # it runs on the device, inside the compiled loop
    has_maps: ClassVar[Literal[True]] = True  # a value for each cell of a grid can be drawn
    reports_returns: ClassVar = False  # whether the goal was reached says all

    depth: Annotated[int, Range(1, 1000)] = 20
    """Rows and columns of the grid; an episode has this many steps."""
    stochastic: bool = False
    """Right moves slip with probability 1 / depth, and the two end cells of the last row pay noise."""
    mapping_seed: Annotated[int, Range(0, 2**32 - 1)] | None = None
    """Seed of the map from actions to left and right; by default each run's own seed (bsuite's sweep uses 42)."""

    @property
    def episode_length(self) -> int:
        """Steps of every episode."""
        return self.depth


@dataclass(frozen=True)
class Gymnax:
    """An environment of gymnax, on the device."""

    STEPS_PER_SECOND: ClassVar = 5_000  # what any machine can be trusted with
    on_host: ClassVar[Literal[False]] = False
    has_maps: ClassVar[Literal[False]] = False
    reports_returns: ClassVar = True
    episode_length: ClassVar[None] = None  # it varies
    depth: ClassVar[None] = None
    stochastic: ClassVar = False  # as DeepSea means it: bsuite has another rule for solved then

    id: Annotated[str, tyro.conf.Suppress] = "CartPole-v1"
    envs: Annotated[int, Range(1, 65_536)] = 16
    """Copies of it that are acted in side by side."""
    target: float | None = None
    """The return from which on an episode counts as one that reached its goal."""
    seen: Normalise = Normalise()


@dataclass(frozen=True)
class Gym:
    """An environment of Gymnasium, on the host."""

    STEPS_PER_SECOND: ClassVar = 1_000
    on_host: ClassVar[Literal[True]] = True
    has_maps: ClassVar[Literal[False]] = False
    reports_returns: ClassVar = True
    episode_length: ClassVar[None] = None
    depth: ClassVar[None] = None
    stochastic: ClassVar = False

    id: Annotated[str, tyro.conf.Suppress] = "CartPole-v1"
    envs: Annotated[int, Range(1, 4_096)] = 16
    """Copies of it that are acted in side by side."""
    workers: Annotated[int, Range(0, 1_024)] = 0
    """Processes that step them; 0: this one does. Worth it where a step takes over a millisecond."""
    target: float | None = None
    """The return from which on an episode counts as one that reached its goal; by default the environment's own threshold, if any."""
    make: Annotated[
        Any, Callables("a function that makes one", ("__call__",)), tyro.conf.Suppress
    ] = None
    """What makes one, from Python only; by default Gymnasium, by its id."""
    frames: Annotated[int, Range(1, 64)] = 1
    """Observations that are stacked to one, the last ones."""
    lockstep: bool = False
    """Act and learn in turn, exactly reproducibly; else side by side."""
    max_staleness: Annotated[int, Range(1, 1_000)] = 1
    """Side by side, how many rollouts the parameters that act may be behind those that learn; acting waits for more."""
    seen: Normalise = Normalise()


Environment = DeepSea | Gymnax | Gym


@dataclass(frozen=True)
class Seeking:
    """Epistemic risk-seeking: bonus sigma2 / (2 tau), entropy weight tau."""

    tau0: Tau = 0.1
    """Risk parameter at the start."""
    tau_learning_rate: Rate = 4e-2
    """Adam step of log tau, the game's second player."""
    tau_min: Tau = 1e-3
    """Tau is played down to this. Where all that is visited is known it would go to zero, and the policy would freeze as it is."""
    learn_tau: bool = True
    """Play tau; without it tau stays at tau0."""


@dataclass(frozen=True)
class Neutral:
    """Risk-neutral: no bonus, a fixed entropy weight."""

    alpha: Alpha = 0.01
    """Entropy weight."""


@dataclass(frozen=True)
class Optimist:
    """Simple optimism: bonus mu sigma, a fixed entropy weight."""

    mu: Mu = 3.0
    """Weight of sigma in the reward."""
    alpha: Alpha = 0.01
    """Entropy weight."""


@dataclass(frozen=True)
class Ensemble:
    """Reward heads with randomised priors; sigma2 is their variance."""

    members: Annotated[int, Range(2, 1000)] = 10
    """Reward heads."""
    prior_scale: Scale = 0.05
    """Standard deviation of a member's prior at a state it has never seen."""
    sigma_scale: Scale = 1.0
    """Factor on sigma."""
    reward_rate: Unit = 0.05
    """Share of its error that a member corrects at each visit."""
    shared_reward_heads: bool = False
    """Members also read, and train, the layers of policy and critic: the paper's auxiliary task. Else each is a table beside its prior."""
    noise_variance: Annotated[float, Range(0, 100)] | None = None
    """Variance of the noise stored with each step and added to the members' reward targets; none on-policy."""


@dataclass(frozen=True)
class Posterior:
    """Members that are samples of the Gaussian posterior, in closed form; sigma2 is their variance."""

    members: Annotated[int, Range(2, 1000)] = 10
    """Samples."""
    prior_scale: Scale = 0.1
    """Standard deviation of a member at a pair that was never tried."""
    noise_variance: Annotated[float, Range(0, 100)] = 1e-5
    """Variance of the noise that goes with each step: what one visit tells is worth its inverse."""
    sigma_scale: Scale = 1.0
    """Factor on sigma."""


@dataclass(frozen=True)
class Counts:
    """Visit counts; sigma2 is sigma_scale^2 / n(s, a)."""

    sigma_scale: Scale = 0.1
    """Sigma of a pair tried once."""


@dataclass(frozen=True)
class Rnd:
    """Random network distillation; sigma2 is the error on a fixed random network."""

    outputs: Annotated[int, Range(1, 4_096)] = 16
    """Random targets of each action."""
    predictor_rate: Unit = 0.3
    """Share of its error that the predictor corrects at each visit."""
    sigma_scale: Scale = 0.015
    """Sigma of what was never seen."""


@dataclass(frozen=True)
class HashedCounts:
    """Visit counts of vectors by the signs of random projections; sigma2 is sigma_scale^2 / (1 + n(code, a))."""

    bits: Annotated[int, Range(1, 22)] = 16
    """Random projections, whose signs are an observation's code."""
    sigma_scale: Scale = 0.015
    """Sigma of a code that was never tried."""


@dataclass(frozen=True)
class BayesianLinear:
    """Bayesian linear regression of the reward on random features of vectors; sigma2 is its posterior variance."""

    features: Annotated[int, Range(1, 4_096)] = 256
    """Random features."""
    prior_scale: Scale = 0.05
    """Prior standard deviation of the reward at every observation."""
    noise_variance: Annotated[float, Range(0, 100)] = 2.5e-4
    """Variance of the reward's noise: what one visit tells is worth its inverse."""
    sigma_scale: Scale = 0.3
    """Factor on sigma."""


@dataclass(frozen=True)
class CustomEstimator:
    """An estimator of your own, from Python: see docs/your-estimator.md."""

    name: Annotated[str, tyro.conf.Suppress] = ""
    estimator: Annotated[
        Any, Callables("a function that makes one", ("__call__",)), tyro.conf.Suppress
    ] = None
    """The environment's specification and how many actions it counts -> ersac.uncertainty.base.Uncertainty."""


Estimator = Ensemble | Posterior | Counts | HashedCounts | BayesianLinear | Rnd | CustomEstimator


@dataclass(frozen=True)
class OnPolicy:
    """On-policy: every rollout is learned from when it is new, and not kept."""

    passes: Annotated[int, Range(1, 1000)] = 1
    """Passes over the new rollouts of all environments."""
    minibatch: Annotated[int, Range(1, 65_536)] | None = None
    """Rollouts in an update, at most; by default those of all environments."""


@dataclass(frozen=True)
class Replay:
    """Whole rollouts are kept with their noise, and drawn again by priority."""

    capacity: Annotated[int, Range(1, 10**7)] = 10_000
    """Rollouts that are kept; a new one takes the place of the oldest."""
    batch: Annotated[int, Range(1, 65_536)] = 16
    """Rollouts in an update."""
    updates: Annotated[int, Range(1, 10_000)] = 2
    """Updates after each rollout."""
    offline_fraction: Unit = 0.97
    """Share of the rollouts learned from that are drawn from those kept; the others are the newest one."""
    priority_exponent: Weight = 1.0
    """Rollouts are drawn in proportion to their mean absolute error to this power."""


@dataclass(frozen=True)
class ActorCritic:
    """The actor-critic learner: what a rollout is, and how it is learned from."""

    METRICS: ClassVar = (
        "tau",
        "entropy",
        "sigma2",
    )  # what it says of itself that is kept and shown
    STEPS_PER_SECOND: ClassVar = (
        50_000  # of all seeds together: what any machine can be trusted with
    )
    CHUNK_MOST: ClassVar = 100  # rollouts that are plenty for a compiled call

    risk: Seeking | Neutral | Optimist = Seeking()
    uncertainty: (
        Ensemble | Posterior | Counts | HashedCounts | BayesianLinear | Rnd | CustomEstimator
    ) = Ensemble()
    buffer: OnPolicy | Replay = OnPolicy()
    first_visit: bool = False
    """Count sigma only where an observation is met for the first time in its episode, as far as the rollout shows it: for layouts that are
    new in every episode. Takes longer rollouts."""
    critic: Literal["sampled", "expected-bonus", "all-actions"] = "sampled"
    """What estimates K: sampled, Algorithm 1's, from the action taken; expected-bonus, the same with the mean bonus over actions;
    all-actions, K of every action, with which the policy follows the natural gradient."""
    rollout: Annotated[int, Range(1, 10_000)] = 50
    """Steps between updates."""
    gamma: Unit = 0.998
    """Discount."""
    lam: Annotated[Unit, tyro.conf.arg(name="lambda")] = 0.8
    """TD(lambda) and V-trace mixing."""
    network: Literal["mlp", "table"] = "table"
    """mlp: policy, value and uncertainty each have a network, whose first layer is looked up where observations are integers; images have
    filters. table: every integer observation has a row of its own in every head; arrays have networks that Adam trains."""
    hidden: tuple[Annotated[int, Range(1, 65_536)], ...] = (64, 64)
    """Widths of the layers; the first is looked up where observations are integers."""
    estimator_hidden: tuple[Annotated[int, Range(1, 65_536)], ...] = (256,)
    """Widths of the layers of the uncertainty's network."""
    upper_percent: Annotated[int, Range(1, 99)] = 10
    """Percent of a correction that is made above the first layer, by what observations share. A whole number, which is static: who only
    acts knows it without being told the numbers."""
    torso: Annotated[Any, Callables("a flax module", ("init", "apply")), tyro.conf.Suppress] = None
    """A flax module instead of those layers, from Python only."""
    learning_rate: Rate = 5e-4
    """Adam step of what states share: the layers and the rows of the first one."""
    b1: Decay = 0.9
    """Adam's first decay."""
    b2: Decay = 0.999
    """Adam's second decay."""
    policy_rate: Annotated[float, Range(0, 100)] = 0.06
    """Step per visit of a state's logits, in units of the advantage over its scale."""
    value_rate: Unit = 0.15
    """Share of its error that a state's value corrects at each visit."""
    advantage_limit: Annotated[float, Range(0, 1e9, above=True)] = 10.0
    """Advantages are clipped at this many entropy weights, or spreads."""
    normalise_advantages: bool = False
    """Divide advantages by a share of their root mean square wherever that is above the entropy weight, before they are clipped."""
    spread_share: Annotated[float, Range(0, 1)] = 1.0
    """With --normalise-advantages, the least scale of advantages as a share of their root mean square."""
    spread_decay: Decay = 0.0
    """With --normalise-advantages, the decay of a running mean square; the scale follows the larger of it and the batch's."""
    credit_early_ends: bool = False
    """An episode that terminates early is credited the mean bonus and entropy of the steps that it forgoes, up to the longest episode so
    far. Else a goal that ends an episode forfeits them, which may be worth more than the goal."""
    max_logit_gap: Annotated[int, Range(1, 1000)] | None = None
    """The largest difference between two logits of a state, so that no probability vanishes; by default unlimited."""
    value_weight: Weight = 0.5
    """Weight of the critic's gradient in the shared layers."""
    reward_weight: Weight = 1.0
    """Weight of the reward heads' gradient in the shared layers, where heads share them."""


@dataclass(frozen=True)
class BootDQN:
    """Bootstrapped DQN with randomised priors, with the settings of bsuite and ten members."""

    METRICS: ClassVar = ("value", "loss", "sigma2")
    STEPS_PER_SECOND: ClassVar = 500
    CHUNK_MOST: ClassVar = 1000

    members: Annotated[int, Range(2, 1000)] = 10
    """Q-networks; one of them acts through an episode."""
    rollout: Annotated[int, Range(1, 10_000)] = 1
    """Steps between updates, of which there are then as many as environments."""
    gamma: Unit = 0.99
    """Discount."""
    hidden: tuple[Annotated[int, Range(1, 65_536)], ...] = (50, 50)
    """Widths of each member's layers; the first is a table of rows where observations are integers."""
    learning_rate: Rate = 1e-3
    """Adam step."""
    b1: Decay = 0.9
    """Adam's first decay."""
    b2: Decay = 0.999
    """Adam's second decay."""
    batch: Annotated[int, Range(1, 65_536)] = 128
    """Transitions drawn from the replay for each update."""
    replay: Annotated[int, Range(1, 10**7)] = 10_000
    """Transitions that are remembered; a new one takes the place of the oldest."""
    least_replay: Annotated[int, Range(1, 10**7)] = 128
    """Transitions before the first update."""
    target_period: Annotated[int, Range(1, 10**6)] = 4
    """Updates between refreshes of the target nets."""
    mask_share: Unit = 0.5
    """Probability that a member learns from a transition at all."""
    prior_scale: Scale = 3.0
    """Factor on the priors, which are networks like those that are trained."""
    noise_variance: Annotated[float, Range(0, 100)] | None = None
    """Variance of the noise stored with each transition and added to the members' rewards, in the
    environment's units; none in bsuite."""


SHOWN = 100  # characters of a value that could not be used
CHUNK_SECONDS = 2.0  # how long a signal may have to wait
LEARNED_AT_ONCE = (
    2  # rollouts of a batch that take as long to learn from as one that is acted and learned from
)
ENVIRONMENTS: dict[str, type[Environment]] = {"deep-sea": DeepSea, "gymnax": Gymnax, "gym": Gym}
UNCERTAINTIES: dict[str, type[Estimator]] = {
    "ensemble": Ensemble,
    "posterior": Posterior,
    "counts": Counts,
    "hashed": HashedCounts,
    "linear": BayesianLinear,
    "rnd": Rnd,
}


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

    env: DeepSea | Gymnax | Gym = DeepSea()
    agent: str = "ersac"
    learner: ActorCritic | BootDQN = ActorCritic()
    run: Run = Run()


STEPS = 200_000  # of a run whose environment has no budget of its own


def default_run(env: Environment) -> Run:
    """How much is run where nothing was said."""
    if env.episode_length is not None:
        return Run()
    return Run(seeds=1, episodes=10**9, steps=STEPS, stop_when_solved=False)


def rollouts_per_chunk(settings: Experiment) -> int:
    """Rollouts in one compiled call: as set, or else an estimate from the settings alone, so that a resumed run is cut the same way."""
    learner, envs = settings.learner, settings.env.envs
    buffer = learner.buffer if isinstance(learner, ActorCritic) else None
    learned = (
        1 + buffer.batch * buffer.updates / envs / LEARNED_AT_ONCE
        if isinstance(buffer, Replay)
        else 1
    )  # against one update a rollout
    pace = min(learner.STEPS_PER_SECOND, settings.env.STEPS_PER_SECOND)
    fits = int(CHUNK_SECONDS * pace / (learned * settings.run.seeds * envs * learner.rollout))
    return settings.run.chunk or max(1, min(learner.CHUNK_MOST, fits))


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
    steps = rollouts_per_chunk(settings) * settings.learner.rollout * envs
    match settings.learner:
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
            if settings.learner.network == "mlp":  # three networks, moved by plain descent
                wide = (
                    settings.learner.estimator_hidden
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
            (name, largest(settings, name, have, size))
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
        where = f"of {named(settings.env)}" if depth is None else f"at --depth {depth}"
        what = f"--seeds {settings.run.seeds} {where}"
        raise SettingsError(
            f"{what} needs about {need / 1e9:,.0f} GB, and this machine has {have / 1e9:,.0f}; {other}"
        )


def largest(settings: Experiment, name: str, have: int, size: EnvSize | None = None) -> int:
    """The largest value of a setting, up to the one it has, for which a run fits, or 0."""
    now = next(value for path, _, value in leaves(settings) if path[-1] == name)
    return bisect.bisect(
        range(1, now + 1),
        have,
        key=lambda value: bytes_needed(override(settings, **{name: value}), size),
    )


def named(env: Environment) -> str:
    """An environment as it is named on the command line."""
    kind = next(name for name, kind in ENVIRONMENTS.items() if type(env) is kind)
    return f"{kind}:{env.id}" if env.id else kind


def sea(settings: Experiment) -> DeepSea:
    """The sea of a run that is on one."""
    assert settings.env.has_maps, f"{named(settings.env)} is no sea"
    return settings.env


def environment(word: str) -> Environment:
    """The environment of that name, `deep-sea`, `gymnax:ID` or `gym:ID`, with its defaults."""
    kind, _, name = word.partition(":") if isinstance(word, str) else (word, "", "")
    found = pick("environment", kind, ENVIRONMENTS)
    if not found.id:
        if name:
            raise SettingsError(f"unknown environment {shown(word)}; did you mean {kind}?")
        return found()
    if not name:
        raise SettingsError(f"which one? {kind}:ID, for example {kind}:{found.id}")
    return override(found(), id=name)


T = TypeVar("T")


def nearest(word: str, known: Iterable[str]) -> str:
    """'; did you mean ersac?' where something close is known, else all that is."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"


def pick(kind: str, word: str, known: dict[str, T]) -> T:
    """Look a name up, or say which name was probably meant."""
    if not isinstance(word, str) or word not in known:
        raise SettingsError(
            f"unknown {kind} {shown(word)}{nearest(word if isinstance(word, str) else '', known)}"
        )
    return known[word]


def shown(value: Any) -> str:
    """Any value at all in one short line."""
    try:
        text = " ".join(repr(value).split())
    except (
        Exception
    ):  # of somebody else's making, or a whole number with more digits than Python writes
        text = f"a {type(value).__name__} that cannot be written down"
    return cut(text)


def cut(text: str) -> str:
    """A text, or its beginning where it is long."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def leaves(
    settings: Any, prefix: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Every setting below a dataclass as (path, annotated type, value)."""
    kind: Any = type(settings)
    hints = _hints(kind)
    for field in dataclasses.fields(settings):
        hint, value = hints[field.name], getattr(settings, field.name)
        if any(
            isinstance(kind, type) and dataclasses.is_dataclass(kind)
            for kind in (hint, *typing.get_args(hint))
        ):
            yield from leaves(value, (*prefix, field.name))
        else:
            yield (*prefix, field.name), hint, value


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def replace_at(settings: Any, path: tuple[str, ...], value: Any) -> Any:
    """A copy of nested settings with one leaf changed."""
    head, *rest = path
    value = replace_at(getattr(settings, head), tuple(rest), value) if rest else value
    return dataclasses.replace(settings, **{head: value})


def override(settings: T, **changes: Any) -> T:
    """A copy with settings changed by name, wherever they are nested; an unknown name is an error that names the nearest."""
    paths = {path[-1]: path for path, _, _ in leaves(settings)}
    for name, value in changes.items():
        settings = replace_at(settings, pick("setting", name, paths), value)
    return settings


def floats(settings: Any) -> dict[str, float]:
    """The numbers that are traced: every float by its dotted path."""
    return {
        ".".join(path): value for path, _, value in leaves(settings) if isinstance(value, float)
    }


def with_floats(settings: T, values: dict[str, Any]) -> T:
    """The settings with those numbers put back, be they tracers."""
    for name, value in values.items():
        settings = replace_at(settings, tuple(name.split(".")), value)
    return settings


def static(settings: T) -> T:
    """What is left when the traced numbers are taken out: hashable, the same for all that share a compiled program."""
    return with_floats(settings, dict.fromkeys(floats(settings), 0.0))


def check(settings: T) -> T:
    """The settings with their numbers converted, or a SettingsError that names the field, what it takes and the value."""
    for path, hint, value in leaves(settings):
        try:
            settings = replace_at(settings, path, _converted(hint, value))
        except (ValueError, OverflowError):
            raise SettingsError(
                f"{option(path[-1], hint)} must be {expected(hint)}, not {shown(value)}"
            ) from None
    return settings


def option(name: str, hint: Any = None) -> str:
    """The name of a setting on the command line."""
    for extra in getattr(hint, "__metadata__", ()):
        name = getattr(extra, "name", None) or name
    return "--" + name.replace("_", "-")


def expected(hint: Any) -> str:
    """What a setting takes, as it reads after 'must be'."""
    match typing.get_origin(hint), typing.get_args(hint):
        case origin, words if origin is Literal:
            return " or ".join(words)
        case types.UnionType | typing.Union, kinds:
            return " or ".join("none" if kind is type(None) else expected(kind) for kind in kinds)
        case origin, (kind, *_) if origin is tuple:
            return f"one or more of: {expected(kind)}"
        case origin, (_, Callables(what), *_) if origin is Annotated:
            return f"{what} or none"
        case origin, (kind, *extras) if origin is Annotated:
            return " ".join(
                [expected(kind), *(str(extra) for extra in extras if isinstance(extra, Range))]
            )
    return {int: "a whole number", float: "a number", bool: "True or False"}.get(hint, "text")


def _converted(hint: Any, value: Any) -> Any:
    """The value as the type asks for it; ValueError where it does not fit."""
    if hint is Any:
        return value
    match typing.get_origin(hint), typing.get_args(hint):
        case origin, words if origin is Literal:
            if not isinstance(value, str) or value not in words:
                raise ValueError(value)
            return value
        case types.UnionType | typing.Union, kinds:
            return (
                None
                if value is None
                else _converted(next(kind for kind in kinds if kind is not type(None)), value)
            )
        case origin, (kind, *_) if origin is tuple:
            items = value.tolist() if hasattr(value, "tolist") else value
            if (
                not isinstance(items, list | tuple | range) or not items
            ):  # others have no order, or no end, or are text
                raise ValueError(value)
            return tuple(_converted(kind, item) for item in items)
        case origin, (kind, *extras) if origin is Annotated:
            value = _converted(kind, value)
            given = value is not None and not isinstance(value, NotStored)
            if any(
                (isinstance(extra, Range) and value not in extra)
                or (isinstance(extra, Callables) and given and value not in extra)
                for extra in extras
            ):
                raise ValueError(value)
            return value
    if hint is bool or isinstance(value, bool):
        fits = hint is bool and isinstance(value, bool)
    elif hint in (int, float):
        fits = isinstance(value, numbers.Real) and (hint is float or value == math.floor(value))
    else:
        fits = isinstance(value, hint)
    if not fits:
        raise ValueError(value)
    return hint(value) if hint in (int, float) else value
