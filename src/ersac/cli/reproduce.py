"""`ersac reproduce`: run what is missing, draw every figure, judge every claim, write one page."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ersac import config
from ersac.cli import commands
from ersac.cli.parsing import parse
from ersac.packages import require_package
from ersac.runs import exits


@dataclass(frozen=True)
class ReproduceOptions:
    """Redraw the paper and judge its claims, after running what is missing; resumes by itself."""

    scale: str = "smoke"
    """Size: smoke (half an hour on two cores), desk (days) or paper (as many runs as in the
    paper)."""
    records: Path | None = None
    """Use these records, of the scale or a larger one, and run nothing: a directory of sweeps or of
    their packs; `results` holds the packs that come with the source. By default runs/sweeps, where
    missing runs are run."""
    run: bool = False
    """With --records, run what is missing there."""
    network: Literal["mlp", "table"] | None = None
    """The agents' function approximation: networks (mlp) or tables. By default networks; with
    --records, tables where that directory has no networks."""
    engine: str = "local"
    """Where to run: local, or ray (needs ersac[ray])."""
    out: Path | None = None
    """Directory for the page and its figures, which are replaced; by default
    runs/reproduction-SCALE."""
    output: commands.OutputOptions = field(default_factory=commands.OutputOptions)


def reproduce_command(argv: list[str]) -> int:
    """`ersac reproduce ...`."""
    options = parse(ReproduceOptions(), "ersac reproduce", "reproduce", argv)

    from ersac.sweeps import catalogue, engines

    config.pick("scale", options.scale, dict.fromkeys(catalogue.SCALES))
    engine = engines.find_engine(options.engine)
    require_package("ersac reproduce", "jinja2", "report")

    from ersac.analysis import equations, reproduction

    runs_here = options.records is None or options.run
    root = options.records or Path("runs/sweeps")
    if not runs_here and not root.exists():
        raise config.SettingsError(f"--records {root} does not exist; --run would make it")
    reader = reproduction.Reader(root)
    networks: tuple[str, ...] = (options.network or "mlp",)
    scales: tuple[str, ...] = (options.scale,)
    if options.records is not None:
        scales = catalogue.SCALES[catalogue.SCALES.index(options.scale) :]
        networks = networks if options.network else ("mlp", "table")
    if runs_here and root.is_file():
        raise config.SettingsError(f"--run needs a directory of records, not {root}")
    if runs_here:
        run_missing(options, reader, networks, scales, engine)
    command = f"ersac reproduce --scale {options.scale}"
    command += f" --records {options.records}" if options.records else ""
    command += f" --network {options.network}" if options.network else ""
    out = options.out or Path("runs") / f"reproduction-{options.scale}"
    result = reproduction.make_reproduction(
        reader, options.scale, networks, scales, command, out, equations.find_citations()
    )
    page = reproduction.write_page(result, out)
    if not options.output.quiet:
        print_reproduction(result, page)
    return commands.print_json(result.as_json() | {"html": str(page)}, options.output)


def run_missing(
    options: ReproduceOptions,
    reader: Any,
    networks: tuple[str, ...],
    scales: tuple[str, ...],
    engine: Any,
) -> None:
    """Run the exact experiments and every sweep of which the records are not complete."""
    from ersac import display
    from ersac.analysis import claims, reproduction
    from ersac.sweeps import campaign, runner

    say = (lambda line: None) if options.output.quiet else (lambda line: print(line, flush=True))
    if claims.THEORY not in reproduction.read_theory(reader.root, options.scale):
        write_theory(reader.root, options.scale, say)
    missing = []
    for name in claims.needed_sweeps():
        source = reader.find(name, networks, scales)
        if source is None or source.ended < len(source.wanted):
            missing.append(name)
    if not missing:
        return

    from ersac import api  # imports jax

    suffix = reproduction.NETWORKS[networks[0]]
    planned = campaign.plan_sweeps(missing, options.scale, suffix, reader.root, api.run_experiment)
    for name, reason in planned.refused.items():
        display.note(f"{name} is left out: {reason}")
    if not planned.plans:
        return
    screen = display.make_sweep_display(not options.output.quiet, display.format_campaign_status)
    with exits.SignalWatcher() as watcher:
        reports = campaign.run_plans(planned.plans, engine, screen, watcher.poll)
    for title, report in reports.items():
        if report.missing or report.refused:
            reasons = report.missing | report.refused
            display.note(
                f"{len(reasons)} of {report.wanted} runs of {title} are missing; "
                f"{runner.RESUME_HINT}"
            )


def write_theory(root: Path, scale: str, say: Any) -> None:
    """Measure the exact claims and store their numbers."""
    from ersac.analysis import reproduction
    from ersac.runs import disk, seal
    from ersac.theory.checks import measure_theory  # imports jax

    numbers = measure_theory(scale, say)
    path = reproduction.theory_path(root, scale)
    disk.make_directory(path.parent)
    seal.write_sealed(path, {"command": f"ersac reproduce --scale {scale}", **numbers})


def print_reproduction(result: Any, page: Path) -> None:
    """Print the verdict of every claim, and where the page is."""
    from ersac.runs.exits import printable

    for group, rows in result.judgements.items():
        print(group)
        for row in rows:
            measured = f" ({printable(row.measured)})" if row.measured else ""
            print(f"  {row.verdict:<18}{printable(row.claim.statement)}{measured}")
    counts = ", ".join(f"{count} {verdict}" for verdict, count in result.counts().items())
    drawn = [figure for figure in result.figures if figure.file]
    print(f"{len(drawn)} of {len(result.figures)} figures drawn; claims: {counts}")
    for figure in result.figures:
        if not figure.file:
            print(printable(f"  {figure.label} is not drawn: {figure.missing}"))
    print(f"page: {printable(str(page))}", flush=True)
