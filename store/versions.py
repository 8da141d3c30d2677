"""Versions of all maps together: immutable outside, dicts inside.

Baker's trick, as in Conchon and Filliatre's persistent arrays: the newest version owns the dicts. An older one holds what the
next one overwrote and a pointer to it, so it stays readable for ever and costs only the difference. Opening the newest version
costs O(1), an edit two dict writes; opening an old one copies everything. A draft that writes to no map makes no version.

All maps share one version because a draft that opens 14 of them one by one costs more than what a decode step does with them
(docs/benchmarks.md, "What the store costs").
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from kvproof.store.collections import Free, Members, Refs, Table
from kvproof.store.maps import MISSING, Journal, Log, Logged, Map, Ones, Statuses, Zeros, replay
from kvproof.store.queues import Calendar

V = TypeVar("V")
Maps = tuple[Any, ...]

GROUP_MAPS = (
    "status",
    "key",
    "prompt",
    "length",
    "computed",
    "limit",
    "born",
    "seats",
    "reserve",
    "priority",
    "ungiven",
    "preemptions",
    "owed",
    "arrival",
    "deny",
    "alarm",
    "expires",
)
"""Per-group integers. `forget` removes a group from each."""
NAMES = (*GROUP_MAPS, "members", "table", "refs", "due", "expiry", "free")
NUMBER = {name: number for number, name in enumerate(NAMES)}
ZEROS, ONES = dict.fromkeys(("priority", "preemptions", "owed"), Zeros), dict.fromkeys(("seats", "reserve", "ungiven"), Ones)
KINDS: dict[str, type[Map[int]]] = {"status": Statuses, **ZEROS, **ONES}
"""Those in which a group that is not there has a value."""


def maps_of(contents: list[dict[Any, Any]]) -> Maps:
    """Maps with these contents, in the order of NAMES."""
    journal = Journal()
    maps: list[Any] = [Map(i, journal, contents[i]) for i in range(len(GROUP_MAPS))]
    for name, kind in KINDS.items():
        maps[NUMBER[name]] = kind(NUMBER[name], journal, contents[NUMBER[name]])
    for name in ("alarm", "expires"):  # written by their calendars only
        maps[NUMBER[name]] = Logged(NUMBER[name], journal, contents[NUMBER[name]])
    key = maps[NUMBER["key"]]
    i = len(GROUP_MAPS)
    members = Members(i, journal, contents[i])
    table = Table(i + 1, journal, contents[i + 1], members)
    refs = Refs(i + 2, journal, contents[i + 2])
    due = Calendar(i + 3, journal, contents[i + 3], maps[NUMBER["alarm"]], key)
    expiry = Calendar(i + 4, journal, contents[i + 4], maps[NUMBER["expires"]], key)
    return (*maps, members, table, refs, due, expiry, Free(i + 5, journal, contents[i + 5]))


class Version:
    """One version of all maps."""

    __slots__ = ("maps", "newer", "undo")

    def __init__(self, maps: Maps) -> None:
        self.maps: Maps | None = maps  # None once a newer version owns them
        self.newer: Version | None = None
        self.undo: dict[int, Log] = {}

    def open(self) -> "Version":
        """A version with these contents, whose maps may be edited until it is closed: this one, or else a copy."""
        maps = self.maps
        if maps is None or maps[0].journal.undo is not None:  # somebody goes or went on from this version already
            branch = Version(maps_of([self.read(number) for number in range(len(NAMES))]))
            return branch.open()
        maps[0].journal.undo = {}
        return self

    def close(self) -> "Version":
        """The edits since `open` make a new version; without any, this one."""
        maps = self.maps
        assert maps is not None
        journal = maps[0].journal
        undo, journal.undo = journal.undo, None
        if not undo:
            return self
        for number in undo:
            maps[number].settle()
        self.maps, self.undo = None, undo
        new = self.newer = Version(maps)
        return new

    def abandon(self, base: "Version") -> None:
        """The edits since `base.open()`, which gave this version, are undone."""
        maps = self.maps
        assert maps is not None
        journal = maps[0].journal
        for number in journal.undo:
            maps[number].undo()
        journal.undo = None
        if base.maps is None:  # it may keep the copy
            base.maps, base.newer, base.undo = maps, None, {}

    def find(self, number: int, k: Any) -> Any:
        """What map `number` says about k, or MISSING. What an open draft has edited is not seen."""
        v = self
        while v.maps is None:
            if number in v.undo and k in v.undo[number]:
                return v.undo[number][k]
            assert v.newer is not None
            v = v.newer
        undo = v.maps[0].journal.undo
        if undo and number in undo and k in undo[number]:
            return undo[number][k]
        return v.maps[number].get(k, MISSING)

    def read(self, number: int) -> dict[Any, Any]:
        """A copy of map `number`."""
        logs: list[Log] = []
        v = self
        while v.maps is None:
            if number in v.undo:
                logs.append(v.undo[number])
            assert v.newer is not None
            v = v.newer
        undo = v.maps[0].journal.undo
        if undo and number in undo:
            logs.append(undo[number])
        data = dict(v.maps[number])
        for log in reversed(logs):
            replay(log, data)
        return data


class View(Mapping[Any, V]):
    """A map as one version has it, read only. Iterating costs a copy."""

    __slots__ = ("default", "number", "version")

    def __init__(self, version: Version, name: str) -> None:
        self.version, self.number = version, NUMBER[name]
        self.default = KINDS[name].default if name in KINDS else MISSING

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
        return len(self.to_dict())
