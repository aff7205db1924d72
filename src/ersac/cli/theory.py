"""`ersac theory`: tabular experiments."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ersac import config
from ersac.cli import summaries
from ersac.cli.commands import OutputOptions, print_json
from ersac.cli.parsing import parse, split_positional
from ersac.config import SettingsError
from ersac.theory.settings import TABULAR_AGENTS, TheoryDeepSea, TheoryGames, TheoryRegret

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class TheoryOptions:
    """Tabular experiments: Bayesian regret and its bound, its decomposition, the optimal tau."""

    settings: TheoryRegret = field(default_factory=TheoryRegret)
    out: Path | None = None
    """Directory for pictures and numbers; by default a new one under runs/."""
    output: OutputOptions = field(default_factory=OutputOptions)


@dataclass(frozen=True)
class TheoryDeepSeaOptions:
    """Run a tabular agent on DeepSea."""

    settings: TheoryDeepSea = field(default_factory=TheoryDeepSea)
    output: OutputOptions = field(default_factory=OutputOptions)


@dataclass(frozen=True)
class TheoryGamesOptions:
    """Regret of K-learning, VBOS, UCB and Thompson sampling in games with bandit feedback."""

    settings: TheoryGames = field(default_factory=TheoryGames)
    out: Path | None = None
    """Directory for the picture and the numbers; by default a new one under runs/."""
    output: OutputOptions = field(default_factory=OutputOptions)


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
    settings, out = config.check(options.settings), unused_directory(options.out, "theory")

    from ersac.theory.experiments import run_regret

    result = run_regret(settings, out, make_console(options.output))
    return print_json(result, options.output)


def theory_deep_sea_command(argv: list[str]) -> int:
    """`ersac theory deep-sea ...`."""
    options = parse(TheoryDeepSeaOptions(), "ersac theory deep-sea", "theory deep-sea", argv)
    settings = config.check(options.settings)
    config.pick("agent", settings.agent, dict.fromkeys(TABULAR_AGENTS))

    from ersac.theory.experiments import run_deep_sea

    result = run_deep_sea(settings, make_console(options.output))
    if not options.output.quiet:
        summaries.print_seeds(result["per_seed"])
    return print_json(result, options.output)


def theory_games_command(argv: list[str]) -> int:
    """`ersac theory games ...`."""
    options = parse(TheoryGamesOptions(), "ersac theory games", "theory games", argv)
    settings, out = config.check(options.settings), unused_directory(options.out, "theory-games")

    from ersac.theory.game_experiments import run_games

    result = run_games(settings, out, make_console(options.output))
    return print_json(result, options.output)


def unused_directory(out: Path | None, stem: str) -> Path:
    """The directory of an experiment, by default a new one; SettingsError if it holds something."""
    from ersac.runs import run_dir

    out = out or run_dir.free_name(Path("runs"), stem)
    run_dir.require_unused(out)
    return out


def make_console(output: OutputOptions) -> "Console | None":
    """The console for progress and tables; None with --quiet."""
    from rich.console import Console

    return None if output.quiet else Console()
