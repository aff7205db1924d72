"""The expected gradient of the implemented loss is the gradient of the game [e-saddle].

Every trajectory of a tiny layered MDP is enumerated, so the expected gradient of the *implemented*
loss is a finite sum. It must equal autodiff of the exact `E J` [e-kpi], computed by backward
induction, in theta and in log tau.
"""

import itertools
from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac import config
from ersac.agents import actor_critic as ac
from ersac.agents.build import make_optimisers, make_parts
from ersac.algorithm import game
from ersac.envs.base import Discrete, MultiDiscrete, PackedSpace, Spec
from ersac.envs.gym.spaces import pack_bytes
from ersac.nets import heads
from ersac.types import Params, Trajectory

LAYERS, WIDTH = 3, 2  # enough states for every term, few enough to enumerate
STATES = LAYERS * WIDTH
SPEC = Spec("tiny", Discrete(STATES), Discrete(2), 1)
PRODUCT = SPEC._replace(actions=MultiDiscrete((2, 3)))
MASKED = PRODUCT._replace(observations=PackedSpace((Discrete(STATES),), 5))
# [states, choices]: each factor has an allowed choice in each state, and some have only one
MASKS = np.array([[1, 1, 1, 1, 0], [1, 0, 1, 1, 1], [0, 1, 0, 1, 1], [1, 1, 0, 1, 0]] * 2)[:STATES]


def stored(spec: Spec, states) -> np.ndarray:
    """The observations of states as a trajectory stores them."""
    states = np.asarray(states, np.int32)
    if spec is not MASKED:
        return states
    return pack_bytes([states, MASKS[states].astype(np.uint8)])


def every_action(spec: Spec) -> np.ndarray:
    """All actions [A], or [A, factors]."""
    if isinstance(spec.actions, Discrete):
        return np.arange(spec.actions.n)
    return np.array(list(itertools.product(*map(range, spec.actions.sizes))))


class TinyMDP(NamedTuple):
    """A layered MDP [section 2] with random transitions: state l * WIDTH + i is i-th of layer l."""

    start: np.ndarray  # [WIDTH]
    reward: np.ndarray  # [STATES, A]
    next: np.ndarray  # [STATES, A, WIDTH]


def draw(seed: int, n_actions: int) -> TinyMDP:
    rng = np.random.default_rng(seed)
    return TinyMDP(
        rng.dirichlet(np.ones(WIDTH)),
        rng.normal(size=(STATES, n_actions)),
        rng.dirichlet(np.ones(WIDTH), (STATES, n_actions)),
    )


def settings(**changes) -> config.ActorCritic:
    quiet = {
        "gamma": 1.0,
        "value_weight": 0.0,
        "reward_weight": 0.0,
        "advantage_limit": 1e9,
        "hidden": (24, 24),
        "members": 3,
    }
    return config.check(config.override(config.ActorCritic(), **(quiet | changes)))


def taus(sigma2, log_tau, attitude) -> jax.Array:
    """Return tau of every state and action [S, A]; LocalSeeking's is in proportion to sigma."""
    if isinstance(attitude, config.LocalSeeking):
        return jnp.exp(log_tau) * jnp.sqrt(sigma2) + attitude.tau_min
    return jnp.full_like(sigma2, 1.0) * jnp.exp(log_tau)


def exact_optimism(mdp: TinyMDP, log_pi, sigma2, tau):
    """Return the expectation of `J_{1,tau}^pi` at the start, and J of every state [e-kpi]."""
    j = jnp.zeros(WIDTH)
    by_layer = []
    for layer in reversed(range(LAYERS)):
        states = slice(layer * WIDTH, (layer + 1) * WIDTH)
        k = (
            mdp.reward[states]
            + sigma2[states] / (2 * tau[states])
            + jnp.einsum("saz,z->sa", mdp.next[states], j)
        )
        pi = jnp.exp(log_pi[states])
        j = jnp.sum(pi * (k - tau[states] * log_pi[states]), axis=-1)
        by_layer.insert(0, j)
    return mdp.start @ j, jnp.concatenate(by_layer)


def every_trajectory(mdp: TinyMDP, log_pi: np.ndarray, spec: Spec):
    """Yield (probability, trajectory) for all trajectories of one episode under pi."""
    actions_of = every_action(spec)
    numbers = range(len(actions_of))
    for path in itertools.product(range(WIDTH), *([numbers, range(WIDTH)] * LAYERS)):
        first, *rest = path
        obs, actions, probability = [first], [], mdp.start[first]
        for layer in range(LAYERS):
            action, following = rest[2 * layer], rest[2 * layer + 1]
            probability *= np.exp(log_pi[obs[-1], action]) * (
                mdp.next[obs[-1], action, following] if layer < LAYERS - 1 else 1 / WIDTH
            )
            actions.append(action)
            obs.append((layer + 1) * WIDTH + following if layer < LAYERS - 1 else following)
        s, a = np.array(obs[:-1]), np.array(actions)
        ends = np.append(np.ones(LAYERS - 1), 0.0)
        if probability == 0:
            continue
        yield (
            probability,
            Trajectory(
                stored(spec, obs),
                actions_of[a],
                mdp.reward[s, a],
                ends,
                np.ones(LAYERS),
                log_pi[s, a],
                np.zeros((LAYERS, 3)),
            ),
        )


def with_values(head: heads.Head, params: Params, obs, features, wanted) -> Params:
    """Return parameters with which the critic's outputs are `wanted`.

    Outputs are linear in a row of the table, or in the weights of the last layer.
    """
    dense, tables = params
    has_rows = "row" in tables["value"]
    free = tables["value"]["row"] if has_rows else dense["value"]["top"]

    def value(free):
        changed = (
            (dense["value"], {"row": free})
            if has_rows
            else (dense["value"] | {"top": free}, tables["value"])
        )
        return head.apply(*changed, obs, features)[:, 0]

    slope = jax.jacobian(value)(free).reshape(len(wanted), -1)
    found, *_ = np.linalg.lstsq(slope, wanted - value(jnp.zeros_like(free)))
    free = jnp.asarray(found).reshape(free.shape)
    np.testing.assert_allclose(value(free), wanted, atol=1e-11)
    if has_rows:
        return Params(dense, tables | {"value": {"row": free}})
    return Params(dense | {"value": dense["value"] | {"top": free}}, tables)


def sampled_and_exact(
    seed: int,
    lam: float,
    exact_critic: bool,
    learner_settings: config.ActorCritic,
    spec: Spec = SPEC,
):
    """Return the expected gradient of the loss, and the gradient of the exact objective.

    Both are with respect to torso, policy and log tau.
    """
    actions = every_action(spec)
    mdp, everywhere = draw(seed, len(actions)), jnp.arange(STATES)
    s = config.override(learner_settings, lam=lam)
    parts = make_parts(s, spec)
    optimisers = make_optimisers(s, parts, 0.0)
    learner = ac.init_actor_critic(parts, optimisers, 0.3, np.random.default_rng(seed))
    learner = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), learner)
    rng = np.random.default_rng(seed + 1)
    stir = lambda x: x + 0.5 * rng.normal(size=x.shape)
    dense, tables = jax.tree.map(
        stir, Params(learner.params.dense, optimisers.rows.unpack(learner.params.rows))
    )
    log_tau, memory = learner.log_tau, learner.memory

    def exact_log_pi(dense, tables):
        """Return log pi of all actions [STATES, A], from a softmax over the choices of a factor."""
        logits = ac.policy_logits(parts, Params(dense, tables), everywhere)
        sizes = getattr(spec.actions, "sizes", (logits.shape[-1],))
        allowed = MASKS.astype(bool) if spec is MASKED else np.ones(logits.shape, bool)
        total, start = 0.0, 0
        for factor, size in enumerate(sizes):
            part = slice(start, start + size)
            weights = jnp.where(allowed[:, part], jnp.exp(logits[:, part]), 0.0)
            pi = weights / jnp.sum(weights, axis=-1, keepdims=True)
            chosen = actions[:, factor] if actions.ndim > 1 else actions
            total += jnp.log(jnp.maximum(pi[:, chosen], 1e-300))
            start += size
        return total

    def objective(dense, tables, log_tau):
        tau = taus(sigma2, log_tau, s.risk)
        return exact_optimism(mdp, exact_log_pi(dense, tables), sigma2, tau)[0]

    features = parts.torso.apply(dense["torso"], tables["torso"], everywhere)
    estimator = Params(dense["uncertainty"], tables["uncertainty"])
    choice_sigma2 = lambda choice: parts.uncertainty.sigma2(
        estimator, memory.uncertainty, everywhere, features, jnp.full(STATES, choice)
    )
    offsets = np.array([0, 2]) if actions.ndim > 1 else np.array([0])
    choices = actions.reshape(len(actions), -1) + offsets
    sigma2 = jnp.stack(
        [sum(choice_sigma2(choice) for choice in row) / len(row) for row in choices], axis=-1
    )
    log_pi = np.asarray(exact_log_pi(dense, tables))
    if exact_critic:
        tau = taus(sigma2, log_tau, s.risk)
        _, j = exact_optimism(mdp, log_pi, sigma2, tau)
        if s.critic == "expected-bonus":  # its critic predicts J without them
            j -= jnp.sum(jnp.exp(log_pi) * (sigma2 / (2 * tau) - tau * log_pi), axis=-1)
        dense, tables = with_values(parts.value, Params(dense, tables), everywhere, features, j)

    log_pi = np.where(log_pi < -600, -np.inf, log_pi)  # not allowed
    probabilities, trajectories = zip(*every_trajectory(mdp, log_pi, spec), strict=True)
    assert sum(probabilities) == pytest.approx(1.0, abs=1e-12)
    batch = jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *trajectories)

    def loss(dense, tables, log_tau, t):
        rows = jax.tree.map(lambda table: table[parts.unpack(t.obs)[0]], tables)
        undamped, running = (
            dict.fromkeys(("policy", "value", "uncertainty"), jnp.ones(LAYERS)),
            ac.RunningMeans(jnp.zeros(()), jnp.zeros(())),
        )
        loss, (_, _, metrics) = ac.actor_critic_loss(
            s, parts, Params(dense, rows), log_tau, memory, t, undamped, running
        )
        return loss, metrics["tau"]

    one = jax.grad(loss, (0, 1, 2), has_aux=True)
    gradients, scale = jax.jit(jax.vmap(one, (None, None, None, 0), axis_name=ac.BATCH))(
        dense, tables, log_tau, batch
    )
    # The loss is a mean over steps, divided by the batch mean of tau; the objective is a sum.
    expected = jax.tree.map(
        lambda g: -LAYERS * scale[0] * jnp.tensordot(jnp.array(probabilities), g, axes=1),
        gradients,
    )
    exact = jax.jit(jax.grad(objective, (0, 1, 2)))(dense, tables, log_tau)
    played = lambda g: [g[0]["torso"], g[0]["policy"], g[1]["torso"], g[1]["policy"], g[2]]
    flat = lambda g: np.concatenate([np.ravel(x) for x in jax.tree.leaves(played(g))])
    return flat(expected), flat(exact)


@pytest.mark.parametrize(
    ("lam", "exact_critic"), [(1.0, False), (1.0, True), (0.6, True), (0.0, True)]
)
@pytest.mark.parametrize("critic", ["sampled", "expected-bonus"])
@pytest.mark.parametrize(
    "uncertainty",
    [config.Ensemble(members=3), pytest.param(config.Counts(), marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("network", ["table", "mlp"])
def test_expected_gradient_of_the_loss_is_the_gradient_of_the_game(
    float64, lam, exact_critic, critic, uncertainty, network
):
    for seed in range(2):
        s = settings(critic=critic, network=network, estimator_hidden=(4,))
        s = config.check(config.replace_at(s, ("uncertainty",), uncertainty))
        expected, exact = sampled_and_exact(seed, lam, exact_critic, s)
        assert np.linalg.norm(exact[:-1]) > 1e-2
        assert abs(exact[-1]) > 1e-3
        np.testing.assert_allclose(expected, exact, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(PRODUCT, id="product", marks=pytest.mark.slow),
        pytest.param(MASKED, id="masked product"),
    ],
)
@pytest.mark.parametrize("critic", ["sampled", "expected-bonus"])
def test_the_same_for_actions_of_several_factors_and_with_masks(float64, spec, critic):
    """Against sums over all joint actions: entropy, bonus and log-probabilities are exact."""
    s = settings(critic=critic, network="table", estimator_hidden=(4,))
    s = config.check(config.replace_at(s, ("uncertainty",), config.Ensemble(members=3)))
    for lam, exact_critic in ((1.0, False), (0.6, True)):
        expected, exact = sampled_and_exact(0, lam, exact_critic, s, spec)
        assert np.linalg.norm(exact[:-1]) > 1e-2
        assert abs(exact[-1]) > 1e-3
        np.testing.assert_allclose(expected, exact, rtol=0, atol=1e-10)


@pytest.mark.parametrize("critic", ["sampled", "expected-bonus"])
@pytest.mark.parametrize("network", ["table", "mlp"])
def test_the_same_with_a_tau_for_each_state_and_action(float64, critic, network):
    s = settings(critic=critic, network=network, estimator_hidden=(4,))
    s = config.replace_at(s, ("risk",), config.LocalSeeking(tau_min=0.05, learn_tau=True))
    expected, exact = sampled_and_exact(0, 0.6, True, config.check(s))
    assert np.linalg.norm(exact[:-1]) > 1e-2
    assert abs(exact[-1]) > 1e-3
    np.testing.assert_allclose(expected, exact, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "critic", [pytest.param("sampled", marks=pytest.mark.slow), "expected-bonus"]
)
def test_the_same_with_the_clipped_objective_on_policy(float64, critic):
    s = settings(critic=critic, network="table", estimator_hidden=(4,), objective="clipped")
    expected, exact = sampled_and_exact(0, 0.6, True, s)
    assert np.linalg.norm(exact[:-1]) > 1e-2
    np.testing.assert_allclose(expected, exact, rtol=0, atol=1e-10)


def test_the_entropy_sign_as_printed_in_algorithm_1_is_wrong(float64, monkeypatch):
    printed = lambda log_pi_a, advantage, bonus, entropy_bonus: (
        log_pi_a * jax.lax.stop_gradient(advantage) + bonus - entropy_bonus
    )
    monkeypatch.setattr(game, "payoff", printed)
    expected, exact = sampled_and_exact(0, 1.0, False, settings())
    assert np.max(np.abs(expected - exact)) > 1e-3
