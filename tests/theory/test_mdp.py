"""Layered MDPs and posteriors over them, checked against explicit loops."""

import itertools

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac.envs.deep_sea import deep_sea
from ersac.theory import mdp as mdps
from ersac.theory.mdp import MDP, Data, Dirichlet, MdpPosterior


def backward_loop(reward, transition, state_value):
    """Backward induction on one MDP, cell by cell."""
    layers, states, actions = reward.shape
    q, v = np.zeros_like(reward), np.zeros((layers + 1, states))
    for layer in reversed(range(layers)):
        for s in range(states):
            for a in range(actions):
                q[layer, s, a] = reward[layer, s, a] + sum(
                    transition[layer, s, a, z] * v[layer + 1, z] for z in range(states)
                )
            v[layer, s] = state_value(q[layer, s], layer, s)
    return q, v[:-1]


def test_values_equal_those_of_an_explicit_loop(problems, random_problems, batched):
    beliefs, policy, _ = problems
    of_policy, optimal = (
        batched(mdps.policy_values, beliefs.mdp, policy),
        batched(mdps.optimal_values, beliefs.mdp),
    )
    reward, transition, _, _, pi, _ = random_problems
    for i in range(len(reward)):
        q, v = backward_loop(
            reward[i], transition[i], lambda row, layer, s, i=i: pi[i, layer, s] @ row
        )
        np.testing.assert_allclose(of_policy.q[i], q, atol=1e-12)
        np.testing.assert_allclose(of_policy.v[i], v, atol=1e-12)
        q, v = backward_loop(reward[i], transition[i], lambda row, layer, s: row.max())
        np.testing.assert_allclose(optimal.q[i], q, atol=1e-12)
        np.testing.assert_allclose(optimal.v[i], v, atol=1e-12)


def test_occupancy_sums_to_one_in_every_layer_and_gives_the_policy_value(problems, batched):
    beliefs, policy, _ = problems
    occupancy = batched(mdps.occupancy, beliefs.mdp, policy)
    np.testing.assert_allclose(occupancy.sum((-1, -2)), 1, atol=1e-13)
    np.testing.assert_allclose(occupancy[:, 0].sum(-1), beliefs.mdp.rho, atol=1e-13)
    value = batched(
        lambda mdp, pi: mdps.start_value(mdp.rho, mdps.policy_values(mdp, pi)), beliefs.mdp, policy
    )
    np.testing.assert_allclose((occupancy * beliefs.mdp.reward).sum((1, 2, 3)), value, atol=1e-12)


def test_the_greedy_policy_of_q_star_is_optimal(problems, batched):
    """The values of the policy that is greedy for Q* are the optimal values [e-opt-qv]."""
    mdp = problems[0].mdp
    optimal = batched(mdps.optimal_values, mdp)
    greedy = batched(lambda mdp, q: mdps.policy_values(mdp, mdps.greedy_policy(q)), mdp, optimal.q)
    np.testing.assert_allclose(greedy.v, optimal.v, atol=1e-12)


def test_successor_tables_equal_one_hot_probabilities(problems, batched):
    """A table of successors and its one-hot matrix give the same values and occupancy."""
    beliefs, policy, _ = problems
    successor = jnp.argmax(beliefs.mdp.transition, axis=-1)
    one_hot = beliefs.mdp._replace(
        transition=jax.nn.one_hot(successor, beliefs.mdp.rho.shape[-1], dtype=policy.dtype)
    )
    table = beliefs.mdp._replace(transition=successor)
    for f in (mdps.policy_values, mdps.occupancy):
        for a, b in zip(
            jax.tree.leaves(batched(f, one_hot, policy)),
            jax.tree.leaves(batched(f, table, policy)),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, atol=1e-13)


def test_posterior_equals_sequential_updates(float64):
    """The batch update equals Bayes' rule applied to one observation after another."""
    rng = np.random.default_rng(0)
    shape = (2, 3, 2)
    prior = MdpPosterior(
        jnp.asarray(rng.normal(size=shape)),
        jnp.asarray(rng.exponential(size=shape)),
        jnp.asarray(0.3),
        Dirichlet(jnp.asarray(rng.exponential(size=(*shape, 3)))),
        jnp.full(3, 1 / 3),
    )
    data, mean, var = (
        mdps.empty_data(prior),
        np.array(prior.reward_mean),
        np.array(prior.reward_var),
    )
    counts = np.array(prior.transition.concentration)
    for _ in range(50):
        state, action, successor = (
            rng.integers(3, size=2),
            rng.integers(2, size=2),
            rng.integers(3, size=2),
        )
        reward = rng.normal(size=2)
        data = mdps.add_episode(
            data, mdps.Episode(*(jnp.asarray(x) for x in (state, action, reward, successor)))
        )
        for layer in range(2):
            at = (layer, state[layer], action[layer])
            gain = var[at] / (var[at] + 0.3)
            mean[at] += gain * (reward[layer] - mean[at])
            var[at] *= 1 - gain
            counts[(*at, successor[layer])] += 1
    posterior = mdps.update_posterior(prior, data)
    np.testing.assert_allclose(posterior.reward_mean, mean, atol=1e-12)
    np.testing.assert_allclose(posterior.reward_var, var, atol=1e-12)
    np.testing.assert_allclose(posterior.transition.concentration, counts, atol=1e-12)
    np.testing.assert_allclose(
        mdps.mean_mdp(posterior).transition, counts / counts.sum(-1, keepdims=True), atol=1e-12
    )


def test_without_noise_one_visit_determines_the_reward():
    prior = mdps.random_prior(1, 1, 2, noise_std=0.0)
    data = Data(jnp.array([[[3.0, 0.0]]]), jnp.array([[[1.5, 0.0]]]), jnp.zeros((1, 1, 2, 1)))
    posterior = mdps.update_posterior(prior, data)
    np.testing.assert_array_equal(posterior.reward_mean, [[[0.5, 0.0]]])
    np.testing.assert_array_equal(posterior.reward_var, [[[0.0, 1.0]]])


def test_the_posterior_mean_of_values_is_the_value_of_the_mean_mdp(float64):
    """`E_phi V^pi` is the value of the mean MDP, by layerwise independence."""
    prior = mdps.random_prior(3, 3, 2)
    rng = np.random.default_rng(1)
    prior = prior._replace(
        reward_mean=jnp.asarray(rng.normal(size=(3, 3, 2))),
        transition=Dirichlet(jnp.asarray(rng.exponential(size=(3, 3, 2, 3)))),
    )
    policy = jnp.asarray(rng.dirichlet(np.ones(2), size=(3, 3)))
    samples = jax.jit(jax.vmap(lambda key: mdps.sample_mdp(key, prior)))(
        jax.random.split(jax.random.key(0), 5_000)
    )
    values = jax.jit(jax.vmap(lambda mdp: mdps.policy_values(mdp, policy).v[0]))(samples)
    error = np.asarray(values.mean(0) - mdps.policy_values(mdps.mean_mdp(prior), policy).v[0])
    assert (np.abs(error) < 4 * np.asarray(values.std(0)) / np.sqrt(len(values))).all()


def test_sampled_episodes_visit_as_often_as_occupancy_says(problems):
    beliefs, policy, _ = jax.tree.map(lambda x: x[0], problems)
    noise_var = jnp.asarray(0.25)
    keys = jax.random.split(jax.random.key(0), 40_000)
    episodes = jax.jit(
        jax.vmap(lambda key: mdps.sample_episode(key, beliefs.mdp, noise_var, policy))
    )(keys)
    layer = np.arange(policy.shape[0])
    frequency = np.zeros(policy.shape)
    np.add.at(
        frequency,
        (
            np.broadcast_to(layer, episodes.state.shape),
            np.asarray(episodes.state),
            np.asarray(episodes.action),
        ),
        1 / len(keys),
    )
    np.testing.assert_allclose(
        frequency, mdps.occupancy(beliefs.mdp, policy), atol=4 * 0.5 / np.sqrt(len(keys))
    )
    np.testing.assert_array_equal(episodes.state[:, 1:], episodes.successor[:, :-1])
    noise = episodes.reward - beliefs.mdp.reward[layer, episodes.state, episodes.action]
    assert float(noise.std()) == pytest.approx(0.5, rel=0.02)
    assert abs(float(noise.mean())) < 0.01


def test_picked_indices_have_positive_probability():
    p = jnp.array([0.0, 0.3, 0.0, 0.7, 0.0])
    indices = jax.vmap(lambda u: mdps.pick_index(u, p))(jnp.array([0.0, 0.1, 0.29, 0.31, 0.999999]))
    np.testing.assert_array_equal(indices, [1, 1, 1, 3, 3])


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_deep_sea_mdp_equals_the_deep_sea_environment(depth):
    """Rewards and next columns are those of `ersac.envs.deep_sea`."""
    env = deep_sea(depth)
    for seed in range(5):
        mdp, env_params = mdps.check_mdp(mdps.deep_sea_mdp(depth, seed)), env.env_params(seed)
        rng = np.random.default_rng(seed)
        for _ in range(4):
            state, key = env.reset(env_params, jax.random.key(0)), jax.random.key(1)
            for layer in range(depth):
                action = int(rng.integers(2))
                column = int(state.column)
                step = env.step(jnp.asarray(env_params), state, jnp.int32(action), key)
                assert float(step.reward) == pytest.approx(
                    float(mdp.reward[layer, column, action]), abs=1e-7
                )
                assert int(step.state.column) == int(mdp.transition[layer, column, action])
                state = step.state


def test_the_optimal_return_of_deep_sea_is_0_99():
    assert float(mdps.optimal_values(mdps.deep_sea_mdp(30, 3)).v[0, 0]) == pytest.approx(
        0.99, abs=1e-5
    )


def test_river_swim_has_a_reward_at_each_bank(float64):
    mdp = mdps.check_mdp(mdps.river_swim(4, 3))
    drift = jnp.zeros((4, 3, 2)).at[..., 0].set(1)
    assert float(mdps.start_value(mdp.rho, mdps.policy_values(mdp, drift))) == pytest.approx(
        4 * 0.005
    )
    swim = 1 - drift
    chain = np.array([[0.4, 0.6, 0], [0.05, 0.6, 0.35], [0, 0.05, 0.95]])  # by hand
    at_right_bank = [np.linalg.matrix_power(chain, step)[0, 2] for step in range(4)]
    assert float(mdps.start_value(mdp.rho, mdps.policy_values(mdp, swim))) == pytest.approx(
        sum(at_right_bank)
    )


def test_a_bandit_has_one_layer():
    prior = mdps.check_posterior(mdps.bandit_prior(5, reward_std=2.0))
    assert prior.reward_var.shape == (1, 1, 5)
    bandit = mdps.sample_mdp(jax.random.key(0), prior)
    assert float(mdps.optimal_values(bandit).v[0, 0]) == float(bandit.reward.max())


def test_padding_does_not_change_the_value(float64):
    rng = np.random.default_rng(5)
    sizes = [2, 4, 1, 3]
    rewards = [rng.normal(size=(n, 2)) for n in sizes]
    transitions = [
        rng.dirichlet(np.ones(after), size=(n, 2)) for n, after in itertools.pairwise(sizes)
    ]
    rho = np.array([0.3, 0.7])
    value = np.zeros(1)
    for r, p in zip(reversed(rewards), [np.ones((3, 2, 1)), *reversed(transitions)], strict=True):
        value = (r + p @ value).max(-1)
    mdp = mdps.from_layers(rewards, transitions, rho)
    assert float(mdps.start_value(mdp.rho, mdps.optimal_values(mdp))) == pytest.approx(
        rho @ value, abs=1e-14
    )


def valid_mdp() -> MDP:
    return mdps.mean_mdp(mdps.random_prior(3, 2, 2))


INVALID_MDPS = {
    "layer 2 of 3, state 1, action 0: transition probabilities do not sum to one": lambda m: (
        m._replace(transition=m.transition.at[1, 1, 0, 0].add(0.1))
    ),
    "layer 3 of 3, state 0, action 1: a transition probability is negative": lambda m: m._replace(
        transition=m.transition.at[2, 0, 1].set(jnp.array([1.5, -0.5]))
    ),
    "layer 1 of 3, state 0, action 0: a transition probability is NaN": lambda m: m._replace(
        transition=m.transition.at[0, 0, 0, 0].set(jnp.nan)
    ),
    "layer 2 of 3, state 0, action 1: a reward is not finite": lambda m: m._replace(
        reward=m.reward.at[1, 0, 1].set(jnp.nan)
    ),
    "layer 1 of 3: transitions have shape (2, 2, 2, 2), expected (3, 2, 2, 2)": lambda m: (
        m._replace(transition=m.transition[1:])
    ),
    "layer 1 of 3: the initial distribution is not a probability distribution": lambda m: (
        m._replace(rho=jnp.array([0.2, 0.2]))
    ),
    "layer 1 of 3: the initial distribution has shape (3,), expected (2,)": lambda m: m._replace(
        rho=jnp.full(3, 1 / 3)
    ),
    "layer 2 of 3, state 0, action 0: a successor is not one of the 2 states": lambda m: m._replace(
        transition=jnp.zeros((3, 2, 2), jnp.int32).at[1, 0, 0].set(2)
    ),
    "layer 1 of 3: successors have shape (3, 2), expected (3, 2, 2)": lambda m: m._replace(
        transition=jnp.zeros((3, 2), jnp.int32)
    ),
    "rewards have shape (2, 2), expected (layers, states, actions)": lambda m: m._replace(
        reward=m.reward[0]
    ),
}


@pytest.mark.parametrize("message", INVALID_MDPS)
def test_an_invalid_mdp_is_a_one_line_error(message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        mdps.check_mdp(INVALID_MDPS[message](valid_mdp()))
    assert str(error.value) == message


INVALID_POSTERIORS = {
    "layer 2 of 3, state 1, action 1: the variance of a mean reward is negative": lambda p: (
        p._replace(reward_var=p.reward_var.at[1, 1, 1].set(-0.1))
    ),
    "layer 1 of 3, state 0, action 0: the variance of a mean reward is not finite": lambda p: (
        p._replace(reward_var=p.reward_var.at[0, 0, 0].set(jnp.nan))
    ),
    "layer 1: variances have shape (2, 2, 2), means (3, 2, 2)": lambda p: p._replace(
        reward_var=p.reward_var[1:]
    ),
    "every layer: the noise variance -1.0 is not a number >= 0": lambda p: p._replace(
        noise_var=jnp.asarray(-1.0)
    ),
    "layer 3 of 3, state 0, action 0: a concentration is not a number >= 0": lambda p: p._replace(
        transition=Dirichlet(p.transition.concentration.at[2, 0, 0, 0].set(-1))
    ),
    "layer 3 of 3, state 0, action 0: the concentrations sum to zero": lambda p: p._replace(
        transition=Dirichlet(p.transition.concentration.at[2, 0, 0].set(0))
    ),
    "layer 2 of 3, state 0, action 0: a reward is not finite": lambda p: p._replace(
        reward_mean=p.reward_mean.at[1, 0, 0].set(jnp.inf)
    ),
}


@pytest.mark.parametrize("message", INVALID_POSTERIORS)
def test_an_invalid_posterior_is_a_one_line_error(message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        mdps.check_posterior(INVALID_POSTERIORS[message](mdps.random_prior(3, 2, 2)))
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("rewards", "transitions", "rho", "message"),
    [
        (
            [np.zeros((1, 2)), np.zeros((2, 2))],
            [np.ones((1, 2, 3)) / 3],
            [1],
            "layer 1 of 2: transitions have shape (1, 2, 3), expected (1, 2, 2)",
        ),
        (
            [np.zeros((1, 2)), np.zeros((2, 3))],
            [np.ones((1, 2, 2)) / 2],
            [1],
            "layer 2 of 2: rewards have shape (2, 3), expected (states, 2)",
        ),
        (
            [np.zeros((1, 2)), np.zeros((2, 2))],
            [],
            [1],
            "2 layers need 1 transitions between them, not 0",
        ),
        (
            [np.zeros((2, 2))],
            [],
            [1],
            "layer 1 of 1: the initial distribution has shape (1,), expected (2,)",
        ),
        ([], [], [1], "layer 1: there must be at least one layer with at least one action"),
        (
            [np.zeros((1, 2)), np.zeros((2, 2))],
            [np.ones((1, 2, 2)) / 3],
            [1],
            "layer 1 of 2, state 0, action 0: transition probabilities do not sum to one",
        ),
    ],
)
def test_layers_of_mismatched_shapes_are_a_one_line_error(rewards, transitions, rho, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        mdps.from_layers(rewards, transitions, rho)
    assert str(error.value) == message


def test_the_deep_sea_prior_contains_the_true_transitions():
    mdp = mdps.deep_sea_mdp(6, 0)
    assert mdps.deep_sea_prior(mdp, 0.1, 0.0, True).transition is mdp.transition
    unknown = mdps.check_posterior(mdps.deep_sea_prior(mdp, 0.1, 0.0, False))
    possible = np.asarray(unknown.transition.concentration) > 0
    assert np.take_along_axis(possible, np.asarray(mdp.transition)[..., None], axis=-1).all()
    assert possible.sum(-1).max() == 2
