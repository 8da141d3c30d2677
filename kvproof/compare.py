"""`replay --check`: the first place where the records of a run differ from those that a scenario expects."""

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

Record = dict[str, Any]

MAPS = ("swap_out_map", "swap_in_map", "copy_map", "tables", "new_blocks", "trimmed")
"""What `--maps` adds. Compared only where it is expected."""


class Absent:
    """What is not there."""

    def __repr__(self) -> str:
        """A word without quotes: no value."""
        return "nothing"


ABSENT = Absent()


@attrs.frozen
class Difference:
    """One field of one step, and the records before and after it."""

    step: int
    field: str
    expected: Any
    got: Any
    before: Record | None
    record: Record | None
    others: tuple[str, ...] = ()
    """Further fields of this step that differ."""

    def lines(self) -> list[str]:
        """For people: what differs, then the state around it."""
        out = [f"step {self.step}, field {self.field}: expected {self.expected!r}, got {self.got!r}"]
        for when, record in (("before", self.before), ("here", self.record)):
            if record is not None and "queues" in record:
                queues = ", ".join(f"{name} {members}" for name, members in record["queues"].items())
                out.append(f"  {when}: step {record['step']}: {queues}; free GPU {record['free_gpu']}, host {record['free_cpu']}")
        if self.others:
            out.append(f"  here: {', '.join(self.others)} differ too")
        elif self.expected is not ABSENT and self.got is not ABSENT:
            out.append("  here: all other fields agree")
        if self.record is not None and "scheduled" in self.record:
            out.append(f"  here: scheduled {self.record['scheduled']}, preempted {self.record['preempted']}")
        return out


def fields(expected: Record, got: Record) -> list[str]:
    """The fields to compare, in the order of the record."""
    names = [name for name in got if name in expected or name not in MAPS]
    return names + [name for name in expected if name not in got]


class Comparison:
    """Fed with the records of a run, one by one; `difference` is the first, or None."""

    def __init__(self, expected: Sequence[Record]) -> None:
        self.expected = expected
        self.seen = 0
        self.before: Record | None = None
        self.difference: Difference | None = None

    def feed(self, got: Record) -> None:
        """The next decision record of the run."""
        if self.difference is None:
            if self.seen == len(self.expected):
                self.difference = Difference(self.seen, "step", ABSENT, got["step"], self.before, got)
            else:
                self._compare(self.expected[self.seen], got)
        self.seen += 1
        self.before = got

    def _compare(self, expected: Record, got: Record) -> None:
        pairs = {name: (expected.get(name, ABSENT), got.get(name, ABSENT)) for name in fields(expected, got)}
        different = [name for name, (want, have) in pairs.items() if not same(want, have)]
        if different:
            name, *others = different
            self.difference = Difference(self.seen, name, *pairs[name], self.before, got, tuple(others))

    def end(self) -> Difference | None:
        """The run is over: the first difference, if any."""
        if self.difference is None and self.seen < len(self.expected):
            self.difference = Difference(
                self.seen, "step", self.expected[self.seen].get("step", self.seen), ABSENT, self.before, None
            )
        return self.difference


def same(expected: Any, got: Any) -> bool:
    """Equal as JSON: true is not 1, and 1.0 is not 1."""
    if isinstance(expected, dict) and isinstance(got, dict):
        return expected.keys() == got.keys() and all(same(expected[key], got[key]) for key in got)
    if isinstance(expected, list) and isinstance(got, list):
        return len(expected) == len(got) and all(map(same, expected, got))
    return type(expected) is type(got) and bool(expected == got)


def compare(expected: Sequence[Record], records: Iterable[Record]) -> Difference | None:
    """The first difference between two logs."""
    comparison = Comparison(expected)
    for record in records:
        comparison.feed(record)
    return comparison.end()
