"""The mutation operators of `make sabotage`: each replaces one node and nothing else."""

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("mutation", Path(__file__).with_name("mutation.py"))
mutation = importlib.util.module_from_spec(SPEC)
sys.modules["mutation"] = mutation  # dataclasses look up their module by name
SPEC.loader.exec_module(mutation)


def fault(operator: str, function: str = "f", **options) -> mutation.Fault:
    return mutation.Fault("file.py", function, operator, "test_file.py", "test_name", **options)


def in_function(expression: str) -> str:
    return f'def f(x, mask):\n    """One - two."""\n    return  {expression}  # a + b\n'


CASES = [
    ("flip_sign", "a + b + c", {}, "(a - b) + c"),
    ("flip_sign", "a + b + c", {"index": 1}, "(a + b - c)"),
    ("flip_sign", "a * -b[-1]", {}, "a * b[-1]"),
    ("drop_term", "a - b", {}, "a"),
    ("drop_term", "(a - b) * c", {"side": "left"}, "(b) * c"),
    ("drop_factor", "a * (b + c)", {"side": "left"}, "(b + c)"),
    ("drop_factor", "1 - a / b", {}, "1 - a"),
    ("drop_power", "(a + b) % c", {}, "(a + b)"),
    ("swap_mult_div", "a / b", {}, "(a * b)"),
    ("swap_operands", "(a + 1) / b", {}, "(b / (a + 1))"),
    ("drop_mask", "a * t.mask.T * b", {}, "a * b"),
    ("drop_mask", "a.at[i].add(mask)", {}, "a.at[i].add(1)"),
    ("drop_where", "jnp.where(a, b, c) + d", {}, "b + d"),
    ("drop_where", "jnp.where(a, b, c) + d", {"side": "left"}, "c + d"),
    ("drop_stop_gradient", "a * jax.lax.stop_gradient(b + c)", {}, "a * (b + c)"),
    ("swap_min_max", "jnp.minimum(a, min(b))", {}, "jnp.maximum(a, min(b))"),
    ("swap_min_max", "jnp.minimum(a, min(b))", {"index": 1}, "jnp.minimum(a, max(b))"),
    ("off_by_one", "a[1:]", {}, "a[2:]"),
    ("off_by_one", "a[1:]", {"new": "-1"}, "a[0:]"),
    ("constant", "f(1, side='right')", {"near": "side", "new": "'left'"}, "f(1, side='left')"),
    ("constant", "{'a': 1, 'b': 2}", {"near": "b", "new": "3"}, "{'a': 1, 'b': 3}"),
    ("negate_condition", "a if b else c", {}, "a if (not b) else c"),
    ("skip_branch", "a if b else c", {}, "a if False else c"),
    ("flip_comparison", "a < b", {}, "(a <= b)"),
    ("flip_comparison", "a is None", {}, "(a is not None)"),
    ("drop_condition", "a and b or c", {}, "a or c"),
    ("drop_condition", "a & b", {"side": "left"}, "b"),
    ("drop_call", "f(jnp.sqrt(a), b)", {"near": "sqrt"}, "f(a, b)"),
    ("drop_call", "f(g(a, b), c)", {"near": "g", "new": "1"}, "f(b, c)"),
    ("drop_argument", "f(a, b, c=d)", {}, "f(a, b)"),
    ("drop_argument", "f(a, b)", {"side": "left"}, "f(b)"),
    ("swap_arguments", "f(a, b, c)", {}, "f(b, a, c)"),
    ("swap_bounds", "a[1:] + b", {}, "a[:-1] + b"),
    ("swap_bounds", "a[-n:]", {}, "a[:n]"),
    ("drop_bounds", "f(a)[:n]", {}, "f(a)"),
    ("return_argument", "f(a)", {}, "x"),
    ("replace", "f( a,b )[ 0 ]", {"old": "f(a, b)", "new": "a"}, "a[0]"),
    ("replace", "f(a[i, j], b)", {"old": "A[B, C]", "new": "A[B, 0]"}, "f(a[i, 0], b)"),
    ("replace", "f(a, b) + f(c, c)", {"old": "f(A, A)", "new": "A"}, "f(a, b) + c"),
]


@pytest.mark.parametrize(("operator", "before", "options", "after"), CASES)
def test_an_operator_replaces_one_node_and_nothing_else(operator, before, options, after):
    source = in_function(before)
    mutated = mutation.mutate(source, fault(operator, **options))
    assert ast.dump(ast.parse(mutated)) == ast.dump(ast.parse(in_function(after)))
    assert mutated.startswith(source[: source.index("return")])
    assert mutated.endswith("  # a + b\n")


def test_every_operator_has_a_case():
    assert {case[0] for case in CASES} | {"drop_statement"} == set(mutation.OPERATORS)


def test_drop_statement_replaces_a_statement_by_pass():
    start, end = "def f(a):\n    g(a)\n    for b in a:\n        ", "  # why\n    return a\n"
    source = f"{start}h(\n            b){end}"
    assert mutation.mutate(source, fault("drop_statement", near="h")) == f"{start}pass{end}"


SCOPES = """
A = 1 + 2

class C:
    b: int = 3 + 4

    def f(self, x=5 + 6):
        def g(y):
            return y + 7
        h = lambda z: z + 8
        return f"{x + 9}" + "ü" + g(h(x))
"""


COUNTS = [("", 1), ("C", 1), ("C.f", 4), ("C.f.g", 1), ("g", None)]


@pytest.mark.parametrize(("function", "count"), COUNTS)
def test_nodes_exclude_nested_functions(function, count):
    """They include lambdas and defaults, but not annotations and f-strings."""
    if count is None:
        with pytest.raises(mutation.StaleFault, match="no such function"):
            mutation.mutate(SCOPES, fault("flip_sign", function))
        return
    mutated = {mutation.mutate(SCOPES, fault("flip_sign", function, index=i)) for i in range(count)}
    assert len(mutated) == count
    for source in mutated:
        ast.parse(source)
        lines = zip(source.split("\n"), SCOPES.split("\n"), strict=True)
        assert sum(a != b for a, b in lines) == 1
    with pytest.raises(mutation.StaleFault, match=f"{count} matching nodes"):
        mutation.mutate(SCOPES, fault("flip_sign", function, index=count))


def test_a_fault_survives_renamed_variables_and_reformatting():
    one = "def f(a, b):\n    c = a * jnp.sqrt(b)\n    return stop_gradient(c + a)\n"
    other = "def f(x,\n      y):\n    z = (x\n      * jnp.sqrt(y))\n    return stop_gradient(z+x)\n"
    renamed = str.maketrans("xyz", "abc")
    faults = fault("drop_call", near="sqrt"), fault("flip_sign"), fault("drop_stop_gradient")
    for found in faults:
        first, second = (mutation.mutate(source, found) for source in (one, other))
        assert ast.dump(ast.parse(first)) == ast.dump(ast.parse(second.translate(renamed)))


@pytest.mark.parametrize(
    "stale",
    [
        fault("flip_sign", index=1),
        fault("flip_sign", near="jnp"),
        fault("no_such_operator"),
        fault("replace", old="x + mask", new="x + mask"),
        fault("replace", old="x - mask", new="x"),
    ],
)
def test_a_stale_fault_is_an_error(stale):
    with pytest.raises(mutation.StaleFault):
        mutation.mutate(in_function("x + mask"), stale)
