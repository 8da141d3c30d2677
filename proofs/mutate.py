"""Mutants of the core: one small change each, of every function, and some named ones that real schedulers have had.

A mutant is the source of a module with one change. `switched` puts the changed code behind the very function objects of the core,
so that whoever imported them runs it: engines, the refuter and the proofs alike.
"""

import ast
import copy
import hashlib
import importlib
import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import attrs

import kvproof.core
from kvproof.proofs.operators import ENDS, become, changes


@attrs.frozen
class Mutant:
    """One change. `source`: the whole module with it."""

    module: str
    function: str
    line: int
    change: str
    source: str = attrs.field(repr=False)
    named: bool = False
    both: str | None = attrs.field(default=None, repr=False)
    """For a changed expression: the module with `same_(original, changed)` in its place."""

    @property
    def where(self) -> str:
        """module.function:line"""
        return f"{self.module}.{self.function}:{self.line}"

    @property
    def key(self) -> str:
        """What a cached result is kept under, with the sources."""
        return hashlib.sha256(f"{self.module}.{self.function}\n{self.source}".encode()).hexdigest()[:24]


def folder() -> Path:
    """Where the sources of the core are."""
    return Path(next(iter(kvproof.core.__path__)))


@cache
def text(module: str) -> str:
    """The source of a module of the core."""
    return (folder() / f"{module}.py").read_text()


@cache
def modules() -> tuple[str, ...]:
    """The modules of the core that have functions."""
    names = sorted(p.stem for p in folder().glob("*.py"))
    return tuple(n for n in names if any(isinstance(x, ast.FunctionDef) for x in ast.walk(ast.parse(text(n)))))


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions and methods of a module, with the names that reports use; functions inside functions belong to those."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    yield f"{node.name}.{inner.name}", inner


@cache
def signatures() -> dict[str, list[str]]:
    """Function of the core or method of a draft's collection -> the types of its arguments, without `self`."""
    import kvproof.store

    out: dict[str, list[str]] = {}
    store = Path(next(iter(kvproof.store.__path__)))
    trees = [ast.parse((store / f"{n}.py").read_text()) for n in ("collections", "plan", "draft")]
    trees += [ast.parse(text(m)) for m in modules()]
    for tree in trees:
        for name, f in functions(tree):
            arguments = [a for a in f.args.args if a.arg != "self"]
            out[name.split(".")[-1]] = [ast.unparse(a.annotation) if a.annotation else "" for a in arguments]
    return out


def _find(tree: ast.Module, original: ast.Module, node: ast.AST) -> Any:
    """The node of a copy that stands where `node` stands in the original."""
    return next(b for a, b in zip(ast.walk(original), ast.walk(tree), strict=True) if a is node)


def _mutants_of(module: str) -> Iterator[Mutant]:
    original = ast.parse(text(module))
    plain = ast.unparse(original)
    seen = {plain}
    for name, f in functions(original):
        for node, description, edit in changes(f, signatures()):
            tree = copy.deepcopy(original)
            edit(_find(tree, original, node))
            if unbound(original, tree, name):
                continue
            source = ast.unparse(ast.fix_missing_locations(tree))
            unknown = description.startswith("enqueue_") and ENDS[description.split(":")[0]] not in text(module)
            if source not in seen and not unknown:
                seen.add(source)
                yield Mutant(
                    module, name, getattr(node, "lineno", f.lineno), description, source, both=_both(original, node, edit)
                )


def _bound(f: ast.FunctionDef) -> set[str]:
    return {n.id for n in ast.walk(f) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def unbound(original: ast.Module, mutant: ast.Module, name: str) -> bool:
    """Does the mutant read a variable that nothing sets? Any compiler or linter refuses that, so it is no mutant."""
    old, new = (next(f for n, f in functions(tree) if n == name) for tree in (original, mutant))
    read = {n.id for n in ast.walk(new) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return bool((_bound(old) - _bound(new)) & read)


def _both(original: ast.Module, node: ast.AST, edit: Any) -> str | None:
    """The module in which the expression and its mutant are evaluated side by side."""
    if not isinstance(node, ast.expr):
        return None
    tree = copy.deepcopy(original)
    place = _find(tree, original, node)
    old, new = copy.deepcopy(place), copy.deepcopy(place)
    edit(new)
    become(ast.Call(ast.Name("same_", ast.Load()), [old, new], []))(place)
    return ast.unparse(ast.fix_missing_locations(tree))


# --- faults that real schedulers have had -----------------------------------------------------------------------------------
NAMED: tuple[tuple[str, str, str, str, str], ...] = (
    (
        "blocks",
        "take_block",
        "named: a block twice in one table",
        "    d.table.extend(g, q, d.gpu)\n",
        "    d.table.extend(g, q, d.gpu)\n    if d.table.size(g, q) == 2:\n"
        "        d.table.put(g, q, 1, d.table.block(g, q, 0))\n",
    ),
    (
        "running",
        "can_swap",
        "named: a pool level read after the swap",
        "    return host_blocks(d, g) <= d.cpu.n",
        "    return host_blocks(d, g) <= d.cpu.n + d.table.distinct(g)",
    ),
    (
        "running",
        "recompute",
        "named: skipped reset of computed tokens",
        "    d.computed[g] = 0\n    d.status[g] = Status.WAITING",
        "    d.status[g] = Status.WAITING",
    ),
    (
        "blocks",
        "unshare",
        "named: shared tail written without a copy",
        "    if d.refs.shared(source):\n",
        "    if False:\n",
    ),
    (
        "blocks",
        "give_back",
        "named: abort that forgets host blocks",
        "        else:\n            d.cpu.push(b)\n",
        "",
    ),
    (
        "running",
        "uncharge",
        "named: budget not given back",
        "    if not d.config.vllm_v0 and not d.prefilling.has(g):\n        d.spent -= d.members.count(g)",
        "    return",
    ),
    (
        "profiles",
        "has_room",
        "named: watermark that blocks for ever",
        "    if d.config.vllm_v0 or not d.running.empty():\n"
        "        return d.gpu.n - d.owing - blocks >= d.config.watermark_blocks\n"
        "    return d.gpu.n - d.owing >= blocks",
        "    return d.gpu.n - d.owing - blocks >= d.config.watermark_blocks",
    ),
    (
        "running",
        "preempt",
        "named: a preemption that nobody counts",
        "    evict(d, g, wish)\n    d.preemptions[g] += 1",
        "    evict(d, g, wish)",
    ),
    (
        "promises",
        "needed",
        "named: a protected request admitted like any other",
        "    if d.may_go(g):\n        return blocks\n    whole =",
        "    return blocks\n    whole =",
    ),
)


def named() -> list[Mutant]:
    """The named mutants. A patch that no longer fits is an error: it would test nothing."""
    out = []
    for module, function, change, old, new in NAMED:
        source = text(module)
        if source.count(old) != 1:
            raise ValueError(f"the patch {change!r} does not fit core/{module}.py")
        line = source[: source.index(old)].count("\n") + 1
        out.append(Mutant(module, function, line, change, source.replace(old, new), named=True))
    return out


@cache
def every() -> tuple[Mutant, ...]:
    """All of them."""
    return (*named(), *(m for module in modules() for m in _mutants_of(module)))


def mutants(only: str | None = None) -> list[Mutant]:
    """All of them, or those of one function (`function` or `module.function`)."""
    return [m for m in every() if only is None or only in (m.function, f"{m.module}.{m.function}", m.module)]


def is_known(name: str) -> bool:
    """Is it a module of the core, or a function (`function` or `module.function`)?"""
    some = {(module, function) for module in modules() for function, _ in functions(ast.parse(text(module)))}
    return any(name in (module, function, f"{module}.{function}") for module, function in some)


def find(function: str, change: str) -> Mutant:
    """The mutant of `module.function` with this description, or with its start."""
    return next(m for m in mutants(function) if m.change.startswith(change))


# --- running one ------------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=4)
def _code(source: str, module: str) -> dict[str, types.CodeType]:
    """The code of each top-level function."""
    whole = compile(source, f"<mutant of core/{module}.py>", "exec")
    return {c.co_name: c for c in whole.co_consts if isinstance(c, types.CodeType)}


@contextmanager
def switched(mutant: Mutant, source: str | None = None) -> Iterator[None]:
    """Inside, the function objects of the core run the mutant's code (or `source`); so do the classes of `config`."""
    home = importlib.import_module(f"kvproof.core.{mutant.module}")
    if mutant.module == "config":  # a class made by decorators: all of it is made again
        made = namespace(mutant)
        old = {name: value for name, value in vars(home).items() if isinstance(value, type) and value.__module__ == home.__name__}
        vars(home).update({name: made[name] for name in old})
        try:
            yield
        finally:
            vars(home).update(old)
        return
    real = getattr(home, mutant.function, None)
    if not isinstance(real, types.FunctionType):
        yield
        return
    kept = real.__code__
    real.__code__ = _code(source or mutant.source, mutant.module)[mutant.function]
    try:
        yield
    finally:
        real.__code__ = kept


def namespace(mutant: Mutant) -> dict[str, Any]:
    """The mutant's module, executed on its own: for `Config`, which nothing in the core imports at run time."""
    module = types.ModuleType(f"kvproof.core.{mutant.module}")
    exec(compile(mutant.source, f"<mutant of core/{mutant.module}.py>", "exec"), module.__dict__)
    return module.__dict__


@cache
def calls() -> dict[str, frozenset[str]]:
    """Function of the core -> the functions of the core that its body names."""
    trees = {m: ast.parse(text(m)) for m in modules()}
    names = {f.name for tree in trees.values() for _, f in functions(tree)}
    out: dict[str, frozenset[str]] = {}
    for tree in trees.values():
        for _, f in functions(tree):
            out[f.name] = frozenset(n.id for n in ast.walk(f) if isinstance(n, ast.Name) and n.id in names)
    return out


def reach(root: str, stop: tuple[str, ...]) -> set[str]:
    """The functions that run when `root` does and summaries stand in for those in `stop`."""
    graph, seen, todo = calls(), set[str](), [root]
    while todo:
        f = todo.pop()
        if f not in seen:
            seen.add(f)
            todo += [x for x in graph.get(f, ()) if x not in stop]
    return seen
