"""The DeepSea scoreboard: results/scoreboard/deep-sea.json, checked and sorted. No jax here.

Whoever adds a row adds an object with the fields of `FIELDS` to the file and runs
`python tests/test_docs_scoreboard.py --write`, which makes docs/scoreboard.md.
"""

import json
import math
from pathlib import Path
from typing import Any

from ersac.config import SettingsError
from ersac.runs import disk

RULES = ("reliable", "bsuite", "other")
APPROXIMATIONS = ("network", "table", "exact")
FIELDS: dict[str, tuple[type, ...]] = {
    "method": (str,),
    "depth": (int,),
    "rule": (str,),
    "episodes": (int, float, type(None)),  # median over seeds; null: most were not solved
    "solved": (int, type(None)),  # seeds; null: not known
    "seeds": (int, type(None)),
    "approximation": (str,),
    "gradient_samples": (int, float, type(None)),  # per environment step; null: not known
    "source": (str,),
}


def read_scoreboard(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, sorted; SettingsError names the first that is not as it should be."""
    try:
        rows = json.loads(disk.read(path, disk.MAX_TEXT))
    except ValueError as error:
        raise SettingsError(f"{path} is not JSON: {error}") from None
    if not isinstance(rows, list):
        raise SettingsError(f"{path} is not a list of rows")
    for number, row in enumerate(rows, 1):
        if problem := row_problem(row):
            raise SettingsError(f"{path}, row {number}: {problem}")
    return sorted(rows, key=row_order)


def row_problem(row: Any) -> str | None:
    """What is wrong with a row; None if nothing is."""
    if not isinstance(row, dict) or set(row) != set(FIELDS):
        return f"it must have the fields {', '.join(FIELDS)}"
    for name, types in FIELDS.items():
        if not isinstance(row[name], types) or isinstance(row[name], bool):
            return f"{name} must not be {row[name]!r}"
    for name, known in (("rule", RULES), ("approximation", APPROXIMATIONS)):
        if row[name] not in known:
            return f"{name} must be one of {', '.join(known)}, not {row[name]!r}"
    if row["depth"] < 1 or (row["episodes"] is not None and not row["episodes"] > 0):
        return "depth and episodes must be positive"
    solved, seeds = row["solved"], row["seeds"]
    if (solved is None) != (seeds is None) or (seeds is not None and not 0 <= solved <= seeds):
        return "solved must be at most seeds, or both unknown"
    if seeds and row["episodes"] is None and solved > seeds / 2:
        return "episodes must be a number where most seeds are solved"
    if seeds and row["episodes"] is not None and solved < seeds / 2:
        return "episodes must be null where most seeds are not solved"
    if not row["method"].strip() or not row["source"].strip():
        return "method and source must say something"
    return None


def row_order(row: dict[str, Any]) -> tuple[Any, ...]:
    """Deepest first, then the rule, then the fewest episodes; unsolved ones last."""
    episodes = math.inf if row["episodes"] is None else row["episodes"]
    share = 0 if not row["seeds"] else -row["solved"] / row["seeds"]
    return -row["depth"], RULES.index(row["rule"]), episodes, share, row["method"]


def row_cells(row: dict[str, Any]) -> list[str]:
    """The cells of a row, without its depth."""
    episodes = "not solved" if row["episodes"] is None else f"{row['episodes']:,.10g}"
    seeds = "" if row["seeds"] is None else f"{row['solved']} of {row['seeds']}"
    samples = "" if row["gradient_samples"] is None else f"{row['gradient_samples']:,.6g}"
    return [
        cell.replace("|", "\\|")
        for cell in (
            row["method"],
            episodes,
            seeds,
            row["rule"],
            row["approximation"],
            samples,
            row["source"],
        )
    ]


def markdown_table(rows: list[dict[str, Any]]) -> list[str]:
    """A Markdown table of rows of one depth."""
    head = ["method", "episodes", "solved", "rule", "approximation", "samples", "source"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return lines + [f"| {' | '.join(row_cells(row))} |" for row in rows]
