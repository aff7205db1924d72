"""Epistemic-risk-seeking actor-critic: Algorithm 1 [a-kac]; with another attitude to risk, its baselines."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import optax
from jax import numpy as jnp
from jax.lax import stop_gradient

from ersac.agents import critics
from ersac.agents.base import Agent, BehaviourPolicy
from ersac.agents.critics import Critic
from ersac.algorithm.action_dist import ActionDist, take_action
from ersac.algorithm.normalise import Normaliser
from ersac.algorithm.risk import Risk
from ersac.config import ActorCritic
from ersac.nets import heads, layers
from ersac.nets.tables import Store
from ersac.types import Array, Learner, Memory, Params, Rng, Trajectory, Tree
from ersac.uncertainty.base import Uncertainty
from ersac.uncertainty.episodic import first_visits
from ersac.uncertainty.hashed import observation_codes

CODE_BITS = 22  # of the codes that tell the observations of an episode apart
EXTRA_DECAY = 0.99  # of the running mean of bonus and weighted entropy, an update


class Parts(NamedTuple):
    """What the learner is made of."""

    torso: heads.Torso
    policy: heads.Head
    value: heads.Head
    uncertainty: Uncertainty
    risk: Risk
    critic: Critic
    action_dist: ActionDist  # what the policy's head means
    normaliser: Normaliser  # through which all of them see
    bound: Callable[[Array], Array] = lambda logits: (
        logits
    )  # what the policy makes of its head's numbers
    per_visit: bool = False  # networks are made for plain descent at a rate per visit


class Running(NamedTuple):
    """Running means over updates."""

    advantage_square: Array  # []
    extra: Array  # []   bonus and weighted entropy of a step


class Optimisers(NamedTuple):
    """Who moves what: the dense layers, the game's second player, and the rows of every table."""

    dense: optax.GradientTransformation
    log_tau: optax.GradientTransformation
    tau_min: float | Array
    rows: Store
    damping: Callable[
        [Array], dict[str, Array]
    ]  # normalised observations [B, T, ...] -> of each head, what steps count for [B, T]


def policy_logits(parts: Parts, params: Params, obs: Array) -> Array:
    """What the policy's head says at observations, seen through the lens, whose rows have been looked up [..., A]."""
    features = parts.torso.apply(params.dense["torso"], params.rows["torso"], obs)
    return head_logits(parts, params, obs, features)


def head_logits(parts: Parts, params: Params, obs: Array, features: Array) -> Array:
    """What the policy's head says of features that are at hand."""
    return parts.bound(
        parts.policy.apply(params.dense["policy"], params.rows["policy"], obs, features)
    )


def actor_critic_loss(
    settings: ActorCritic,
    parts: Parts,
    params: Params,
    log_tau: Array,
    memory: Memory,
    t: Trajectory,
    damping: dict[str, Array],
    running: Running,
) -> tuple[Array, tuple[Array, Running, dict[str, Array]]]:
    """What one trajectory asks of both players [a-kac]. `params.rows`: those of t.obs, [T+1, ...].

    Returns the loss, the trajectory's priority, what the running means are of, and metrics. The policy and tau play the payoff with
    opposite signs; the critic and the reward heads have a term each. Every head learns its own term as it is; how hard a term pulls on
    the layers that they share is its weight.
    """
    dense, looked_up = params
    stats, known = memory
    index = parts.action_dist.action_index(t.action)
    t = t._replace(
        obs=parts.normaliser.obs(stats, t.obs), reward=parts.normaliser.reward(stats, t.reward)
    )
    tau = jnp.exp(log_tau)
    weight = parts.risk.weight(tau)
    advantage_scale = stop_gradient(
        weight
    )  # values count in units of the entropy weight: logits are K / tau

    # forward
    features = parts.torso.apply(dense["torso"], looked_up["torso"], t.obs)  # [T+1, H]
    logits = head_logits(parts, params, t.obs, features)  # [T+1, A]
    logits = layers.scale_gradient(logits, jnp.append(damping["policy"], 0.0)[:, None])
    critic_features = layers.scale_gradient(
        features, settings.value_weight / jnp.square(advantage_scale)
    )
    predicted = parts.value.apply(
        dense["value"], looked_up["value"], t.obs, critic_features
    )  # [T+1, n]

    # uncertainties
    every = Params(dense["uncertainty"], looked_up["uncertainty"])
    taken = Params(
        every.dense, jax.tree.map(lambda x: x[:-1], every.rows)
    )  # the rows of s_1 ... s_T
    reward_features = layers.scale_gradient(features[:-1], settings.reward_weight)
    of_action = lambda a: parts.uncertainty.sigma2(
        every, known, t.obs, features, jnp.full(t.obs.shape[:1], a)
    )
    sigma2s = jax.vmap(of_action, out_axes=-1)(jnp.arange(parts.action_dist.n_actions))  # [T+1, A]
    if settings.first_visit:
        sigma2s = sigma2s * first_visits(episode_codes(t.obs), jnp.append(t.discount, 1.0))[:, None]
    sigma2 = take_action(sigma2s[:-1], index)  # [T]

    # both players, the critic, the reward heads
    log_pi, log_pi_a = (
        parts.action_dist.log_pi(logits),
        parts.action_dist.log_prob(logits[:-1], t.action),
    )  # [T+1, A], [T]
    entropies = parts.action_dist.entropy(logits)  # [T+1]
    rho = stop_gradient(t.mask * jnp.minimum(1.0, jnp.exp(log_pi_a - t.log_mu)))  # [T]
    bonus, bonuses = parts.risk.bonus(sigma2, tau), parts.risk.bonus(sigma2s, tau)
    forgone = running.extra * parts.normaliser.lost_steps(stats)
    view = critics.CriticInputs(
        t,
        logits,
        log_pi,
        log_pi_a,
        entropies,
        predicted,
        bonus,
        bonuses,
        weight,
        rho,
        running.advantage_square,
        forgone,
    )
    estimates = parts.critic.estimate(settings, view)
    mean = lambda x: jnp.sum(t.mask * x) / jnp.maximum(1.0, jnp.sum(t.mask))
    payoff = mean(estimates.payoff) / estimates.advantage_scale
    critic = mean(
        damping["value"]
        * 0.5
        * jnp.square(estimates.predicted - stop_gradient(estimates.predicted + estimates.error))
    )
    reward = mean(
        damping["uncertainty"]
        * parts.uncertainty.loss(
            taken, known, t.obs[:-1], reward_features, t._replace(action=index)
        )
    )
    entropy, extra = (
        mean(entropies[:-1]),
        mean((jnp.sum(jnp.exp(log_pi) * bonuses, axis=-1) + weight * entropies)[:-1]),
    )
    metrics = {
        "tau": tau,
        "entropy": entropy,
        "sigma2": mean(sigma2),
        "payoff": payoff,
        "critic": critic,
        "reward": reward,
    }
    return -payoff + critic + reward, (
        mean(jnp.abs(estimates.error)),
        Running(estimates.square, extra),
        metrics,
    )


def episode_codes(obs: Array) -> Array:
    """Integers [T+1] by which the observations of a trajectory are told apart: themselves, or the signs of fixed projections."""
    if jnp.issubdtype(obs.dtype, jnp.integer):
        return obs
    flat = obs.reshape(len(obs), -1)
    directions = np.random.default_rng(0).standard_normal((flat.shape[1], CODE_BITS), np.float32)
    return observation_codes(jnp.asarray(directions), flat)


def update_actor_critic(
    settings: ActorCritic, parts: Parts, optimisers: Optimisers, learner: Learner, batch: Trajectory
) -> tuple[Learner, Array, dict[str, Array]]:
    """One simultaneous step of both players on a batch of trajectories [B, ...]."""
    params, log_tau, memory, opt = learner

    def total(
        dense: Tree, looked_up: Tree, log_tau: Array
    ) -> tuple[Array, tuple[Array, Running, dict[str, Array]]]:
        one = lambda rows_of_one, t, damping: actor_critic_loss(
            settings, parts, Params(dense, rows_of_one), log_tau, memory, t, damping, opt["running"]
        )
        losses, aux = jax.vmap(one, axis_name=critics.BATCH)(looked_up, batch, damping)
        return jnp.mean(losses), aux

    looked_up = optimisers.rows.look_up(params.rows, batch.obs)  # [B, T+1, ...]
    damping = optimisers.damping(parts.normaliser.obs(memory.normaliser, batch.obs[:, :-1]))
    gradients, (priority, newest, metrics) = jax.grad(total, (0, 1, 2), has_aux=True)(
        params.dense, looked_up, log_tau
    )
    dense_gradient, row_gradient, tau_gradient = gradients

    step, dense_opt = optimisers.dense.update(dense_gradient, opt["dense"])
    dense = optax.apply_updates(params.dense, step)
    step, tau_opt = optimisers.log_tau.update(
        -tau_gradient, opt["log_tau"]
    )  # the two players differ by this one sign
    log_tau = jnp.maximum(log_tau + step, jnp.log(optimisers.tau_min))
    time = opt["time"] + 1
    tables = optimisers.rows.update(params.rows, time, batch.obs, row_gradient)
    running = update_running(
        opt["running"], jax.tree.map(jnp.mean, newest), settings.spread_decay, time
    )
    opt = {"dense": dense_opt, "log_tau": tau_opt, "time": time, "running": running}
    learner = Learner(Params(dense, tables), log_tau, memory, opt)
    return learner, priority, jax.tree.map(jnp.mean, metrics)


def update_running(old: Running, new: Running, spread_decay: float | Array, time: Array) -> Running:
    """Running means after update `time`, counted from one; that of advantages is 0 where its decay is."""
    extra_decay = jnp.minimum(EXTRA_DECAY, 1 - 1 / time)
    square = spread_decay * old.advantage_square + (1 - spread_decay) * new.advantage_square
    return Running(
        jnp.where(spread_decay > 0, square, 0.0),
        extra_decay * old.extra + (1 - extra_decay) * new.extra,
    )


def init_actor_critic(
    settings: ActorCritic, parts: Parts, optimisers: Optimisers, tau0: float, rng: Rng
) -> Learner:
    """A learner that has seen nothing."""
    heads, known = parts.uncertainty.init(rng)
    made = {
        "torso": parts.torso.init(rng),
        "policy": parts.policy.init(rng),
        "value": parts.value.init(rng),
        "uncertainty": heads,
    }
    tables = optimisers.rows.pack({name: part.rows for name, part in made.items()})
    params = Params({name: part.dense for name, part in made.items()}, tables)
    log_tau = jnp.float32(math.log(tau0))
    opt = {
        "dense": optimisers.dense.init(params.dense),
        "log_tau": optimisers.log_tau.init(log_tau),
        "time": jnp.zeros((), jnp.int32),
        "running": Running(jnp.zeros(()), jnp.zeros(())),
    }
    memory = Memory(parts.normaliser.init(), known)
    return jax.tree.map(jnp.asarray, Learner(params, log_tau, memory, opt))


def actor_critic(settings: ActorCritic, parts: Parts, optimisers: Optimisers, tau0: float) -> Agent:
    """The agent whose attitude to risk, estimator and optimisers are given."""
    action_dist, normaliser = parts.action_dist, parts.normaliser

    def look_up(learner: Learner, obs: Array) -> Params:
        return Params(learner.params.dense, optimisers.rows.look_up(learner.params.rows, obs))

    def dist_params(learner: Learner, obs: Array) -> Array:
        return policy_logits(
            parts, look_up(learner, obs), normaliser.obs(learner.memory.normaliser, obs)
        )

    def act(
        learner: Learner, episode_state: Tree, obs: Array, action_noise: Array
    ) -> tuple[Array, Array]:
        """Sample from the policy. What needs a sum over actions waits for log_mu."""
        logits = dist_params(learner, obs)  # [A]
        return action_dist.draw(logits, action_noise), logits

    def actor_params(learner: Learner) -> Learner:
        dense = {name: learner.params.dense[name] for name in ("torso", "policy")}
        return Learner(
            learner.params._replace(dense=dense),
            learner.log_tau,
            learner.memory._replace(uncertainty=()),
            (),
        )

    def observe(learner: Learner, t: Trajectory) -> Learner:
        stats = normaliser.observe(learner.memory.normaliser, t)
        t = t._replace(
            obs=normaliser.obs(stats, t.obs),
            reward=normaliser.reward(stats, t.reward),
            action=action_dist.action_index(t.action),
        )
        known = parts.uncertainty.observe(learner.memory.uncertainty, t)
        return learner._replace(memory=Memory(stats, known))

    def sigma2(learner: Learner, obs: Array, action: Array) -> Array:
        dense, looked_up = look_up(learner, obs)
        obs = normaliser.obs(learner.memory.normaliser, obs)
        features = parts.torso.apply(dense["torso"], looked_up["torso"], obs)
        heads = Params(dense["uncertainty"], looked_up["uncertainty"])
        return parts.uncertainty.sigma2(
            heads, learner.memory.uncertainty, obs, features, action_dist.action_index(action)
        )

    policy = BehaviourPolicy(
        init_episode=lambda learner, key: (),
        action_noise=action_dist.action_noise,
        act=act,
        log_mu=action_dist.log_prob,
        mode=lambda learner, episode_state, obs: action_dist.mode(dist_params(learner, obs)),
        to_env=action_dist.to_env,
        actor_params=actor_params,
    )
    return Agent(
        init=lambda rng: init_actor_critic(settings, parts, optimisers, tau0, rng),
        policy=policy,
        noise=parts.uncertainty.noise,
        observe=observe,
        update=lambda learner, batch: update_actor_critic(
            settings, parts, optimisers, learner, batch
        ),
        sigma2=sigma2,
    )
