"""What some Python versions get wrong is not in the source."""

import ast
import builtins
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "ersac"
FILES = sorted(SOURCE.rglob("*.py"))
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp)  # which Python 3.12 inlines
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def own_nodes(scope: ast.AST) -> list[ast.AST]:
    """The nodes of a scope without those of the functions and classes inside it."""
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(scope):
        found.append(child)
        if not isinstance(child, SCOPES):
            found += own_nodes(child)
    return found


def names(nodes: list[ast.AST], context: type) -> set[str]:
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, context)}


def find_hidden_globals(tree: ast.AST) -> list[str]:
    """Loop variables of comprehensions that a class body or function also reads as globals.

    Python 3.12.0 to 3.12.3 take such a name for an unbound local variable (cpython gh-118513).
    """
    found = []
    for scope in (node for node in ast.walk(tree) if isinstance(node, SCOPES)):
        nodes = own_nodes(scope)
        comprehensions = [node for node in nodes if isinstance(node, COMPREHENSIONS)]
        inside: set[ast.AST] = {n for c in comprehensions for n in ast.walk(c)}
        loop = names([n for c in comprehensions for n in own_nodes(c)], ast.Store)
        outside = [node for node in nodes if node not in inside]
        bound = names(outside, ast.Store) | {n.arg for n in nodes if isinstance(n, ast.arg)}
        read = names(outside, ast.Load)
        for name in (loop & read) - bound:
            found.append(f"{getattr(scope, 'name', 'lambda')}: {name}")
    return found


def test_the_scan_finds_the_case_of_the_bug():
    bad = "def form(x): return x\ndef f(xs):\n    ys = [form for form in xs]\n    return form(ys)"
    assert find_hidden_globals(ast.parse(bad)) == ["f: form"]
    good = bad.replace("form for form", "item for item")
    assert find_hidden_globals(ast.parse(good)) == []
    local = "def f(xs):\n    x = 1\n    ys = [x for x in xs]\n    return x, ys"
    assert find_hidden_globals(ast.parse(local)) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_comprehension_hides_a_global_from_python_3_12(path):
    assert not find_hidden_globals(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_loop_variable_is_a_builtin(path):
    tree = ast.parse(path.read_text())
    loops = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.comprehension)
        for target in ast.walk(node.target)
        if isinstance(target, ast.Name)
    }
    assert not loops & set(dir(builtins))
