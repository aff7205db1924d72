"""`ersac theory`: experiments with the exact half of the paper.

`run_regret` compares the Bayesian regret of tabular agents with its bound [s-regret, l-decomp,
c-basic]; `run_deep_sea` counts the episodes that one agent needs to solve DeepSea.
"""

import functools
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from ersac.analysis.picture import picture_png
from ersac.analysis.scores import first_goal, solved_bsuite, solved_reliable
from ersac.config import pick
from ersac.runs import disk
from ersac.theory import agents, saddle
from ersac.theory import mdp as mdps
from ersac.theory.mdp import MDP, MdpPosterior
from ersac.theory.settings import TABULAR_AGENTS, Learners, TheoryDeepSea, TheoryRegret

CHUNK = 250  # episodes between two tests of whether every seed has solved DeepSea
GOAL_REWARD = 0.5  # an episode with a larger return has reached the goal
BOUND_AGENT = "k-learning, sigma of the bound"
COLOURS = {
    "k-learning": "C0",
    BOUND_AGENT: "C1",
    "saddle": "C2",
    "monotone": "C6",
    "vapor": "C8",
    "vapor-lite": "C9",
    "vbos": "C7",
    "psrl": "C3",
    "ucbvi": "C4",
    "optimism": "C5",
    "epsilon-greedy": "0.5",
}

Report = Callable[[str], None]  # receives one line of progress


class RegretCurves(NamedTuple):
    """Per-episode curves of one agent on MDPs sampled from the prior."""

    regret: np.ndarray  # [draws, N]
    tau: np.ndarray  # [N]  mean over draws
    dist: np.ndarray  # [N]
    optimism: np.ndarray  # [N]


class DepthLaw(NamedTuple):
    """A power law `y = scale depth^exponent`."""

    exponent: float
    scale: float

    def __str__(self) -> str:
        """Return the text of a legend."""
        return f"{self.scale:.2f} depth^{self.exponent:.2f}"


@functools.cache  # jit compiles once per agent object
def make_tabular_agent(name: str, learners: Learners, reward_range: float) -> agents.TabularAgent:
    """Return an agent by its name on the command line."""
    sigma2 = agents.plug_in_sigma2(learners.sigma_scale)
    makers: dict[str, Callable[[], agents.TabularAgent]] = {
        "k-learning": lambda: agents.k_learning(sigma2),
        "saddle": lambda: agents.saddle_point(
            sigma2, learners.gradient_steps, learners.learning_rate
        ),
        "monotone": lambda: agents.monotone_tau(sigma2),
        "vapor": lambda: agents.vapor_agent(sigma2),
        "vapor-lite": lambda: agents.vapor_lite(
            agents.plug_in_sigma2(1.0), learners.lite_scale, learners.lite_entropy
        ),
        "vbos": lambda: agents.vbos(sigma2),
        "psrl": agents.psrl,
        "ucbvi": lambda: agents.ucbvi(learners.ucb_scale, reward_range),
        "optimism": lambda: agents.optimistic_bonus(learners.mu, agents.plug_in_sigma2(1.0)),
        "epsilon-greedy": lambda: agents.epsilon_greedy(learners.epsilon),
    }
    return pick("agent", name, makers)()


@functools.cache
def make_bound_agent() -> agents.TabularAgent:
    """Return K-learning with the sigma for which the regret bound is proven [c-basic]."""
    return agents.k_learning(agents.bounded_sigma2(1.0))


def deep_sea_problems(
    depth: int, seeds: Iterable[int], sigma: float, noise_std: float, known_transitions: bool
) -> tuple[MDP, MdpPosterior]:
    """Return the DeepSea MDP and the prior of every seed, stacked [seeds, ...]."""
    stack = lambda *x: jnp.stack(x)
    true_mdps = jax.tree.map(stack, *[mdps.deep_sea_mdp(depth, seed) for seed in seeds])
    prior = lambda mdp: mdps.deep_sea_prior(mdp, sigma, noise_std, known_transitions)
    return true_mdps, jax.vmap(prior)(true_mdps)


def deep_sea_goals(settings: TheoryDeepSea, report: Report = lambda line: None) -> np.ndarray:
    """Return whether each episode reached the goal [seeds, episodes].

    It stops early if every seed is solved by both rules.
    """
    agent = make_tabular_agent(settings.agent, settings.learners, reward_range=1.0)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    true_mdps, priors = deep_sea_problems(
        settings.depth, seeds, settings.sigma, settings.noise, settings.known_transitions
    )
    learners = agents.init_many(agent, priors)
    keys, no_noise = agents.keys_of_seeds(seeds), jnp.zeros((), true_mdps.reward.dtype)
    goals = np.zeros((len(seeds), 0), bool)
    chunk = min(CHUNK, settings.episodes)
    while goals.shape[1] < settings.episodes:
        learners, stats = agents.run_many(agent, chunk, priors, true_mdps, no_noise, keys, learners)
        reached = np.asarray(stats.total_reward) > GOAL_REWARD
        goals = np.append(goals, reached, axis=1)[:, : settings.episodes]
        solved = sum(
            solved_bsuite(row) is not None and solved_reliable(row) is not None for row in goals
        )
        report(
            f"depth {settings.depth}: episode {goals.shape[1]:,} of {settings.episodes:,}, "
            f"{solved} of {len(seeds)} seeds solved"
        )
        if solved == len(seeds):
            break
    return goals


def run_deep_sea(settings: TheoryDeepSea, console: Console | None = None) -> dict[str, Any]:
    """Run `ersac theory deep-sea` and return its JSON object; null means never reached."""
    start = time.monotonic()
    goals = deep_sea_goals(settings, line_printer(console))
    rules = {
        "first_goal": first_goal,
        "solved_bsuite": solved_bsuite,
        "solved_reliable": solved_reliable,
    }
    scores = [{name: rule(row) for name, rule in rules.items()} for row in goals]
    return {
        "agent": settings.agent,
        "env": "deep-sea",
        "depth": settings.depth,
        "known_transitions": settings.known_transitions,
        "seeds": settings.seeds,
        "seed": settings.seed,
        "episodes": goals.shape[1],
        "wall_seconds": round(time.monotonic() - start, 3),
        **{name: [score[name] for score in scores] for name in rules},
        "per_seed": [
            {"seed": settings.seed + i, "episodes": goals.shape[1], **score}
            for i, score in enumerate(scores)
        ],
    }


def run_regret(
    settings: TheoryRegret, out: Path | None, console: Console | None = None
) -> dict[str, Any]:
    """Run `ersac theory`: print tables to a console, write figures to `out`, return the numbers."""
    console = console or Console(quiet=True)
    report, start = line_printer(console), time.monotonic()
    curves = regret_curves(settings, report)
    rows = {name: regret_row(curve, curves["psrl"]) for name, curve in curves.items()}
    console.print(regret_table(settings, rows))
    depths, solved = deep_sea_solve_times(settings, report)
    medians = np.median(solved, axis=1)
    finite = np.isfinite(medians)
    law = fit_power(depths[finite], medians[finite]) if finite.sum() > 1 else None
    console.print(depth_table(depths, solved, law))
    numbers: dict[str, Any] = {
        "regret": rows,
        "regret_bound": float(closed_form_bound(settings, np.array([settings.episodes * 1.0]))[0]),
        "deep_sea": {
            "depths": depths.tolist(),
            "solved_bsuite": [
                [int(episode) if np.isfinite(episode) else None for episode in row]
                for row in solved
            ],
            "fit": law and law._asdict(),
        },
        "wall_seconds": round(time.monotonic() - start, 3),
    }
    if out is not None:
        figures = {
            "regret": draw_regret(settings, curves),
            "decomposition": draw_decomposition(curves),
            "tau": draw_tau(curves),
            "deep-sea": draw_depths(depths, solved, law),
        }
        disk.make_directory(out)
        for name, figure in figures.items():
            disk.write(out / f"{name}.png", picture_png(figure))
        disk.write(out / "theory.json", (json.dumps(numbers, indent=2) + "\n").encode())
        report(f"{', '.join(f'{name}.png' for name in figures)} and theory.json are in {out}")
    return numbers


def line_printer(console: Console | None) -> Report:
    """Return a function that prints a line to a console, or does nothing without one."""
    return lambda line: (
        None if console is None else console.print(line, highlight=False, soft_wrap=True)
    )


def regret_curves(settings: TheoryRegret, report: Report) -> dict[str, RegretCurves]:
    """Run every agent on the same draws, and K-learning also with the sigma of the bound."""
    prior = mdps.random_prior(
        settings.horizon, settings.states, settings.actions, settings.reward_std, settings.noise_std
    )
    by_name = {
        name: make_tabular_agent(name, settings.learners, reward_range=4 * settings.reward_std)
        for name in TABULAR_AGENTS
    }
    by_name[BOUND_AGENT] = make_bound_agent()
    seeds = range(settings.seed, settings.seed + settings.draws)
    curves = {}
    for name, agent in by_name.items():
        start = time.monotonic()
        stats = agents.run_on_draws(agent, prior, settings.episodes, seeds)
        mean = lambda x: np.asarray(x).mean(axis=0)
        curves[name] = RegretCurves(
            np.asarray(stats.regret), mean(stats.tau), mean(stats.dist), mean(stats.optimism)
        )
        report(
            f"{name}: {settings.draws} draws, {settings.episodes:,} episodes each, "
            f"{time.monotonic() - start:.1f} s"
        )
    return curves


def half_width(samples: np.ndarray) -> np.ndarray:
    """Return half the width of the 95 % confidence interval of the mean over the first axis."""
    return 1.96 * samples.std(axis=0, ddof=1) / np.sqrt(len(samples))


def fit_power(x: np.ndarray, y: np.ndarray) -> DepthLaw:
    """Fit a power law by least squares on logarithmic scales."""
    exponent, offset = np.polyfit(np.log(x), np.log(y), 1)
    return DepthLaw(float(exponent), float(np.exp(offset)))


def growth_exponent(cumulative: np.ndarray) -> float:
    """Return the exponent of a cumulative sum over its last decade: 1 if linear, 0.5 if sqrt(N)."""
    episode = np.arange(1, len(cumulative) + 1)
    late = episode >= len(cumulative) // 10
    return fit_power(episode[late], cumulative[late]).exponent


def regret_row(curve: RegretCurves, reference: RegretCurves) -> dict[str, Any]:
    """Return cumulative Bayesian regret, its ratio to a reference, and its growth exponent."""
    total, other = curve.regret.sum(axis=1), reference.regret.sum(axis=1)
    ratio = total.mean() / other.mean()
    # The draws are paired, so the interval of the ratio is that of total - ratio * other.
    return {
        "regret": float(total.mean()),
        "interval": float(half_width(total)),
        "over_psrl": float(ratio),
        "over_psrl_interval": float(half_width(total - ratio * other) / other.mean()),
        "exponent": growth_exponent(np.cumsum(curve.regret.mean(axis=0))),
        "dist_plus_optimism": None
        if np.isnan(curve.optimism).any()
        else float((curve.dist + curve.optimism).sum()),
    }


def closed_form_bound(settings: TheoryRegret, episodes: np.ndarray) -> np.ndarray:
    """Return the regret bound of [c-basic] for `klearning.sigma2_bounded` and |r| <= 1.

    Its sigma2 is the largest one, in the first layer, times visits + 1: the variance of the reward
    plus (L - 1)^2 for the transitions.
    """
    sigma2 = max(settings.reward_std, settings.noise_std) ** 2 + (settings.horizon - 1) ** 2
    n_states = settings.horizon * settings.states
    bound = saddle.regret_bound(
        n_states, settings.actions, settings.horizon, sigma2, jnp.asarray(episodes)
    )
    return np.asarray(bound)


def deep_sea_solve_times(settings: TheoryRegret, report: Report) -> tuple[np.ndarray, np.ndarray]:
    """Return the depths [D] and K-learning's episodes to solve them by bsuite's rule [D, seeds].

    The entry of a seed that did not solve its problem is infinite.
    """
    rows = []
    for depth in settings.depths:
        deep_sea = TheoryDeepSea(
            depth=depth,
            seeds=settings.deep_sea_seeds,
            seed=settings.seed,
            episodes=max(500, depth**2),
        )
        solved = [solved_bsuite(row) for row in deep_sea_goals(deep_sea)]
        rows.append([np.inf if episode is None else episode for episode in solved])
        report(
            f"deep-sea {depth}: solved in {np.median(rows[-1]):,.0f} episodes "
            f"(median of {len(solved)} seeds)"
        )
    return np.asarray(settings.depths), np.asarray(rows, float)


def regret_table(settings: TheoryRegret, rows: dict[str, dict[str, Any]]) -> Table:
    """Return a table of the regret of every agent, smallest first."""
    size = f"{settings.horizon} layers, {settings.states} states, {settings.actions} actions"
    title = (
        f"Bayesian regret over {settings.episodes:,} episodes "
        f"({size}; {settings.draws} draws from the prior)"
    )
    columns = ("agent", "regret", "over PSRL's", "exponent", "sum of Dist + Optimism")
    table = Table(*columns, title=title, title_justify="left", box=None)
    for name, row in sorted(rows.items(), key=lambda item: item[1]["regret"]):
        bound = row["dist_plus_optimism"]
        table.add_row(
            name,
            f"{row['regret']:,.1f} ± {row['interval']:.1f}",
            f"{row['over_psrl']:.2f} ± {row['over_psrl_interval']:.2f}",
            f"{row['exponent']:.2f}",
            "" if bound is None else f"{bound:,.0f}",
        )
    return table


def depth_table(depths: np.ndarray, solved: np.ndarray, law: DepthLaw | None) -> Table:
    """Return a table of the episodes to solve DeepSea at every depth."""
    fit = f", about {law}" if law else ""
    title = f"Episodes until k-learning has solved DeepSea (bsuite's rule){fit}"
    columns = ("depth", "median", "fastest seed", "slowest seed")
    table = Table(*columns, title=title, title_justify="left", box=None)
    for depth, row in zip(depths, solved, strict=True):
        table.add_row(
            f"{depth}", *(f"{value:,.0f}" for value in (np.median(row), row.min(), row.max()))
        )
    return table


def _log_axes(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=xlabel, ylabel=ylabel, xscale="log", yscale="log")
    return figure, axes


def draw_regret(settings: TheoryRegret, curves: dict[str, RegretCurves]) -> Figure:
    """Draw cumulative Bayesian regret with 95 % intervals, and both bounds on it [c-basic]."""
    figure, axes = _log_axes("episode", "cumulative Bayesian regret")
    episode = np.arange(1, settings.episodes + 1)
    for name, curve in curves.items():
        total = np.cumsum(curve.regret, axis=1)
        mean, half = total.mean(axis=0), half_width(total)
        axes.plot(episode, mean, color=COLOURS[name], label=name)
        axes.fill_between(episode, mean - half, mean + half, color=COLOURS[name], alpha=0.2, lw=0)
    certified = np.cumsum(curves[BOUND_AGENT].dist + curves[BOUND_AGENT].optimism)
    axes.plot(episode, certified, "k:", label="certified: sum of Dist + Optimism")
    bound = closed_form_bound(settings, episode * 1.0)
    axes.plot(episode, bound, "k--", label="the bound, with its constants [c-basic]")
    axes.legend(frameon=False, fontsize=8)
    return figure


def draw_decomposition(curves: dict[str, RegretCurves]) -> Figure:
    """Draw both components of the bound [l-decomp] and the regret, for both solvers of the game."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    pair = figure.subplots(1, 2, sharey=True)
    for axes, name in zip(pair, (BOUND_AGENT, "saddle"), strict=True):
        curve = curves[name]
        episode = np.arange(1, len(curve.tau) + 1)
        axes.plot(episode, curve.optimism, color="C1", label="Optimism")
        axes.plot(episode, np.maximum(curve.dist, 0), color="C2", label="Dist")
        axes.plot(episode, curve.regret.mean(axis=0), color="k", lw=0.8, label="regret")
        axes.set(xlabel="episode", xscale="log", yscale="log", title=name, ylim=(1e-4, None))
    note = "Dist is zero: the game is solved exactly"
    pair[0].text(0.03, 0.05, note, transform=pair[0].transAxes, color="C2")
    pair[0].set_ylabel("of one episode, mean over draws")
    pair[0].legend(frameon=False)
    return figure


def draw_tau(curves: dict[str, RegretCurves]) -> Figure:
    """Draw tau against episodes: it decreases as the uncertainty does."""
    figure, axes = _log_axes("episode", "tau, mean over draws")
    for name in ("k-learning", BOUND_AGENT, "saddle"):
        tau = curves[name].tau
        axes.plot(np.arange(1, len(tau) + 1), tau, color=COLOURS[name], label=name)
    axes.legend(frameon=False)
    return figure


def draw_depths(depths: np.ndarray, solved: np.ndarray, law: DepthLaw | None) -> Figure:
    """Draw the episodes to solve DeepSea against depth, and the power law through the medians."""
    figure, axes = _log_axes("depth", "episodes until solved (bsuite's rule)")
    for column in solved.T:
        axes.plot(depths, column, "o", color="C0", alpha=0.3, ms=4)
    axes.plot(depths, np.median(solved, axis=1), "o-", color="C0", label="k-learning, median")
    if law:
        axes.plot(depths, law.scale * depths**law.exponent, "k--", label=str(law))
    axes.legend(frameon=False)
    return figure
