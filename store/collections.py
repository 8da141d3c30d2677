"""Collections of the draft. Each is opened over what the state holds, edited in place, and closed again."""

from collections.abc import Container, Iterable, Mapping
from typing import Any

import kvproof.store.queues  # noqa: F401
from kvproof.store.maps import MISSING, Journal, Logged

Cell = tuple[int, Any, int] | None
"""A block, the cells below, and how many cells these are. A block that is not free any more, or is above too, does not count."""
STALE = 256
"""So many cells more than four for each free block, and the stack is made anew."""


class Free(Logged[bool]):
    """The free blocks of both devices."""

    __slots__ = ()


class Pool:
    """The free blocks of one device, whose ids end before `end`: a stack of cells, in which the set `free` says who counts.

    It gives the block that follows the one before it, if that is free, else the one pushed last: so tables come to lie in runs,
    which move in one copy. Any choice would be as safe. All is O(1), and old versions stay valid.
    """

    __slots__ = ("cell", "end", "free", "last", "n")

    def __init__(self, cell: Cell, n: int, free: Free, end: int) -> None:
        self.cell, self.n, self.free, self.end = cell, n, free, end
        self.last = -2
        """Taken last in this draft."""

    def take(self) -> int:
        """A block after the one taken last; its first reference is the caller's. The pool must not be empty."""
        return self.after(self.last)

    def after(self, b: int) -> int:
        """The block after b if it is free, else the one pushed last."""
        b += 1
        free = self.free
        if b not in free or b == self.end:
            b, cell, _ = self.cell  # type: ignore[misc]
            while b not in free:
                b, cell, _ = cell
            self.cell = cell
        self.n -= 1
        self.last = b
        free.discard(b)
        return b

    def push(self, b: int) -> None:
        """b is free."""
        self.n += 1
        self.free.set(b, True)
        cell = self.cell
        depth = 1 if cell is None else cell[2] + 1
        self.cell = (b, cell, depth)
        if depth > 4 * self.n + STALE:
            self.cell = cells(cell_blocks(self.cell, self.free))


def cells(blocks: Iterable[int]) -> Cell:
    """A stack of these blocks, the first on top."""
    cell: Cell = None
    for depth, b in enumerate(reversed(list(blocks)), 1):
        cell = (b, cell, depth)
    return cell


def cell_blocks(cell: Cell, free: Container[int]) -> list[int]:
    """The free blocks of a stack, the top first."""
    blocks: dict[int, None] = {}
    while cell is not None:
        if cell[0] in free:
            blocks.setdefault(cell[0])
        cell = cell[1]
    return list(blocks)


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
Kin = tuple[tuple[int, int], ...]
"""(sequence, common): it has its first `common` tokens in common with the one before it, which are all that it has in common with
any before it; the first has none. So what is not in common are the different tokens of a group."""
FIRST_ONLY = (ONE, 1, ((0, 0),))


class Members(Logged[Any]):
    """Group -> the indices of its live sequences, ascending, the next index, and its kin.

    A group that never forked stores nothing: it has sequence 0.
    """

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
        return len(self[g][0]) if self and g in self else 1

    def has(self, g: int, q: int) -> bool:
        """Is q a live sequence of g?"""
        return q in self.of(g)

    def kin(self, g: int) -> Kin:
        """The live sequences of g, each after one with which it has most in common."""
        return self.get(g, FIRST_ONLY)[2]  # type: ignore[no-any-return]

    def add(self, g: int, parent: int, tokens: int) -> int:
        """One sequence more, with an index never used before; it has `tokens` tokens, those of its parent."""
        live, q, kin = self.get(g, FIRST_ONLY)
        i = place(kin, parent) + 1
        rest = tuple((x, min(common, tokens)) for x, common in kin[i : i + 1])
        self.set(g, ((*live, q), q + 1, (*kin[:i], (q, tokens), *rest, *kin[i + 1 :])))
        return q  # type: ignore[no-any-return]

    def remove(self, g: int, q: int) -> None:
        """Sequence q of g lives no more. What the next one has in common with the one before q, both have in common with q."""
        live, bound, kin = self.get(g, FIRST_ONLY)
        i = place(kin, q)
        rest = tuple((x, min(common, kin[i][1])) for x, common in kin[i + 1 : i + 2])
        self.set(g, (tuple(x for x in live if x != q), bound, (*kin[:i], *rest, *kin[i + 2 :])))


def place(kin: Kin, q: int) -> int:
    """Where q stands."""
    return next(i for i, (x, _) in enumerate(kin) if x == q)


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
        self.extend(g, q, None, b)

    def extend(self, g: int, q: int, pool: Pool | None, b: int = -1) -> None:
        """The last block of q is one taken from the pool, with its first reference, and the plan says so. No pool: it is b."""
        k = (g, q) if q else g
        log = self.log
        if log is None:
            log = self.begin()
        try:
            blocks, n = row = self[k]
        except KeyError:
            blocks, n, row = [], 0, MISSING
        if k not in log:
            log[k] = row
        if n != len(blocks):
            blocks = blocks[:n]
        if pool is not None:
            b = pool.after(blocks[-1] if n else -2)
        blocks.append(b)
        self[k] = (blocks, n + 1)
        self.slots.append((g, q, n, b))

    def pop_block(self, g: int, q: int) -> int:
        """Take the last block off the table of q, which must not be empty."""
        k = (g, q) if q else g
        log = self.log
        if log is None:
            log = self.begin()
        blocks, n = row = self[k]
        if k not in log:
            log[k] = row
        n -= 1
        if n:
            self[k] = (blocks, n)
        else:
            del self[k]
        return blocks[n]  # type: ignore[no-any-return]

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
