"""The house: imports flow one way, and only disk.py writes."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "ersac"
FILES = sorted(SOURCE.rglob("*.py"))
# From the ground up; a file imports only from its own storey or from those before it.
STOREYS = [
    ("types", "config", "packages", "exits", "disk", "checkpoint"),
    ("feeds", "game", "returns", "risk", "rows"),
    ("envs", "lenses", "nets", "policies", "uncertainty"),
    ("tabular",),
    ("agents",),
    ("loops",),
    ("study", "display"),
    ("api",),
    ("cli",),
]
HEIGHT = {name: height for height, names in enumerate(STOREYS) for name in names}


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "ersac":
            first = node.module.split(".")[1:2]
            found |= set(first) if first else {alias.name for alias in node.names}
    return found & set(HEIGHT)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_imports_only_from_below(path):
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if own == "__init__":
        return
    above = {name for name in imported(path) if HEIGHT[name] > HEIGHT[own]}
    assert not above


def test_only_disk_writes():
    writes = re.compile(r"""open\([^)]*["'][wax]b?\+?["']|\.write_(text|bytes)\(|\.mkdir\(|np\.save|os\.replace|savefig\((?!buffer)""")
    in_memory = re.compile(r"np\.savez(_compressed)?\(buffer")
    guilty = [path.name for path in FILES if path.name != "disk.py" and writes.search(in_memory.sub("", path.read_text()))]
    assert not guilty
