"""The same agent in the common way: one-hot observations, dense layers, dense optimisers.

It exists only as a baseline of the benchmark. Its loss and its loop are the library's own. What
differs: rows are `one_hot(obs) @ table`, the gradient of a table is a table, and every optimiser
updates all of it. (Priors are not trained; they are looked up here too.)
"""

import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
import optax
from jax import numpy as jnp

from ersac import config
from ersac.agents import build
from ersac.agents.actor_critic import RunningMeans, actor_critic_loss, policy_logits
from ersac.agents.base import Agent
from ersac.algorithm import replay
from ersac.envs.base import Env, spec_of
from ersac.envs.make import make_env
from ersac.loops.learn import learn
from ersac.loops.rollout import Actor, RolloutNoise, StepOutcomes, draw_noise, init_actor, rollout
from ersac.types import Array, Learner, Params, Trajectory, Tree


class Carry(NamedTuple):
    """Everything that influences the future of one seed."""

    learner: Learner
    actor: Actor
    rollouts: Array  # []


def look_up(tables: Tree, obs: Array) -> Tree:
    """The rows of every table for observations [...], by multiplication."""
    first = jax.tree.leaves(tables)[0]
    one_hot = jax.nn.one_hot(obs, len(first), dtype=first.dtype)  # [..., S]
    return jax.tree.map(lambda table: one_hot @ table, tables)


def visit_step(rate: float | Array, rollout: int, obs: Array, gradient: Array) -> Array:
    """Descent at a rate per visit on a table [S, n]; repeated states are damped by their counts."""
    counts = jnp.sum(
        jax.nn.one_hot(obs.reshape(-1), len(gradient), dtype=gradient.dtype), axis=0
    )  # [S]
    damping = 1 + jnp.maximum(counts - 1, 0) * jnp.minimum(rate, 1.0)
    return -rate * rollout * gradient / damping[:, None]


def dense_agent(settings: config.ActorCritic, env: Env) -> Agent:
    """The library's agent with the same settings and initial weights, on dense tables."""
    assert settings.network == "table"
    assert not settings.normalise_advantages
    assert not settings.credit_early_ends
    sparse, parts = (
        build.make_agent(settings, spec_of(env)),
        build.make_parts(settings, spec_of(env)),
    )
    store = build.make_optimisers(settings, parts, 0.0).rows
    adam = optax.adam(settings.learning_rate, settings.b1, settings.b2)
    tau_adam = optax.adam(settings.risk.tau_learning_rate)
    visit_rates = {
        "policy": settings.policy_rate,
        "value": settings.value_rate,
        "uncertainty": settings.uncertainty.reward_rate,
    }

    def init(rng: np.random.Generator) -> Learner:
        (dense, packed), log_tau, memory, _ = sparse.init(rng)
        params = Params(dense, jax.tree.map(jnp.asarray, store.unpack(packed)))
        opt = {
            "shared": adam.init((dense, params.rows["torso"])),
            "log_tau": tau_adam.init(log_tau),
        }
        return Learner(params, log_tau, memory, opt)

    def act(
        learner: Learner, episode_state: Tree, obs: Array, gumbel: Array
    ) -> tuple[Array, Array]:
        dense, tables = learner.params
        logits = policy_logits(parts, Params(dense, look_up(tables, obs)), obs)  # [A]
        return jnp.argmax(logits + gumbel), logits

    def update(learner: Learner, batch: Trajectory) -> tuple[Learner, Array, dict[str, Array]]:
        (dense, tables), log_tau, memory, opt = learner
        # `visit_step` damps the rows, and agents with tables keep no running means.
        undamped, running = (
            dict.fromkeys(visit_rates, jnp.ones(settings.rollout)),
            RunningMeans(jnp.zeros(()), jnp.zeros(())),
        )

        def total(
            dense: Tree, tables: Tree, log_tau: Array
        ) -> tuple[Array, tuple[Array, RunningMeans, dict[str, Array]]]:
            trajectory_loss = lambda t: actor_critic_loss(
                settings,
                parts,
                Params(dense, look_up(tables, t.obs)),
                log_tau,
                memory,
                t,
                undamped,
                running,
            )
            losses, aux = jax.vmap(trajectory_loss)(batch)
            return jnp.mean(losses), aux

        gradients, (priority, _, metrics) = jax.grad(total, (0, 1, 2), has_aux=True)(
            dense, tables, log_tau
        )
        dense_gradient, table_gradient, tau_gradient = gradients
        (dense_step, torso_step), shared_opt = adam.update(
            (dense_gradient, table_gradient["torso"]), opt["shared"]
        )
        tau_step, tau_opt = tau_adam.update(-tau_gradient, opt["log_tau"])
        head_step = lambda name, rate: jax.tree.map(
            partial(visit_step, rate, settings.rollout, batch.obs), table_gradient[name]
        )
        table_step = {"torso": torso_step} | {
            name: head_step(name, rate) for name, rate in visit_rates.items()
        }
        params = Params(
            optax.apply_updates(dense, dense_step), optax.apply_updates(tables, table_step)
        )
        opt = {"shared": shared_opt, "log_tau": tau_opt}
        log_tau = jnp.maximum(log_tau + tau_step, jnp.log(settings.risk.tau_min))
        return Learner(params, log_tau, memory, opt), priority, jax.tree.map(jnp.mean, metrics)

    return sparse._replace(init=init, policy=sparse.policy._replace(act=act), update=update)


def run_dense(settings: config.Experiment, rollouts: int) -> Iterator[tuple[int, float]]:
    """Train one seed without end; yields (steps, seconds) of each call of that many rollouts."""
    env = make_env(settings.env)
    agent = dense_agent(settings.agent, env)
    env_params, key = (
        jnp.asarray(env.env_params(settings.run.seed)),
        jax.random.key(settings.run.seed),
    )
    learner = agent.init(np.random.default_rng(settings.run.seed))
    carry = Carry(learner, init_actor(env, agent, env_params, learner, key), jnp.int32(0))

    def body(
        carry: Carry, rollout_noise: RolloutNoise
    ) -> tuple[Carry, tuple[StepOutcomes, dict[str, Array]]]:
        actor, trajectory, outcomes = rollout(
            env, agent, env_params, carry.learner, carry.actor, rollout_noise
        )
        batch = jax.tree.map(lambda leaf: leaf[None], trajectory)
        learner, _, metrics = learn(agent, replay.on_policy(), carry.learner, (), batch, key)
        return Carry(learner, actor, carry.rollouts + 1), (outcomes, metrics)

    @partial(jax.jit, donate_argnums=0)
    def chunk(carry: Carry) -> tuple[Carry, tuple[StepOutcomes, dict[str, Array]]]:
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, carry.rollouts + jnp.arange(rollouts))
        return jax.lax.scan(body, carry, jax.vmap(partial(draw_noise, settings.agent, agent))(keys))

    while True:
        start = time.perf_counter()
        carry, outputs = chunk(carry)
        outcomes, _ = jax.device_get(outputs)
        yield outcomes.ended.size, time.perf_counter() - start
