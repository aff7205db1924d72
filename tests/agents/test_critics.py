"""The critics that know all actions: their estimates of K, and the policy gradient that follows."""

import itertools
from functools import partial

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac import config
from ersac.agents import actor_critic, critics
from ersac.algorithm import action_dist, game, risk
from ersac.algorithm.action_dist import mask_logits
from ersac.types import Trajectory

LAYERS, WIDTH, ACTIONS = 3, 2, 2  # few enough to enumerate, as in test_gradient.py
STATES = LAYERS * WIDTH


NATURAL = jax.jit(critics.natural_gradient)


@pytest.fixture
def drawn(float64):
    """K, logits and a weight at five states with four actions."""
    rng = np.random.default_rng(0)
    return (
        jnp.asarray(rng.normal(size=(5, 4))),
        jnp.asarray(rng.normal(size=(5, 4))),
        jnp.asarray(0.3),
    )


def test_the_natural_gradient_vanishes_at_the_boltzmann_policy(drawn):
    """It vanishes nowhere else."""
    k, logits, tau = drawn
    boltzmann = jax.nn.log_softmax(k / tau)
    np.testing.assert_allclose(NATURAL(k, boltzmann, tau, 1e9), 0, atol=1e-13)
    away = NATURAL(k, jax.nn.log_softmax(logits), tau, 1e9)
    assert np.all(np.abs(away).max(axis=-1) > 0.1)
    np.testing.assert_allclose(away.mean(axis=-1), 0, atol=1e-13)  # logits do not drift together


def test_the_natural_gradient_is_fishers_inverse_times_the_gradient(drawn):
    """Of `sum_a pi K + tau H` at one state, divided by tau, up to a constant in the logits."""
    k, logits, tau = drawn

    def objective(logits, k):
        log_pi = jax.nn.log_softmax(logits)
        return jnp.sum(jnp.exp(log_pi) * k) + tau * game.entropy(log_pi)

    gradient = jax.jit(jax.vmap(jax.grad(objective)))(logits, k)
    direction = NATURAL(k, jax.nn.log_softmax(logits), tau, 1e9)
    for state in range(len(k)):
        pi = np.asarray(jax.nn.softmax(logits[state]))
        fisher = np.diag(pi) - np.outer(pi, pi)
        natural = np.linalg.pinv(fisher) @ np.asarray(gradient[state]) / tau
        np.testing.assert_allclose(
            direction[state] - direction[state].mean(), natural - natural.mean(), atol=1e-10
        )


def test_k_is_clipped_from_below_at_the_limit(drawn):
    _, logits, tau = drawn
    k = jnp.zeros((5, 4)).at[:, 1].set(-50.0)
    far, farther = (NATURAL(scale * k, jax.nn.log_softmax(logits), tau, 7.0) for scale in (1, 10))
    np.testing.assert_array_equal(far, farther)
    settled = jax.nn.log_softmax(jnp.array([0.0, -7.0, 0.0, 0.0]))
    np.testing.assert_allclose(NATURAL(k[0], settled, tau, 7.0), 0, atol=1e-13)


def test_the_natural_gradient_with_a_mask_is_that_of_the_allowed_actions(drawn):
    k, logits, tau = drawn
    allowed = jnp.asarray([True, False, True, True])
    masked = jnp.broadcast_to(allowed, k.shape)
    k = k.at[:, 1].set(100.0)  # the best action, but not allowed
    log_pi = jax.nn.log_softmax(mask_logits(logits, masked))
    direction = NATURAL(k, log_pi, tau, 7.0, masked)
    few = np.flatnonzero(allowed)
    np.testing.assert_allclose(
        direction[:, few], NATURAL(k[:, few], jax.nn.log_softmax(logits[:, few]), tau, 7.0)
    )
    np.testing.assert_array_equal(direction[:, 1], 0.0)


def test_the_policy_of_local_weights_maximises_its_objective(float64):
    """No other policy has a larger `sum_a pi_a (K_a - weight_a log pi_a)`."""
    rng = np.random.default_rng(0)
    k, weight = rng.normal(size=(50, 4)), np.exp(2 * rng.normal(size=(50, 4)))
    log_pi = np.asarray(critics.boltzmann_policy(jnp.asarray(k), jnp.asarray(weight), 1e9))
    np.testing.assert_allclose(np.exp(log_pi).sum(axis=-1), 1, rtol=1e-12)
    objective = lambda log_pi: (np.exp(log_pi) * (k - weight * log_pi)).sum(axis=-1)
    marginal = k - weight * (log_pi + 1)  # equal for all actions at the maximum
    np.testing.assert_allclose(marginal, np.repeat(marginal[:, :1], 4, axis=1), atol=1e-9)
    for _ in range(20):
        other = np.asarray(jax.nn.log_softmax(log_pi + 0.1 * rng.normal(size=(50, 4))))
        assert (objective(other) < objective(log_pi)).all()


def test_local_weights_that_are_equal_give_the_softmax(float64):
    k = jnp.asarray(np.random.default_rng(1).normal(size=(20, 3)))
    one = critics.boltzmann_policy(k, jnp.asarray(0.1), 5.0)
    each = critics.boltzmann_policy(k, jnp.full((20, 3), 0.1), 5.0)
    np.testing.assert_allclose(each, one, atol=1e-9)


@partial(jax.jit, static_argnums=0)
def make_inputs(seed: int, log_tau, predicted=None) -> tuple[actor_critic.CriticInputs, jax.Array]:
    """Inputs of an on-policy trajectory with three actions (rho = 1), and sigma2 [T+1, A]."""
    steps = 6
    rng = np.random.default_rng(seed)
    tau, attitude = jnp.exp(log_tau), risk.risk_seeking()
    sigma2 = jnp.asarray(rng.exponential(size=(steps + 1, 3)))
    logits, action = (
        jnp.asarray(rng.normal(size=(steps + 1, 3))),
        jnp.asarray(rng.integers(0, 3, steps)),
    )
    discount = jnp.asarray([1.0, 1.0, 0.0, 1.0, 1.0, 1.0])
    ones, reward = jnp.ones(steps), jnp.asarray(rng.normal(size=steps))
    policy = action_dist.categorical(3)
    log_mu, entropy = policy.log_prob(logits[:-1], action), policy.entropy(logits)
    t = Trajectory(
        jnp.arange(steps + 1), action, reward, discount, ones, log_mu, jnp.zeros((steps, 0))
    )
    if predicted is None:
        predicted = jnp.asarray(rng.normal(size=(steps + 1, 3)))
    bonuses = attitude.bonus(sigma2, tau)
    bonus, weight, zero = (
        action_dist.take_action(bonuses[:-1], action),
        attitude.weight(sigma2, tau),
        jnp.zeros(()),
    )
    return actor_critic.CriticInputs(
        t,
        logits,
        policy.log_pi(logits),
        log_mu,
        entropy,
        predicted,
        bonus,
        bonuses,
        weight,
        ones,
        ones,
        zero,
        zero,
    ), sigma2


def with_logits(inputs: actor_critic.CriticInputs, logits) -> actor_critic.CriticInputs:
    """The same trajectory under another policy."""
    policy = action_dist.categorical(logits.shape[-1])
    log_pi_a = policy.log_prob(logits[:-1], inputs.t.action)
    return inputs._replace(
        logits=logits,
        log_pi=policy.log_pi(logits),
        log_pi_a=log_pi_a,
        entropy=policy.entropy(logits),
    )


ALL_ACTIONS = jax.jit(critics.estimate_all_actions, static_argnums=0)
SETTINGS = config.ActorCritic(critic="all-actions", gamma=0.9, lam=1.0, advantage_limit=1e9)


def logit_gradient(normalise_advantages: bool, tau: float) -> np.ndarray:
    """The logit gradient of the sampled critic at a state where two arms were drawn 5 times each.

    The first pays 1 in two of five draws, the second 0.6 in three of five; the critic predicts the
    mean.
    """
    logits = jnp.zeros((10, 2, 2))
    action = jnp.repeat(jnp.arange(2), 5)[:, None]
    reward = jnp.asarray([1.0, 1.0, 0.0, 0.0, 0.0, 0.6, 0.6, 0.6, 0.0, 0.0])[:, None]
    policy, settings = (
        action_dist.categorical(2),
        config.ActorCritic(normalise_advantages=normalise_advantages),
    )

    def payoff(logits, action, reward):
        log_pi, one = policy.log_prob(logits[:-1], action), jnp.ones(1)
        t = Trajectory(jnp.zeros(2, int), action, reward, 0 * one, one, log_pi, jnp.zeros((1, 0)))
        predicted, bonuses = jnp.full((2, 1), 0.38), jnp.zeros((2, 2))
        policy_inputs, zero = (
            (logits, policy.log_pi(logits), log_pi, policy.entropy(logits)),
            jnp.zeros(()),
        )
        inputs = actor_critic.CriticInputs(
            t,
            *policy_inputs,
            predicted,
            bonuses[:-1, 0],
            bonuses,
            jnp.asarray(tau),
            one,
            one,
            zero,
            zero,
        )
        estimates = actor_critic.estimate_sampled(settings, inputs)
        return (estimates.payoff / estimates.advantage_scale)[0]

    every = jax.vmap(payoff, axis_name=actor_critic.BATCH)
    return np.asarray(
        jax.jit(jax.grad(lambda logits: every(logits, action, reward).mean()))(logits).sum((0, 1))
    )


def test_normalised_advantages_compare_means_and_not_frequencies(float64):
    """With a small tau as scale all advantages are clipped, and only their signs matter.

    The gradient then prefers the arm that pays more often; normalised, the arm that pays more.
    """
    towards_the_first, towards_the_second = (
        np.sign(logit_gradient(normalise_advantages, 1e-3)[0])
        for normalise_advantages in (True, False)
    )
    assert (towards_the_first, towards_the_second) == (1, -1)


def test_advantages_are_normalised_by_the_rms_of_the_batch(float64):
    """The gradient is that of the mean reward, 0.04 / 4, divided by the RMS of the advantages."""
    advantages = np.array([0.62, 0.62, *[-0.38] * 3, *[0.22] * 3, -0.38, -0.38])
    np.testing.assert_allclose(
        logit_gradient(True, 1e-3)[0], 0.01 / np.sqrt(np.mean(advantages**2)), rtol=1e-12
    )
    np.testing.assert_array_equal(
        logit_gradient(True, 1.0), logit_gradient(False, 1.0)
    )  # where tau exceeds the RMS


def test_bonuses_are_clipped_like_advantages(float64):
    """The gradient through a bonus of thousands of tau is clipped as an advantage is."""
    settings = config.override(SETTINGS, advantage_limit=5.0, lam=0.0)

    @jax.jit
    def logit_gradient(scale):
        inputs, _ = make_inputs(3, jnp.log(0.4))
        inputs = inputs._replace(
            bonuses=jnp.zeros((7, 3)).at[0, 1].set(scale)
        )  # of an action in the first state, which no step bootstraps from
        return jax.grad(
            lambda logits: critics.estimate_expected(
                settings, with_logits(inputs, logits)
            ).payoff.sum()
        )(inputs.logits)[0]

    none, huge, larger = (np.asarray(logit_gradient(scale)) for scale in (0.0, 1e4, 1e5))
    pi = np.asarray(jax.nn.softmax(make_inputs(3, jnp.log(0.4))[0].logits[0]))
    above = 5.0 * 0.4 * np.array([-1, 1, -1])
    np.testing.assert_allclose(huge - none, pi * (above - pi @ above), atol=1e-10)
    np.testing.assert_allclose(huge, larger, atol=1e-10)


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_the_bonus_of_an_untried_action_is_in_the_target_before_it(float64, lam):
    """The bonus of an untried action is in the target of the step before its state.

    That holds though another action was taken there and though the critic predicts zero.
    """
    inputs, _ = make_inputs(4, jnp.log(0.4), jnp.zeros((7, 3)))
    untried = jnp.where(inputs.t.action[1] == 0, 1, 0)
    settings = config.override(SETTINGS, lam=lam)
    of = lambda bonus: (
        critics.estimate_expected(
            settings, inputs._replace(bonuses=jnp.zeros((7, 3)).at[1, untried].set(bonus))
        ).error
    )
    pi = jax.nn.softmax(inputs.logits[1])[untried]
    np.testing.assert_allclose(of(2.0)[0] - of(0.0)[0], 0.9 * pi * 2.0, atol=1e-12)


@pytest.mark.parametrize("estimate", [critics.estimate_all_actions, critics.estimate_expected])
def test_tau_plays_against_the_mean_over_actions(float64, estimate):
    """d payoff / d log tau is `tau (H - sum_a pi sigma2 / (2 tau^2))` at every step.

    This is the equation after [e-pol-grad], averaged over all actions.
    """
    log_tau = jnp.log(0.4)
    gradient = jax.jit(
        jax.jacobian(lambda log_tau: estimate(SETTINGS, make_inputs(1, log_tau)[0]).payoff)
    )(log_tau)
    inputs, sigma2 = make_inputs(1, log_tau)
    pi = np.asarray(jax.nn.softmax(inputs.logits))[:-1]
    entropy = -np.sum(pi * np.log(pi), axis=-1)
    np.testing.assert_allclose(
        gradient,
        0.4 * (entropy - np.sum(pi * np.asarray(sigma2)[:-1], axis=-1) / (2 * 0.4**2)),
        atol=1e-12,
    )


def test_the_policy_gradient_is_the_natural_gradient(float64):
    """K is prediction plus current bonus; the last state, without an action, has no gradient."""
    inputs, _ = make_inputs(2, jnp.log(0.4))
    gradient = jax.jit(
        jax.grad(
            lambda logits: critics.estimate_all_actions(
                SETTINGS, with_logits(inputs, logits)
            ).payoff.sum()
        )
    )(inputs.logits)
    direction = NATURAL(
        inputs.bonuses + inputs.predicted, jax.nn.log_softmax(inputs.logits), inputs.weight, 1e9
    )
    np.testing.assert_allclose(gradient[:-1], 0.4 * direction[:-1], atol=1e-12)
    assert not gradient[-1].any()


def test_a_target_is_the_return_with_the_exact_entropies_and_bonuses_of_later_steps(float64):
    """At lambda 1, on-policy, with a head that predicts the same for all actions of a state.

    The bonus and the entropy of the step itself are not in its target.
    """
    same = jnp.broadcast_to(jnp.asarray(np.random.default_rng(5).normal(size=(7, 1))), (7, 3))
    inputs, _ = make_inputs(3, jnp.log(0.4), same)
    estimates = ALL_ACTIONS(SETTINGS, inputs)
    pi = np.asarray(jax.nn.softmax(inputs.logits))
    later = np.sum(pi * (np.asarray(inputs.bonuses) - 0.4 * np.log(pi)), axis=-1)  # [T+1]
    following, wanted = float(later[-1] + same[-1, 0]), []
    for t in reversed(range(6)):
        wanted.insert(0, float(inputs.t.reward[t]) + 0.9 * float(inputs.t.discount[t]) * following)
        following = later[t] + wanted[0]
    np.testing.assert_allclose(estimates.predicted + estimates.error, wanted, atol=1e-12)
    np.testing.assert_array_equal(estimates.predicted, same[:-1, 0])


def test_the_mean_target_is_k_whatever_the_head_says(float64):
    """The mean over all trajectories of a small layered MDP, from each first state and action.

    The exact K minus bonus is computed by backward induction [e-kpi].
    """
    rng, tau = np.random.default_rng(7), 0.4
    reward, predicted, sigma2, logits = (rng.normal(size=(STATES, ACTIONS)) for _ in range(4))
    transition = rng.dirichlet(np.ones(WIDTH), (STATES, ACTIONS))
    bonus, log_pi = (
        np.square(sigma2) / (2 * tau),
        np.asarray(jax.nn.log_softmax(jnp.asarray(logits))),
    )
    pi, j = np.exp(log_pi), np.zeros(WIDTH)
    for layer in reversed(range(LAYERS)):
        states = slice(layer * WIDTH, (layer + 1) * WIDTH)
        rest = reward[states] + transition[states] @ j  # K minus bonus
        j = np.sum(pi[states] * (rest + bonus[states] - tau * log_pi[states]), axis=-1)

    steps = list(itertools.product(*([range(ACTIONS), range(WIDTH)] * LAYERS)))[
        ::WIDTH
    ]  # the last next state has no influence
    actions, states = np.array(steps)[:, ::2], np.array(steps)[:, 1::2]

    def target(first, action, after):
        obs = jnp.append(first, after + WIDTH * jnp.array([1, 2, 0]))
        zeros, ones = jnp.zeros(LAYERS), jnp.ones(LAYERS)
        t = Trajectory(
            obs,
            action,
            jnp.asarray(reward)[obs[:-1], action],
            jnp.array([1.0, 1.0, 0.0]),
            ones,
            zeros,
            zeros[:, None],
        )
        of = lambda table: jnp.asarray(table)[obs]
        entropy, zero = -jnp.sum(jnp.exp(of(log_pi)) * of(log_pi), axis=-1), jnp.zeros(())
        inputs = actor_critic.CriticInputs(
            t,
            of(logits),
            of(log_pi),
            zeros,
            entropy,
            of(predicted),
            zeros,
            of(bonus),
            jnp.asarray(tau),
            ones,
            ones,
            zero,
            zero,
        )
        estimates = critics.estimate_all_actions(config.override(SETTINGS, gamma=1.0), inputs)
        return (estimates.predicted + estimates.error)[0]

    for first in range(WIDTH):
        gradient = np.asarray(
            jax.jit(jax.vmap(lambda a, z, first=first: target(first, a, z)))(actions, states)
        )
        second, third = WIDTH + states[:, 0], 2 * WIDTH + states[:, 1]
        probability = transition[first, actions[:, 0], states[:, 0]] * pi[second, actions[:, 1]]
        probability *= transition[second, actions[:, 1], states[:, 1]] * pi[third, actions[:, 2]]
        for action in range(ACTIONS):
            chosen = actions[:, 0] == action
            assert probability[chosen].sum() == pytest.approx(1, abs=1e-12)
            np.testing.assert_allclose(
                probability[chosen] @ gradient[chosen], rest[first, action], atol=1e-12
            )


def test_all_actions_follows_the_bonus_of_an_untried_action(float64):
    """The sampled critic ignores the bonus of an action not taken; all-actions follows it."""
    inputs, _ = make_inputs(4, jnp.log(0.4), jnp.zeros((7, 3)))
    other = (inputs.t.action[0] + 1) % 3
    tempted = inputs._replace(bonuses=inputs.bonuses.at[0, other].add(5.0))
    payoff = lambda estimate: (
        lambda logits, inputs: estimate(SETTINGS, with_logits(inputs, logits)).payoff.sum()
    )
    sampled, every = (
        jax.jit(jax.grad(payoff(estimate)))
        for estimate in (actor_critic.estimate_sampled, critics.estimate_all_actions)
    )
    np.testing.assert_array_equal(sampled(inputs.logits, tempted), sampled(inputs.logits, inputs))
    assert every(inputs.logits, tempted)[0, other] > every(inputs.logits, inputs)[0, other] + 1


def estimate_uniform(
    settings,
    estimate,
    predicted,
    discount,
    mask,
    *,
    credit=0.0,
    running=0.0,
    reward=0.0,
    tau=0.3,
    bonus=0.2,
):
    """Estimates of steps [T] at one state, with a uniform policy and three equal bonuses."""
    steps, policy, action = len(mask), action_dist.categorical(3), jnp.arange(len(mask)) % 3
    logits, reward = jnp.zeros((steps + 1, 3)), jnp.broadcast_to(reward, (steps,))
    log_pi_a = policy.log_prob(logits[:-1], action)
    t = Trajectory(
        jnp.zeros(steps + 1, int), action, reward, discount, mask, log_pi_a, jnp.zeros((steps, 0))
    )
    policy_inputs = logits, policy.log_pi(logits), log_pi_a, policy.entropy(logits)
    bonuses = jnp.full((steps + 1, 3), bonus)
    numbers = (
        bonuses[:-1, 0],
        bonuses,
        jnp.asarray(tau),
        mask,
        mask,
        jnp.asarray(running),
        jnp.asarray(credit),
    )
    return estimate(settings, actor_critic.CriticInputs(t, *policy_inputs, predicted, *numbers))


# Critics, and what their heads predict for a state with value J and an intrinsic reward per step.
CRITICS = [
    pytest.param(
        actor_critic.estimate_sampled, lambda j, intrinsic: jnp.full((5, 1), j), id="sampled"
    ),
    pytest.param(
        critics.estimate_expected,
        lambda j, intrinsic: jnp.full((5, 1), j - intrinsic),
        id="expected",
    ),
    pytest.param(
        critics.estimate_all_actions,
        lambda j, intrinsic: jnp.full((5, 3), j - intrinsic),
        id="every",
    ),
]


@pytest.mark.parametrize(("estimate", "predict"), CRITICS)
@pytest.mark.parametrize("lam", [0.0, 0.8])
def test_a_termination_is_credited_what_it_forgoes_and_a_truncation_is_not(
    float64, estimate, predict, lam
):
    """The fake step after a truncation has discount 0 and mask 0.

    Steps before an end get the credit as they get any reward.
    """
    discount, mask = jnp.asarray([1.0, 0.0, 1.0, 0.0]), jnp.asarray([1.0, 1.0, 1.0, 0.0])
    settings = lambda credit_early_ends: config.ActorCritic(
        credit_early_ends=credit_early_ends, gamma=0.9, lam=lam
    )
    error = lambda credit_early_ends, credit: (
        estimate_uniform(
            settings(credit_early_ends), estimate, predict(2.0, 0.5), discount, mask, credit=credit
        ).error
    )
    np.testing.assert_allclose(
        error(True, 7.0) - error(True, 0.0), [0.9 * lam * 7, 7, 0, 0], atol=1e-13
    )
    np.testing.assert_array_equal(error(False, 7.0), error(True, 0.0))


@pytest.mark.parametrize(("estimate", "predict"), CRITICS)
def test_the_credit_replaces_all_missed_bonus_and_entropy(float64, estimate, predict):
    """Without rewards, J is the discounted sum of bonus and entropy, whether episodes end or not.

    Without the credit, long episodes have a higher value.
    """
    intrinsic, gamma, mask = 0.2 + 0.3 * np.log(3), 0.9, jnp.ones(4)
    settings = lambda credit_early_ends: config.ActorCritic(
        credit_early_ends=credit_early_ends, gamma=gamma
    )
    j, credit = intrinsic / (1 - gamma), gamma * intrinsic / (1 - gamma)
    for discount in (jnp.asarray([1.0, 0.0, 1.0, 0.0]), jnp.ones(4)):
        np.testing.assert_allclose(
            estimate_uniform(
                settings(True), estimate, predict(j, intrinsic), discount, mask, credit=credit
            ).error,
            0,
            atol=1e-14,
        )
    forfeited = estimate_uniform(
        settings(False),
        estimate,
        predict(j, intrinsic),
        jnp.asarray([1.0, 0.0, 1.0, 1.0]),
        mask,
        credit=credit,
    ).error
    np.testing.assert_allclose(forfeited[1], -credit, rtol=1e-12)


@pytest.mark.parametrize(("estimate", "predict"), CRITICS[:2])
@pytest.mark.parametrize("share", [0.25, 1.0])
@pytest.mark.parametrize("tau", [1e-3, 0.3, 4.0])
@pytest.mark.parametrize("running", [0.0, 1e-4, 90.0])
def test_the_scale_of_advantages_is_the_weight_or_a_share_of_the_larger_root_mean_square(
    float64, estimate, predict, share, tau, running
):
    """The RMS is that of the unmasked steps of the batch, or the running one.

    Every step ends an episode, so that its advantage is its reward minus J.
    """
    reward = jnp.asarray([[1.0, -2.0, 0.5, 0.0], [3.0, 0.1, 0.2, 8.0]])
    mask = jnp.asarray([[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 1.0, 1.0]])
    settings = config.ActorCritic(
        normalise_advantages=True, spread_share=share, advantage_limit=2.0
    )
    one = lambda settings: (
        lambda reward, mask: estimate_uniform(
            settings,
            estimate,
            predict(0.4, tau * np.log(3)),
            jnp.zeros(4),
            mask,
            running=running,
            reward=reward,
            tau=tau,
            bonus=0.0,
        )
    )
    over_batch = lambda settings: jax.vmap(one(settings), axis_name=actor_critic.BATCH)(
        reward, mask
    )
    estimates, square = (
        over_batch(settings),
        np.mean(np.square(np.asarray(reward)[np.asarray(mask) == 1] - 0.4)),
    )
    scale = max(tau, share * np.sqrt(max(square, running)))
    np.testing.assert_allclose(estimates.advantage_square, np.full(2, square), rtol=1e-12)
    np.testing.assert_allclose(estimates.advantage_scale, np.full(2, scale), rtol=1e-12)
    in_weights = over_batch(config.override(settings, normalise_advantages=False))
    np.testing.assert_array_equal(in_weights.advantage_scale, np.full(2, tau))
    np.testing.assert_array_equal(in_weights.advantage_square, np.zeros(2))
