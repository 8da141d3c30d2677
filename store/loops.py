"""Loops of the core, by name: the proofs give each name an invariant and a measure (`kvproof.proofs.rules`)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kvproof.store.contents import Contents

Ids = Iterable[int]
Pairs = Iterable[tuple[int, int]]


class Loops(Contents):
    """Each calls a body with the draft. The Hoare rule of each is in `kvproof.proofs.rules`."""

    __slots__ = ()

    def repeat(self, name: str, step: Callable[..., bool], *args: Any) -> None:
        """while step(self, *args): pass"""
        while step(self, *args):
            pass

    def times(self, name: str, n: int, body: Callable[[Any, int, int], None], x: int, y: int) -> None:
        """n times body(self, x, y)"""
        for _ in range(n):
            body(self, x, y)

    def each_index(self, name: str, n: int, body: Callable[..., None], *args: Any) -> None:
        """for i in range(n): body(self, i, *args)"""
        for i in range(n):
            body(self, i, *args)

    def each_member(self, name: str, g: int, body: Callable[..., None]) -> None:
        """body(self, q, g) for every live sequence q of g, ascending."""
        members = self.members
        if members and g in members:
            for q in members[g][0]:
                body(self, q, g)
        else:
            body(self, 0, g)

    def each_kin(self, name: str, g: int, body: Callable[..., None], *args: Any) -> None:
        """body(self, q, g, origin, common, *args) for every live sequence q of g, each after the one, `origin`, with which it has
        its first `common` tokens in common. The first has no origin: -1, 0."""
        origin = -1
        for q, common in self.members.kin(g):
            body(self, q, g, origin, common, *args)
            origin = q

    def each_due(self, name: str, body: Callable[[Any, int], None]) -> None:
        """body(self, g) for every group whose alarm rings now, smallest key first; who has left meanwhile is skipped."""
        ids = self.due.ordered(self.clock)
        if ids:
            bucket = self.due.bucket(self.clock)
            for g in ids:
                if g in bucket:
                    body(self, g)

    def each_running(self, name: str, body: Callable[[Any, int], None]) -> None:
        """body(self, g) for every running group, smallest key first; who has left meanwhile is skipped."""
        for g in tuple(self.running.ids):
            if self.running.has(g):
                body(self, g)

    def each_expiring(self, name: str, body: Callable[[Any, int], None]) -> None:
        """body(self, g) for every group in the expiry bucket of now; who has left meanwhile is skipped."""
        clock, expiry = self.clock, self.expiry
        for g in expiry.ordered(clock):
            if expiry.has(clock, g):
                body(self, g)

    def each(self, name: str, ids: Ids, body: Callable[[Any, int], None]) -> None:
        """body(self, g) for every g in ids."""
        for g in ids:
            body(self, g)

    def each_pair(self, name: str, pairs: Pairs, body: Callable[[Any, int, int], None]) -> None:
        """body(self, g, q) for every pair."""
        for g, q in pairs:
            body(self, g, q)

    def each_item(self, name: str, items: Mapping[int, int], body: Callable[..., None], *args: Any) -> None:
        """body(self, g, n, *args) for every group and its number."""
        for g, n in items.items():
            body(self, g, n, *args)
