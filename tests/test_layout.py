"""The structure of the source: import order, unique names, and file writes only in disk.py."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "ersac"
FILES = sorted(SOURCE.rglob("*.py"))
PAGE = Path(__file__).parent.parent / "docs" / "architecture.md"
ROOT = SOURCE.parents[1]
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
        r"""open\([^)]*["'][wax]b?\+?["']|\.write_(text|bytes)\(|\.mkdir\("""
        r"""|np\.save|os\.replace|savefig\((?!buffer)"""
    )
    in_memory = re.compile(r"np\.savez(_compressed)?\(\s*buffer")
    guilty = [
        path.name
        for path in FILES
        if path.name != "disk.py" and writes.search(in_memory.sub("", path.read_text()))
    ]
    assert not guilty


PRIVATE_WORDS = """
    told place Place kind Seen seen kept Kept KEPT facts Facts SeedFacts chance Dice throw Thrown
    Feed food fresh Ring reweight Lens lens emit squashed View Judged begin acting Life live Keeper
    Senses Trained Moment abroad at_sea spoilt Poisoned Damaged departures Manner caught Having Own
    PLAIN verdicts
"""


def identifiers(tree: ast.AST) -> set[tuple[str, int]]:
    """Return the identifiers that a module defines or uses, each with its line."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name("dtype") | ast.Attribute(attr="dtype"), attr="kind"):
                pass  # NumPy's name
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                found.add((name, node.lineno))
            case ast.keyword(arg=str(name)) | ast.alias(asname=str(name)):
                found.add((name, node.lineno))
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add((name, node.lineno))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_identifier_is_a_private_word(path):
    """Names are words of the field: `metrics`, `seed_index` and `stats`, not `told` and `place`."""
    names = identifiers(ast.parse(path.read_text()))
    assert not sorted((line, name) for name, line in names if name in PRIVATE_WORDS.split())


def is_exempt(line: str, path: Path) -> bool:
    """Return whether a line may be long: a Markdown table row, or one word such as a URL."""
    return path.suffix == ".md" and (line.startswith("|") or " " not in line.strip())


def test_no_line_is_longer_than_100_columns():
    folders = [ROOT / name for name in ("src", "tests", "benchmarks")]
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files + pages
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > 100 and not is_exempt(line, path)
    ]
    assert not long
