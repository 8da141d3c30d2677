"""Which operations are ordered, and who touched which bytes last: races, found whatever order things happened to run in.

Every stream is a timeline, and so is the host. An operation knows of each timeline how many of its operations come before it (a
vector clock): those of its own stream, those before events that its stream has waited for, and what the host had seen when it
enqueued it. Two accesses to one byte, one of them a write, must be ordered.
"""

from bisect import bisect_right

import attrs

from kvproof.backend_fake.errors import BackendError, Misuse

HOST = 0
"""The timeline of the host; streams are 1, 2, ..."""
Clock = dict[int, int]
"""Timeline -> how many of its operations come before."""


class HazardError(BackendError):
    """The program is wrong, even if it came out right this time."""

    def __init__(self, where: str) -> None:
        super().__init__(Misuse.HAZARD, where)


def join(clock: Clock, other: Clock) -> None:
    """Everything in `other` comes before, too."""
    for timeline, n in other.items():
        if clock.get(timeline, 0) < n:
            clock[timeline] = n


@attrs.frozen
class Access:
    """An operation that touched some bytes."""

    timeline: int
    number: int
    what: str

    def before(self, clock: Clock) -> bool:
        """Is it ordered before whoever has this clock?"""
        return clock.get(self.timeline, 0) >= self.number


@attrs.define(eq=False)
class Segment:
    """Bytes with one past: from `start` to where the next segment begins."""

    start: int
    write: Access | None
    reads: dict[int, Access]
    """The last of each timeline, since the write."""


class Ranges:
    """The accesses to one buffer of `size` bytes."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        self.segments = [Segment(0, None, {})]
        self.starts = [0]

    def _cut(self, at: int) -> int:
        """See to it that a segment begins at byte `at`; its index, or that of the end."""
        if at >= self.size:
            return len(self.segments)
        k = bisect_right(self.starts, at) - 1
        old = self.segments[k]
        if old.start == at:
            return k
        self.segments.insert(k + 1, Segment(at, old.write, dict(old.reads)))
        self.starts.insert(k + 1, at)
        return k + 1

    def read(self, start: int, size: int, by: Access, clock: Clock, seen: Clock) -> None:
        """Raises `HazardError` if a write of these bytes is not ordered before.

        seen: what the host has seen. Everything that is enqueued from now on is ordered after that, so it may be forgotten.
        """
        if not size:
            return
        first, stop = self._range(start, size)
        kept: list[Segment] = []
        for segment in self.segments[first:stop]:
            self._after(segment.write, "written", segment, by, clock)
            if segment.write is not None and segment.write.before(seen):
                segment.write = None
            reads = {t: read for t, read in segment.reads.items() if not read.before(seen)}
            segment.reads = reads | {by.timeline: by}
            if not kept or segment.write is not kept[-1].write or segment.reads != kept[-1].reads:
                kept.append(segment)
        self._replace(first, stop, kept)

    def write(self, start: int, size: int, by: Access, clock: Clock) -> None:
        """Raises `HazardError` if any access to these bytes is not ordered before."""
        if not size:
            return
        first, stop = self._range(start, size)
        for segment in self.segments[first:stop]:
            self._after(segment.write, "written", segment, by, clock)
            for read in segment.reads.values():
                self._after(read, "read", segment, by, clock)
        self._replace(first, stop, [Segment(start, by, {})])

    def free(self, clock: Clock, what: str) -> None:
        """Raises `HazardError` if any access may still come."""
        by = Access(HOST, 0, what)
        for segment in self.segments:
            self._after(segment.write, "written", segment, by, clock)
            for read in segment.reads.values():
                self._after(read, "read", segment, by, clock)

    def _range(self, start: int, size: int) -> tuple[int, int]:
        """The segments that are these bytes: from one index up to another."""
        if not 0 <= start <= start + size <= self.size:
            raise HazardError(f"bytes {start} to {start + size} of {self.name}, which has {self.size}")
        first = self._cut(start)
        return first, self._cut(start + size)

    def _replace(self, first: int, stop: int, segments: list[Segment]) -> None:
        if len(segments) < stop - first or len(segments) == 1:
            self.segments[first:stop] = segments
            self.starts[first:stop] = [segment.start for segment in segments]

    def _after(self, earlier: Access | None, how: str, segment: Segment, by: Access, clock: Clock) -> None:
        if earlier is not None and not earlier.before(clock):
            at = f"byte {segment.start} of {self.name}"
            raise HazardError(f"{by.what} races with {earlier.what}, by which {at} was {how}: nothing orders the two")
