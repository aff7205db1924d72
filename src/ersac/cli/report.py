"""`ersac report`: one page that shows runs, as a file or from a server on this machine."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from ersac import config
from ersac.cli.commands import OutputOptions, print_json
from ersac.cli.parsing import parse
from ersac.config import SettingsError


@dataclass(frozen=True)
class ReportOptions:
    """Write one HTML file with the tables, learning curves, maps and videos of runs; it opens from
    disk and requests nothing from the network."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Run directories, directories that hold runs, sweep directories and packs; runs that have not
    ended count up to their last checkpoint, and damaged ones are listed as such."""
    out: Path | None = None
    """The file to write, which must not exist yet."""
    serve: bool = False
    """Show the page on 127.0.0.1 and follow the runs while they go on, until Ctrl-C."""
    port: Annotated[int, config.Range(0, 65535)] = 8765
    """Port of --serve; 0 takes one that is free."""
    output: OutputOptions = field(default_factory=OutputOptions)


def report_command(argv: list[str]) -> int:
    """`ersac report RUN [RUN ...] --out FILE.html`."""
    options = parse(ReportOptions(), "ersac report", "report", argv)
    config.check(options)
    if not options.runs or (options.out is None and not options.serve):
        usage = "ersac report RUN [RUN ...] --out report.html, or --serve"
        raise SettingsError(f"which runs, and where to? {usage}")

    from ersac.report import page
    from ersac.report.collect import collect_runs, run_reader
    from ersac.runs import disk

    page.require_report_packages()
    if options.out is not None:
        disk.require_new(options.out)
    read = run_reader()
    collect = lambda: collect_runs(options.runs, read)
    result: dict[str, Any] = {}
    if options.out is not None:
        result = page.write_report(collect(), options.out)
        if not options.output.quiet:
            runs = "1 run" if result["runs"] == 1 else f"{result['runs']:,} runs"
            print(f"{runs} in {options.out}", flush=True)
    if options.serve:
        return serve_report(collect, options, result)
    return print_json(result, options.output)


def serve_report(
    collect: Callable[[], list[Any]], options: ReportOptions, result: dict[str, Any]
) -> int:
    """Serve a report until the process is interrupted."""
    from ersac.report.server import ADDRESS, make_server

    runs = collect()  # what is wrong with the paths is said before anything is served
    with make_server(collect, options.port) as server:
        url = f"http://{ADDRESS}:{server.server_port}/"
        if not options.output.quiet:
            print(f"{len(runs):,} runs on {url} until Ctrl-C", flush=True)
        if options.output.json:
            print(json.dumps({**result, "runs": len(runs), "url": url}), flush=True)
        server.serve_forever(poll_interval=0.2)
    return 0
