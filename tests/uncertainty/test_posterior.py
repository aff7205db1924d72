"""The statistical truth behind sigma: members are samples of the Gaussian posterior, and no amount of replay makes them surer.

The mean reward of a pair has the prior N(0, p^2) and every visit a noise of variance rho, so after n visits its posterior has the variance
1 / (1 / p^2 + n / rho). Members, each with a prior of its own and with the noise that is stored with each step, must have that variance.
Rewards are the same for all members and have no part in it.
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


class Seen(NamedTuple):
    """Pairs, how often each was tried, and all of their visits in a random order."""

    visits: np.ndarray  # [pairs]
    rollouts: Trajectory  # [B, T]


def seen(
    n_states: int,
    n_actions: int,
    pairs: int,
    visits: np.ndarray,
    members: int,
    variance: float,
    rollouts: int,
) -> Seen:
    """As many pairs of each number of visits; pair i is action i % A of state i // A. The last rollout is filled up with fakes."""
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
    return Seen(
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
    """Of every number of visits the mean of the members' variance is the posterior's, within its standard errors. members: [pairs, K]"""
    k = members.shape[1]
    found = np.var(members, axis=1, ddof=1)
    for n in np.unique(visits):
        of_n = found[visits == n] / posterior(n, variance)
        assert abs(of_n.mean() - 1) < STANDARD_ERRORS * np.sqrt(2 / ((k - 1) * len(of_n))), n


def slope(members: np.ndarray, visits: np.ndarray) -> float:
    """Of log variance against log n."""
    many = np.unique(visits)
    mean = [np.var(members[visits == n], axis=1, ddof=1).mean() for n in many]
    return np.polyfit(np.log(many), np.log(mean), 1)[0]


@jax.jit
def believed(drawn, rollouts: Trajectory, variance) -> jax.Array:
    """What the closed form comes to, one rollout after another: drawn [S, A, K] -> [S A, K]."""
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
    ):  # a prior worth two visits, and one worth next to nothing
        visits, rollouts = seen(n_states, n_actions, pairs, VISITS, members, variance, 20)
        found = np.asarray(believed(drawn, rollouts, variance))
        assert_members_are_samples(found[:pairs], visits, variance)
        np.testing.assert_array_equal(
            found[pairs:], drawn.reshape(-1, members)[pairs:]
        )  # never tried
    assert slope(found[:pairs], visits) == pytest.approx(-1, abs=0.03)


def test_the_order_and_the_cut_of_visits_are_immaterial():
    drawn = np.random.default_rng(1).normal(size=(8, 2, 3)).astype(np.float32)
    _, rollouts = seen(8, 2, 16, np.array([1, 4, 9]), 3, 0.02, 4)
    backwards = jax.tree.map(lambda x: x[::-1, ::-1], rollouts)._replace(
        obs=jnp.pad(rollouts.obs[::-1, -2::-1], ((0, 0), (0, 1)))
    )
    np.testing.assert_allclose(
        believed(drawn, rollouts, 0.02), believed(drawn, backwards, 0.02), rtol=1e-4, atol=1e-5
    )
    whole = lambda x: x.reshape(1, -1, *x.shape[2:])
    at_once = jax.tree.map(whole, rollouts)._replace(
        obs=jnp.pad(whole(rollouts.obs[:, :-1]), ((0, 0), (0, 1)))
    )
    np.testing.assert_allclose(
        believed(drawn, rollouts, 0.02), believed(drawn, at_once, 0.02), rtol=1e-4, atol=1e-5
    )


def test_replay_changes_nothing_of_what_is_believed_in_closed_form():
    """Not in 5,000 updates, not by a bit: a real step is taken in once."""
    env, members = deep_sea(3), 2
    settings = config.ActorCritic(
        uncertainty=config.Posterior(members=members, prior_scale=PRIOR, noise_variance=0.02),
        rollout=12,
        hidden=(2,),
        critic="all-actions",
    )
    agent, buffer = make_agent(settings, spec_of(env)), replay.prioritised(3, 1, 1000, 0.97, 1.0)
    _, rollouts = seen(env.n_states, 2, 18, np.array([1, 5, 4]), members, 0.02, 5)
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
        found, believed(learner.memory.uncertainty.reward, rollouts, 0.02), rtol=1e-6
    )
    assert after.memory.uncertainty.visits.sum() == rollouts.mask.sum()


class Trained(NamedTuple):
    """Numbers that a training is compiled for once."""

    replays: int
    rate: float
    variance: float  # of the noise, as the estimator is told
    stored: bool  # the noise, or else drawn anew at each replay
    loud: float = 1.0  # factor on the noise


@partial(jax.jit, static_argnums=(0, 1))
def trained(
    n_states: int, members: int, rollouts: Trajectory, asked: Trained
) -> tuple[jax.Array, jax.Array]:
    """What members come to that descend their loss, all of the data in every update, and their priors; each [S A, K].

    In a batch of less, a row is an average of the targets that happened to be drawn of late: its jitter, at a pace of alpha per update,
    adds alpha / (2 - alpha) of a target's variance to that of the posterior. With all of them there is none, whatever the pace.
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
    own = make_optimisers(settings, parts, 0.0).rows.unpack(learner.params.rows)["uncertainty"][
        "row"
    ]
    return by_pair(own + learner.memory.uncertainty.prior), by_pair(
        learner.memory.uncertainty.prior
    )


def test_trained_members_are_samples_of_the_posterior_however_often_they_are_trained():
    n_states, members, variance = 36, 24, 2 * PRIOR**2
    visits, rollouts = seen(n_states, 2, 2 * n_states, np.array([1, 4, 16]), members, variance, 4)
    assert (
        rollouts.mask.all()
    )  # a loss is a mean over its rollout, where what is left beside masked steps counts for more
    exact = None
    for replays in (400, 2000):
        found, prior = trained(n_states, members, rollouts, Trained(replays, 0.1, variance, True))
        assert_members_are_samples(np.asarray(found), visits, variance)
        exact = (
            believed(np.asarray(prior).reshape(n_states, 2, members), rollouts, variance)
            if exact is None
            else exact
        )
        np.testing.assert_allclose(
            found, exact, atol=1e-4
        )  # member by member what the closed form says

    most = visits == 16
    sure = lambda asked: np.var(
        np.asarray(trained(n_states, members, rollouts, asked)[0])[most], axis=1, ddof=1
    ).mean()
    right = posterior(16, variance)
    assert (
        sure(Trained(800, 0.005, variance, False)) < right / 5
    )  # noise drawn anew is averaged away: much too sure
    assert sure(Trained(400, 0.1, variance, True, 0.0)) == pytest.approx(
        right / 9, rel=0.2
    )  # none: (1 + n p^2 / rho) times too sure
    assert (
        sure(Trained(400, 0.1, 0.0, True, 0.0)) < 1e-6 * right
    )  # and nothing is left where a visit is said to tell all


@pytest.mark.slow
def test_2000_pairs_and_5000_replays():
    """The same on a sea of 32, with a prior worth two visits, and with one worth next to nothing, where variance falls as 1 / n."""
    n_states, members, pairs = deep_sea(32).n_states, 10, 2000
    for variance, replays in ((2 * PRIOR**2, 1000), (0.01 * PRIOR**2, 1000), (2 * PRIOR**2, 5000)):
        visits, rollouts = seen(
            n_states, 2, pairs, np.array([1, 3, 10, 32, 100]), members, variance, 20
        )
        assert rollouts.mask.all()
        found = np.asarray(
            trained(n_states, members, rollouts, Trained(replays, 0.5, variance, True))[0]
        )[:pairs]
        assert_members_are_samples(found, visits, variance)
        if variance < PRIOR**2:
            assert slope(found, visits) == pytest.approx(-1, abs=0.03)
