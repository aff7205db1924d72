"""Options parsed by tyro; its error messages become one line."""

import contextlib
import difflib
import io
import itertools
import math
import re
from typing import Any, TypeVar

import tyro

from ersac import config
from ersac.config import SettingsError

Options = TypeVar("Options")


def parse(default: Options, program: str, subject: str, argv: list[str]) -> Options:
    """The options in `argv`, the others as in `default`; SettingsError if tyro rejects them.

    program: as in 'ersac train'; subject: whose options these are, as it reads in an error.
    """
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
            close = difflib.get_close_matches(name, known, n=1)
            return f"unknown option {name} of {subject}" + (
                f"; did you mean {close[0]}?" if close else "; --help lists them"
            )
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


def find_value(option: str, argv: list[str]) -> str | None:
    """The last value given to an option, found before parsing: it decides which options exist."""
    for index, word in reversed(list(enumerate(argv))):
        if word.startswith(option + "="):
            return word.removeprefix(option + "=")
        if word == option:
            return argv[index + 1] if index + 1 < len(argv) else ""
    return None
