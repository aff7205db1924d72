"""`ersac completion SHELL`: a completion script, made by tyro from the options of every command."""

import contextlib
import dataclasses
import io
import keyword
from typing import Annotated, Any, Literal, cast, get_args, get_origin

import tyro

from ersac import config
from ersac.cli import commands
from ersac.cli.doctor import DoctorOptions
from ersac.cli.parsing import HELP, option_types
from ersac.cli.report import ReportOptions
from ersac.cli.reproduce import ReproduceOptions
from ersac.cli.score import ScoreOptions
from ersac.cli.sweep import FigureOptions, SweepOptions
from ersac.cli.theory import TheoryDeepSeaOptions, TheoryGamesOptions, TheoryOptions
from ersac.cli.watch import WatchOptions
from ersac.cli.zoo import AnimateOptions, ZooOptions
from ersac.config.presets import PRESETS
from ersac.theory.settings import TABULAR_AGENTS

SHELLS = ("bash", "zsh")
HOW = (
    'for bash: eval "$(ersac completion bash)" in ~/.bashrc; '
    "for zsh: ersac completion zsh > a file _ersac in $fpath"
)
PAGE = f"""usage: ersac completion {"|".join(SHELLS)}

Print a script that completes commands, options and the names of agents.
{HOW.replace("; ", chr(10))}

example: ersac completion bash"""
OPTIONS: dict[str, Any] = {
    "train": commands.TrainOptions,
    "resume": commands.ResumeOptions,
    "eval": commands.EvalOptions,
    "zoo": ZooOptions,
    "animate": AnimateOptions,
    "sweep": SweepOptions,
    "figure": FigureOptions,
    "reproduce": ReproduceOptions,
    "score": ScoreOptions,
    "runs": commands.RunsOptions,
    "compare": commands.CompareOptions,
    "report": ReportOptions,
    "watch": WatchOptions,
    "export": commands.ExportOptions,
    "theory": TheoryOptions,
    "theory deep-sea": TheoryDeepSeaOptions,
    "theory games": TheoryGamesOptions,
    "doctor": DoctorOptions,
}
WORDS: dict[str, tuple[str, ...]] = {  # values of options whose type is any text
    "--agent": tuple(PRESETS),
    "--uncertainty": tuple(config.UNCERTAINTIES),
    "--scale": ("smoke", "desk", "paper"),
    "--engine": ("local", "ray"),
}


def completion_command(argv: list[str]) -> int:
    """`ersac completion SHELL`."""
    if set(HELP) & set(argv):
        print(PAGE)
        return 0
    if argv not in [[shell] for shell in SHELLS]:
        raise config.SettingsError(f"which shell? {HOW}")
    print(completion_script(argv[0]), end="")
    return 0


def completion_script(shell: str) -> str:
    """The script that completes commands, options and the names of agents and estimators."""
    script = io.StringIO()
    with contextlib.redirect_stdout(script), contextlib.suppress(SystemExit):
        tyro.extras.subcommand_cli_from_dict(
            {name: flat_options(cls) for name, cls in OPTIONS.items()},
            prog="ersac",
            args=["--tyro-print-completion", shell],
        )
    # tyro's script counts words from 0, zsh from 1: no value of an option would be completed.
    return script.getvalue().replace('"${words[@]}" "$CURRENT"', '"${words[@]}" "$((CURRENT - 1))"')


def flat_options(cls: type) -> type:
    """A class with all options of a command, those of every environment and agent among them."""
    fields: dict[str, tuple[Any, Any]] = {}
    is_tabular = cls is TheoryDeepSeaOptions
    for name, hint in option_types(cls):
        metadata = getattr(hint, "__metadata__", ())
        if tyro.conf.Suppress in metadata or tyro.conf.Positional in metadata:
            continue
        words = TABULAR_AGENTS if name == "--agent" and is_tabular else WORDS.get(name)
        values: Any = cast(Any, Literal)[tuple(words)] if words else hint
        default: Any = False if hint is bool else None
        if get_origin(values) is Literal:
            default = get_args(values)[0]  # None would be offered as a value
        elif hint is not bool:
            values = values | None
        field = name[2:].replace("-", "_")
        if keyword.iskeyword(field):
            values = cast(Any, Annotated)[values, tyro.conf.arg(name=field)]
            field += "_"
        fields[field] = (values, default)
    return dataclasses.make_dataclass(
        cls.__name__,
        [
            (name, hint, dataclasses.field(default=default))
            for name, (hint, default) in fields.items()
        ],
    )
