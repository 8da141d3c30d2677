"""Collections of groups: queues in the order of their keys, calendars by the clock, and the scratch of a swap."""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import filterfalse
from typing import Any

from kvproof.store.maps import MISSING, Journal, Logged, Map

Pair = tuple[tuple[int, ...], tuple[int, ...]]
"""A closed queue: keys and groups, in the order of the keys."""
NOBODY: Pair = ((), ())


class Queue:
    """A finite set of groups in the order of their keys: two parallel lists, the state's tuples until written."""

    __slots__ = ("ids", "key", "keys", "pair")

    def __init__(self, pair: Pair, key: Map[int]) -> None:
        self.pair: Pair | None = pair  # None once written
        self.keys: Any = pair[0]
        self.ids: Any = pair[1]
        self.key = key

    def count(self) -> int:
        """How many groups."""
        return len(self.ids)

    def empty(self) -> bool:
        """Is nobody in it?"""
        return not self.ids

    def first(self) -> int:
        """The group with the smallest key. The queue must not be empty."""
        return self.ids[0]  # type: ignore[no-any-return]

    def last(self) -> int:
        """The group with the largest key. The queue must not be empty."""
        return self.ids[-1]  # type: ignore[no-any-return]

    def has(self, g: int) -> bool:
        """Is g in it?"""
        if not self.ids:
            return False
        i = bisect_left(self.keys, self.key.get(g, 0))
        return i < len(self.ids) and self.ids[i] == g

    def write(self) -> tuple[list[int], list[int]]:
        """The lists, owned by this draft."""
        if self.pair is not None:
            self.keys, self.ids, self.pair = list(self.keys), list(self.ids), None
        return self.keys, self.ids

    def add(self, g: int) -> None:
        """g joins at the place that its key says."""
        keys, ids = self.write()
        key = self.key[g]
        if not keys or keys[-1] < key:
            keys.append(key)
            ids.append(g)
        else:
            i = bisect_left(keys, key)
            keys.insert(i, key)
            ids.insert(i, g)

    def remove(self, g: int) -> None:
        """g, which is in it, leaves."""
        keys, ids = self.write()
        i = bisect_left(keys, self.key[g])
        assert ids[i] == g, f"group {g} is not in the queue at its key"
        del keys[i], ids[i]

    def settle(self) -> None:
        """Keys have changed: the order follows."""
        self.ids = sorted(self.ids, key=self.key.__getitem__)
        self.keys, self.pair = [self.key[g] for g in self.ids], None

    def clear(self) -> None:
        """Nobody is in it."""
        if self.ids:
            self.pair = self.keys, self.ids = NOBODY

    def minus(self, results: "Results", idle: "Queue") -> tuple[int, ...]:
        """Those in it that have no result, and those that are idle."""
        missing = results.missing if results.queue is self.ids else results.lacking(self.ids)
        return tuple({*missing, *idle.ids}) if idle.ids else missing

    def meet(self, results: "Results") -> tuple[int, ...]:
        """Those in it that have a result."""
        if results.ids is None or results.ids == self.ids:
            return tuple(self.ids)
        return tuple(set(self.ids).intersection(results.ids))

    def close(self) -> Pair:
        """What the state keeps. The queue may be edited on."""
        if self.pair is None:
            self.pair = self.keys, self.ids = (tuple(self.keys), tuple(self.ids))
        return self.pair


class Results:
    """The groups that have a result: `ids`, in any order, or None for "all that were scheduled"."""

    __slots__ = ("_set", "ids", "missing", "queue")

    def __init__(self, ids: "Iterable[int] | None" = None) -> None:
        self.ids = None if ids is None else tuple(ids)
        self._set: frozenset[int] | None = None
        self.queue: Any = None  # whom `compare` has seen, and who of them has no result
        self.missing: tuple[int, ...] = ()

    def has(self, g: int) -> bool:
        """Has g a result?"""
        if self.ids is None:
            return True
        if self._set is None:
            self._set = frozenset(self.ids)
        return g in self._set

    def lacking(self, ids: Any) -> tuple[int, ...]:
        """Those of ids that have no result."""
        if self.ids is None or self.ids == ids:
            return ()
        return tuple(filterfalse(set(self.ids).__contains__, ids))

    def compare(self, queue: Pair, away: Pair) -> bool:
        """Is every result of a group in `queue`? Who of them has none is kept for `Queue.minus`.

        Fast if those without are the ones in `away`, which are few, and the results are in the order of the queue. Of few results
        it says no: looking at them one by one is cheaper.
        """
        assert self.ids is not None
        keys, ids = queue
        if self.ids != ids:
            if 2 * len(self.ids) < len(ids):
                return False
            rest, gone = list(ids), []
            if len(rest) - len(away[0]) == len(self.ids):
                for key in reversed(away[0]):
                    gone += rest[(i := bisect_left(keys, key)) : i + 1]
                    del rest[i : i + 1]
            if tuple(rest) != self.ids:
                had = set(self.ids)
                gone = list(filterfalse(had.__contains__, ids))
                if len(had) + len(gone) != len(ids):
                    return False
            self.missing = tuple(gone)
        self.queue = ids
        return True


class Calendar(Logged[Any]):
    """Clock -> set of groups; a bucket is copied when the draft first touches it. `at` says in which bucket a group is."""

    __slots__ = ("at", "key", "own")

    def __init__(self, number: int, journal: Journal, data: dict[Any, Any], at: Logged[int], key: Map[int]) -> None:
        super().__init__(number, journal, data)
        self.at, self.key = at, key
        self.own: dict[int, set[int]] = {}  # the buckets that this draft has touched

    def bucket(self, t: int) -> set[int]:
        """The bucket of clock t, owned by this draft."""
        log = self.log
        if log is None:
            log = self.begin()
        if t not in log:
            log[t] = self.get(t, MISSING)
            self[t] = self.own[t] = set(self.get(t, ()))
        return self.own[t]

    def add(self, g: int, t: int) -> None:
        """g, which is in no bucket, is in that of t."""
        self.at.set(g, t)
        self.bucket(t).add(g)

    def remove(self, g: int) -> None:
        """g leaves the bucket where it is."""
        self.bucket(self.at[g]).remove(g)

    def move(self, g: int, t: int) -> None:
        """g moves to the bucket of t from that where it is."""
        at, own = self.at, self.own
        s = at[g]
        if s == t:
            return
        log = at.log
        if log is None:
            log = at.begin()
        if g not in log:
            log[g] = s
        at[g] = t
        (own[s] if s in own else self.bucket(s)).remove(g)
        (own[t] if t in own else self.bucket(t)).add(g)

    def ordered(self, t: int) -> list[int]:
        """Those in the bucket of t, smallest key first."""
        b = self.get(t)
        return sorted(b, key=self.key.__getitem__) if b else []

    def has(self, t: int, g: int) -> bool:
        """Is g in the bucket of t?"""
        return g in self.get(t, ())

    def settle(self) -> None:
        """The draft is over: no empty buckets stay."""
        for t, bucket in self.own.items():
            if not bucket:
                del self[t]
        self.log = None
        self.own.clear()

    def undo(self) -> None:
        """The draft is over; what it wrote is taken back."""
        super().undo()
        self.own.clear()


class Twin(dict[int, int]):
    """Scratch of one swap: block -> the block of the other device that takes its place."""

    __slots__ = ()

    def has(self, b: int) -> bool:
        """Has b moved already?"""
        return b in self
