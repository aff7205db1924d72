"""The structure of the source: import order, unique names, and file writes only in disk.py."""

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
    """Return the line number of each module or package in the import order of architecture.md."""
    block = (
        PAGE.read_text().partition("## Import order")[2].partition("```\n")[2].partition("```")[0]
    )
    lines = [line.partition("#")[0].split() for line in block.splitlines()]
    return {name: number for number, names in enumerate(lines) for name in names}


ORDER = read_order()


def layer(module: str) -> int:
    """Return the line of a module in the import order, by its name or that of its package."""
    return ORDER[module] if module in ORDER else ORDER[module.split(".")[0]]


def find_imports(path: Path) -> set[str]:
    """Return the modules of ersac that a file imports, at any level."""
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
def test_a_module_imports_only_from_its_own_line_or_above(path):
    module = path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", ".")
    if module.rpartition(".")[2] == "__init__":
        return
    assert not {name for name in find_imports(path) if layer(name) > layer(module)}


def test_the_import_order_names_only_existing_modules():
    packages = {name.split(".")[0] for name in MODULES}
    assert set(ORDER) <= MODULES | packages


def test_a_name_is_defined_in_one_module_only():
    defined: dict[str, set[Path]] = {}
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name != "main":
                defined.setdefault(node.name, set()).add(path.relative_to(SOURCE))
    assert not {name: paths for name, paths in defined.items() if len(paths) > 1}


def test_only_disk_py_writes_files():
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
