"""The command line: settings are parsed and checked here, before jax is imported."""

import contextlib
import dataclasses
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
from typing import Annotated, Any, TypeVar

import tyro

from ersac import __version__, config, exits
from ersac.agents.presets import PRESETS
from ersac.config import SettingsError
from ersac.tabular.settings import AGENTS as TABULAR_AGENTS
from ersac.tabular.settings import TheoryDeepSea, TheoryRegret

USAGE = """usage: ersac COMMAND ...

  ersac train ENV [--depth N --agent NAME --seeds N ...]   train an agent; `ersac train deep-sea --help` lists every setting
  ersac resume RUN [--episodes N --exact ...]              go on with a run that was stopped, where it was
  ersac theory [deep-sea] [--depth N --agent NAME ...]     the paper's exact half, run and drawn
  ersac bench [--quick --json ...]                         how fast this is, beside others, as ratios
  ersac --version                                          say which version this is

environments: {environments}
agents:       {agents}
"""


@dataclass(frozen=True)
class Manner:
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

    env: config.DeepSea
    run: config.Run
    learner: config.ActorCritic
    agent: str = "ersac"
    """The agent, a named set of settings: ersac, vanilla or optimism. Defaults below are this agent's."""
    uncertainty: str = "ensemble"
    """Where sigma comes from: ensemble or counts."""
    out: Path | None = None
    """The run's directory; by default a new one under runs/."""
    resume: bool = False
    """Go on with the run in that directory if it has these settings, or start it."""
    exact: bool = False
    """Refuse to continue where versions, cores or flags have changed and the bits could differ."""
    manner: Manner = Manner()


@dataclass(frozen=True)
class ResumeCommand:
    """Go on with a run that was stopped, from its last good checkpoint; bit for bit as if it had never been."""

    run: Annotated[Path | None, tyro.conf.Positional] = None
    """The run's directory."""
    episodes: Annotated[int, config.Between(1)] | None = None
    """A larger budget of episodes than the run was given."""
    checkpoint_seconds: config.NonNegative | None = None
    """Seconds between checkpoints."""
    exact: bool = False
    """Refuse to continue where versions, cores or flags have changed and the bits could differ."""
    manner: Manner = Manner()


@dataclass(frozen=True)
class TheoryCommand:
    """The paper's exact half: Bayesian regret against its bound, the decomposition, tau*, and tabular DeepSea against depth."""

    settings: TheoryRegret = field(default_factory=TheoryRegret)
    out: Path | None = None
    """Where pictures and numbers go; by default a new directory under runs/."""
    manner: Manner = Manner()


@dataclass(frozen=True)
class TheorySeaCommand:
    """A tabular agent on DeepSea."""

    settings: TheoryDeepSea = field(default_factory=TheoryDeepSea)
    manner: Manner = Manner()


Command = TypeVar("Command", TrainCommand, ResumeCommand, TheoryCommand, TheorySeaCommand)


def main(argv: list[str] | None = None) -> None:
    """Run a command and leave with its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        code = dispatch(argv)
    except exits.EXPECTED as error:
        if "--debug" in argv:
            raise
        code = exits.code_of(error)
        print(f"ersac: {' '.join(str(error).split())}", file=sys.stderr)
    except KeyboardInterrupt:
        print("ersac: interrupted", file=sys.stderr)
        code = exits.of_signal(signal.SIGINT)
    sys.exit(code)


def dispatch(argv: list[str]) -> int:
    """Find the command."""
    commands: dict[str, Callable[[list[str]], int]] = {"train": train, "resume": resume, "theory": theory, "bench": bench}
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
    default = TrainCommand(env(), config.Run(), learner, agent, uncertainty)
    command = parse(default, f"ersac train {env_name}", f"agent {agent}", rest)
    settings = config.check(config.Train(command.env, command.agent, command.learner, command.run))

    from ersac.study import records

    stem = f"{env_name}-{settings.env.depth}-{agent}-seed{settings.run.seed}"
    out = command.out or records.place(Path("runs"), stem, settings, command.resume)
    return go(settings, out, command.resume, command.exact, command.manner)


def resume(argv: list[str]) -> int:
    """`ersac resume RUN ...`."""
    command = parse(ResumeCommand(), "ersac resume", "resume", argv)
    if command.run is None:
        raise SettingsError("which run? ersac resume RUN")

    from ersac.study import records

    changes = {"episodes": command.episodes, "checkpoint_seconds": command.checkpoint_seconds}
    given = {name: value for name, value in changes.items() if value is not None}
    settings = config.check(config.override(records.read_settings(command.run), **given))
    return go(settings, command.run, True, command.exact, command.manner)


def go(settings: config.Train, out: Path, resume: bool, exact: bool, manner: Manner) -> int:
    """Run, and say how it ended."""
    from ersac import api, display

    with exits.Watch() as watch:
        result = api.run(settings, out, display.choose(not manner.quiet), resume, exact, watch.caught)
    if not manner.quiet:
        tell(result)
    return finish(result.summary(), manner)


def theory(argv: list[str]) -> int:
    """`ersac theory ...` and `ersac theory deep-sea ...`."""
    match argv:
        case ["deep-sea", *rest]:
            return theory_deep_sea(rest)
        case [word, *_] if not word.startswith("-"):
            raise SettingsError(f"unknown subject '{word}' of theory{config.nearest(word, ['deep-sea'])}")
    command = parse(TheoryCommand(), "ersac theory", "theory", argv)
    settings = config.check(command.settings)

    from ersac.study import records

    out = command.out or records.free_name(Path("runs"), "theory")
    records.refuse_if_taken(out)

    from rich.console import Console

    from ersac.study.theory import run_regret

    numbers = run_regret(settings, out, None if command.manner.quiet else Console())
    return finish(numbers, command.manner)


def theory_deep_sea(argv: list[str]) -> int:
    """`ersac theory deep-sea ...`."""
    command = parse(TheorySeaCommand(), "ersac theory deep-sea", "theory deep-sea", argv)
    settings = config.check(command.settings)
    config.pick("agent", settings.agent, dict.fromkeys(TABULAR_AGENTS))

    from rich.console import Console

    from ersac.study.theory import run_deep_sea

    told = run_deep_sea(settings, None if command.manner.quiet else Console())
    if not command.manner.quiet:
        tell_seeds(told["per_seed"])
    return finish(told, command.manner)


def bench(argv: list[str]) -> int:
    """`ersac bench ...`: the benchmarks stand beside the package in a checkout, not in it."""
    checkout = Path(__file__).parents[2]
    if not (checkout / "benchmarks" / "__main__.py").exists():
        raise SettingsError("ersac bench needs a checkout of the project, installed with: pip install --editable '.[dev]'")
    sys.path.insert(0, str(checkout))
    return int(importlib.import_module("benchmarks").main(argv))


def finish(told: dict[str, Any], manner: Manner) -> int:
    """End with the numbers on one line, if that was asked for."""
    if manner.json:
        print(json.dumps(told), flush=True)
    return exits.OK


def tell(result: Any) -> None:
    """Say how a run ended."""
    from rich.console import Console

    tell_seeds(result.summary()["per_seed"])
    speed = f"{result.steps:,} steps at {result.steps_per_second:,.0f} steps/s, {result.compile_seconds:.1f} s compiling"
    Console().print(f"{speed}; picture: {result.directory / 'picture.png'}", highlight=False, soft_wrap=True)


def tell_seeds(per_seed: list[dict[str, Any]]) -> None:
    """Say what every seed reached, and when."""
    from rich.console import Console
    from rich.table import Table

    table = Table("seed", "episodes", "first goal", "solved (bsuite)", "solved (reliable)", box=None, header_style="bold")
    for row in per_seed:
        seed, *counts = row.values()
        table.add_row(str(seed), *("-" if count is None else f"{count:,}" for count in counts))
    Console().print(table)


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
    words = [word.split("=")[0].replace("_", "-") if word.startswith("--") else word for word in argv]
    for name in words:
        if name.startswith("--") and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            return f"unknown option {name} of {whose}" + (f"; did you mean {close[0]}?" if close else "; --help lists them")
    named = re.search(r"(?:parsing|argument) '?(--[a-z0-9-]+)", " ".join(complaint.split()))
    if named and named[1] in hints:
        first, *rest = argv[words.index(named[1]) :]
        given = [first.partition("=")[2]] if "=" in first else itertools.takewhile(lambda word: not word.startswith("--"), rest)
        return f"{named[1]} must be {config.expected(hints[named[1]])}, not '{' '.join(given)}'"
    plain = " ".join(re.sub(r"[^\x20-\x7e]+", " ", complaint).split())
    return re.sub(r"^(.+?) (?=\1)| For full helptext.*", "", plain)
