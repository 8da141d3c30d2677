"""Block tables as the backend knows them: only from what plans and notices announce, so they also prove that these suffice.

A `Ledger` is the truth between plans; a `Page` is the change that one plan makes to it. A page that turns out wrong is thrown
away, so a refused plan has changed nothing.
"""

from kvproof.backend_fake.errors import Misuse, fail

Tables = dict[int, list[int]]
"""Sequence -> its blocks."""


class Ledger:
    """Group -> tables, block -> group that holds it and number of table entries that point to it."""

    def __init__(self) -> None:
        self.tables: dict[int, Tables] = {}
        self.refs: dict[int, int] = {}
        self.holder: dict[int, int] = {}

    def sequences(self, g: int) -> list[int]:
        """The sequences of g that have a table, ascending."""
        return sorted(self.tables.get(g, ()))

    def row(self, g: int, q: int) -> list[int]:
        """The table of sequence q of g."""
        try:
            return self.tables[g][q]
        except KeyError:
            fail(Misuse.UNKNOWN_GROUP, f"sequence {q} of group {g} has no table")


class Page:
    """The ledger as it will be after a plan."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.touched: dict[int, Tables] = {}
        self.refs: dict[int, int] = {}  # of the blocks whose count changes
        self.holder: dict[int, int] = {}  # of the blocks that were free before

    def knows(self, g: int) -> bool:
        """Has g a table?"""
        return bool(self.tables(g))

    def tables(self, g: int) -> Tables:
        """The tables of g, to be edited."""
        if g not in self.touched:
            self.touched[g] = {q: list(row) for q, row in self.ledger.tables.get(g, {}).items()}
        return self.touched[g]

    def count(self, b: int) -> int:
        """Table entries that point to b; 0: it is free."""
        return self.refs[b] if b in self.refs else self.ledger.refs.get(b, 0)

    def holder_of(self, b: int) -> int:
        """The group that holds the used block b."""
        return self.holder[b] if b in self.holder else self.ledger.holder[b]

    def take(self, g: int, b: int) -> None:
        """The free block b is handed to g."""
        if self.count(b):
            fail(Misuse.TWO_OWNERS, f"block {b} is handed to group {g} while group {self.holder_of(b)} holds it")
        self.refs[b] = 1
        self.holder[b] = g

    def share(self, b: int) -> None:
        """One more sequence of its holder points to b."""
        self.refs[b] = self.count(b) + 1

    def drop(self, b: int) -> None:
        """One entry less points to b."""
        self.refs[b] = self.count(b) - 1

    def release(self, g: int, q: int | None = None) -> None:
        """Sequence q of g, or all of g, owns nothing any more. One that owns nothing already is no fault."""
        tables = self.tables(g)
        for sequence in list(tables) if q is None else [q]:
            for b in tables.pop(sequence, []):
                self.drop(b)

    def move(self, g: int, pairs: dict[int, int]) -> set[int]:
        """Every block of g is replaced by its pair, shared ones once; returns the sources that were used."""
        used: set[int] = set()
        for row in self.tables(g).values():
            for i, b in enumerate(row):
                if b not in pairs:
                    fail(Misuse.WRONG_MAP, f"group {g} moves, and its block {b} is not in the map")
                if b in used:
                    self.share(pairs[b])
                else:
                    self.take(g, pairs[b])
                used.add(b)
                self.drop(b)
                row[i] = pairs[b]
        return used

    def close(self) -> None:
        """The ledger is what this page says."""
        ledger = self.ledger
        for g, tables in self.touched.items():
            if tables:
                ledger.tables[g] = tables
            else:
                ledger.tables.pop(g, None)
        ledger.holder.update(self.holder)
        for b, count in self.refs.items():
            if count:
                ledger.refs[b] = count
            else:
                ledger.refs.pop(b, None)
                ledger.holder.pop(b, None)
