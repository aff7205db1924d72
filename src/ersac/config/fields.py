"""What every group of settings is built from: ranges, checks, overrides, and the split into traced and static values."""

import dataclasses
import difflib
import functools
import math
import numbers
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

MAX_VALUE_CHARS = 100  # of a value that an error message quotes
T = TypeVar("T")


class SettingsError(ValueError):
    """A setting that cannot be used; its text is one line that says what to change."""


@dataclass(frozen=True)
class Range:
    """The values a number may take, ends included unless `above`."""

    low: float
    high: float = math.inf
    above: bool = False  # low itself is excluded

    def __contains__(self, value: float) -> bool:
        """Whether a number is inside; NaN and infinity never are. A whole number may be too long for a float: it is only compared."""
        return (
            (self.low < value if self.above else self.low <= value)
            and value <= self.high
            and value < math.inf
        )

    def __str__(self) -> str:
        """As it reads after 'must be'."""
        if self.above and self.high < math.inf:
            return f"above {self.low:.10g} and at most {self.high:.10g}"
        if self.high < math.inf:
            return f"between {self.low:.10g} and {self.high:.10g}"
        return f"above {self.low:.10g}" if self.above else f"at least {self.low:.10g}"


@dataclass(frozen=True)
class Callables:
    """Something from Python that has functions of these names."""

    what: str
    names: tuple[str, ...]

    def __contains__(self, value: Any) -> bool:
        """Whether a thing has them."""
        return all(callable(getattr(value, name, None)) for name in self.names)


class NotStored(str):
    """What is left of something from Python once its settings were written: its text."""


Count = Annotated[int, Range(1)]
Episodes = Annotated[int, Range(1, 10**9)]
Seconds = Annotated[float, Range(0, 1e9)]
Positive = Annotated[float, Range(0, above=True)]
NonNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, 1)]
Decay = Annotated[float, Range(0, 0.999999)]
# Far beyond what is sensible, yet no product of them in a first update leaves single precision: tests/reliability/test_fuzz.py runs them.
Tau = Annotated[float, Range(1e-5, 1e3)]
Alpha = Annotated[float, Range(1e-5, 1e3)]
Scale = Annotated[float, Range(0, 10)]
Weight = Annotated[float, Range(0, 10)]
Mu = Annotated[float, Range(0, 100)]
Rate = Annotated[float, Range(0, 1)]


def suggest(word: str, known: Iterable[str]) -> str:
    """'; did you mean ersac?' where something close is known, else all that is."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"


def pick(kind: str, word: str, known: dict[str, T]) -> T:
    """Look a name up, or say which name was probably meant."""
    if not isinstance(word, str) or word not in known:
        raise SettingsError(
            f"unknown {kind} {short_repr(word)}{suggest(word if isinstance(word, str) else '', known)}"
        )
    return known[word]


def short_repr(value: Any) -> str:
    """Any value at all in one short line."""
    try:
        text = " ".join(repr(value).split())
    except (
        Exception
    ):  # of somebody else's making, or a whole number with more digits than Python writes
        text = f"a {type(value).__name__} that cannot be written down"
    return truncate(text)


def truncate(text: str) -> str:
    """A text, or its beginning where it is long."""
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}..."


def leaves(
    settings: Any, prefix: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Every setting below a dataclass as (path, annotated type, value)."""
    kind: Any = type(settings)
    hints = _hints(kind)
    for field in dataclasses.fields(settings):
        hint, value = hints[field.name], getattr(settings, field.name)
        if any(
            isinstance(kind, type) and dataclasses.is_dataclass(kind)
            for kind in (hint, *typing.get_args(hint))
        ):
            yield from leaves(value, (*prefix, field.name))
        else:
            yield (*prefix, field.name), hint, value


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def replace_at(settings: Any, path: tuple[str, ...], value: Any) -> Any:
    """A copy of nested settings with one leaf changed."""
    head, *rest = path
    value = replace_at(getattr(settings, head), tuple(rest), value) if rest else value
    return dataclasses.replace(settings, **{head: value})


def override(settings: T, **changes: Any) -> T:
    """A copy with settings changed by name, wherever they are nested; an unknown name is an error that names the nearest."""
    paths = {keyword(path[-1], hint): path for path, hint, _ in leaves(settings)}
    for name, value in changes.items():
        name = "lambda" if name == "lam" else name  # a reserved word cannot be a keyword
        settings = replace_at(settings, pick("setting", name, paths), value)
    return settings


def floats(settings: Any) -> dict[str, float]:
    """The numbers that are traced: every float by its dotted path."""
    return {
        ".".join(path): value for path, _, value in leaves(settings) if isinstance(value, float)
    }


def with_floats(settings: T, values: dict[str, Any]) -> T:
    """The settings with those numbers put back, be they tracers."""
    for name, value in values.items():
        settings = replace_at(settings, tuple(name.split(".")), value)
    return settings


def static(settings: T) -> T:
    """What is left when the traced numbers are taken out: hashable, the same for all that share a compiled program."""
    return with_floats(settings, dict.fromkeys(floats(settings), 0.0))


def check(settings: T) -> T:
    """The settings with their numbers converted, or a SettingsError that names the field, what it takes and the value."""
    for path, hint, value in leaves(settings):
        try:
            settings = replace_at(settings, path, _convert(hint, value))
        except (ValueError, OverflowError):
            raise SettingsError(
                f"{option(path[-1], hint)} must be {describe(hint)}, not {short_repr(value)}"
            ) from None
    return settings


def keyword(name: str, hint: Any = None) -> str:
    """The name of a setting in Python, given the name and the type of its field."""
    for extra in getattr(hint, "__metadata__", ()):
        name = getattr(extra, "name", None) or name
    return name


def option(name: str, hint: Any = None) -> str:
    """The name of a setting on the command line."""
    return "--" + keyword(name, hint).replace("_", "-")


def describe(hint: Any) -> str:
    """What a setting takes, as it reads after 'must be'."""
    match typing.get_origin(hint), typing.get_args(hint):
        case origin, words if origin is Literal:
            return " or ".join(words)
        case types.UnionType | typing.Union, kinds:
            return " or ".join("none" if kind is type(None) else describe(kind) for kind in kinds)
        case origin, (kind, *_) if origin is tuple:
            return f"one or more of: {describe(kind)}"
        case origin, (_, Callables(what), *_) if origin is Annotated:
            return f"{what} or none"
        case origin, (kind, *extras) if origin is Annotated:
            return " ".join(
                [describe(kind), *(str(extra) for extra in extras if isinstance(extra, Range))]
            )
    return {int: "a whole number", float: "a number", bool: "True or False"}.get(hint, "text")


def _convert(hint: Any, value: Any) -> Any:
    """The value as the type asks for it; ValueError where it does not fit."""
    if hint is Any:
        return value
    match typing.get_origin(hint), typing.get_args(hint):
        case origin, words if origin is Literal:
            if not isinstance(value, str) or value not in words:
                raise ValueError(value)
            return value
        case types.UnionType | typing.Union, kinds:
            return (
                None
                if value is None
                else _convert(next(kind for kind in kinds if kind is not type(None)), value)
            )
        case origin, (kind, *_) if origin is tuple:
            items = value.tolist() if hasattr(value, "tolist") else value
            if (
                not isinstance(items, list | tuple | range) or not items
            ):  # others have no order, or no end, or are text
                raise ValueError(value)
            return tuple(_convert(kind, item) for item in items)
        case origin, (kind, *extras) if origin is Annotated:
            value = _convert(kind, value)
            given = value is not None and not isinstance(value, NotStored)
            if any(
                (isinstance(extra, Range) and value not in extra)
                or (isinstance(extra, Callables) and given and value not in extra)
                for extra in extras
            ):
                raise ValueError(value)
            return value
    if hint is bool or isinstance(value, bool):
        fits = hint is bool and isinstance(value, bool)
    elif hint in (int, float):
        fits = isinstance(value, numbers.Real) and (hint is float or value == math.floor(value))
    else:
        fits = isinstance(value, hint)
    if not fits:
        raise ValueError(value)
    return hint(value) if hint in (int, float) else value
