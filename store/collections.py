"""Collections of the draft. Each is opened over what the state holds, edited in place, and closed again."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

from kvproof.store.maps import MISSING, Journal, Logged, Map

Cell = tuple[int, Any] | None
Pair = tuple[tuple[int, ...], tuple[int, ...]]
"""A closed queue: keys and groups, in the order of the keys."""
NOBODY: Pair = ((), ())


class Stack:
    """Free blocks as cons cells, `n` of them: push and take are O(1), and old versions stay valid."""

    __slots__ = ("cell", "n")

    def __init__(self, cell: Cell, n: int) -> None:
        self.cell, self.n = cell, n

    def take(self) -> int:
        """The block pushed last; its first reference is the caller's. The stack must not be empty."""
        b, self.cell = self.cell  # type: ignore[misc]
        self.n -= 1
        return b

    def push(self, b: int) -> None:
        """b is free."""
        self.cell = (b, self.cell)
        self.n += 1


def cells(blocks: Iterable[int]) -> Cell:
    """A stack of these blocks, the first on top."""
    cell: Cell = None
    for b in reversed(list(blocks)):
        cell = (b, cell)
    return cell


def cell_blocks(cell: Cell) -> list[int]:
    """The blocks of a stack, the top first."""
    blocks = []
    while cell is not None:
        blocks.append(cell[0])
        cell = cell[1]
    return blocks


class Refs(Logged[int]):
    """Reference counts of used blocks. Only counts above 1 are stored: few blocks are shared."""

    __slots__ = ()

    def share(self, b: int) -> None:
        """One more reference to a used block."""
        self.set(b, self.get(b, 1) + 1)

    def drop(self, b: int) -> bool:
        """One reference less; True if it was the last."""
        if b not in self:
            return True
        count = self[b]
        if count == 2:
            self.discard(b)
        else:
            self.set(b, count - 1)
        return False

    def shared(self, b: int) -> bool:
        """Has the used block b more than one reference?"""
        return b in self


NEW_ROW: tuple[list[int], int] = ([], 0)
ONE = (0,)
FIRST_ONLY = (ONE, 1)


class Members(Logged[Any]):
    """Group -> the indices of its live sequences, ascending. A group that never forked stores nothing: it has sequence 0."""

    __slots__ = ()

    def of(self, g: int) -> tuple[int, ...]:
        """The live sequences of g."""
        return self[g][0] if g in self else ONE

    def start(self, g: int) -> None:
        """g has one sequence, 0."""

    def first(self, g: int) -> int:
        """The smallest index of a live sequence of g."""
        return self[g][0][0] if g in self else 0

    def count(self, g: int) -> int:
        """How many sequences of g live."""
        return len(self[g][0]) if g in self else 1

    def has(self, g: int, q: int) -> bool:
        """Is q a live sequence of g?"""
        return q in self.of(g)

    def add(self, g: int) -> int:
        """One sequence more, with an index never used before."""
        live, q = self.get(g, FIRST_ONLY)
        self.set(g, ((*live, q), q + 1))
        return q  # type: ignore[no-any-return]

    def remove(self, g: int, q: int) -> None:
        """Sequence q of g lives no more."""
        live, bound = self.get(g, FIRST_ONLY)
        self.set(g, (tuple(x for x in live if x != q), bound))


class Table(Logged[Any]):
    """Block tables: (group, sequence) -> its blocks, and counts over the tables of a group.

    A row is (list, visible length). A list only grows at its end, so versions can share it: who sees a shorter part of it
    copies before writing. The row of sequence 0 is stored under the group itself. The blocks of one row differ.
    """

    __slots__ = ("members", "owned", "slots")

    def __init__(self, number: int, journal: Journal, data: dict[Any, Any], members: Members) -> None:
        super().__init__(number, journal, data)
        self.members = members
        self.slots: list[tuple[int, int, int, int]] = []  # the plan's announcements
        self.owned: set[Any] = set()  # rows that this draft has copied

    def settle(self) -> None:
        """The draft is over: its rows are shared from now on."""
        self.log = None
        self.owned.clear()

    def undo(self) -> None:
        """The draft is over; what it wrote is taken back."""
        super().undo()
        self.owned.clear()

    def size(self, g: int, q: int) -> int:
        """Blocks in the table of sequence q of g."""
        k = (g, q) if q else g
        return self[k][1] if k in self else 0

    def height(self, g: int) -> int:
        """Blocks in the table of the first live sequence of g."""
        if g not in self.members:
            return self[g][1] if g in self else 0
        return self.size(g, self.members[g][0][0])

    def block(self, g: int, q: int, i: int) -> int:
        """The i-th block of q."""
        return self[(g, q) if q else g][0][i]  # type: ignore[no-any-return]

    def append(self, g: int, q: int, b: int) -> None:
        """b is the last block of q, and the plan says so."""
        self.extend(g, q, Stack((b, None), 1))

    def extend(self, g: int, q: int, pool: Stack) -> None:
        """The last block of q is one taken from the pool, with its first reference, and the plan says so."""
        b, pool.cell = pool.cell  # type: ignore[misc]
        pool.n -= 1
        k = (g, q) if q else g
        log = self.log
        if log is None:
            log = self.begin()
        blocks, n = row = self.get(k, NEW_ROW)
        if k not in log:
            log[k] = row if n else MISSING
        if n != len(blocks) or not n:
            blocks = blocks[:n]
        blocks.append(b)
        self[k] = (blocks, n + 1)
        self.slots.append((g, q, n, b))

    def pop_block(self, g: int, q: int) -> int:
        """Take the last block off the table of q, which must not be empty."""
        k = (g, q) if q else g
        blocks, n = self[k]
        if n == 1:
            self.discard(k)
        else:
            self.set(k, (blocks, n - 1))
        return blocks[n - 1]  # type: ignore[no-any-return]

    def put(self, g: int, q: int, i: int, b: int) -> None:
        """The i-th block of q is now b. The row is copied once per draft."""
        k = (g, q) if q else g
        blocks, n = self[k]
        if k not in self.owned:
            blocks = blocks[:n]
            self.set(k, (blocks, n))
            self.owned.add(k)
        blocks[i] = b

    def distinct(self, g: int) -> int:
        """Different blocks in the tables of g."""
        members = self.members.of(g)
        if len(members) == 1:
            return self.size(g, members[0])
        return len({b for q in members for b in row(self, g, q)})

    def pending_copies(self, g: int) -> int:
        """Copies made when each sequence of g writes its last block in turn: of n that share one, the last writes in place."""
        members = self.members.of(g)
        if len(members) == 1:
            return 0
        return len(members) - len({row(self, g, q)[-1] for q in members})


def row(rows: Mapping[Any, Any], g: int, q: int) -> list[int]:
    """A copy of the table of sequence q of g, in any version."""
    blocks, n = rows.get((g, q) if q else g, NEW_ROW)
    return blocks[:n]  # type: ignore[no-any-return]


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

    def clear(self) -> None:
        """Nobody is in it."""
        if self.ids:
            self.pair = self.keys, self.ids = NOBODY

    def minus(self, results: "Results") -> tuple[int, ...]:
        """Those in it that have no result."""
        if results.ids is None or results.ids == self.ids:
            return ()
        return tuple(set(self.ids).difference(results.ids)) if results.ids else tuple(self.ids)

    def close(self) -> Pair:
        """What the state keeps. The queue may be edited on."""
        if self.pair is None:
            self.pair = self.keys, self.ids = (tuple(self.keys), tuple(self.ids))
        return self.pair


class Results:
    """The groups that have a result: `ids`, in any order, or None for "all that were scheduled"."""

    __slots__ = ("ids",)

    def __init__(self, ids: "Iterable[int] | None" = None) -> None:
        self.ids = None if ids is None else tuple(ids)


class Calendar(Logged[Any]):
    """Clock -> set of groups; a bucket is copied when the draft first touches it. `at` says in which bucket a group is."""

    __slots__ = ("at", "key")

    def __init__(self, number: int, journal: Journal, data: dict[Any, Any], at: Logged[int], key: Map[int]) -> None:
        super().__init__(number, journal, data)
        self.at, self.key = at, key

    def bucket(self, t: int) -> set[int]:
        """The bucket of clock t, owned by this draft."""
        log = self.log
        if log is None:
            log = self.begin()
        if t not in log:
            log[t] = self.get(t, MISSING)
            self[t] = set(self.get(t, ()))
        return self[t]  # type: ignore[no-any-return]

    def add(self, g: int, t: int) -> None:
        """g, which is in no bucket, is in that of t."""
        self.at.set(g, t)
        self.bucket(t).add(g)

    def remove(self, g: int) -> None:
        """g leaves the bucket where it is."""
        self.bucket(self.at[g]).remove(g)

    def move(self, g: int, t: int) -> None:
        """g moves to the bucket of t from that where it is."""
        at, buckets = self.at, self.log or ()
        log = at.log
        if log is None:
            log = at.begin()
        s = at[g]
        if g not in log:
            log[g] = s
        at[g] = t
        (self[s] if s in buckets else self.bucket(s)).remove(g)
        (self[t] if t in buckets else self.bucket(t)).add(g)

    def ordered(self, t: int) -> list[int]:
        """Those in the bucket of t, smallest key first."""
        b = self.get(t)
        return sorted(b, key=self.key.__getitem__) if b else []

    def has(self, t: int, g: int) -> bool:
        """Is g in the bucket of t?"""
        return g in self.get(t, ())

    def settle(self) -> None:
        """The draft is over: no empty buckets stay."""
        for t in self.log or ():
            if not self[t]:
                del self[t]
        self.log = None


class Twin(dict[int, int]):
    """Scratch of one swap: block -> the block of the other device that takes its place."""

    __slots__ = ()

    def has(self, b: int) -> bool:
        """Has b moved already?"""
        return b in self
