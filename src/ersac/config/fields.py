"""The parts of every settings dataclass: ranges, checks, overrides, traced and static values."""

import ast
import dataclasses
import difflib
import functools
import inspect
import json
import math
import numbers
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

MAX_VALUE_CHARS = 100  # of a value that an error message quotes
MAX_KNOWN = 16  # names that an error message lists
CLOSE, CLOSE_IF_SHORT = 0.75, 0.6  # difflib's ratio from which a name is suggested
SHORT = 4  # letters
T = TypeVar("T")


class SettingsError(ValueError):
    """An invalid setting; the message is one line that says what to change."""


@dataclass(frozen=True)
class Range:
    """An interval of valid numbers; `low` is excluded if `above`."""

    low: float
    high: float = math.inf
    above: bool = False

    def __contains__(self, value: float) -> bool:
        """Whether a number is in the interval; NaN and infinity never are."""
        above = self.low < value if self.above else self.low <= value
        return (
            above and value <= self.high and value < math.inf
        )  # an int may be too large to convert

    def __str__(self) -> str:
        """The interval as it reads after 'must be a number'."""
        if self.above and self.high < math.inf:
            return f"above {self.low:.10g} and at most {self.high:.10g}"
        if self.high < math.inf:
            return f"between {self.low:.10g} and {self.high:.10g}"
        return f"above {self.low:.10g}" if self.above else f"at least {self.low:.10g}"


@dataclass(frozen=True)
class Callables:
    """A Python object with methods of these names."""

    description: str
    names: tuple[str, ...]

    def __contains__(self, value: Any) -> bool:
        """Whether an object has all of them."""
        return all(callable(getattr(value, name, None)) for name in self.names)


@dataclass(frozen=True)
class JsonObject:
    """A JSON object, kept as its text with sorted keys; in Python it may be given as a dict."""

    def normal_text(self, value: Any) -> str:
        """The object as text; ValueError where it is none."""
        try:
            data = json.loads(value) if isinstance(value, str) else value
            if isinstance(data, dict) and all(isinstance(name, str) for name in data):
                return json.dumps(data, sort_keys=True, allow_nan=False)
        except (TypeError, RecursionError) as error:
            raise ValueError(value) from error
        raise ValueError(value)


class NotStored(str):
    """The text of a Python object, in settings that were read from a file."""


def import_path(value: Any) -> str | None:
    """`module:Class` of a class that another process can import; None for anything else."""
    if not isinstance(value, type) or value.__module__ in ("__main__", "builtins"):
        return None
    if "<" in value.__qualname__:  # a class inside a function
        return None
    return f"{value.__module__}:{value.__qualname__}"


def is_text_only(value: Any) -> bool:
    """Whether a Python object was read as a text that does not say where to import it from."""
    return isinstance(value, NotStored) and not re.fullmatch(r"[\w.]+:[\w.]+", value)


Count = Annotated[int, Range(1)]
Episodes = Annotated[int, Range(1, 10**9)]
Steps = Annotated[int, Range(1, 10**12)]
Seconds = Annotated[float, Range(0, 1e9)]
Positive = Annotated[float, Range(0, above=True)]
NonNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, 1)]
Decay = Annotated[float, Range(0, 0.999999)]
# Wider than any sensible value, yet no first update overflows: tests/reliability/test_fuzz.py.
Tau = Annotated[float, Range(1e-5, 1e3)]
Alpha = Annotated[float, Range(1e-5, 1e3)]
Scale = Annotated[float, Range(0, 10)]
Weight = Annotated[float, Range(0, 10)]
Mu = Annotated[float, Range(0, 100)]
Rate = Annotated[float, Range(0, 1)]


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known name that `word` was probably meant to be; None if none is close."""
    known = list(known)
    cutoff = CLOSE if len(word) > SHORT else CLOSE_IF_SHORT  # one letter is much of a short word
    if close := difflib.get_close_matches(word, known, n=1, cutoff=cutoff):
        return close[0]
    words = lambda name: set(re.split("[-_]", name.lower().removeprefix("--")))
    related = [name for name in known if words(name) < words(word) or words(word) < words(name)]
    return related[0] if len(related) == 1 else None


def suggest(word: str, known: Iterable[str], where: str = "") -> str:
    """'; did you mean NAME?' if a known name is close to `word`, else the list of known names.

    where: what lists them, named instead of a long list.
    """
    known = list(known)
    if close := closest(word, known):
        return f"; did you mean {close}?"
    return (
        f"; {where} lists them"
        if where and len(known) > MAX_KNOWN
        else (f"; known: {', '.join(known)}")
    )


def pick(noun: str, name: str, known: dict[str, T], where: str = "") -> T:
    """Look up a name; SettingsError 'unknown NOUN NAME; did you mean ...' if it does not exist."""
    if not isinstance(name, str) or name not in known:
        suggestion = suggest(name if isinstance(name, str) else "", known, where)
        raise SettingsError(f"unknown {noun} {short_repr(name)}{suggestion}")
    return known[name]


def short_repr(value: Any) -> str:
    """The repr of any value, on one line of limited length."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a user's class, or an int with more digits than Python converts
        text = f"a {type(value).__name__} that cannot be written down"
    return truncate(text)


def truncate(text: str) -> str:
    """A text, cut off if it is long."""
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}..."


def leaves(
    settings: Any, prefix: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Iterate over all settings of nested dataclasses: (path, annotated type, value)."""
    cls: Any = type(settings)
    for name, hint, is_nested in _typed_fields(cls):
        value = getattr(settings, name)
        if is_nested:
            yield from leaves(value, (*prefix, name))
        else:
            yield (*prefix, name), hint, value


@functools.cache
def _typed_fields(cls: Any) -> list[tuple[str, Any, bool]]:
    """The name of each field, its annotated type, and whether it holds nested settings."""
    hints = typing.get_type_hints(cls, include_extras=True)
    is_settings = lambda hint: isinstance(hint, type) and dataclasses.is_dataclass(hint)
    return [
        (field.name, hint, any(map(is_settings, (hint, *typing.get_args(hint)))))
        for field in dataclasses.fields(cls)
        for hint in [hints[field.name]]
    ]


@functools.cache
def field_docs(cls: Any) -> dict[str, str]:
    """The docstring below each field of a settings class, on one line."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    docs = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(doc))):
                docs[name] = " ".join(doc.split())
    return docs


def replace_at(settings: Any, path: tuple[str, ...], value: Any) -> Any:
    """A copy of nested settings with the setting at `path` changed."""
    head, *rest = path
    value = replace_at(getattr(settings, head), tuple(rest), value) if rest else value
    return dataclasses.replace(settings, **{head: value})


def override(settings: T, **changes: Any) -> T:
    """A copy of nested settings with some changed by name; SettingsError for an unknown name."""
    paths = {keyword(path[-1], hint): path for path, hint, _ in leaves(settings)}
    for name, value in changes.items():
        name = "lambda" if name == "lam" else name  # a reserved word cannot be a keyword
        path = pick("setting", name, paths, "ersac.settings()")
        settings = replace_at(settings, path, value)
    return settings


def floats(settings: Any) -> dict[str, float]:
    """The traced settings: all floats, by dotted path."""
    return {
        ".".join(path): value for path, _, value in leaves(settings) if isinstance(value, float)
    }


def with_floats(settings: T, values: dict[str, Any]) -> T:
    """The settings with floats, or tracers, set by dotted path."""
    for name, value in values.items():
        settings = replace_at(settings, tuple(name.split(".")), value)
    return settings


def static(settings: T) -> T:
    """The settings with all floats 0: equal for runs that share a compiled program."""
    return with_floats(settings, dict.fromkeys(floats(settings), 0.0))


def check(settings: T) -> T:
    """The settings with numbers converted to their types; SettingsError if one is invalid."""
    for path, hint, value in leaves(settings):
        try:
            if (converted := _convert(hint, value)) is not value:
                settings = replace_at(settings, path, converted)
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


def without_dashes(text: str) -> str:
    """A text with settings named as in Python: learning_rate instead of --learning-rate."""
    name = lambda found: found[1].replace("-", "_").replace("lambda", "lam")
    return re.sub(r"(?<![\w'\"-])--(?!no-)([a-z][a-z0-9-]*)", name, text)


def describe(hint: Any) -> str:
    """The valid values of a setting, as they read after 'must be'."""
    match typing.get_origin(hint), typing.get_args(hint):
        case origin, words if origin is Literal:
            return " or ".join(words)
        case types.UnionType | typing.Union, members:
            return " or ".join("none" if t is type(None) else describe(t) for t in members)
        case origin, (item_type, *_) if origin is tuple:
            return f"one or more of: {describe(item_type)}"
        case origin, (_, Callables(description), *_) if origin is Annotated:
            return f"{description} or none"
        case origin, (_, JsonObject(), *_) if origin is Annotated:
            return """a JSON object such as '{"size": 8}'"""
        case origin, (base, *extras) if origin is Annotated:
            return " ".join(
                [describe(base), *(str(extra) for extra in extras if isinstance(extra, Range))]
            )
    return {int: "a whole number", float: "a number", bool: "True or False"}.get(hint, "text")


def _convert(hint: Any, value: Any) -> Any:
    """The value converted to an annotated type; ValueError if that is impossible."""
    if hint is Any:
        return value
    match typing.get_origin(hint), typing.get_args(hint):
        case origin, words if origin is Literal:
            if not isinstance(value, str) or value not in words:
                raise ValueError(value)
            return value
        case types.UnionType | typing.Union, members:
            base = next(t for t in members if t is not type(None))
            return None if value is None else _convert(base, value)
        case origin, (item_type, *_) if origin is tuple:
            items = value.tolist() if hasattr(value, "tolist") else value
            # Sets have no order, iterators may have no end, and text is a sequence of text.
            if not isinstance(items, list | tuple | range) or not items:
                raise ValueError(value)
            return tuple(_convert(item_type, item) for item in items)
        case origin, (_, JsonObject() as json_object, *_) if origin is Annotated:
            return json_object.normal_text(value)
        case origin, (base, *extras) if origin is Annotated:
            value = _convert(base, value)
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
