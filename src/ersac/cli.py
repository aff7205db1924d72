"""The command line: settings are parsed and checked here, before jax is imported."""

import contextlib
import difflib
import importlib
import io
import itertools
import json
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from ersac import __version__, config
from ersac.agents.presets import PRESETS, preset
from ersac.config import SettingsError
from ersac.runs import exits
from ersac.theory.settings import TABULAR_AGENTS, TheoryDeepSea, TheoryRegret

USAGE = """usage: ersac COMMAND ...

  ersac train ENV [--depth N --agent NAME --seeds N ...]   train an agent; `ersac train deep-sea --help` lists every setting
  ersac resume RUN [--episodes N --exact ...]              go on with a run that was stopped, where it was
  ersac eval RUN [--episodes N --video FILE ...]           play with what a run learned, and say what it comes to
  ersac sweep NAME [--scale smoke|desk|paper ...]          many runs, or those that are missing; `ersac sweep` lists them
  ersac figure LABEL [--scale smoke|desk|paper]            a figure of the paper, from its sweeps; `ersac figure` lists them
  ersac runs [DIR]                                         the runs and sweeps below a directory, and the state of each
  ersac compare PATH [PATH ...]                            agents side by side: returns after as many steps, with intervals
  ersac export RUN [RUN ...] --to FILE [--what TABLE]      the records as a tidy table, FILE.csv or FILE.parquet
  ersac theory [deep-sea] [--depth N --agent NAME ...]     the paper's exact half, run and drawn
  ersac bench [--quick --json ...]                         how fast this is, beside others, as ratios
  ersac --version                                          say which version this is

environments: {environments}
agents:       {agents}
"""


@dataclass(frozen=True)
class OutputOptions:
    """How a command tells what it does."""

    json: bool = False
    """End with one JSON object on the last line of standard output."""
    quiet: bool = False
    """Show no progress."""
    debug: bool = False
    """Show the traceback of an error."""


@dataclass(frozen=True)
class TrainCommand:
    """Train an agent, show how it goes, and leave a run directory with a picture."""

    env: config.DeepSea | config.Gymnax | config.Gym
    run: config.Run
    learner: config.ActorCritic | config.BootDQN
    agent: str = "ersac"
    """The agent, a named set of settings; `ersac` lists them. Defaults below are this agent's."""
    uncertainty: str | None = None
    """Where an actor-critic's sigma comes from: ensemble, posterior, counts, or for arrays rnd; by default as the agent has it."""
    out: Path | None = None
    """The run's directory; by default a new one under runs/."""
    resume: bool = False
    """Go on with the run in that directory if it has these settings, or start it."""
    exact: bool = False
    """Refuse to continue where versions, cores or flags have changed and the bits could differ."""
    track: config.Track = config.UNTRACKED
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class ResumeCommand:
    """Go on with a run that was stopped, from its last good checkpoint; bit for bit as if it had never been."""

    run: Annotated[Path | None, tyro.conf.Positional] = None
    """The run's directory."""
    episodes: config.Episodes | None = None
    """A larger budget of episodes than the run was given."""
    checkpoint_seconds: config.Seconds | None = None
    """Seconds between checkpoints."""
    exact: bool = False
    """Refuse to continue where versions, cores or flags have changed and the bits could differ."""
    track: config.Track = config.UNTRACKED
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class EvalCommand:
    """Play whole episodes with what a run learned, with seeds that training did not have, and say what they come to."""

    run: Annotated[Path | None, tyro.conf.Positional] = None
    """The run's directory, or a file of result.save()."""
    how: config.Evaluate = field(default_factory=config.Evaluate)
    seed: int | None = None
    """Which of the run's seeds; by default its first."""
    video: Path | None = None
    """Play a few episodes into this file, .mp4 or .gif, which must not be there yet."""
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class SweepCommand:
    """Run what is missing of a sweep: the same command starts it and goes on with it."""

    name: Annotated[str, tyro.conf.Positional] = ""
    """The sweep; `ersac sweep` lists them."""
    scale: str = "smoke"
    """How much of it: smoke (minutes on two cores), desk (hours) or paper (the paper's numbers)."""
    engine: str = "local"
    """Who runs it: local, or ray (needs ersac[ray]; RAY_ADDRESS names a cluster, by default there is one on this machine only)."""
    out: Path | None = None
    """Its directory; by default runs/sweeps/NAME-SCALE."""
    tasks: str | None = None
    """Of the ladder: these tasks only, with commas between them."""
    agents: str | None = None
    """Of the ladder: these agents only, with commas between them."""
    pack: Path | None = None
    """Run nothing; write all runs of the sweep to FILE.json and FILE.npz, which must not exist."""
    goals_only: bool = False
    """Of a pack: leave out returns, which `ersac compare` needs and figures of DeepSea do not."""
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class FigureCommand:
    """Draw a figure of the paper: run what is missing of its sweeps, then draw."""

    label: Annotated[str, tyro.conf.Positional] = ""
    """The figure, by its label in the paper; `ersac figure` lists them."""
    scale: str = "smoke"
    """How much of its sweeps is run: smoke (minutes on two cores), desk (hours) or paper (the paper's numbers)."""
    network: Literal["mlp", "table"] = "mlp"
    """What the agents have: networks (mlp), or a row for every state in every head (table)."""
    engine: str = "local"
    """Who runs it: local, or ray (needs ersac[ray])."""
    records: Path = Path("runs/sweeps")
    """Where the sweeps are, directories or packs, or one pack; what a directory lacks is run.
    `results` has the packs that came with the source."""
    out: Path | None = None
    """Where the picture and its numbers go; by default figures/ in the first sweep's directory."""
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class RunsCommand:
    """List the runs and sweeps below a directory, with the state of each."""

    directory: Annotated[Path, tyro.conf.Positional] = Path("runs")
    """Where to look."""
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class CompareCommand:
    """What agents come to after as many steps in the same environment: the first one of each beside the others."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Directories of runs, and packs; runs of one agent in one environment count together."""
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class ExportCommand:
    """Write the records of runs that have ended as one tidy table."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """The runs' directories."""
    to: Path | None = None
    """The file, which must not be there yet: .csv, or .parquet (needs ersac[track])."""
    what: str = "episodes"
    """What is a row: episodes, metrics (what the learner said of itself, by steps) or seeds (verdicts, and every setting)."""
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class TheoryCommand:
    """The paper's exact half: Bayesian regret against its bound, the decomposition, tau*, and tabular DeepSea against depth."""

    settings: TheoryRegret = field(default_factory=TheoryRegret)
    out: Path | None = None
    """Where pictures and numbers go; by default a new directory under runs/."""
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class TheorySeaCommand:
    """A tabular agent on DeepSea."""

    settings: TheoryDeepSea = field(default_factory=TheoryDeepSea)
    output: OutputOptions = OutputOptions()


Command = TypeVar(
    "Command",
    TrainCommand,
    ResumeCommand,
    EvalCommand,
    SweepCommand,
    FigureCommand,
    RunsCommand,
    CompareCommand,
    ExportCommand,
    TheoryCommand,
    TheorySeaCommand,
)


def main(argv: list[str] | None = None) -> None:
    """Run a command and leave with its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        code = dispatch(argv)
    except exits.EXPECTED as error:
        if "--debug" in argv:
            raise
        code = exits.exit_code(error)
        print(f"ersac: {' '.join(str(error).split())}", file=sys.stderr)
    except KeyboardInterrupt:
        print("ersac: interrupted", file=sys.stderr)
        code = exits.signal_exit_code(signal.SIGINT)
    sys.exit(code)


def dispatch(argv: list[str]) -> int:
    """Find the command."""
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": train_command,
        "resume": resume,
        "eval": eval_command,
        "sweep": sweep,
        "figure": figure,
        "runs": runs,
        "compare": compare_command,
        "export": export_command,
        "theory": theory,
        "bench": bench,
    }
    usage = USAGE.format(environments=", ".join(config.ENVIRONMENTS), agents=", ".join(PRESETS))
    match argv:
        case [] | ["-h" | "--help", *_] | ["train"] | ["train", "-h" | "--help"]:
            print(usage, end="")
            return 0
        case ["--version"]:
            print(f"ersac {__version__}")
            return 0
        case [name, *rest]:
            return config.pick("command", name, commands)(rest)
    return 0


def train_command(argv: list[str]) -> int:
    """`ersac train ENV ...`."""
    env_name, *rest = argv
    env = config.environment(env_name)
    named, uncertainty, network = (
        pick_option(option, rest) for option in ("--agent", "--uncertainty", "--network")
    )
    agent = "ersac" if named is None else named
    default = TrainCommand(
        env, config.default_run(env), preset(agent, uncertainty, network, env), agent, uncertainty
    )
    command = parse(default, f"ersac train {env_name}", f"agent {agent}", rest)
    settings = config.check(
        config.Experiment(command.env, command.agent, command.learner, command.run)
    )

    from ersac.runs import run_dir

    depth = settings.env.depth
    place = re.sub(r"[^\w.]+", "-", env_name) if depth is None else f"{env_name}-{depth}"
    stem = f"{place}-{agent}-seed{settings.run.seed}"
    out = command.out or run_dir.default_directory(Path("runs"), stem, settings, command.resume)
    return go(settings, out, command.resume, command.exact, command.track, command.output)


def resume(argv: list[str]) -> int:
    """`ersac resume RUN ...`."""
    command = parse(ResumeCommand(), "ersac resume", "resume", argv)
    if command.run is None:
        raise SettingsError("which run? ersac resume RUN")

    from ersac.runs import run_dir

    changes = {"episodes": command.episodes, "checkpoint_seconds": command.checkpoint_seconds}
    given = {name: value for name, value in changes.items() if value is not None}
    settings = config.check(config.override(run_dir.read_settings(command.run), **given))
    return go(settings, command.run, True, command.exact, command.track, command.output)


def go(
    settings: config.Experiment,
    out: Path,
    resume: bool,
    exact: bool,
    track: config.Track,
    output: OutputOptions,
) -> int:
    """Run, and say how it ended."""
    from ersac import api, display

    with exits.SignalWatcher() as watch:
        result = api.run_experiment(
            settings, out, display.make_display(not output.quiet), resume, exact, watch.poll, track
        )
    if not output.quiet:
        print_result(result)
    return finish(result.summary(), output)


def eval_command(argv: list[str]) -> int:
    """`ersac eval RUN ...`."""
    command = parse(EvalCommand(), "ersac eval", "eval", argv)
    if command.run is None:
        raise SettingsError("which run? ersac eval RUN")
    how, show = config.check(command).how, not command.output.quiet

    from ersac.policy import video
    from ersac.runs import results, run_dir

    if command.run.is_dir():
        settings, _ = run_dir.read_finished_summary(command.run)
        results.index_of_seed(settings, settings.run.seed if command.seed is None else command.seed)
        video.check_video(settings.env, command.video)
    elif not command.run.exists():
        raise SettingsError(f"{command.run} is neither a run nor a file of result.save()")

    from ersac.policy.policy import open_policy  # imports jax

    policy = open_policy(command.run, command.seed)
    if command.video is not None:
        policy.film(command.video, sample=how.sample, eval_seed=how.eval_seed, show=show)
    told = policy.evaluate(**vars(how), show=show).as_json()
    where, agent = config.named(policy.settings.env), policy.settings.agent
    if show:
        tell_evaluation(f"{agent} on {where}, seed {policy.seed}", told)
    whose = {
        "run": str(command.run),
        "env": where,
        "agent": agent,
        "seed": policy.seed,
        "episodes": how.episodes,
    }
    return finish(whose | told, command.output)


def sweep(argv: list[str]) -> int:
    """`ersac sweep NAME ...`."""
    from ersac.sweeps import catalogue, ladder_tasks

    command = parse(SweepCommand(), "ersac sweep", "sweep", argv)
    if command.name in ladder_tasks.LADDERS:
        return run_ladder_command(command)
    if command.name not in catalogue.SWEEPS:
        print(catalogue.list_sweeps() + ladder_tasks.list_ladders(), end="")
    if not command.name:
        return exits.OK
    if command.tasks is not None or command.agents is not None:
        raise SettingsError(
            f"--tasks and --agents choose from a ladder: ersac sweep ladder; {command.name} has none"
        )
    home, wanted = plan_sweep(command.name, command.scale, command.engine, command.out)
    if command.pack is not None:
        return pack_command(command, home, wanted)
    if command.goals_only:
        raise SettingsError("--goals-only needs --pack FILE")
    report = sweep_report(
        f"{command.name}-{command.scale}", wanted, home, command.engine, command.output
    )
    finish(
        {"sweep": f"{command.name}-{command.scale}", "out": str(home), **report._asdict()},
        command.output,
    )
    report.raise_if_incomplete(home)
    return exits.OK


def pack_command(command: SweepCommand, home: Path, wanted: list[Any]) -> int:
    """`ersac sweep NAME --pack FILE`."""
    from ersac.analysis import pack

    assert command.pack is not None
    title = f"{command.name}-{command.scale}"
    again = f"ersac sweep {command.name} --scale {command.scale}"
    packed = pack.pack_sweep(home, title, again, wanted, command.pack, command.goals_only)
    runs, failed = len(packed.runs), len(packed.failed)
    if not command.output.quiet:
        print(f"packed {runs} runs in {command.pack}; {failed} have failed", flush=True)
    result = {"sweep": title, "pack": str(command.pack), "runs": runs, "failed": failed}
    return finish(result, command.output)


def run_ladder_command(command: SweepCommand) -> int:
    """`ersac sweep ladder ...`."""
    from ersac.analysis import ladder_table
    from ersac.sweeps import ladder

    if command.pack is not None or command.goals_only:
        raise SettingsError(f"--pack and --goals-only are not for {command.name}")
    plan = ladder.plan_ladder(command.name, command.scale, command.tasks, command.agents)
    if command.engine != "local":
        raise SettingsError(
            f"--engine {command.engine} is not for {command.name}, whose runs are one after the other: leave it out"
        )
    home = command.out or Path("runs") / "sweeps" / plan.title

    from ersac import api, display

    with exits.SignalWatcher() as watch:
        report = ladder.run_ladder(
            plan,
            home,
            api.run_experiment,
            display.make_sweep_display(not command.output.quiet),
            watch.poll,
        )
    rows = ladder_table.write_ladder(plan, home, display.note)
    if not command.output.quiet:
        print(
            "\n".join(
                [
                    *ladder_table.ladder_lines(plan, report, rows),
                    f"records, table and figures: {home}",
                ]
            ),
            flush=True,
        )
    finish({"out": str(home), **ladder_table.ladder_json(plan, report, rows)}, command.output)
    report.report.raise_if_incomplete(home)
    return exits.OK


def plan_sweep(name: str, scale: str, engine: str, out: Path | None) -> tuple[Path, list[Any]]:
    """Where a sweep is, and its runs; or which name was probably meant."""
    from ersac.sweeps import catalogue, engines

    chosen = config.pick("sweep", name, catalogue.SWEEPS)
    size = config.pick("scale", scale, chosen.sizes)
    config.pick("engine", engine, engines.ENGINES)
    engines.require_engine(engine)
    return out or Path("runs") / "sweeps" / f"{name}-{scale}", catalogue.instances(chosen, size)


def sweep_report(
    title: str, wanted: list[Any], home: Path, engine: str, output: OutputOptions
) -> Any:
    """Run what is missing of a sweep, and say how it ended."""
    from ersac import display
    from ersac.sweeps import engines, runner

    screen = display.make_sweep_display(not output.quiet)
    with exits.SignalWatcher() as watch:
        report = runner.run_sweep(title, wanted, home, engines.ENGINES[engine], screen, watch.poll)
    if not output.quiet:
        print(f"{report.ended} of {report.wanted} runs have ended; they are in {home}", flush=True)
    return report


def figure(argv: list[str]) -> int:
    """`ersac figure LABEL ...`."""
    command = parse(FigureCommand(), "ersac figure", "figure", argv)

    from ersac.analysis import figures, pack

    if command.label not in figures.FIGURES:
        print(
            "\n".join(
                [
                    "usage: ersac figure LABEL --scale smoke|desk|paper",
                    "",
                    *(f"  {label}" for label in figures.FIGURES),
                ]
            )
        )
    if not command.label:
        return exits.OK
    suffix = "-table" if command.network == "table" else ""
    names = [name + suffix for name in config.pick("figure", command.label, figures.FIGURES).sweeps]
    runs: list[tuple[Any, Any]] = []
    parents = []
    for name in names:
        title = f"{name}-{command.scale}"
        home, wanted = plan_sweep(name, command.scale, command.engine, command.records / title)
        packed = pack.find_pack(command.records, title)
        if packed is None:
            sweep_report(title, wanted, home, command.engine, command.output)
        runs += [(packed or home, each) for each in wanted]
        parents.append(home if packed is None else packed.path.parent)
    out = command.out or next(iter(parents), Path("runs")) / "figures"
    caption = f"ersac figure {command.label} --scale {command.scale} --network {command.network}"
    told = figures.make_figure(command.label, runs, command.scale, caption, out)
    if not command.output.quiet:
        print(f"picture: {told['picture']}", flush=True)
    return finish(told, command.output)


def runs(argv: list[str]) -> int:
    """`ersac runs [DIR]`."""
    command = parse(RunsCommand(), "ersac runs", "runs", argv)

    from rich.console import Console

    from ersac.sweeps import listing

    with Console(stderr=True, quiet=command.output.quiet).status(
        f"reading {command.directory}"
    ) as status:
        found = []
        for row in listing.find_runs(command.directory):
            found.append(row)
            status.update(f"reading {command.directory}: {len(found):,} runs")
    if not command.output.quiet:
        tell_runs(found)
    return finish(listing.listing_json(found), command.output)


def compare_command(argv: list[str]) -> int:
    """`ersac compare PATH [PATH ...]`."""
    command = parse(CompareCommand(), "ersac compare", "compare", argv)
    if not command.runs:
        raise SettingsError("which runs? ersac compare PATH [PATH ...]")

    from ersac import display
    from ersac.analysis import compare as comparing

    told = comparing.compare_runs(command.runs, display.note)
    if not command.output.quiet:
        tell_comparisons(told)
    return finish(comparing.comparisons_json(told), command.output)


def export_command(argv: list[str]) -> int:
    """`ersac export RUN [RUN ...] --to FILE`."""
    command = parse(ExportCommand(), "ersac export", "export", argv)
    if not command.runs or command.to is None:
        raise SettingsError("which runs, and where to? ersac export RUN [RUN ...] --to FILE.csv")

    from ersac import display
    from ersac.analysis.export import export_runs as write

    tell = (lambda line: None) if command.output.quiet else (lambda line: print(line, flush=True))
    return finish(write(command.runs, command.to, command.what, display.note, tell), command.output)


def theory(argv: list[str]) -> int:
    """`ersac theory ...` and `ersac theory deep-sea ...`."""
    match argv:
        case ["deep-sea", *rest]:
            return theory_deep_sea(rest)
        case [word, *_] if not word.startswith("-"):
            raise SettingsError(
                f"unknown subject '{word}' of theory{config.nearest(word, ['deep-sea'])}"
            )
    command = parse(TheoryCommand(), "ersac theory", "theory", argv)
    settings = config.check(command.settings)

    from ersac.runs import run_dir

    out = command.out or run_dir.free_name(Path("runs"), "theory")
    run_dir.require_unused(out)

    from rich.console import Console

    from ersac.theory.experiments import run_regret

    numbers = run_regret(settings, out, None if command.output.quiet else Console())
    return finish(numbers, command.output)


def theory_deep_sea(argv: list[str]) -> int:
    """`ersac theory deep-sea ...`."""
    command = parse(TheorySeaCommand(), "ersac theory deep-sea", "theory deep-sea", argv)
    settings = config.check(command.settings)
    config.pick("agent", settings.agent, dict.fromkeys(TABULAR_AGENTS))

    from rich.console import Console

    from ersac.theory.experiments import run_deep_sea

    told = run_deep_sea(settings, None if command.output.quiet else Console())
    if not command.output.quiet:
        tell_seeds(told["per_seed"])
    return finish(told, command.output)


def bench(argv: list[str]) -> int:
    """`ersac bench ...`: the benchmarks stand beside the package in a checkout, not in it."""
    checkout = Path(__file__).parents[2]
    if not (checkout / "benchmarks" / "__main__.py").exists():
        raise SettingsError(
            "ersac bench needs a checkout of the project, installed with: pip install --editable '.[dev]'"
        )
    sys.path.insert(0, str(checkout))
    return int(importlib.import_module("benchmarks").main(argv))


def finish(told: dict[str, Any], output: OutputOptions) -> int:
    """End with the numbers on one line, if that was asked for."""
    if output.json:
        print(json.dumps(told), flush=True)
    return exits.OK


def print_result(result: Any) -> None:
    """Say how a run ended."""
    from rich.console import Console

    tell_seeds(result.summary()["per_seed"])
    speed = f"{result.steps:,} steps at {result.steps_per_second:,.0f} steps/s, {result.compile_seconds:.1f} s compiling"
    Console().print(
        f"{speed}; picture: {result.directory / 'picture.png'}", highlight=False, soft_wrap=True
    )


def tell_evaluation(title: str, told: dict[str, Any]) -> None:
    """Say what some episodes came to."""
    error = "" if told["stderr_return"] is None else f" ± {told['stderr_return']:.2g}"
    spread = f"from {told['min_return']:.4g} to {told['max_return']:.4g}"
    rest = f"length {told['mean_length']:,.1f}, goal in {told['goal_share']:.0%}"
    print(
        f"{title}: return {told['mean_return']:.4g}{error} ({spread}), {rest} of {len(told['returns']):,} episodes",
        flush=True,
    )


def tell_seeds(per_seed: list[dict[str, Any]]) -> None:
    """Say what every seed reached, and when."""
    from rich.console import Console
    from rich.table import Table

    names = {
        "first_goal": "first goal",
        "solved_bsuite": "solved (bsuite)",
        "solved_reliable": "solved (reliable)",
    }
    if "mean_return" in per_seed[0]:  # an environment that bsuite has no rule for
        names = {
            "mean_return": "return, last 100",
            "best_mean_return": "best",
            "solved_steps": "solved (steps)",
        }
    table = Table("seed", "episodes", *names.values(), box=None, header_style="bold")
    for row in per_seed:
        counts = (row[name] for name in ("episodes", *names))
        table.add_row(
            str(row["seed"]),
            *(
                "-"
                if count is None
                else f"{count:,.4g}"
                if isinstance(count, float)
                else f"{count:,}"
                for count in counts
            ),
        )
    Console().print(table)


def tell_comparisons(told: list[Any]) -> None:
    """Say how agents compare, four lines a pair."""
    for each in told:
        sides = [(each.agent, each.seeds, each.score, each.low, each.high)]
        sides.append(
            (each.other, each.other_seeds, each.other_score, each.other_low, each.other_high)
        )
        print(
            f"{each.env} after {each.steps:,} steps: return of the last 100 episodes, median over seeds (95 %)"
        )
        for agent, seeds, score, low, high in sides:
            print(f"  {agent:<16}  {score:.4g} ({low:.4g} to {high:.4g})  {seeds} seeds")
        there = (
            "is not there"
            if each.steps_to_other is None
            else f"is there for good after {each.steps_to_other:,} steps"
        )
        print(
            f"  {each.agent} is above in {each.improvement:.0%} of pairs of seeds, and {there}",
            flush=True,
        )


def tell_runs(found: list[Any]) -> None:
    """Say what there is, a line a run, and how much of each sweep."""
    from ersac.sweeps import listing

    width = max((len(row.run) for row in found), default=0)
    for row in found:
        solved = "" if row.solved is None else f"{row.solved}/{row.seeds} solved"
        where = row.env if row.depth is None else f"depth {row.depth}"
        told = "" if row.agent is None else f"{row.agent}, {where}, seeds {row.seeds}"
        print(f"{row.run:<{width}}  {told:<32}  {solved:<16}  {row.describe_state()}".rstrip())
    for sweep in listing.count_sweeps(found):
        print(
            f"sweep {sweep.sweep}: {sweep.ended} of {sweep.wanted} ended, {sweep.failed} failed ({sweep.directory})"
        )
    if not found:
        print("no runs here")


def pick_option(option: str, argv: list[str]) -> str | None:
    """The last value given to an option that decides which other options there are."""
    for number, word in reversed(list(enumerate(argv))):
        if word.startswith(option + "="):
            return word.removeprefix(option + "=")
        if word == option:
            return argv[number + 1] if number + 1 < len(argv) else ""
    return None


def parse(default: Command, program: str, whose: str, argv: list[str]) -> Command:
    """Parse options with tyro; what it cannot parse becomes one line."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            shape = (tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands)
            return tyro.cli(type(default), prog=program, default=default, args=argv, config=shape)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise SettingsError(explain(complaint.getvalue(), default, whose, argv)) from None


def explain(complaint: str, default: Any, whose: str, argv: list[str]) -> str:
    """What tyro would not take, as one line that says what it should have been."""
    hints = {config.option(path[-1], hint): hint for path, hint, _ in config.leaves(default)}
    known = [*hints, *(f"--no-{name[2:]}" for name, hint in hints.items() if hint is bool)]
    words = [
        word.split("=")[0].replace("_", "-") if word.startswith("--") else word for word in argv
    ]
    for name in words:
        if name.startswith("--") and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            return f"unknown option {name} of {whose}" + (
                f"; did you mean {close[0]}?" if close else "; --help lists them"
            )
    named = re.search(r"(?:parsing|argument) '?(--[a-z0-9-]+)", " ".join(complaint.split()))
    if named and named[1] in hints and named[1] in words:
        first, *rest = argv[words.index(named[1]) :]
        given = (
            [first.partition("=")[2]]
            if "=" in first
            else itertools.takewhile(lambda word: not word.startswith("--"), rest)
        )
        return f"{named[1]} must be {config.expected(hints[named[1]])}, not {config.shown(' '.join(given))}"
    plain = " ".join(re.sub(r"[^\x20-\x7e]+", " ", complaint).split())
    return config.cut(re.sub(r"^(.+?) (?=\1)| For full helptext.*", "", plain))
