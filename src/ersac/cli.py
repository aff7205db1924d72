"""The command line: settings are parsed and checked here, before jax is imported."""

import contextlib
import dataclasses
import difflib
import io
import itertools
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from ersac import __version__, config
from ersac.agents.presets import PRESETS
from ersac.config import SettingsError

EXIT_SETTINGS, EXIT_IO, EXIT_INTERRUPTED = 2, 74, 130
USAGE = """usage: ersac COMMAND ...

  ersac train ENV [--depth N --agent NAME --seeds N ...]   train an agent; `ersac train deep-sea --help` lists every setting
  ersac --version                                          say which version this is

environments: {environments}
agents:       {agents}
"""


@dataclass(frozen=True)
class TrainCommand:
    """Train an agent, show how it goes, and leave a run directory with a picture."""

    env: config.DeepSea
    run: config.Run
    learner: config.ActorCritic
    agent: str = "ersac"
    """The agent, a named set of settings: ersac, vanilla or optimism. Defaults below are this agent's."""
    uncertainty: str = "ensemble"
    """Where sigma comes from: ensemble or counts."""
    out: Path | None = None
    """The run's directory; by default a new one under runs/."""
    json: bool = False
    """End with one JSON object on the last line of standard output."""
    quiet: bool = False
    """Show no progress."""
    debug: bool = False
    """Show the traceback of an error."""


def main(argv: list[str] | None = None) -> None:
    """Run a command and leave with its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        code = dispatch(argv)
    except (SettingsError, OSError) as error:
        if "--debug" in argv:
            raise
        code = EXIT_SETTINGS if isinstance(error, SettingsError) else EXIT_IO
        print(f"ersac: {' '.join(str(error).split())}", file=sys.stderr)
    except KeyboardInterrupt:
        print("ersac: interrupted", file=sys.stderr)
        code = EXIT_INTERRUPTED
    sys.exit(code)


def dispatch(argv: list[str]) -> int:
    """Find the command."""
    commands: dict[str, Callable[[list[str]], int]] = {"train": train}
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


def train(argv: list[str]) -> int:
    """`ersac train ENV ...`."""
    env_name, *rest = argv
    env = config.pick("environment", env_name, config.ENVIRONMENTS)
    agent = chosen("--agent", rest, "ersac")
    learner = config.pick("agent", agent, PRESETS)
    uncertainty = chosen("--uncertainty", rest, kind_of(learner.uncertainty))
    if uncertainty != kind_of(learner.uncertainty):
        learner = dataclasses.replace(learner, uncertainty=config.pick("uncertainty", uncertainty, config.UNCERTAINTIES)())
    command = parse(TrainCommand(env(), config.Run(), learner, agent, uncertainty), f"ersac train {env_name}", rest)
    settings = config.check(config.Train(command.env, command.agent, command.learner, command.run))

    from ersac.study import records

    stem = f"{env_name}-{settings.env.depth}-{agent}-seed{settings.run.seed}"
    out = command.out or records.free_name(Path("runs"), stem)
    records.claim(out)

    from ersac import api, display

    result = api.run(settings, out, display.choose(not command.quiet))
    if not command.quiet:
        tell(result)
    if command.json:
        print(json.dumps(result.summary()), flush=True)
    return 0


def tell(result: Any) -> None:
    """Say how a run ended."""
    from rich.console import Console
    from rich.table import Table

    table = Table("seed", "episodes", "first goal", "solved (bsuite)", "solved (reliable)", box=None, header_style="bold")
    for row in result.summary()["per_seed"]:
        seed, *counts = row.values()
        table.add_row(str(seed), *("-" if count is None else f"{count:,}" for count in counts))
    console = Console()
    console.print(table)
    speed = f"{result.steps:,} steps at {result.steps_per_second:,.0f} steps/s, {result.compile_seconds:.1f} s compiling"
    console.print(f"{speed}; picture: {result.directory / 'picture.png'}", highlight=False, soft_wrap=True)


def kind_of(settings: Any) -> str:
    """The name under which a part is chosen on the command line."""
    return next(name for name, kind in config.UNCERTAINTIES.items() if isinstance(settings, kind))


def chosen(option: str, argv: list[str], default: str) -> str:
    """The last value given to an option that decides which other options there are."""
    for number, word in reversed(list(enumerate(argv))):
        if word.startswith(option + "="):
            return word.removeprefix(option + "=")
        if word == option:
            return argv[number + 1] if number + 1 < len(argv) else ""
    return default


def parse(default: TrainCommand, program: str, argv: list[str]) -> TrainCommand:
    """Parse options with tyro; what it cannot parse becomes one line."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(
                Annotated[TrainCommand, tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands], prog=program, default=default, args=argv
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise SettingsError(explain(complaint.getvalue(), default, argv)) from None


def explain(complaint: str, default: TrainCommand, argv: list[str]) -> str:
    """What tyro would not take, as one line that says what it should have been."""
    hints = {config.option(path[-1], hint): hint for path, hint, _ in config.leaves(default)}
    known = [*hints, *(f"--no-{name[2:]}" for name, hint in hints.items() if hint is bool)]
    words = [word.split("=")[0].replace("_", "-") if word.startswith("--") else word for word in argv]
    for name in words:
        if name.startswith("--") and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            return f"unknown option {name} of agent {default.agent}" + (f"; did you mean {close[0]}?" if close else "; --help lists them")
    named = re.search(r"(?:parsing|argument) '?(--[a-z0-9-]+)", " ".join(complaint.split()))
    if named and named[1] in hints:
        first, *rest = argv[words.index(named[1]) :]
        given = [first.partition("=")[2]] if "=" in first else itertools.takewhile(lambda word: not word.startswith("--"), rest)
        return f"{named[1]} must be {config.expected(hints[named[1]])}, not '{' '.join(given)}'"
    plain = " ".join(re.sub(r"[^\x20-\x7e]+", " ", complaint).split())
    return re.sub(r"^(.+?) (?=\1)| For full helptext.*", "", plain)
