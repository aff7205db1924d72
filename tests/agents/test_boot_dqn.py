"""Bootstrapped DQN: its update equals a dense reference; acting, replay, priors and masks."""

import jax
import numpy as np
import optax
import pytest
from jax import numpy as jnp
from scipy import stats

import ersac
from ersac import api, config
from ersac.agents import boot_dqn
from ersac.agents.build import make_agent
from ersac.config.presets import PRESETS
from ersac.envs.base import Box, Discrete, Env, PackedSpace, Spec, size_of, spec_of
from ersac.envs.deep_sea import deep_sea
from ersac.envs.gym.spaces import pack_bytes
from ersac.loops import device, host
from ersac.loops.rollout import init_actor, interact
from ersac.runs import run_dir
from ersac.types import Trajectory

ENV = deep_sea(3)
STATES = jnp.arange(ENV.n_states)
SMALL = {"members": 3, "hidden": (5, 4), "batch": 16, "replay": 12, "least_replay": 6}
UNLIKELY = 1e-4  # p-value below which a test fails; the draws are the same in every run


def make(**changes):
    settings = config.check(config.override(PRESETS["boot-dqn"], **(SMALL | changes)))
    return settings, make_agent(settings, spec_of(ENV))


def steps(agent, seed: int, length: int = 1) -> Trajectory:
    """A batch of one random trajectory, with the noise that the agent draws for it."""
    rng = np.random.default_rng(seed)
    t = Trajectory(
        obs=jnp.asarray(rng.integers(0, ENV.n_states, length + 1)),
        action=jnp.asarray(rng.integers(0, 2, length)),
        reward=jnp.asarray(rng.normal(size=length)),
        discount=jnp.asarray(rng.random(length) > 0.3, float),
        mask=jnp.ones(length),
        log_mu=jnp.zeros(length),
        noise=agent.noise(jax.random.key(seed), length),
    )
    return jax.tree.map(lambda x: x[None], t)


def double(tree):
    return jax.tree.map(
        lambda x: x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree
    )


def all_values(agent, learner, members: int = 3):
    """Q of all states, actions and members [S, A, K]."""
    one = lambda obs: jnp.stack(
        [agent.policy.act(learner, k, obs, 0.5)[1] for k in range(members)], axis=-1
    )
    return jax.jit(jax.vmap(one))(STATES)


class DenseReference:
    """A dense reference: one-hot inputs, one member after another, optax's Adam, copied targets."""

    def __init__(self, settings, rng):
        self.settings = settings
        self.params, self.priors = self.init_members(rng), self.init_members(rng)
        self.optimiser = optax.adam(settings.learning_rate, settings.b1, settings.b2)
        self.target, self.opt = self.params, self.optimiser.init(self.params)
        self.replay, self.added, self.updates = [], 0, 0
        self.gradient = jax.jit(jax.grad(self.loss))

    def init_members(self, rng):
        """The weights of the members, in the order in which the agent draws them."""
        net = boot_dqn.QNetwork(
            self.settings.members, self.settings.hidden, ENV.n_states, ENV.n_actions
        )
        first, dense = boot_dqn.init_weights(net, rng)
        first = first.reshape(ENV.n_states, self.settings.members, -1)
        members = [
            [first[:, k], *(part[k] for part in net.split(dense))]
            for k in range(self.settings.members)
        ]
        return double(jax.tree.map(jnp.asarray, members))

    @staticmethod
    def forward(member, obs):
        w1, b1, w2, b2, w3, b3 = member
        inputs = jnp.eye(ENV.n_states, dtype=jnp.float64)[obs]
        return jax.nn.relu(jax.nn.relu(inputs @ w1 + b1) @ w2.T + b2) @ w3.T + b3

    def prior(self, k, obs):
        return self.settings.prior_scale * self.forward(self.priors[k], obs)

    def q(self, params, k, obs):
        return self.forward(params[k], obs) + self.prior(k, obs)

    def values(self):
        return jnp.stack(
            [self.q(self.params, k, STATES) for k in range(self.settings.members)], axis=-1
        )

    def loss(self, params, target_params, t):
        obs, action, reward, discount, later, mask = t
        losses = []
        for k in range(self.settings.members):
            value = jnp.take_along_axis(self.q(params, k, obs), action[:, None], axis=1)[:, 0]
            next_value = jnp.max(self.q(target_params, k, later), axis=1)
            target = (
                reward[:, min(k, reward.shape[1] - 1)] + self.settings.gamma * discount * next_value
            )
            losses.append(mask[:, k] * jnp.square(value - target))
        return jnp.mean(jnp.stack(losses))

    def update(self, t):
        noise = jax.tree.map(lambda x: x[0, 0], t.noise)
        new = (
            t.obs[0, 0],
            t.action[0, 0],
            t.reward[0, 0] + noise.reward,
            t.discount[0, 0],
            t.obs[0, 1],
            noise.mask,
        )
        slot = self.added % self.settings.replay
        self.replay[slot : slot + 1] = [new]
        self.added += 1
        if len(self.replay) < self.settings.least_replay:
            return
        self.learn([self.replay[int(bit) % len(self.replay)] for bit in noise.replay_bits])

    def learn(self, sampled):
        """One step of every member on a batch."""
        batch = [jnp.stack(column) for column in zip(*sampled, strict=True)]
        step, self.opt = self.optimiser.update(
            self.gradient(self.params, self.target, batch), self.opt
        )
        self.params = optax.apply_updates(self.params, step)
        self.updates += 1
        if (self.updates + 1) % self.settings.target_period == 0:  # bsuite's counter starts at one
            self.target = self.params


def both(settings, agent, seed: int):
    """A learner and the reference with equal weights in double precision.

    Priors are those of the learner, which has them in single precision.
    """
    learner, reference = (
        double(agent.init(np.random.default_rng(seed))),
        DenseReference(settings, np.random.default_rng(seed)),
    )
    prior = jnp.concatenate([reference.prior(k, STATES) for k in range(settings.members)], axis=1)
    np.testing.assert_allclose(learner.memory.prior, prior, atol=1e-6)
    return learner._replace(memory=learner.memory._replace(prior=prior)), reference


@pytest.mark.parametrize(
    "changes", [{}, {"noise_variance": 0.5, "target_period": 3}], ids=["bsuite", "noise"]
)
def test_the_update_equals_that_of_a_dense_reference(float64, changes):
    """Without momentum the lazy Adam equals the dense one.

    From before the first update until the replay has been overwritten twice.
    """
    settings, agent = make(b1=0.0, learning_rate=0.01, **changes)
    learner, reference = both(settings, agent, 0)
    start, update = learner, jax.jit(agent.update)
    before = all_values(agent, start)
    for seed in range(30):
        t = double(steps(agent, seed))
        learner, _, _ = update(learner, t)
        reference.update(t)
        if seed == 4:  # below least_replay
            np.testing.assert_array_equal(all_values(agent, learner), before)
    assert learner.opt["time"] == reference.updates == 25
    ours, theirs = all_values(agent, learner), reference.values()
    assert np.abs(ours - before).min() > 1e-4
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)
    np.testing.assert_allclose(
        jax.vmap(lambda obs: agent.sigma2(learner, obs, 1))(STATES),
        np.var(theirs[:, 1], axis=1),
        atol=1e-10,
    )
    np.testing.assert_array_equal(learner.memory.prior, start.memory.prior)


def test_momentum_equals_the_references_if_every_row_is_in_every_batch(float64):
    settings, agent = make(batch=18, replay=18, least_replay=9)
    learner, reference = both(settings, agent, 1)
    update, around = jax.jit(agent.update), jnp.append(STATES, 0)
    for seed in range(20):
        t = double(steps(agent, seed))
        all_slots = jnp.arange(18, dtype=jnp.uint32)[None, None]
        t = t._replace(
            obs=around[None, seed % 9 : seed % 9 + 2], noise=t.noise._replace(replay_bits=all_slots)
        )
        learner, _, _ = update(learner, t)
        reference.update(t)
    assert reference.updates == 12
    np.testing.assert_allclose(all_values(agent, learner), reference.values(), rtol=0, atol=1e-10)


def test_one_member_acts_through_an_episode_with_its_newest_weights():
    _, agent = make(members=4)
    learner, env_params = agent.init(np.random.default_rng(0)), jnp.asarray(ENV.env_params(0))
    key = jax.random.key(0)

    def one(actor, number):
        action_noise, after = (
            agent.policy.action_noise(jax.random.fold_in(key, number), 1)[0],
            jax.random.fold_in(key, 1000 + number),
        )
        following, step = interact(ENV, agent, env_params, learner, actor, action_noise, after)
        return following, (actor.episode_state, step)

    _, (members_acting, interactions) = jax.lax.scan(
        one, init_actor(ENV, agent, env_params, learner, key), jnp.arange(90)
    )
    members_acting = np.asarray(members_acting).reshape(30, 3)  # an episode has three steps
    assert (members_acting == members_acting[:, :1]).all()
    assert len(set(members_acting[:, 0])) == 4
    values = np.asarray(all_values(agent, learner, 4))  # [S, A, K]
    np.testing.assert_array_equal(
        interactions.action, values[interactions.obs, :, members_acting.reshape(-1)].argmax(axis=1)
    )
    # the member acts with its newest weights
    later, _, _ = jax.jit(agent.update)(learner, steps(agent, 0, length=6))
    assert not np.allclose(
        agent.policy.act(later, 2, 4, 0.5)[1], agent.policy.act(learner, 2, 4, 0.5)[1], atol=1e-6
    )


def test_every_member_is_as_likely_to_act():
    _, agent = make(members=10)
    members_acting = jax.vmap(lambda key: agent.policy.init_episode(None, key))(
        jax.random.split(jax.random.key(0), 20_000)
    )
    assert stats.chisquare(np.bincount(members_acting, minlength=10)).pvalue > UNLIKELY


def test_ties_are_broken_uniformly_and_log_mu_agrees():
    _, agent = make()
    learner = jax.tree.map(jnp.zeros_like, agent.init(np.random.default_rng(0)))
    uniform = (jnp.arange(1000) + 0.5) / 1000
    action, q = jax.vmap(lambda u: agent.policy.act(learner, 0, 0, u))(uniform)
    assert np.bincount(action).tolist() == [500, 500]
    np.testing.assert_allclose(agent.policy.log_mu(q, action), -np.log(2), rtol=1e-6)
    np.testing.assert_allclose(agent.policy.log_mu(jnp.array([[1.0, 2.0]]), jnp.array([1])), 0)
    assert not np.isfinite(
        agent.policy.log_mu(jnp.array([[np.nan, 2.0]]), jnp.array([1]))
    ).any()  # so that the guard detects it


def test_new_transitions_overwrite_the_oldest():
    _, agent = make()
    memory = agent.init(np.random.default_rng(0)).memory
    for seed, length in enumerate((4, 4, 4, 1, 4)):  # seventeen steps for twelve slots
        t = steps(agent, seed, length)._replace(
            obs=int(memory.added) + jnp.arange(length + 1)[None]
        )
        memory, sampled = boot_dqn.add_and_sample(
            memory, boot_dqn.transitions(t), jnp.arange(16, dtype=jnp.uint32)
        )
        held = np.resize(memory.ring.obs[: memory.added], 16)
        np.testing.assert_array_equal(sampled.obs, held)  # including the new ones
        np.testing.assert_array_equal(sampled.next_obs, held + 1)
    np.testing.assert_array_equal(memory.ring.obs, [12, 13, 14, 15, 16, 5, 6, 7, 8, 9, 10, 11])
    np.testing.assert_array_equal(memory.ring.next_obs, memory.ring.obs + 1)
    np.testing.assert_allclose(memory.ring.reward[1:5, 0], t.reward[0])
    np.testing.assert_array_equal(memory.ring.mask[1:5], t.noise.mask[0])
    assert memory.added == 17


def test_fake_steps_are_masked_for_all_members():
    _, agent = make(mask_share=1.0)
    t = steps(agent, 0, 3)._replace(mask=jnp.array([[1.0, 0.0, 1.0]]))
    np.testing.assert_array_equal(
        boot_dqn.transitions(t).mask, [[True] * 3, [False] * 3, [True] * 3]
    )


@pytest.mark.parametrize(("before", "held"), [(6, 7), (11, 12), (40, 12)])
def test_the_replay_is_sampled_uniformly(before, held):
    _, agent = make(batch=64)
    memory = agent.init(np.random.default_rng(0)).memory
    memory = memory._replace(added=jnp.int32(before), ring=memory.ring._replace(obs=jnp.arange(12)))
    new = boot_dqn.transitions(steps(agent, 0))._replace(
        obs=jnp.array([before % 12])
    )  # observations are the numbers of slots
    bits = agent.noise(jax.random.key(0), 300).replay_bits
    sampled = jax.vmap(lambda bits: boot_dqn.add_and_sample(memory, new, bits)[1].obs)(bits)
    counts = np.bincount(np.asarray(sampled).reshape(-1), minlength=12)
    assert not counts[held:].any()
    assert stats.chisquare(counts[:held]).pvalue > UNLIKELY


def test_masks_are_independent_fair_coins():
    _, agent = make(members=10, mask_share=0.3)
    mask = np.asarray(agent.noise(jax.random.key(0), 5000).mask, float)  # [T, K]
    np.testing.assert_allclose(mask.mean(axis=0), 0.3, atol=4 * (0.21 / 5000) ** 0.5)
    assert np.abs(np.corrcoef(mask.T) - np.eye(10)).max() < 4 / 5000**0.5


def test_weights_are_drawn_as_bsuite_draws_them():
    draws = boot_dqn.truncated_normal(np.random.default_rng(0), (200, 300), 25) * 5
    assert np.abs(draws).max() <= 2
    np.testing.assert_allclose(draws.std(), stats.truncnorm(-2, 2).std(), rtol=0.02)
    net = boot_dqn.QNetwork(6, (50, 50), 400, 2)
    first, dense = boot_dqn.init_weights(net, np.random.default_rng(0))
    bias, w2, b2, w3, b3 = net.split(dense)
    assert not any(part.any() for part in (bias, b2, b3))
    for part, inputs in ((first, 400), (w2, 50), (w3, 50)):
        np.testing.assert_allclose(part.std() * inputs**0.5, 0.88, rtol=0.1)


def one_hot(depth: int, envs: int = 1) -> Env:
    """DeepSea with one-hot vectors as observations, as in bsuite."""
    env_of_states = deep_sea(depth)
    observe = lambda env_params, state: jax.nn.one_hot(
        env_of_states.observe(env_params, state), env_of_states.n_states
    )
    return env_of_states._replace(
        observations=Box((env_of_states.n_states,)), observe=observe, envs=envs
    )


def make_dense(envs: int = 1, normalisation: config.Normalise = config.NO_NORMALISATION, **changes):
    settings = config.check(config.override(PRESETS["boot-dqn"], **(SMALL | changes)))
    return settings, make_agent(settings, spec_of(one_hot(3, envs)), normalisation)


def as_vectors(t: Trajectory) -> Trajectory:
    return t._replace(obs=jax.nn.one_hot(t.obs, ENV.n_states, dtype=t.reward.dtype))


def side_by_side(agent, seed: int, envs: int, length: int = 1) -> Trajectory:
    """Trajectories of N environments, with vectors as observations."""
    trajectories = [as_vectors(steps(agent, envs * seed + i, length)) for i in range(envs)]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *trajectories)


def dense_values(agent, learner, members: int = 3):
    """`all_values` at one-hot vectors."""
    one = lambda obs: jnp.stack(
        [agent.policy.act(learner, k, obs, 0.5)[1] for k in range(members)], axis=-1
    )
    return jax.jit(jax.vmap(one))(jnp.eye(ENV.n_states))


def test_a_row_is_a_one_hot_vector_times_the_dense_weights():
    """The same draws give the same members and the same priors."""
    (_, rows), (_, dense) = make(), make_dense()
    ours, theirs = (agent.init(np.random.default_rng(2)) for agent in (dense, rows))
    np.testing.assert_allclose(
        dense_values(dense, ours), all_values(rows, theirs), rtol=0, atol=1e-6
    )
    sigma2 = lambda agent, learner, states: jax.vmap(lambda obs: agent.sigma2(learner, obs, 0))(
        states
    )
    expected = sigma2(rows, theirs, STATES)
    np.testing.assert_allclose(sigma2(dense, ours, jnp.eye(ENV.n_states)), expected, rtol=1e-4)
    assert np.abs(np.diff(expected)).min() > 1e-3


@pytest.mark.parametrize(
    "changes", [{}, {"noise_variance": 0.5, "target_period": 3}], ids=["bsuite", "noise"]
)
def test_on_vectors_the_update_equals_the_reference_with_momentum(float64, changes):
    """The prior scale is a power of two, so that scaling is exact."""
    settings, agent = make_dense(learning_rate=0.01, prior_scale=2.0, **changes)
    learner, reference = (
        double(agent.init(np.random.default_rng(0))),
        DenseReference(settings, np.random.default_rng(0)),
    )
    np.testing.assert_allclose(dense_values(agent, learner), reference.values(), rtol=0, atol=1e-12)
    before, update = learner, jax.jit(agent.update)
    for seed in range(30):
        t = double(steps(agent, seed))
        learner, _, _ = update(learner, as_vectors(t))
        reference.update(t)
    assert learner.opt["time"] == reference.updates == 25
    ours = dense_values(agent, learner)
    assert np.abs(ours - dense_values(agent, before)).min() > 1e-4
    np.testing.assert_allclose(ours, reference.values(), rtol=0, atol=1e-10)
    np.testing.assert_array_equal(learner.memory.prior, before.memory.prior)


@pytest.mark.parametrize(
    ("envs", "normalisation"),
    [(1, config.NO_NORMALISATION), (4, config.Normalise())],
    ids=["raw", "four, normalised"],
)
def test_deep_sea_with_vectors_is_solved(monkeypatch, envs, normalisation):
    """A random policy reaches the goal once in 32 episodes."""
    monkeypatch.setattr(device, "make_env", lambda settings: one_hot(5, settings.envs))
    small = {"members": 5, "hidden": (20, 20), "batch": 32, "least_replay": 32, "seeds": 2}
    settings = api.make_settings("gymnax:tiny", "boot-dqn", envs=envs, chunk=2_000 // envs, **small)
    program = device.prepare_device(
        config.replace_at(settings, ("env", "normalisation"), normalisation)
    )
    _, late = (chunk for _, chunk in zip(range(2), device.run_device(program), strict=False))
    assert late.episodes.goal[late.episodes.ended].mean() > 0.9
    assert late.episodes.goal.any(axis=(1, 3)).all()  # in every environment of every seed
    np.testing.assert_array_equal(late.carry.learner.opt["time"], 4_000 - 32 // envs * envs + envs)


def test_each_environment_adds_a_gradient_step(float64):
    """N T transitions are followed by N batches, each with its own random bits."""
    envs, length = 4, 2
    settings, agent = make_dense(
        envs=envs, learning_rate=0.01, prior_scale=2.0, replay=400, least_replay=24
    )
    learner, reference = (
        double(agent.init(np.random.default_rng(0))),
        DenseReference(settings, np.random.default_rng(0)),
    )
    start, update, held = dense_values(agent, learner), jax.jit(agent.update), []
    for seed in range(40):
        t = double(side_by_side(agent, seed, envs, length))
        learner, _, metrics = update(learner, t)
        new = boot_dqn.transitions(t)
        states = new._replace(obs=new.obs.argmax(-1), next_obs=new.next_obs.argmax(-1))
        held += zip(*map(list, states), strict=True)
        assert learner.memory.added == len(held) == (seed + 1) * envs * length
        if seed < 2:  # below least_replay
            np.testing.assert_array_equal(dense_values(agent, learner), start)
        elif seed < 12:  # the reference is slow
            for bits in t.noise.replay_bits[:, 0]:
                reference.learn([held[int(bit) % len(held)] for bit in bits])
            assert learner.opt["time"] == reference.updates == envs * (seed - 1)
            np.testing.assert_allclose(
                dense_values(agent, learner), reference.values(), rtol=0, atol=1e-9
            )
        assert np.isfinite(metrics["loss"])
    ring = learner.memory.ring
    np.testing.assert_array_equal(
        ring.obs[: len(held)].argmax(-1), [transition[0] for transition in held]
    )
    np.testing.assert_array_equal(
        ring.mask[: len(held)], np.stack([transition[-1] for transition in held])
    )
    assert not ring.obs[len(held) :].any()


def test_the_replay_keeps_the_last_transitions_of_a_large_batch():
    _, agent = make_dense(envs=4, replay=6)
    memory = agent.init(np.random.default_rng(0)).memory
    for seed in range(2):
        new = boot_dqn.transitions(side_by_side(agent, seed, envs=4, length=2))
        memory, sampled = boot_dqn.add_and_sample(memory, new, jnp.arange(16, dtype=jnp.uint32))
        slots = (8 * seed + np.arange(2, 8)) % 6
        np.testing.assert_array_equal(memory.ring.reward[slots], new.reward[2:])
        np.testing.assert_array_equal(sampled.reward, np.resize(memory.ring.reward, (16, 1)))
        assert memory.added == 8 * (seed + 1)


def test_fake_steps_have_no_influence():
    """Every batch has the whole ring; all fields of a fake step but its mask have no influence."""
    _, agent = make_dense(envs=4, mask_share=1.0, replay=16, batch=16)
    real, all_slots = (
        jnp.ones((4, 2)).at[1, 0].set(0).at[3, 1].set(0),
        jnp.arange(16, dtype=jnp.uint32),
    )

    def learned(reward: float, mask):
        learner = agent.init(np.random.default_rng(0))
        for seed in range(5):
            t = side_by_side(agent, seed, 4, 2)
            noise = t.noise._replace(replay_bits=jnp.broadcast_to(all_slots, (4, 2, 16)))
            t = t._replace(reward=jnp.where(real > 0, t.reward, reward), mask=mask, noise=noise)
            learner, _, metrics = jax.jit(agent.update)(learner, t)
        return learner, metrics

    (quiet, metrics), (loud, same), (fooled, other) = (
        learned(0.0, real),
        learned(1e3, real),
        learned(1e3, jnp.ones((4, 2))),
    )
    held = np.asarray(quiet.memory.ring.mask).reshape(2, 4, 2, 3)
    np.testing.assert_array_equal(held, np.broadcast_to(real[None, :, :, None] > 0, held.shape))
    np.testing.assert_array_equal(quiet.params.dense, loud.params.dense)
    assert metrics["loss"] == same["loss"] < other["loss"]
    assert not np.allclose(fooled.params.dense, loud.params.dense)


def test_normalisation_removes_the_scale_of_observations_and_rewards():
    """Without normalisation the scale of observations and rewards has an influence."""
    _, agent = make_dense(envs=4, normalisation=config.Normalise())

    def learned(agent, obs_scale: float, reward_scale: float):
        learner = agent.init(np.random.default_rng(0))
        for seed in range(8):
            t = side_by_side(agent, seed, 4, 2)
            t = t._replace(obs=obs_scale * t.obs + 3 * obs_scale, reward=reward_scale * t.reward)
            learner, _, _ = jax.jit(agent.update)(agent.observe(learner, t), t)
        actor_params = agent.policy.actor_params(learner)
        return agent.policy.act(actor_params, 1, obs_scale * jnp.eye(9)[4] + 3 * obs_scale, 0.5)[
            1
        ], learner

    (ours, learner), (theirs, other) = learned(agent, 1.0, 1.0), learned(agent, 4.0, 1024.0)
    np.testing.assert_allclose(ours, theirs, rtol=1e-3)
    np.testing.assert_allclose(learner.params.dense, other.params.dense, atol=1e-4)
    ring = lambda learner: learner.memory.ring
    np.testing.assert_allclose(4 * ring(learner).obs, ring(other).obs)  # the replay is raw
    raw = make_dense(envs=4)[1]
    assert not np.allclose(learned(raw, 1.0, 1.0)[0], learned(raw, 4.0, 1024.0)[0], rtol=0.1)


def test_bits_are_kept_as_bits_and_learned_from_as_floats():
    settings, agent = make_dense(envs=4)
    spec = spec_of(one_hot(3, 4))
    packed = make_agent(
        settings, spec._replace(observations=spec.observations._replace(stored_as="bits"))
    )
    learners = [one.init(np.random.default_rng(0)) for one in (agent, packed)]
    for seed in range(20):
        batch = side_by_side(agent, seed, 4)
        learners = [
            one.update(learner, batch)[0]
            for one, learner in zip((agent, packed), learners, strict=True)
        ]
    floats, bits = (learner.memory.ring.obs for learner in learners)
    assert (bits.dtype, bits.shape[1]) == (np.uint8, -(-floats.shape[1] // 8))
    np.testing.assert_array_equal(floats, np.unpackbits(bits, axis=1, count=floats.shape[1]))
    for a, b in zip(*(jax.tree.leaves(learner.params) for learner in learners), strict=True):
        assert a.tobytes() == b.tobytes()


def test_images_of_bytes_are_kept_as_bytes_and_laid_flat():
    settings = config.check(config.override(PRESETS["boot-dqn"], **SMALL))
    spec = Spec("pictures", Box((3, 2, 2), is_bytes=True), Discrete(4), 2)
    agent = make_agent(settings, spec, config.Normalise())
    learner = agent.init(np.random.default_rng(0))
    ring = learner.memory.ring
    assert ring.obs.shape == ring.next_obs.shape == (12, 3, 2, 2)
    assert ring.obs.dtype == ring.next_obs.dtype == np.uint8
    image = jnp.arange(12, dtype=jnp.uint8).reshape(3, 2, 2)
    q = agent.policy.act(learner, 0, image, 0.5)[1]
    assert q.shape == (4,)
    assert not np.allclose(q, agent.policy.act(learner, 0, image[::-1], 0.5)[1])


def test_actions_that_are_not_allowed_are_neither_taken_nor_in_a_target():
    spec = Spec("masked", PackedSpace((Box((2,)),), choices=3), Discrete(3), 1)
    small = {"members": 1, "hidden": (8,), "replay": 1, "least_replay": 1, "batch": 2}
    agent = make_agent(config.override(PRESETS["boot-dqn"], **small), spec)
    learner = agent.init(np.random.default_rng(0))
    numbers = np.array([[0.3, -1.2]], np.float32)
    masks = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]], np.uint8)
    seen = [jnp.asarray(pack_bytes([numbers, mask[None]])[0]) for mask in masks]
    member = jnp.zeros((), jnp.int32)
    for action in range(3):
        for uniform in (0.0, 0.99):
            assert agent.policy.act(learner, member, seen[action], uniform)[0] == action
        assert agent.policy.mode(learner, member, seen[action]) == action

    def loss(following):
        ones, noise = jnp.ones((1, 1)), agent.noise(jax.random.key(0), 1)
        noise = jax.tree.map(lambda leaf: leaf[None], noise._replace(mask=noise.mask | True))
        obs = jnp.stack([seen[3], following])[None]
        action = jnp.zeros((1, 1), jnp.int32)
        t = Trajectory(obs, action, ones, ones, ones, jnp.zeros((1, 1)), noise)
        return float(agent.update(learner, t)[2]["loss"])

    *single, everything = [loss(following) for following in seen]
    best = int(agent.policy.mode(learner, member, seen[3]))
    assert everything == single[best]
    assert len(set(single)) == 3


def test_continuous_actions_are_refused_in_one_line():
    spec = Spec("pushed", Box((2,)), Box((1,), low=(-1.0,), high=(1.0,)), 1)
    with pytest.raises(
        config.SettingsError,
        match=r"^boot-dqn needs discrete actions; those of pushed are continuous$",
    ):
        make_agent(PRESETS["boot-dqn"], spec)


@pytest.mark.parametrize(
    "box",
    [Box((10, 10, 3)), Box((10, 10, 3), is_bytes=True), Box((10, 10, 3), stored_as="bits")],
    ids=["floats", "bytes", "bits"],
)
@pytest.mark.parametrize(
    "changes", [{"replay": 1}, {"replay": 5_000, "noise_variance": 0.1}], ids=["layers", "replay"]
)
def test_the_memory_estimate_matches_the_arrays(changes, box):
    small = {"members": 5, "hidden": (64, 16), "batch": 1, "chunk": 1, "envs": 2}
    settings = api.make_settings("gym:any", "boot-dqn", **small, **changes)
    spec = Spec("any", box, Discrete(3), 2)
    state = sum(leaf.nbytes for leaf in jax.tree.leaves(host.init_carry(settings, spec, 0)))
    assert config.bytes_needed(settings, size_of(spec)) / 2 == pytest.approx(state, rel=0.03)


def test_a_run_is_recorded_like_any_other(tmp_path):
    small = {
        "depth": 4,
        "seeds": 2,
        "hidden": (8, 8),
        "members": 3,
        "batch": 8,
        "chunk": 50,
        "episodes": 60,
        "least_replay": 20,
    }
    result = ersac.train(
        "deep-sea",
        agent="boot-dqn",
        out=tmp_path / "run",
        show=False,
        stop_when_solved=False,
        **small,
    )
    _, metrics, moments = run_dir.read_results(tmp_path / "run")
    assert set(metrics.values) == {"value", "loss", "sigma2", "goal_share"}
    assert metrics.values["loss"].shape == (2, len(metrics.step))
    assert np.isfinite(metrics.values["loss"]).all()
    assert moments[-1].sigma.shape == (4, 4)
    assert (moments[-1].sigma > 0).all()
    assert result.summary()["settings_hash"] == run_dir.settings_hash(
        run_dir.read_settings(tmp_path / "run")
    )
