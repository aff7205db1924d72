"""Options parsed by tyro; its error messages become one line."""

import contextlib
import dataclasses
import io
import itertools
import math
import re
import typing
from collections.abc import Iterator
from typing import Any, TypeVar

import tyro

from ersac import config
from ersac.cli.help import help_page
from ersac.config import SettingsError

Options = TypeVar("Options")
HELP = ("-h", "--help", "--help-all")


def parse(default: Options, program: str, subject: str, argv: list[str]) -> Options:
    """The options in `argv`, the others as in `default`; SettingsError if tyro rejects them.

    program: as in 'ersac train'; subject: whose options these are, as it reads in an error.
    `--help` prints a page and `--help-all` every option; both exit.
    """
    if set(HELP[:2]) & set(argv):
        print(help_page(default, program))
        raise SystemExit(0)
    argv = ["--help"] if "--help-all" in argv else argv
    complaint = io.StringIO()
    argv = expand_exponents(argv, default)
    try:
        with contextlib.redirect_stderr(complaint):
            shape = (tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands)
            return tyro.cli(type(default), prog=program, default=default, args=argv, config=shape)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise SettingsError(explain(complaint.getvalue(), default, subject, argv)) from None


def expand_exponents(argv: list[str], default: Any) -> list[str]:
    """The arguments with 1e5 as 100000 where an option takes a whole number, as Python accepts."""
    whole = {
        config.option(path[-1], hint)
        for path, hint, _ in config.leaves(default)
        if config.describe(hint).startswith("a whole number")
    }

    def expand(name: str, value: str) -> str:
        is_power = re.fullmatch(r"\d+\.?\d*[eE]\+?\d+", value)
        number = float(value) if is_power and name.replace("_", "-") in whole else math.inf
        return f"{number:.0f}" if number < 1e15 and number.is_integer() else value

    expanded = [expand(before, word) for before, word in itertools.pairwise(["", *argv])]
    return [
        f"{word.partition('=')[0]}={expand(*word.split('=', 1))}" if "=" in word else word
        for word in expanded
    ]


def explain(complaint: str, default: Any, subject: str, argv: list[str]) -> str:
    """One line that says which option tyro rejected, and what it takes."""
    hints = {config.option(path[-1], hint): hint for path, hint, _ in config.leaves(default)}
    known = [*hints, *(f"--no-{name[2:]}" for name, hint in hints.items() if hint is bool)]
    words = [
        word.split("=")[0].replace("_", "-") if word.startswith("--") else word for word in argv
    ]
    for name in words:
        if name.startswith("--") and name not in known:
            where = config.suggest(name, known, "--help-all")
            return f"unknown option {name} of {subject}{where}"
    found = re.search(r"(?:parsing|argument) '?(--[a-z0-9-]+)", " ".join(complaint.split()))
    if found and found[1] in hints and found[1] in words:
        first, *rest = argv[words.index(found[1]) :]
        given = (
            [first.partition("=")[2]]
            if "=" in first
            else itertools.takewhile(lambda word: not word.startswith("--"), rest)
        )
        value = config.short_repr(" ".join(given))
        return f"{found[1]} must be {config.describe(hints[found[1]])}, not {value}"
    text = " ".join(re.sub(r"[^\x20-\x7e]+", " ", complaint).split())
    return config.truncate(re.sub(r"^(.+?) (?=\1)| For full helptext.*", "", text))


def option_types(cls: type) -> Iterator[tuple[str, Any]]:
    """The options of a command and their types, with those of every kind of nested settings."""
    hints = typing.get_type_hints(cls, include_extras=True)
    for name in (field.name for field in dataclasses.fields(cls)):
        hint = hints[name]
        nested = [
            part
            for part in (hint, *typing.get_args(hint))
            if isinstance(part, type) and dataclasses.is_dataclass(part)
        ]
        for part in nested:
            yield from option_types(part)
        if not nested:
            yield config.option(name, hint), hint


def split_positional(argv: list[str], cls: type) -> tuple[str | None, list[str]]:
    """The first word that is neither an option nor the value of one, and the other words.

    cls: the options of the command; one that is unknown is taken to have one value.
    """
    hints = dict(option_types(cls))
    values = 0.0  # how many of the next words belong to the option before them
    for index, word in enumerate(argv):
        if word.startswith("-") and not is_number(word):
            name = word.replace("_", "-")
            hint = hints.get(name)
            is_switch = hint is bool or name.startswith("--no-") or "=" in word
            is_list = typing.get_origin(hint) is tuple
            values = 0 if is_switch or name in HELP else float("inf") if is_list else 1
        elif values and (values == 1 or is_number(word)):
            values -= 1
        else:
            return word, argv[:index] + argv[index + 1 :]
    return None, argv


def is_number(word: str) -> bool:
    """Whether a word is a number."""
    try:
        float(word)
    except ValueError:
        return False
    return True


def find_value(option: str, argv: list[str]) -> str | None:
    """The last value given to an option, found before parsing: it decides which options exist."""
    for index, word in reversed(list(enumerate(argv))):
        if word.startswith(option + "="):
            return word.removeprefix(option + "=")
        if word == option:
            return argv[index + 1] if index + 1 < len(argv) else ""
    return None
