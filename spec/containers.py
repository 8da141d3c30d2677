"""The collections of a concrete state under the names that the clauses read: free lists, members, tables, references, queues."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from kvproof.spec.readings import Default, Has

Tuples = Iterable[tuple[int, ...]]


class PoolView:
    """The free blocks of a device, and how many there are."""

    def __init__(self, blocks: Iterable[int], n: int) -> None:
        self.blocks, self.n = set(blocks), n

    def holds(self, b: int) -> bool:
        """Is b free?"""
        return b in self.blocks

    def free(self) -> set[int]:
        """All of them."""
        return self.blocks


class Lives:
    """(group, sequence) -> does it live? A group of which nothing is stored has sequence 0."""

    def __init__(self, stored: dict[int, Any]) -> None:
        self.stored = stored

    def of(self, g: int) -> tuple[int, ...]:
        """The live sequences of g."""
        return self.stored[g][0] if g in self.stored else (0,)

    def __getitem__(self, k: tuple[int, int]) -> bool:
        return k[1] in self.of(k[0])


class MembersView:
    """Live sequences, how many, and the bound of their indices."""

    def __init__(self, stored: dict[int, Any]) -> None:
        self.has_ = Lives(stored)
        self.n = Default({g: len(live) for g, (live, _, _) in stored.items()}, 1)
        self.bound = Default({g: bound for g, (_, bound, _) in stored.items()}, 1)
        self.kin = Default({g: kin for g, (_, _, kin) in stored.items()}, ((0, 0),))
        self.origin, self.after, self.common = Default({}, -1), Default({}, -1), Default({}, 0)
        for g, (_, _, kin) in stored.items():
            for (p, _), (q, common) in pairwise(((-1, 0), *kin)):
                self.origin[g, q], self.common[g, q] = p, common
                self.after[g, p] = q
        self.prefix = Prefixes(self)

    def first(self, g: int) -> int:
        """The smallest index of a live sequence."""
        return min(self.has_.of(g))

    some = first


class Prefixes:
    """(group, sequence, n) -> what stands for its first n tokens: n, and the first of its kin that has them too."""

    def __init__(self, members: MembersView) -> None:
        self.members = members

    def __getitem__(self, k: tuple[int, int, int]) -> tuple[int, int, int]:
        g, q, n = k
        for _ in self.members.kin[g]:  # so many steps at most, even where the line of a broken state is a circle
            if self.members.origin[g, q] == -1 or n > self.members.common[g, q]:
                break
            q = self.members.origin[g, q]
        return g, q, n


class TableView:
    """All tables, flat, with the ghosts rebuilt."""

    def __init__(self, rows: dict[Any, Any], members: MembersView, block_size: int) -> None:
        self.members = members
        self.at: dict[tuple[int, int, int], int] = {}
        self.size_ = Default({}, 0)
        self.rank: dict[tuple[int, int, int], int] = {}
        self.owner_g: dict[tuple[int, int], int] = {}
        self.owner_q: dict[tuple[int, int], int] = {}
        self.owner_i: dict[tuple[int, int], int] = {}
        self.group_of, self.index_of, self.held = Default({}, -1), Default({}, -1), Default({}, 0)
        self.text: dict[int, Any] = {}
        self.block_size = block_size
        self.entries: dict[int, int] = {}  # block -> table entries that point to it
        for k, (blocks, n) in rows.items():
            g, q = k if isinstance(k, tuple) else (k, 0)
            self.size_[g, q] = n
            for i, b in enumerate(blocks[: max(n, 0)]):
                self._entry(g, q, i, b)

    def _entry(self, g: int, q: int, i: int, b: int) -> None:
        k = self.entries.get(b, 0)
        self.entries[b] = k + 1
        self.at[g, q, i], self.rank[g, q, i] = b, k
        self.owner_g[b, k], self.owner_q[b, k], self.owner_i[b, k] = g, q, i
        if self.group_of[b] != g:
            self.held[g] += 1
            self.text[b] = self.members.prefix[g, q, (i + 1) * self.block_size]
        self.group_of[b], self.index_of[b] = g, i

    def pending_copies(self, g: int) -> int:
        """Copies made when each live sequence of g writes its last block in turn."""
        rows = [q for q in self.members.has_.of(g) if self.size_[g, q] > 0]
        return len(rows) - len({self.at[g, q, self.size_[g, q] - 1] for q in rows})

    def live(self, g: int, q: int, i: int) -> bool:
        """Is (g, q, i) a table entry?"""
        return bool(0 <= i < self.size_[g, q])


class RefsView:
    """The counts that the store keeps: those above 1; a block that is in some table and has none counts 1."""

    def __init__(self, stored: dict[int, int], entries: dict[int, int], num_gpu_blocks: int) -> None:
        self.of = Default({**dict.fromkeys(entries, 1), **stored}, 0)
        used = [b for b, n in self.of.items() if n != 0]
        self.used_gpu = sum(b < num_gpu_blocks for b in used)
        self.used_cpu = len(used) - self.used_gpu


class QueueView:
    """A queue as a set, its size, the sequences in it, and the seats that they take."""

    def __init__(self, ids: tuple[int, ...], members: MembersView, seats: Default) -> None:
        self.ids = ids
        self.has_ = Has(ids)
        self.n = len(ids)
        self.live = sum(members.n[g] for g in ids)
        self.weight = sum(seats[g] for g in ids)


class CalendarView:
    """Pairs (clock, group)."""

    def __init__(self, buckets: dict[int, Any]) -> None:
        self.pairs = [(t, g) for t, groups in buckets.items() for g in groups]
        self.has_ = Has(self.pairs)
