"""`ersac sweep` runs what is missing of a sweep; `ersac figure` draws a figure from sweeps."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ersac import config
from ersac.cli import summaries
from ersac.cli.commands import OutputOptions, print_json
from ersac.cli.parsing import parse
from ersac.config import SettingsError
from ersac.runs import exits


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
    output: OutputOptions = field(default_factory=OutputOptions)


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
    output: OutputOptions = field(default_factory=OutputOptions)


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
    return print_figure(result, options.output)


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
    return print_figure(result, options.output)


def print_figure(result: dict[str, Any], output: OutputOptions) -> int:
    """Print where a figure is; returns exit code 0."""
    if not output.quiet:
        print(f"picture: {result['picture']}", flush=True)
    return print_json(result, output)


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
