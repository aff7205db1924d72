"""Matrix games and constrained bandits: solvers against definitions, and who has linear regret."""

import io
import json

import jax
import numpy as np
import pytest
import scipy.optimize
from jax import numpy as jnp
from rich.console import Console

from ersac.theory import game_experiments, games, vapor
from ersac.theory.settings import TheoryGames

SEEDS = range(1000, 1010)


def test_maximin_strategies_of_many_games_at_once():
    """Rock-paper-scissors, a saddle point in pure strategies, and a 2x2 game in closed form."""
    payoff = games.rock_paper_scissors(range(1), 1.0).payoff[0]
    pure = np.array([[3.0, 1, 4], [2, 0, 1], [5, 4, 3]])
    mixed = np.pad(np.array([[2.0, -1], [-1, 1]]), ((0, 1), (0, 1)), constant_values=-9)
    mixed[2, :2] = 9
    strategies, values = games.solve_maximin(np.stack([payoff, pure, mixed]))
    np.testing.assert_allclose(values, [0, 2, 0.2], atol=1e-9)
    np.testing.assert_allclose(strategies, [[1 / 3] * 3, [1, 0, 0], [0.4, 0.6, 0]], atol=1e-9)


@pytest.mark.parametrize("name", ["k-learning", "vbos"])
def test_the_solvers_find_the_saddle_point(name, float64):
    """No scalar and no opponent have a smaller objective, and the policy attains it."""
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(size=(3, 4)), rng.exponential(size=(3, 4)) * 0.1
    objective = {"k-learning": games.k_learning_objective, "vbos": games.vbos_objective}[name]
    start = jnp.asarray(1.0)
    scalar, weights = games.minimise_over_simplex(objective, start, mean, variance, np.eye(3))
    found = float(objective(scalar, *games.column_moments(mean, variance, np.eye(3), weights)))

    def value(z):
        y = jax.nn.softmax(jnp.asarray(z[1:]))
        first = np.exp(z[0]) if name == "k-learning" else z[0]
        return float(objective(first, *games.column_moments(mean, variance, np.eye(3), y)))

    options = {"maxiter": 2000, "fatol": 1e-10, "xatol": 1e-8}
    result = scipy.optimize.minimize(value, np.zeros(4), method="Nelder-Mead", options=options)
    assert found < result.fun + 1e-5
    beliefs = games.GameBeliefs(mean[None], variance[None], None, None, 1.0, np.eye(3))
    policy = games.solve_policy(name, beliefs)[0]
    assert policy.sum() == pytest.approx(1)

    def lower(y):
        m, s2 = games.column_moments(mean, variance, np.eye(3), jnp.asarray(y))
        if name == "vbos":
            return float(vapor.vbos_value(m, jnp.sqrt(s2), jnp.log(policy)))
        entropy = -np.sum(policy * np.log(policy))
        return float(policy @ m + np.sqrt(2 * entropy * (policy @ s2)))

    worst = min(lower(y) for y in np.random.default_rng(1).dirichlet(np.ones(3), size=300))
    assert worst > found - 1e-4  # the policy guarantees the value against every opponent


def test_beliefs_equal_the_conjugate_posterior():
    game = games.matrix_game(np.zeros((2, 2, 2)), 0.5)
    beliefs = games.start_beliefs(game)
    for payoff in (1.0, 3.0):
        rows = np.array([[True, False], [False, True]])
        games.observe(beliefs, rows, np.array([1, 0]), np.full((2, 2), payoff))
    assert beliefs.variance[0, 0, 1] == pytest.approx(1 / (1 + 2 / 0.25))
    assert beliefs.mean[0, 0, 1] == pytest.approx((4 / 0.25) / (1 + 2 / 0.25))
    assert (beliefs.average[0, 0, 1], beliefs.visits[0, 0, 1]) == (2, 2)
    assert (beliefs.visits[1, 1, 0], beliefs.visits.sum()) == (2, 4)


def test_a_constrained_bandit_is_a_game_against_its_multiplier():
    game = games.inspected_bandit(range(2), 1.0)
    strategies, values = games.solve_maximin(game.corners @ game.payoff)
    reward, slack = game.payoff[0]
    program = scipy.optimize.linprog(-reward, A_ub=[-slack], b_ub=[0], A_eq=[[1] * 3], b_eq=[1])
    assert values[0] == pytest.approx(-program.fun)
    np.testing.assert_allclose(strategies[0], program.x, atol=1e-9)
    mixed = strategies[0] > 0.1
    assert (slack[mixed] > 0).any()
    assert (slack[mixed] < 0).any()  # the optimum mixes a feasible and an infeasible arm


def test_known_entries_are_not_explored_by_ucb():
    """It stays with the optimal column whatever noise it observes."""
    game = games.hidden_entry(SEEDS, 1.0)
    assert games.play_rounds(game, games.play_ucb, 20, SEEDS).max() < 1e-9


@pytest.mark.parametrize("name", games.STRATEGIES)
def test_a_known_game_has_no_regret(name):
    game = games.random_game(SEEDS, 1.0, size=3)
    beliefs = games.start_beliefs(game)
    known = beliefs._replace(mean=game.payoff, variance=0 * game.payoff)
    rngs = [np.random.default_rng(seed) for seed in SEEDS]
    policy = games.STRATEGIES[name](known, rngs)
    worst = np.einsum("nmk,nk->nm", game.payoff, policy).min(axis=1)
    np.testing.assert_allclose(worst, games.solve_maximin(game.payoff)[1], atol=1e-3)


def test_thompson_sampling_has_linear_regret_where_the_opponent_hides_an_entry():
    game = games.hidden_entry(SEEDS, 1.0)
    thompson = games.play_rounds(game, games.play_thompson, 60, SEEDS)
    assert thompson[:, -20:].mean() == pytest.approx(thompson[:, :20].mean(), rel=0.1)
    assert thompson.mean() > 0.1
    for name in ("k-learning", "vbos"):
        assert games.play_rounds(game, games.STRATEGIES[name], 60, SEEDS).mean() < 1e-4


def test_self_play_measures_the_duality_gap():
    """The players of a symmetric game have the same policy at first, and the gap falls."""
    game = games.rock_paper_scissors(SEEDS, 0.1)
    gap = games.play_rounds(game, games.play_k_learning, 60, SEEDS, self_play=True)
    assert gap.min() > -1e-9
    assert gap[:, -10:].mean() < 0.5 * gap[:, 1:11].mean()


def test_a_seed_does_not_depend_on_the_other_seeds():
    one, other = (
        games.play_rounds(games.random_game(seeds, 1.0), games.play_vbos, 5, seeds)
        for seeds in (range(3, 6), range(4, 7))
    )
    np.testing.assert_allclose(one[1:], other[:-1], atol=1e-6)


def test_the_command_prints_a_table_and_returns_numbers(tmp_path, monkeypatch):
    """With two of the games, each of which compiles two programs."""
    chosen = {name: games.GAMES[name] for name in ("hidden entry", "constrained bandit")}
    monkeypatch.setattr(games, "GAMES", chosen)
    output = io.StringIO()
    settings = TheoryGames(rounds=20, seeds=len(SEEDS), samples=2, self_play=False)
    console = Console(file=output, width=160)
    numbers = game_experiments.run_games(settings, tmp_path / "games", console)
    assert {path.name for path in (tmp_path / "games").iterdir()} == {"games.png", "games.json"}
    assert json.loads((tmp_path / "games" / "games.json").read_text()) == numbers
    assert len(numbers["rows"]) == 2 * len(games.STRATEGIES)
    for text in ("hidden entry", "constrained bandit", "exponent over the last decade"):
        assert text in output.getvalue()


def test_the_exponent_of_linear_regret_is_one_and_no_regret_has_none():
    linear = np.full((4, 100), 0.3)
    assert game_experiments.exponent_interval(linear) == pytest.approx((1, 1, 1))
    assert game_experiments.exponent_interval(0 * linear) == (None, None, None)
