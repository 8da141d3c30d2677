"""The logic of the specification: bools on bools, solver terms on symbolic values.

A symbolic value (made in `kvproof.proofs.sym`) carries its own connectives, so nothing here knows a solver.
"""

from collections.abc import Callable
from typing import Any

Truth = Any
"""bool, or a symbolic truth value."""


def _symbolic(xs: tuple[Any, ...]) -> Any:
    for x in xs:
        if type(x) is not bool and hasattr(x, "logic"):
            return x.logic
    return None


def both(*xs: Truth) -> Truth:
    """All of them."""
    s = _symbolic(xs)
    return s.conj(xs) if s is not None else all(xs)


def either(*xs: Truth) -> Truth:
    """At least one of them."""
    s = _symbolic(xs)
    return s.disj(xs) if s is not None else any(xs)


def negate(x: Truth) -> Truth:
    """Not x."""
    s = _symbolic((x,))
    return s.neg(x) if s is not None else not x


def implies(a: Truth, b: Truth | Callable[[], Truth]) -> Truth:
    """If a then b. Where b cannot be read unless a holds, give a function."""
    s = _symbolic((a,))
    if s is None and not callable(b):
        s = _symbolic((b,))
    if s is not None:
        return s.disj((s.neg(a), b() if callable(b) else b))
    return not a or bool(b() if callable(b) else b)


def iff(a: Truth, b: Truth) -> Truth:
    """Both or neither."""
    s = _symbolic((a, b))
    return s.iff(a, b) if s is not None else bool(a) == bool(b)


def choose(c: Truth, a: Any, b: Any) -> Any:
    """a if c else b."""
    s = _symbolic((c, a, b))
    return s.ite(c, a, b) if s is not None else (a if c else b)
