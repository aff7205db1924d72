"""Three critics, one game: what those that know every action say of K, and how the policy climbs with it."""

import itertools
from functools import partial

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac import config
from ersac.agents import actor_critic, critics
from ersac.algorithm import action_dist, game, risk
from ersac.types import Trajectory

LAYERS, WIDTH, ACTIONS = 3, 2, 2  # as tests/test_gradient.py: few enough to enumerate
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
    """And there alone."""
    k, logits, tau = drawn
    boltzmann = jax.nn.log_softmax(k / tau)
    np.testing.assert_allclose(NATURAL(k, boltzmann, tau, 1e9), 0, atol=1e-13)
    away = np.abs(NATURAL(k, jax.nn.log_softmax(logits), tau, 1e9))
    assert np.all(away.max(axis=-1) > 0.1)


def test_the_natural_gradient_is_fishers_inverse_times_the_gradient(drawn):
    """Of `sum_a pi K + tau H` at one state, in units of tau; logits that differ by a constant are the same policy."""
    k, logits, tau = drawn

    def objective(logits, k):
        log_pi = jax.nn.log_softmax(logits)
        return jnp.sum(jnp.exp(log_pi) * k) + tau * game.entropy(log_pi)

    gradient = jax.jit(jax.vmap(jax.grad(objective)))(logits, k)
    climb = NATURAL(k, jax.nn.log_softmax(logits), tau, 1e9)
    for state in range(len(k)):
        pi = np.asarray(jax.nn.softmax(logits[state]))
        fisher = np.diag(pi) - np.outer(pi, pi)
        natural = np.linalg.pinv(fisher) @ np.asarray(gradient[state]) / tau
        np.testing.assert_allclose(
            climb[state] - climb[state].mean(), natural - natural.mean(), atol=1e-10
        )


def test_an_action_counts_down_to_its_limit(drawn):
    _, logits, tau = drawn
    k = jnp.zeros((5, 4)).at[:, 1].set(-50.0)
    far, farther = (NATURAL(scale * k, jax.nn.log_softmax(logits), tau, 7.0) for scale in (1, 10))
    np.testing.assert_array_equal(far, farther)
    settled = jax.nn.log_softmax(jnp.array([0.0, -7.0, 0.0, 0.0]))
    np.testing.assert_allclose(NATURAL(k[0], settled, tau, 7.0), 0, atol=1e-13)


@partial(jax.jit, static_argnums=0)
def view(seed: int, log_tau, told=None) -> tuple[actor_critic.CriticInputs, jax.Array]:
    """A trajectory through states with three actions, seen with rho = 1; and sigma2 of every action [T+1, A]."""
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
    told = jnp.asarray(rng.normal(size=(steps + 1, 3))) if told is None else told
    bonuses = attitude.bonus(sigma2, tau)
    bonus, weight, nothing = (
        action_dist.take_action(bonuses[:-1], action),
        attitude.weight(tau),
        jnp.zeros(()),
    )
    return actor_critic.CriticInputs(
        t,
        logits,
        policy.log_pi(logits),
        log_mu,
        entropy,
        told,
        bonus,
        bonuses,
        weight,
        ones,
        nothing,
        nothing,
    ), sigma2


def with_logits(v: actor_critic.CriticInputs, logits) -> actor_critic.CriticInputs:
    """The same trajectory under another policy, with all that follows from its logits."""
    policy = action_dist.categorical(logits.shape[-1])
    log_pi_a = policy.log_prob(logits[:-1], v.t.action)
    return v._replace(
        logits=logits,
        log_pi=policy.log_pi(logits),
        log_pi_a=log_pi_a,
        entropy=policy.entropy(logits),
    )


JUDGE_EVERY = jax.jit(critics.estimate_all_actions, static_argnums=0)
SETTINGS = config.ActorCritic(critic="all-actions", gamma=0.9, lam=1.0, advantage_limit=1e9)


def climbed(normalise_advantages: bool, tau: float) -> np.ndarray:
    """Where the sampled critic sends the logits of a state that both arms were drawn at five times each.

    The first pays 1 two times in five, the second 0.6 three times in five; the critic knows the mean.
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
        told, bonuses = jnp.full((2, 1), 0.38), jnp.zeros((2, 2))
        of_policy, nothing = (
            (logits, policy.log_pi(logits), log_pi, policy.entropy(logits)),
            jnp.zeros(()),
        )
        v = actor_critic.CriticInputs(
            t, *of_policy, told, bonuses[:-1, 0], bonuses, jnp.asarray(tau), one, nothing, nothing
        )
        estimates = actor_critic.estimate_sampled(settings, v)
        return (estimates.payoff / estimates.advantage_scale)[0]

    every = jax.vmap(payoff, axis_name=actor_critic.BATCH)
    return np.asarray(
        jax.jit(jax.grad(lambda logits: every(logits, action, reward).mean()))(logits).sum((0, 1))
    )


def test_what_an_action_pays_counts_and_not_how_often_it_does(float64):
    """In units of a small tau every advantage is clipped, and the arm that pays more often is taken for the one that pays more."""
    towards_the_first, towards_the_second = (
        np.sign(climbed(normalise_advantages, 1e-3)[0]) for normalise_advantages in (True, False)
    )
    assert (towards_the_first, towards_the_second) == (1, -1)


def test_a_spread_is_over_the_batch_and_only_changes_the_unit(float64):
    """The gradient of the mean reward is 0.04 / 4 towards the better arm; the advantages' root mean square is known too."""
    advantages = np.array([0.62, 0.62, *[-0.38] * 3, *[0.22] * 3, -0.38, -0.38])
    np.testing.assert_allclose(
        climbed(True, 1e-3)[0], 0.01 / np.sqrt(np.mean(advantages**2)), rtol=1e-12
    )
    np.testing.assert_array_equal(climbed(True, 1.0), climbed(False, 1.0))  # where tau is above it


def test_a_bonus_counts_as_far_as_an_advantage_does(float64):
    """What was never tried may be worth a thousand taus. The sampled part is the same whatever the bonus is."""
    settings = config.override(SETTINGS, advantage_limit=5.0, lam=0.0)

    @jax.jit
    def climbed(scale):
        v, _ = view(3, jnp.log(0.4))
        v = v._replace(
            bonuses=jnp.zeros((7, 3)).at[0, 1].set(scale)
        )  # of an action in the first state, where nobody bootstraps from
        return jax.grad(
            lambda logits: critics.estimate_expected(settings, with_logits(v, logits)).payoff.sum()
        )(v.logits)[0]

    none, huge, larger = (np.asarray(climbed(scale)) for scale in (0.0, 1e4, 1e5))
    pi = np.asarray(jax.nn.softmax(view(3, jnp.log(0.4))[0].logits[0]))
    above = 5.0 * 0.4 * np.array([-1, 1, -1])
    np.testing.assert_allclose(huge - none, pi * (above - pi @ above), atol=1e-10)
    np.testing.assert_allclose(huge, larger, atol=1e-10)


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_what_was_never_tried_is_worth_its_bonus_before_it_is(float64, lam):
    """The step into a state that holds it is judged by it, though something else is done there, and though the critic says nothing yet."""
    v, _ = view(4, jnp.log(0.4), jnp.zeros((7, 3)))
    untried = jnp.where(v.t.action[1] == 0, 1, 0)
    settings = config.override(SETTINGS, lam=lam)
    of = lambda bonus: (
        critics.estimate_expected(
            settings, v._replace(bonuses=jnp.zeros((7, 3)).at[1, untried].set(bonus))
        ).error
    )
    pi = jax.nn.softmax(v.logits[1])[untried]
    np.testing.assert_allclose(of(2.0)[0] - of(0.0)[0], 0.9 * pi * 2.0, atol=1e-12)


@pytest.mark.parametrize("judge", [critics.estimate_all_actions, critics.estimate_expected])
def test_tau_plays_against_the_mean_over_actions(float64, judge):
    """d payoff / d log tau is tau (H - sum_a pi sigma2 / (2 tau^2)) at every step: the equation after e-pol-grad, over all actions."""
    log_tau = jnp.log(0.4)
    got = jax.jit(jax.jacobian(lambda log_tau: judge(SETTINGS, view(1, log_tau)[0]).payoff))(
        log_tau
    )
    v, sigma2 = view(1, log_tau)
    pi = np.asarray(jax.nn.softmax(v.logits))[:-1]
    entropy = -np.sum(pi * np.log(pi), axis=-1)
    np.testing.assert_allclose(
        got,
        0.4 * (entropy - np.sum(pi * np.asarray(sigma2)[:-1], axis=-1) / (2 * 0.4**2)),
        atol=1e-12,
    )


def test_the_policy_climbs_by_the_natural_gradient_and_by_nothing_else(float64):
    """In units of the weight, with K as the head and today's bonus say; the last state, which nobody acted at, does not move."""
    v, _ = view(2, jnp.log(0.4))
    got = jax.jit(
        jax.grad(
            lambda logits: critics.estimate_all_actions(
                SETTINGS, with_logits(v, logits)
            ).payoff.sum()
        )
    )(v.logits)
    climb = NATURAL(v.bonuses + v.predicted, jax.nn.log_softmax(v.logits), v.weight, 1e9)
    np.testing.assert_allclose(got[:-1], 0.4 * climb[:-1], atol=1e-12)
    assert not got[-1].any()


def test_a_target_is_the_return_with_the_exact_entropies_and_bonuses_of_later_steps(float64):
    """At lambda 1, on-policy, where the head says the same of all actions of a state: no step's own bonus, and no entropy of its own."""
    same = jnp.broadcast_to(jnp.asarray(np.random.default_rng(5).normal(size=(7, 1))), (7, 3))
    v, _ = view(3, jnp.log(0.4), same)
    estimates = JUDGE_EVERY(SETTINGS, v)
    pi = np.asarray(jax.nn.softmax(v.logits))
    later = np.sum(pi * (np.asarray(v.bonuses) - 0.4 * np.log(pi)), axis=-1)  # [T+1]
    following, wanted = float(later[-1] + same[-1, 0]), []
    for t in reversed(range(6)):
        wanted.insert(0, float(v.t.reward[t]) + 0.9 * float(v.t.discount[t]) * following)
        following = later[t] + wanted[0]
    np.testing.assert_allclose(estimates.predicted + estimates.error, wanted, atol=1e-12)
    np.testing.assert_array_equal(estimates.predicted, same[:-1, 0])


def test_the_mean_target_is_k_whatever_the_head_says(float64):
    """[e-kpi] by backward induction, less the bonus: over every trajectory of a tiny layered MDP, from each of its first pairs."""
    rng, tau = np.random.default_rng(7), 0.4
    reward, told, sigma2, logits = (rng.normal(size=(STATES, ACTIONS)) for _ in range(4))
    follow = rng.dirichlet(np.ones(WIDTH), (STATES, ACTIONS))
    bonus, log_pi = (
        np.square(sigma2) / (2 * tau),
        np.asarray(jax.nn.log_softmax(jnp.asarray(logits))),
    )
    pi, j = np.exp(log_pi), np.zeros(WIDTH)
    for layer in reversed(range(LAYERS)):
        states = slice(layer * WIDTH, (layer + 1) * WIDTH)
        rest = reward[states] + follow[states] @ j  # K less bonus
        j = np.sum(pi[states] * (rest + bonus[states] - tau * log_pi[states]), axis=-1)

    steps = list(itertools.product(*([range(ACTIONS), range(WIDTH)] * LAYERS)))[
        ::WIDTH
    ]  # where the last step leads is immaterial
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
        entropy, nothing = -jnp.sum(jnp.exp(of(log_pi)) * of(log_pi), axis=-1), jnp.zeros(())
        v = actor_critic.CriticInputs(
            t,
            of(logits),
            of(log_pi),
            zeros,
            entropy,
            of(told),
            zeros,
            of(bonus),
            jnp.asarray(tau),
            ones,
            nothing,
            nothing,
        )
        estimates = critics.estimate_all_actions(config.override(SETTINGS, gamma=1.0), v)
        return (estimates.predicted + estimates.error)[0]

    for first in range(WIDTH):
        got = np.asarray(
            jax.jit(jax.vmap(lambda a, z, first=first: target(first, a, z)))(actions, states)
        )
        second, third = WIDTH + states[:, 0], 2 * WIDTH + states[:, 1]
        action_noise = follow[first, actions[:, 0], states[:, 0]] * pi[second, actions[:, 1]]
        action_noise *= follow[second, actions[:, 1], states[:, 1]] * pi[third, actions[:, 2]]
        for action in range(ACTIONS):
            mine = actions[:, 0] == action
            assert action_noise[mine].sum() == pytest.approx(1, abs=1e-12)
            np.testing.assert_allclose(
                action_noise[mine] @ got[mine], rest[first, action], atol=1e-12
            )


def test_what_was_never_done_has_its_bonus(float64):
    """The critic of the action taken does not see it; that of every action goes there."""
    v, _ = view(4, jnp.log(0.4), jnp.zeros((7, 3)))
    other = (v.t.action[0] + 1) % 3
    tempted = v._replace(bonuses=v.bonuses.at[0, other].add(5.0))
    payoff = lambda judge: lambda logits, v: judge(SETTINGS, with_logits(v, logits)).payoff.sum()
    sampled, every = (
        jax.jit(jax.grad(payoff(judge)))
        for judge in (actor_critic.estimate_sampled, critics.estimate_all_actions)
    )
    np.testing.assert_array_equal(sampled(v.logits, tempted), sampled(v.logits, v))
    assert every(v.logits, tempted)[0, other] > every(v.logits, v)[0, other] + 1


def undecided(
    settings,
    judge,
    told,
    discount,
    mask,
    *,
    forgone=0.0,
    running=0.0,
    reward=0.0,
    tau=0.3,
    bonus=0.2,
):
    """What a critic makes of steps [T] at one place with three actions, all alike to the policy and of one bonus."""
    steps, policy, action = len(mask), action_dist.categorical(3), jnp.arange(len(mask)) % 3
    logits, reward = jnp.zeros((steps + 1, 3)), jnp.broadcast_to(reward, (steps,))
    log_pi_a = policy.log_prob(logits[:-1], action)
    t = Trajectory(
        jnp.zeros(steps + 1, int), action, reward, discount, mask, log_pi_a, jnp.zeros((steps, 0))
    )
    of_policy = logits, policy.log_pi(logits), log_pi_a, policy.entropy(logits)
    bonuses = jnp.full((steps + 1, 3), bonus)
    numbers = (
        bonuses[:-1, 0],
        bonuses,
        jnp.asarray(tau),
        mask,
        jnp.asarray(running),
        jnp.asarray(forgone),
    )
    return judge(settings, actor_critic.CriticInputs(t, *of_policy, told, *numbers))


# With what each of the three tells of a state, if its J is given, and bonus and weighted entropy of a step there: J, or the rest of it.
CRITICS = [
    pytest.param(actor_critic.estimate_sampled, lambda j, extra: jnp.full((5, 1), j), id="sampled"),
    pytest.param(
        critics.estimate_expected, lambda j, extra: jnp.full((5, 1), j - extra), id="expected"
    ),
    pytest.param(
        critics.estimate_all_actions, lambda j, extra: jnp.full((5, 3), j - extra), id="every"
    ),
]


@pytest.mark.parametrize(("judge", "told"), CRITICS)
@pytest.mark.parametrize("lam", [0.0, 0.8])
def test_a_termination_is_credited_what_it_forgoes_and_a_truncation_is_not(
    float64, judge, told, lam
):
    """The fake step after a truncation has discount 0 and mask 0. What comes before an end sees the credit as it sees any reward."""
    discount, mask = jnp.asarray([1.0, 0.0, 1.0, 0.0]), jnp.asarray([1.0, 1.0, 1.0, 0.0])
    settings = lambda credit_early_ends: config.ActorCritic(
        credit_early_ends=credit_early_ends, gamma=0.9, lam=lam
    )
    error = lambda credit_early_ends, forgone: (
        undecided(
            settings(credit_early_ends), judge, told(2.0, 0.5), discount, mask, forgone=forgone
        ).error
    )
    np.testing.assert_allclose(
        error(True, 7.0) - error(True, 0.0), [0.9 * lam * 7, 7, 0, 0], atol=1e-13
    )
    np.testing.assert_array_equal(error(False, 7.0), error(True, 0.0))


@pytest.mark.parametrize(("judge", "told"), CRITICS)
def test_an_end_that_is_credited_all_it_forgoes_forfeits_neither_bonus_nor_entropy(
    float64, judge, told
):
    """Where no step pays, a place is worth its bonus and entropy for ever, whether its episodes end or not; else to last pays."""
    extra, gamma, mask = 0.2 + 0.3 * np.log(3), 0.9, jnp.ones(4)
    settings = lambda credit_early_ends: config.ActorCritic(
        credit_early_ends=credit_early_ends, gamma=gamma
    )
    j, forgone = extra / (1 - gamma), gamma * extra / (1 - gamma)
    for discount in (jnp.asarray([1.0, 0.0, 1.0, 0.0]), jnp.ones(4)):
        np.testing.assert_allclose(
            undecided(settings(True), judge, told(j, extra), discount, mask, forgone=forgone).error,
            0,
            atol=1e-14,
        )
    forfeited = undecided(
        settings(False),
        judge,
        told(j, extra),
        jnp.asarray([1.0, 0.0, 1.0, 1.0]),
        mask,
        forgone=forgone,
    ).error
    np.testing.assert_allclose(forfeited[1], -forgone, rtol=1e-12)


@pytest.mark.parametrize(("judge", "told"), CRITICS[:2])
@pytest.mark.parametrize("share", [0.25, 1.0])
@pytest.mark.parametrize("tau", [1e-3, 0.3, 4.0])
@pytest.mark.parametrize("running", [0.0, 1e-4, 90.0])
def test_the_scale_of_advantages_is_the_weight_or_a_share_of_the_larger_root_mean_square(
    float64, judge, told, share, tau, running
):
    """That of the batch's real steps, or the running one. Every step ends an episode, so that an advantage is what it pays, less J."""
    reward = jnp.asarray([[1.0, -2.0, 0.5, 0.0], [3.0, 0.1, 0.2, 8.0]])
    mask = jnp.asarray([[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 1.0, 1.0]])
    settings = config.ActorCritic(
        normalise_advantages=True, spread_share=share, advantage_limit=2.0
    )
    one = lambda settings: (
        lambda reward, mask: undecided(
            settings,
            judge,
            told(0.4, tau * np.log(3)),
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
    unit = max(tau, share * np.sqrt(max(square, running)))
    np.testing.assert_allclose(estimates.advantage_square, np.full(2, square), rtol=1e-12)
    np.testing.assert_allclose(estimates.advantage_scale, np.full(2, unit), rtol=1e-12)
    in_weights = over_batch(config.override(settings, normalise_advantages=False))
    np.testing.assert_array_equal(in_weights.advantage_scale, np.full(2, tau))
    np.testing.assert_array_equal(in_weights.advantage_square, np.zeros(2))
