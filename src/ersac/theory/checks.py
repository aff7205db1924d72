"""The exact claims of the paper in numbers, on random MDPs in double precision.

`ersac reproduce` compares them with thresholds. The tests of `theory/` assert the same identities.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from ersac.algorithm import game
from ersac.theory import agents, experiments, klearning, saddle
from ersac.theory import mdp as mdps
from ersac.theory.klearning import Beliefs
from ersac.theory.mdp import MDP, MdpPosterior
from ersac.theory.settings import TheoryRegret
from ersac.types import Array, Key

LAYERS, STATES, ACTIONS = 3, 4, 3
POSTERIOR_DRAWS = 500  # for the posterior mean of the optimal value
QUADRATURE_POINTS = 64
SIGMA_SCALE = 0.7  # of the recommended sigma


class CheckSize(NamedTuple):
    """How much is measured at a scale."""

    problems: int  # random MDPs
    draws: int  # MDPs on which regret is measured
    episodes: int
    depths: tuple[int, ...]  # of DeepSea
    seeds: int  # a depth


SIZES = {
    "smoke": CheckSize(50, 32, 300, (5, 10, 15), 5),
    "desk": CheckSize(200, 100, 2_000, (10, 20, 40), 10),
    "paper": CheckSize(200, 100, 5_000, (10, 20, 40, 60), 20),
}


class Problems(NamedTuple):
    """Random beliefs with a random policy and a random tau each [N, ...]."""

    beliefs: Beliefs
    policy: Array
    tau: Array


def random_problems(count: int, seed: int = 7) -> Problems:
    """Return random problems of three sizes of rewards and of uncertainty."""
    rng = np.random.default_rng(seed)
    cells = (count, LAYERS, STATES, ACTIONS)
    reward = rng.normal(size=cells) * rng.choice([0.1, 1, 10], size=(count, 1, 1, 1))
    transition = rng.dirichlet(np.full(STATES, 0.7), size=cells)
    rho = rng.dirichlet(np.ones(STATES), size=count)
    sigma2 = rng.exponential(size=cells) * rng.choice([0.01, 1, 4], size=(count, 1, 1, 1))
    policy = rng.dirichlet(np.full(ACTIONS, 0.8), size=cells[:3])
    mdp = MDP(jnp.asarray(reward), jnp.asarray(transition), jnp.asarray(rho))
    tau = jnp.asarray(np.exp(rng.uniform(-2, 2, size=count)))
    return Problems(Beliefs(mdp, jnp.asarray(sigma2)), jnp.asarray(policy), tau)


def over_problems(function: Callable[..., Any], *args: Any) -> Any:
    """Map a function over the leading axis of all arguments, compiled."""
    return jax.jit(jax.vmap(function))(*args)


def measure_theory(scale: str, report: experiments.Report = lambda line: None) -> dict[str, Any]:
    """Return all numbers as a JSON object."""
    size = SIZES[scale]
    report(f"theory: identities on {size.problems} random MDPs")
    with jax.enable_x64(True):
        numbers = {"certainty_error": certainty_error(), **measure_identities(size.problems)}
    report(f"theory: regret on {size.draws} random MDPs, {size.episodes:,} episodes")
    numbers |= measure_regret(size)
    report(f"theory: DeepSea at depths {', '.join(map(str, size.depths))}")
    return {"scale": scale, **numbers, "deep_sea": measure_deep_sea(size)}


def certainty_error() -> float:
    """Return the largest error of mean + sigma2 / (2 tau) [before e-kpi], by Gauss quadrature."""
    points, weights = np.polynomial.hermite_e.hermegauss(QUADRATURE_POINTS)
    mean, sigma = 0.3, 0.5
    errors = []
    for tau in (0.25, 0.5, 1.0, 2.0, 4.0):
        # A weighted mean of exponentials is one of equal weights with shifted values.
        x = mean + sigma * points + tau * np.log(weights / weights.mean())
        value = klearning.certainty_equivalent(jnp.asarray(x), jnp.asarray(tau))
        errors.append(abs(float(value) - (mean + sigma**2 / (2 * tau))))
    return max(errors)


def measure_identities(count: int) -> dict[str, Any]:
    """Return the largest relative errors, and the smallest margins in standard errors."""
    problems = random_problems(count)
    beliefs, policy, tau = problems
    solution = over_problems(klearning.solve, beliefs)
    best = jnp.exp(solution.log_policy)
    size = over_problems(_value_scale, beliefs, tau)
    gap = over_problems(saddle.duality_gap, beliefs, best, solution.tau)
    learned = over_problems(_gradient_gap, beliefs)
    star_size = over_problems(_value_scale, beliefs, solution.tau)
    optimum, error = over_problems(
        expected_optimum, beliefs, jax.random.split(jax.random.key(0), count)
    )
    bound = over_problems(lambda b, pi, t: sum(saddle.decompose(b, pi, t)), beliefs, policy, tau)
    regret = optimum - over_problems(saddle.mean_value, beliefs, policy)
    best_regret = optimum - over_problems(saddle.mean_value, beliefs, best)
    best_bound = over_problems(saddle.min_optimism, beliefs, best)
    upper = over_problems(klearning.start_j, beliefs, tau)
    return {
        "problems": count,
        "boltzmann_error": _largest(over_problems(_boltzmann_error, beliefs, tau) / size),
        "optimism_margin": float(jnp.min((upper - optimum) / error)),
        "duality_gap": _largest(gap / star_size),
        "gradient_gap": _largest(learned / star_size),
        "lemma_error": _largest(over_problems(_lemma_error, *problems) / size),
        "decomposition_margin": float(jnp.min((bound - regret) / error)),
        "theorem_margin": float(jnp.min((best_bound - best_regret) / error)),
        "gradient_error": _largest(over_problems(_gradient_error, *problems) / size),
        "printed_cosine": float(jnp.median(over_problems(_printed_cosine, *problems))),
    }


def _largest(errors: Array) -> float:
    return float(jnp.max(jnp.abs(errors)))


def _value_scale(beliefs: Beliefs, tau: Array) -> Array:
    """Return the largest |K*| and at least one: what errors are relative to."""
    return jnp.maximum(1, jnp.max(jnp.abs(klearning.optimal_k_values(beliefs, tau).q)))


def _boltzmann_error(beliefs: Beliefs, tau: Array) -> Array:
    """Return the largest |J* - J^pi| of the Boltzmann policy [e-jstar, e-k-policy]."""
    star = klearning.solve_at(beliefs, tau)
    attained = klearning.k_values(beliefs, jnp.exp(star.log_policy), tau)
    return jnp.max(jnp.abs(star.j - attained.v))


def _lemma_error(beliefs: Beliefs, policy: Array, tau: Array) -> Array:
    """Return Dist less E J* - E J^pi [l-kl]."""
    gap = klearning.start_j(beliefs, tau) - saddle.game_value(beliefs, policy, tau)
    return saddle.dist(beliefs, policy, tau) - gap


def _gradient_gap(beliefs: Beliefs) -> Array:
    """Return the duality gap of the point that gradient ascent-descent finds [e-saddle]."""
    start = jnp.zeros_like(beliefs.sigma2)
    params = saddle.solve_by_gradients(beliefs, saddle.tabular_softmax, start)
    policy = jnp.exp(saddle.tabular_softmax(params.theta))
    return saddle.duality_gap(beliefs, policy, jnp.exp(params.log_tau))


def _gradient_error(beliefs: Beliefs, policy: Array, tau: Array) -> Array:
    """Return the largest difference between gradients of payoff and game [e-pol-grad]."""
    of_payoff = jax.grad(
        lambda z, t: saddle.surrogate(beliefs, jax.nn.log_softmax(z), t), argnums=(0, 1)
    )(jnp.log(policy), tau)
    of_game = jax.grad(
        lambda z, t: saddle.game_value(beliefs, jax.nn.softmax(z), t), argnums=(0, 1)
    )(jnp.log(policy), tau)
    in_theta, in_tau = jax.tree.map(lambda x, y: jnp.max(jnp.abs(x - y)), of_payoff, of_game)
    return jnp.maximum(in_theta, in_tau * jnp.minimum(1, tau))


def _printed_cosine(beliefs: Beliefs, policy: Array, tau: Array) -> Array:
    """Return the cosine between the step that Algorithm 1 prints and the gradient [a-kac]."""
    values = klearning.k_values(beliefs, policy, tau)
    occupancy = mdps.occupancy(beliefs.mdp, policy)

    def printed(logits: Array) -> Array:
        log_pi = jax.nn.log_softmax(logits)
        advantage = log_pi * (values.q - values.v[..., None])
        return jnp.sum(occupancy * (advantage - tau * game.entropy(log_pi)[..., None]))

    def value(logits: Array) -> Array:
        return saddle.game_value(beliefs, jax.nn.softmax(logits), tau)

    logits = jnp.log(policy)
    wrong, right = jax.grad(printed)(logits), jax.grad(value)(logits)
    return jnp.sum(wrong * right) / jnp.sqrt(jnp.sum(wrong**2) * jnp.sum(right**2))


def expected_optimum(beliefs: Beliefs, key: Key) -> tuple[Array, Array]:
    """Return `E_phi E_rho V*` and its standard error, for Gaussian rewards with these sigma2."""
    mdp = beliefs.mdp
    posterior = MdpPosterior(
        mdp.reward, beliefs.sigma2, jnp.ones((), mdp.reward.dtype), mdp.transition, mdp.rho
    )
    samples = jax.vmap(lambda k: mdps.sample_mdp(k, posterior))(
        jax.random.split(key, POSTERIOR_DRAWS)
    )
    values = jax.vmap(lambda m: mdps.start_value(m.rho, mdps.optimal_values(m)))(samples)
    return jnp.mean(values), jnp.std(values) / jnp.sqrt(POSTERIOR_DRAWS * 1.0)


def measure_regret(size: CheckSize) -> dict[str, Any]:
    """Return regret and Optimism as shares of their bound [c-basic], and the regret's exponent."""
    settings = TheoryRegret(draws=size.draws, episodes=size.episodes)
    prior = mdps.random_prior(
        settings.horizon, settings.states, settings.actions, settings.reward_std, settings.noise_std
    )
    seeds = range(settings.seed, settings.seed + size.draws)
    run = lambda agent: agents.run_on_draws(agent, prior, size.episodes, seeds)
    proven = run(experiments.make_bound_agent())
    recommended = run(agents.k_learning(agents.plug_in_sigma2(SIGMA_SCALE)))
    bound = float(experiments.closed_form_bound(settings, np.array([size.episodes * 1.0]))[0])
    total = lambda x: float(np.asarray(x).mean(axis=0).sum())
    regret = np.cumsum(np.asarray(recommended.regret).mean(axis=0))
    return {
        "draws": size.draws,
        "episodes": size.episodes,
        "regret_over_bound": total(proven.regret) / bound,
        "optimism_over_bound": total(proven.optimism) / bound,
        "regret_exponent": experiments.growth_exponent(regret),
    }


def measure_deep_sea(size: CheckSize) -> dict[str, Any]:
    """Return the solve times of K-learning on DeepSea (rule bsuite) and their power law."""
    settings = TheoryRegret(depths=size.depths, deep_sea_seeds=size.seeds)
    depths, solved = experiments.deep_sea_solve_times(settings, lambda line: None)
    medians = np.median(solved, axis=1)
    finite = np.isfinite(medians)
    law = experiments.fit_power(depths[finite], medians[finite]) if finite.sum() > 1 else None
    return {
        "depths": depths.tolist(),
        "medians": [float(median) if np.isfinite(median) else None for median in medians],
        "exponent": None if law is None else law.exponent,
    }
