"""The update of the actor-critic; tests/algorithm/test_gradient.py has its expected gradient."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac import config
from ersac.agents import actor_critic as ac
from ersac.agents.actor_critic import BATCH
from ersac.agents.build import make_agent, make_optimisers, make_parts
from ersac.algorithm.action_dist import categorical, tanh_normal
from ersac.config.presets import PRESETS, TABLE_PRESETS
from ersac.envs.base import Box, spec_of
from ersac.envs.deep_sea import deep_sea
from ersac.nets import heads
from ersac.types import Params, Trajectory

ENV = deep_sea(6)
SAMPLED = TABLE_PRESETS["ersac-sampled"]  # Algorithm 1, with tables
NO_MEANS = ac.RunningMeans(jnp.zeros(()), jnp.zeros(()))
ACTOR_CRITICS = {
    name: settings for name, settings in PRESETS.items() if isinstance(settings, config.ActorCritic)
}
COMBINED = ("ppo", "ppo-rnd", "ersac-ppo, table")  # of the parts of others
EVERY = ACTOR_CRITICS | {f"{name}, table": settings for name, settings in TABLE_PRESETS.items()}


def undamped(steps: int) -> dict[str, jax.Array]:
    return dict.fromkeys(("policy", "value", "uncertainty"), jnp.ones(steps))


def test_the_logit_gap_is_limited_and_its_gradient_is_not():
    """The gap to the largest logit is limited; the gradient is that without a limit."""
    logits = jnp.array([[20.0, 0.0, 15.0], [1.0, 2.0, 3.0]])
    np.testing.assert_allclose(
        heads.limit_logit_gap(logits, 8.0), [[0.0, -8.0, -5.0], [-2.0, -1.0, 0.0]]
    )
    log_prob = lambda x: jax.nn.log_softmax(heads.limit_logit_gap(x, 8.0))[0, 1]
    p = jax.nn.softmax(heads.limit_logit_gap(logits, 8.0))[0]
    np.testing.assert_allclose(
        jax.grad(log_prob)(logits)[0], jnp.array([0.0, 1.0, 0.0]) - p, atol=1e-6
    )


def batch(seed: int, rollouts: int = 3, steps: int = 50, members: int = 10) -> Trajectory:
    rng = np.random.default_rng(seed)
    shape = (rollouts, steps)
    return Trajectory(
        jnp.asarray(rng.integers(0, ENV.n_states, (rollouts, steps + 1))),
        jnp.asarray(rng.integers(0, 2, shape)),
        jnp.asarray(rng.normal(size=shape), jnp.float32),
        jnp.asarray(rng.random(shape) > 0.2, jnp.float32),
        jnp.asarray(rng.random(shape) > 0.1, jnp.float32),
        jnp.asarray(np.log(rng.uniform(0.2, 0.9, shape)), jnp.float32),
        jnp.zeros((*shape, members)),
    )


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in COMBINED)) for name in EVERY],
)
def test_tau_moves_only_if_the_agent_is_risk_seeking(name):
    agent = make_agent(EVERY[name], spec_of(ENV))
    learner = agent.init(np.random.default_rng(0))
    after, priority, metrics = jax.jit(agent.update)(learner, batch(0))
    assert (after.log_tau != learner.log_tau) == isinstance(EVERY[name].risk, config.Seeking)
    assert priority.shape == (3,)
    assert all(np.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("settings", [SAMPLED, PRESETS["ersac"]], ids=["table", "mlp"])
def test_actions_have_the_frequencies_of_log_mu(settings):
    agent = make_agent(config.override(settings, policy_rate=3.0), spec_of(ENV))
    learner, _, _ = jax.jit(agent.update)(agent.init(np.random.default_rng(0)), batch(1))
    action_noise = agent.policy.action_noise(jax.random.key(0), 100_000)
    every = jax.jit(
        jax.vmap(
            lambda obs: jax.vmap(lambda one: agent.policy.act(learner, (), obs, one))(action_noise)
        )
    )
    action, dist_params = every(jnp.arange(12))
    log_mu = agent.policy.log_mu(dist_params, action)
    share = np.asarray(action).mean(axis=1)
    assert share.std() > 0.05
    for obs in range(12):
        for a in (0, 1):
            chosen = np.asarray(action[obs]) == a
            np.testing.assert_allclose(
                np.exp(np.asarray(log_mu[obs])[chosen]), chosen.mean(), atol=4 * 0.5 / 100_000**0.5
            )


@pytest.mark.parametrize(
    "name",
    [
        "ersac",
        pytest.param("ersac-ppo", marks=pytest.mark.slow),
        "ersac-replay",
        "rnd",
        "ersac-sampled, table",
        "ersac, table",
        "ersac-replay, table",
    ],
)
def test_masked_steps_have_no_influence(float64, name):
    settings = config.check(config.override(EVERY[name], rollout=6, hidden=(4, 4)))
    parts = make_parts(settings, spec_of(ENV))
    optimisers = make_optimisers(settings, parts, 0.0)
    learner = ac.init_actor_critic(parts, optimisers, 0.1, np.random.default_rng(0))
    t = jax.tree.map(lambda x: x[0], batch(2, 1, 6))
    t = t._replace(mask=jnp.array([1.0, 1.0, 0.0, 1.0, 1.0, 1.0]))

    def loss_gradients(t):
        rows, running = (
            optimisers.rows.look_up(learner.params.rows, t.obs),
            ac.RunningMeans(jnp.asarray(0.1), jnp.asarray(0.2)),
        )
        arguments = learner.log_tau, learner.memory, t, undamped(6), running
        alone = lambda of: jax.tree.map(
            lambda x: x[0], jax.vmap(lambda _: of(), axis_name=BATCH)(jnp.zeros(1))
        )
        one = lambda dense, rows, log_tau: alone(
            lambda: ac.actor_critic_loss(
                settings, parts, Params(dense, rows), log_tau, *arguments[1:]
            )
        )
        return jax.tree.leaves(
            jax.jit(jax.grad(one, (0, 1, 2), has_aux=True))(
                learner.params.dense, rows, learner.log_tau
            )
        )

    other = t._replace(
        reward=t.reward.at[2].set(99.0),
        action=t.action.at[2].set(1 - t.action[2]),
        log_mu=t.log_mu.at[2].add(-0.3),
    )
    for a, b in zip(loss_gradients(t), loss_gradients(other), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_loss_weights_scale_gradients_of_shared_layers_only():
    torso = lambda **changes: gradients(**changes)["torso"]
    value = lambda **changes: gradients(**changes)["value"]
    none = torso(value_weight=0.0, reward_weight=0.0)
    once, twice = (
        torso(value_weight=1.0, reward_weight=0.0),
        torso(value_weight=2.0, reward_weight=0.0),
    )
    for a, b, c in zip(*map(jax.tree.leaves, (none, once, twice)), strict=True):
        np.testing.assert_allclose(c - a, 2 * (b - a), rtol=1e-3, atol=1e-3)
    for a, b in zip(
        *map(jax.tree.leaves, (value(value_weight=0.0), value(value_weight=2.0))), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def gradients(t=None, **changes):
    """The gradients of the loss by part, on one trajectory."""
    settings = config.check(config.override(SAMPLED, rollout=50, hidden=(4, 4), **changes))
    parts = make_parts(settings, spec_of(ENV))
    optimisers = make_optimisers(settings, parts, 0.0)
    learner = ac.init_actor_critic(parts, optimisers, 0.5, np.random.default_rng(3))
    t = jax.tree.map(lambda x: x[0], batch(4, 1)) if t is None else t
    rows = optimisers.rows.look_up(learner.params.rows, t.obs)
    rest = learner.log_tau, learner.memory, t, undamped(50), NO_MEANS
    return jax.jit(
        jax.grad(lambda dense: ac.actor_critic_loss(settings, parts, Params(dense, rows), *rest)[0])
    )(learner.params.dense)


def test_advantages_are_clipped_at_the_limit():
    """The policy gradient is the same for a reward of 1e4 and of 1e6; the critic's is not."""
    t = jax.tree.map(lambda x: x[0], batch(5, 1))
    once, hundred = (
        gradients(t._replace(reward=reward), advantage_limit=2.0)
        for reward in (t.reward.at[7].set(1e4), t.reward.at[7].set(1e6))
    )
    for a, b in zip(*map(jax.tree.leaves, (once["policy"], hundred["policy"])), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert any(
        np.max(np.abs(b)) > 50 * np.max(np.abs(a))
        for a, b in zip(*map(jax.tree.leaves, (once["value"], hundred["value"])), strict=True)
    )


@pytest.mark.parametrize("settings", [SAMPLED, PRESETS["ersac"]], ids=["table", "mlp"])
@pytest.mark.parametrize(("prior_scale", "direction"), [(10.0, 1), (0.0, -1)])
def test_tau_plays_against_the_policy(settings, prior_scale, direction):
    """tau descends `sigma2 / (2 tau) + tau H`: it rises if sigma is large and falls if it is 0."""
    agent = make_agent(config.override(settings, prior_scale=prior_scale), spec_of(ENV))
    learner = agent.init(np.random.default_rng(0))
    after, _, _ = jax.jit(agent.update)(learner, batch(6))
    assert np.sign(after.log_tau - learner.log_tau) == direction


def test_values_have_the_gradient_of_their_errors_and_targets_none():
    """The gradient of a value is minus its error; a state used only for bootstrapping has none."""
    settings = config.check(config.override(SAMPLED, rollout=50, hidden=(4, 4)))
    parts = make_parts(settings, spec_of(ENV))
    optimisers = make_optimisers(settings, parts, 0.0)
    learner = ac.init_actor_critic(parts, optimisers, 0.5, np.random.default_rng(3))
    t = jax.tree.map(lambda x: x[0], batch(7, 1))
    rows = optimisers.rows.look_up(learner.params.rows, t.obs)
    rest = learner.log_tau, learner.memory, t, undamped(50), NO_MEANS
    one = lambda rows: ac.actor_critic_loss(
        settings, parts, Params(learner.params.dense, rows), *rest
    )
    gradient, (mean_error, _, _) = jax.jit(jax.grad(one, has_aux=True))(rows)
    value_gradient = np.asarray(gradient["value"]["row"])[:, 0]  # [T+1]
    assert value_gradient[-1] == 0
    assert np.all((value_gradient[:-1] == 0) == (np.asarray(t.mask) == 0))
    np.testing.assert_allclose(np.abs(value_gradient).sum(), mean_error, rtol=1e-5)


def test_damping_scales_the_gradient_of_its_head_only():
    """Damping of 1/2 halves the gradient of its head and of no other."""
    settings = config.check(
        config.override(PRESETS["ersac"], normalise_advantages=False, rollout=50, hidden=(16,))
    )
    parts = make_parts(settings, spec_of(ENV))
    optimisers = make_optimisers(settings, parts, 0.0)
    learner = ac.init_actor_critic(parts, optimisers, 0.5, np.random.default_rng(3))
    t = jax.tree.map(lambda x: x[0], batch(4, 1))
    rows = optimisers.rows.look_up(learner.params.rows, t.obs)

    @jax.jit
    @jax.grad
    def gradient(params, damping):
        return ac.actor_critic_loss(
            settings, parts, params, learner.log_tau, learner.memory, t, damping, NO_MEANS
        )[0]

    params, ones = Params(learner.params.dense, rows), undamped(50)
    undamped_gradient = gradient(params, ones)
    for damped in ones:
        half = gradient(params, ones | {damped: jnp.full(50, 0.5)})
        for name in ones:
            share = 0.5 if name == damped else 1.0
            for a, b in zip(
                *(
                    jax.tree.leaves((g.dense[name], g.rows[name]))
                    for g in (half, undamped_gradient)
                ),
                strict=True,
            ):
                np.testing.assert_allclose(a, share * b, rtol=1e-5, atol=1e-8)
                assert np.abs(b).max() > 0


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99])
def test_running_means_decay_as_documented(float64, decay):
    """Squared advantages: exponential decay from 0; none where the decay is 0.

    Intrinsic reward: the mean of all updates up to the hundredth, then exponential decay.
    """
    squares, intrinsics = np.random.default_rng(0).exponential(size=(2, 300))
    running, expected = NO_MEANS, 0.0
    for time, (square, intrinsic) in enumerate(zip(squares, intrinsics, strict=True), start=1):
        running = ac.update_running(
            running,
            ac.RunningMeans(jnp.asarray(square), jnp.asarray(intrinsic)),
            decay,
            jnp.asarray(time),
        )
        expected = intrinsics[:time].mean() if time <= 100 else 0.99 * expected + 0.01 * intrinsic
        known = (
            (1 - decay) * np.sum(decay ** np.arange(time)[::-1] * squares[:time]) if decay else 0.0
        )
        np.testing.assert_allclose(running.advantage_square, known, rtol=1e-11)
        np.testing.assert_allclose(running.intrinsic, expected, rtol=1e-11)


def test_an_update_stores_the_running_means():
    """After one batch the running squares differ only by their decays.

    Without a bonus the intrinsic reward is the weighted entropy.
    """
    settings = config.override(PRESETS["vanilla"], alpha=0.3)

    def after(decay):
        agent = make_agent(config.override(settings, spread_decay=decay), spec_of(ENV))
        learner, _, metrics = jax.jit(agent.update)(agent.init(np.random.default_rng(0)), batch(8))
        return learner.opt["running"], metrics

    (half, metrics), (tenth, _), (none, _) = after(0.5), after(0.9), after(0.0)
    assert half.advantage_square > 0
    np.testing.assert_allclose(tenth.advantage_square, 0.2 * half.advantage_square, rtol=1e-5)
    assert none.advantage_square == 0
    np.testing.assert_allclose(half.intrinsic, 0.3 * metrics["entropy"], rtol=1e-5)


def test_targets_of_continuous_actions_have_no_importance_ratios_on_policy():
    """Ratios of narrow densities are near 0 wherever the policy has moved: values diverged."""
    mask, rho = jnp.array([1.0, 0.0, 1.0]), jnp.array([0.3, 0.0, 1.0])
    line = tanh_normal(Box((1,), low=(-1.0,), high=(1.0,)))
    on_policy, replay = config.ActorCritic(), config.ActorCritic(buffer=config.Replay())
    weights = lambda settings, dist: ac.trace_weight(settings, dist, mask, rho)
    np.testing.assert_array_equal(weights(on_policy, line), mask)
    np.testing.assert_array_equal(weights(replay, line), rho)
    np.testing.assert_array_equal(weights(on_policy, categorical(2)), rho)
