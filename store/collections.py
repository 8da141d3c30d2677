"""Collections of the draft. Each is opened over what the state holds, edited in place, and closed again."""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

from kvproof.store.maps import Map

Cell = tuple[int, Any] | None


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


class Refs:
    """Reference counts of used blocks. Only counts above 1 are stored: few blocks are shared."""

    __slots__ = ("above_one",)

    def __init__(self, above_one: Map[Any]) -> None:
        self.above_one = above_one

    def take(self, b: int) -> None:
        """0 -> 1: nothing is stored."""

    def share(self, b: int) -> None:
        """One more reference to a used block."""
        self.above_one[b] = self.above_one.data.get(b, 1) + 1

    def drop(self, b: int) -> bool:
        """One reference less; True if it was the last."""
        count = self.above_one.data.get(b, 1)
        if count == 1:
            return True
        if count == 2:
            self.above_one.discard(b)
        else:
            self.above_one[b] = count - 1
        return False

    def shared(self, b: int) -> bool:
        """Has the used block b more than one reference?"""
        return b in self.above_one.data


EMPTY: tuple[list[int], int] = ([], 0)
FIRST_ONLY = ((0,), 1)


class Members:
    """Group -> the indices of its live sequences, ascending. A group that never forked stores nothing: it has sequence 0."""

    __slots__ = ("rows",)

    def __init__(self, rows: Map[Any]) -> None:
        self.rows = rows

    def of(self, g: int) -> tuple[int, ...]:
        """The live sequences of g."""
        return self.rows.get(g, FIRST_ONLY)[0]  # type: ignore[no-any-return]

    def start(self, g: int) -> None:
        """g has one sequence, 0."""

    def first(self, g: int) -> int:
        """The smallest index of a live sequence of g."""
        return self.rows.data.get(g, FIRST_ONLY)[0][0]  # type: ignore[no-any-return]

    def count(self, g: int) -> int:
        """How many sequences of g live."""
        return len(self.rows.data.get(g, FIRST_ONLY)[0])

    def has(self, g: int, q: int) -> bool:
        """Is q a live sequence of g?"""
        return q in self.of(g)

    def add(self, g: int) -> int:
        """One sequence more, with an index never used before."""
        live, q = self.rows.data.get(g, FIRST_ONLY)
        self.rows[g] = ((*live, q), q + 1)
        return q  # type: ignore[no-any-return]

    def remove(self, g: int, q: int) -> None:
        """Sequence q of g lives no more."""
        live, bound = self.rows.data.get(g, FIRST_ONLY)
        self.rows[g] = (tuple(x for x in live if x != q), bound)


class Table:
    """Block tables: (group, sequence) -> its blocks, and counts over the tables of a group.

    A row is (list, visible length). A list only grows at its end, so versions can share it: who sees a shorter part of it
    copies before writing. The row of sequence 0 is stored under the group itself.
    """

    __slots__ = ("members", "owned", "rows")

    def __init__(self, rows: Map[Any], members: Members) -> None:
        self.rows, self.members = rows, members
        self.owned: set[Any] = set()

    def size(self, g: int, q: int) -> int:
        """Blocks in the table of sequence q of g."""
        return self.rows.data.get((g, q) if q else g, EMPTY)[1]  # type: ignore[no-any-return]

    def block(self, g: int, q: int, i: int) -> int:
        """The i-th block of q."""
        return self.rows.data[(g, q) if q else g][0][i]  # type: ignore[no-any-return]

    def append(self, g: int, q: int, b: int) -> None:
        """b is the last block of q."""
        k = (g, q) if q else g
        blocks, n = self.rows.data.get(k, EMPTY)
        if n == 0 or n != len(blocks):
            blocks = blocks[:n]
        blocks.append(b)
        self.rows[k] = (blocks, n + 1)

    def pop(self, g: int, q: int) -> int:
        """Take the last block off the table of q, which must not be empty."""
        k = (g, q) if q else g
        blocks, n = self.rows.data[k]
        if n == 1:
            self.rows.discard(k)
        else:
            self.rows[k] = (blocks, n - 1)
        return blocks[n - 1]  # type: ignore[no-any-return]

    def put(self, g: int, q: int, i: int, b: int) -> None:
        """The i-th block of q is now b. The row is copied once per draft."""
        k = (g, q) if q else g
        blocks, n = self.rows.data[k]
        if k not in self.owned or n != len(blocks):
            blocks = blocks[:n]
            self.rows[k] = (blocks, n)
            self.owned.add(k)
        blocks[i] = b

    def distinct(self, g: int) -> int:
        """Different blocks in the tables of g."""
        members = self.members.of(g)
        if len(members) == 1:
            return self.size(g, members[0])
        return len({b for q in members for b in row(self.rows, g, q)})

    def pending_copies(self, g: int) -> int:
        """Copies made when each sequence of g writes its last block in turn: of n that share one, the last writes in place."""
        members = self.members.of(g)
        if len(members) == 1:
            return 0
        return len(members) - len({row(self.rows, g, q)[-1] for q in members})


def row(rows: Map[Any], g: int, q: int) -> list[int]:
    """A copy of the table of sequence q of g, in any version."""
    blocks, n = rows.get((g, q) if q else g, EMPTY)
    return blocks[:n]  # type: ignore[no-any-return]


class Queue:
    """A finite set of groups in the order of their keys: two parallel lists, tuples until written."""

    __slots__ = ("ids", "key", "keys", "owned")

    def __init__(self, pair: tuple[tuple[int, ...], tuple[int, ...]], key: Map[int]) -> None:
        self.keys: Any = pair[0]
        self.ids: Any = pair[1]
        self.key, self.owned = key, False

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
        return g in self.ids

    def _own(self) -> None:
        if not self.owned:
            self.keys, self.ids, self.owned = list(self.keys), list(self.ids), True

    def add(self, g: int) -> None:
        """g joins at the place that its key says."""
        self._own()
        key = self.key.data[g]
        if not self.keys or self.keys[-1] < key:
            self.keys.append(key)
            self.ids.append(g)
        else:
            i = bisect_left(self.keys, key)
            self.keys.insert(i, key)
            self.ids.insert(i, g)

    def remove(self, g: int) -> None:
        """g, which is in it, leaves."""
        self._own()
        i = bisect_left(self.keys, self.key.data[g])
        assert self.ids[i] == g, f"group {g} is not in the queue at its key"
        del self.keys[i], self.ids[i]

    def clear(self) -> None:
        """Nobody is in it."""
        if self.ids:
            self.keys, self.ids, self.owned = (), (), False

    def minus(self, results: "Results") -> tuple[int, ...]:
        """Those in it that have no result."""
        if results.ids is None or results.ids == self.ids:
            return ()
        return tuple(set(self.ids).difference(results.ids)) if results.ids else tuple(self.ids)

    def close(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What the state keeps."""
        return (tuple(self.keys), tuple(self.ids)) if self.owned else (self.keys, self.ids)


class Results:
    """The groups that have a result: `ids`, in any order, or None for "all that were scheduled"."""

    __slots__ = ("ids",)

    def __init__(self, ids: "Iterable[int] | None" = None) -> None:
        self.ids = None if ids is None else tuple(ids)


class Calendar:
    """Clock -> set of groups; a bucket is copied when it is first touched."""

    __slots__ = ("buckets", "key", "mine")

    def __init__(self, buckets: Map[Any], key: Map[int]) -> None:
        self.buckets, self.key = buckets, key
        self.mine: dict[int, set[int]] = {}

    def bucket(self, t: int) -> set[int]:
        """The bucket of clock t, owned by this draft."""
        b = self.mine.get(t)
        if b is None:
            b = self.mine[t] = set(self.buckets.data.get(t, ()))
            self.buckets[t] = b
        return b

    def add(self, t: int, g: int) -> None:
        """g, which is not there, is in the bucket of t."""
        self.bucket(t).add(g)

    def remove(self, t: int, g: int) -> None:
        """g leaves the bucket of t, where it is."""
        self.bucket(t).remove(g)

    def move(self, t: int, u: int, g: int) -> None:
        """g moves from the bucket of t to that of u."""
        self.bucket(t).remove(g)
        self.bucket(u).add(g)

    def ordered(self, t: int) -> list[int]:
        """Those in the bucket of t, smallest key first."""
        b = self.buckets.data.get(t)
        return sorted(b, key=self.key.data.__getitem__) if b else []

    def has(self, t: int, g: int) -> bool:
        """Is g in the bucket of t?"""
        return g in self.buckets.data.get(t, ())

    def close(self) -> Map[Any]:
        """What the state keeps: no empty buckets."""
        for t, b in self.mine.items():
            if not b:
                self.buckets.discard(t)
        return self.buckets


class Twin:
    """Scratch of one swap: block -> the block of the other device that takes its place."""

    __slots__ = ("of",)

    def __init__(self) -> None:
        self.of: dict[int, int] = {}

    def clear(self) -> None:
        """A new swap begins."""
        self.of.clear()

    def has(self, b: int) -> bool:
        """Has b moved already?"""
        return b in self.of

    def __getitem__(self, b: int) -> int:
        return self.of[b]

    def __setitem__(self, b: int, c: int) -> None:
        self.of[b] = c
