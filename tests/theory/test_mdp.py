"""Layered MDPs and beliefs about them, against loops that anyone can read."""

import itertools

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac.envs import deep_sea as sea
from ersac.theory import mdp as mdps
from ersac.theory.mdp import MDP, Data, Dirichlet, MdpPosterior


def loop(reward, transition, summarise):
    """Backward induction on one MDP, cell by cell."""
    layers, states, actions = reward.shape
    q, v = np.zeros_like(reward), np.zeros((layers + 1, states))
    for layer in reversed(range(layers)):
        for s in range(states):
            for a in range(actions):
                q[layer, s, a] = reward[layer, s, a] + sum(
                    transition[layer, s, a, z] * v[layer + 1, z] for z in range(states)
                )
            v[layer, s] = summarise(q[layer, s], layer, s)
    return q, v[:-1]


def test_values_are_those_of_the_loop(problems, random_problems, each):
    beliefs, policy, _ = problems
    of_policy, best = (
        each(mdps.policy_values, beliefs.mdp, policy),
        each(mdps.optimal_values, beliefs.mdp),
    )
    reward, transition, _, _, pi, _ = random_problems
    for i in range(len(reward)):
        q, v = loop(reward[i], transition[i], lambda row, layer, s, i=i: pi[i, layer, s] @ row)
        np.testing.assert_allclose(of_policy.q[i], q, atol=1e-12)
        np.testing.assert_allclose(of_policy.v[i], v, atol=1e-12)
        q, v = loop(reward[i], transition[i], lambda row, layer, s: row.max())
        np.testing.assert_allclose(best.q[i], q, atol=1e-12)
        np.testing.assert_allclose(best.v[i], v, atol=1e-12)


def test_occupancy_is_a_distribution_in_every_layer_and_prices_the_policy(problems, each):
    beliefs, policy, _ = problems
    taken = each(mdps.occupancy, beliefs.mdp, policy)
    np.testing.assert_allclose(taken.sum((-1, -2)), 1, atol=1e-13)
    np.testing.assert_allclose(taken[:, 0].sum(-1), beliefs.mdp.rho, atol=1e-13)
    value = each(
        lambda mdp, pi: mdps.start_value(mdp.rho, mdps.policy_values(mdp, pi)), beliefs.mdp, policy
    )
    np.testing.assert_allclose((taken * beliefs.mdp.reward).sum((1, 2, 3)), value, atol=1e-12)


def test_the_greedy_policy_of_q_star_is_optimal(problems, each):
    mdp = problems[0].mdp
    best = each(mdps.optimal_values, mdp)
    greedy = each(lambda mdp, q: mdps.policy_values(mdp, mdps.greedy_policy(q)), mdp, best.q)
    np.testing.assert_allclose(greedy.v, best.v, atol=1e-12)


def test_successors_are_sharp_probabilities(problems, each):
    """A table of successors and the matrix that says the same give the same values and visits."""
    beliefs, policy, _ = problems
    successor = jnp.argmax(beliefs.mdp.transition, axis=-1)
    sharp = beliefs.mdp._replace(
        transition=jax.nn.one_hot(successor, beliefs.mdp.rho.shape[-1], dtype=policy.dtype)
    )
    sparse = beliefs.mdp._replace(transition=successor)
    for f in (mdps.policy_values, mdps.occupancy):
        for a, b in zip(
            jax.tree.leaves(each(f, sharp, policy)),
            jax.tree.leaves(each(f, sparse, policy)),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, atol=1e-13)


def test_posterior_is_one_observation_after_another(float64):
    """The batch update equals Bayes' rule applied reward by reward, in any order, and counted successors."""
    rng = np.random.default_rng(0)
    shape = (2, 3, 2)
    prior = MdpPosterior(
        jnp.asarray(rng.normal(size=shape)), jnp.asarray(rng.exponential(size=shape)), jnp.asarray(0.3),
        Dirichlet(jnp.asarray(rng.exponential(size=(*shape, 3)))), jnp.full(3, 1 / 3),
    )  # fmt: skip
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
    now = mdps.update_posterior(prior, data)
    np.testing.assert_allclose(now.reward_mean, mean, atol=1e-12)
    np.testing.assert_allclose(now.reward_var, var, atol=1e-12)
    np.testing.assert_allclose(now.transition.concentration, counts, atol=1e-12)
    np.testing.assert_allclose(
        mdps.mean_mdp(now).transition, counts / counts.sum(-1, keepdims=True), atol=1e-12
    )


def test_without_noise_one_visit_is_knowledge():
    prior = mdps.random_prior(1, 1, 2, noise_std=0.0)
    data = Data(jnp.array([[[3.0, 0.0]]]), jnp.array([[[1.5, 0.0]]]), jnp.zeros((1, 1, 2, 1)))
    now = mdps.update_posterior(prior, data)
    np.testing.assert_array_equal(now.reward_mean, [[[0.5, 0.0]]])
    np.testing.assert_array_equal(now.reward_var, [[[0.0, 1.0]]])


def test_the_mean_of_values_is_the_value_of_means(float64):
    """Layerwise independence: `E_phi V^pi` is the value of the mean MDP, which every exact optimism in this library rests on."""
    prior = mdps.random_prior(3, 3, 2)
    rng = np.random.default_rng(1)
    prior = prior._replace(
        reward_mean=jnp.asarray(rng.normal(size=(3, 3, 2))),
        transition=Dirichlet(jnp.asarray(rng.exponential(size=(3, 3, 2, 3)))),
    )
    policy = jnp.asarray(rng.dirichlet(np.ones(2), size=(3, 3)))
    env_params = jax.jit(jax.vmap(lambda key: mdps.sample_mdp(key, prior)))(
        jax.random.split(jax.random.key(0), 5_000)
    )
    values = jax.jit(jax.vmap(lambda mdp: mdps.policy_values(mdp, policy).v[0]))(env_params)
    error = np.asarray(values.mean(0) - mdps.policy_values(mdps.mean_mdp(prior), policy).v[0])
    assert (np.abs(error) < 4 * np.asarray(values.std(0)) / np.sqrt(len(values))).all()


def test_walks_visit_as_often_as_occupancy_says(problems):
    beliefs, policy, _ = jax.tree.map(lambda x: x[0], problems)
    noise_var = jnp.asarray(0.25)
    keys = jax.random.split(jax.random.key(0), 40_000)
    walks = jax.jit(jax.vmap(lambda key: mdps.sample_episode(key, beliefs.mdp, noise_var, policy)))(
        keys
    )
    layer = np.arange(policy.shape[0])
    seen = np.zeros(policy.shape)
    np.add.at(
        seen,
        (
            np.broadcast_to(layer, walks.state.shape),
            np.asarray(walks.state),
            np.asarray(walks.action),
        ),
        1 / len(keys),
    )
    np.testing.assert_allclose(
        seen, mdps.occupancy(beliefs.mdp, policy), atol=4 * 0.5 / np.sqrt(len(keys))
    )
    np.testing.assert_array_equal(walks.state[:, 1:], walks.successor[:, :-1])
    noise = walks.reward - beliefs.mdp.reward[layer, walks.state, walks.action]
    assert float(noise.std()) == pytest.approx(0.5, rel=0.02)
    assert abs(float(noise.mean())) < 0.01


def test_picking_never_leaves_the_support():
    p = jnp.array([0.0, 0.3, 0.0, 0.7, 0.0])
    picked = jax.vmap(lambda u: mdps.pick_index(u, p))(jnp.array([0.0, 0.1, 0.29, 0.31, 0.999999]))
    np.testing.assert_array_equal(picked, [1, 1, 1, 3, 3])


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_deep_sea_is_the_deep_agents_sea(depth):
    """The same actions pay the same and lead to the same columns as in the environment that the deep agent dives in."""
    env = sea.deep_sea(depth)
    for seed in range(5):
        mdp, env_params = mdps.check_mdp(mdps.deep_sea_mdp(depth, seed)), env.env_params(seed)
        rng = np.random.default_rng(seed)
        for _ in range(4):
            state, key = env.reset(env_params, jax.random.key(0)), jax.random.key(1)
            for layer in range(depth):
                action = int(rng.integers(2))
                column = int(state.column)
                answer = env.step(jnp.asarray(env_params), state, jnp.int32(action), key)
                assert float(answer.reward) == pytest.approx(
                    float(mdp.reward[layer, column, action]), abs=1e-7
                )
                assert int(answer.state.column) == int(mdp.transition[layer, column, action])
                state = answer.state


def test_deep_sea_is_worth_what_it_costs():
    assert float(mdps.optimal_values(mdps.deep_sea_mdp(30, 3)).v[0, 0]) == pytest.approx(
        0.99, abs=1e-5
    )


def test_river_swim_pays_at_both_banks(float64):
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


def test_a_bandit_is_one_layer():
    prior = mdps.check_posterior(mdps.bandit_prior(5, reward_std=2.0))
    assert prior.reward_var.shape == (1, 1, 5)
    env_params = mdps.sample_mdp(jax.random.key(0), prior)
    assert float(mdps.optimal_values(env_params).v[0, 0]) == float(env_params.reward.max())


def test_padding_changes_nothing(float64):
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


def good() -> MDP:
    return mdps.mean_mdp(mdps.random_prior(3, 2, 2))


BAD = {
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


@pytest.mark.parametrize("message", BAD)
def test_a_bad_mdp_is_one_clear_line(message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        mdps.check_mdp(BAD[message](good()))
    assert str(error.value) == message


BAD_BELIEFS = {
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


@pytest.mark.parametrize("message", BAD_BELIEFS)
def test_bad_beliefs_are_one_clear_line(message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        mdps.check_posterior(BAD_BELIEFS[message](mdps.random_prior(3, 2, 2)))
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("rewards", "transitions", "rho", "message"),
    [
        (
            [np.zeros((1, 2)), np.zeros((2, 2))], [np.ones((1, 2, 3)) / 3], [1],
            "layer 1 of 2: transitions have shape (1, 2, 3), expected (1, 2, 2)",
        ),
        (
            [np.zeros((1, 2)), np.zeros((2, 3))], [np.ones((1, 2, 2)) / 2], [1],
            "layer 2 of 2: rewards have shape (2, 3), expected (states, 2)",
        ),
        ([np.zeros((1, 2)), np.zeros((2, 2))], [], [1], "2 layers need 1 transitions between them, not 0"),
        ([np.zeros((2, 2))], [], [1], "layer 1 of 1: the initial distribution has shape (1,), expected (2,)"),
        ([], [], [1], "layer 1: there must be at least one layer with at least one action"),
        (
            [np.zeros((1, 2)), np.zeros((2, 2))], [np.ones((1, 2, 2)) / 3], [1],
            "layer 1 of 2, state 0, action 0: transition probabilities do not sum to one",
        ),
    ],
)  # fmt: skip
def test_layers_that_do_not_fit_are_one_clear_line(rewards, transitions, rho, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        mdps.from_layers(rewards, transitions, rho)
    assert str(error.value) == message


def test_the_divers_beliefs_contain_the_truth():
    env_params = mdps.deep_sea_mdp(6, 0)
    assert mdps.deep_sea_prior(env_params, 0.1, 0.0, True).transition is env_params.transition
    unknown = mdps.check_posterior(mdps.deep_sea_prior(env_params, 0.1, 0.0, False))
    possible = np.asarray(unknown.transition.concentration) > 0
    assert np.take_along_axis(possible, np.asarray(env_params.transition)[..., None], axis=-1).all()
    assert possible.sum(-1).max() == 2
