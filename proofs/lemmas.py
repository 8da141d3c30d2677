"""The laws of finite sets that `shapes.py` and the rules assume, each proved by induction.

count(f, n) is how many k in [0, n) have f(k) != 0; a finite set of groups or blocks is such an f below some bound.
"""

from collections.abc import Callable, Iterator
from typing import Any

import z3

_I = z3.IntSort()
_k, _n, _b, _v, _j, _m = z3.Ints("k n b v j m")
_f, _g, _count, _count2 = (z3.Function(x, _I, _I) for x in ("f", "g", "count", "count2"))
_sum, _sum2, _w = (z3.Function(x, _I, _I) for x in ("sum", "sum2", "w"))


def _one(x: Any) -> Any:
    return z3.If(x != 0, 1, 0)


def _counts(count: Any, f: Any) -> list[Any]:
    step = z3.ForAll([_k], z3.Implies(_k >= 0, count(_k + 1) == count(_k) + _one(f(_k))), patterns=[count(_k + 1)])
    return [count(0) == 0, step]


def _sums(total: Any, f: Any) -> list[Any]:
    step = z3.ForAll([_k], z3.Implies(_k >= 0, total(_k + 1) == total(_k) + f(_k)), patterns=[total(_k + 1)])
    return [total(0) == 0, step]


def _check(facts: list[Any], goal: Any, seed: int) -> str:
    s = z3.Solver()
    s.set("smt.random_seed", seed)
    s.set("rlimit", 10_000_000)
    s.add(*facts, z3.Not(goal))
    return str(s.check())


def _induction(facts: list[Any], claim: Callable[[Any], Any], seed: int) -> str:
    base = _check(facts, claim(z3.IntVal(0)), seed)
    return base if base != "unsat" else _check([*facts, _n >= 0, claim(_n)], claim(_n + 1), seed)


def prove_all(seed: int = 0) -> Iterator[tuple[str, str]]:
    """(law, verdict of the solver on its negation) for each."""
    f, g = _f, _g
    counted = _counts(_count, f)
    write = z3.ForAll([_k], g(_k) == z3.If(_k == _b, _v, f(_k)), patterns=[g(_k)])
    yield "a size is between 0 and the bound", _induction(counted, lambda n: z3.And(_count(n) >= 0, _count(n) <= n), seed)
    last = [z3.ForAll([_k], z3.Implies(_k >= 0, _w(_k + 1) == z3.If(f(_k) != 0, _k, _w(_k))), patterns=[_w(_k + 1)])]
    yield (
        "a set whose size is not 0 has a member",
        _induction([*counted, *last], lambda n: z3.Implies(_count(n) != 0, z3.And(_w(n) >= 0, _w(n) < n, f(_w(n)) != 0)), seed),
    )
    yield (
        "a set with a member has a size of at least 1",
        _induction([*counted, _b >= 0, f(_b) != 0], lambda n: z3.And(_count(n) >= 0, z3.Implies(_b < n, _count(n) >= 1)), seed),
    )
    yield (
        "two members make a size of at least 2 (so a set of size 1 has one)",
        _induction(
            [*counted, _b >= 0, _j > _b, f(_b) != 0, f(_j) != 0],
            lambda n: z3.And(_count(n) >= 0, z3.Implies(_b < n, _count(n) >= 1), z3.Implies(_j < n, _count(n) >= 2)),
            seed,
        ),
    )
    changed = [*counted, *_counts(_count2, g), write, _b >= 0]
    yield (
        "adding or removing one changes the size by one",
        _induction(changed, lambda n: _count2(n) == _count(n) + z3.If(_b < n, _one(_v) - _one(f(_b)), 0), seed),
    )
    subset = [*counted, *_counts(_count2, g), z3.ForAll([_k], z3.Implies(g(_k) != 0, f(_k) != 0), patterns=[g(_k)])]
    yield "a subset is not larger", _induction(subset, lambda n: _count2(n) <= _count(n), seed)
    yield (
        "a subset that lacks a member is smaller",
        _induction(
            [*subset, _b >= 0, f(_b) != 0, g(_b) == 0],
            lambda n: z3.And(_count2(n) <= _count(n), z3.Implies(_b < n, _count2(n) < _count(n))),
            seed,
        ),
    )
    total = [*_sums(_sum, f), z3.ForAll([_k], f(_k) >= 0, patterns=[f(_k)])]
    yield (
        "a sum is at least each of its terms",
        _induction([*total, _b >= 0], lambda n: z3.And(_sum(n) >= 0, z3.Implies(_b < n, _sum(n) >= f(_b))), seed),
    )
    yield (
        "a sum of numbers of which none is negative is 0, or one of them is at least 1",
        _induction([*total, *last], lambda n: z3.Implies(_sum(n) != 0, z3.And(_w(n) >= 0, _w(n) < n, f(_w(n)) >= 1)), seed),
    )
    yield (
        "a sum of numbers of at least 1 over a set is at least its size",
        _induction([*total, *counted], lambda n: _sum(n) >= _count(n), seed),
    )
    yield (
        "a write changes a sum by the change",
        _induction(
            [*_sums(_sum, f), *_sums(_sum2, g), write, _b >= 0],
            lambda n: _sum2(n) == _sum(n) + z3.If(_b < n, _v - f(_b), 0),
            seed,
        ),
    )
    size = z3.Int("size")
    span = [size >= 1, _sum(0) == 0, z3.ForAll([_k], _sum(_k + 1) == _sum(_k) + size, patterns=[_sum(_k + 1)])]
    yield "more blocks have more slots", _induction([*span, _b >= 0], lambda n: _sum(_b) <= _sum(_b + n), seed)
    rises = z3.ForAll([_k, _n], z3.Implies(_k <= _n, _sum(_k) <= _sum(_n)), patterns=[z3.MultiPattern(_sum(_k), _sum(_n))])
    least = [rises, _sum(_b - 1) < _v, _v <= _sum(_n)]
    yield "the least number of blocks that holds so many tokens has no more slots", _check(least, _sum(_b) <= _sum(_n), seed)
    product = [_sum(0) == 0, z3.ForAll([_k], _sum(_k + 1) == _sum(_k) + _b, patterns=[_sum(_k + 1)])]
    yield (
        "so many blocks for each of n sequences: none for none, n for one each, not less for more, never less than none",
        _induction(
            product,
            lambda n: z3.And(
                z3.Implies(_b == 0, _sum(n) == 0),
                z3.Implies(_b == 1, _sum(n) == n),
                z3.Implies(_b >= 1, _sum(n) >= n),
                z3.Implies(_b >= 0, _sum(n) >= 0),
                z3.Implies(n == 1, _sum(n) == _b),
            ),
            seed,
        ),
    )
    yield from _pigeonhole(seed)


def _pigeonhole(seed: int) -> Iterator[tuple[str, str]]:
    """An injection of [0, n) into [0, m) forces n <= m: the used blocks of one group are no more than it holds."""
    h = z3.Function("h", _I, _I)

    def injective(f: Any, n: Any, m: Any) -> Any:
        inside = z3.ForAll([_k], z3.Implies(z3.And(_k >= 0, _k < n), z3.And(f(_k) >= 0, f(_k) < m)), patterns=[f(_k)])
        apart = z3.ForAll(
            [_k, _j], z3.Implies(z3.And(_k >= 0, _k < _j, _j < n), f(_k) != f(_j)), patterns=[z3.MultiPattern(f(_k), f(_j))]
        )
        return z3.And(inside, apart)

    yield "pigeonhole, base", _check([injective(_f, z3.IntVal(0), _m), _m >= 0], _m >= 0, seed)
    redirect = z3.ForAll([_k], h(_k) == z3.If(_f(_k) == _m - 1, _f(_n), _f(_k)), patterns=[h(_k)])
    facts = [_n >= 0, injective(_f, _n + 1, _m), redirect, _f(_n) == _f(_n)]
    yield "pigeonhole, step", _check(facts, z3.And(_m >= 1, injective(h, _n, _m - 1)), seed)
