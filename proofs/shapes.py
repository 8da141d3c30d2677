"""Symbolic readings of the collections of `kvproof.store`.

A precondition of an operation becomes an obligation, its contract becomes facts. Ghosts live only here: the bijection
(group, sequence, index) <-> (block, k) with 0 <= k < references, which makes "the count is the number of table entries" a
first-order statement, and counters of finite sets, whose laws are proved by induction in `lemmas.py`.
"""

from typing import Any

from kvproof.proofs.block_shapes import ZERO, Shape, ZMembers, assume, prove
from kvproof.proofs.sym import ZMap, forall, fresh, run
from kvproof.spec.logic import both, either, implies, negate


def at_most(a: Any, b: Any) -> Any:
    """a <= b."""
    return a <= b


def at_least(a: Any, b: Any) -> Any:
    """a >= b."""
    return a >= b


class ZQueue(Shape):
    """A finite set ordered by key, with its size, the number of sequences in it, and the seats that they take."""

    parts = ("has_", "n", "live", "weight")

    def __init__(self, name: str, key: ZMap, members: ZMembers, seats: ZMap) -> None:
        self.has_, self.n = ZMap(name, 1, truth=True), fresh(name + "_n")
        self.live, self.weight = fresh(name + "_live"), fresh(name + "_weight")
        self.key, self.members, self.seats = key, members, seats
        self.contract()

    def contract(self) -> None:
        """The size of a finite set: not negative, and 0 exactly when nobody is in it; then it has no sequences."""
        assume(implies(self.n == 0, both(self.live == 0, self.weight == 0)))
        w = fresh("somebody")
        assume(both(self.n >= 0, either(self.n == 0, self.has_[w])))
        assume(forall(1, lambda g: implies(self.has_[g], self.n >= 1), lambda g: [[self.has_[g]]]))

    def has(self, g: Any) -> Any:
        """Is g in it?"""
        return self.has_[g]

    def count(self) -> Any:
        """How many groups."""
        return self.n

    def empty(self) -> Any:
        """Nobody?"""
        self.contract()
        return self.n == 0

    def add(self, g: Any) -> None:
        """g joins. Obligation: it is not there."""
        prove("one_queue: add: not in it already", negate(self.has_[g]))
        self.has_[g] = True
        self.n = self.n + 1
        self.live, self.weight = self.live + self.members.n[g], self.weight + self.seats[g]
        self.contract()

    def remove(self, g: Any) -> None:
        """g leaves. Obligation: it is there."""
        prove("one_queue: remove: is in it", self.has_[g])
        self.has_[g] = False
        self.n = self.n - 1
        self.live, self.weight = self.live - self.members.n[g], self.weight - self.seats[g]
        self.contract()

    def clear(self) -> None:
        """Nobody is in it."""
        self.has_.fill(False)
        self.n, self.live, self.weight = ZERO, ZERO, ZERO

    def minus(self, results: "ZResults", idle: "ZQueue") -> "ZIds":
        """Those in it without a result, and those that are idle."""
        has, got, late = self.has_.snap(), results, idle.has_.snap()
        return ZIds(lambda g: either(both(has[g], negate(got.has(g))), late[g]))

    def meet(self, results: "ZResults") -> "ZIds":
        """Those in it with a result."""
        has, got = self.has_.snap(), results
        return ZIds(lambda g: both(has[g], got.has(g)))

    def _end(self, ahead: Any) -> Any:
        """Asked again about the same queue it gives the same answer."""
        asked = run().asked.setdefault(ahead, [])
        for has, key, w in asked:
            if has is self.has_.read and key is self.key.read:
                return w
        w = self._find_end(ahead)
        if run().local is None:  # else what is known of it holds on a branch only
            asked.append((self.has_.read, self.key.read, w))
        return w

    def _find_end(self, ahead: Any) -> Any:
        prove("requires: first/last: not empty", negate(forall(1, lambda g: negate(self.has_[g]), lambda g: [[self.has_[g]]])))
        w = fresh("end")
        assume(both(self.has_[w], self.n >= 1))
        assume(
            forall(1, lambda g: implies(self.has_[g], ahead(self.key[w], self.key[g])), lambda g: [[self.has_[g]]]),
        )
        return w

    def first(self) -> Any:
        """The smallest key. Obligation: somebody is in it."""
        return self._end(at_most)

    def last(self) -> Any:
        """The largest key. Obligation: somebody is in it."""
        return self._end(at_least)


class ZResults:
    """Any set of groups."""

    def __init__(self) -> None:
        self.of = ZMap("result", 1, truth=True)

    def has(self, g: Any) -> Any:
        """Has g a result?"""
        return self.of[g]


class ZNumbers:
    """Any finite set of groups, with a number for each."""

    def __init__(self) -> None:
        self.has_, self.of = ZMap("numbered", 1, truth=True), ZMap("number")

    def has(self, g: Any) -> Any:
        """Has g a number?"""
        return self.has_[g]


class ZIds:
    """A finite set of groups, as a predicate."""

    def __init__(self, has: Any) -> None:
        self.has = has


class ZCalendar(Shape):
    """Clock -> set of groups; `at` says in which bucket a group is."""

    parts = ("has_",)

    def __init__(self, name: str, at: ZMap) -> None:
        self.has_, self.at = ZMap(name, 2, truth=True), at

    def has(self, t: Any, g: Any) -> Any:
        """Is g in the bucket of t?"""
        return self.has_[t, g]

    def add(self, g: Any, t: Any) -> None:
        """Obligation: g is in no bucket."""
        prove("calendar: add: in no bucket", forall(1, lambda u: negate(self.has_[u, g]), lambda u: [[self.has_[u, g]]]))
        self.has_[t, g] = True
        self.at[g] = t

    def remove(self, g: Any) -> None:
        """Obligation: it is where `at` says."""
        t = self.at[g]
        prove("calendar: remove: is there", self.has_[t, g])
        self.has_[t, g] = False

    def move(self, g: Any, t: Any) -> None:
        """To the bucket of t."""
        self.remove(g)
        self.add(g, t)


class ZSum(Shape):
    """A number for each group, finitely many of them not 0, and their sum. Laws (`lemmas.py`): if none is negative, the sum is
    at least each of them, and one is not 0 unless it is 0."""

    parts = ("of", "total")

    def __init__(self, name: str) -> None:
        self.of, self.total = ZMap(name), fresh(name + "_total")
        self.contract()

    def contract(self) -> None:
        """The laws."""
        w, none_negative = fresh("owed"), forall(1, lambda g: self.of[g] >= 0, lambda g: [[self.of[g]]])
        most = forall(1, lambda g: self.of[g] <= self.total, lambda g: [[self.of[g]]])
        assume(either(negate(none_negative), both(self.total >= 0, most, either(self.total == 0, self.of[w] >= 1))))

    def __getitem__(self, g: Any) -> Any:
        return self.of[g]

    def __setitem__(self, g: Any, n: Any) -> None:
        self.total = self.total + n - self.of[g]
        self.of[g] = n
        self.contract()


class ZTwin(Shape):
    """Scratch of one swap: a partial map, with the size of its domain."""

    parts = ("dom", "of", "inverse", "n")

    def __init__(self) -> None:
        self.dom, self.of, self.inverse, self.n = ZMap("twinned", 1, truth=True), ZMap("twin"), ZMap("twin_of"), fresh("twins")

    def clear(self) -> None:
        """Nothing has moved."""
        self.dom.fill(False)
        self.inverse.fill(-1)
        self.n = ZERO

    def has(self, b: Any) -> Any:
        """Has b moved?"""
        return self.dom[b]

    def __getitem__(self, b: Any) -> Any:
        prove("requires: twin: has moved", self.dom[b])
        return self.of[b]

    def __setitem__(self, b: Any, c: Any) -> None:
        prove("requires: twin: has not moved", negate(self.dom[b]))
        self.dom[b] = True
        self.of[b] = c
        self.inverse[c] = b
        self.n = self.n + 1
