"""Learning from new rollouts: on-policy an update, with replay corrected by V-trace."""

from functools import partial
from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac import config
from ersac.agents import actor_critic as ac
from ersac.agents.build import make_agent, make_buffer, make_optimisers, make_parts
from ersac.algorithm import replay
from ersac.algorithm.replay import MIN_PRIORITY
from ersac.envs.base import spec_of
from ersac.envs.deep_sea import deep_sea
from ersac.loops.learn import learn
from ersac.loops.rollout import Actor, draw_noise, init_actor, rollout
from ersac.types import Learner, Params, Trajectory, Tree

ENV = deep_sea(4)
ENV_PARAMS = jnp.asarray(ENV.env_params(0))
UNIFORM_REPLAY = config.Replay(capacity=4, batch=1, updates=1, priority_exponent=0.0)  # uniform
ON_POLICY = config.ActorCritic(
    uncertainty=config.Ensemble(members=3, noise_variance=0.01),
    rollout=5,
    hidden=(4,),
    policy_rate=3.0,
)
REPLAY = config.replace_at(ON_POLICY, ("buffer",), UNIFORM_REPLAY)


class State(NamedTuple):
    learner: Learner
    buffer_state: Tree
    actor: Actor


@jax.jit
def act(learner: Learner, actor: Actor, key) -> tuple[Actor, Trajectory]:
    agent = make_agent(ON_POLICY, spec_of(ENV))
    actor, t, _ = rollout(ENV, agent, ENV_PARAMS, learner, actor, draw_noise(ON_POLICY, agent, key))
    return actor, jax.tree.map(lambda x: x[None], t)  # one environment


@partial(jax.jit, static_argnums=0)
def learn_rollout(
    static: config.ActorCritic,
    floats: dict,
    learner: Learner,
    buffer_state: Tree,
    newest: Trajectory,
    key,
):
    settings = config.override(static, **floats)
    return learn(
        make_agent(settings, spec_of(ENV)),
        make_buffer(settings),
        learner,
        buffer_state,
        newest,
        key,
    )


def step(static: config.ActorCritic, floats: dict, state: State, key) -> tuple[State, Trajectory]:
    """Act a rollout and learn."""
    actor, newest = act(state.learner, state.actor, key)
    learner, buffer_state, _ = learn_rollout(
        static, floats, state.learner, state.buffer_state, newest, key
    )
    return State(learner, buffer_state, actor), newest


def start(settings: config.ActorCritic) -> State:
    """The initial state in double precision."""
    learner = make_agent(settings, spec_of(ENV)).init(np.random.default_rng(0))
    double = lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x
    learner = jax.tree.map(double, learner)
    actor = init_actor(
        ENV, make_agent(settings, spec_of(ENV)), ENV_PARAMS, learner, jax.random.key(0)
    )
    _, example = jax.eval_shape(act, learner, actor, jax.random.key(0))
    return State(
        learner,
        make_buffer(settings).init(
            jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), example)
        ),
        actor,
    )


def test_an_on_policy_rollout_is_observed_and_updated_on(float64):
    learner, buffer_state, actor = start(ON_POLICY)
    _, t = act(learner, actor, jax.random.key(0))
    after, buffer_state, metrics = learn_rollout(
        ON_POLICY, {"lam": 0.8}, learner, buffer_state, t, jax.random.key(1)
    )

    @jax.jit
    def update(lam, learner, t):
        agent = make_agent(config.override(ON_POLICY, lam=lam), spec_of(ENV))
        return agent.update(agent.observe(learner, t), t)

    expected, _, expected_metrics = update(0.8, learner, t)
    assert buffer_state == ()
    assert after.memory.uncertainty.visits.sum() == 5
    jax.tree.map(np.testing.assert_array_equal, (after, metrics), (expected, expected_metrics))


@pytest.mark.parametrize("lam", [1.0, 0.8])
def test_replay_of_the_newest_only_equals_on_policy_learning(float64, lam):
    replayed, on_policy = start(REPLAY), start(ON_POLICY)
    for number in range(6):
        key = jax.random.key(number)
        replayed, newest = step(REPLAY, {"lam": lam, "offline_fraction": 0.0}, replayed, key)
        on_policy, same = step(ON_POLICY, {"lam": lam}, on_policy, key)
        np.testing.assert_array_equal(newest.action, same.action)
        for a, b in zip(
            jax.tree.leaves(replayed.learner), jax.tree.leaves(on_policy.learner), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    assert replayed.buffer_state.pushed == 6


def error_by_hand(
    settings: config.ActorCritic, learner: Learner, t: Trajectory
) -> tuple[float, np.ndarray]:
    """The mean absolute V-trace error (Espeholt et al. 2018, eq. 1), and the importance ratios."""
    parts = make_parts(settings, spec_of(ENV))
    rows = make_optimisers(settings, parts, 0.0).rows.look_up(learner.params.rows, t.obs)
    dense, tau = learner.params.dense, np.exp(float(learner.log_tau))
    features = parts.torso.apply(dense["torso"], rows["torso"], t.obs)
    logits = np.asarray(ac.policy_logits(parts, Params(dense, rows), t.obs))[:-1]
    j = np.asarray(parts.value.apply(dense["value"], rows["value"], t.obs, features))[:, 0]
    heads = Params(dense["uncertainty"], jax.tree.map(lambda x: x[:-1], rows["uncertainty"]))
    sigma2 = np.asarray(
        parts.uncertainty.sigma2(
            heads, learner.memory.uncertainty, t.obs[:-1], features[:-1], t.action
        )
    )
    pi = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    pi_a = pi[np.arange(len(pi)), np.asarray(t.action)]
    rho = np.minimum(1, pi_a / np.exp(np.asarray(t.log_mu)))
    reward = np.asarray(t.reward) + sigma2 / (2 * tau) - tau * np.log(pi_a)
    discount = settings.gamma * np.asarray(t.discount)
    delta = rho * (reward + discount * j[1:] - j[:-1])
    decay, steps = settings.lam * discount * rho, len(pi)
    errors = [sum(np.prod(decay[s:i]) * delta[i] for i in range(s, steps)) for s in range(steps)]
    return np.abs(errors).mean(), rho


def test_a_replayed_rollout_is_corrected_by_importance_ratios(float64):
    """The priority of a replayed rollout is its V-trace error with ratios min(1, pi / mu)."""
    settings = config.override(REPLAY, offline_fraction=1.0)
    agent, buffer = make_agent(settings, spec_of(ENV)), make_buffer(settings)
    observe, push, draw = jax.jit(agent.observe), jax.jit(buffer.push), jax.jit(buffer.draw)
    state, ages, smallest_ratios = start(REPLAY), [], []
    for number in range(12):
        key = jax.random.key(100 + number)
        after, newest = step(REPLAY, {"lam": 0.8, "offline_fraction": 1.0}, state, key)
        buffer_state = push(state.buffer_state, newest)
        t, (slot,) = draw(buffer_state, newest, 0, jax.random.fold_in(key, 0))
        wanted, rho = error_by_hand(
            settings,
            observe(state.learner, newest),
            jax.tree.map(lambda x: x[0], jax.device_get(t)),
        )
        np.testing.assert_allclose(
            after.buffer_state.priority[slot], wanted + MIN_PRIORITY, rtol=1e-10
        )
        ages.append((number - int(slot)) % 4)
        smallest_ratios.append(rho.min())
        if ages[-1] == 0:
            np.testing.assert_allclose(rho, 1, rtol=1e-12)
        state = after
    assert {0, 3} <= set(ages)  # including the newest and the oldest
    assert min(smallest_ratios) < 0.8


def test_every_update_draws_its_own_batch():
    """Metrics are means over the updates; a rollout is observed and pushed once."""
    no_noise = jnp.zeros((3, 0))
    numbered = lambda number: Trajectory(*[jnp.full(3, number, jnp.float32)] * 6, no_noise)
    buffer = replay.prioritised(50, 1, 40, 1.0, 1.0)
    report_number = lambda learner, batch: (learner, jnp.ones(1), {"number": batch.reward[0, 0]})
    counter = make_agent(ON_POLICY, spec_of(ENV))._replace(
        observe=lambda learner, t: learner + 1, update=report_number
    )
    alone = lambda number: jax.tree.map(lambda x: x[None], numbered(number))
    ring, push = buffer.init(numbered(0)), jax.jit(buffer.push)
    for number in range(49):
        ring = push(ring, alone(number))
    learner, buffer_state, metrics = jax.jit(partial(learn, counter, buffer))(
        0, ring, alone(49), jax.random.key(0)
    )
    assert (learner, buffer_state.pushed) == (1, 50)
    drawn = jax.jit(
        lambda update: buffer.draw(
            buffer_state, alone(49), update, jax.random.fold_in(jax.random.key(0), update)
        )[1][0]
    )
    slots = [int(drawn(update)) for update in range(40)]
    assert len(set(slots)) > 20
    assert metrics["number"] == pytest.approx(np.mean(slots), rel=1e-6)
