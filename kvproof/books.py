"""What the facade keeps beside the state: how often who was preempted, whose output is cut short, what an order has noted.

A snapshot of it costs O(1), however many requests it knows of. A book is a dict under Baker's trick, as the maps of the
store are (`kvproof.store.versions`), with versions on demand: a change writes down what it overwrites only while somebody keeps a
`Point` of before. To go on from an old point copies the book, at the first use.
"""

from collections import deque
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple
from weakref import ref

import attrs

from kvproof.store.maps import MISSING, Log, replay
from kvproof.store.plan import Plan
from kvproof.store.state import State

Past = deque[tuple[State, Plan]]


class Account(NamedTuple):
    """What is kept of one unfinished request."""

    recomputed: int = 0
    """How often it was preempted by recompute."""
    swapped: int = 0
    """How often it was preempted by swap."""
    capped: bool = False
    """Does max_model_len cut its output short?"""
    dropped: tuple[tuple[int, int], ...] = ()
    """(sequence, prompt + generated tokens) of each of its sequences that has ended."""


NEVER = Account()
"""Of whom nothing is stored."""


class Point:
    """A moment of a ledger that somebody keeps. Readable for ever, whatever the ledger does next."""

    __slots__ = ("__weakref__", "data", "newer", "undo")

    def __init__(self, data: dict[Any, Any]) -> None:
        self.data = data  # the ledger's own, which it goes on to change
        self.undo: Log = {}  # what it overwrote since, until the next point
        self.newer: Point | None = None

    def __deepcopy__(self, memo: Any) -> "Point":
        """Itself: what it says never changes."""
        return self

    def read(self) -> dict[Any, Any]:
        """A copy of the ledger as it was. Costs O(ledger + changes since)."""
        logs: list[Log] = []
        point: Point | None = self
        while point is not None:
            logs.append(point.undo)
            point = point.newer
        data = dict(self.data)
        for log in reversed(logs):
            replay(log, data)
        return data


class Book:
    """A dict of immutable values that can go back to any `Point` that somebody keeps."""

    def __init__(self, start: Point | None = None) -> None:
        self._data: dict[Any, Any] | None = {} if start is None else None  # None: as `_start` says
        self._start = start
        self._last: ref[Point] | None = None  # the newest point, if anybody keeps it

    def __len__(self) -> int:
        return len(self._read())

    def point(self) -> Point:
        """This moment. O(1)."""
        if self._data is None:
            assert self._start is not None
            return self._start
        last = self._last() if self._last is not None else None
        if last is not None and not last.undo:
            return last
        new = Point(self._data)
        if last is not None:
            last.newer = new
        self._last = ref(new)
        return new

    def go_to(self, point: Point) -> None:
        """Go on from that moment. O(1) now; a copy at the first use."""
        if point is not self.point():
            self._data, self._start, self._last = None, point, None

    def _read(self) -> dict[Any, Any]:
        if self._data is None:
            assert self._start is not None
            self._data, self._start = self._start.read(), None
        return self._data

    def _write(self, key: Any) -> dict[Any, Any]:
        """The dict, after writing down what is under `key` if somebody keeps a point."""
        data = self._read()
        if self._last is not None:
            last = self._last()
            if last is None:
                self._last = None
            elif key not in last.undo:
                last.undo[key] = data.get(key, MISSING)
        return data


class Notes(Book):
    """What an order has noted, what it is to be told of, and what is checked of it (`kvproof.ordered`), in one book."""

    def get(self, key: Hashable, default: Any = None) -> Any:
        """What is under this key, or `default`."""
        data = self._data if self._data is not None else self._read()
        return data.get(key, default)

    def keep(self, key: Hashable, value: Any) -> None:
        """`value` is under this key from now on."""
        self._write(key)[key] = value

    def drop(self, key: Hashable) -> None:
        """Nothing is under this key any more."""
        if key in self._read():
            del self._write(key)[key]

    def items(self) -> list[tuple[Any, Any]]:
        """All of it."""
        return list(self._read().items())


class Ledger(Book):
    """The accounts of the unfinished requests that have one."""

    def of(self, g: int) -> Account:
        """The account of g."""
        account: Account = self._read().get(g, NEVER)
        return account

    def times(self, g: int) -> int:
        """How often g was preempted."""
        account = self.of(g)
        return account.recomputed + account.swapped

    def cap(self, g: int) -> None:
        """max_model_len cuts the output of g short."""
        self._write(g)[g] = self.of(g)._replace(capped=True)

    def preempted(self, g: int, mode: str) -> None:
        """g was preempted once more. `mode`: "recompute" or "swap"."""
        old = self.of(g)
        new = old._replace(swapped=old.swapped + 1) if mode == "swap" else old._replace(recomputed=old.recomputed + 1)
        self._write(g)[g] = new

    def dropped(self, g: int, q: int, tokens: int) -> None:
        """Sequence q of g has ended with so many tokens (prompt + generated), and others go on."""
        old = self.of(g)
        self._write(g)[g] = old._replace(dropped=(*old.dropped, (q, tokens)))

    def close(self, g: int) -> Account:
        """The last of g, which has ended: nothing is kept of it."""
        account = self.of(g)
        if account is not NEVER:
            del self._write(g)[g]
        return account


@attrs.frozen(eq=False)
class Snapshot:
    """A moment of a scheduler, immutable: `Scheduler.snapshot` makes it, `Scheduler.restore` goes back to it."""

    state: State
    accounts: Point = attrs.field(factory=lambda: Point({}), repr=False)
    past: Past = attrs.field(factory=deque, repr=False)
    """What `Scheduler.history` says. Nobody changes it."""
    small: Mapping[str, Any] = {}
    """`Observed.SMALL` -> value, where it is not as in a new scheduler."""

    def __deepcopy__(self, memo: Any) -> "Snapshot":
        """Itself: it never changes."""
        return self
