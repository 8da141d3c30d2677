"""Maps that are immutable outside and plain dicts inside (Baker's trick, as in Conchon and Filliatre's persistent arrays).

The newest version owns the dict. An older version holds what the next one overwrote and a pointer to it, so it stays readable
for ever and costs only the difference. Opening the newest version costs O(1), an edit two dict writes; opening an old one copies.
"""

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

MISSING: Any = object()
V = TypeVar("V")


class Map(Generic[V]):
    """A persistent dict. `open` gives a version to edit; the version opened keeps its contents."""

    __slots__ = ("data", "default", "log", "newer", "undo")

    def __init__(self, data: Any = (), default: Any = MISSING) -> None:
        self.default = default  # what a missing key reads as; MISSING: KeyError
        self.data: Any = dict(data)  # None once a newer version owns it
        self.newer: Map[V] | None = None
        self.undo: dict[Any, Any] | None = None
        self.log: dict[Any, Any] = {}

    def open(self) -> "Map[V]":
        """A new version with these contents, to be edited."""
        new: Map[V] = object.__new__(Map)
        new.newer, new.undo, new.default = None, None, self.default
        new.log = {}
        if self.data is None:  # somebody went on from this version already: branch off with a copy
            new.data = dict(self.items())
        else:
            new.data = self.data
            self.data, self.newer, self.undo = None, new, new.log
        return new

    def abandon(self, old: "Map[V]") -> None:
        """Undo every edit since `old.open()` and give the dict back to `old`."""
        if old.newer is not self:
            return
        data = self.data
        for k, v in self.log.items():
            if v is MISSING:
                data.pop(k, None)
            else:
                data[k] = v
        old.data, old.newer, old.undo = data, None, None
        self.data, self.newer, self.undo = None, old, {}

    def __setitem__(self, k: Any, v: V) -> None:
        log, data = self.log, self.data
        if k not in log:
            log[k] = data.get(k, MISSING)
        data[k] = v

    def discard(self, k: Any) -> None:
        """Remove k if it is there."""
        log, data = self.log, self.data
        if k in data:
            if k not in log:
                log[k] = data[k]
            del data[k]

    def get(self, k: Any, default: Any = None) -> Any:
        """The value of k in this version."""
        v: Map[V] = self
        while v.data is None:
            assert v.undo is not None and v.newer is not None
            if k in v.undo:
                x = v.undo[k]
                return default if x is MISSING else x
            v = v.newer
        return v.data.get(k, default)

    def __getitem__(self, k: Any) -> V:
        x: V = self.data.get(k, MISSING) if self.data is not None else self.get(k, MISSING)
        if x is MISSING:
            if self.default is MISSING:
                raise KeyError(k)
            return self.default  # type: ignore[no-any-return]
        return x

    def __contains__(self, k: object) -> bool:
        return self.get(k, MISSING) is not MISSING

    def to_dict(self) -> dict[Any, Any]:
        """A copy of this version."""
        chain: list[dict[Any, Any]] = []
        v: Map[V] = self
        while v.data is None:
            assert v.undo is not None and v.newer is not None
            chain.append(v.undo)
            v = v.newer
        d = dict(v.data)
        for undo in reversed(chain):
            for k, x in undo.items():
                if x is MISSING:
                    d.pop(k, None)
                else:
                    d[k] = x
        return d

    def items(self) -> Iterator[tuple[Any, Any]]:
        """The pairs of this version."""
        return iter(self.to_dict().items())

    def __len__(self) -> int:
        return len(self.data) if self.data is not None else len(self.to_dict())
