"""docs/reliability.md: the tests and trials that it names exist, and every finding has some."""

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "reliability.md").read_text()
FINDINGS = 18
# A test file with names in it, or `::name` in the file before; of tests/reliability if no directory
# is named.
REFERENCE = re.compile(r"`([\w/]*test_\w+\.py)?((?:::\w+)*)`")


def references(text: str) -> Iterator[tuple[str, str]]:
    """The tests that a text names: their files, and their names as in pytest."""
    file = ""
    for named, name in REFERENCE.findall(text):
        if named:
            file = named if named.startswith("tests/") else f"tests/reliability/{named}"
        if named or name:
            yield file, name.removeprefix("::")


def names_in(body: list[ast.stmt], prefix: str = "") -> set[str]:
    """The functions and classes of a file, methods as Class::method."""
    found = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            found |= names_in(node.body, f"{node.name}::")
    return found


def findings() -> list[list[str]]:
    """The rows of the table of findings: number, finding, now, tests, trials."""
    section = PAGE.partition("## Findings of the attack\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    return [row for row in rows if row[0].isdigit()]


@pytest.fixture(scope="module")
def trials() -> list[str]:
    """The names of the trials of `make attack`."""
    path = ROOT / "tests" / "reliability" / "attack.py"
    spec = importlib.util.spec_from_file_location("attack_suite", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return [one.name for one in module.TRIALS]


def test_every_test_that_the_page_names_exists():
    named = list(references(PAGE))
    assert len(named) > 80
    for file, name in named:
        path = ROOT / file
        assert path.is_file(), file
        if name:
            assert name in names_in(ast.parse(path.read_text()).body), f"{file}::{name}"


def test_every_finding_of_the_attack_has_a_row_with_a_test():
    rows = findings()
    assert [int(row[0]) for row in rows] == list(range(1, FINDINGS + 1))
    for number, _, now, tests, _ in rows:
        assert now, number
        assert list(references(tests)), number


def test_every_trial_that_the_page_names_is_one_of_make_attack(trials):
    named = [(row[0], name) for row in findings() for name in re.findall(r"`([^`]+)`", row[4])]
    assert len({number for number, _ in named}) == FINDINGS - 1  # one is about installing
    for number, name in named:
        assert any(trial.startswith(name) for trial in trials), (number, name)
