"""Members are samples of the Gaussian posterior, however often their data are replayed.

The mean reward of a pair has the prior N(0, p^2), and every visit has noise of variance rho, so the
posterior variance after n visits is 1 / (1 / p^2 + n / rho). Members, each with its own prior and
with the stored noise, must have that variance. Rewards are equal for all members and do not matter.
"""

from functools import partial
from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac import config
from ersac.agents import actor_critic as ac
from ersac.agents.build import make_agent, make_optimisers, make_parts
from ersac.algorithm import replay
from ersac.envs.base import spec_of
from ersac.envs.deep_sea import deep_sea
from ersac.loops.learn import learn
from ersac.types import Trajectory
from ersac.uncertainty.posterior import PosteriorMemory, posterior_ensemble

PRIOR = 0.1  # p
VISITS = np.array([1, 2, 3, 5, 10, 20, 30, 50, 70, 100])
STANDARD_ERRORS = 4


class PairVisits(NamedTuple):
    """Visits of state-action pairs in random order."""

    visits: np.ndarray  # [pairs]
    rollouts: Trajectory  # [B, T]


def make_visits(
    n_states: int,
    n_actions: int,
    pairs: int,
    visits: np.ndarray,
    members: int,
    variance: float,
    rollouts: int,
) -> PairVisits:
    """Return pairs with equally many of each number of visits.

    Pair i is action i % A of state i // A. The last rollout is padded with fake steps.
    """
    rng = np.random.default_rng(0)
    counts = rng.permutation(np.resize(visits, pairs))
    tried = rng.permutation(np.repeat(np.arange(pairs), counts))
    fakes = -len(tried) % rollouts
    tried, mask = (
        np.append(tried, np.zeros(fakes, int)),
        np.append(np.ones(len(tried)), np.zeros(fakes)),
    )
    cut = lambda x: jnp.asarray(x.reshape(rollouts, -1, *x.shape[1:]))
    real = lambda x: cut(x.astype(np.float32))
    obs = jnp.pad(cut(tried // n_actions), ((0, 0), (0, 1)))
    reward = rng.normal(size=pairs)[tried] + rng.normal(size=len(tried))
    noise = np.sqrt(np.float32(variance)) * rng.standard_normal((len(tried), members), np.float32)
    return PairVisits(
        counts,
        Trajectory(
            obs,
            cut(tried % n_actions),
            real(reward),
            real(mask),
            real(mask),
            real(np.log(0.5) * mask),
            real(noise),
        ),
    )


def posterior(visits, variance: float):
    return 1 / (1 / PRIOR**2 + visits / variance)


def assert_members_are_samples(members: np.ndarray, visits: np.ndarray, variance: float) -> None:
    """For each number of visits the members' variance is the posterior's, within standard errors.

    members: [pairs, K].
    """
    k = members.shape[1]
    found = np.var(members, axis=1, ddof=1)
    for n in np.unique(visits):
        of_n = found[visits == n] / posterior(n, variance)
        assert abs(of_n.mean() - 1) < STANDARD_ERRORS * np.sqrt(2 / ((k - 1) * len(of_n))), n


def slope(members: np.ndarray, visits: np.ndarray) -> float:
    """The slope of log variance against log n."""
    many = np.unique(visits)
    mean = [np.var(members[visits == n], axis=1, ddof=1).mean() for n in many]
    return np.polyfit(np.log(many), np.log(mean), 1)[0]


@jax.jit
def closed_form(drawn, rollouts: Trajectory, variance) -> jax.Array:
    """The closed form after one rollout after another: drawn [S, A, K] -> [S A, K]."""
    n_states, n_actions, members = drawn.shape
    observe = posterior_ensemble(n_states, n_actions, members, PRIOR, variance, 1.0).observe
    memory = PosteriorMemory(drawn, jnp.zeros((n_states, n_actions)))
    memory, _ = jax.lax.scan(lambda memory, t: (observe(memory, t), None), memory, rollouts)
    return memory.reward.reshape(-1, members)


@pytest.mark.parametrize(
    ("n_states", "n_actions"), [(1, 2000), (deep_sea(32).n_states, 2)], ids=["bandit", "deep-sea"]
)
def test_members_in_closed_form_are_samples_of_the_posterior(n_states, n_actions):
    members, pairs = 60, 2000
    drawn = (
        posterior_ensemble(n_states, n_actions, members, PRIOR, 1.0, 1.0)
        .init(np.random.default_rng(1))[1]
        .reward
    )
    for variance in (
        2 * PRIOR**2,
        0.01 * PRIOR**2,
    ):  # a prior worth two visits, and one worth almost none
        visits, rollouts = make_visits(n_states, n_actions, pairs, VISITS, members, variance, 20)
        found = np.asarray(closed_form(drawn, rollouts, variance))
        assert_members_are_samples(found[:pairs], visits, variance)
        np.testing.assert_array_equal(
            found[pairs:], drawn.reshape(-1, members)[pairs:]
        )  # never visited
    assert slope(found[:pairs], visits) == pytest.approx(-1, abs=0.03)


def test_the_order_and_the_batching_of_visits_have_no_influence():
    drawn = np.random.default_rng(1).normal(size=(8, 2, 3)).astype(np.float32)
    _, rollouts = make_visits(8, 2, 16, np.array([1, 4, 9]), 3, 0.02, 4)
    backwards = jax.tree.map(lambda x: x[::-1, ::-1], rollouts)._replace(
        obs=jnp.pad(rollouts.obs[::-1, -2::-1], ((0, 0), (0, 1)))
    )
    np.testing.assert_allclose(
        closed_form(drawn, rollouts, 0.02),
        closed_form(drawn, backwards, 0.02),
        rtol=1e-4,
        atol=1e-5,
    )
    full = lambda x: x.reshape(1, -1, *x.shape[2:])
    at_once = jax.tree.map(full, rollouts)._replace(
        obs=jnp.pad(full(rollouts.obs[:, :-1]), ((0, 0), (0, 1)))
    )
    np.testing.assert_allclose(
        closed_form(drawn, rollouts, 0.02), closed_form(drawn, at_once, 0.02), rtol=1e-4, atol=1e-5
    )


def test_replay_does_not_change_the_closed_form():
    """5,000 updates do not change a bit: a step is observed once."""
    env, members = deep_sea(3), 2
    settings = config.ActorCritic(
        uncertainty=config.Posterior(members=members, prior_scale=PRIOR, noise_variance=0.02),
        rollout=12,
        hidden=(2,),
        critic="all-actions",
    )
    agent, buffer = make_agent(settings, spec_of(env)), replay.prioritised(3, 1, 1000, 0.97, 1.0)
    _, rollouts = make_visits(env.n_states, 2, 18, np.array([1, 5, 4]), members, 0.02, 5)
    learner = agent.init(np.random.default_rng(0))

    def body(state, x):
        t, key = x
        learner, buffer_state, _ = learn(
            agent, buffer, *state, jax.tree.map(lambda leaf: leaf[None], t), key
        )
        return (learner, buffer_state), None

    one = jax.tree.map(lambda x: x[0], rollouts)
    replayed = jax.jit(
        lambda *start: jax.lax.scan(
            body, start, (rollouts, jax.random.split(jax.random.key(0), 5))
        )[0][0]
    )
    after = replayed(learner, buffer.init(one))
    assert after.opt["time"] == 5000
    found = np.asarray(after.memory.uncertainty.reward).reshape(-1, members)
    np.testing.assert_allclose(
        found, closed_form(learner.memory.uncertainty.reward, rollouts, 0.02), rtol=1e-6
    )
    assert after.memory.uncertainty.visits.sum() == rollouts.mask.sum()


class Trained(NamedTuple):
    """Settings of a training that is compiled once."""

    replays: int
    rate: float
    variance: float  # of the noise, in the settings of the estimator
    stored: bool  # False: noise is drawn anew at each replay
    loud: float = 1.0  # factor on the noise


@partial(jax.jit, static_argnums=(0, 1))
def trained(
    n_states: int, members: int, rollouts: Trajectory, asked: Trained
) -> tuple[jax.Array, jax.Array]:
    """Train members by gradient descent on all data in every update; also return their priors.

    Both are [S A, K]. In a smaller batch a row averages the targets that were drawn last: at a rate
    of alpha per update that adds alpha / (2 - alpha) of a target's variance to the posterior's.
    With all data there is no such noise, at any rate.
    """
    env = deep_sea(round(n_states**0.5))
    uncertainty = config.Ensemble(
        members=members, prior_scale=PRIOR, reward_rate=asked.rate, noise_variance=asked.variance
    )
    still = {
        "learning_rate": 0.0,
        "policy_rate": 0.0,
        "value_rate": 0.0,
        "hidden": (1,),
        "rollout": rollouts.action.shape[1],
    }
    settings = config.override(
        config.ActorCritic(
            uncertainty=uncertainty, buffer=config.Replay(batch=len(rollouts.action))
        ),
        **still,
    )
    parts = make_parts(settings, spec_of(env))
    agent = ac.actor_critic(settings, parts, make_optimisers(settings, parts, 0.0), 0.1)
    learner = agent.init(np.random.default_rng(2))
    learner, _ = jax.lax.scan(
        lambda learner, t: (agent.observe(learner, t), None), learner, rollouts
    )

    def once(number, learner):
        anew = lambda: (
            jnp.sqrt(asked.variance)
            * jax.random.normal(jax.random.key(number), rollouts.noise.shape)
        )
        noise = asked.loud * jax.lax.cond(asked.stored, lambda: rollouts.noise, anew)
        return agent.update(learner, rollouts._replace(noise=noise))[0]

    learner = jax.lax.fori_loop(0, asked.replays, once, learner)
    by_pair = lambda x: x.reshape(-1, members, env.n_actions).swapaxes(1, 2).reshape(-1, members)
    trained_part = make_optimisers(settings, parts, 0.0).rows.unpack(learner.params.rows)[
        "uncertainty"
    ]["row"]
    return by_pair(trained_part + learner.memory.uncertainty.prior), by_pair(
        learner.memory.uncertainty.prior
    )


def test_trained_members_are_samples_of_the_posterior_however_often_they_are_trained():
    n_states, members, variance = 36, 24, 2 * PRIOR**2
    visits, rollouts = make_visits(
        n_states, 2, 2 * n_states, np.array([1, 4, 16]), members, variance, 4
    )
    assert rollouts.mask.all()  # the loss is a mean over unmasked steps, so each counts for more
    exact = None
    for replays in (400, 2000):
        found, prior = trained(n_states, members, rollouts, Trained(replays, 0.1, variance, True))
        assert_members_are_samples(np.asarray(found), visits, variance)
        exact = (
            closed_form(np.asarray(prior).reshape(n_states, 2, members), rollouts, variance)
            if exact is None
            else exact
        )
        np.testing.assert_allclose(found, exact, atol=1e-4)  # each member equals the closed form

    most = visits == 16
    sure = lambda asked: np.var(
        np.asarray(trained(n_states, members, rollouts, asked)[0])[most], axis=1, ddof=1
    ).mean()
    right = posterior(16, variance)
    assert (
        sure(Trained(800, 0.005, variance, False)) < right / 5
    )  # noise drawn anew is averaged out: sigma is far too small
    assert sure(Trained(400, 0.1, variance, True, 0.0)) == pytest.approx(
        right / 9, rel=0.2
    )  # without noise: sigma2 is too small by 1 + n p^2 / rho
    assert (
        sure(Trained(400, 0.1, 0.0, True, 0.0)) < 1e-6 * right
    )  # and zero with a noise variance of zero


@pytest.mark.slow
def test_2000_pairs_and_5000_replays():
    """On DeepSea of depth 32, with a prior worth two visits and with one worth almost none."""
    n_states, members, pairs = deep_sea(32).n_states, 10, 2000
    for variance, replays in ((2 * PRIOR**2, 1000), (0.01 * PRIOR**2, 1000), (2 * PRIOR**2, 5000)):
        visits, rollouts = make_visits(
            n_states, 2, pairs, np.array([1, 3, 10, 32, 100]), members, variance, 20
        )
        assert rollouts.mask.all()
        found = np.asarray(
            trained(n_states, members, rollouts, Trained(replays, 0.5, variance, True))[0]
        )[:pairs]
        assert_members_are_samples(found, visits, variance)
        if variance < PRIOR**2:
            assert slope(found, visits) == pytest.approx(-1, abs=0.03)
