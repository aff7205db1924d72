"""Three critics, one game: what those that know every action say of K, and how the policy climbs with it."""

import itertools
from functools import partial

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac import config, game, policies, risk
from ersac.agents import critics
from ersac.types import Trajectory

LAYERS, WIDTH, ACTIONS = 3, 2, 2  # as tests/test_gradient.py: few enough to enumerate
STATES = LAYERS * WIDTH


NATURAL = jax.jit(critics.natural_gradient)


@pytest.fixture
def drawn(float64):
    """K, logits and a weight at five states with four actions."""
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=(5, 4))), jnp.asarray(rng.normal(size=(5, 4))), jnp.asarray(0.3)


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
        np.testing.assert_allclose(climb[state] - climb[state].mean(), natural - natural.mean(), atol=1e-10)


def test_an_action_counts_down_to_its_limit(drawn):
    _, logits, tau = drawn
    k = jnp.zeros((5, 4)).at[:, 1].set(-50.0)
    far, farther = (NATURAL(scale * k, jax.nn.log_softmax(logits), tau, 7.0) for scale in (1, 10))
    np.testing.assert_array_equal(far, farther)
    settled = jax.nn.log_softmax(jnp.array([0.0, -7.0, 0.0, 0.0]))
    np.testing.assert_allclose(NATURAL(k[0], settled, tau, 7.0), 0, atol=1e-13)


@partial(jax.jit, static_argnums=0)
def view(seed: int, log_tau, told=None) -> tuple[critics.View, jax.Array]:
    """A trajectory through states with three actions, seen with rho = 1; and sigma2 of every action [T+1, A]."""
    steps = 6
    rng = np.random.default_rng(seed)
    tau, attitude = jnp.exp(log_tau), risk.seeking()
    sigma2 = jnp.asarray(rng.exponential(size=(steps + 1, 3)))
    logits, action = jnp.asarray(rng.normal(size=(steps + 1, 3))), jnp.asarray(rng.integers(0, 3, steps))
    discount = jnp.asarray([1.0, 1.0, 0.0, 1.0, 1.0, 1.0])
    ones, reward = jnp.ones(steps), jnp.asarray(rng.normal(size=steps))
    policy = policies.categorical(3)
    log_mu, entropy = policy.log_prob(logits[:-1], action), policy.entropy(logits[:-1])
    t = Trajectory(jnp.arange(steps + 1), action, reward, discount, ones, log_mu, jnp.zeros((steps, 0)))
    told = jnp.asarray(rng.normal(size=(steps + 1, 3))) if told is None else told
    bonuses = attitude.bonus(sigma2, tau)
    return critics.View(t, logits, log_mu, entropy, told, policies.at(bonuses[:-1], action), bonuses, attitude.weight(tau), ones), sigma2


JUDGE_EVERY = jax.jit(critics.judge_every, static_argnums=0)
SETTINGS = config.ActorCritic(every_action=True, gamma=0.9, lam=1.0, advantage_limit=1e9)


def climbed(by_spread: bool, tau: float) -> np.ndarray:
    """Where the sampled critic sends the logits of a state that both arms were drawn at five times each.

    The first pays 1 two times in five, the second 0.6 three times in five; the critic knows the mean.
    """
    logits = jnp.zeros((10, 2, 2))
    action = jnp.repeat(jnp.arange(2), 5)[:, None]
    reward = jnp.asarray([1.0, 1.0, 0.0, 0.0, 0.0, 0.6, 0.6, 0.6, 0.0, 0.0])[:, None]
    policy, settings = policies.categorical(2), config.ActorCritic(by_spread=by_spread)

    def payoff(logits, action, reward):
        log_pi, one = policy.log_prob(logits[:-1], action), jnp.ones(1)
        t = Trajectory(jnp.zeros(2, int), action, reward, 0 * one, one, log_pi, jnp.zeros((1, 0)))
        told, bonuses = jnp.full((2, 1), 0.38), jnp.zeros((2, 2))
        v = critics.View(t, logits, log_pi, policy.entropy(logits[:-1]), told, bonuses[:-1, 0], bonuses, jnp.asarray(tau), one)
        judged = critics.judge_sampled(settings, v)
        return (judged.payoff / judged.unit)[0]

    every = jax.vmap(payoff, axis_name=critics.BATCH)
    return np.asarray(jax.jit(jax.grad(lambda logits: every(logits, action, reward).mean()))(logits).sum((0, 1)))


def test_what_an_action_pays_counts_and_not_how_often_it_does(float64):
    """In units of a small tau every advantage is clipped, and the arm that pays more often is taken for the one that pays more."""
    towards_the_first, towards_the_second = (np.sign(climbed(by_spread, 1e-3)[0]) for by_spread in (True, False))
    assert (towards_the_first, towards_the_second) == (1, -1)


def test_a_spread_is_over_the_batch_and_only_changes_the_unit(float64):
    """The gradient of the mean reward is 0.04 / 4 towards the better arm; the advantages' root mean square is known too."""
    advantages = np.array([0.62, 0.62, *[-0.38] * 3, *[0.22] * 3, -0.38, -0.38])
    np.testing.assert_allclose(climbed(True, 1e-3)[0], 0.01 / np.sqrt(np.mean(advantages**2)), rtol=1e-12)
    np.testing.assert_array_equal(climbed(True, 1.0), climbed(False, 1.0))  # where tau is above it


def test_a_bonus_counts_as_far_as_an_advantage_does(float64):
    """What was never tried may be worth a thousand taus. The sampled part is the same whatever the bonus is."""
    settings = config.override(SETTINGS, advantage_limit=5.0, lam=0.0)

    @jax.jit
    def climbed(scale):
        v, _ = view(3, jnp.log(0.4))
        v = v._replace(bonuses=jnp.zeros((7, 3)).at[0, 1].set(scale))  # of an action in the first state, where nobody bootstraps from
        return jax.grad(lambda logits: critics.judge_expected(settings, v._replace(logits=logits)).payoff.sum())(v.logits)[0]

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
    of = lambda bonus: critics.judge_expected(settings, v._replace(bonuses=jnp.zeros((7, 3)).at[1, untried].set(bonus))).error
    pi = jax.nn.softmax(v.logits[1])[untried]
    np.testing.assert_allclose(of(2.0)[0] - of(0.0)[0], 0.9 * pi * 2.0, atol=1e-12)


@pytest.mark.parametrize("judge", [critics.judge_every, critics.judge_expected])
def test_tau_plays_against_the_mean_over_actions(float64, judge):
    """d payoff / d log tau is tau (H - sum_a pi sigma2 / (2 tau^2)) at every step: the equation after e-pol-grad, over all actions."""
    log_tau = jnp.log(0.4)
    got = jax.jit(jax.jacobian(lambda log_tau: judge(SETTINGS, view(1, log_tau)[0]).payoff))(log_tau)
    v, sigma2 = view(1, log_tau)
    pi = np.asarray(jax.nn.softmax(v.logits))[:-1]
    entropy = -np.sum(pi * np.log(pi), axis=-1)
    np.testing.assert_allclose(got, 0.4 * (entropy - np.sum(pi * np.asarray(sigma2)[:-1], axis=-1) / (2 * 0.4**2)), atol=1e-12)


def test_the_policy_climbs_by_the_natural_gradient_and_by_nothing_else(float64):
    """In units of the weight, with K as the head and today's bonus say; the last state, which nobody acted at, does not move."""
    v, _ = view(2, jnp.log(0.4))
    got = jax.jit(jax.grad(lambda logits: critics.judge_every(SETTINGS, v._replace(logits=logits)).payoff.sum()))(v.logits)
    climb = NATURAL(v.bonuses + v.told, jax.nn.log_softmax(v.logits), v.weight, 1e9)
    np.testing.assert_allclose(got[:-1], 0.4 * climb[:-1], atol=1e-12)
    assert not got[-1].any()


def test_a_target_is_the_return_with_the_exact_entropies_and_bonuses_of_later_steps(float64):
    """At lambda 1, on-policy, where the head says the same of all actions of a state: no step's own bonus, and no entropy of its own."""
    same = jnp.broadcast_to(jnp.asarray(np.random.default_rng(5).normal(size=(7, 1))), (7, 3))
    v, _ = view(3, jnp.log(0.4), same)
    judged = JUDGE_EVERY(SETTINGS, v)
    pi = np.asarray(jax.nn.softmax(v.logits))
    later = np.sum(pi * (np.asarray(v.bonuses) - 0.4 * np.log(pi)), axis=-1)  # [T+1]
    following, wanted = float(later[-1] + same[-1, 0]), []
    for t in reversed(range(6)):
        wanted.insert(0, float(v.t.reward[t]) + 0.9 * float(v.t.discount[t]) * following)
        following = later[t] + wanted[0]
    np.testing.assert_allclose(judged.told + judged.error, wanted, atol=1e-12)
    np.testing.assert_array_equal(judged.told, same[:-1, 0])


def test_the_mean_target_is_k_whatever_the_head_says(float64):
    """[e-kpi] by backward induction, less the bonus: over every trajectory of a tiny layered MDP, from each of its first pairs."""
    rng, tau = np.random.default_rng(7), 0.4
    reward, told, sigma2, logits = (rng.normal(size=(STATES, ACTIONS)) for _ in range(4))
    follow = rng.dirichlet(np.ones(WIDTH), (STATES, ACTIONS))
    bonus, log_pi = np.square(sigma2) / (2 * tau), np.asarray(jax.nn.log_softmax(jnp.asarray(logits)))
    pi, j = np.exp(log_pi), np.zeros(WIDTH)
    for layer in reversed(range(LAYERS)):
        states = slice(layer * WIDTH, (layer + 1) * WIDTH)
        rest = reward[states] + follow[states] @ j  # K less bonus
        j = np.sum(pi[states] * (rest + bonus[states] - tau * log_pi[states]), axis=-1)

    steps = list(itertools.product(*([range(ACTIONS), range(WIDTH)] * LAYERS)))[::WIDTH]  # where the last step leads is immaterial
    actions, states = np.array(steps)[:, ::2], np.array(steps)[:, 1::2]

    def target(first, action, after):
        obs = jnp.append(first, after + WIDTH * jnp.array([1, 2, 0]))
        zeros, ones = jnp.zeros(LAYERS), jnp.ones(LAYERS)
        t = Trajectory(obs, action, jnp.asarray(reward)[obs[:-1], action], jnp.array([1.0, 1.0, 0.0]), ones, zeros, zeros[:, None])
        of = lambda table: jnp.asarray(table)[obs]
        v = critics.View(t, of(logits), zeros, zeros, of(told), zeros, of(bonus), jnp.asarray(tau), ones)
        judged = critics.judge_every(config.override(SETTINGS, gamma=1.0), v)
        return (judged.told + judged.error)[0]

    for first in range(WIDTH):
        got = np.asarray(jax.jit(jax.vmap(lambda a, z, first=first: target(first, a, z)))(actions, states))
        second, third = WIDTH + states[:, 0], 2 * WIDTH + states[:, 1]
        chance = follow[first, actions[:, 0], states[:, 0]] * pi[second, actions[:, 1]]
        chance *= follow[second, actions[:, 1], states[:, 1]] * pi[third, actions[:, 2]]
        for action in range(ACTIONS):
            mine = actions[:, 0] == action
            assert chance[mine].sum() == pytest.approx(1, abs=1e-12)
            np.testing.assert_allclose(chance[mine] @ got[mine], rest[first, action], atol=1e-12)


def test_what_was_never_done_has_its_bonus(float64):
    """The critic of the action taken does not see it; that of every action goes there."""
    v, _ = view(4, jnp.log(0.4), jnp.zeros((7, 3)))
    other = (v.t.action[0] + 1) % 3
    tempted = v._replace(bonuses=v.bonuses.at[0, other].add(5.0))
    payoff = lambda judge: lambda logits, v: judge(SETTINGS, v._replace(logits=logits)).payoff.sum()
    sampled, every = (jax.jit(jax.grad(payoff(judge))) for judge in (critics.judge_sampled, critics.judge_every))
    np.testing.assert_array_equal(sampled(v.logits, tempted), sampled(v.logits, v))
    assert every(v.logits, tempted)[0, other] > every(v.logits, v)[0, other] + 1


@pytest.mark.parametrize(
    ("judge", "told"),
    [
        pytest.param(critics.judge_sampled, lambda extra: jnp.zeros((4, 1)), id="sampled"),
        pytest.param(critics.judge_expected, lambda extra: jnp.full((4, 1), -extra), id="expected"),
        pytest.param(critics.judge_every, lambda extra: jnp.full((4, 3), -extra), id="every"),
    ],
)
def test_an_end_forfeits_neither_bonus_nor_entropy(float64, judge, told):
    """Where no step pays and all tell as much, nothing is worth anything, whether episodes end or not; else to last is worth something."""
    tau, bonus, policy = jnp.asarray(0.3), 0.2, policies.categorical(3)
    discounts = jnp.asarray([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]])

    def error(settings, told, discount):
        logits, ones, action = jnp.zeros((4, 3)), jnp.ones(3), jnp.arange(3)
        log_pi = policy.log_prob(logits[:-1], action)
        t = Trajectory(jnp.zeros(4, int), action, 0 * ones, discount, ones, log_pi, jnp.zeros((3, 0)))
        seen = policy.entropy(logits[:-1]), told, bonus * ones, jnp.full((4, 3), bonus), tau, ones
        return judge(settings, critics.View(t, logits, log_pi, *seen)).error

    def errors(past_ends):
        settings = config.ActorCritic(past_ends=past_ends, gamma=0.9)
        every = jax.vmap(lambda discount: error(settings, told(bonus + tau * np.log(3)), discount), axis_name=critics.BATCH)
        return np.asarray(jax.jit(every)(discounts))

    np.testing.assert_allclose(errors(past_ends=True), 0, atol=1e-15)
    lasting = errors(past_ends=False)
    assert lasting[0, 1] < lasting[1, 1] - 0.1  # where it ends there is less to come
