"""The learner's own promises; that it climbs the game's gradient is tests/test_gradient.py."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac import config
from ersac.agents import actor_critic as ac
from ersac.agents.actor_critic import BATCH
from ersac.agents.build import make_agent, make_optimisers, make_parts
from ersac.config.presets import PRESETS, TABLE_PRESETS
from ersac.envs.base import spec_of
from ersac.envs.deep_sea import deep_sea
from ersac.nets import heads
from ersac.types import Params, Trajectory

ENV = deep_sea(6)
SAMPLED = TABLE_PRESETS["ersac-sampled"]  # Algorithm 1, on tables and the layers that they share
NOTHING_YET = ac.RunningMeans(jnp.zeros(()), jnp.zeros(()))
ACTOR_CRITICS = {
    name: settings for name, settings in PRESETS.items() if isinstance(settings, config.ActorCritic)
}
EVERY = ACTOR_CRITICS | {f"{name}, table": settings for name, settings in TABLE_PRESETS.items()}


def undamped(steps: int) -> dict[str, jax.Array]:
    return dict.fromkeys(("policy", "value", "uncertainty"), jnp.ones(steps))


def test_nothing_is_given_up_for_good():
    """An action counts at most `limit` below the best, and what it learns from being taken is what it would learn without a limit."""
    logits = jnp.array([[20.0, 0.0, 15.0], [1.0, 2.0, 3.0]])
    np.testing.assert_allclose(
        heads.limit_logit_gap(logits, 8.0), [[0.0, -8.0, -5.0], [-2.0, -1.0, 0.0]]
    )
    climb = lambda x: jax.nn.log_softmax(heads.limit_logit_gap(x, 8.0))[0, 1]
    p = jax.nn.softmax(heads.limit_logit_gap(logits, 8.0))[0]
    np.testing.assert_allclose(
        jax.grad(climb)(logits)[0], jnp.array([0.0, 1.0, 0.0]) - p, atol=1e-6
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


@pytest.mark.parametrize("name", EVERY)
def test_tau_moves_only_where_the_game_has_a_second_player(name):
    agent = make_agent(EVERY[name], spec_of(ENV))
    learner = agent.init(np.random.default_rng(0))
    after, priority, metrics = jax.jit(agent.update)(learner, batch(0))
    assert (after.log_tau != learner.log_tau) == isinstance(EVERY[name].risk, config.Seeking)
    assert priority.shape == (3,)
    assert all(np.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("settings", [SAMPLED, PRESETS["ersac"]], ids=["table", "mlp"])
def test_the_policy_is_sampled_as_it_says(settings):
    agent = make_agent(config.override(settings, policy_rate=3.0), spec_of(ENV))
    learner, _, _ = jax.jit(agent.update)(agent.init(np.random.default_rng(0)), batch(1))
    action_noise = agent.policy.action_noise(jax.random.key(0), 100_000)
    every = jax.jit(
        jax.vmap(
            lambda obs: jax.vmap(lambda one: agent.policy.act(learner, (), obs, one))(action_noise)
        )
    )
    action, told = every(jnp.arange(12))
    log_mu = agent.policy.log_mu(told, action)
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
    ["ersac", "ersac-replay", "rnd", "ersac-sampled, table", "ersac, table", "ersac-replay, table"],
)
def test_masked_steps_teach_nothing(float64, name):
    settings = config.check(config.override(EVERY[name], rollout=6, hidden=(4, 4)))
    parts = make_parts(settings, spec_of(ENV))
    optimisers = make_optimisers(settings, parts, 0.0)
    learner = ac.init_actor_critic(parts, optimisers, 0.1, np.random.default_rng(0))
    t = jax.tree.map(lambda x: x[0], batch(2, 1, 6))
    t = t._replace(mask=jnp.array([1.0, 1.0, 0.0, 1.0, 1.0, 1.0]))

    def told(t):
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
    for a, b in zip(told(t), told(other), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_the_weights_say_how_hard_a_loss_pulls_on_shared_layers_and_nothing_else():
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
    """Of the loss, by part; on a trajectory of this file's own unless one is given."""
    settings = config.check(config.override(SAMPLED, rollout=50, hidden=(4, 4), **changes))
    parts = make_parts(settings, spec_of(ENV))
    optimisers = make_optimisers(settings, parts, 0.0)
    learner = ac.init_actor_critic(parts, optimisers, 0.5, np.random.default_rng(3))
    t = jax.tree.map(lambda x: x[0], batch(4, 1)) if t is None else t
    rows = optimisers.rows.look_up(learner.params.rows, t.obs)
    rest = learner.log_tau, learner.memory, t, undamped(50), NOTHING_YET
    return jax.jit(
        jax.grad(lambda dense: ac.actor_critic_loss(settings, parts, Params(dense, rows), *rest)[0])
    )(learner.params.dense)


def test_an_advantage_counts_up_to_its_limit():
    """The policy of a state with a treasure moves as far for one treasure as for a hundred; the value does not."""
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
    """tau descends the payoff `sigma2 / (2 tau) + tau H`: up where much is unknown, down where nothing is."""
    agent = make_agent(config.override(settings, prior_scale=prior_scale), spec_of(ENV))
    learner = agent.init(np.random.default_rng(0))
    after, _, _ = jax.jit(agent.update)(learner, batch(6))
    assert np.sign(after.log_tau - learner.log_tau) == direction


def test_values_move_towards_their_targets_and_targets_stand_still():
    """The gradient at each state's own value is minus its error; a state that only bootstraps has none."""
    settings = config.check(config.override(SAMPLED, rollout=50, hidden=(4, 4)))
    parts = make_parts(settings, spec_of(ENV))
    optimisers = make_optimisers(settings, parts, 0.0)
    learner = ac.init_actor_critic(parts, optimisers, 0.5, np.random.default_rng(3))
    t = jax.tree.map(lambda x: x[0], batch(7, 1))
    rows = optimisers.rows.look_up(learner.params.rows, t.obs)
    rest = learner.log_tau, learner.memory, t, undamped(50), NOTHING_YET
    one = lambda rows: ac.actor_critic_loss(
        settings, parts, Params(learner.params.dense, rows), *rest
    )
    gradient, (mean_error, _, _) = jax.jit(jax.grad(one, has_aux=True))(rows)
    own = np.asarray(gradient["value"]["row"])[:, 0]  # [T+1]
    assert own[-1] == 0
    assert np.all((own[:-1] == 0) == (np.asarray(t.mask) == 0))
    np.testing.assert_allclose(np.abs(own).sum(), mean_error, rtol=1e-5)


def test_damping_weighs_the_steps_of_each_head_and_of_no_other():
    """Half as much of a head's steps is half its gradient, and the whole of the others'."""
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
            settings, parts, params, learner.log_tau, learner.memory, t, damping, NOTHING_YET
        )[0]

    params, ones = Params(learner.params.dense, rows), undamped(50)
    whole = gradient(params, ones)
    for damped in ones:
        half = gradient(params, ones | {damped: jnp.full(50, 0.5)})
        for name in ones:
            share = 0.5 if name == damped else 1.0
            for a, b in zip(
                *(jax.tree.leaves((g.dense[name], g.rows[name])) for g in (half, whole)),
                strict=True,
            ):
                np.testing.assert_allclose(a, share * b, rtol=1e-5, atol=1e-8)
                assert np.abs(b).max() > 0


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99])
def test_running_means_move_as_stated(float64, decay):
    """That of advantages by its decay, from 0, and not at all where that is 0; that of bonus and entropy is plain for a hundred updates."""
    squares, extras = np.random.default_rng(0).exponential(size=(2, 300))
    running, plain = NOTHING_YET, 0.0
    for time, (square, extra) in enumerate(zip(squares, extras, strict=True), start=1):
        running = ac.update_running(
            running,
            ac.RunningMeans(jnp.asarray(square), jnp.asarray(extra)),
            decay,
            jnp.asarray(time),
        )
        plain = extras[:time].mean() if time <= 100 else 0.99 * plain + 0.01 * extra
        known = (
            (1 - decay) * np.sum(decay ** np.arange(time)[::-1] * squares[:time]) if decay else 0.0
        )
        np.testing.assert_allclose(running.advantage_square, known, rtol=1e-11)
        np.testing.assert_allclose(running.intrinsic, plain, rtol=1e-11)


def test_an_update_keeps_the_running_means():
    """Of the same first batch the square has the same size, so what is kept of it differs by the decays; no bonus: the extra is entropy."""
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
