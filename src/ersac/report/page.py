"""The page of a report: one HTML file with everything in it, made by a template."""

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from ersac import __version__
from ersac.packages import require_package
from ersac.report import curves, tables
from ersac.report.collect import VIDEOS, ReportRun
from ersac.report.tables import AgentGroup
from ersac.runs import disk

MAX_VIDEO = 2_000_000  # bytes of a video that is embedded
VIDEO_BYTES = 3_000_000  # of all videos of a page


def require_report_packages() -> None:
    """Raise SettingsError where the packages of reports are missing."""
    for package in ("plotly", "jinja2"):
        require_package("ersac report", package, "report")


def page_data(runs: Sequence[ReportRun], groups: Sequence[AgentGroup]) -> dict[str, Any]:
    """Return what the scripts of the page draw: curves by agent, and maps."""
    encoded = curves.encode_groups(runs, [group.members for group in groups])
    return {
        "groups": [
            {"env": group.env, "label": group.label, **parts}
            for group, parts in zip(groups, encoded, strict=True)
        ],
        "maps": choose_maps(runs, groups),
    }


def choose_maps(runs: Sequence[ReportRun], groups: Sequence[AgentGroup]) -> list[dict[str, Any]]:
    """Return the maps of as many runs as a page can hold: first one of every agent."""
    ranks = {
        index: (rank, number)
        for number, group in enumerate(groups)
        for rank, index in enumerate(group.members)
    }
    labels = {index: group.label for group in groups for index in group.members}
    chosen: list[int] = []
    size = 0
    for index in sorted(ranks, key=lambda index: ranks[index]):
        snapshots = runs[index].map_snapshots
        if not snapshots:
            continue
        size += curves.map_bytes(snapshots)
        if chosen and size > curves.MAP_BYTES:
            break
        chosen.append(index)
    return [
        {
            "run": runs[index].name,
            "label": labels[index],
            **curves.encode_map_frames(runs[index].map_snapshots),
        }
        for index in sorted(chosen)
    ]


def embed_videos(runs: Sequence[ReportRun]) -> list[dict[str, Any]]:
    """Return the videos of runs: the small ones as data, of the others the path and the size."""
    shown: list[dict[str, Any]] = []
    total = 0
    for run in runs:
        for path in run.videos:
            size = path.stat().st_size
            video = {"run": run.name, "path": str(path), "megabytes": f"{size / 1e6:.1f}"}
            if size <= MAX_VIDEO and total + size <= VIDEO_BYTES:
                total += size
                data = base64.b64encode(disk.read(path, MAX_VIDEO)).decode()
                media_type = VIDEOS[path.suffix]
                video |= {"type": media_type, "source": f"data:{media_type};base64,{data}"}
            shown.append(video)
    return shown


def make_environment() -> Any:
    """Return the template engine: every value is escaped unless it is one of our own files."""
    import jinja2

    loader = jinja2.PackageLoader("ersac.report")
    engine = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    engine.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return engine


def render_tables(runs: Sequence[ReportRun], groups: Sequence[AgentGroup]) -> dict[str, str]:
    """Return the parts of the page that are tables, as HTML: above and below the curves."""
    states = [run.state for run in runs]
    reached = tables.score_runs(runs)
    values = {
        "run_columns": tables.RUN_COLUMNS,
        "agent_columns": tables.AGENT_COLUMNS,
        "agents": [tables.agent_row_cells(group, runs, reached) for group in groups],
        "rows": tables.table_rows(runs, groups, reached),
        "states": {state: states.count(state) for state in dict.fromkeys(states)},
        "settings": tables.settings_table(runs),
        "videos": embed_videos(runs),
        "runs_with_maps": sum(bool(run.map_snapshots) for run in runs),
        "created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": __version__,
    }
    engine = make_environment()
    return {
        name: engine.get_template(f"{name}.html").render(values) for name in ("overview", "details")
    }


def report_content(runs: Sequence[ReportRun]) -> dict[str, Any]:
    """Return everything on the page that changes with the runs."""
    groups = tables.group_runs(runs)
    return {"tables": render_tables(runs, groups), "data": page_data(runs, groups)}


def render_report(runs: Sequence[ReportRun], title: str, live_seconds: float = 0.0) -> str:
    """Return the page of a report.

    live_seconds: between two requests for new content, of the server that the page came from; 0:
    the page is a file and requests nothing.
    """
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    plotly, script = Markup(get_plotlyjs()), read_template("report.js")
    content = report_content(runs)
    return (
        make_environment()
        .get_template("report.html")
        .render(
            title=title,
            style=read_template("report.css"),
            plotly=plotly,
            script=script,
            script_hashes=[script_hash(plotly), script_hash(script)],
            # Which a template escaped.
            tables={name: Markup(text) for name, text in content["tables"].items()},
            data=content["data"],
            live_seconds=live_seconds,
        )
    )


def read_template(name: str) -> Any:
    """Return one of our own files as it is."""
    from markupsafe import Markup

    return Markup((resources.files("ersac.report") / "templates" / name).read_text("utf-8"))


def script_hash(script: str) -> str:
    """Return the hash by which the page's policy allows a script; no other script runs."""
    return base64.b64encode(hashlib.sha256(str(script).encode()).digest()).decode()


def write_report(runs: Sequence[ReportRun], out: Path) -> dict[str, Any]:
    """Write the page of a report to a new file; returns what `ersac report --json` prints."""
    data = render_report(runs, page_title(runs)).encode()
    disk.make_directory(out.parent)
    disk.write(out, data)
    states = [run.state for run in runs]
    return {
        "out": str(out),
        "bytes": len(data),
        "runs": len(runs),
        **{state: states.count(state) for state in dict.fromkeys(states)},
    }


def page_title(runs: Sequence[ReportRun]) -> str:
    """Return the title of a report: its run, or how many there are."""
    return runs[0].name if len(runs) == 1 else f"{len(runs):,} runs"


def encode_content(runs: Sequence[ReportRun]) -> bytes:
    """Return the content of a page as JSON, for a page that asks for news."""
    return json.dumps(report_content(runs), allow_nan=False).encode()
