"""Settings of the agents: attitude to risk, uncertainty estimator, replay, network, optimisation."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import tyro

from ersac.config.fields import (
    Alpha,
    Callables,
    Decay,
    Fraction,
    Mu,
    Range,
    Rate,
    Scale,
    Tau,
    Weight,
)


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
    reward_rate: Fraction = 0.05
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
    predictor_rate: Fraction = 0.3
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
    offline_fraction: Fraction = 0.97
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
    MAX_CHUNK: ClassVar = 100  # rollouts that are plenty for a compiled call

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
    gamma: Fraction = 0.998
    """Discount."""
    lam: Annotated[Fraction, tyro.conf.arg(name="lambda")] = 0.8
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
    value_rate: Fraction = 0.15
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
    MAX_CHUNK: ClassVar = 1000

    members: Annotated[int, Range(2, 1000)] = 10
    """Q-networks; one of them acts through an episode."""
    rollout: Annotated[int, Range(1, 10_000)] = 1
    """Steps between updates, of which there are then as many as environments."""
    gamma: Fraction = 0.99
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
    mask_share: Fraction = 0.5
    """Probability that a member learns from a transition at all."""
    prior_scale: Scale = 3.0
    """Factor on the priors, which are networks like those that are trained."""
    noise_variance: Annotated[float, Range(0, 100)] | None = None
    """Variance of the noise stored with each transition and added to the members' rewards, in the
    environment's units; none in bsuite."""


UNCERTAINTIES: dict[str, type[Estimator]] = {
    "ensemble": Ensemble,
    "posterior": Posterior,
    "counts": Counts,
    "hashed": HashedCounts,
    "linear": BayesianLinear,
    "rnd": Rnd,
}
