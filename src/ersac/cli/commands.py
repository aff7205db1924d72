"""Commands of runs, each a dataclass of options and a function; jax is imported after checks."""

import importlib
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from ersac import config
from ersac.cli import summaries
from ersac.cli.parsing import HELP, find_value, parse, split_positional
from ersac.config import SettingsError
from ersac.config.presets import preset
from ersac.runs import exits


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
    """Run directory, a file written by result.save(), or zoo:NAME (`ersac zoo` lists them)."""
    evaluation: config.Evaluate = field(default_factory=config.Evaluate)
    seed: int | None = None
    """Which of the run's seeds to evaluate; by default its first."""
    video: Path | None = None
    """Record a few episodes to this file, .mp4 or .gif, which must not exist yet."""
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

    from ersac.policy import video, zoo
    from ersac.runs import results, run_dir

    if options.run.is_dir():
        settings = run_dir.read_settings(options.run)
        results.index_of_seed(settings, settings.run.seed if options.seed is None else options.seed)
        video.check_video(settings.env, options.video)
    elif not zoo.zoo_file(options.run).exists():
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
