"""The dicts that the draft edits. Each remembers what the draft overwrote, so that the state it was opened on stays readable."""

from typing import Any, TypeVar

MISSING: Any = object()
"""In a log: there was nothing under this key."""

V = TypeVar("V")
Log = dict[Any, Any]


class Journal:
    """What one draft has overwritten so far: number of the map -> key -> what was there. Maps of one version share it."""

    __slots__ = ("undo",)

    def __init__(self) -> None:
        self.undo: dict[int, Log] | None = None  # None while no draft is open


class Logged(dict[Any, V]):
    """A dict that a draft edits with `set` and `discard`, which log what was there when they first touch a key.

    `m[k] = v` is for a key that is logged already.
    """

    __slots__ = ("journal", "log", "number")
    default: Any = MISSING
    """What a missing key reads as; MISSING: KeyError."""

    def __init__(self, number: int, journal: Journal, data: dict[Any, V]) -> None:
        super().__init__(data)
        self.number, self.journal = number, journal
        self.log: Log | None = None  # until the draft writes

    def begin(self) -> Log:
        """The draft begins to write to this map."""
        undo = self.journal.undo
        assert undo is not None, "the draft is closed"
        log = self.log = undo[self.number] = {}
        return log

    def settle(self) -> None:
        """The draft is over; what it wrote stays."""
        self.log = None

    def set(self, k: Any, v: V) -> None:
        """k reads as v."""
        log = self.log
        if log is None:
            log = self.begin()
        if k not in log:
            log[k] = self.get(k, MISSING)
        self[k] = v

    def discard(self, k: Any) -> None:
        """Remove k if it is there."""
        if k in self:
            log = self.log
            if log is None:
                log = self.begin()
            if k not in log:
                log[k] = self[k]
            del self[k]

    def undo(self) -> None:
        """The draft is over; what it wrote is taken back."""
        if self.log is not None:
            replay(self.log, self)
        self.log = None


write = dict.__setitem__


class Map(Logged[V]):
    """One that is edited with `m[k] = v` as well."""

    __slots__ = ()

    def __setitem__(self, k: Any, v: V) -> None:
        log = self.log
        if log is None:
            log = self.begin()
        if k not in log:
            log[k] = self.get(k, MISSING)
        write(self, k, v)


class Statuses(Map[int]):
    """Group -> status. A group that is not known is ABSENT."""

    __slots__ = ()
    default: int = 0

    def __missing__(self, g: Any) -> int:
        return self.default


class Zeros(Statuses):
    """Group -> a number that is 0 for most: only others are stored."""

    __slots__ = ()

    def __setitem__(self, k: Any, v: int) -> None:
        if v != self.default:
            Map.__setitem__(self, k, v)
        elif k in self:
            self.discard(k)


class Ones(Zeros):
    """The same for 1."""

    __slots__ = ()
    default: int = 1


def replay(log: Log, data: dict[Any, Any]) -> None:
    """Make `data` what it was before the draft that wrote this log."""
    for k, v in log.items():
        if v is MISSING:
            dict.pop(data, k, None)
        else:
            write(data, k, v)
