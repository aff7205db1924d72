"""Mutation operators: a fault names a function, an operator and the index of a matching node.

Nodes are matched in the syntax tree, so faults survive renamed local variables and reformatting.
Only the source text of the matching node is replaced.
"""

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A change of one expression or statement, and the test that must fail because of it."""

    file: str  # below src/ersac
    function: str  # qualified name, such as "mirrored_mlp.apply"; "" for the module
    operator: str  # a key of OPERATORS
    test_file: str  # below tests
    test: str  # "" for all of the file
    index: int = 0  # of the matching nodes of the function, in source order
    near: str | None = None  # an identifier in the matching nodes, not a local variable
    side: str = "right"  # the operand to drop, or the branch of a where: "left" or "right"
    old: str | None = None  # replace: an expression
    new: str | None = None  # replace, constant: an expression; off_by_one: "-1"; see drop_call

    @property
    def test_id(self) -> str:
        """The pytest node id, relative to tests."""
        return "::".join(part for part in (self.test_file, self.test) if part)

    def __str__(self) -> str:
        """Return the file, the function, the operator and its options on one line."""
        options = [f"[{self.index}]"] if self.index else []
        options += [f"near {self.near}"] if self.near else []
        options += ["left"] if self.side == "left" else []
        options += [f"{self.old} ->"] if self.old else []
        options += [self.new] if self.new else []
        return " ".join([self.file, self.function or "(module)", self.operator, *options])


class StaleFault(Exception):
    """A fault that no longer fits the source."""


Operator = Callable[[ast.AST, Fault], ast.AST | None]  # a node -> its replacement, if it matches

SWAPPED_NAMES = {"min": "max", "minimum": "maximum", "argmin": "argmax", "floor": "ceil"}
SWAPPED_NAMES |= {new: old for old, new in SWAPPED_NAMES.items()}
COMPARISONS = {ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.Eq: ast.NotEq}
COMPARISONS |= {ast.Is: ast.IsNot, ast.In: ast.NotIn}
COMPARISONS |= {new: old for old, new in COMPARISONS.items()}
SIGNS = {ast.Add: ast.Sub, ast.Sub: ast.Add}
STATEMENTS = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Raise, ast.Assert, ast.Delete)
ATOMS = (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple)


def flip_sign(node: ast.AST, fault: Fault) -> ast.AST | None:
    """`a + b` to `a - b` and back, `a += b` to `a -= b`, `-a` to `a` unless it is a constant."""
    match node:
        case ast.BinOp(op=ast.Add() | ast.Sub()) | ast.AugAssign(op=ast.Add() | ast.Sub()):
            return _with(node, op=SIGNS[type(node.op)]())
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            return operand
    return None


def _operand(node: ast.BinOp, fault: Fault) -> ast.AST:
    return node.right if fault.side == "left" else node.left


def drop_term(node: ast.AST, fault: Fault) -> ast.AST | None:
    """`a + b` or `a - b` to `a`."""
    match node:
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            return _operand(node, fault)
    return None


def drop_factor(node: ast.AST, fault: Fault) -> ast.AST | None:
    """`a * b` or `a / b` to `a`."""
    match node:
        case ast.BinOp(op=ast.Mult() | ast.Div() | ast.FloorDiv()):
            return _operand(node, fault)
    return None


def drop_power(node: ast.AST, fault: Fault) -> ast.AST | None:
    """`a ** b` or `a % b` to `a`."""
    match node:
        case ast.BinOp(op=ast.Pow() | ast.Mod()):
            return _operand(node, fault)
    return None


def swap_mult_div(node: ast.AST, fault: Fault) -> ast.AST | None:
    """`a / b` to `a * b` and back."""
    match node:
        case ast.BinOp(op=ast.Mult() | ast.Div()):
            return _with(node, op=ast.Div() if isinstance(node.op, ast.Mult) else ast.Mult())
    return None


def swap_operands(node: ast.AST, fault: Fault) -> ast.AST | None:
    """`a - b` to `b - a`, and the same for `/`."""
    match node:
        case ast.BinOp(op=ast.Sub() | ast.Div()):
            return _with(node, left=node.right, right=node.left)
    return None


def drop_mask(node: ast.AST, fault: Fault) -> ast.AST | None:
    """`mask * x` or `x * mask` to `x`, `.add(mask)` to `.add(1)`; a mask has `mask` in its name."""
    match node:
        case ast.Call(func=ast.Attribute(attr="add"), args=[mask]) if _names_mask(mask):
            return _with(node, args=[ast.Constant(1)])
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            if _names_mask(left):
                return right
            if _names_mask(right):
                return left
    return None


def _names_mask(node: ast.AST) -> bool:
    """Return whether a node is a mask, possibly reshaped, transposed or indexed."""
    match node:
        case ast.Name(id=name):
            return "mask" in name
        case ast.Attribute(value=value, attr=name):
            return "mask" in name or _names_mask(value)
        case ast.Subscript(value=inner) | ast.Call(func=inner):
            return _names_mask(inner)
    return False


def drop_where(node: ast.AST, fault: Fault) -> ast.AST | None:
    """`where(condition, a, b)` to `a`; with side "left" to `b`."""
    match node:
        case ast.Call(func=ast.Attribute(attr="where"), args=[_, first, second]):
            return second if fault.side == "left" else first
    return None


def drop_stop_gradient(node: ast.AST, fault: Fault) -> ast.AST | None:
    """`stop_gradient(x)` to `x`."""
    match node:
        case ast.Call(args=[x]) if _name(node.func) == "stop_gradient":
            return x
    return None


def swap_min_max(node: ast.AST, fault: Fault) -> ast.AST | None:
    """`min` to `max` and back, and likewise `minimum`, `argmin` and `floor`."""
    match node:
        case ast.Attribute(attr=name) if name in SWAPPED_NAMES:
            return _with(node, attr=SWAPPED_NAMES[name])
        case ast.Name(id=name) if name in SWAPPED_NAMES:
            return _with(node, id=SWAPPED_NAMES[name])
    return None


def off_by_one(node: ast.AST, fault: Fault) -> ast.AST | None:
    """An integer constant plus one, or minus one if `new` is "-1"."""
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return ast.Constant(value + int(fault.new or 1))
    return None


def constant(node: ast.AST, fault: Fault) -> ast.AST | None:
    """A constant to `new`; `near` is the keyword, name or dictionary key that it is a value of."""
    match node:
        case ast.Constant() if fault.new is not None:
            return _expression(fault.new)
        case ast.MatchSingleton() if fault.new is not None:
            return ast.MatchSingleton(ast.literal_eval(fault.new))
    return None


def negate_condition(node: ast.AST, fault: Fault) -> ast.AST | None:
    """The condition of an `if`, a conditional expression or a `while`, negated."""
    if getattr(node, "is_condition", False):
        return ast.UnaryOp(ast.Not(), node)
    return None


def skip_branch(node: ast.AST, fault: Fault) -> ast.AST | None:
    """The condition of an `if` or a conditional expression to False."""
    return ast.Constant(False) if getattr(node, "is_condition", False) else None


def flip_comparison(node: ast.AST, fault: Fault) -> ast.AST | None:
    """`<` to `<=`, `>` to `>=`, `==` to `!=`, `is` to `is not`, `in` to `not in`, and back."""
    match node:
        case ast.Compare(ops=[op]):
            return _with(node, ops=[COMPARISONS[type(op)]()])
    return None


def drop_condition(node: ast.AST, fault: Fault) -> ast.AST | None:
    """`a and b`, `a or b`, `a & b` or `a | b` without `b`."""
    match node:
        case ast.BinOp(op=ast.BitAnd() | ast.BitOr()):
            return _operand(node, fault)
        case ast.BoolOp(values=values):
            rest = values[1:] if fault.side == "left" else values[:-1]
            return _with(node, values=rest) if len(rest) > 1 else rest[0]
    return None


def drop_call(node: ast.AST, fault: Fault) -> ast.AST | None:
    """`f(x, ...)` to `x`, or to the argument of the position `new`; `near` is the name of f."""
    position = int(fault.new or 0)
    match node:
        case ast.Call(args=arguments) if len(arguments) > position:
            argument = arguments[position]
            return None if isinstance(argument, ast.Starred | ast.GeneratorExp) else argument
    return None


def drop_argument(node: ast.AST, fault: Fault) -> ast.AST | None:
    """`f(x, y)` to `f(x)`, or to `f(y)` with side "left"; `near` is the name of f."""
    match node:
        case ast.Call(args=[_, *rest]) if fault.side == "left":
            return _with(node, args=rest)
        case ast.Call(keywords=[*rest, _]):
            return _with(node, keywords=rest)
        case ast.Call(args=[*rest, _]):
            return _with(node, args=rest)
    return None


def swap_arguments(node: ast.AST, fault: Fault) -> ast.AST | None:
    """`f(a, b, ...)` to `f(b, a, ...)`; `near` is the name of f."""
    match node:
        case ast.Call(args=[first, second, *rest]):
            return _with(node, args=[second, first, *rest])
    return None


def swap_bounds(node: ast.AST, fault: Fault) -> ast.AST | None:
    """`x[a:b]` to `x[-b:-a]`: `x[1:]` to `x[:-1]`, `x[-n:]` to `x[:n]`, and back."""
    match node:
        case ast.Slice(lower=lower, upper=upper) if lower or upper:
            return _with(node, lower=_negative(upper), upper=_negative(lower))
    return None


def drop_bounds(node: ast.AST, fault: Fault) -> ast.AST | None:
    """`x[a:b]` to `x`."""
    match node:
        case ast.Subscript(slice=ast.Slice()):
            return node.value
    return None


def drop_statement(node: ast.AST, fault: Fault) -> ast.AST | None:
    """A simple statement to `pass`."""
    return ast.Pass() if isinstance(node, STATEMENTS) else None


def return_argument(node: ast.AST, fault: Fault) -> ast.AST | None:
    """`return f(x)` to `return p`, where p is the first parameter."""
    parameter = getattr(node, "first_parameter", None)
    if not isinstance(node, ast.Return) or parameter is None:
        return None
    return ast.Return(ast.Name(parameter, ast.Load()))


def replace(node: ast.AST, fault: Fault) -> ast.AST | None:
    """The expression `old` to `new`; single capital letters in them stand for any expression."""
    if fault.old is None or fault.new is None or not isinstance(node, ast.expr):
        return None
    bound: dict[str, ast.AST] = {}
    if not _unify(_expression(fault.old), node, bound):
        return None
    return _Bind(bound).visit(_expression(fault.new))


def _unify(pattern: object, node: object, bound: dict[str, ast.AST]) -> bool:
    """Return whether a node matches a pattern, and bind the letters of the pattern."""
    if isinstance(pattern, ast.Name) and _is_letter(pattern.id):
        if not isinstance(node, ast.expr):
            return False
        return ast.dump(bound.setdefault(pattern.id, node)) == ast.dump(node)
    if isinstance(pattern, list) and isinstance(node, list):
        pairs = zip(pattern, node, strict=False)
        return len(pattern) == len(node) and all(_unify(p, n, bound) for p, n in pairs)
    if isinstance(pattern, ast.AST):
        fields = [name for name, _ in ast.iter_fields(pattern)]
        same = type(pattern) is type(node)
        return same and all(_unify(getattr(pattern, f), getattr(node, f), bound) for f in fields)
    return pattern == node


def _is_letter(name: str) -> bool:
    return len(name) == 1 and name.isupper()


class _Bind(ast.NodeTransformer):
    """Replace letters by the expressions they are bound to."""

    def __init__(self, bound: dict[str, ast.AST]):
        self.bound = bound

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self.bound.get(node.id, node)


OPERATORS: dict[str, Operator] = {
    operator.__name__: operator
    for operator in (
        flip_sign,
        drop_term,
        drop_factor,
        drop_power,
        swap_mult_div,
        swap_operands,
        drop_mask,
        drop_where,
        drop_stop_gradient,
        swap_min_max,
        off_by_one,
        constant,
        negate_condition,
        skip_branch,
        flip_comparison,
        drop_condition,
        drop_call,
        drop_argument,
        swap_arguments,
        swap_bounds,
        drop_bounds,
        drop_statement,
        return_argument,
        replace,
    )
}


def mutate(source: str, fault: Fault) -> str:
    """Return the source with the fault; raise StaleFault if no node matches or nothing changes."""
    tree = ast.parse(source)
    original = ast.dump(tree)
    found = [(node, new) for node in nodes_of(tree, fault.function) if (new := _match(node, fault))]
    found.sort(key=lambda pair: _position(pair[0]))
    if fault.index >= len(found):
        raise StaleFault(f"{len(found)} matching nodes, not {fault.index + 1}")
    node, new = found[fault.index]
    text = _splice(source, node, new)
    _substitute(tree, node, new)
    expected = ast.dump(tree)
    if expected == original:
        raise StaleFault("changes nothing")
    if ast.dump(ast.parse(text)) != expected:
        raise StaleFault("does not parse as it should")
    return text


def nodes_of(tree: ast.Module, function: str) -> Iterator[ast.AST]:
    """Yield the nodes of the functions or classes of a qualified name, without nested functions."""
    scopes = list(_scopes(tree, function.split(".") if function else []))
    if not scopes:
        raise StaleFault("no such function")
    for scope in scopes:
        parameters = [a.arg for a in scope.args.args] if hasattr(scope, "args") else []
        for node in _scope_nodes(scope):
            if isinstance(node, ast.Return) and parameters:
                node.first_parameter = parameters[0]
            yield node


def _scopes(node: ast.AST, names: list[str]) -> Iterator[ast.AST]:
    if not names:
        yield node
        return
    for child in ast.iter_child_nodes(node):
        if not _is_scope(child):
            yield from _scopes(child, names)
        elif child.name == names[0]:
            yield from _scopes(child, names[1:])


def _is_scope(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def _scope_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of a scope except annotations, docstrings and nested scopes.

    Parts of f-strings are excluded too: they have no positions before Python 3.12.
    """
    for field, value in ast.iter_fields(scope):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_scope(child) or _is_docstring(child):
                continue
            if field == "test" and isinstance(scope, ast.If | ast.IfExp | ast.While):
                child.is_condition = True
            if isinstance(child, ast.Constant | ast.MatchSingleton):
                child.owners = _owners(scope, child)
            yield child
            if not isinstance(child, ast.JoinedStr):
                yield from _scope_nodes(child)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _owners(parent: ast.AST, value: ast.AST) -> set[str]:
    """Return the names that a constant is the value of."""
    match parent:
        case ast.keyword(arg=name):
            return {name or ""}
        case ast.Assign(targets=targets):
            return {name for target in targets for name in _identifiers(target)}
        case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
            return _identifiers(target)
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {str(k.value) for k, v in pairs if v is value and isinstance(k, ast.Constant)}
        case ast.MatchClass(kwd_attrs=names, kwd_patterns=patterns):
            pairs = zip(names, patterns, strict=True)
            return {name for name, pattern in pairs if pattern is value}
        case ast.Call(func=func):
            return _identifiers(func)
    return set()


def _match(node: ast.AST, fault: Fault) -> ast.AST | None:
    if fault.operator not in OPERATORS:
        raise StaleFault("no such operator")
    if fault.near is not None and fault.near not in _words(node, fault.operator):
        return None
    return OPERATORS[fault.operator](node, fault)


def _words(node: ast.AST, operator: str) -> set[str]:
    """Return the identifiers that `near` can name."""
    if operator in ("drop_call", "drop_argument", "swap_arguments") and isinstance(node, ast.Call):
        name = _name(node.func)
        return {name} if name else _identifiers(node.func)
    if operator in ("constant", "off_by_one"):
        return getattr(node, "owners", set())
    return _identifiers(node)


def _identifiers(node: ast.AST) -> set[str]:
    found = set()
    for child in ast.walk(node):
        match child:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                found.add(name)
    return found


def _name(func: ast.AST) -> str | None:
    """Return the name of a called function, without its module."""
    match func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return None


def _position(node: ast.AST) -> tuple[int, int]:
    """Return the position of a node's operator: after the first operand, or after a name."""
    match node:
        case ast.BinOp(left=first) | ast.Compare(left=first) | ast.BoolOp(values=[first, *_]):
            return first.end_lineno, first.end_col_offset
        case ast.Call(func=first) | ast.Subscript(value=first):
            return first.end_lineno, first.end_col_offset
        case ast.Attribute():
            return node.end_lineno, node.end_col_offset
    return node.lineno, node.col_offset


def _splice(source: str, node: ast.AST, new: ast.AST) -> str:
    """Return the source with the text of one node replaced; positions are in bytes."""
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    data = b"".join(lines)
    start = starts[node.lineno - 1] + node.col_offset
    end = starts[node.end_lineno - 1] + node.end_col_offset
    text = ast.unparse(ast.fix_missing_locations(new))
    if isinstance(new, ast.expr) and not isinstance(new, ATOMS):
        text = f"({text})"
    return (data[:start] + text.encode() + data[end:]).decode()


def _substitute(tree: ast.AST, node: ast.AST, new: ast.AST) -> None:
    """Replace a node of a tree by another."""
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if value is node:
                setattr(parent, field, new)
                return
            if isinstance(value, list):
                for i, child in enumerate(value):
                    if child is node:
                        value[i] = new
                        return


def _with(node: ast.AST, **fields: object) -> ast.AST:
    """Return a copy of a node with changed fields."""
    copied = copy.copy(node)
    for name, value in fields.items():
        setattr(copied, name, value)
    return copied


def _negative(node: ast.AST | None) -> ast.AST | None:
    match node:
        case None:
            return None
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return operand
    return ast.UnaryOp(ast.USub(), node)


def _expression(source: str) -> ast.expr:
    return ast.parse(source, mode="eval").body
