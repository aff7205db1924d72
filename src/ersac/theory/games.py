"""Matrix games with bandit feedback, and constrained bandits as a special case.

The agent chooses a column, an opponent a row; the agent maximises `y' A x` and the opponent
minimises it. A is unknown, with a Gaussian belief for every entry, and a round reveals a noisy
payoff of the entry that was played (O'Donoghue, Lattimore and Osband 2021). The opponent's mixed
strategies are the convex hull of `corners`: unit vectors in a matrix game. A constrained bandit has
two rows, the reward and the slack of the constraint, and the corners (1, 0) and (1, z): the
opponent is a Lagrange multiplier between 0 and z. The slack of a pulled arm is observed only when
the constraint is charged, which a best-responding opponent does when the policy violates it.

| strategy   | policy of a round                                                                  |
|------------|------------------------------------------------------------------------------------|
| k-learning | the softmax at `min over tau and y` of the certainty equivalent, one tau            |
| vbos       | the same with a tau for each column (O'Donoghue and Lattimore 2021)                 |
| ucb        | the maximin strategy of upper confidence bounds                                     |
| thompson   | the mean maximin strategy of matrices sampled from the belief                       |
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import scipy.optimize
import scipy.sparse
from jax import numpy as jnp

from ersac.theory import vapor
from ersac.types import Array, Rng

BARRIERS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # weights of the logarithmic barrier
BARRIER_STEPS = 30  # Newton steps per barrier weight, at most
BARRIER_SIZES = 0.5 ** np.arange(20)  # of the line search
LEAST_RIDGE = 1e-12  # added to the Hessian, and raised where a step is too long
LEAST_VARIANCE = 1e-8  # of a column, so that the problems are smooth where A is known


class Game(NamedTuple):
    """Games with the same shape, one for each seed [n], and the belief before the first round."""

    payoff: np.ndarray  # [n, m, k]   A
    mean: np.ndarray  # [m, k]        prior mean
    variance: np.ndarray  # [m, k]    prior variance; zero where the entry is known
    noise_var: float
    corners: np.ndarray  # [p, m]     the opponent's strategies are their convex hull


class GameBeliefs(NamedTuple):
    """The belief of every seed, and what upper confidence bounds need instead of it."""

    mean: np.ndarray  # [n, m, k]
    variance: np.ndarray  # [n, m, k]
    visits: np.ndarray  # [n, m, k]
    average: np.ndarray  # [n, m, k]   observed mean payoff; the prior mean before a visit
    noise_var: float
    corners: np.ndarray  # [p, m]


Strategy = Callable[[GameBeliefs, list[Rng]], np.ndarray]  # the policies [n, k] of a round


def start_beliefs(game: Game) -> GameBeliefs:
    """Return the belief before the first round."""
    full = lambda x: np.broadcast_to(x, game.payoff.shape).copy()
    mean = full(game.mean)
    return GameBeliefs(
        mean, full(game.variance), 0 * mean, mean.copy(), game.noise_var, game.corners
    )


def observe(
    beliefs: GameBeliefs, rows: np.ndarray, columns: np.ndarray, payoff: np.ndarray
) -> None:
    """Update the beliefs in place with payoffs [n, m], of which the rows [n, m] are observed."""
    seed, row = np.nonzero(rows)
    index = (seed, row, columns[seed])
    gain = beliefs.variance[index] / (beliefs.variance[index] + beliefs.noise_var)
    beliefs.mean[index] += gain * (payoff[seed, row] - beliefs.mean[index])
    beliefs.variance[index] *= 1 - gain
    beliefs.visits[index] += 1
    beliefs.average[index] += (payoff[seed, row] - beliefs.average[index]) / beliefs.visits[index]


def solve_maximin(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the maximin strategies [n, k] and values [n] of matrices [n, p, k].

    All are solved by one linear program with a block for each matrix.
    """
    n, p, k = matrices.shape
    strategy = np.arange(n * k).reshape(n, 1, k)
    value = n * k + np.arange(n).reshape(n, 1)
    row = np.arange(n * p).reshape(n, p)
    entries = np.concatenate([-matrices.reshape(-1), np.ones(n * p)])
    rows = np.concatenate([np.repeat(row.reshape(-1), k), row.reshape(-1)])
    columns = np.concatenate(
        [np.broadcast_to(strategy, (n, p, k)).reshape(-1), np.repeat(value.reshape(-1), p)]
    )
    below = scipy.sparse.csr_array((entries, (rows, columns)), (n * p, n * k + n))
    ones = (np.ones(n * k), (np.repeat(np.arange(n), k), np.arange(n * k)))
    result = scipy.optimize.linprog(
        np.append(np.zeros(n * k), -np.ones(n)),
        A_ub=below,
        b_ub=np.zeros(n * p),
        A_eq=scipy.sparse.csr_array(ones, (n, n * k + n)),
        b_eq=np.ones(n),
        bounds=[(0, 1)] * (n * k) + [(None, None)] * n,
    )
    x = np.maximum(result.x[: n * k].reshape(n, k), 0)
    return x / x.sum(axis=1, keepdims=True), result.x[n * k :]


def column_moments(
    mean: Array, variance: Array, corners: Array, weights: Array
) -> tuple[Array, Array]:
    """Return mean [k] and variance [k] of every column's payoff `(A' y)_j`, `y = corners' q`."""
    y = weights @ corners
    return y @ mean, jnp.square(y) @ variance + LEAST_VARIANCE


def k_learning_objective(tau: Array, mean: Array, variance: Array) -> Array:
    """Return `tau log sum_j exp(m_j / tau + s_j^2 / (2 tau^2))` (O'Donoghue et al. 2021).

    It is jointly convex in tau and the opponent's strategy.
    """
    return tau * jax.nn.logsumexp(mean / tau + variance / (2 * tau**2))


def vbos_objective(v: Array, mean: Array, variance: Array) -> Array:
    """Return `V + sum_j s_j phi((V - m_j) / s_j)` (O'Donoghue and Lattimore 2021).

    This is the dual of `max_x sum_j x_j (m_j + s_j sqrt(-2 log x_j))`, jointly convex in V and the
    opponent's strategy.
    """
    sigma = jnp.sqrt(variance)
    return v + jnp.sum(sigma * vapor.conjugate((v - mean) / sigma))


Objective = Callable[[Array, Array, Array], Array]


class _Interior(NamedTuple):
    """An iterate of the interior-point method, its damping, the last decrement, and the steps."""

    z: Array
    ridge: Array
    decrement: Array
    steps: Array


def minimise_over_simplex(
    objective: Objective, scalar: Array, mean: Array, variance: Array, corners: Array
) -> tuple[Array, Array]:
    """Minimise an objective of a scalar and weights on the simplex, by an interior-point method.

    The scalar is kept positive by the barrier too, if it starts positive and is K-learning's tau.
    """
    positive, sizes = objective is k_learning_objective, jnp.asarray(BARRIER_SIZES)

    def unpack(z: Array) -> tuple[Array, Array]:
        return z[0], jnp.append(z[1:], 1 - jnp.sum(z[1:]))

    def value(z: Array, barrier: Array) -> Array:
        scalar, weights = unpack(z)
        logs = jnp.sum(jnp.log(weights)) + (jnp.log(scalar) if positive else 0)
        return objective(scalar, *column_moments(mean, variance, corners, weights)) - barrier * logs

    def newton(state: _Interior, barrier: Array) -> _Interior:
        present = value(state.z, barrier)
        gradient, hessian = jax.grad(value)(state.z, barrier), jax.hessian(value)(state.z, barrier)
        damping = state.ridge * jnp.eye(len(gradient)) + 1e-12 * jnp.diag(jnp.diag(hessian))
        direction = -jnp.linalg.solve(hessian + damping, gradient)
        values = jax.vmap(lambda size: value(state.z + size * direction, barrier))(sizes)
        best = jnp.argmin(jnp.where(jnp.isnan(values), jnp.inf, values))
        better = values[best] < present
        ridge = jnp.where(better, jnp.maximum(state.ridge / 10, LEAST_RIDGE), state.ridge * 100)
        z = jnp.where(better, state.z + sizes[best] * direction, state.z)
        return _Interior(z, ridge, -jnp.dot(gradient, direction), state.steps + 1)

    def stage(z: Array, barrier: Array) -> tuple[Array, None]:
        unfinished = lambda s: (s.decrement > 1e-4 * barrier) & (s.steps < BARRIER_STEPS)
        first = _Interior(z, jnp.full((), LEAST_RIDGE), jnp.full((), jnp.inf), jnp.int32(0))
        return jax.lax.while_loop(unfinished, lambda s: newton(s, barrier), first).z, None

    start = jnp.append(scalar, jnp.full(len(corners) - 1, 1 / len(corners)))
    return unpack(jax.lax.scan(stage, start, jnp.asarray(BARRIERS))[0])


@functools.cache
def _solver(name: str) -> Callable[..., Array]:
    """Return the compiled policies [n, k] of K-learning or VBOS, for beliefs [n, m, k]."""

    def k_learning(mean: Array, variance: Array, corners: Array) -> Array:
        start = jnp.sqrt(jnp.max(variance) + LEAST_VARIANCE)
        tau, weights = minimise_over_simplex(k_learning_objective, start, mean, variance, corners)
        m, s2 = column_moments(mean, variance, corners, weights)
        return jax.nn.softmax(m / tau + s2 / (2 * tau**2))

    def vbos(mean: Array, variance: Array, corners: Array) -> Array:
        uniform = jnp.full(len(corners), 1 / len(corners))
        m, s2 = column_moments(mean, variance, corners, uniform)
        start = vapor.vbos_threshold(m, jnp.sqrt(s2))
        v, weights = minimise_over_simplex(vbos_objective, start, mean, variance, corners)
        m, s2 = column_moments(mean, variance, corners, weights)
        return jax.nn.softmax(-(vapor.conjugate_root((v - m) / jnp.sqrt(s2)) ** 2) / 2)

    solve = {"k-learning": k_learning, "vbos": vbos}[name]
    return jax.jit(jax.vmap(solve, (0, 0, None)))


def solve_policy(name: str, beliefs: GameBeliefs) -> np.ndarray:
    """Return the policies [n, k] of `k-learning` or `vbos`, in double precision."""
    with jax.enable_x64(True):
        arrays = (jnp.asarray(x) for x in (beliefs.mean, beliefs.variance, beliefs.corners))
        return np.asarray(_solver(name)(*arrays))


def play_k_learning(beliefs: GameBeliefs, rngs: list[Rng]) -> np.ndarray:
    """Return K-learning's policies: the softmax at the optimal tau and opponent."""
    return solve_policy("k-learning", beliefs)


def play_vbos(beliefs: GameBeliefs, rngs: list[Rng]) -> np.ndarray:
    """Return the policies of VBOS: K-learning with a tau for each column."""
    return solve_policy("vbos", beliefs)


def play_ucb(beliefs: GameBeliefs, rngs: list[Rng]) -> np.ndarray:
    """Return the maximin strategies of `A + sqrt(2 log(2 t^2 m k) / n)` (O'Donoghue et al. 2021).

    Entries that are known have no bonus.
    """
    m, k = beliefs.mean.shape[1:]
    rounds = 1 + beliefs.visits.sum(axis=(1, 2), keepdims=True)
    width = 2 * beliefs.noise_var * np.log(2 * rounds**2 * m * k) / np.maximum(beliefs.visits, 1)
    bound = np.where(beliefs.variance > 0, beliefs.average + np.sqrt(width), beliefs.mean)
    return solve_maximin(beliefs.corners @ bound)[0]


def play_thompson(beliefs: GameBeliefs, rngs: list[Rng], samples: int = 32) -> np.ndarray:
    """Return Thompson sampling's policies: mean maximin strategies of sampled matrices.

    The mean over samples is the distribution of the column that it plays, which is what an
    opponent can respond to.
    """
    n, m, k = beliefs.mean.shape
    noise = np.stack([rng.normal(size=(samples, m, k)) for rng in rngs])
    matrices = beliefs.mean[:, None] + np.sqrt(beliefs.variance)[:, None] * noise
    strategies, _ = solve_maximin((beliefs.corners @ matrices).reshape(n * samples, -1, k))
    return strategies.reshape(n, samples, k).mean(axis=1)


STRATEGIES: dict[str, Strategy] = {
    "k-learning": play_k_learning,
    "vbos": play_vbos,
    "ucb": play_ucb,
    "thompson": play_thompson,
}


def swap_players(beliefs: GameBeliefs) -> GameBeliefs:
    """Return the beliefs from the opponent's side: it maximises `-A'`."""
    turn = lambda x: np.swapaxes(x, 1, 2)
    return beliefs._replace(
        mean=-turn(beliefs.mean),
        variance=turn(beliefs.variance),
        visits=turn(beliefs.visits),
        average=-turn(beliefs.average),
        corners=np.eye(beliefs.mean.shape[2]),
    )


def pick_columns(rngs: list[Rng], policy: np.ndarray) -> np.ndarray:
    """Return one index per seed, distributed by the policies [n, k]."""
    u = np.array([rng.random() for rng in rngs])[:, None]
    return np.minimum((np.cumsum(policy, axis=1) <= u).sum(axis=1), policy.shape[1] - 1)


def play_rounds(
    game: Game, strategy: Strategy, rounds: int, seeds: range, self_play: bool = False
) -> np.ndarray:
    """Return the regret [n, rounds] of a strategy, one game per seed.

    Against the best response to its policy it is the value of the game minus the worst-case payoff
    of the policy. In self-play it is the duality gap of both players' policies.
    """
    rngs = [np.random.default_rng(seed) for seed in seeds]
    beliefs = start_beliefs(game)
    value = solve_maximin(game.corners @ game.payoff)[1]
    seed = np.arange(len(rngs))
    regret = np.zeros((len(rngs), rounds))
    for t in range(rounds):
        policy = strategy(beliefs, rngs)
        worst = np.einsum("pm,nmk,nk->np", game.corners, game.payoff, policy)
        if self_play:
            reply = strategy(swap_players(beliefs), rngs)
            best = np.einsum("nmk,nm->nk", game.payoff, reply).max(axis=1)
            regret[:, t] = best - worst.min(axis=1)
            y = np.eye(game.payoff.shape[1])[pick_columns(rngs, reply)]
        else:
            regret[:, t] = value - worst.min(axis=1)
            y = game.corners[worst.argmin(axis=1)]
        column = pick_columns(rngs, policy)
        noise = np.stack([rng.normal(size=game.payoff.shape[1]) for rng in rngs])
        payoff = game.payoff[seed, :, column] + np.sqrt(game.noise_var) * noise
        observe(beliefs, y > 0, column, payoff)
    return regret


def matrix_game(payoff: np.ndarray, noise_std: float) -> Game:
    """Return games [n, m, k] with unknown entries, N(0, 1) before the first round."""
    m, k = payoff.shape[1:]
    return Game(payoff, np.zeros((m, k)), np.ones((m, k)), noise_std**2, np.eye(m))


def rock_paper_scissors(seeds: range, noise_std: float) -> Game:
    """Return rock-paper-scissors; its value is zero."""
    payoff = np.array([[0.0, 1, -1], [-1, 0, 1], [1, -1, 0]])
    return matrix_game(np.broadcast_to(payoff, (len(seeds), 3, 3)), noise_std)


def random_game(seeds: range, noise_std: float, size: int = 5) -> Game:
    """Return a game with standard normal payoffs for each seed."""
    payoff = [np.random.default_rng((seed, 1)).normal(size=(size, size)) for seed in seeds]
    return matrix_game(np.stack(payoff), noise_std)


def diagonal_game(seeds: range, noise_std: float, bits: int = 2) -> Game:
    """Return DIAGONAL (Lehre and Lin 2024): players choose bit strings, and more ones win.

    The agent is paid 1 if its string has at least as many ones as the opponent's, else 0.
    """
    ones = np.array([bin(string).count("1") for string in range(2**bits)])
    payoff = (ones[None, :] >= ones[:, None]).astype(float)
    return matrix_game(np.broadcast_to(payoff, (len(seeds), *payoff.shape)), noise_std)


def hidden_entry(seeds: range, noise_std: float) -> Game:
    """Return `[[r, 0], [0, -1]]`, known except for r = 1: the best response never reveals r.

    Column 0 is optimal. Thompson sampling hedges against a negative r, and loses by it.
    """
    payoff = np.array([[1.0, 0], [0, -1]])
    game = matrix_game(np.broadcast_to(payoff, (len(seeds), 2, 2)), noise_std)
    known = np.array([[True, False], [False, False]])
    return game._replace(
        mean=np.where(known, 0, payoff), variance=np.where(known, game.variance, 0)
    )


def constrained_bandit(
    reward: np.ndarray, slack: np.ndarray, largest_multiplier: float, seeds: range, noise_std: float
) -> Game:
    """Return `max_x reward . x` subject to `slack . x >= 0`, all of it unknown."""
    payoff = np.broadcast_to(np.stack([reward, slack]), (len(seeds), 2, len(reward)))
    corners = np.array([[1.0, 0], [1, largest_multiplier]])
    return matrix_game(payoff, noise_std)._replace(corners=corners)


def inspected_bandit(seeds: range, noise_std: float) -> Game:
    """Return a constrained bandit whose optimum mixes a feasible and an infeasible arm.

    All is known except the slack of the infeasible arm, which is believed to be N(-1, 1) and is
    observed only when the constraint is charged.
    """
    reward, slack = np.array([0.0, 0.3, 1.0]), np.array([1.0, 0.5, -0.5])
    game = constrained_bandit(reward, slack, 1.0, seeds, noise_std)
    mean, variance = game.payoff[0].copy(), np.zeros((2, 3))
    mean[1, 2], variance[1, 2] = -1, 1
    return game._replace(mean=mean, variance=variance)


GAMES: dict[str, Callable[[range, float], Game]] = {
    "rock-paper-scissors": rock_paper_scissors,
    "random 5x5": random_game,
    "diagonal": diagonal_game,
    "hidden entry": hidden_entry,
    "constrained bandit": inspected_bandit,
}
