"""The mutation operators: what small change can be made where. Each yields (node, description, edit of the copied node)."""

import ast
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

Change = tuple[ast.AST, str, Callable[[Any], None]]
NEIGHBOURS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq, ast.LtE, ast.GtE),
    ast.NotEq: (ast.Eq, ast.Lt, ast.Gt),
    ast.Lt: (ast.LtE, ast.GtE, ast.NotEq),
    ast.LtE: (ast.Lt, ast.Gt, ast.Eq),
    ast.Gt: (ast.GtE, ast.LtE, ast.NotEq),
    ast.GtE: (ast.Gt, ast.Lt, ast.Eq),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
SIGNS = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.In: "in", ast.NotIn: "not in"}
STATUSES = (
    "ABSENT",
    "WAITING",
    "RUNNING",
    "SWAPPED",
    "FINISHED_STOPPED",
    "FINISHED_LENGTH_CAPPED",
    "FINISHED_CAPACITY",
    "FINISHED_ABORTED",
    "FINISHED_IGNORED",
)
ENDS = {"first": "last", "last": "first", "enqueue_front": "enqueue_back", "enqueue_back": "enqueue_front"}
LOOPS = {"repeat": 2, "times": 3, "each_index": 3, "each_member": 1}
"""Method of the draft -> how many arguments stand before those that are passed on; all of these are numbers."""


def become(new: ast.AST) -> Callable[[Any], None]:
    """Turn a node into another in place, so that its parent need not be known."""

    def edit(node: Any) -> None:
        line = {k: getattr(node, k) for k in ("lineno", "col_offset", "end_lineno", "end_col_offset") if hasattr(node, k)}
        node.__class__ = new.__class__
        node.__dict__.clear()
        node.__dict__.update(new.__dict__)
        node.__dict__.update(line)

    return edit


def _set(name: str, value: Any) -> Callable[[Any], None]:
    return lambda node: setattr(node, name, value)


def short(node: ast.AST) -> str:
    """One line of source."""
    return ast.unparse(node).split("\n")[0]


def _around(f: ast.FunctionDef, node: ast.AST) -> str:
    """The innermost statement that a node is in, without its body: descriptions must not depend on line numbers."""
    inside = [s for s in ast.walk(f) if isinstance(s, ast.stmt) and s is not f and any(n is node for n in ast.walk(s))]
    return short(inside[-1]) if inside else f.name


def _documentation(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _statements(f: ast.FunctionDef) -> Iterator[Change]:
    """Drop a statement: an assignment or call above all; a conditional one runs always, or never."""
    for node in ast.walk(f):
        if node is f or not isinstance(node, ast.stmt) or _documentation(node) or isinstance(node, ast.Pass):
            continue
        if isinstance(node, ast.Return) and node.value is None:
            yield node, "drop return", become(ast.Pass())
        elif isinstance(node, ast.AnnAssign):
            continue
        else:
            yield node, f"drop {short(node)}", become(ast.Pass())


def _conditions(f: ast.FunctionDef) -> Iterator[Change]:
    """Negate a condition; exchange and/or; leave out an operand; a returned truth value too."""
    for node in ast.walk(f):
        test = getattr(node, "test", None)
        if isinstance(test, ast.expr):
            yield test, f"negate {short(test)}", become(ast.UnaryOp(ast.Not(), test))
        if isinstance(node, ast.BoolOp):
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield node, f"{short(node)}: and <-> or", _set("op", other)
            for i, value in enumerate(node.values):
                rest = [v for j, v in enumerate(node.values) if j != i]
                new = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
                yield node, f"{short(node)}: without {short(value)}", become(new)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node, f"{short(node)}: without not", become(node.operand)
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield node, f"{_around(f, node)}: {node.value} -> {not node.value}", _set("value", not node.value)


def _comparisons(f: ast.FunctionDef) -> Iterator[Change]:
    """Each comparison to its neighbours, and its bound one more or less."""
    for node in ast.walk(f):
        if not isinstance(node, ast.Compare) or len(node.ops) != 1:
            continue
        for op in NEIGHBOURS[type(node.ops[0])]:
            yield node, f"{short(node)}: to {SIGNS.get(op, op.__name__)}", _set("ops", [op()])
        right = node.comparators[0]
        is_status = isinstance(right, ast.Attribute) and right.attr in STATUSES
        if isinstance(node.ops[0], (ast.Is, ast.IsNot, ast.In, ast.NotIn)) or isinstance(right, ast.Constant) or is_status:
            continue
        for sign, step in (("+", ast.Add()), ("-", ast.Sub())):
            more = ast.BinOp(right, step, ast.Constant(1))
            yield node, f"{short(node)}: {sign} 1", _set("comparators", [more])


def _numbers(f: ast.FunctionDef) -> Iterator[Change]:
    """+-1 on integers; plus and minus exchanged; a sign dropped."""
    for node in ast.walk(f):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            for value in (node.value + 1, node.value - 1):
                yield node, f"{_around(f, node)}: {node.value} -> {value}", become(ast.Constant(value))
        if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, (ast.Add, ast.Sub)):
            other = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
            yield node, f"{short(node)}: {'+ to -' if isinstance(node.op, ast.Add) else '- to +'}", _set("op", other)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            yield node, f"{short(node)}: without minus", become(node.operand)


def _names(f: ast.FunctionDef) -> Iterator[Change]:
    """The other end of a queue; another status, mode or device."""
    for node in ast.walk(f):
        if isinstance(node, ast.Attribute) and node.attr in ("first", "last") and not _attribute(node.value, "members"):
            yield node, f"{short(node)}: the other end", _set("attr", ENDS[node.attr])
        if isinstance(node, ast.Name) and node.id in ENDS and node.id.startswith("enqueue"):
            yield node, f"{node.id}: the other end", _set("id", ENDS[node.id])
        if isinstance(node, ast.Attribute) and node.attr in STATUSES:
            i = STATUSES.index(node.attr)
            for other in (STATUSES[i - 1], STATUSES[(i + 1) % len(STATUSES)]):
                yield node, f"{_around(f, node)}: Status.{node.attr} -> {other}", _set("attr", other)


def _attribute(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name


def _calls(f: ast.FunctionDef, signatures: dict[str, list[str]]) -> Iterator[Change]:
    """Two arguments of one type exchanged; a keyword left out."""
    for node in ast.walk(f):
        if not isinstance(node, ast.Call):
            continue
        for i, keyword in enumerate(node.keywords):
            rest = [k for j, k in enumerate(node.keywords) if j != i]
            yield node, f"{short(node)}: without {keyword.arg}", _set("keywords", rest)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        types = signatures.get(name, [])
        if name in LOOPS:
            types = [""] * LOOPS[name] + ["int"] * (len(node.args) - LOOPS[name])
        for i, j in combinations(range(min(len(types), len(node.args))), 2):
            a, b = node.args[i], node.args[j]
            if types[i] and types[i] == types[j] and types[i] != "Draft" and ast.dump(a) != ast.dump(b):
                args = list(node.args)
                args[i], args[j] = b, a
                yield node, f"{short(node)}: {short(a)} <-> {short(b)}", _set("args", args)


def changes(f: ast.FunctionDef, signatures: dict[str, list[str]]) -> Iterator[Change]:
    """Every change of a function."""
    for some in (_statements(f), _conditions(f), _comparisons(f), _numbers(f), _names(f), _calls(f, signatures)):
        yield from some
