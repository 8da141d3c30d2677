"""The dicts that the draft edits. Each remembers what the draft overwrote, so that the state it was opened on stays readable."""

from typing import Any, Generic, TypeVar

MISSING: Any = object()
"""In a log: there was nothing under this key."""

V = TypeVar("V")
Log = dict[Any, Any]


class Journal:
    """What one draft has overwritten so far: number of the map -> key -> what was there. Maps of one version share it."""

    __slots__ = ("undo",)

    def __init__(self) -> None:
        self.undo: dict[int, Log] = {}


class Map(Generic[V]):
    """A dict to be edited. The first write of a draft to a key logs what was there."""

    __slots__ = ("data", "journal", "log", "number")
    default: Any = MISSING
    """What a missing key reads as; MISSING: KeyError."""

    def __init__(self, number: int, journal: Journal, data: dict[Any, V]) -> None:
        self.number, self.journal, self.data = number, journal, data
        self.log: Log | None = None  # until the draft writes

    def begin(self) -> Log:
        """The draft begins to write to this map."""
        log = self.log = self.journal.undo[self.number] = {}
        return log

    def settle(self) -> None:
        """The draft is over; what it wrote stays."""
        self.log = None

    def __getitem__(self, k: Any) -> V:
        return self.data[k]

    def __setitem__(self, k: Any, v: V) -> None:
        log, data = self.log, self.data
        if log is None:
            log = self.begin()
        if k not in log:
            log[k] = data.get(k, MISSING)
        data[k] = v

    def discard(self, k: Any) -> None:
        """Remove k if it is there."""
        log, data = self.log, self.data
        if k in data:
            if log is None:
                log = self.begin()
            if k not in log:
                log[k] = data[k]
            del data[k]

    def undo(self) -> None:
        """The draft is over; what it wrote is taken back."""
        if self.log is not None:
            replay(self.log, self.data)
        self.log = None


class Statuses(Map[int]):
    """Group -> status. A group that is not known is ABSENT."""

    __slots__ = ()
    default = 0

    def __getitem__(self, g: Any) -> int:
        return self.data.get(g, 0)


def replay(log: Log, data: dict[Any, Any]) -> None:
    """Make `data` what it was before the draft that wrote this log."""
    for k, v in log.items():
        if v is MISSING:
            data.pop(k, None)
        else:
            data[k] = v
