"""`ersac theory`: the paper's first half as numbers and pictures [s-regret, t-main, l-opt-regret, c-basic]."""

import functools
import json
import time
from collections.abc import Callable
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
from ersac.theory.settings import AGENTS, Learners, TheoryDeepSea, TheoryRegret

CHUNK = 250  # episodes between two looks at whether a sea is solved
GOAL_REWARD = 0.5  # an episode that earned more has found the treasure
BOUND = "k-learning, sigma of the bound"
CURVES = {
    "k-learning": "C0",
    BOUND: "C1",
    "saddle": "C2",
    "psrl": "C3",
    "ucbvi": "C4",
    "optimism": "C5",
    "epsilon-greedy": "0.5",
}


class Curves(NamedTuple):
    """Bayesian regret of one agent over draws from the prior."""

    regret: np.ndarray  # [draws, N] of every episode
    tau: np.ndarray  # [N]  mean over draws
    dist: np.ndarray  # [N]
    optimism: np.ndarray  # [N]


class TheoryLine(NamedTuple):
    """A power law `y = scale depth^exponent`."""

    exponent: float
    scale: float

    def __str__(self) -> str:
        """As it reads in a legend."""
        return f"{self.scale:.2f} depth^{self.exponent:.2f}"


@functools.cache  # the same agent is compiled once
def make_tabular_agent(name: str, learners: Learners, reward_range: float) -> agents.TabularAgent:
    """An agent by its name on the command line."""
    sigma2 = agents.plug_in(learners.sigma_scale)
    makers: dict[str, Callable[[], agents.TabularAgent]] = {
        "k-learning": lambda: agents.k_learning(sigma2),
        "saddle": lambda: agents.saddle_point(
            sigma2, learners.gradient_steps, learners.learning_rate
        ),
        "psrl": agents.psrl,
        "ucbvi": lambda: agents.ucbvi(learners.ucb_scale, reward_range),
        "optimism": lambda: agents.optimistic_bonus(learners.mu, agents.plug_in(1.0)),
        "epsilon-greedy": lambda: agents.epsilon_greedy(learners.epsilon),
    }
    return pick("agent", name, makers)()


@functools.cache
def bound_agent() -> agents.TabularAgent:
    """K-learning with the sigma for which the bound is proven."""
    return agents.k_learning(agents.bounded_sigma2(1.0))


def dive(settings: TheoryDeepSea, tell: Callable[[str], None] = lambda line: None) -> np.ndarray:
    """Whether each episode of each seed reached the goal [seeds, episodes], until every seed is solved by both rules."""
    agent = make_tabular_agent(settings.agent, settings.learners, reward_range=1.0)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    env_params = jax.tree.map(
        lambda *x: jnp.stack(x), *[mdps.deep_sea_mdp(settings.depth, seed) for seed in seeds]
    )
    believe = lambda env_params: mdps.deep_sea_prior(
        env_params, settings.sigma, settings.noise, settings.known_transitions
    )
    priors = jax.vmap(believe)(env_params)
    learning = jax.vmap(lambda prior: agents.init_learning(agent, prior))(priors)
    keys, quiet = agents.seeded_keys(seeds), jnp.zeros((), env_params.reward.dtype)
    goals = np.zeros((len(seeds), 0), bool)
    chunk = min(CHUNK, settings.episodes)
    while goals.shape[1] < settings.episodes:
        learning, stats = agents.play_worlds(
            agent, chunk, priors, env_params, quiet, keys, learning
        )
        goals = np.append(goals, np.asarray(stats.total_reward) > GOAL_REWARD, axis=1)[
            :, : settings.episodes
        ]
        solved = sum(
            solved_bsuite(row) is not None and solved_reliable(row) is not None for row in goals
        )
        tell(
            f"depth {settings.depth}: episode {goals.shape[1]:,} of {settings.episodes:,}, {solved} of {len(seeds)} seeds solved"
        )
        if solved == len(seeds):
            break
    return goals


def run_deep_sea(settings: TheoryDeepSea, console: Console | None = None) -> dict[str, Any]:
    """`ersac theory deep-sea`: one JSON object, with what every seed reached and when; null where it did not."""
    began = time.monotonic()
    goals = dive(settings, teller(console))
    rules = {
        "first_goal": first_goal,
        "solved_bsuite": solved_bsuite,
        "solved_reliable": solved_reliable,
    }
    verdicts = [{name: rule(row) for name, rule in rules.items()} for row in goals]
    return {
        "agent": settings.agent,
        "env": "deep-sea",
        "depth": settings.depth,
        "known_transitions": settings.known_transitions,
        "seeds": settings.seeds,
        "seed": settings.seed,
        "episodes": goals.shape[1],
        "wall_seconds": round(time.monotonic() - began, 3),
        **{name: [verdict[name] for verdict in verdicts] for name in rules},
        "per_seed": [
            {"seed": settings.seed + i, "episodes": goals.shape[1], **verdict}
            for i, verdict in enumerate(verdicts)
        ],
    }


def run_regret(
    settings: TheoryRegret, out: Path | None, console: Console | None = None
) -> dict[str, Any]:
    """`ersac theory`: every agent on draws from the prior, k-learning in deeper and deeper seas; print, draw, return the numbers."""
    console = console or Console()
    tell, began = teller(console), time.monotonic()
    curves = regret_curves(settings, tell)
    rows = {name: regret_row(curve, curves["psrl"]) for name, curve in curves.items()}
    console.print(regret_table(settings, rows))
    depths, solved = theory_solve_times(settings, tell)
    medians = np.median(solved, axis=1)
    reached = np.isfinite(medians)
    line = fit_power(depths[reached], medians[reached]) if reached.sum() > 1 else None
    console.print(depth_table(depths, solved, line))
    numbers: dict[str, Any] = {
        "regret": rows,
        "regret_bound": float(closed_bound(settings, np.array([settings.episodes * 1.0]))[0]),
        "deep_sea": {
            "depths": depths.tolist(),
            "solved_bsuite": theory_json(solved),
            "fit": line and line._asdict(),
        },
        "wall_seconds": round(time.monotonic() - began, 3),
    }
    if out is not None:
        pictures = {
            "regret": draw_regret(settings, curves),
            "decomposition": draw_decomposition(curves),
            "tau": draw_tau(curves),
            "deep-sea": draw_depths(depths, solved, line),
        }
        disk.make_directory(out)
        for name, figure in pictures.items():
            disk.write(out / f"{name}.png", picture_png(figure))
        disk.write(out / "theory.json", (json.dumps(numbers, indent=2) + "\n").encode())
        console.print(
            f"{', '.join(f'{name}.png' for name in pictures)} and theory.json are in {out}",
            highlight=False,
            soft_wrap=True,
        )
    return numbers


def teller(console: Console | None) -> Callable[[str], None]:
    """A function that prints a line of progress, or nothing."""
    return lambda line: (
        None if console is None else console.print(line, highlight=False, soft_wrap=True)
    )


def regret_curves(settings: TheoryRegret, tell: Callable[[str], None]) -> dict[str, Curves]:
    """Every agent on the same draws; k-learning also with the sigma for which the bound is proven."""
    prior = mdps.random_prior(
        settings.horizon, settings.states, settings.actions, settings.reward_std, settings.noise_std
    )
    players = {
        name: make_tabular_agent(name, settings.learners, reward_range=4 * settings.reward_std)
        for name in AGENTS
    }
    players[BOUND] = bound_agent()
    seeds = range(settings.seed, settings.seed + settings.draws)
    curves = {}
    for name, agent in players.items():
        began = time.monotonic()
        stats = agents.play_draws(agent, prior, settings.episodes, seeds)
        mean = lambda x: np.asarray(x).mean(axis=0)
        curves[name] = Curves(
            np.asarray(stats.regret), mean(stats.tau), mean(stats.dist), mean(stats.optimism)
        )
        tell(
            f"{name}: {settings.draws} draws, {settings.episodes:,} episodes each, {time.monotonic() - began:.1f} s"
        )
    return curves


def interval(samples: np.ndarray) -> np.ndarray:
    """Half the width of a 95 % interval for the mean over the first axis."""
    return 1.96 * samples.std(axis=0, ddof=1) / np.sqrt(len(samples))


def fit_power(x: np.ndarray, y: np.ndarray) -> TheoryLine:
    """The power law closest to points on logarithmic scales."""
    exponent, offset = np.polyfit(np.log(x), np.log(y), 1)
    return TheoryLine(float(exponent), float(np.exp(offset)))


def growth(cumulative: np.ndarray) -> float:
    """Exponent at which a cumulative sum grows over its last decade: 1 is linear, 0.5 a square root."""
    episode = np.arange(1, len(cumulative) + 1)
    late = episode >= len(cumulative) // 10
    return fit_power(episode[late], cumulative[late]).exponent


def regret_row(curve: Curves, reference: Curves) -> dict[str, Any]:
    """Cumulative Bayesian regret with its interval, as a multiple of the reference's, and how it grows."""
    total, other = curve.regret.sum(axis=1), reference.regret.sum(axis=1)
    ratio = total.mean() / other.mean()
    # The draws are paired, so the interval of the ratio is that of total - ratio * other.
    return {
        "regret": float(total.mean()),
        "interval": float(interval(total)),
        "over_psrl": float(ratio),
        "over_psrl_interval": float(interval(total - ratio * other) / other.mean()),
        "exponent": growth(np.cumsum(curve.regret.mean(axis=0))),
        "dist_plus_optimism": None
        if np.isnan(curve.optimism).any()
        else float((curve.dist + curve.optimism).sum()),
    }


def closed_bound(settings: TheoryRegret, episodes: np.ndarray) -> np.ndarray:
    """The regret bound of [c-basic] with its constants, for the sigma of `klearning.sigma2_bounded` and |r| <= 1.

    The largest sigma2, at the first layer, times visits + 1: the reward's variance plus (L - 1)^2 for the transitions.
    """
    sigma2 = max(settings.reward_std, settings.noise_std) ** 2 + (settings.horizon - 1) ** 2
    n_states = settings.horizon * settings.states
    return np.asarray(
        saddle.regret_bound(
            n_states, settings.actions, settings.horizon, sigma2, jnp.asarray(episodes)
        )
    )


def theory_solve_times(
    settings: TheoryRegret, tell: Callable[[str], None]
) -> tuple[np.ndarray, np.ndarray]:
    """Episodes that k-learning needs under bsuite's rule: depths [D], and [D, seeds], infinite where it did not."""
    rows = []
    for depth in settings.depths:
        sea = TheoryDeepSea(
            depth=depth,
            seeds=settings.deep_sea_seeds,
            seed=settings.seed,
            episodes=max(500, depth**2),
        )
        found = [solved_bsuite(row) for row in dive(sea)]
        rows.append([np.inf if episode is None else episode for episode in found])
        tell(
            f"deep-sea {depth}: solved in {np.median(rows[-1]):,.0f} episodes (median of {len(found)} seeds)"
        )
    return np.asarray(settings.depths), np.asarray(rows, float)


def theory_json(solved: np.ndarray) -> list[list[int | None]]:
    """Episodes as integers, null where there is none."""
    return [[int(episode) if np.isfinite(episode) else None for episode in row] for row in solved]


def regret_table(settings: TheoryRegret, rows: dict[str, dict[str, Any]]) -> Table:
    """Who regrets how much."""
    size = f"{settings.horizon} layers, {settings.states} states, {settings.actions} actions"
    title = f"Bayesian regret over {settings.episodes:,} episodes ({size}; {settings.draws} draws from the prior)"
    table = Table(
        "agent",
        "regret",
        "over PSRL's",
        "exponent",
        "sum of Dist + Optimism",
        title=title,
        title_justify="left",
        box=None,
    )
    for name, row in sorted(rows.items(), key=lambda item: item[1]["regret"]):
        certified = "" if row["dist_plus_optimism"] is None else f"{row['dist_plus_optimism']:,.0f}"
        ratio = f"{row['over_psrl']:.2f} ± {row['over_psrl_interval']:.2f}"
        table.add_row(
            name,
            f"{row['regret']:,.1f} ± {row['interval']:.1f}",
            ratio,
            f"{row['exponent']:.2f}",
            certified,
        )
    return table


def depth_table(depths: np.ndarray, solved: np.ndarray, line: TheoryLine | None) -> Table:
    """Episodes to solve DeepSea."""
    title = "Episodes until k-learning has solved DeepSea (bsuite's rule)" + (
        f", about {line}" if line else ""
    )
    table = Table(
        "depth",
        "median",
        "fastest seed",
        "slowest seed",
        title=title,
        title_justify="left",
        box=None,
    )
    for depth, row in zip(depths, solved, strict=True):
        table.add_row(
            f"{depth}", *(f"{value:,.0f}" for value in (np.median(row), row.min(), row.max()))
        )
    return table


def _axes(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=xlabel, ylabel=ylabel, xscale="log", yscale="log")
    return figure, axes


def draw_regret(settings: TheoryRegret, curves: dict[str, Curves]) -> Figure:
    """Cumulative Bayesian regret with 95 % intervals, under what the run itself certified and under the bound with constants."""
    figure, axes = _axes("episode", "cumulative Bayesian regret")
    episode = np.arange(1, settings.episodes + 1)
    for name, curve in curves.items():
        total = np.cumsum(curve.regret, axis=1)
        middle, half = total.mean(axis=0), interval(total)
        axes.plot(episode, middle, color=CURVES[name], label=name)
        axes.fill_between(
            episode, middle - half, middle + half, color=CURVES[name], alpha=0.2, lw=0
        )
    axes.plot(
        episode,
        np.cumsum(curves[BOUND].dist + curves[BOUND].optimism),
        "k:",
        label="certified: sum of Dist + Optimism",
    )
    axes.plot(
        episode,
        closed_bound(settings, episode * 1.0),
        "k--",
        label="the bound, with its constants [c-basic]",
    )
    axes.legend(frameon=False, fontsize=8)
    return figure


def draw_decomposition(curves: dict[str, Curves]) -> Figure:
    """Both components of the bound [l-decomp] above the regret that they bound: exact play and play by gradients."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    pair = figure.subplots(1, 2, sharey=True)
    for axes, name in zip(pair, (BOUND, "saddle"), strict=True):
        curve = curves[name]
        episode = np.arange(1, len(curve.tau) + 1)
        axes.plot(episode, curve.optimism, color="C1", label="Optimism")
        axes.plot(episode, np.maximum(curve.dist, 0), color="C2", label="Dist")
        axes.plot(episode, curve.regret.mean(axis=0), color="k", lw=0.8, label="regret")
        axes.set(xlabel="episode", xscale="log", yscale="log", title=name, ylim=(1e-4, None))
    pair[0].text(
        0.03,
        0.05,
        "Dist is zero: the game is solved exactly",
        transform=pair[0].transAxes,
        color="C2",
    )
    pair[0].set_ylabel("of one episode, mean over draws")
    pair[0].legend(frameon=False)
    return figure


def draw_tau(curves: dict[str, Curves]) -> Figure:
    """The risk parameter falls as the agent learns, of itself."""
    figure, axes = _axes("episode", "tau, mean over draws")
    for name in ("k-learning", BOUND, "saddle"):
        axes.plot(
            np.arange(1, len(curves[name].tau) + 1),
            curves[name].tau,
            color=CURVES[name],
            label=name,
        )
    axes.legend(frameon=False)
    return figure


def draw_depths(depths: np.ndarray, solved: np.ndarray, line: TheoryLine | None) -> Figure:
    """Episodes to solve DeepSea against depth, every seed, and the power law through the medians."""
    figure, axes = _axes("depth", "episodes until solved (bsuite's rule)")
    for column in solved.T:
        axes.plot(depths, column, "o", color="C0", alpha=0.3, ms=4)
    axes.plot(depths, np.median(solved, axis=1), "o-", color="C0", label="k-learning, median")
    if line:
        axes.plot(depths, line.scale * depths**line.exponent, "k--", label=str(line))
    axes.legend(frameon=False)
    return figure
