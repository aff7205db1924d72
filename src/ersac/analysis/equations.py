"""Where each equation of the paper is implemented and tested, from the labels in the code.

A citation is a label in brackets in a docstring or a comment; several have commas between them, and
a label may have 'before', 'after' or 'proof of' in front. No jax here.
"""

import ast
import re
from pathlib import Path
from typing import NamedTuple

from ersac.analysis.paper import RESULTS

LABEL = re.compile(r"(?:before |after |proof of )?([a-z]+-[A-Za-z0-9_-]+)")
BRACKETS = re.compile(r"\[([^\[\]]{1,150})\]")  # may go over the end of a line
CHECKOUT = Path(__file__).parents[3]  # where there is one; a wheel has no tests


class Citation(NamedTuple):
    """A function, class or module that cites a label."""

    file: str  # relative to the checkout
    name: str  # of the function or class; empty for a module

    def __str__(self) -> str:
        """Return the file with the name."""
        return f"{self.file}:{self.name}" if self.name else self.file


class Cited(NamedTuple):
    """The citations of one label."""

    code: list[Citation]
    tests: list[Citation]


Citations = dict[str, Cited]  # by label


def labels_in(text: str) -> list[tuple[int, str]]:
    """The labels of the paper that a text cites in brackets, each with its line."""
    found = []
    for bracket in BRACKETS.finditer(text):
        parts = [" ".join(part.split()) for part in bracket[1].replace("#", " ").split(",")]
        labels = [match[1] for part in parts if (match := LABEL.fullmatch(part))]
        if known := [label for label in labels if label in RESULTS]:
            line = text.count("\n", 0, bracket.start()) + 1
            found += [(line, label) for label in known]
    return found


def cited_in(path: Path, root: Path) -> dict[str, list[Citation]]:
    """The citations of a file by label, each function or class once."""
    text = path.read_text()
    labels = labels_in(text)
    if not labels:
        return {}
    owners: list[tuple[int, int, str]] = []  # first line, last line, name; inner ones later
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            owners.append((node.lineno, node.end_lineno or node.lineno, node.name))
    found: dict[str, list[Citation]] = {}
    for line, label in labels:
        inside = [owner for owner in owners if owner[0] <= line <= owner[1]]
        name = max(inside, default=(0, 0, ""))[2]
        citation = Citation(path.relative_to(root).as_posix(), name)
        rows = found.setdefault(label, [])
        if citation not in rows:
            rows.append(citation)
    return found


def find_citations(root: Path = CHECKOUT) -> Citations:
    """The citations of every label below `src` and `tests` of a checkout; none without one."""
    cited = {label: Cited([], []) for label in RESULTS}
    for folder in ("src", "tests"):
        for path in sorted((root / folder).rglob("*.py")):
            for label, rows in cited_in(path, root).items():
                (cited[label].code if folder == "src" else cited[label].tests).extend(rows)
    return cited
