"""A forking symbolic executor with drafts: plain Python that edits collections in place runs on z3 values.

Every path re-executes the function from a fresh draft, so in-place edits need no copy. `bool()` of a symbolic truth value is
a fork: the run takes the branch of its prefix, or the True branch, and leaves the other for later. A map is a closure over
z3 terms; a write wraps it in an If. There is one run at a time in a process.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import z3

from kvproof.proofs import terms

_fresh = itertools.count()
_current: "Run | None" = None
_depth = 0


Goal = tuple[str, int, Any]
"""An obligation: its label, how many facts precede it (-1: it is one of them), its term."""


class PathEnd(Exception):  # noqa: N818
    """This path contributes only the obligations that it has recorded."""


def run() -> "Run":
    """The run in progress."""
    assert _current is not None, "no symbolic run"
    return _current


def raw(x: Any) -> Any:
    """The z3 term of a symbolic or plain value."""
    if isinstance(x, (SInt, SBool)):
        return x.e
    if isinstance(x, bool):
        return z3.BoolVal(x)
    return z3.IntVal(int(x))


class Logic:
    """The connectives that `kvproof.spec.logic` finds on symbolic values."""

    @staticmethod
    def conj(xs: Any) -> "SBool":
        """And."""
        return SBool(terms.conj([raw(x) for x in xs]))

    @staticmethod
    def disj(xs: Any) -> "SBool":
        """Or."""
        return SBool(terms.disj([raw(x) for x in xs]))

    @staticmethod
    def neg(x: Any) -> "SBool":
        """Not."""
        return SBool(terms.neg(raw(x)))

    @staticmethod
    def iff(a: Any, b: Any) -> "SBool":
        """Equal truth values."""
        return SBool(terms.equal(raw(a), raw(b)))

    @staticmethod
    def ite(c: Any, a: Any, b: Any) -> Any:
        """If-then-else on integers or truth values."""
        e = terms.choose(raw(c), raw(a), raw(b))
        return SBool(e) if z3.is_bool(e) else SInt(e)


class SBool:
    """A symbolic truth value."""

    __slots__ = ("e",)
    __hash__ = None  # type: ignore[assignment]
    logic = Logic

    def __init__(self, e: Any) -> None:
        self.e = e

    def __bool__(self) -> bool:
        return run().branch(self.e)

    def __eq__(self, o: object) -> "SBool":  # type: ignore[override]
        return SBool(terms.equal(self.e, raw(o)))

    def __ne__(self, o: object) -> "SBool":  # type: ignore[override]
        return SBool(terms.neg(terms.equal(self.e, raw(o))))


class SInt:
    """A symbolic integer, unbounded."""

    __slots__ = ("e",)
    __hash__ = None  # type: ignore[assignment]
    logic = Logic

    def __init__(self, e: Any) -> None:
        self.e = e

    def __add__(self, o: Any) -> "SInt":
        return SInt(terms.add(self.e, raw(o)))

    def __sub__(self, o: Any) -> "SInt":
        return SInt(terms.sub(self.e, raw(o)))

    def __rsub__(self, o: Any) -> "SInt":
        return SInt(terms.sub(raw(o), self.e))

    def __neg__(self) -> "SInt":
        return SInt(-self.e)

    def __mul__(self, o: int) -> "SInt":
        return SInt(self.e * z3.IntVal(o))

    __radd__ = __add__

    def __eq__(self, o: object) -> SBool:  # type: ignore[override]
        return SBool(terms.equal(self.e, raw(o)))

    def __ne__(self, o: object) -> SBool:  # type: ignore[override]
        return SBool(terms.neg(terms.equal(self.e, raw(o))))

    def __lt__(self, o: Any) -> SBool:
        return SBool(terms.less(self.e, raw(o)))

    def __le__(self, o: Any) -> SBool:
        return SBool(terms.most(self.e, raw(o)))

    def __gt__(self, o: Any) -> SBool:
        return SBool(terms.less(raw(o), self.e))

    def __ge__(self, o: Any) -> SBool:
        return SBool(terms.most(raw(o), self.e))


class Dual(SBool):
    """A truth proved in one form and assumed in an equivalent one that is cheaper for the solver."""

    __slots__ = ("assumed",)
    __hash__ = None

    def __init__(self, proved: SBool, assumed: SBool) -> None:
        super().__init__(proved.e)
        self.assumed = assumed


def unused(name: str) -> str:
    """A name that nothing in this run has. The same code gives the same names, so obligations of two cores can be compared."""
    return f"{name}!{next(_fresh)}" if _current is None else f"{name}.{next(_current.names)}"


def fresh(name: str = "x") -> SInt:
    """An integer about which nothing is known."""
    return SInt(z3.Int(unused(name)))


def fresh_bool(name: str = "c") -> SBool:
    """A truth value about which nothing is known."""
    return SBool(z3.Bool(unused(name)))


def quantified() -> bool:
    """Are bound variables in scope? Then no facts may be added about terms."""
    return _depth > 0


def forall(n: int, body: Callable[..., Any], patterns: Callable[..., list[list[Any]]] | None = None) -> SBool:
    """For all n integers. Patterns (reads of unwritten maps only) say when the solver instantiates it."""
    global _depth
    xs = [z3.Int(f"q{_depth}_{i}") for i in range(n)]  # named by depth, so that a clause built twice is one term
    wrapped = [SInt(x) for x in xs]
    _depth += 1
    try:
        b = raw(body(*wrapped))
        ps = []
        for p in patterns(*wrapped) if patterns else []:
            terms = [raw(t) for t in p]
            if all(t.decl().kind() == z3.Z3_OP_UNINTERPRETED and t.num_args() for t in terms):
                ps.append(z3.MultiPattern(*terms) if len(terms) > 1 else terms[0])
    finally:
        _depth -= 1
    return SBool(z3.ForAll(xs, b, patterns=ps, qid=body.__qualname__) if ps else z3.ForAll(xs, b, qid=body.__qualname__))


class ZMap:
    """Int^n -> Int or Bool, edited in place; `read` is replaced at each write and identifies the version."""

    def __init__(self, name: str, arity: int = 1, truth: bool = False) -> None:
        self.name, self.arity, self.truth = name, arity, truth
        self.read: Callable[..., Any] = lambda *k: None
        self.havoc()

    def havoc(self) -> None:
        """Forget everything."""
        f = terms.function(unused(self.name), self.arity, self.truth)
        self.read = lambda *k: f(*k)  # a function of its own each time: its identity tells the version

    def fill(self, value: Any) -> None:
        """The same value everywhere."""
        v = raw(value)
        self.read = lambda *k: v

    def snap(self) -> "ZMap":
        """A copy that later writes do not change."""
        m: ZMap = object.__new__(type(self))
        m.__dict__.update(self.__dict__)
        return m

    def __getitem__(self, k: Any) -> Any:
        e = self.read(*[raw(x) for x in (k if isinstance(k, tuple) else (k,))])
        return SBool(e) if z3.is_bool(e) else SInt(e)

    def __setitem__(self, k: Any, v: Any) -> None:
        k0, v0, old = [raw(x) for x in (k if isinstance(k, tuple) else (k,))], raw(v), self.read
        self.read = lambda *k: terms.choose(terms.conj([terms.equal(a, b) for a, b in zip(k, k0, strict=True)]), v0, old(*k))

    def update(self, change: Callable[..., Any]) -> None:
        """A bulk write: `change(old, *k)` is the new value at k."""
        old = self.read
        self.read = lambda *k: raw(change(SBool(old(*k)) if self.truth else SInt(old(*k)), *[SInt(x) for x in k]))


class Run:
    """One path: what it assumes (branches and facts, in order) and the obligations it records."""

    def __init__(self, prefix: list[bool], prune: bool = True) -> None:
        self.prefix, self.prune = prefix, prune
        self.names = itertools.count()
        self.trail: list[bool] = []
        self.pending: list[list[bool]] = []
        self.log: list[Any] = []
        self.goals: list[Goal] = []
        self.decided: dict[int, tuple[Any, bool]] = {}
        self.notes: dict[str, Any] = {}
        self.asked: dict[Any, list[tuple[Any, Any, Any]]] = {}  # questions and their answers so far
        self.known: dict[int, Any] = {}
        self.local: Local | None = None
        self.quick = z3.Solver()
        self.quick.set("smt.mbqi", False)
        self.quick.set("rlimit", 60000)

    def branch(self, e: Any) -> bool:
        """Decide a condition on this path."""
        e = z3.simplify(e)
        if z3.is_true(e):
            return True
        if z3.is_false(e):
            return False
        if e.get_id() in self.decided:
            return self.decided[e.get_id()][1]
        if self.local is not None:
            return self.local.branch(self, e)
        i = len(self.trail)
        d = self.prefix[i] if i < len(self.prefix) else self._choose(e)
        self.trail.append(d)
        self.assume_raw(e if d else z3.Not(e))
        self.decided[e.get_id()] = (e, d)
        return d

    def _choose(self, e: Any) -> bool:
        if self.prune:
            if self._refuted(e):
                return False
            if self._refuted(z3.Not(e)):
                return True
        self.pending.append([*self.trail, False])
        return True

    def impossible(self, es: list[Any]) -> bool:
        """Can a quick look refute these conditions on this path?"""
        return self.prune and self._refuted(z3.And(*es))

    def _refuted(self, e: Any) -> bool:
        self.quick.push()
        self.quick.add(e)
        result = self.quick.check()
        self.quick.pop()
        return bool(result == z3.unsat)

    def assume_raw(self, e: Any) -> None:
        """A fact, as a z3 term."""
        if self.local is not None and self.local.conditions:
            e = z3.Implies(z3.And(*self.local.conditions), e)
        self.log.append(e)
        self.known[e.get_id()] = e
        if self.prune and not has_quantifier(e):
            self.quick.add(e)

    def assume(self, b: Any) -> None:
        """A fact of this path from here on."""
        if isinstance(b, Dual):
            self.known[b.e.get_id()] = b.e
        self.assume_raw(raw(b.assumed if isinstance(b, Dual) else b))

    def prove(self, name: str, b: Any) -> None:
        """An obligation here. One recorded before the last branch of the prefix was recorded by an earlier path as well."""
        if len(self.trail) >= len(self.prefix):
            e = raw(b)
            if self.local is not None and self.local.conditions:
                e = z3.Implies(z3.And(*self.local.conditions), e)
            trivial = e.get_id() in self.known or z3.is_true(z3.simplify(e))
            self.goals.append((name, -1 if trivial else len(self.log), e))


class Local:
    """The branches inside one call of a predicate: they are merged into one value instead of forking the path."""

    def __init__(self, prefix: list[bool]) -> None:
        self.prefix = prefix
        self.trail: list[bool] = []
        self.conditions: list[Any] = []
        self.decided: dict[int, tuple[Any, bool]] = {}
        self.pending: list[list[bool]] = []

    def branch(self, r: Run, e: Any) -> bool:
        """Decide a condition inside the call."""
        if e.get_id() in self.decided:
            return self.decided[e.get_id()][1]
        i = len(self.trail)
        if i < len(self.prefix):
            d = self.prefix[i]
        elif r.impossible([*self.conditions, e]):
            d = False
        else:
            d = True
            if not r.impossible([*self.conditions, z3.Not(e)]):
                self.pending.append([*self.trail, False])
        self.trail.append(d)
        self.conditions.append(e if d else z3.Not(e))
        self.decided[e.get_id()] = (e, d)
        return d


def same_version(a: Any, b: Any) -> bool:
    """Do these tell one version of (a part of) a draft?"""
    if isinstance(a, tuple):
        return all(same_version(x, y) for x, y in zip(a, b, strict=True))
    if a is b:
        return True
    return isinstance(a, (bool, int, str)) and isinstance(b, (bool, int, str)) and a == b


def merged(fn: Callable[..., Any], steady: bool = True) -> Callable[..., Any]:
    """The function, on every path at once: for functions that only read, so that a question does not fork the caller.

    steady: asked again about the same draft it gives the same answer, which is then the same term.
    """

    def call(*args: Any) -> Any:
        r = run()
        if r.local is not None:
            return fn(*args)
        if not steady:
            return ask(r, *args)
        d, *more = args
        about, versions = [raw(x) for x in more], tuple(d.versions().values())
        for others, then, answer in r.asked.setdefault(fn, []):
            if all(a.eq(b) for a, b in zip(about, others, strict=True)) and same_version(versions, then):
                return answer
        answer = ask(r, *args)
        r.asked[fn].append((about, versions, answer))
        return answer

    def ask(r: Run, *args: Any) -> Any:
        answers: list[tuple[Any, Any]] = []
        todo: list[list[bool]] = [[]]
        while todo:
            r.local = Local(todo.pop())
            try:
                value = raw(fn(*args))
                answers.append((z3.And(*r.local.conditions), value))
                todo += r.local.pending
            finally:
                r.local = None
        e = answers[-1][1]
        for condition, value in reversed(answers[:-1]):
            e = z3.If(condition, value, e)
        e = z3.simplify(e)
        if z3.is_bool(e):
            return SBool(e)
        named = fresh(fn.__name__)  # a name may stand in a pattern, a choice may not
        r.assume(named == SInt(e))
        return named

    return call


def has_quantifier(e: Any) -> bool:
    """Does the term contain a quantifier?"""
    seen, todo = set(), [e]
    while todo:
        t = todo.pop()
        if z3.is_quantifier(t):
            return True
        if t.get_id() not in seen:
            seen.add(t.get_id())
            todo.extend(t.children())
    return False


def explore(fn: Callable[[], Any], prune: bool = True) -> Iterator[Run]:
    """Run fn on every path."""
    global _current
    todo: list[list[bool]] = [[]]
    while todo:
        _current = r = Run(todo.pop(), prune)
        try:
            fn()
        except PathEnd:
            pass
        finally:
            _current = None
        todo += r.pending
        yield r
