"""The help page of a command: its most used options and an example, on one screen."""

import functools
import shutil
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tyro

from ersac import config

MOST_USED = 10  # options on a page
MAX_COLUMNS = 100
OUTPUT = ("json", "quiet", "debug")  # which every command has


class Page(NamedTuple):
    """What a help page says besides the options."""

    arguments: str
    example: str
    first: tuple[str, ...] = ()  # settings in the order of how much they are used; then the others


PAGES: dict[str, Page] = {
    "ersac train": Page(
        "ENV",
        "ersac train deep-sea --depth 30 --agent ersac-replay --seeds 4 --out runs/first",
        (
            "agent_name",
            "depth",
            "env_kwargs",
            "seeds",
            "seed",
            "steps",
            "out",
            "resume",
            "target",
            "eval_every",
            "workers",
            "envs",
            "episodes",
            "uncertainty",
            "network",
            "gamma",
        ),
    ),
    "ersac resume": Page("RUN", "ersac resume runs/first"),
    "ersac eval": Page("RUN", "ersac eval runs/first --episodes 200 --video first.mp4"),
    "ersac zoo": Page("", "ersac zoo"),
    "ersac animate": Page("RUN", "ersac animate runs/first --out first.gif"),
    "ersac sweep": Page("NAME|FILE.toml", "ersac sweep solve-time --scale smoke"),
    "ersac figure": Page("LABEL", "ersac figure f-solve_time_v_depth --scale smoke"),
    "ersac reproduce": Page("", "ersac reproduce --scale desk --records results"),
    "ersac score": Page("module:Agent", "ersac score my_agent:Agent --depth 20 --seeds 5"),
    "ersac runs": Page("[DIR]", "ersac runs runs/sweeps"),
    "ersac compare": Page("PATH [PATH ...]", "ersac compare runs/first runs/second"),
    "ersac report": Page("RUN [RUN ...]", "ersac report runs/first runs/second --out report.html"),
    "ersac watch": Page("RUN", "ersac watch runs/first"),
    "ersac export": Page("RUN [RUN ...]", "ersac export runs/first runs/second --to table.csv"),
    "ersac theory": Page("", "ersac theory --out runs/regret"),
    "ersac theory deep-sea": Page("", "ersac theory deep-sea --depth 33 --agent k-learning"),
    "ersac theory games": Page("", "ersac theory games --out runs/games"),
    "ersac doctor": Page("", "ersac doctor"),
    "ersac completion": Page("SHELL", "ersac completion bash"),
}


def help_page(default: Any, program: str) -> str:
    """The page of a command.

    default: its options; program: as in 'ersac train deep-sea'.
    """
    name = max((name for name in PAGES if program.startswith(name)), key=len)
    page = PAGES[name]
    width = min(MAX_COLUMNS, shutil.get_terminal_size().columns)
    rank = {setting: number for number, setting in enumerate(page.first)}
    options = sorted(list_options(default), key=lambda row: rank.get(row.name, len(rank)))
    rows = options[:MOST_USED]
    column = 2 + max((len(row.form) for row in rows), default=0)
    lines = [f"usage: {name} {page.arguments}".rstrip() + " [options]", ""]
    lines += [*textwrap.wrap(" ".join((type(default).__doc__ or "").split()), width), ""]
    for row in rows:
        first, *rest = textwrap.wrap(row.text, width - column - 2) or [""]
        lines += [f"  {row.form:<{column}}{first}", *(" " * (column + 2) + line for line in rest)]
    if rows:
        lines.append("")
    hidden = len(options) - len(rows)
    more = f"{hidden} more options: {program} --help-all" if hidden else "--help-all for details"
    lines += [f"also --quiet, --json, --debug; {more}", f"example: {page.example}"]
    return "\n".join(lines)


class OptionRow(NamedTuple):
    """An option on a help page."""

    name: str  # of the setting
    form: str  # as it is written, with its value
    text: str  # what it does, and its default


def list_options(default: Any) -> Iterator[OptionRow]:
    """The options of a command, except positional arguments, hidden ones and those of output."""
    for path, hint, value in config.leaves(default):
        owner: Any = type(functools.reduce(getattr, path[:-1], default))
        text = config.field_docs(owner).get(path[-1], "")
        marks = getattr(hint, "__metadata__", ())
        if path[-1] in OUTPUT or tyro.conf.Positional in marks or tyro.conf.Suppress in marks:
            continue
        option = config.option(path[-1], hint)
        if value is True:
            option = option.replace("--", "--no-", 1)
        shown = default_text(value)
        yield OptionRow(
            path[-1],
            f"{option} {value_form(hint)}".rstrip(),
            f"{text.rstrip('.')} [{shown}]" if shown else text.rstrip("."),
        )


def default_text(value: Any) -> str:
    """A default as it is written on the command line; empty where there is none."""
    if value is None or isinstance(value, bool):
        return ""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def value_form(hint: Any) -> str:
    """What stands for the value of an option."""
    match typing.get_origin(hint), typing.get_args(hint):
        case origin, words if origin is Literal:
            return "|".join(words)
        case types.UnionType | typing.Union, members:
            return value_form(next(t for t in members if t is not type(None)))
        case origin, (item_type, *_) if origin is tuple:
            return f"{value_form(item_type)} ..."
        case origin, (base, *_) if origin is typing.Annotated:
            return value_form(base)
    return {int: "N", float: "X", bool: "", Path: "PATH"}.get(hint, "NAME")
