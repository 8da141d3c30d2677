"""Versions of all maps together: immutable outside, plain dicts inside.

Baker's trick, as in Conchon and Filliatre's persistent arrays: the newest version owns the dicts. An older one holds what the
next one overwrote and a pointer to it, so it stays readable for ever and costs only the difference. Opening the newest version
costs O(1), an edit two dict writes; opening an old one copies everything. A draft that writes to no map makes no version.

All maps share one version because a draft that opens 14 of them one by one costs more than what a decode step does with them
(docs/benchmarks.md, "What the store costs").
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from kvproof.store.collections import Calendar, Members, Refs, Table
from kvproof.store.maps import MISSING, Journal, Log, Map, Statuses, replay

V = TypeVar("V")
Maps = tuple[Any, ...]

GROUP_MAPS = ("status", "key", "prompt", "length", "computed", "limit", "born", "alarm", "expires")
"""Per-group integers. `forget` removes a group from each."""
NAMES = (*GROUP_MAPS, "members", "table", "refs", "due", "expiry")
NUMBER = {name: number for number, name in enumerate(NAMES)}


def maps_of(contents: list[dict[Any, Any]]) -> Maps:
    """Maps with these contents, in the order of NAMES."""
    journal = Journal()
    maps: list[Any] = [Map(i, journal, contents[i]) for i in range(len(GROUP_MAPS))]
    maps[0] = Statuses(0, journal, contents[0])
    key = maps[NUMBER["key"]]
    i = len(GROUP_MAPS)
    members = Members(i, journal, contents[i])
    table = Table(i + 1, journal, contents[i + 1], members)
    refs = Refs(i + 2, journal, contents[i + 2])
    due, expiry = Calendar(i + 3, journal, contents[i + 3], key), Calendar(i + 4, journal, contents[i + 4], key)
    return (*maps, members, table, refs, due, expiry)


class Version:
    """One version of all maps."""

    __slots__ = ("maps", "newer", "undo")

    def __init__(self, maps: Maps) -> None:
        self.maps: Maps | None = maps  # None once a newer version owns them
        self.newer: Version | None = None
        self.undo: dict[int, Log] = {}

    def open(self) -> "Version":
        """A new version with these contents, whose maps may be edited until it is closed."""
        maps = self.maps
        if maps is None:  # somebody went on from this version already: branch off with a copy
            return Version(maps_of([self.read(number) for number in range(len(NAMES))]))
        new = Version(maps)
        maps[0].journal.undo = self.undo = {}
        self.maps, self.newer = None, new
        return new

    def close(self, old: "Version") -> "Version":
        """The edits since `old.open()` stay: the version to keep, `old` itself if there were none."""
        maps = self.maps
        assert maps is not None, "the draft is closed"
        undo = maps[0].journal.undo
        for number in tuple(undo):
            maps[number].settle()
        return self if undo else old.take_back(self, maps)

    def abandon(self, old: "Version") -> None:
        """Every edit since `old.open()` is undone and `old` has its maps back."""
        maps = self.maps
        assert maps is not None, "the draft is closed"
        for number in maps[0].journal.undo:
            maps[number].undo()
        old.take_back(self, maps)

    def take_back(self, new: "Version", maps: Maps) -> "Version":
        """This version has maps again; `new`, which says the same, points here."""
        new.maps, new.newer, new.undo = None, self, {}
        self.maps, self.newer, self.undo = maps, None, {}
        return self

    def find(self, number: int, k: Any) -> Any:
        """What map `number` says about k, or MISSING."""
        v = self
        while v.maps is None:
            if number in v.undo and k in v.undo[number]:
                return v.undo[number][k]
            assert v.newer is not None
            v = v.newer
        return v.maps[number].data.get(k, MISSING)

    def read(self, number: int) -> dict[Any, Any]:
        """A copy of map `number`."""
        logs: list[Log] = []
        v = self
        while v.maps is None:
            if number in v.undo:
                logs.append(v.undo[number])
            assert v.newer is not None
            v = v.newer
        data = dict(v.maps[number].data)
        for log in reversed(logs):
            replay(log, data)
        return data


class View(Mapping[Any, V]):
    """A map as one version has it, read only. Iterating costs a copy."""

    __slots__ = ("default", "number", "version")

    def __init__(self, version: Version, name: str) -> None:
        self.version, self.number = version, NUMBER[name]
        self.default = Statuses.default if name == "status" else MISSING

    def __getitem__(self, k: Any) -> V:
        x = self.version.find(self.number, k)
        if x is MISSING:
            x = self.default
        if x is MISSING:
            raise KeyError(k)
        return x  # type: ignore[no-any-return]

    def get(self, k: Any, default: Any = None) -> Any:
        """The value of k, or `default` if k is not there."""
        x = self.version.find(self.number, k)
        return default if x is MISSING else x

    def __contains__(self, k: object) -> bool:
        return self.version.find(self.number, k) is not MISSING

    def to_dict(self) -> dict[Any, V]:
        """A copy."""
        return self.version.read(self.number)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_dict())

    def items(self) -> Any:
        """The pairs, of a copy."""
        return self.to_dict().items()

    def __len__(self) -> int:
        return len(self.to_dict()) if self.version.maps is None else len(self.version.maps[self.number].data)
