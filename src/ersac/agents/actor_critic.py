"""The epistemic-risk-seeking actor-critic (ERSAC), Algorithm 1 [a-kac], and its baselines.

This file follows the algorithm from top to bottom:

    forward pass, bonus, three losses    actor_critic_loss
    targets for J and K, payoff          estimate_sampled, estimate_advantages
    gradient step of both players        update_actor_critic
    initial state, acting                init_actor_critic, actor_critic

The baselines are the same algorithm with another attitude to risk (algorithm/risk.py). Two other
ways to estimate K, with the signature of `estimate_sampled`, are in critics.py.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import optax
from jax import numpy as jnp
from jax.lax import stop_gradient

from ersac.agents.base import Agent, BehaviourPolicy, Metrics
from ersac.algorithm import game, returns
from ersac.algorithm.action_dist import ActionDist, mask_logits
from ersac.algorithm.normalise import Normaliser
from ersac.algorithm.risk import Risk
from ersac.config import ActorCritic
from ersac.nets import heads, layers
from ersac.nets.tables import Store
from ersac.types import Array, Learner, Memory, Params, Rng, Trajectory, Tree
from ersac.uncertainty.base import Uncertainty
from ersac.uncertainty.episodic import first_visits
from ersac.uncertainty.hashed import observation_codes

BATCH = "batch"  # name of the vmapped axis over the trajectories of an update
CODE_BITS = 22  # bits of the hash by which `first_visit` compares observations
INTRINSIC_DECAY = 0.99  # per update, of the running mean of the intrinsic reward


class CriticInputs(NamedTuple):
    """What a critic needs of one trajectory; A is the number of actions."""

    t: Trajectory  # normalised
    logits: Array  # [T+1, A]     outputs of the policy head
    log_pi: Array  # [T+1, A]     of all actions; zeros [T+1, 1] where actions are continuous
    log_pi_a: Array  # [T]        of the action taken
    entropy: Array  # [T+1]
    predicted: Array  # [T+1, n]  outputs of the critic head
    bonus: Array  # [T]           of the action taken
    bonuses: Array  # [T+1, A]    of all actions
    weight: Array  # []           entropy weight, tau for ERSAC; [T+1, A] with a tau per action
    rho: Array  # [T]             clipped importance ratio; 0 on masked steps; no gradient
    advantage_square: Array  # []  running mean of squared advantages; 0 without one
    early_end_credit: Array  # []  intrinsic reward that an episode misses by terminating early
    sizes: tuple[int, ...] = ()  # the choices of each factor, where actions are a product
    allowed: Array | None = None  # [T+1, A] bool; None without masks

    @property
    def entropy_bonus(self) -> Array:
        """The weighted entropy [T+1], tau H for ERSAC."""
        return game.entropy_bonus(self.weight, self.log_pi, self.entropy)

    @property
    def mean_weight(self) -> Array:
        """The mean [] of the entropy weight over the batch, without gradient."""
        return stop_gradient(mean_weight(self.weight, self.t.mask))


class Estimates(NamedTuple):
    """What a critic estimates for one trajectory."""

    payoff: Array  # [T]           the policy ascends its gradient, tau descends it
    predicted: Array  # [T]        the critic's predictions, with gradient
    error: Array  # [T]            target minus prediction, no gradient
    advantage_scale: Array  # []   divides the payoff, no gradient
    advantage_square: Array  # []  mean squared advantage of the batch; 0 where it is not needed


class Critic(NamedTuple):
    """A way to estimate K [e-kpi]; see critics.py for a comparison."""

    outputs: Callable[[int], int]  # number of actions -> outputs of the critic head
    estimate: Callable[[ActorCritic, CriticInputs], Estimates]


class Parts(NamedTuple):
    """The components of an actor-critic."""

    torso: heads.Torso
    policy: heads.Head
    value: heads.Head
    uncertainty: Uncertainty
    risk: Risk
    critic: Critic
    action_dist: ActionDist
    normaliser: Normaliser
    max_logit_gap: int | None = None  # None: unlimited
    per_visit: bool = False  # networks are initialised for gradient descent at a rate per visit
    # stored observations -> (observations, mask of the allowed actions or None)
    unpack: Callable[[Array], tuple[Array, Array | None]] = lambda obs: (obs, None)


class RunningMeans(NamedTuple):
    """Running means over updates."""

    advantage_square: Array  # []  of squared advantages
    intrinsic: Array  # []         of the intrinsic reward of a step: bonus plus weighted entropy


class Optimisers(NamedTuple):
    """The optimisers of the dense parameters, of log tau and of the rows of all tables."""

    dense: optax.GradientTransformation
    log_tau: optax.GradientTransformation
    tau_min: float | Array
    rows: Store
    # normalised observations [B, T, ...] -> for each head, a factor [B, T] on each step's gradient
    damping: Callable[[Array], dict[str, Array]]


def actor_critic_loss(
    settings: ActorCritic,
    parts: Parts,
    params: Params,
    log_tau: Array,
    memory: Memory,
    t: Trajectory,
    damping: dict[str, Array],
    running: RunningMeans,
) -> tuple[Array, tuple[Array, RunningMeans, Metrics]]:
    """Return the loss of one trajectory [a-kac], and (priority, values to average, metrics).

    The loss is `-payoff + critic loss + reward loss`. The policy descends it; tau ascends it, since
    it plays the same payoff with the opposite sign (see `update_actor_critic`).

    params.rows: the table rows of t.obs, each [T+1, n].
    damping: for each head, a factor [T] on the gradient of each step.
    """
    action_dist, (dense, rows) = parts.action_dist, params
    t, allowed = normalise_trajectory(parts, memory.normaliser, t)
    tau = jnp.exp(log_tau)

    # Bonus: sigma2 / (2 tau) for ERSAC.
    features = parts.torso.apply(dense["torso"], rows["torso"], t.obs)  # [T+1, H]
    sigma2_all = predict_sigma2(settings, parts, params, memory, t, features)  # [T+1, A]
    sigma2 = action_dist.take(sigma2_all[:-1], t.action)  # [T]
    bonus, bonuses = action_bonuses(parts, sigma2, sigma2_all, tau, t.action)
    weight = parts.risk.weight(sigma2_all, tau)  # [] or [T+1, A]

    # Policy and critic. Advantages are divided by the entropy weight (logits are K / tau), so the
    # gradient of the critic into shared layers is divided by its square.
    logits = head_logits(parts, params, t.obs, features, allowed)  # [T+1, A]
    logits = layers.scale_gradient(logits, jnp.append(damping["policy"], 0.0)[:, None])
    weight_scale = stop_gradient(mean_weight(weight, t.mask))
    critic_scale = settings.value_weight / jnp.square(weight_scale)
    if settings.normalise_advantages:
        # Or by their own spread, and the critic's gradient once: values are many times as large.
        spread = settings.spread_share * jnp.sqrt(running.advantage_square)
        critic_scale = settings.value_weight / jnp.maximum(weight_scale, spread)
    critic_features = layers.scale_gradient(features, critic_scale)
    predicted = parts.value.apply(dense["value"], rows["value"], t.obs, critic_features)  # [T+1, n]
    log_pi = action_dist.log_pi(logits)  # [T+1, A]
    log_pi_a = action_dist.log_prob(logits[:-1], t.action)  # [T]
    entropy = action_dist.entropy(logits)  # [T+1]
    rho = stop_gradient(t.mask * jnp.minimum(1.0, jnp.exp(log_pi_a - t.log_mu)))  # [T]

    # Targets for J and K, and the payoff.
    inputs = CriticInputs(
        t=t,
        logits=logits,
        log_pi=log_pi,
        log_pi_a=log_pi_a,
        entropy=entropy,
        predicted=predicted,
        bonus=bonus,
        bonuses=bonuses,
        weight=weight,
        rho=rho,
        advantage_square=running.advantage_square,
        early_end_credit=running.intrinsic * parts.normaliser.lost_steps(memory.normaliser),
        sizes=action_dist.sizes,
        allowed=allowed,
    )
    estimates = parts.critic.estimate(settings, inputs)

    # Losses of the policy, the critic and the reward heads.
    mean = lambda x: jnp.sum(t.mask * x) / jnp.maximum(1.0, jnp.sum(t.mask))
    payoff = mean(estimates.payoff) / estimates.advantage_scale
    target = stop_gradient(estimates.predicted + estimates.error)
    critic = mean(damping["value"] * 0.5 * jnp.square(estimates.predicted - target))
    reward_errors = reward_loss(settings, parts, params, memory, t, features)
    reward = mean(damping["uncertainty"] * reward_errors)

    intrinsic = mean((jnp.sum(jnp.exp(log_pi) * bonuses, axis=-1) + inputs.entropy_bonus)[:-1])
    shown_tau = tau if weight.ndim == 0 else inputs.mean_weight
    metrics = {"tau": shown_tau, "entropy": mean(entropy[:-1]), "sigma2": mean(sigma2)}
    metrics |= {"payoff": payoff, "critic": critic, "reward": reward}
    metrics |= {"value": mean(estimates.predicted)}
    metrics |= custom_metrics(parts, params, memory, t, features)
    priority = mean(jnp.abs(estimates.error))
    averages = RunningMeans(estimates.advantage_square, intrinsic)
    return -payoff + critic + reward, (priority, averages, metrics)


def custom_metrics(
    parts: Parts, params: Params, memory: Memory, t: Trajectory, features: Array
) -> Metrics:
    """Return the numbers that the torso and the estimator report of one trajectory."""
    dense, rows = params
    torso = parts.torso.metrics(dense["torso"], rows["torso"], t.obs)
    estimator_rows = jax.tree.map(lambda x: x[:-1], rows["uncertainty"])
    estimator = parts.uncertainty.metrics(
        Params(dense["uncertainty"], estimator_rows),
        memory.uncertainty,
        t.obs[:-1],
        features[:-1],
        t._replace(action=parts.action_dist.action_index(t.action)),
    )
    named = {"torso": torso, "uncertainty": estimator}
    return {
        f"{part}.{name}": jnp.mean(stop_gradient(value))
        for part, numbers in named.items()
        for name, value in numbers.items()
    }


def normalise_trajectory(
    parts: Parts, stats: Tree, t: Trajectory
) -> tuple[Trajectory, Array | None]:
    """Return a trajectory with normalised observations and rewards, and the allowed actions."""
    obs, allowed = parts.unpack(t.obs)
    reward = parts.normaliser.reward(stats, t.reward)
    return t._replace(obs=parts.normaliser.obs(stats, obs), reward=reward), allowed


def policy_logits(parts: Parts, params: Params, obs: Array, allowed: Array | None = None) -> Array:
    """Return the policy head's outputs [..., A] at normalised observations."""
    features = parts.torso.apply(params.dense["torso"], params.rows["torso"], obs)
    return head_logits(parts, params, obs, features, allowed)


def head_logits(
    parts: Parts, params: Params, obs: Array, features: Array, allowed: Array | None
) -> Array:
    """Return the policy head's outputs [..., A] from the torso's features.

    Actions that are not allowed have the probability zero, and no gradient.
    """
    logits = parts.policy.apply(params.dense["policy"], params.rows["policy"], obs, features)
    logits = mask_logits(logits, allowed)
    if parts.max_logit_gap is None:
        return logits
    return mask_logits(heads.limit_logit_gap(logits, parts.max_logit_gap), allowed)


def action_bonuses(
    parts: Parts, sigma2: Array, sigma2_all: Array, tau: Array, action: Array
) -> tuple[Array, Array]:
    """Return the bonus of the action taken [T], and of all actions [T+1, A].

    The bonus of an action of several factors is the mean over its choices. Those of the choices are
    divided by the number of factors, so that `sum(pi * bonuses)` is the expectation over actions.
    """
    bonuses, factors = parts.risk.bonus(sigma2_all, tau), len(parts.action_dist.sizes)
    if factors == 1:
        return parts.risk.bonus(sigma2, tau), bonuses
    return parts.action_dist.take(bonuses[:-1], action), bonuses / factors


def predict_sigma2(
    settings: ActorCritic,
    parts: Parts,
    params: Params,
    memory: Memory,
    t: Trajectory,
    features: Array,
) -> Array:
    """Return sigma2 of all actions at all observations of a trajectory [T+1, A], no gradient."""
    head_params = Params(params.dense["uncertainty"], params.rows["uncertainty"])
    of_action = lambda action: parts.uncertainty.sigma2(
        head_params, memory.uncertainty, t.obs, features, jnp.full(t.obs.shape[:1], action)
    )
    sigma2 = jax.vmap(of_action, out_axes=-1)(jnp.arange(parts.action_dist.n_actions))
    if settings.first_visit:
        is_first = first_visits(episode_codes(t.obs), jnp.append(t.discount, 1.0))  # [T+1]
        sigma2 = sigma2 * is_first[:, None]
    return sigma2


def episode_codes(obs: Array) -> Array:
    """Return integers [T+1] that identify observations: themselves, or a hash of arrays."""
    if jnp.issubdtype(obs.dtype, jnp.integer):
        return obs
    flat = obs.reshape(len(obs), -1)
    directions = np.random.default_rng(0).standard_normal((flat.shape[1], CODE_BITS), np.float32)
    return observation_codes(jnp.asarray(directions), flat)


def reward_loss(
    settings: ActorCritic,
    parts: Parts,
    params: Params,
    memory: Memory,
    t: Trajectory,
    features: Array,
) -> Array:
    """Return the loss of the uncertainty estimator at each step [T], L_reward in [a-kac].

    With several factors it is the sum over the choices: each learns at the rate of its visits.
    """
    rows = jax.tree.map(lambda x: x[:-1], params.rows["uncertainty"])
    of_index = lambda index: parts.uncertainty.loss(
        Params(params.dense["uncertainty"], rows),
        memory.uncertainty,
        t.obs[:-1],
        layers.scale_gradient(features[:-1], settings.reward_weight),
        t._replace(action=index),
    )
    index = parts.action_dist.action_index(t.action)
    if len(parts.action_dist.sizes) == 1:
        return of_index(index)
    return jnp.sum(jax.vmap(of_index, in_axes=-1, out_axes=-1)(index), axis=-1)


def estimate_sampled(settings: ActorCritic, inputs: CriticInputs) -> Estimates:
    """Estimate K(s, a) of the action taken by V-trace from the critic's J(s), as in [a-kac].

    The policy ascends the payoff with the sign of [e-pol-grad]. The entropy in the targets is
    sampled, `-tau log pi(a)`, as in L_value of [a-kac]; its expectation is `tau H`. With a tau for
    each action it is exact.
    """
    j, weight = inputs.predicted[:, 0], inputs.weight  # [T+1], [] or [T+1, A]
    entropy_bonus = -weight * inputs.log_pi_a if weight.ndim == 0 else inputs.entropy_bonus[:-1]
    entropy_bonus = stop_gradient(entropy_bonus)
    advantages = estimate_advantages(
        settings, inputs, stop_gradient(j), stop_gradient(inputs.bonus), entropy_bonus
    )
    payoff = inputs.rho * game.payoff(
        inputs.log_pi_a, advantages.clipped, inputs.bonus, inputs.entropy_bonus[:-1]
    )
    return Estimates(payoff, j[:-1], advantages.error, advantages.scale, advantages.mean_square)


class Advantages(NamedTuple):
    """Advantages K - J of the actions taken and their scale, without gradients."""

    clipped: Array  # [T]  clipped at `advantage_limit` scales
    error: Array  # [T]    V-trace error of the critic
    scale: Array  # []
    mean_square: Array  # []  of the batch's advantages before clipping; 0 where it is not needed


def estimate_advantages(
    settings: ActorCritic, inputs: CriticInputs, j: Array, bonus: Array, entropy_bonus: Array
) -> Advantages:
    """Estimate the advantages K(s, a) - J(s) by V-trace.

    They are scaled by the entropy weight, or with `normalise_advantages` by a share of their root
    mean square if that is larger.

    j: [T+1], J(s); bonus, entropy_bonus: [T]. None of them has a gradient.
    """
    r_tau = game.optimistic_reward(credit_early_ends(settings, inputs), bonus)
    discount = settings.gamma * inputs.t.discount
    targets = returns.vtrace_targets(j, r_tau, entropy_bonus, discount, inputs.rho, settings.lam)
    advantage, scale = targets.action_value - j[:-1], inputs.mean_weight
    square = jnp.zeros_like(scale)
    if settings.normalise_advantages:
        square = batch_mean(jnp.square(advantage), inputs.t.mask)
        rms = jnp.sqrt(jnp.maximum(square, inputs.advantage_square))
        scale = jnp.maximum(scale, settings.spread_share * rms)
    return Advantages(clip_advantage(settings, advantage, scale), targets.error, scale, square)


def clip_advantage(settings: ActorCritic, advantage: Array, scale: Array) -> Array:
    """Clip advantages at `advantage_limit` times their scale."""
    limit = settings.advantage_limit
    return jnp.clip(advantage, -limit * scale, limit * scale)


def credit_early_ends(settings: ActorCritic, inputs: CriticInputs) -> Array:
    """Return the rewards [T], with a credit for early termination if the settings ask for it.

    The paper's episodes all have one length. Where an episode can terminate early it misses the
    bonus and entropy of the remaining steps, so an agent could do better by never reaching a goal
    that ends the episode. The credit is their mean. (Subtracting a mean from every step instead
    would leave old, too pessimistic values behind as tau falls.)
    """
    if not settings.credit_early_ends:
        return inputs.t.reward
    credit = inputs.t.mask * inputs.early_end_credit
    return inputs.t.reward + jnp.where(inputs.t.discount == 0, credit, 0.0)


def batch_mean(x: Array, mask: Array) -> Array:
    """Return the mean [] over all steps of the batch that are not masked."""
    total = lambda x: jax.lax.psum(jnp.sum(mask * x), BATCH)
    return total(x) / jnp.maximum(1.0, total(jnp.ones_like(x)))


def mean_weight(weight: Array, mask: Array) -> Array:
    """Return the mean [] of entropy weights, [] or [T+1, A], over all steps of the batch."""
    return weight if weight.ndim == 0 else batch_mean(jnp.mean(weight[:-1], axis=-1), mask)


SAMPLED = Critic(outputs=lambda n_actions: 1, estimate=estimate_sampled)


def update_actor_critic(
    settings: ActorCritic, parts: Parts, optimisers: Optimisers, learner: Learner, batch: Trajectory
) -> tuple[Learner, Array, Metrics]:
    """Take one gradient step of both players on a batch [B, ...]; see `Agent.update`."""
    params, log_tau, memory, opt = learner

    def batch_loss(
        dense: Tree, rows: Tree, log_tau: Array
    ) -> tuple[Array, tuple[Array, RunningMeans, Metrics]]:
        one = lambda rows, t, damping: actor_critic_loss(
            settings, parts, Params(dense, rows), log_tau, memory, t, damping, opt["running"]
        )
        losses, aux = jax.vmap(one, axis_name=BATCH)(rows, batch, damping)
        return jnp.mean(losses), aux

    obs, _ = parts.unpack(batch.obs)
    rows = optimisers.rows.look_up(params.rows, obs)  # [B, T+1, ...]
    damping = optimisers.damping(parts.normaliser.obs(memory.normaliser, obs[:, :-1]))
    gradients, (priority, averages, metrics) = jax.grad(batch_loss, (0, 1, 2), has_aux=True)(
        params.dense, rows, log_tau
    )
    dense_gradient, row_gradient, tau_gradient = gradients

    step, dense_opt = optimisers.dense.update(dense_gradient, opt["dense"])
    dense = optax.apply_updates(params.dense, step)
    # The minus sign makes the game zero-sum: tau descends the payoff that the policy ascends.
    step, tau_opt = optimisers.log_tau.update(-tau_gradient, opt["log_tau"])
    log_tau = jnp.maximum(log_tau + step, jnp.log(optimisers.tau_min))
    time = opt["time"] + 1
    tables = optimisers.rows.update(params.rows, time, obs, row_gradient)
    averages = jax.tree.map(jnp.mean, averages)
    running = update_running(opt["running"], averages, settings.spread_decay, time)
    opt = {"dense": dense_opt, "log_tau": tau_opt, "time": time, "running": running}
    learner = Learner(Params(dense, tables), log_tau, memory, opt)
    return learner, priority, jax.tree.map(jnp.mean, metrics)


def update_running(
    old: RunningMeans, new: RunningMeans, spread_decay: float | Array, time: Array
) -> RunningMeans:
    """Return the running means after update number `time`, counted from one.

    With a decay of 0 there is no running mean of squared advantages; it is then 0.
    """
    square = spread_decay * old.advantage_square + (1 - spread_decay) * new.advantage_square
    decay = jnp.minimum(INTRINSIC_DECAY, 1 - 1 / time)
    return RunningMeans(
        advantage_square=jnp.where(spread_decay > 0, square, 0.0),
        intrinsic=decay * old.intrinsic + (1 - decay) * new.intrinsic,
    )


def init_actor_critic(parts: Parts, optimisers: Optimisers, tau0: float, rng: Rng) -> Learner:
    """Return the learner before the first step."""
    head_params, estimator_memory = parts.uncertainty.init(rng)
    params_by_name = {
        "torso": parts.torso.init(rng),
        "policy": parts.policy.init(rng),
        "value": parts.value.init(rng),
        "uncertainty": head_params,
    }
    tables = optimisers.rows.pack({name: part.rows for name, part in params_by_name.items()})
    params = Params({name: part.dense for name, part in params_by_name.items()}, tables)
    log_tau = jnp.float32(math.log(tau0))
    opt = {
        "dense": optimisers.dense.init(params.dense),
        "log_tau": optimisers.log_tau.init(log_tau),
        "time": jnp.zeros((), jnp.int32),
        "running": RunningMeans(jnp.zeros(()), jnp.zeros(())),
    }
    memory = Memory(parts.normaliser.init(), estimator_memory)
    return jax.tree.map(jnp.asarray, Learner(params, log_tau, memory, opt))


def observe_actions(parts: Parts, memory: Tree, t: Trajectory) -> Tree:
    """Return the estimator's memory after new rollouts; it observes each factor in turn."""
    index = parts.action_dist.action_index(t.action)
    if len(parts.action_dist.sizes) == 1:
        return parts.uncertainty.observe(memory, t._replace(action=index))
    observe = lambda memory, index: (
        parts.uncertainty.observe(memory, t._replace(action=index)),
        None,
    )
    return jax.lax.scan(observe, memory, jnp.moveaxis(index, -1, 0))[0]


def actor_critic(settings: ActorCritic, parts: Parts, optimisers: Optimisers, tau0: float) -> Agent:
    """Return the actor-critic agent made of these parts and optimisers."""
    action_dist, normaliser = parts.action_dist, parts.normaliser

    def look_up(learner: Learner, obs: Array) -> Params:
        """Return the parameters with the table rows of observations."""
        return Params(learner.params.dense, optimisers.rows.look_up(learner.params.rows, obs))

    def dist_params(learner: Learner, obs: Array) -> Array:
        obs, allowed = parts.unpack(obs)
        normalised = normaliser.obs(learner.memory.normaliser, obs)
        return policy_logits(parts, look_up(learner, obs), normalised, allowed)

    def act(
        learner: Learner, episode_state: Tree, obs: Array, action_noise: Array
    ) -> tuple[Array, Array]:
        logits = dist_params(learner, obs)  # [A]
        return action_dist.draw(logits, action_noise), logits

    def actor_params(learner: Learner) -> Learner:
        dense = {name: learner.params.dense[name] for name in ("torso", "policy")}
        params, memory = learner.params._replace(dense=dense), learner.memory
        return Learner(params, learner.log_tau, memory._replace(uncertainty=()), opt=())

    def observe(learner: Learner, t: Trajectory) -> Learner:
        unpacked = t._replace(obs=parts.unpack(t.obs)[0])
        stats = normaliser.observe(learner.memory.normaliser, unpacked)
        t, _ = normalise_trajectory(parts, stats, t)
        estimator_memory = observe_actions(parts, learner.memory.uncertainty, t)
        return learner._replace(memory=Memory(stats, estimator_memory))

    def sigma2(learner: Learner, obs: Array, action: Array) -> Array:
        obs, _ = parts.unpack(obs)
        (dense, rows), memory = look_up(learner, obs), learner.memory
        obs, index = normaliser.obs(memory.normaliser, obs), action_dist.action_index(action)
        features = parts.torso.apply(dense["torso"], rows["torso"], obs)
        head_params = Params(dense["uncertainty"], rows["uncertainty"])
        of_index = lambda index: parts.uncertainty.sigma2(
            head_params, memory.uncertainty, obs, features, index
        )
        if len(action_dist.sizes) == 1:
            return of_index(index)
        return jnp.mean(jax.vmap(of_index, in_axes=-1, out_axes=-1)(index), axis=-1)

    policy = BehaviourPolicy(
        init_episode=lambda learner, key: (),
        action_noise=action_dist.action_noise,
        act=act,
        log_mu=action_dist.log_prob,
        mode=lambda learner, episode_state, obs: action_dist.mode(dist_params(learner, obs)),
        to_env=action_dist.to_env,
        actor_params=actor_params,
    )
    update = lambda learner, batch: update_actor_critic(settings, parts, optimisers, learner, batch)
    return Agent(
        init=lambda rng: init_actor_critic(parts, optimisers, tau0, rng),
        policy=policy,
        noise=parts.uncertainty.noise,
        observe=observe,
        update=update,
        sigma2=sigma2,
    )
