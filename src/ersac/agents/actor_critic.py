"""Epistemic-risk-seeking actor-critic: Algorithm 1 [a-kac]; with another attitude to risk, its baselines."""

import math
from typing import NamedTuple

import jax
import optax
from jax import numpy as jnp
from jax.lax import stop_gradient

from ersac import game, nets, returns
from ersac.agents.base import Agent
from ersac.config import ActorCritic, Counts, Ensemble
from ersac.risk import Risk
from ersac.rows import Store
from ersac.types import Array, Key, Learner, Params, Rng, Trajectory, Tree
from ersac.uncertainty.base import Uncertainty


class Parts(NamedTuple):
    """What the learner is made of."""

    torso: nets.Torso
    policy: nets.Head
    value: nets.Head
    uncertainty: Uncertainty
    risk: Risk


class Optimisers(NamedTuple):
    """Who moves what: the dense layers, the game's second player, and the rows of every table."""

    dense: optax.GradientTransformation
    log_tau: optax.GradientTransformation
    rows: Store


def policy_logits(parts: Parts, params: Params, obs: Array) -> Array:
    """The policy's logits at observations whose rows have been looked up [..., A]."""
    features = parts.torso.apply(params.dense["torso"], params.rows["torso"], obs)
    return parts.policy.apply(params.dense["policy"], params.rows["policy"], features)


def log_prob(logits: Array, action: Array) -> Array:
    """log pi(a | s) [...] of logits [..., A]."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1)[..., 0]


def loss(
    settings: ActorCritic, parts: Parts, params: Params, log_tau: Array, memory: Tree, t: Trajectory
) -> tuple[Array, tuple[Array, dict[str, Array]]]:
    """What one trajectory asks of both players [a-kac], with the sign of e-pol-grad. `params.rows`: those of t.obs, [T+1, ...].

    Returns the loss, the trajectory's priority and metrics. The policy and tau play the first term with opposite signs; the
    critic and the reward heads have a term each. Every head learns its own term as it is; how hard a term pulls on the layers
    that they share is its weight.
    """
    dense, looked_up = params
    tau = jnp.exp(log_tau)
    before = jax.tree.map(lambda x: x[:-1], looked_up)  # the rows of s_1 ... s_T
    weight = parts.risk.weight(tau)
    unit = stop_gradient(weight)  # advantages count in units of the entropy weight: logits are K / tau

    # forward
    features = parts.torso.apply(dense["torso"], looked_up["torso"], t.obs)  # [T+1, H]
    log_pi = jax.nn.log_softmax(parts.policy.apply(dense["policy"], before["policy"], features[:-1]))  # [T, A]
    log_pi_a = jnp.take_along_axis(log_pi, t.action[:, None], axis=-1)[:, 0]  # [T]
    critic_features = nets.scale_gradient(features, settings.value_weight / jnp.square(unit))
    j = parts.value.apply(dense["value"], looked_up["value"], critic_features)[:, 0]  # [T+1]   J(s)
    entropy = game.entropy(log_pi)  # [T]

    # uncertainties
    heads = Params(dense["uncertainty"], before["uncertainty"])
    reward_features = nets.scale_gradient(features[:-1], settings.reward_weight)
    sigma2 = parts.uncertainty.sigma2(heads, memory, t.obs[:-1], reward_features, t.action)  # [T]
    bonus = parts.risk.bonus(sigma2, tau)

    # targets
    rho = stop_gradient(t.mask * jnp.minimum(1.0, jnp.exp(log_pi_a - t.log_mu)))  # [T]   V-trace's clipped ratio; 0 is a mask
    r_tau = stop_gradient(game.optimistic_reward(t.reward, bonus))
    entropy_bonus = stop_gradient(-weight * log_pi_a)  # sampled, as L_value in [a-kac] has it; its mean is weight * H
    baseline = stop_gradient(j)
    target = returns.targets(baseline, r_tau, entropy_bonus, settings.gamma * t.discount, rho, settings.lam)
    limit = settings.advantage_limit * unit
    advantage = rho * jnp.clip(target.action_value - baseline[:-1], -limit, limit)

    # losses
    mean = lambda x: jnp.sum(t.mask * x) / jnp.maximum(1.0, jnp.sum(t.mask))
    payoff = mean(game.payoff(log_pi_a, advantage, bonus, weight, entropy)) / unit
    critic = mean(0.5 * jnp.square(j[:-1] - (baseline[:-1] + target.error)))
    reward = mean(parts.uncertainty.loss(heads, memory, t.obs[:-1], reward_features, t))
    metrics = {"tau": tau, "entropy": mean(entropy), "sigma2": mean(sigma2), "payoff": payoff, "critic": critic, "reward": reward}
    return -payoff + critic + reward, (mean(jnp.abs(target.error)), metrics)


def update(
    settings: ActorCritic, parts: Parts, optimisers: Optimisers, learner: Learner, batch: Trajectory
) -> tuple[Learner, Array, dict[str, Array]]:
    """One simultaneous step of both players on a batch of trajectories [B, ...]."""
    params, log_tau, memory, opt = learner

    def total(dense: Tree, looked_up: Tree, log_tau: Array) -> tuple[Array, tuple[Array, dict[str, Array]]]:
        one = lambda rows_of_one, t: loss(settings, parts, Params(dense, rows_of_one), log_tau, memory, t)
        losses, aux = jax.vmap(one)(looked_up, batch)
        return jnp.mean(losses), aux

    looked_up = optimisers.rows.look_up(params.rows, batch.obs)  # [B, T+1, ...]
    gradients, (priority, metrics) = jax.grad(total, (0, 1, 2), has_aux=True)(params.dense, looked_up, log_tau)
    dense_gradient, row_gradient, tau_gradient = gradients

    step, dense_opt = optimisers.dense.update(dense_gradient, opt["dense"])
    dense = optax.apply_updates(params.dense, step)
    step, tau_opt = optimisers.log_tau.update(-tau_gradient, opt["log_tau"])  # the two players differ by this one sign
    time = opt["time"] + 1
    tables = optimisers.rows.update(params.rows, time, batch.obs, row_gradient)
    memory = parts.uncertainty.observe(memory, batch)
    learner = Learner(Params(dense, tables), log_tau + step, memory, {"dense": dense_opt, "log_tau": tau_opt, "time": time})
    return learner, priority, jax.tree.map(jnp.mean, metrics)


def init(settings: ActorCritic, parts: Parts, optimisers: Optimisers, tau0: float, rng: Rng) -> Learner:
    """A learner that has seen nothing."""
    heads, memory = parts.uncertainty.init(rng)
    made = {"torso": parts.torso.init(rng), "policy": parts.policy.init(rng), "value": parts.value.init(rng), "uncertainty": heads}
    tables = optimisers.rows.pack({name: part.rows for name, part in made.items()})
    params = Params({name: part.dense for name, part in made.items()}, tables)
    log_tau = jnp.float32(math.log(tau0))
    opt = {
        "dense": optimisers.dense.init(params.dense),
        "log_tau": optimisers.log_tau.init(log_tau),
        "time": jnp.zeros((), jnp.int32),
    }
    return jax.tree.map(jnp.asarray, Learner(params, log_tau, memory, opt))


def reward_noise(uncertainty: Ensemble | Counts, length: int, key: Key) -> Array:
    """The noise zeta of each step and member [T, K] (section 'Incorporating Off-Policy Data'); none on-policy."""
    if not isinstance(uncertainty, Ensemble):
        return jnp.zeros((length, 0))
    if uncertainty.noise_variance is None:
        return jnp.zeros((length, uncertainty.members))
    return jnp.sqrt(uncertainty.noise_variance) * jax.random.normal(key, (length, uncertainty.members))


def actor_critic(settings: ActorCritic, parts: Parts, optimisers: Optimisers, tau0: float, n_actions: int) -> Agent:
    """The agent whose attitude to risk, estimator and optimisers are given."""

    def look_up(learner: Learner, obs: Array) -> Params:
        return Params(learner.params.dense, optimisers.rows.look_up(learner.params.rows, obs))

    def act(learner: Learner, kept: Tree, obs: Array, gumbel: Array) -> tuple[Array, Array]:
        """Sample from the policy: the largest of logits plus Gumbel noise. What needs a sum over actions waits for log_mu."""
        logits = policy_logits(parts, look_up(learner, obs), obs)  # [A]
        return jnp.argmax(logits + gumbel), logits

    def sigma2(learner: Learner, obs: Array, action: Array) -> Array:
        dense, looked_up = look_up(learner, obs)
        features = parts.torso.apply(dense["torso"], looked_up["torso"], obs)
        heads = Params(dense["uncertainty"], looked_up["uncertainty"])
        return parts.uncertainty.sigma2(heads, learner.memory, obs, features, action)

    return Agent(
        init=lambda rng: init(settings, parts, optimisers, tau0, rng),
        begin=lambda learner, key: (),
        chance=lambda key, length: jax.random.gumbel(key, (length, n_actions)),
        act=act,
        log_mu=log_prob,
        noise=lambda key, length: reward_noise(settings.uncertainty, length, key),
        update=lambda learner, batch: update(settings, parts, optimisers, learner, batch),
        sigma2=sigma2,
    )
