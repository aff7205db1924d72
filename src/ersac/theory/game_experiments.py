"""`ersac theory games`: regret over rounds in matrix games and a constrained bandit."""

import functools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from ersac.analysis.picture import picture_png
from ersac.runs import disk
from ersac.theory import games
from ersac.theory.experiments import fit_power, half_width, line_printer
from ersac.theory.settings import TheoryGames

OPPONENTS = ("best response", "self-play")
RESAMPLES = 500  # of the seeds, for the interval of an exponent
NO_REGRET = 1e-4  # mean regret of a round below which only the solver's tolerance is left
LINES = {"k-learning": "C0", "vbos": "C7", "ucb": "C4", "thompson": "C3"}

Curves = dict[tuple[str, str, str], np.ndarray]  # game, opponent, strategy -> regret [seeds, N]


def run_games(
    settings: TheoryGames, out: Path | None, console: Console | None = None
) -> dict[str, Any]:
    """Run `ersac theory games`: print a table, write a figure to `out`, return the numbers."""
    console = console or Console(quiet=True)
    report, start = line_printer(console), time.monotonic()
    seeds = range(settings.seed, settings.seed + settings.seeds)
    strategies = games.STRATEGIES | {
        "thompson": functools.partial(games.play_thompson, samples=settings.samples)
    }
    curves: Curves = {}
    for game_name, make in games.GAMES.items():
        game = make(seeds, settings.noise_std)
        is_matrix_game = len(game.corners) == game.payoff.shape[1] and game.corners.max() == 1
        opponents = OPPONENTS if is_matrix_game and settings.self_play else OPPONENTS[:1]
        for opponent in opponents:
            for name, strategy in strategies.items():
                regret = games.play_rounds(
                    game, strategy, settings.rounds, seeds, opponent == "self-play"
                )
                curves[game_name, opponent, name] = regret
                total = regret.sum(axis=1)
                report(f"{game_name}, {opponent}, {name}: regret {total.mean():.1f}")
    rows = [game_row(*names, regret) for names, regret in curves.items()]
    console.print(games_table(settings, rows))
    numbers = {
        "rounds": settings.rounds,
        "seeds": settings.seeds,
        "seed": settings.seed,
        "noise_std": settings.noise_std,
        "rows": rows,
        "wall_seconds": round(time.monotonic() - start, 3),
    }
    if out is not None:
        disk.make_directory(out)
        disk.write(out / "games.png", picture_png(draw_games(curves)))
        disk.write(out / "games.json", (json.dumps(numbers, indent=2) + "\n").encode())
        report(f"games.png and games.json are in {out}")
    return numbers


def game_row(game: str, opponent: str, strategy: str, regret: np.ndarray) -> dict[str, Any]:
    """Return the cumulative regret and its growth exponent, with 95 % intervals over seeds."""
    total = regret.sum(axis=1)
    low, exponent, high = exponent_interval(regret)
    return {
        "game": game,
        "opponent": opponent,
        "strategy": strategy,
        "regret": float(total.mean()),
        "interval": float(half_width(total)),
        "exponent": exponent,
        "exponent_interval": None if exponent is None else [low, high],
    }


def exponent_interval(regret: np.ndarray) -> tuple[float | None, float | None, float | None]:
    """Return the exponent of the mean regret between its bootstrap bounds; None without regret."""
    if regret.mean() < NO_REGRET:
        return None, None, None
    total = np.cumsum(regret, axis=1)
    rng = np.random.default_rng(0)
    resamples = rng.integers(len(regret), size=(RESAMPLES, len(regret)))
    exponents = [late_exponent(total[seeds].mean(axis=0)) for seeds in resamples]
    low, high = np.nanpercentile(exponents, [2.5, 97.5])
    return float(low), late_exponent(total.mean(axis=0)), float(high)


def late_exponent(total: np.ndarray) -> float:
    """Return the exponent of cumulative regret over its last decade, from the first regret on."""
    rounds = np.arange(1, len(total) + 1)
    late = (rounds >= len(total) // 10) & (total > 0)
    return fit_power(rounds[late], total[late]).exponent if late.sum() > 1 else np.nan


def games_table(settings: TheoryGames, rows: list[dict[str, Any]]) -> Table:
    """Return a table with one line per game, opponent and strategy."""
    title = f"Regret over {settings.rounds:,} rounds, mean of {settings.seeds} seeds"
    columns = ("game", "opponent", "strategy", "regret", "exponent over the last decade")
    table = Table(*columns, title=title, title_justify="left", box=None)
    for row in rows:
        exponent = "no regret"
        if row["exponent"] is not None:
            low, high = row["exponent_interval"]
            exponent = f"{row['exponent']:.2f} [{low:.2f}, {high:.2f}]"
        regret = f"{row['regret']:,.1f} ± {row['interval']:.1f}"
        table.add_row(row["game"], row["opponent"], row["strategy"], regret, exponent)
    return table


def draw_games(curves: Curves) -> Figure:
    """Draw cumulative regret against rounds, a panel for every game and opponent."""
    panels = list(dict.fromkeys(names[:2] for names in curves))
    figure = Figure(figsize=(4 * -(-len(panels) // 2), 7), layout="constrained")
    grid = figure.subplots(2, -(-len(panels) // 2), squeeze=False).ravel()
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(grid, panels, strict=False):
        for name, colour in LINES.items():
            total = np.cumsum(curves[*panel, name], axis=1)
            rounds, mean, half = np.arange(1, total.shape[1] + 1), total.mean(0), half_width(total)
            axes.plot(rounds, mean, color=colour, label=name)
            axes.fill_between(rounds, mean - half, mean + half, color=colour, alpha=0.2, lw=0)
        axes.set(title=", ".join(panel), xlabel="round", ylabel="cumulative regret")
    grid[0].legend(frameon=False)
    return figure
