"""Random settings, good and bad, in a process that cannot import jax.

Arguments: a seed, how many from Python, how many as words of a command. Prints a line of JSON for
each: what was given, its outcome, and the outcome that the range of every field demands.
"""

import itertools
import json
import math
import numbers
import random
import sys
import typing
from decimal import Decimal
from fractions import Fraction

sys.modules["jax"] = None  # importing it is a traceback, and so a failure

import numpy as np  # noqa: E402

from ersac import api, cli, config  # noqa: E402
from ersac.cli import commands  # noqa: E402
from ersac.config.presets import PRESETS, TABLE_PRESETS  # noqa: E402
from ersac.runs import run_dir  # noqa: E402


class Nasty:
    def __repr__(self):
        raise RuntimeError("no")


class Tall:
    def __repr__(self):
        return "one\ntwo"


JUNK = [
    None,
    True,
    False,
    math.nan,
    math.inf,
    -math.inf,
    1e308,
    -1e308,
    5e-324,
    -0.0,
    0,
    1,
    -1,
    2,
    0.5,
    10**400,
    -(10**400),
    10**5000,
]
JUNK += [
    "",
    "deep",
    "5",
    "nan",
    b"8",
    bytearray(b"8"),
    "a\nb",
    [],
    (),
    [8],
    (8, 8),
    [8, "x"],
    [8, None],
    [[8]],
    {},
    {8: 8},
    {8},
    range(1, 3),
]
JUNK += [
    object(),
    Nasty(),
    Tall(),
    config.DeepSea(),
    config.DeepSea,
    config.Range(0, 1),
    len,
    1j,
    Decimal(1),
    Fraction(1, 2),
]
JUNK += [
    Fraction(10**400),
    np.float32(0.5),
    np.int64(3),
    np.float64("nan"),
    np.float32("inf"),
    np.bool_(True),
    np.array(5),
]
JUNK += [
    np.array([8, 8]),
    np.array([[8]]),
    np.zeros(0),
    itertools.count(1),
    np.float16(1),
    np.uint8(4),
]
WORDS = [
    "",
    "-",
    "--",
    "--=",
    "x",
    "-1",
    "1e400",
    "nan",
    "inf",
    "None",
    "True",
    "0x10",
    "1_0",
    "9" * 5000,
    "a\nb",
    "\udcff",
    "--depth",
    "--out",
]


# hashed and linear need vectors.
DEEP_SEA_ESTIMATORS = [name for name in config.UNCERTAINTIES if name not in ("hashed", "linear")]
BY_NETWORK = {"mlp": PRESETS, "table": TABLE_PRESETS}


class Field(typing.NamedTuple):
    """The values that a setting accepts, read from its annotation without the code under test."""

    cls: type
    low: float = 0
    high: float = 100
    above: bool = False
    none: bool = False
    many: bool = False
    words: tuple[str, ...] = ()

    def takes(self, value) -> bool:
        if self.words:
            return isinstance(value, str) and value in self.words
        if value is None:
            return self.none
        if self.many:
            one = self._replace(many=False)
            listed = value.tolist() if isinstance(value, np.ndarray) else value
            return (
                isinstance(listed, list | tuple | range)
                and len(listed) > 0
                and all(one.takes(item) for item in listed)
            )
        if self.cls is typing.Any:
            return False  # nothing in JUNK is valid there
        if self.cls is bool or isinstance(value, bool):
            return self.cls is bool and isinstance(value, bool)
        if not isinstance(value, numbers.Real):
            return False
        value = value.item() if isinstance(value, np.generic) else value
        if value != value or value in (math.inf, -math.inf):
            return False
        inside = (value > self.low if self.above else value >= self.low) and value <= self.high
        return inside and (self.cls is float or value == int(value))


def field_of(hint) -> Field:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if type(None) in args:
        return field_of(args[0])._replace(none=True)
    if origin is tuple:
        return field_of(args[0])._replace(many=True)
    if origin is typing.Literal:
        return Field(str, words=args)
    if origin is typing.Annotated:
        field = field_of(args[0])
        for extra in args[1:]:
            if isinstance(extra, config.Callables):
                field = field._replace(none=True)
            if isinstance(extra, config.Range):
                field = field._replace(low=extra.low, high=extra.high, above=extra.above)
        return field
    return Field(hint)


def value_for(field: Field, rng: random.Random):
    """Return a value in or near the range, or junk."""
    if rng.random() < 0.3:
        return rng.choice(JUNK)
    if field.cls is bool:
        return rng.random() < 0.5
    if field.words:
        return rng.choice(field.words)
    one = field._replace(many=False, none=False)
    if field.many:
        return [
            value_for(one, rng) if rng.random() < 0.1 else rng.randint(1, 64)
            for _ in range(rng.randint(1, 3))
        ]
    high = min(field.high, field.low + 10**9)
    edges = [
        field.low,
        high,
        field.low - 1,
        high + 1,
        math.nextafter(field.low, -math.inf),
        math.nextafter(high, math.inf),
    ]
    edges += [math.nextafter(field.low, math.inf), math.nextafter(high, -math.inf)]
    if field.cls is int:
        return rng.choice(
            [
                *edges,
                *(int(edge) for edge in edges),
                rng.randint(int(field.low), int(high)),
                rng.randint(1, 30),
                2.5,
            ]
        )
    return rng.choice(
        [
            *edges,
            rng.uniform(field.low, high),
            max(field.low, 1e-9) * (high / max(field.low, 1e-9)) ** rng.random(),
        ]
    )


def misspelt(word: str, rng: random.Random) -> str:
    at = rng.randrange(len(word))
    return rng.choice(
        [
            word[:at] + word[at + 1 :],
            word[:at] + rng.choice("xyz_") + word[at:],
            word.upper(),
            word + "s",
        ]
    )


def named(rng: random.Random, names: list[str]) -> tuple[str, bool]:
    """Return a name, perhaps misspelt, and whether it is in the list."""
    word = rng.choice(names)
    if rng.random() < 0.06:
        word = misspelt(word, rng)
    return word, word in names


def outcome(make, good: bool | None, allowed) -> dict:
    """Return the outcome of making settings, and the one that is wanted."""
    try:
        settings = make()
    except config.SettingsError as error:
        text = str(error)
        return {
            "outcome": "rejected",
            "wanted": good,
            "text": text,
            "told": "\n" not in text and allowed(text),
        }
    except SystemExit as stop:
        return {
            "outcome": "help" if stop.code in (0, None) else f"exit {stop.code}",
            "wanted": good,
        }
    except BaseException as error:
        return {
            "outcome": "traceback",
            "wanted": good,
            "text": f"{type(error).__name__}: {error}"[:200],
        }
    return {"outcome": "accepted", "wanted": good, "settings": run_dir.settings_json(settings)}


def draw_agent(rng: random.Random) -> tuple[dict, bool, config.Experiment]:
    """Return the arguments that choose an agent, whether they are valid, and its settings."""
    agent, known = named(rng, list(PRESETS))
    chosen, good = {"agent": agent}, known
    base = config.Experiment(agent=PRESETS[agent] if known else PRESETS["ersac"])
    if rng.random() < 0.3:
        chosen["network"], known = named(rng, list(BY_NETWORK))
        good &= (
            known
            and agent in BY_NETWORK.get(chosen["network"], {})
            and isinstance(base.agent, config.ActorCritic)
        )
        if good:
            base = config.Experiment(agent=BY_NETWORK[chosen["network"]][agent])
    if rng.random() < 0.4:
        chosen["uncertainty"], known = named(rng, DEEP_SEA_ESTIMATORS)
        good &= known and isinstance(base.agent, config.ActorCritic)
        if good:
            base = config.replace_at(
                base, ("agent", "uncertainty"), config.UNCERTAINTIES[chosen["uncertainty"]]()
            )
    return chosen, good, base


def from_python(rng: random.Random) -> dict:
    chosen, good, base = draw_agent(rng)
    hints = {path[-1]: hint for path, hint, _ in config.leaves(base) if path != ("agent_name",)}
    if rng.random() < 0.03:
        chosen["agent"], good = rng.choice([None, 5, ["ersac"], math.nan, "", Nasty(), {}]), False
    if isinstance(base.agent, config.ActorCritic) and rng.random() < 0.02:
        chosen["network"] = junk = rng.choice(JUNK)
        good &= junk is None
    changes = {}
    for _ in range(rng.randint(0, 4)):
        name, _ = named(rng, [name for name in hints if name != "network"])
        changes[name] = value_for(field_of(hints.get(name, int)), rng)
    bad = [
        name
        for name, value in changes.items()
        if name not in hints or not field_of(hints[name]).takes(value)
    ]

    def allowed(text: str) -> bool:
        if text.startswith("unknown "):
            return any(end in text for end in ("; did you mean ", "; known: ", " lists them"))
        if text.startswith("network must be "):
            return (
                text == f"network must be mlp or table, not {config.short_repr(chosen['network'])}"
            )
        names = {
            name: config.without_dashes(config.option(name, hints[name]))
            for name in bad
            if name in hints
        }
        return any(
            f"{shown} must be {config.describe(hints[name])}, "
            f"not {config.short_repr(changes[name])}" == text
            for name, shown in names.items()
        )

    given = {**chosen, **changes}
    return {
        "given": config.short_repr(
            {name: config.short_repr(value) for name, value in given.items()}
        )
    } | outcome(lambda: api.make_settings(**given), good and not bad, allowed)


def as_words(rng: random.Random) -> dict:
    chosen, _, base = draw_agent(rng)
    hints = {
        config.option(path[-1], hint): hint
        for path, hint, _ in config.leaves(base)
        if path != ("agent_name",)
    }
    argv = ["deep-sea" if rng.random() < 0.97 else rng.choice(["deepsea", "", "--depth"])]
    argv += [word for name, value in chosen.items() for word in (f"--{name}", value)]
    for _ in range(rng.randint(0, 3)):
        option, _ = named(rng, list(hints))
        field = field_of(hints.get(option, int))
        value = value_for(field, rng)
        words = (
            [str(item) for item in value]
            if isinstance(value, list | tuple)
            else [rng.choice(WORDS) if rng.random() < 0.2 else to_text(value)]
        )
        argv += (
            [f"{option}={words[0]}", *words[1:]]
            if words and rng.random() < 0.3
            else [option, *words]
        )
    if rng.random() < 0.1:
        argv.insert(rng.randint(0, len(argv)), rng.choice(WORDS))
    taken = []
    commands.run_training = lambda settings, *rest: taken.append(settings) or 0  # does not train
    parse = lambda: (cli.dispatch(["train", *argv]), taken[0])[1]
    return {"given": config.short_repr(argv)} | outcome(
        parse, None, lambda text: 0 < len(" ".join(text.split())) < 500
    )


def to_text(value) -> str:
    try:
        return str(value)
    except Exception:
        return "9" * 5000


if __name__ == "__main__":
    seed, python, words = map(int, sys.argv[1:])
    for make, number in ((from_python, python), (as_words, words)):
        for case in range(number):
            print(
                json.dumps(
                    {"how": make.__name__} | make(random.Random(f"{seed} {make.__name__} {case}"))
                )
            )
