"""z3 terms, made by the calls of z3's C interface that `z3.And`, `z3.If` and applying a function end in.

Those of the package find out on each call which sorts they are given; here that is known, and the proofs make millions of terms.
The C interface checks the sorts all the same.
"""

from collections.abc import Callable, Sequence
from typing import Any

import z3
from z3 import z3core

z3.set_param("lp.dio", False)
"""Of its arithmetic, the one part that may go on without end and asks no step limit (`collect_dependent_fresh_vars`)."""
CONTEXT = z3.main_ctx()
REF = CONTEXT.ref()
Term = Any


def _asts(terms: Sequence[Term]) -> Any:
    return (z3.Ast * len(terms))(*[t.ast for t in terms])


def integer(ast: Any) -> z3.ArithRef:
    """An integer term."""
    return z3.ArithRef(ast, CONTEXT)


def truth(ast: Any) -> z3.BoolRef:
    """A truth value."""
    return z3.BoolRef(ast, CONTEXT)


def conj(terms: Sequence[Term]) -> z3.BoolRef:
    """And."""
    return truth(z3core.Z3_mk_and(REF, len(terms), _asts(terms)))


def disj(terms: Sequence[Term]) -> z3.BoolRef:
    """Or."""
    return truth(z3core.Z3_mk_or(REF, len(terms), _asts(terms)))


def neg(term: Term) -> z3.BoolRef:
    """Not."""
    return truth(z3core.Z3_mk_not(REF, term.ast))


def equal(a: Term, b: Term) -> z3.BoolRef:
    """The same value, of one sort."""
    return truth(z3core.Z3_mk_eq(REF, a.ast, b.ast))


def choose(condition: Term, a: Term, b: Term) -> Any:
    """If-then-else."""
    ast = z3core.Z3_mk_ite(REF, condition.ast, a.ast, b.ast)
    return truth(ast) if isinstance(a, z3.BoolRef) else integer(ast)


def add(a: Term, b: Term) -> z3.ArithRef:
    """a + b."""
    return integer(z3core.Z3_mk_add(REF, 2, _asts((a, b))))


def sub(a: Term, b: Term) -> z3.ArithRef:
    """a - b."""
    return integer(z3core.Z3_mk_sub(REF, 2, _asts((a, b))))


def less(a: Term, b: Term) -> z3.BoolRef:
    """a < b."""
    return truth(z3core.Z3_mk_lt(REF, a.ast, b.ast))


def most(a: Term, b: Term) -> z3.BoolRef:
    """a <= b."""
    return truth(z3core.Z3_mk_le(REF, a.ast, b.ast))


def function(name: str, arity: int, truths: bool) -> Callable[..., Any]:
    """A new function from integers to integers, or to truth values."""
    f = z3.Function(name, *[z3.IntSort()] * arity, z3.BoolSort() if truths else z3.IntSort())
    kind = truth if truths else integer

    def apply(*arguments: Term) -> Any:
        return kind(z3core.Z3_mk_app(REF, f.ast, arity, _asts(arguments)))

    return apply
