"""Collections of the draft. Each is opened over what the state holds, edited in place, and closed again."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

from kvproof.store.maps import MISSING, Journal, Map

Cell = tuple[int, Any] | None
Pair = tuple[tuple[int, ...], tuple[int, ...]]
"""A closed queue: keys and groups, in the order of the keys."""
NOBODY: Pair = ((), ())


class Stack:
    """Free blocks as cons cells: push and pop are O(1), and old versions stay valid."""

    __slots__ = ("cell", "n")

    def __init__(self, cell: Cell, n: int) -> None:
        self.cell, self.n = cell, n

    def count(self) -> int:
        """How many blocks are free."""
        return self.n

    def pop(self) -> int:
        """Take the block pushed last. The stack must not be empty."""
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


class Refs(Map[int]):
    """Reference counts of used blocks. Only counts above 1 are stored: few blocks are shared."""

    __slots__ = ()

    def take(self, b: int) -> None:
        """0 -> 1: nothing is stored."""

    def share(self, b: int) -> None:
        """One more reference to a used block."""
        self[b] = self.data.get(b, 1) + 1

    def drop(self, b: int) -> bool:
        """One reference less; True if it was the last."""
        count = self.data.get(b, 1)
        if count == 1:
            return True
        if count == 2:
            self.discard(b)
        else:
            self[b] = count - 1
        return False

    def shared(self, b: int) -> bool:
        """Has the used block b more than one reference?"""
        return b in self.data


EMPTY: tuple[list[int], int] = ([], 0)
ONE = (0,)
FIRST_ONLY = (ONE, 1)


class Members(Map[Any]):
    """Group -> the indices of its live sequences, ascending. A group that never forked stores nothing: it has sequence 0."""

    __slots__ = ()

    def of(self, g: int) -> tuple[int, ...]:
        """The live sequences of g."""
        return self.data[g][0] if g in self.data else ONE

    def start(self, g: int) -> None:
        """g has one sequence, 0."""

    def first(self, g: int) -> int:
        """The smallest index of a live sequence of g."""
        return self.data[g][0][0] if g in self.data else 0

    def count(self, g: int) -> int:
        """How many sequences of g live."""
        return len(self.data[g][0]) if g in self.data else 1

    def has(self, g: int, q: int) -> bool:
        """Is q a live sequence of g?"""
        return q in self.of(g)

    def add(self, g: int) -> int:
        """One sequence more, with an index never used before."""
        live, q = self.data.get(g, FIRST_ONLY)
        self[g] = ((*live, q), q + 1)
        return q  # type: ignore[no-any-return]

    def remove(self, g: int, q: int) -> None:
        """Sequence q of g lives no more."""
        live, bound = self.data.get(g, FIRST_ONLY)
        self[g] = (tuple(x for x in live if x != q), bound)


class Table(Map[Any]):
    """Block tables: (group, sequence) -> its blocks, and counts over the tables of a group.

    A row is (list, visible length). A list only grows at its end, so versions can share it: who sees a shorter part of it
    copies before writing. The row of sequence 0 is stored under the group itself. The blocks of one row differ.
    """

    __slots__ = ("members", "owned")

    def __init__(self, number: int, journal: Journal, data: dict[Any, Any], members: Members) -> None:
        super().__init__(number, journal, data)
        self.members = members
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
        return self.data[k][1] if k in self.data else 0

    def block(self, g: int, q: int, i: int) -> int:
        """The i-th block of q."""
        return self.data[(g, q) if q else g][0][i]  # type: ignore[no-any-return]

    def append(self, g: int, q: int, b: int) -> None:
        """b is the last block of q."""
        k = (g, q) if q else g
        log, data = self.log, self.data
        if log is None:
            log = self.begin()
        if k not in data:
            if k not in log:
                log[k] = MISSING
            data[k] = ([b], 1)
            return
        blocks, n = row = data[k]
        if k not in log:
            log[k] = row
        if n != len(blocks):
            blocks = blocks[:n]
        blocks.append(b)
        data[k] = (blocks, n + 1)

    def pop(self, g: int, q: int) -> int:
        """Take the last block off the table of q, which must not be empty."""
        k = (g, q) if q else g
        blocks, n = self.data[k]
        if n == 1:
            self.discard(k)
        else:
            self[k] = (blocks, n - 1)
        return blocks[n - 1]  # type: ignore[no-any-return]

    def put(self, g: int, q: int, i: int, b: int) -> None:
        """The i-th block of q is now b. The row is copied once per draft."""
        k = (g, q) if q else g
        blocks, n = self.data[k]
        if k not in self.owned:
            blocks = blocks[:n]
            self[k] = (blocks, n)
            self.owned.add(k)
        blocks[i] = b

    def distinct(self, g: int) -> int:
        """Different blocks in the tables of g."""
        members = self.members.of(g)
        if len(members) == 1:
            return self.size(g, members[0])
        return len({b for q in members for b in row(self.data, g, q)})

    def pending_copies(self, g: int) -> int:
        """Copies made when each sequence of g writes its last block in turn: of n that share one, the last writes in place."""
        members = self.members.of(g)
        if len(members) == 1:
            return 0
        return len(members) - len({row(self.data, g, q)[-1] for q in members})


def row(rows: Mapping[Any, Any], g: int, q: int) -> list[int]:
    """A copy of the table of sequence q of g, in any version."""
    blocks, n = rows.get((g, q) if q else g, EMPTY)
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
        i = bisect_left(self.keys, self.key.data.get(g, 0))
        return i < len(self.ids) and self.ids[i] == g

    def write(self) -> tuple[list[int], list[int]]:
        """The lists, owned by this draft."""
        if self.pair is not None:
            self.keys, self.ids, self.pair = list(self.keys), list(self.ids), None
        return self.keys, self.ids

    def add(self, g: int) -> None:
        """g joins at the place that its key says."""
        keys, ids = self.write()
        key = self.key.data[g]
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
        i = bisect_left(keys, self.key.data[g])
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
        """What the state keeps."""
        return (tuple(self.keys), tuple(self.ids)) if self.pair is None else self.pair


class Results:
    """The groups that have a result: `ids`, in any order, or None for "all that were scheduled"."""

    __slots__ = ("ids",)

    def __init__(self, ids: "Iterable[int] | None" = None) -> None:
        self.ids = None if ids is None else tuple(ids)


class Calendar(Map[Any]):
    """Clock -> set of groups; a bucket is copied when the draft first touches it."""

    __slots__ = ("key",)

    def __init__(self, number: int, journal: Journal, data: dict[Any, Any], key: Map[int]) -> None:
        super().__init__(number, journal, data)
        self.key = key

    def bucket(self, t: int) -> set[int]:
        """The bucket of clock t, owned by this draft."""
        log, data = self.log, self.data
        if log is None:
            log = self.begin()
        if t not in log:
            log[t] = data.get(t, MISSING)
            data[t] = set(data.get(t, ()))
        return data[t]  # type: ignore[no-any-return]

    def add(self, t: int, g: int) -> None:
        """g, which is not there, is in the bucket of t."""
        self.bucket(t).add(g)

    def remove(self, t: int, g: int) -> None:
        """g leaves the bucket of t, where it is."""
        self.bucket(t).remove(g)

    def move(self, t: int, u: int, g: int) -> None:
        """g moves from the bucket of t to that of u."""
        log, data = self.log or (), self.data
        (data[t] if t in log else self.bucket(t)).remove(g)
        (data[u] if u in log else self.bucket(u)).add(g)

    def ordered(self, t: int) -> list[int]:
        """Those in the bucket of t, smallest key first."""
        b = self.data.get(t)
        return sorted(b, key=self.key.data.__getitem__) if b else []

    def has(self, t: int, g: int) -> bool:
        """Is g in the bucket of t?"""
        return g in self.data.get(t, ())

    def settle(self) -> None:
        """The draft is over: no empty buckets stay."""
        for t in self.log or ():
            if not self.data[t]:
                del self.data[t]
        self.log = None


class Twin(dict[int, int]):
    """Scratch of one swap: block -> the block of the other device that takes its place."""

    __slots__ = ()

    def has(self, b: int) -> bool:
        """Has b moved already?"""
        return b in self
