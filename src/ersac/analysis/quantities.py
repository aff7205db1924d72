"""The quantities that claims are about, measured from DeepSea records, exact experiments or Atari.

No jax here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ersac.analysis import figures, scores
from ersac.analysis.figures import SolveRun


class Measurement(NamedTuple):
    """A quantity of the records; None where they do not have it, such as a median never reached."""

    value: float | None
    text: str


def select_line(runs: Sequence[SolveRun], line: str, depth: int | None = None) -> list[SolveRun]:
    """The runs of a line, at one depth or at all."""
    return [run for run in runs if run.line == line and depth in (None, run.depth)]


# Quantities of DeepSea records


def deepest_solved(line: str) -> Callable[[Sequence[SolveRun]], Measurement]:
    """The largest depth at which most seeds of a line are solved."""

    def measure(runs: Sequence[SolveRun]) -> Measurement:
        depths = figures.group_by_depth(select_line(runs, line))
        solved = [depth for depth, seeds in depths.items() if figures.median_solved(seeds)]
        shown = {
            depth: f"{sum(run.solved is not None for run in seeds)}/{len(seeds)}"
            for depth, seeds in depths.items()
        }
        text = ", ".join(f"{depth}: {share}" for depth, share in shown.items())
        return Measurement(max(solved, default=0), f"depth {max(solved, default=0)} ({text})")

    return measure


def exponent(
    line: str, distance_to: float | None = None
) -> Callable[[Sequence[SolveRun]], Measurement]:
    """The exponent of the solve time in depth, or the distance of its interval to a number."""

    def measure(runs: Sequence[SolveRun]) -> Measurement:
        depths = figures.group_by_depth(select_line(runs, line))
        if len(depths) < 3:
            return Measurement(None, "fewer than three depths")
        fit = scores.power_law(
            {depth: [run.solved or run.budget for run in seeds] for depth, seeds in depths.items()}
        )
        text = f"depth^{fit.exponent:.2f} (95 %: {fit.low:.2f} to {fit.high:.2f})"
        if distance_to is None:
            return Measurement(fit.exponent, text)
        return Measurement(max(0.0, fit.low - distance_to, distance_to - fit.high), text)

    return measure


def reached_share(line: str) -> Callable[[Sequence[SolveRun]], Measurement]:
    """The upper end of the 95 % interval of the share of seeds that reach the goal."""

    def measure(runs: Sequence[SolveRun]) -> Measurement:
        chosen = select_line(runs, line)
        depth = max(run.depth for run in chosen)
        deepest = [run for run in chosen if run.depth == depth]
        reached = sum(bool(run.goals.any()) for run in deepest)
        low, high = scores.wilson_interval(reached, len(deepest))
        text = f"{reached} of {len(deepest)} seeds at depth {depth} (95 %: {low:.0%} to {high:.0%})"
        return Measurement(high, text)

    return measure


def solved_share(runs: Sequence[SolveRun]) -> Measurement:
    """The share of runs that are solved."""
    solved = sum(run.solved is not None for run in runs)
    return Measurement(solved / len(runs), f"{solved} of {len(runs)} runs solved")


def share_of_lines(*lines: str) -> Callable[[Sequence[SolveRun]], Measurement]:
    """The share of the runs of some lines that are solved."""
    return lambda runs: solved_share([run for line in lines for run in select_line(runs, line)])


def line_medians(
    runs: Sequence[SolveRun], line: str, value: Callable[[SolveRun], float]
) -> dict[int, float]:
    """The median over seeds of a number of episodes, by depth; infinite where most have none."""
    depths = figures.group_by_depth(select_line(runs, line))
    return {
        depth: float(np.median([value(run) for run in seeds])) for depth, seeds in depths.items()
    }


def ratio_of_medians(
    line: str,
    other: str,
    value: Callable[[SolveRun], float] = lambda run: run.solved_or_inf,
    max_depth: float = np.inf,
) -> Callable[[Sequence[SolveRun]], Measurement]:
    """How many times the episodes of `other` a line needs: geometric mean over common depths."""

    def measure(runs: Sequence[SolveRun]) -> Measurement:
        ours, theirs = line_medians(runs, line, value), line_medians(runs, other, value)
        ratios = {
            depth: ours[depth] / theirs[depth]
            for depth in ours.keys() & theirs.keys()
            if depth <= max_depth and np.isfinite(ours[depth]) and np.isfinite(theirs[depth])
        }
        if not ratios:
            return Measurement(None, "no depth that most seeds of both solve")
        mean = float(np.exp(np.mean(np.log(list(ratios.values())))))
        depths = ", ".join(map(str, sorted(ratios)))
        return Measurement(mean, f"{mean:.2f} times, at depth {depths}")

    return measure


def first_goal_or_inf(run: SolveRun) -> float:
    """The first episode that reached the goal; infinity for never."""
    found = scores.first_goal(run.goals)
    return np.inf if found is None else found


def latch_episodes(run: SolveRun) -> float:
    """Episodes from the first goal until solved; infinity for never."""
    found = run.solved_or_inf
    return found - first_goal_or_inf(run) if np.isfinite(found) else np.inf


def difference_of_shares(
    line: str, other: str, value: Callable[[SolveRun], bool] = lambda run: run.solved is not None
) -> Callable[[Sequence[SolveRun]], Measurement]:
    """The share of a line's runs with a property, less that of another line."""

    def measure(runs: Sequence[SolveRun]) -> Measurement:
        ours, theirs = ([value(run) for run in select_line(runs, name)] for name in (line, other))
        text = f"{sum(ours)} of {len(ours)} against {sum(theirs)} of {len(theirs)}"
        return Measurement(float(np.mean(ours) - np.mean(theirs)), text)

    return measure


def parameter_shares(runs: Sequence[SolveRun], suffix: str = "") -> dict[float, float]:
    """The share of solved runs by the number in the name of the line, such as tau-0.1-fixed."""
    lines = {
        name: line for name, line in figures.group_by_line(runs).items() if name.endswith(suffix)
    }
    shares = {
        float(name.removesuffix(suffix).rstrip("-").split("-", 1)[1]): solved_share(line).value
        for name, line in lines.items()
    }
    return {number: share or 0.0 for number, share in sorted(shares.items())}


def largest_lambda_is_fastest(runs: Sequence[SolveRun]) -> Measurement:
    """Kendall's tau of lambda with the median solve time at the largest depth."""
    depth = max(run.depth for run in runs)
    lines = figures.group_by_line([run for run in runs if run.depth == depth])
    medians = {
        float(name.split("-")[1]): float(np.median([run.solved_or_inf for run in line]))
        for name, line in lines.items()
    }
    values = [medians[number] for number in sorted(medians)]
    pairs = [(a, b) for i, a in enumerate(values) for b in values[i + 1 :]]
    order = float(np.mean([np.sign(b - a) if a != b else 0.0 for a, b in pairs]))
    text = ", ".join(f"{number:g}: {value:g}" for number, value in sorted(medians.items()))
    return Measurement(order, f"{order:.2f}; medians at depth {depth} by lambda: {text}")


def best_fixed_less_learned(runs: Sequence[SolveRun]) -> Measurement:
    """The share solved by the best fixed tau, less the share solved by all learned ones."""
    fixed, learned = parameter_shares(runs, "fixed"), parameter_shares(runs, "learned")
    best = max(fixed, key=lambda tau: fixed[tau])
    mean = float(np.mean(list(learned.values())))
    text = f"{fixed[best]:.0%} with tau fixed at {best:g}, {mean:.0%} with tau learned"
    return Measurement(fixed[best] - mean, text)


def neighbour_of_best_fixed(runs: Sequence[SolveRun]) -> Measurement:
    """The smallest share solved by a fixed tau next to the best one."""
    fixed = parameter_shares(runs, "fixed")
    taus = list(fixed)
    best = max(range(len(taus)), key=lambda i: fixed[taus[i]])
    if fixed[taus[best]] == 0:
        return Measurement(None, "no fixed tau solves a run")
    near = min(taus[max(0, best - 1) : best + 2], key=lambda tau: fixed[tau])
    text = f"{fixed[near]:.0%} at {near:g}, {fixed[taus[best]]:.0%} at {taus[best]:g}"
    return Measurement(fixed[near], text)


# Quantities of the exact experiments


def number_at(*path: str, form: str = ".2g") -> Callable[[Mapping[str, Any]], Measurement | None]:
    """A number of a record, by its keys; None where the record does not have it."""

    def measure(record: Mapping[str, Any]) -> Measurement | None:
        value: Any = record
        for key in path:
            if not isinstance(value, Mapping) or value.get(key) is None:
                return None
            value = value[key]
        return Measurement(float(value), f"{float(value):{form}}")

    return measure


def games_exponent(strategy: str, game: str) -> Callable[[Mapping[str, Any]], Measurement | None]:
    """How fast the regret of a strategy grows against a best response: 1 is linear."""

    def measure(record: Mapping[str, Any]) -> Measurement | None:
        for row in record["rows"]:
            if (row["strategy"], row["game"]) == (strategy, game) and row["exponent"] is not None:
                low, high = row["exponent_interval"]
                text = f"{game}: {row['exponent']:.2f} (95 %: {low:.2f} to {high:.2f})"
                return Measurement(float(row["exponent"]), text)
        return None

    return measure


# Quantities of the Atari figures

ATARI_AGENTS = ("ersac-replay", "vanilla-replay")
PAPER_SEEDS, PAPER_FRAMES = 5, 200_000_000


def atari_speedup(numbers: Mapping[str, Any]) -> Measurement | None:
    """How many times fewer frames than the actor-critic's ERSAC needs for its peak median."""
    for row in numbers["comparisons"]:
        if (row["agent"], row["other"]) == ATARI_AGENTS:
            if row["speedup"] is None:
                return Measurement(None, "ERSAC does not reach the peak of the actor-critic")
            games = len(numbers["games"])
            return Measurement(row["speedup"], f"{row['speedup']:.2f} times, {games} games")
    return None


def games_above(numbers: Mapping[str, Any]) -> Measurement | None:
    """The games in which the final score of ERSAC is above that of the actor-critic."""
    ours, theirs = (
        {row["game"]: row["score"] for row in numbers["rows"] if row["agent"] == agent}
        for agent in ATARI_AGENTS
    )
    both = ours.keys() & theirs.keys()
    if not both:
        return None
    above = sum(ours[game] > theirs[game] for game in both)
    return Measurement(above, f"{above} of {len(both)} games")


def lacking_games(count: int) -> Callable[[Mapping[str, Any]], list[str]]:
    """What is missing for the paper's seeds and frames in so many games."""

    def lacking(numbers: Mapping[str, Any]) -> list[str]:
        full = [
            (row["game"], row["agent"])
            for row in numbers["rows"]
            if row["seeds"] >= PAPER_SEEDS and row["frames"] >= PAPER_FRAMES
        ]
        games = {game for game, _ in full if all((game, agent) in full for agent in ATARI_AGENTS)}
        if len(games) >= count:
            return []
        return [f"{PAPER_SEEDS} seeds in {count} games with {PAPER_FRAMES:,} frames"]

    return lacking
