"""`ersac watch`: the progress of a run that goes on in another process."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from ersac import config
from ersac.cli.commands import OutputOptions, print_json
from ersac.cli.parsing import parse
from ersac.config import Experiment, SettingsError
from ersac.runs.exits import IO, OK, printable


@dataclass(frozen=True)
class WatchOptions:
    """Show the progress of a run that goes on in another process, until the run ends; what is shown
    is its last checkpoint, and its age."""

    run: Annotated[Path | None, tyro.conf.Positional] = None
    """Run directory."""
    once: bool = False
    """Show the present state and end."""
    every: Annotated[float, config.Range(0.1, 3600)] = 2.0
    """Seconds between two looks at the run."""
    output: OutputOptions = field(default_factory=OutputOptions)


class RunView(NamedTuple):
    """What a run has left on disk."""

    state: str  # ended, stopped, running, failed or damaged
    why: str  # the reason of the state, or the process that runs it
    status: Any = None  # display.Status at the last checkpoint; None before the first
    checkpoint: str = ""  # the newest one: it changes when there is another
    age: float | None = None  # seconds since it was written
    steps: int | None = None  # of each seed
    episodes: int | None = None  # of the seed that has ended fewest
    result: Any = None  # of a run that has ended


def watch_command(argv: list[str]) -> int:
    """`ersac watch RUN`."""
    options = parse(WatchOptions(), "ersac watch", "watch", argv)
    config.check(options)
    if options.run is None:
        raise SettingsError("which run? ersac watch RUN")

    from ersac.runs import run_dir
    from ersac.sweeps.listing import DAMAGED, FAILED

    settings = run_dir.read_settings(options.run)
    view = follow_run(options.run, settings, options)
    if not options.output.quiet:
        print_view(options.run, view)
    code = print_json(view_json(options.run, view), options.output)
    return code or (IO if view.state in (FAILED, DAMAGED) else OK)


def follow_run(directory: Path, settings: Experiment, options: WatchOptions) -> RunView:
    """Show the progress of a run until it ends or stops; return its state then.

    A terminal shows the age of the checkpoint too; elsewhere every checkpoint is one line.
    """
    from rich.console import Console

    from ersac import display
    from ersac.runs.run_dir import RUNNING

    view, show = look_at_run(directory, settings, RunView("", "")), not options.output.quiet
    if options.once or view.state != RUNNING:
        return view
    if show:
        print_view(directory, view)
    console, screen, shown = Console(), None, view.checkpoint
    try:
        while view.state == RUNNING:
            if view.status is not None and (console.is_terminal or view.checkpoint != shown):
                screen = screen or display.make_display(show, console)
                screen.show(view.status._replace(note=describe_age(view)))
                shown = view.checkpoint
            time.sleep(options.every)
            view = look_at_run(directory, settings, view)
    finally:
        if screen is not None:
            screen.close()
    return view


def describe_age(view: RunView) -> str:
    """Return how old the numbers of a run are."""
    from ersac import display

    if view.status is None or view.age is None:
        return "it has written no checkpoint yet"
    return f"its checkpoint of {display.format_duration(view.age)} ago"


def look_at_run(directory: Path, settings: Experiment, before: RunView) -> RunView:
    """Return the state of a run; a checkpoint that was read before is not read again."""
    from ersac.runs.run_dir import ENDED, RUNNING, STOPPED
    from ersac.sweeps import listing

    row = listing.run_row(directory)
    view = RunView(row.state, row.why)
    if row.state == ENDED:
        from ersac.runs.results import read_result

        return view._replace(result=read_result(directory))
    if row.state not in (RUNNING, STOPPED):
        return view
    name, written = newest_checkpoint(directory)
    if written is None:
        return view
    view = view._replace(checkpoint=name, age=max(0.0, time.time() - written))
    if name == before.checkpoint and before.status is not None:
        fields = ("status", "steps", "episodes")
        return view._replace(**{field: getattr(before, field) for field in fields})
    return _read_checkpoint(directory, settings, view)


def _read_checkpoint(directory: Path, settings: Experiment, view: RunView) -> RunView:
    """Return the view with the progress at the last intact checkpoint, if there is one."""
    from ersac.runs.latest import read_latest  # imports jax

    try:
        found = read_latest(directory, settings, lambda line: None)
    except (SettingsError, OSError) as error:
        return view._replace(why=f"{view.why}; {error}", age=None)
    recorder, seconds = found.recorder, max(found.timings.running, 1e-9)
    return view._replace(
        status=recorder.status(seconds),
        steps=recorder.steps_per_seed,
        episodes=int(recorder.episodes.min()),
    )


def newest_checkpoint(directory: Path) -> tuple[str, float | None]:
    """Return the name of the newest file of the checkpoints, and when it was written."""
    from ersac.runs import disk
    from ersac.runs.run_dir import CHECKPOINTS

    times: list[tuple[float, str]] = []
    for name in disk.names(directory / CHECKPOINTS):
        try:
            times.append(((directory / CHECKPOINTS / name).stat().st_mtime, name))
        except OSError:  # it was replaced by a newer one
            continue
    if not times:
        return "", None
    written, name = max(times)
    return f"{name} {written}", written


def print_view(directory: Path, view: RunView) -> None:
    """Print the state of a run, its progress, and what can be done about it."""
    from ersac import display
    from ersac.cli import summaries

    if view.result is not None:
        print(printable(f"{directory} has ended"), flush=True)
        summaries.print_result(view.result)
        return
    if view.status is not None:
        print(printable(display.format_status(view.status)))
    print(printable(describe_view(directory, view)), flush=True)


def describe_view(directory: Path, view: RunView) -> str:
    """Return the state of a run that has not ended, and what can be done about it."""
    from ersac.runs import run_dir

    match view.state:
        case run_dir.RUNNING:
            return f"{directory} is under way ({view.why}): {describe_age(view)}"
        case run_dir.STOPPED:
            hint = run_dir.how_to_resume(directory)
            return f"{directory} was stopped: {describe_age(view)}; resume with: {hint}"
    return f"{directory} is {view.state}: {view.why}"


def view_json(directory: Path, view: RunView) -> dict[str, Any]:
    """Return what `ersac watch --json` prints."""
    from ersac.runs import run_dir

    resume = run_dir.how_to_resume(directory) if view.state == run_dir.STOPPED else None
    out = {
        "run": str(directory),
        "state": view.state,
        "why": view.why,
        "steps": view.steps,
        "episodes": view.episodes,
        "checkpoint_age_seconds": view.age,
        "resume": resume,
    }
    return out if view.result is None else out | {"summary": view.result.summary()}
