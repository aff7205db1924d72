"""The ladder: exploration tasks for networks, from easy to hard, each with several agents and seeds. No jax here.

Its cells are ordinary runs, one after the other, each in a directory of its own: what has ended and is sound is skipped, what was
stopped goes on. The scales differ in tasks, seeds and steps, never in another setting.
"""

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ersac import config, display
from ersac.agents.presets import preset
from ersac.analysis import scores
from ersac.analysis.compare import Curve
from ersac.config import Experiment, Gym, Gymnax, SettingsError, check, default_run, override
from ersac.envs.make import require_env_package
from ersac.packages import require_package
from ersac.runs import disk, exits, run_dir
from ersac.runs.run_dir import EpisodeStats
from ersac.sweeps import runner
from ersac.sweeps.catalogue import REPORTED, SCALES, TUNED

PEERS, FIGURES, TABLE = (
    "peers",
    "figures",
    "table",
)  # in a ladder's directory: agents of others, curves, the table
POINTS = 400  # of a curve in a figure
ANY_PAY = 0.05  # a grid pays from 0.1 to 1 for its goal, and else nothing


def make_sea(depth: int, noise: int, seed: int) -> Any:
    """A sea whose map is that of the seed."""
    from ersac.envs.deep_sea_gym import OneHotDeepSea  # an extra, as all of these

    return OneHotDeepSea(depth, seed, noise)


def make_grid(name: str, seed: int) -> Any:
    """A grid whose layout is that of the seed."""
    from ersac.envs.gym.make import env_factory
    from ersac.envs.gym.minigrid import FixedLayout

    return FixedLayout(env_factory(name)(), seed)


def make_lock(seed: int) -> Any:
    """The lock, which is the same for every seed."""
    from ersac.envs.lock_gym import make_lock_env

    return make_lock_env()


def make_swingup(number: int, seed: int) -> Any:
    """One of bsuite's swing-ups, of which each pays for less than the one before."""
    from ersac.envs.bsuite_gym import load_bsuite

    return load_bsuite(f"cartpole_swingup/{number}")


class Task(NamedTuple):
    """An environment, and how long is learned in it."""

    env: Gym | Gymnax
    steps: int
    make: Callable[[int], Any] | None = (
        None  # a seed -> one of them, where no id of Gymnasium names it
    )
    package: str | None = None  # that it needs, besides what its kind of environment does

    def of_seed(self, seed: int) -> Gym | Gymnax:
        """The environment of a cell."""
        if self.make is None or not self.env.on_host:
            return self.env
        return dataclasses.replace(self.env, make=partial(self.make, seed))

    def one(self, seed: int) -> Any:
        """One such environment of Gymnasium, whoever is to learn in it."""
        from ersac.envs.gym.make import env_factory

        return env_factory(self.env.id)() if self.make is None else self.make(seed)


TASKS: dict[str, Task] = {
    "deep-sea-10": Task(Gym("deep-sea-10"), 100_000, partial(make_sea, 10, 0)),
    "deep-sea-20": Task(Gym("deep-sea-20"), 300_000, partial(make_sea, 20, 0)),
    "deep-sea-30": Task(Gym("deep-sea-30"), 600_000, partial(make_sea, 30, 0)),
    "deep-sea-10-noise": Task(Gym("deep-sea-10-noise"), 100_000, partial(make_sea, 10, 8)),
    "deep-sea-20-noise": Task(Gym("deep-sea-20-noise"), 300_000, partial(make_sea, 20, 8)),
    "mountain-car": Task(Gymnax("MountainCar-v0", target=-199.0), 100_000),
    "cartpole": Task(Gym("CartPole-v1", target=475.0), 100_000),
    "lock": Task(Gym("lock", target=1.0), 60_000, make_lock),
    "doorkey-8": Task(Gym("MiniGrid-DoorKey-8x8-v0", target=ANY_PAY), 500_000),
    "keycorridor-s3r1": Task(Gym("MiniGrid-KeyCorridorS3R1-v0", target=ANY_PAY), 500_000),
    "doorkey-16-fixed": Task(
        Gym("doorkey-16-fixed", target=ANY_PAY),
        1_000_000,
        partial(make_grid, "MiniGrid-DoorKey-16x16-v0"),
    ),
    "keycorridor-s3r3-fixed": Task(
        Gym("keycorridor-s3r3-fixed", target=ANY_PAY),
        1_000_000,
        partial(make_grid, "MiniGrid-KeyCorridorS3R3-v0"),
    ),
    "multiroom-n6-fixed": Task(
        Gym("multiroom-n6-fixed", target=ANY_PAY),
        1_000_000,
        partial(make_grid, "MiniGrid-MultiRoom-N6-v0"),
    ),
    # Episodes of at most a thousand steps in sixteen environments: over five hundred of them. bsuite calls 100 a swing-up.
    "swingup": Task(Gym("swingup", target=100.0), 520_000, partial(make_swingup, 0), "bsuite"),
}
RUNGS = tuple(TASKS)
# What bsuite's score (study/bsuite_score.py) has besides the first; run only where they are named.
TASKS |= {
    f"swingup-{n}": Task(
        Gym(f"swingup-{n}", target=100.0), 520_000, partial(make_swingup, n), "bsuite"
    )
    for n in range(1, 20)
}


class LadderAgent(NamedTuple):
    """An agent of the ladder: a preset, with another source of sigma or another entropy weight."""

    agent: str
    uncertainty: str | None = None
    alpha: float | None = None  # by default that of ALPHA, where the agent has one


AGENTS: dict[str, LadderAgent] = {
    "ersac": LadderAgent("ersac"),
    "rnd": LadderAgent("ersac", "rnd"),
    "hashed": LadderAgent("ersac", "hashed"),
    "vanilla": LadderAgent("vanilla"),
    "optimism": LadderAgent("optimism"),
    "boot-dqn": LadderAgent("boot-dqn"),
}

# The entropy weight that each baseline was found best with in each task, by `ersac sweep ladder-tune`; not searched yet: the preset's.
ALPHA: dict[str, dict[str, float]] = {
    "vanilla": dict.fromkeys(TASKS, 0.01),
    "optimism": dict.fromkeys(TASKS, 0.01),
}
ALPHAS = (0.0003, 0.001, 0.003, 0.01, 0.03)  # that are tried
CANDIDATES = {
    f"{agent}-alpha-{alpha:g}": LadderAgent(agent, alpha=alpha)
    for agent in ALPHA
    for alpha in ALPHAS
}


class LadderSize(NamedTuple):
    """How much of a ladder is run at one scale."""

    tasks: tuple[str, ...]
    seeds: int
    most: int | None = None  # steps of any task


class Ladder(NamedTuple):
    """Every agent in every task with every seed."""

    what: str  # it is for, in a line
    agents: dict[str, LadderAgent]
    first_seed: int
    sizes: dict[str, LadderSize]  # by scale


LADDERS: dict[str, Ladder] = {
    "ladder": Ladder(
        "exploration tasks for networks: seeds solved, steps until solved, returns",
        AGENTS,
        REPORTED,
        dict(
            zip(
                SCALES,
                (
                    LadderSize(("deep-sea-10", "lock"), 1, 4_000),
                    LadderSize(RUNGS, 3),
                    LadderSize(RUNGS, 10),
                ),
                strict=True,
            )
        ),
    ),
    "ladder-tune": Ladder(
        "a fair chance for the ladder's baselines: their entropy weight in each task, on seeds that are never reported",
        CANDIDATES,
        TUNED,
        dict(
            zip(
                SCALES,
                (LadderSize(("lock",), 2, 4_000), LadderSize(RUNGS, 2), LadderSize(RUNGS, 2)),
                strict=True,
            )
        ),
    ),
}


class Cell(NamedTuple):
    """One run of a ladder: one agent in one task with one seed."""

    task: str
    agent: str
    settings: Experiment

    @property
    def name(self) -> str:
        """A name that no run with other settings has."""
        return f"{self.task}-{self.agent}-seed-{self.settings.run.seed}-{run_dir.settings_hash(self.settings)[:8]}"


class Plan(NamedTuple):
    """What a ladder has at one scale, and what of it is wanted now."""

    ladder: str
    scale: str
    tasks: tuple[str, ...]  # wanted
    agents: tuple[str, ...]  # wanted
    every: tuple[Cell, ...]
    absent: dict[str, str]  # why some that are wanted cannot be: by task and agent

    @property
    def title(self) -> str:
        """As its directory is called."""
        return f"{self.ladder}-{self.scale}"

    @property
    def wanted(self) -> list[Cell]:
        """The cells that are to be run, and told of."""
        return [
            cell for cell in self.every if cell.task in self.tasks and cell.agent in self.agents
        ]

    @property
    def seeds(self) -> range:
        """The seeds of the scale."""
        first = LADDERS[self.ladder].first_seed
        return range(first, first + LADDERS[self.ladder].sizes[self.scale].seeds)

    def steps(self, task: str) -> int:
        """How long is learned in a task at this scale."""
        most = LADDERS[self.ladder].sizes[self.scale].most
        return TASKS[task].steps if most is None else min(most, TASKS[task].steps)


def plan_ladder(name: str, scale: str, tasks: str | None = None, agents: str | None = None) -> Plan:
    """A ladder at a scale; `tasks` and `agents`, names with commas between them, choose some of it."""
    ladder = config.pick("ladder", name, LADDERS)
    size = config.pick("scale", scale, ladder.sizes)
    # A task that is asked for by its name is run at any scale.
    some = tuple(_named("task", tasks, TASKS)) or size.tasks
    made = Plan(
        name,
        scale,
        some,
        tuple(_named("agent", agents, ladder.agents)) or tuple(ladder.agents),
        (),
        {},
    )
    cells: list[Cell] = []
    absent: dict[str, str] = {}
    for seed in made.seeds:  # outermost, so that a part of the sweep is a table already
        for task in dict.fromkeys((*size.tasks, *some)):
            for agent, line in ladder.agents.items():
                try:
                    cells.append(Cell(task, agent, settings_of(task, line, seed, made.steps(task))))
                except SettingsError as error:
                    if task in made.tasks and agent in made.agents:
                        absent[f"{task}-{agent}"] = str(error)
    return made._replace(every=tuple(cells), absent=absent)


def _named(kind: str, words: str | None, known: dict[str, Any]) -> list[str]:
    names = [word.strip() for word in (words or "").split(",") if word.strip()]
    for name in names:
        config.pick(kind, name, known)
    return names


def settings_of(task: str, line: LadderAgent, seed: int, steps: int) -> Experiment:
    """The settings of a cell; SettingsError where this version, or this machine, has not what it takes."""
    env, package = TASKS[task].of_seed(seed), TASKS[task].package
    require_env_package(env)
    if package is not None:
        require_package(task, package)
    settings = Experiment(
        env, line.agent, preset(line.agent, line.uncertainty, None, env), default_run(env)
    )
    alpha = ALPHA.get(line.agent, {}).get(task) if line.alpha is None else line.alpha
    changes = {} if alpha is None else {"alpha": alpha}
    return check(override(settings, seed=seed, steps=steps, **changes))


class LadderReport(NamedTuple):
    """How a ladder ended."""

    report: runner.Report
    refused: dict[str, str]  # cells that cannot be run as they are, with the reason


class _Progress:
    """The sweep's display, as that of the cell under way."""

    def __init__(self, cells: Sequence[Cell], settled: int, screen: display.Display) -> None:
        self.screen, self.began = screen, time.monotonic()
        self.steps = [cell.settings.run.steps or 0 for cell in cells]
        self.cells, self.done, self.failed, self.here = len(cells), settled, 0, 0
        self.before = 0  # steps of cells that have an end

    def show(self, status: display.Status) -> None:
        """Where a cell is."""
        self._show(status.done)

    def close(self) -> None:
        """Nothing: the next cell needs it."""

    def ended(self, steps: int, here: bool, failed: bool) -> None:
        """A cell has an end, in this life or before."""
        self.before += steps
        self.here += steps if here else 0
        self.done += here and not failed
        self.failed += failed
        self._show(0)

    def _show(self, now: int) -> None:
        runs = (self.done, self.cells)
        seconds = time.monotonic() - self.began
        self.screen.show(
            display.SweepStatus(
                self.before + now,
                sum(self.steps),
                self.here + now,
                seconds,
                *runs,
                *runs,
                self.failed,
            )
        )


def run_ladder(
    plan: Plan,
    home: Path,
    train: Callable[..., Any],
    screen: display.Display,
    poll: Callable[[], int] = lambda: 0,
) -> LadderReport:
    """Run what is missing of what is wanted, a cell after the other; Stopped after a checkpoint if `poll` gives a signal's number.

    train: `ersac.api.run`, which is a storey above.
    """
    wanted = plan.wanted
    failed: dict[str, str] = {}
    missing: dict[str, str] = {}
    refused: dict[str, str] = {}
    with runner.hold_sweep(home, plan.title, plan.every), contextlib.closing(screen):
        settled = {cell.name for cell in wanted if runner.has_ended(home, cell)}
        progress = _Progress(wanted, len(settled), screen)
        for cell in wanted:
            here, name, why = cell.name not in settled, cell.name, None
            if here:
                if number := poll():
                    raise exits.Stopped(number, f"stopped; {runner.GO_ON}")
                try:
                    train(cell.settings, home / name, progress, resume=True, poll=poll)
                except exits.Stopped as stop:
                    raise exits.Stopped(stop.number, f"stopped in {name}; {runner.GO_ON}") from None
                except SettingsError as error:
                    refused[name] = why = str(error)
                except exits.NonFinite as error:
                    why = str(error)
                    run_dir.write_failure(home / name, cell.settings, why)
                except Exception as error:  # of any kind at all: the others shall go on
                    kind = "" if isinstance(error, exits.EXPECTED) else f"{type(error).__name__}: "
                    missing[name] = why = kind + " ".join(str(error).split())
                if why is not None:
                    display.note(
                        f"{name} {'cannot be run' if name in refused else 'failed'}: {why}"
                    )
            if (reason := run_dir.read_failure(home / name, cell.settings)) is not None:
                failed[name] = reason
            progress.ended(cell.settings.run.steps or 0, here, why is not None)
    ended = len(wanted) - len(refused) - len(failed) - len(missing)
    return LadderReport(runner.Report(ended, len(wanted), failed, missing), refused)


class LadderRow(NamedTuple):
    """What an agent came to in a task."""

    task: str
    agent: str
    steps: int  # that it had
    seeds: int
    solved: int
    solved_steps: (
        int | None
    )  # the median over seeds of the steps until 80 of the last 100 episodes reached the goal; None: never, for half
    end_return: float | None  # the median of the mean return of the last 100 episodes
    low: float | None  # the least of them over seeds
    high: float | None

    def words(self) -> str:
        """All but the task and the agent, in a line."""
        when = "" if self.solved_steps is None else f" after {self.solved_steps:,} steps"
        ends = (
            "no episode ended"
            if self.end_return is None
            else f"return {self.end_return:.4g} ({self.low:.4g} to {self.high:.4g})"
        )
        return f"{self.solved} of {self.seeds} solved{when}; {ends}"


Found = dict[tuple[str, str], list[EpisodeStats]]  # what happened to each seed, by task and agent


class Peer(NamedTuple):
    """A run of somebody else's agent, as benchmarks/peers.py leaves it."""

    task: str
    agent: str
    steps: int
    stats: EpisodeStats


def read_peer(path: Path) -> Peer:
    """A run of somebody else's agent; SettingsError where the file is none."""
    try:
        told = json.loads(disk.read(path))
        when, goals = np.array(told["when"], np.int64), np.array(told["goals"], bool)
        stats = EpisodeStats(int(told["seed"]), goals, np.array(told["returns"], np.float32), when)
        if not len(when) == len(goals) == len(stats.returns):
            raise ValueError
        return Peer(str(told["task"]), str(told["agent"]), int(told["steps"]), stats)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SettingsError(f"{path} is not what benchmarks/peers.py writes") from None


def gather(plan: Plan, home: Path, note: Callable[[str], None]) -> Found:
    """What has ended of the wanted cells, and what the directory has of others' agents; what cannot be used is noted."""
    found: Found = {}
    for cell in plan.wanted:
        if (home / cell.name / run_dir.SUMMARY).exists():
            try:
                found.setdefault((cell.task, cell.agent), []).extend(
                    run_dir.read_finished_run(home / cell.name).seeds
                )
            except (SettingsError, OSError) as error:
                note(f"left out: {error}")
    for path in (
        home / PEERS / name for name in disk.names(home / PEERS) if name.endswith(".json")
    ):
        try:
            peer = read_peer(path)
        except (SettingsError, OSError) as error:
            note(f"left out: {error}")
            continue
        if peer.task not in plan.tasks:
            continue
        if peer.stats.seed not in plan.seeds or peer.steps < plan.steps(peer.task):
            least = f"seeds {plan.seeds.start} to {plan.seeds[-1]} with {plan.steps(peer.task):,} steps are told of"
            note(f"left out: {path} has seed {peer.stats.seed} with {peer.steps:,} steps; {least}")
            continue
        found.setdefault((peer.task, peer.agent), []).append(
            _until(peer.stats, plan.steps(peer.task))
        )
    return found


def _until(stats: EpisodeStats, steps: int) -> EpisodeStats:
    """The episodes that ended within so many steps."""
    assert stats.steps is not None
    count = int(np.searchsorted(stats.steps, steps, side="right"))
    return EpisodeStats(stats.seed, stats.goals[:count], stats.returns[:count], stats.steps[:count])


def table(plan: Plan, found: Found) -> list[LadderRow]:
    """A row for each agent in each task of which anything is known, in the order of the tasks."""
    order = {task: place for place, task in enumerate(TASKS)}
    keys = sorted(found, key=lambda key: order[key[0]])  # agents keep theirs
    return [row(task, agent, plan.steps(task), found[task, agent]) for task, agent in keys]


def row(task: str, agent: str, steps: int, seeds: Sequence[EpisodeStats]) -> LadderRow:
    """What the seeds of an agent in a task come to."""
    told = [scores.of_returns(stats) for stats in seeds]
    when = [each["solved_steps"] for each in told]
    middle = float(np.median([math.inf if each is None else each for each in when]))
    ends = [each["mean_return"] for each in told if each["mean_return"] is not None]
    spread = (float(np.median(ends)), min(ends), max(ends)) if ends else (None, None, None)
    solved = sum(each is not None for each in when)
    return LadderRow(
        task, agent, steps, len(seeds), solved, None if math.isinf(middle) else int(middle), *spread
    )


def markdown(rows: Sequence[LadderRow]) -> str:
    """The table as docs have it: a line a task, a column an agent."""
    agents, tasks = (
        list(dict.fromkeys(names))
        for names in ([each.agent for each in rows], [each.task for each in rows])
    )
    by_name = {(each.task, each.agent): each for each in rows}
    steps = {each.task: each.steps for each in rows}
    lines = [["task", "steps", *(f"`{agent}`" for agent in agents)], ["---"] * (len(agents) + 2)]
    for task in tasks:
        cells = (by_name.get((task, agent)) for agent in agents)
        lines.append(
            [task, f"{steps[task]:,}", *("" if each is None else each.words() for each in cells)]
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def tune(rows: Sequence[LadderRow]) -> dict[str, dict[str, float]]:
    """The entropy weight with which each baseline did best in each task, as ALPHA has it: more seeds solved, or sooner, or more earned.

    Where nothing tells them apart it is the one nearest to the one that ALPHA has.
    """
    tried: dict[tuple[str, str], dict[float, LadderRow]] = {}
    for each in rows:
        line = CANDIDATES.get(each.agent)
        if line is not None and line.alpha is not None:
            tried.setdefault((line.agent, each.task), {})[line.alpha] = each
    found: dict[str, dict[str, float]] = {}
    for (agent, task), some in tried.items():
        merits = {
            alpha: (*_merit(each), -abs(math.log(alpha / ALPHA[agent][task])))
            for alpha, each in some.items()
        }
        found.setdefault(agent, {})[task] = max(merits, key=merits.__getitem__)
    return found


def _merit(row: LadderRow) -> tuple[int, float, float]:
    steps = math.inf if row.solved_steps is None else row.solved_steps
    return row.solved, -steps, -math.inf if row.end_return is None else row.end_return


def draw_curves(task: str, steps: int, seeds: dict[str, list[EpisodeStats]], caption: str) -> Any:
    """Learning curves in a task as a matplotlib Figure: the median over seeds, between the least and the greatest."""
    from matplotlib.figure import Figure  # takes a second to import

    from ersac.analysis.figures import COLOURS

    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.subplots()
    for place, (agent, some) in enumerate(seeds.items()):
        curves = [
            Curve(stats.steps, scores.running_means(stats.returns), steps)
            for stats in some
            if stats.steps is not None
        ]
        curves = [curve for curve in curves if len(curve.steps)]
        if not curves:
            continue
        first = max(int(curve.steps[0]) for curve in curves)  # from there on all of them are known
        when = np.linspace(first, max(first, steps), POINTS)
        means = np.stack([curve.at(when) for curve in curves])  # [seeds, POINTS]
        colour = COLOURS[place % len(COLOURS)]
        axes.plot(
            when,
            np.median(means, axis=0),
            color=colour,
            lw=1.5,
            label=f"{agent}, {len(curves)} seeds",
        )
        axes.fill_between(
            when, means.min(axis=0), means.max(axis=0), color=colour, alpha=0.15, lw=0
        )
    axes.set(
        xlabel="steps",
        ylabel=f"mean return of the last {scores.RELIABLE_WINDOW} episodes",
        title=task,
        xlim=(0, steps),
    )
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
    figure.supxlabel(caption, fontsize=6, color="0.4", family="monospace", x=0.005, ha="left")
    return figure


def leave(plan: Plan, home: Path, note: Callable[[str], None]) -> list[LadderRow]:
    """Leave the table, as JSON and for docs, and a figure a task next to the records."""
    found = gather(plan, home, note)
    rows = table(plan, found)
    if not rows:
        return []
    from ersac.analysis import figures

    command = f"ersac sweep {plan.ladder} --scale {plan.scale}"
    disk.make_directory(home / FIGURES)
    for task in dict.fromkeys(each.task for each in rows):
        own = {agent: seeds for (where, agent), seeds in found.items() if where == task}
        disk.write(
            home / FIGURES / f"{task}.png",
            figures.figure_png(draw_curves(task, plan.steps(task), own, command)),
        )
    told = {"command": command, "rows": [each._asdict() for each in rows]}
    disk.write(home / f"{TABLE}.json", (json.dumps(told, indent=2) + "\n").encode())
    disk.write(home / f"{TABLE}.md", markdown(rows).encode())
    return rows


def ladder_lines(plan: Plan, climbed: LadderReport, rows: Sequence[LadderRow]) -> Iterable[str]:
    """How a ladder ended, line by line."""
    width = max((len(f"{each.task} {each.agent}") for each in rows), default=0)
    for each in rows:
        yield f"{each.task + ' ' + each.agent:<{width}}  {each.words()}"
    for why in dict.fromkeys(plan.absent.values()):
        yield f"not available: {', '.join(name for name, each in plan.absent.items() if each == why)}: {why}"
    if plan.ladder == "ladder-tune":
        for agent, tasks in tune(rows).items():
            yield f"best entropy weights of {agent}: " + ", ".join(
                f"{task} {alpha:g}" for task, alpha in tasks.items()
            )
    yield f"{climbed.report.ended} of {climbed.report.wanted} runs have ended"


def ladder_json(plan: Plan, climbed: LadderReport, rows: Sequence[LadderRow]) -> dict[str, Any]:
    """All of it as plain data."""
    told = {
        "sweep": plan.title,
        **climbed.report._asdict(),
        "refused": climbed.refused,
        "not_available": plan.absent,
    }
    alphas = {"best_alpha": tune(rows)} if plan.ladder == "ladder-tune" else {}
    return {**told, **alphas, "table": [each._asdict() for each in rows]}


def list_ladders() -> str:
    """Every ladder, how many runs it has at each scale, and what it is for; as `sweeps.listed` has the others."""
    lines = []
    for name, ladder in LADDERS.items():
        counts = (
            len(size.tasks) * len(ladder.agents) * size.seeds
            for size in (ladder.sizes[scale] for scale in SCALES)
        )
        lines.append(f"  {name:<20}{''.join(f'{count:>8}' for count in counts)}  {ladder.what}\n")
    return "".join(lines)
