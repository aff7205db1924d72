"""The commands, each a dataclass of options and a function; jax is imported after the checks."""

import importlib
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ersac import config
from ersac.cli import summaries
from ersac.cli.parsing import HELP, find_value, parse, split_positional
from ersac.config import SettingsError
from ersac.config.presets import preset
from ersac.runs import exits
from ersac.theory.settings import TABULAR_AGENTS, TheoryDeepSea, TheoryGames, TheoryRegret


@dataclass(frozen=True)
class OutputOptions:
    """What is printed."""

    json: bool = False
    """Print the results as one JSON object on the last line of standard output."""
    quiet: bool = False
    """Print no progress and no tables."""
    debug: bool = False
    """Print the traceback of an error instead of one line."""


@dataclass(frozen=True)
class TrainOptions:
    """Train an agent; its results, checkpoints and a picture go to a run directory."""

    env: config.DeepSea | config.Gymnax | config.Gym | config.Atari
    run: config.Run
    agent: config.ActorCritic | config.BootDQN
    agent_name: Annotated[str, tyro.conf.arg(name="agent")] = "ersac"
    """The agent, a named set of defaults for the options below; `ersac` lists the names."""
    uncertainty: str | None = None
    """The estimator of sigma for actor-critic agents: ensemble, posterior, counts, hashed, linear
    or rnd; by default the agent's own."""
    out: Path | None = None
    """Run directory, which must not exist yet; by default a new one under runs/."""
    resume: bool = False
    """Continue the run in --out if it has the same settings; start it if there is none."""
    exact: bool = False
    """Refuse to resume if package versions, CPU cores or XLA flags changed, which could change
    results in the last bit."""
    start: Path | None = None
    """Go on from what was learned: a file of result.save(), or a run directory; optimisers are
    new."""
    during: config.EvalDuring = config.NO_EVALUATION
    track: config.Track = config.UNTRACKED
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class ResumeOptions:
    """Continue a run from its last valid checkpoint; results are as if it had never stopped."""

    run: Annotated[Path | None, tyro.conf.Positional] = None
    """Run directory."""
    episodes: config.Episodes | None = None
    """New limit on episodes per seed, at least the run's own limit."""
    steps: config.Steps | None = None
    """New limit on environment steps per seed, at least the run's own limit."""
    checkpoint_seconds: config.Seconds | None = None
    """Seconds between checkpoints."""
    exact: bool = False
    """Refuse to resume if package versions, CPU cores or XLA flags changed, which could change
    results in the last bit."""
    during: config.EvalDuring = config.NO_EVALUATION
    track: config.Track = config.UNTRACKED
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class EvalOptions:
    """Evaluate a trained policy on whole episodes, with environment seeds not used in training."""

    run: Annotated[Path | None, tyro.conf.Positional] = None
    """Run directory, or a file written by result.save()."""
    evaluation: config.Evaluate = field(default_factory=config.Evaluate)
    seed: int | None = None
    """Which of the run's seeds to evaluate; by default its first."""
    video: Path | None = None
    """Record a few episodes to this file, .mp4 or .gif, which must not exist yet."""
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class SweepOptions:
    """Run the missing runs of a sweep; the same command starts it and continues it."""

    name: Annotated[str, tyro.conf.Positional] = ""
    """The sweep, which `ersac sweep` lists, or a TOML file of your own."""
    scale: str = "smoke"
    """Size: smoke (minutes on two cores), desk (hours) or paper (as many runs as in the paper)."""
    engine: str | None = None
    """Where to run: local, the default, or ray (needs ersac[ray])."""
    address: str | None = None
    """With --engine ray, the cluster: auto for the one that this machine is part of, or HOST:PORT;
    default: RAY_ADDRESS, or else Ray starts on this machine."""
    cores: Annotated[int, config.Range(1, 4_096)] | None = None
    """With --engine ray, cores that each run or batch reserves; by default as many as this machine
    has."""
    accelerators: Annotated[float, config.Range(0, 64)] = 0.0
    """With --engine ray, accelerators that each run or batch reserves; a fraction shares one."""
    out: Path | None = None
    """Directory of the sweep; by default runs/sweeps/NAME-SCALE, or what the file says."""
    tasks: str | None = None
    """Run only these tasks of a ladder, or games of atari57, separated by commas."""
    agents: str | None = None
    """Run only these agents of a ladder or of atari57, separated by commas."""
    pack: Path | None = None
    """Run nothing, and write all ended runs of the sweep to FILE.json and FILE.npz, which must not
    exist yet."""
    goals_only: bool = False
    """With --pack, leave out returns: DeepSea figures do not need them, `ersac compare` does."""
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class FigureOptions:
    """Draw a figure of the paper, after running whatever is missing of its sweeps."""

    label: Annotated[str, tyro.conf.Positional] = ""
    """The figure, by its label in the paper; `ersac figure` lists them."""
    scale: str = "smoke"
    """Size of the sweeps: smoke (minutes on two cores), desk (hours) or paper (as many runs as in
    the paper)."""
    network: Literal["mlp", "table"] = "mlp"
    """The agents' function approximation: networks (mlp), or a table with a row for every state."""
    engine: str = "local"
    """Where to run: local, or ray (needs ersac[ray])."""
    records: Path | None = None
    """Draw from these records and run nothing: a directory of sweeps or of their packs, or one
    pack; `results` holds the packs that come with the source. By default runs/sweeps, where missing
    runs are run."""
    run: bool = False
    """With --records, run what is missing there."""
    out: Path | None = None
    """Directory for the picture and its numbers; by default figures/ beside the first sweep."""
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class RunsOptions:
    """List the runs and sweeps below a directory, with the status of each."""

    directory: Annotated[Path, tyro.conf.Positional] = Path("runs")
    """Where to look."""
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class CompareOptions:
    """Compare the first agent of each environment with the others, after equally many steps."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Run directories, sweep directories and packs; runs of one agent in one environment are
    pooled, and one that has not ended counts up to its last checkpoint."""
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class ExportOptions:
    """Write the records of runs as one table; those of a run that has not ended up to its last
    checkpoint."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Run directories."""
    to: Path | None = None
    """The file to write, which must not exist yet: .csv, or .parquet (needs ersac[track])."""
    table: Annotated[str, tyro.conf.arg(name="what")] = "episodes"
    """One row per: episodes, metrics (training metrics by steps) or seeds (scores and settings)."""
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class TheoryOptions:
    """Tabular experiments: Bayesian regret and its bound, its decomposition, the optimal tau."""

    settings: TheoryRegret = field(default_factory=TheoryRegret)
    out: Path | None = None
    """Directory for pictures and numbers; by default a new one under runs/."""
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class TheoryDeepSeaOptions:
    """Run a tabular agent on DeepSea."""

    settings: TheoryDeepSea = field(default_factory=TheoryDeepSea)
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class TheoryGamesOptions:
    """Regret of K-learning, VBOS, UCB and Thompson sampling in games with bandit feedback."""

    settings: TheoryGames = field(default_factory=TheoryGames)
    out: Path | None = None
    """Directory for the picture and the numbers; by default a new one under runs/."""
    output: OutputOptions = OutputOptions()


def train_command(argv: list[str]) -> int:
    """`ersac train ENV ...`."""
    env_name, rest = split_positional(argv, TrainOptions)
    if env_name is None:
        if argv and not set(HELP) & set(argv):
            raise SettingsError("which environment? ersac train ENV, such as deep-sea")
        env_name, rest = "deep-sea", [*argv, "--help"]
    env = config.parse_env(env_name)
    agent_name = find_value("--agent", rest)
    agent_name = "ersac" if agent_name is None else agent_name
    uncertainty, network = find_value("--uncertainty", rest), find_value("--network", rest)
    agent = preset(agent_name, uncertainty, network, env)
    default = TrainOptions(env, config.default_run(env), agent, agent_name, uncertainty)
    options = parse(default, f"ersac train {env_name}", f"agent {agent_name}", rest)
    settings = config.resolve_schedule(
        config.check(config.Experiment(options.env, options.agent_name, options.agent, options.run))
    )

    from ersac.runs import run_dir

    depth = settings.env.depth
    task = re.sub(r"[^\w.]+", "-", env_name) if depth is None else f"{env_name}-{depth}"
    stem = f"{task}-{agent_name}-seed{settings.run.seed}"
    out = options.out or run_dir.default_directory(Path("runs"), stem, settings, options.resume)
    return run_training(settings, out, options, options.resume)


def resume_command(argv: list[str]) -> int:
    """`ersac resume RUN ...`."""
    options = parse(ResumeOptions(), "ersac resume", "resume", argv)
    if options.run is None:
        raise SettingsError("which run? ersac resume RUN")

    from ersac.runs import run_dir

    names = ("episodes", "steps", "checkpoint_seconds")
    changes = {name: getattr(options, name) for name in names}
    given = {name: value for name, value in changes.items() if value is not None}
    settings = config.check(config.override(run_dir.read_settings(options.run), **given))
    return run_training(settings, options.run, options, resume=True)


def run_training(
    settings: config.Experiment, out: Path, options: TrainOptions | ResumeOptions, resume: bool
) -> int:
    """Train until the end or a signal, and print the results."""
    from ersac import api, display

    output = options.output
    with exits.SignalWatcher() as watcher:
        result = api.run_experiment(
            settings,
            out,
            display.make_display(not output.quiet),
            resume,
            options.exact,
            watcher.poll,
            options.track,
            config.check(options.during),
            start=getattr(options, "start", None),
        )
    try:
        if not output.quiet:
            summaries.print_result(result)
        return print_json(result.summary(), output)
    except (OSError, SystemExit) as error:  # rich exits where standard output is a broken pipe
        reason = error.strerror if isinstance(error, OSError) else "broken pipe"
        exits.print_error(f"the results are in {out}, but cannot be printed: {reason}")
        return exits.IO


def eval_command(argv: list[str]) -> int:
    """`ersac eval RUN ...`."""
    options = parse(EvalOptions(), "ersac eval", "eval", argv)
    if options.run is None:
        raise SettingsError("which run? ersac eval RUN")
    evaluation, show = config.check(options).evaluation, not options.output.quiet

    from ersac.policy import video
    from ersac.runs import results, run_dir

    if options.run.is_dir():
        settings = run_dir.read_settings(options.run)
        results.index_of_seed(settings, settings.run.seed if options.seed is None else options.seed)
        video.check_video(settings.env, options.video)
    elif not options.run.exists():
        raise SettingsError(f"{options.run} is neither a run nor a file written by result.save()")

    from ersac.policy.policy import open_policy  # imports jax

    policy = open_policy(options.run, options.seed)
    if options.video is not None:
        policy.film(
            options.video, sample=evaluation.sample, eval_seed=evaluation.eval_seed, show=show
        )
    result = policy.evaluate(**vars(evaluation), show=show).as_json()
    env, agent = config.env_name(policy.settings.env), policy.settings.agent_name
    if show:
        summaries.print_evaluation(f"{agent} on {env}, seed {policy.seed}", result)
    origin = {
        "run": str(options.run),
        "env": env,
        "agent": agent,
        "seed": policy.seed,
        "episodes": evaluation.episodes,
    }
    return print_json(origin | result, options.output)


def sweep_command(argv: list[str]) -> int:
    """`ersac sweep NAME ...`."""
    from ersac.sweeps import catalogue, ladder_tasks

    options = parse(SweepOptions(), "ersac sweep", "sweep", argv)
    if options.name.endswith(".toml"):
        return grid_command(options)
    if options.name in ladder_tasks.LADDERS:
        return ladder_command(options)
    if options.name not in catalogue.SWEEPS:
        print(catalogue.list_sweeps() + ladder_tasks.list_ladders(), end="")
    if not options.name:
        return exits.OK
    if options.tasks is not None or options.agents is not None:
        raise SettingsError(
            "--tasks and --agents are options of `ersac sweep ladder` and atari57, not of"
            f" {options.name}"
        )
    engine = sweep_engine(options)
    home, wanted = plan_sweep(options.name, options.scale, options.out)
    if options.pack is not None:
        return pack_command(options, home, wanted)
    if options.goals_only:
        raise SettingsError("--goals-only needs --pack FILE")
    title = f"{options.name}-{options.scale}"
    report = finish_sweep(title, wanted, home, engine, options.output)
    print_json({"sweep": title, "out": str(home), **report._asdict()}, options.output)
    report.raise_if_incomplete(home)
    return exits.OK


def sweep_engine(options: SweepOptions, default: str = "local") -> Any:
    """The engine that the options name; SettingsError where it is unknown or not installed."""
    from ersac.sweeps import engines

    where = engines.RayOptions(options.address, options.cores, config.check(options).accelerators)
    return engines.find_engine(options.engine or default, where)


def pack_command(options: SweepOptions, home: Path, wanted: list[Any]) -> int:
    """`ersac sweep NAME --pack FILE`."""
    from ersac.analysis import pack

    assert options.pack is not None
    title = f"{options.name}-{options.scale}"
    command = f"ersac sweep {options.name} --scale {options.scale}"
    packed = pack.pack_sweep(home, title, command, wanted, options.pack, options.goals_only)
    runs, failed = len(packed.runs), len(packed.failed)
    if not options.output.quiet:
        print(f"packed {runs} runs in {options.pack}; {failed} have failed", flush=True)
    result = {"sweep": title, "pack": str(options.pack), "runs": runs, "failed": failed}
    return print_json(result, options.output)


def ladder_command(options: SweepOptions) -> int:
    """`ersac sweep ladder ...`."""
    from ersac.sweeps import ladder

    plan = ladder.plan_ladder(options.name, options.scale, options.tasks, options.agents)
    engine = sweep_engine(options)
    home = options.out or Path("runs") / "sweeps" / plan.title
    if options.pack is not None:
        return pack_command(options, home, plan.selected)
    if options.goals_only:
        raise SettingsError("--goals-only is not an option of a ladder")
    require_available(plan)
    result = run_cells(plan, home, engine, options.output)

    from ersac import display

    if plan.spec.is_atari:
        from ersac.analysis import atari_table

        table = atari_table.write_atari(plan, home, display.note)
        lines = atari_table.atari_lines(plan, result, table)
        data = atari_table.atari_json(plan, result, table)
    else:
        from ersac.analysis import ladder_table

        rows = ladder_table.write_ladder(plan, home, display.note)
        lines = ladder_table.ladder_lines(plan, result, rows)
        data = ladder_table.ladder_json(plan, result, rows)
    if not options.output.quiet:
        print("\n".join([*lines, f"records and tables: {home}"]), flush=True)
    print_json({"out": str(home), **data}, options.output)
    result.report.raise_if_incomplete(home)
    return exits.OK


def run_cells(plan: Any, home: Path, engine: Any, output: OutputOptions) -> Any:
    """Run what is missing of a ladder, and return its report."""
    from ersac import api, display
    from ersac.sweeps import ladder

    screen = display.make_sweep_display(not output.quiet)
    with exits.SignalWatcher() as watcher:
        return ladder.run_ladder(plan, home, api.run_experiment, screen, watcher.poll, engine)


def require_available(plan: Any) -> None:
    """Raise SettingsError where no selected run of a ladder can be run here, with the reason."""
    if plan.unavailable and not plan.selected:
        raise SettingsError(next(iter(plan.unavailable.values())))


def grid_command(options: SweepOptions) -> int:
    """`ersac sweep FILE.toml ...`."""
    from ersac.sweeps import grid

    for name in ("tasks", "agents", "pack"):
        if getattr(options, name) is not None:
            raise SettingsError(f"--{name} is not an option of a sweep in a file")
    sweep, given = grid.read_sweep_file(Path(options.name))
    engine = sweep_engine(options, given.get("engine", "local"))

    from ersac import api

    runs = grid.list_runs(sweep, api.make_settings)
    home = options.out or Path(given.get("out", Path("runs") / "sweeps" / Path(options.name).stem))
    with exits.SignalWatcher() as watcher:
        report = api.run_grid(runs, home, engine, not options.output.quiet, watcher.poll)
    if not options.output.quiet:
        summaries.print_grid(runs, home, report)
    print_json({"sweep": home.name, "out": str(home), **report._asdict()}, options.output)
    report.raise_if_incomplete(home)
    return exits.OK


def plan_sweep(name: str, scale: str, out: Path | None) -> tuple[Path, list[Any]]:
    """The directory of a sweep, and its runs; SettingsError for an unknown name."""
    from ersac.sweeps import catalogue

    sweep = config.pick("sweep", name, catalogue.SWEEPS)
    size = config.pick("scale", scale, sweep.sizes)
    return out or Path("runs") / "sweeps" / f"{name}-{scale}", catalogue.instances(sweep, size)


def finish_sweep(
    title: str, wanted: list[Any], home: Path, engine: Any, output: OutputOptions
) -> Any:
    """Run what is missing of a sweep, and return the runner's report."""
    from ersac import display
    from ersac.sweeps import runner

    screen = display.make_sweep_display(not output.quiet)
    with exits.SignalWatcher() as watcher:
        report = runner.run_sweep(title, wanted, home, engine, screen, watcher.poll)
    if not output.quiet:
        print(f"{report.ended} of {report.wanted} runs have ended; they are in {home}", flush=True)
    return report


def figure_command(argv: list[str]) -> int:
    """`ersac figure LABEL ...`."""
    options = parse(FigureOptions(), "ersac figure", "figure", argv)

    from ersac.analysis import atari_figures, figures, pack
    from ersac.sweeps import engines

    known = figures.FIGURES | atari_figures.ATARI_FIGURES
    if options.label not in known:
        labels = (f"  {label}" for label in known)
        print("\n".join(["usage: ersac figure LABEL --scale smoke|desk|paper", "", *labels]))
    if not options.label:
        return exits.OK
    config.pick("figure", options.label, known)
    engine = engines.find_engine(options.engine)
    if options.label in atari_figures.ATARI_FIGURES:
        return atari_figure_command(options, engine)
    suffix = "-table" if options.network == "table" else ""
    names = [name + suffix for name in figures.FIGURES[options.label].sweeps]
    runs: list[tuple[Any, Any]] = []
    parents = []
    records = options.records or Path("runs/sweeps")
    for name in names:
        title = f"{name}-{options.scale}"
        home, wanted = plan_sweep(name, options.scale, records / title)
        packed = pack.find_pack(records, title)
        if packed is None and options.records is not None and not options.run:
            require_records(records, title, wanted)
        if packed is None:
            finish_sweep(title, wanted, home, engine, options.output)
        runs += [(packed or home, instance) for instance in wanted]
        parents.append(home if packed is None else packed.path.parent)
    out = options.out or next(iter(parents), Path("runs")) / "figures"
    caption = f"ersac figure {options.label} --scale {options.scale} --network {options.network}"
    result = figures.make_figure(options.label, runs, options.scale, caption, out)
    if not options.output.quiet:
        print(f"picture: {result['picture']}", flush=True)
    return print_json(result, options.output)


def atari_figure_command(options: FigureOptions, engine: Any) -> int:
    """`ersac figure f-atari_...`: with --records from the runs that have ended there, if only some.

    All runs of the paper's scale are thousands of machine hours.
    """
    from ersac.analysis import atari_figures, pack
    from ersac.sweeps import ladder, runner

    if options.network == "table":
        raise SettingsError("--network table is for integer observations, not for Atari")
    plan = ladder.plan_ladder("atari57", options.scale)
    records = options.records or Path("runs/sweeps")
    packed, home = pack.find_pack(records, plan.title), records / plan.title
    if (records / runner.SWEEP).is_file():  # the sweep itself
        home = records
    if packed is None and (options.records is None or options.run):
        require_available(plan)
        run_cells(plan, home, engine, options.output)
    parent = home if packed is None else packed.path.parent
    caption = f"ersac figure {options.label} --scale {options.scale}"
    result = atari_figures.make_atari_figure(
        options.label, plan, packed or home, caption, options.out or parent / "figures"
    )
    if not options.output.quiet:
        print(f"picture: {result['picture']}", flush=True)
    return print_json(result, options.output)


def require_records(records: Path, title: str, wanted: list[Any]) -> None:
    """Raise SettingsError unless all runs of a sweep are in its directory."""
    from ersac.sweeps import runner

    home = records / title
    missing = [run for run in wanted if not runner.is_finished(home, run)]
    if not missing:
        return
    steps = sum(config.step_budget(run.settings) or 0 for run in missing)
    what = f"{len(missing)} of {len(wanted)} runs of {title}" if home.exists() else title
    source = "" if home.exists() else "; the packs in results/ come with the source"
    raise SettingsError(
        f"{records} has no records of {what}{source}; --run would run them, up to {steps:,} steps"
    )


def runs_command(argv: list[str]) -> int:
    """`ersac runs [DIR]`."""
    options = parse(RunsOptions(), "ersac runs", "runs", argv)

    from rich.console import Console
    from rich.markup import escape

    from ersac.runs.exits import printable
    from ersac.sweeps import listing

    title = escape(printable(f"reading {options.directory}"))
    with Console(stderr=True, quiet=options.output.quiet).status(title) as status:
        rows = []
        for row in listing.find_runs(options.directory):
            rows.append(row)
            status.update(f"{title}: {len(rows):,} runs")
    if not options.output.quiet:
        summaries.print_runs(rows)
    return print_json(listing.listing_json(rows), options.output)


def compare_command(argv: list[str]) -> int:
    """`ersac compare PATH [PATH ...]`."""
    options = parse(CompareOptions(), "ersac compare", "compare", argv)
    if not options.runs:
        raise SettingsError("which runs? ersac compare PATH [PATH ...]")

    from ersac import display
    from ersac.analysis import compare

    comparisons = compare.compare_runs(options.runs, display.note)
    if not options.output.quiet:
        summaries.print_comparisons(comparisons)
    return print_json(compare.comparisons_json(comparisons), options.output)


def export_command(argv: list[str]) -> int:
    """`ersac export RUN [RUN ...] --to FILE`."""
    options = parse(ExportOptions(), "ersac export", "export", argv)
    if not options.runs or options.to is None:
        raise SettingsError("which runs, and where to? ersac export RUN [RUN ...] --to FILE.csv")

    from ersac import display
    from ersac.analysis.export import export_runs

    say = (lambda line: None) if options.output.quiet else (lambda line: print(line, flush=True))
    result = export_runs(options.runs, options.to, options.table, display.note, say)
    return print_json(result, options.output)


def theory_command(argv: list[str]) -> int:
    """`ersac theory ...`, `ersac theory deep-sea ...` and `ersac theory games ...`."""
    subjects = {
        "deep-sea": (TheoryDeepSeaOptions, theory_deep_sea_command),
        "games": (TheoryGamesOptions, theory_games_command),
    }
    for subject, (options_cls, command) in subjects.items():
        word, rest = split_positional(argv, options_cls)
        if word == subject:
            return command(rest)
    if argv and not argv[0].startswith("-"):
        raise SettingsError(
            f"unknown subject '{argv[0]}' of theory{config.suggest(argv[0], list(subjects))}"
        )
    options = parse(TheoryOptions(), "ersac theory", "theory", argv)
    settings = config.check(options.settings)

    from ersac.runs import run_dir

    out = options.out or run_dir.free_name(Path("runs"), "theory")
    run_dir.require_unused(out)

    from rich.console import Console

    from ersac.theory.experiments import run_regret

    result = run_regret(settings, out, None if options.output.quiet else Console())
    return print_json(result, options.output)


def theory_deep_sea_command(argv: list[str]) -> int:
    """`ersac theory deep-sea ...`."""
    options = parse(TheoryDeepSeaOptions(), "ersac theory deep-sea", "theory deep-sea", argv)
    settings = config.check(options.settings)
    config.pick("agent", settings.agent, dict.fromkeys(TABULAR_AGENTS))

    from rich.console import Console

    from ersac.theory.experiments import run_deep_sea

    result = run_deep_sea(settings, None if options.output.quiet else Console())
    if not options.output.quiet:
        summaries.print_seeds(result["per_seed"])
    return print_json(result, options.output)


def theory_games_command(argv: list[str]) -> int:
    """`ersac theory games ...`."""
    options = parse(TheoryGamesOptions(), "ersac theory games", "theory games", argv)
    settings = config.check(options.settings)

    from ersac.runs import run_dir

    out = options.out or run_dir.free_name(Path("runs"), "theory-games")
    run_dir.require_unused(out)

    from rich.console import Console

    from ersac.theory.game_experiments import run_games

    result = run_games(settings, out, None if options.output.quiet else Console())
    return print_json(result, options.output)


def bench_command(argv: list[str]) -> int:
    """`ersac bench ...`: the benchmarks are part of a checkout, not of the package."""
    checkout = Path(__file__).parents[3]
    if not (checkout / "benchmarks" / "__main__.py").exists():
        raise SettingsError(
            "ersac bench needs a checkout of the project, installed with: "
            "pip install --editable '.[dev]'"
        )
    sys.path.insert(0, str(checkout))
    return int(importlib.import_module("benchmarks").main(argv))


def print_json(result: dict[str, Any], output: OutputOptions) -> int:
    """Print the results on one line if --json was given; returns exit code 0."""
    if output.json:
        print(json.dumps(result), flush=True)
    return exits.OK
