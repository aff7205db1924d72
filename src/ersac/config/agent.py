"""Settings of the agents: risk attitude, uncertainty estimator, replay, network, optimiser."""

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
    """Initial risk parameter tau, in units of reward."""
    tau_learning_rate: Rate = 4e-2
    """Adam learning rate of log tau."""
    tau_min: Tau = 1e-3
    """Lower bound of tau, which would otherwise go to 0 as sigma vanishes."""
    learn_tau: bool = True
    """Learn tau by gradient descent on the payoff; otherwise it stays at --tau0."""


@dataclass(frozen=True)
class LocalSeeking:
    """Epistemic risk-seeking with a tau for each state and action, in proportion to its sigma:
    bonus sigma2 / (2 tau(s, a)), entropy weight tau(s, a) = scale sigma(s, a) + tau_min."""

    tau_scale: Tau = 0.4
    """Initial ratio of tau(s, a) to sigma(s, a)."""
    tau_learning_rate: Rate = 4e-2
    """Adam learning rate of the logarithm of that ratio."""
    tau_min: Tau = 1e-4
    """Entropy weight where sigma is 0, in units of reward."""
    learn_tau: bool = False
    """Learn the ratio by gradient descent on the payoff; otherwise it stays at --tau-scale."""


@dataclass(frozen=True)
class Neutral:
    """Risk-neutral: no bonus, a fixed entropy weight."""

    alpha: Alpha = 0.01
    """Weight of the entropy in the policy's objective."""


@dataclass(frozen=True)
class Optimist:
    """Optimism: bonus mu sigma, a fixed entropy weight."""

    mu: Mu = 3.0
    """Weight of the bonus sigma in the reward."""
    alpha: Alpha = 0.01
    """Weight of the entropy in the policy's objective."""


@dataclass(frozen=True)
class Ensemble:
    """Reward ensemble with randomised priors; sigma2 is the variance of its predictions."""

    members: Annotated[int, Range(2, 1000)] = 10
    """Number of reward models in the ensemble."""
    prior_scale: Scale = 0.05
    """Standard deviation of the members' prior predictions, in units of reward."""
    sigma_scale: Scale = 1.0
    """Factor by which sigma is multiplied."""
    reward_rate: Fraction = 0.05
    """Fraction of its prediction error that a member corrects per visit (0 to 1)."""
    shared_reward_heads: bool = False
    """Train the members on the layers of policy and critic too, the paper's auxiliary task;
    otherwise they are separate from them."""
    noise_variance: Annotated[float, Range(0, 100)] | None = None
    """Variance of the noise added to the members' reward targets, fixed for each stored step;
    by default no noise."""


@dataclass(frozen=True)
class Posterior:
    """Samples of the exact Gaussian posterior over rewards; sigma2 is their variance."""

    members: Annotated[int, Range(2, 1000)] = 10
    """Number of posterior samples."""
    prior_scale: Scale = 0.1
    """Prior standard deviation of the reward of a state-action pair."""
    noise_variance: Annotated[float, Range(0, 100)] = 1e-5
    """Variance of the reward noise that the posterior assumes; smaller: sigma falls faster."""
    sigma_scale: Scale = 1.0
    """Factor by which sigma is multiplied."""


@dataclass(frozen=True)
class Counts:
    """Visit counts; sigma2 is sigma_scale^2 / n(s, a)."""

    sigma_scale: Scale = 0.1
    """Sigma of a state-action pair after one visit."""


@dataclass(frozen=True)
class Rnd:
    """Random network distillation; sigma2 is the error on a fixed random network."""

    outputs: Annotated[int, Range(1, 4_096)] = 16
    """Outputs of the random target network per action."""
    predictor_rate: Fraction = 0.3
    """Fraction of its error that the predictor corrects per visit (0 to 1)."""
    sigma_scale: Scale = 0.015
    """Initial sigma, that of an observation never visited."""


@dataclass(frozen=True)
class HashedCounts:
    """Visit counts of hashed vectors (signs of random projections);
    sigma2 is sigma_scale^2 / (1 + n(code, a))."""

    bits: Annotated[int, Range(1, 22)] = 16
    """Bits of the hash code, each the sign of a random projection of the observation."""
    sigma_scale: Scale = 0.015
    """Sigma of a code and action never visited."""


@dataclass(frozen=True)
class BayesianLinear:
    """Bayesian linear regression on random features; sigma2 is its posterior variance."""

    features: Annotated[int, Range(1, 4_096)] = 256
    """Number of random features of an observation."""
    prior_scale: Scale = 0.05
    """Prior standard deviation of the reward."""
    noise_variance: Annotated[float, Range(0, 100)] = 2.5e-4
    """Variance of the reward noise that the regression assumes; smaller: sigma falls faster."""
    sigma_scale: Scale = 0.3
    """Factor by which sigma is multiplied."""


@dataclass(frozen=True)
class CustomEstimator:
    """An estimator given from Python: see docs/your-estimator.md."""

    name: Annotated[str, tyro.conf.Suppress] = ""
    estimator: Annotated[
        Any, Callables("a function that makes one", ("__call__",)), tyro.conf.Suppress
    ] = None
    """Function (spec, number of actions) -> ersac.uncertainty.base.Uncertainty."""


Estimator = Ensemble | Posterior | Counts | HashedCounts | BayesianLinear | Rnd | CustomEstimator


@dataclass(frozen=True)
class OnPolicy:
    """On-policy learning: every rollout is used when it is new, and then dropped."""

    passes: Annotated[int, Range(1, 1000)] = 1
    """Passes over the newest rollouts (epochs)."""
    minibatch: Annotated[int, Range(1, 65_536)] | None = None
    """Rollouts per update; by default those of all environments."""


@dataclass(frozen=True)
class Replay:
    """Prioritised replay of whole rollouts, stored with their noise."""

    capacity: Annotated[int, Range(1, 10**7)] = 10_000
    """Rollouts in the replay buffer."""
    batch: Annotated[int, Range(1, 65_536)] = 16
    """Rollouts per update."""
    updates: Annotated[int, Range(1, 10_000)] = 2
    """Updates after each new rollout."""
    offline_fraction: Fraction = 0.97
    """Fraction of the rollouts in an update drawn from replay; the others are the newest one."""
    priority_exponent: Weight = 1.0
    """Rollouts are drawn in proportion to their mean absolute TD error to this power."""


@dataclass(frozen=True)
class ActorCritic:
    """The actor-critic agent."""

    METRICS: ClassVar = ("tau", "entropy", "sigma2")  # recorded and shown during training
    STEPS_PER_SECOND: ClassVar = 50_000  # of all seeds together, on a slow machine
    MAX_CHUNK: ClassVar = 100  # rollouts per compiled call

    risk: Seeking | LocalSeeking | Neutral | Optimist = Seeking()
    uncertainty: (
        Ensemble | Posterior | Counts | HashedCounts | BayesianLinear | Rnd | CustomEstimator
    ) = Ensemble()
    buffer: OnPolicy | Replay = OnPolicy()
    first_visit: bool = False
    """Give a bonus only to the first visit of an observation within an episode's rollout;
    for environments whose layout changes between episodes, with long rollouts."""
    critic: Literal["sampled", "expected-bonus", "all-actions"] = "sampled"
    """Critic: sampled (Algorithm 1: K of the action taken), expected-bonus (the same with
    the bonus averaged over actions) or all-actions (K of every action, natural policy gradient)."""
    objective: Literal["payoff", "clipped"] = "payoff"
    """What the policy ascends: the payoff, with importance weights of at most one, or PPO's clipped
    objective, for several passes over a rollout."""
    clip: Annotated[float, Range(0, 10, above=True)] = 0.2
    """With --objective clipped, how far the probability of an action may move from that at which
    the rollout was made, relative to it, before its advantage has no gradient."""
    rollout: Annotated[int, Range(1, 10_000)] = 50
    """Environment steps between updates, per environment."""
    gamma: Fraction = 0.998
    """Discount factor (0 to 1)."""
    lam: Annotated[Fraction, tyro.conf.arg(name="lambda")] = 0.8
    """Lambda of V-trace targets (0: one-step TD, 1: Monte Carlo)."""
    network: Literal["mlp", "table"] = "table"
    """mlp: policy, critic and estimator have a network each; table: they have a row of parameters
    for every integer observation."""
    hidden: tuple[Annotated[int, Range(1, 65_536)], ...] = (64, 64)
    """Widths of the hidden layers of policy and critic."""
    estimator_hidden: tuple[Annotated[int, Range(1, 65_536)], ...] = (256,)
    """Widths of the hidden layers of the uncertainty estimator."""
    upper_percent: Annotated[int, Range(1, 99)] = 10
    """With --network mlp, percentage of a correction made above the first layer: more generalises
    more between observations (1 to 99)."""
    critic_init_scale: Annotated[int, Range(1, 1000)] = 1
    """With --network mlp, factor of the critic's initial weights, by which its outputs are divided:
    so its features stay as they are while values change by about this much."""
    image_torso: Literal["small", "nature", "impala"] = "small"
    """Torso of images of at least 36 x 36 bytes, which policy, critic and members share: small
    (A3C), nature (DQN) or impala (residual)."""
    torso: Annotated[Any, Callables("a flax module", ("init", "apply")), tyro.conf.Suppress] = None
    """A flax module that replaces the hidden layers, from Python only."""
    learning_rate: Rate = 5e-4
    """Adam learning rate of layers without a rate per visit (--network table, flax torsos)."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """The learning rates of policy and critic during a run: constant, or falling to zero linearly
    or along a cosine."""
    schedule_steps: Annotated[float, Range(0, 1e12)] = 0.0
    """Environment steps per seed after which --schedule reaches zero; 0: the budget of the run."""
    b1: Decay = 0.9
    """Adam's decay of the first moment."""
    b2: Decay = 0.999
    """Adam's decay of the second moment."""
    policy_rate: Annotated[float, Range(0, 100)] = 0.06
    """Step size of the logits per visit, for an advantage equal to the advantage scale."""
    value_rate: Fraction = 0.15
    """Fraction of its error that the critic corrects per visit (0 to 1)."""
    advantage_limit: Annotated[float, Range(0, 1e9, above=True)] = 10.0
    """Clip advantages to this multiple of the advantage scale, which is the entropy weight
    or, with --normalise-advantages, at least a share of their RMS."""
    normalise_advantages: bool = False
    """Divide advantages by max(entropy weight, --spread-share times their RMS) before clipping."""
    spread_share: Annotated[float, Range(0, 1)] = 1.0
    """With --normalise-advantages, fraction of the RMS below which the scale does not fall."""
    spread_decay: Decay = 0.0
    """With --normalise-advantages, decay of the running RMS (0: the RMS of the batch only)."""
    credit_early_ends: bool = False
    """Add the mean bonus and entropy of the steps an episode misses when it terminates early,
    so that reaching a goal that ends the episode does not lose them."""
    max_logit_gap: Annotated[int, Range(1, 1000)] | None = None
    """Largest difference between two logits of a state, which keeps probabilities above 0;
    by default no limit."""
    value_weight: Weight = 0.5
    """Weight of the critic's gradient in the shared layers."""
    reward_weight: Weight = 1.0
    """With --shared-reward-heads, weight of the reward gradient in the shared layers."""


@dataclass(frozen=True)
class BootDQN:
    """Bootstrapped DQN with randomised priors: bsuite's settings, with ten members."""

    METRICS: ClassVar = ("value", "loss", "sigma2")
    STEPS_PER_SECOND: ClassVar = 500
    MAX_CHUNK: ClassVar = 1000

    members: Annotated[int, Range(2, 1000)] = 10
    """Number of Q-networks; one of them, drawn at random, acts for an episode."""
    rollout: Annotated[int, Range(1, 10_000)] = 1
    """Environment steps between updates; there are then as many updates as environments."""
    gamma: Fraction = 0.99
    """Discount factor (0 to 1)."""
    hidden: tuple[Annotated[int, Range(1, 65_536)], ...] = (50, 50)
    """Widths of the hidden layers of each Q-network."""
    learning_rate: Rate = 1e-3
    """Adam learning rate."""
    b1: Decay = 0.9
    """Adam's decay of the first moment."""
    b2: Decay = 0.999
    """Adam's decay of the second moment."""
    batch: Annotated[int, Range(1, 65_536)] = 128
    """Transitions per update."""
    replay: Annotated[int, Range(1, 10**7)] = 10_000
    """Transitions in the replay buffer."""
    least_replay: Annotated[int, Range(1, 10**7)] = 128
    """Transitions in the replay buffer before the first update."""
    target_period: Annotated[int, Range(1, 10**6)] = 4
    """Updates between copies of the parameters to the target networks."""
    mask_share: Fraction = 0.5
    """Probability that a member learns from a given transition (0 to 1)."""
    prior_scale: Scale = 3.0
    """Factor by which the outputs of the prior networks are multiplied."""
    noise_variance: Annotated[float, Range(0, 100)] | None = None
    """Variance of the noise added to the members' rewards, fixed for each stored transition;
    by default no noise, as in bsuite."""


UNCERTAINTIES: dict[str, type[Estimator]] = {
    "ensemble": Ensemble,
    "posterior": Posterior,
    "counts": Counts,
    "hashed": HashedCounts,
    "linear": BayesianLinear,
    "rnd": Rnd,
}
