"""The house: imports flow one way, and only disk.py writes."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "ersac"
FILES = sorted(SOURCE.rglob("*.py"))
PAGE = Path(__file__).parent.parent / "docs" / "architecture.md"
MODULES = {
    path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
    for path in FILES
}


def read_order() -> dict[str, int]:
    """The line of docs/architecture.md, from the lowest, in which a module or a package stands."""
    block = (
        PAGE.read_text().partition("## Import order")[2].partition("```\n")[2].partition("```")[0]
    )
    lines = [line.partition("#")[0].split() for line in block.splitlines()]
    return {name: height for height, names in enumerate(lines) for name in names}


ORDER = read_order()


def height(module: str) -> int:
    """That of a module by its own name, or by its package's."""
    return ORDER[module] if module in ORDER else ORDER[module.split(".")[0]]


def imported(path: Path) -> set[str]:
    """The modules of ersac that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.split(".")[0] == "ersac"
        ):
            module = node.module.removeprefix("ersac").removeprefix(".")
            inside = {f"{module}.{alias.name}".removeprefix(".") for alias in node.names}
            found |= (inside & MODULES) or {module}
    return found & MODULES


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_imports_only_from_below(path):
    own = path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", ".")
    if own.rpartition(".")[2] == "__init__":
        return
    assert not {name for name in imported(path) if height(name) > height(own)}


def test_the_import_order_names_nothing_that_is_not_there():
    packages = {name.split(".")[0] for name in MODULES}
    assert set(ORDER) <= MODULES | packages


def test_a_name_is_defined_in_one_module_only():
    defined: dict[str, set[Path]] = {}
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name != "main":
                defined.setdefault(node.name, set()).add(path.relative_to(SOURCE))
    assert not {name: paths for name, paths in defined.items() if len(paths) > 1}


def test_only_disk_writes():
    writes = re.compile(
        r"""open\([^)]*["'][wax]b?\+?["']|\.write_(text|bytes)\(|\.mkdir\(|np\.save|os\.replace|savefig\((?!buffer)"""
    )
    in_memory = re.compile(r"np\.savez(_compressed)?\(\s*buffer")
    guilty = [
        path.name
        for path in FILES
        if path.name != "disk.py" and writes.search(in_memory.sub("", path.read_text()))
    ]
    assert not guilty
