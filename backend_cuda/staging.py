"""Small pinned buffers that kernels read: each is written again only when the host has seen that its last reader is done."""

from collections import deque
from contextlib import ExitStack
from typing import Any

import attrs

from kvproof.backend_cuda.errors import PinRefused
from kvproof.backend_cuda.runtime import Buffer, Event, Runtime, Span, Stream

SMALLEST, FIRST = 1 << 12, 4
"""Bytes of the smallest, and how many of them are pinned at the start: pinning later may stop the streams for a while."""


@attrs.frozen(eq=False)
class Lent:
    """A buffer that a kernel reads, until the event."""

    buffer: Buffer
    event: Event


class Staging:
    """Buffers by size, a power of two."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.all: list[Buffer] = []
        self.free: dict[int, list[Buffer]] = {}
        self.lent: dict[Stream, deque[Lent]] = {}
        self.refused = False
        first = [self._pinned(SMALLEST) for _ in range(FIRST)]
        self.free[SMALLEST] = [buffer for buffer in first if buffer is not None]

    def _pinned(self, size: int) -> Buffer | None:
        if self.refused:
            return None
        try:
            self.all.append(self.runtime.pin(size))
        except PinRefused:
            self.refused = True
            return None
        return self.all[-1]

    def put(self, data: Any, size: int) -> Span | None:
        """A buffer with these bytes, to be lent or given back; None if the driver gives none."""
        self.collect()
        room = max(SMALLEST, 1 << (size - 1).bit_length())
        some = self.free.setdefault(room, [])
        buffer = some.pop() if some else self._pinned(room)
        if buffer is None:
            return None
        span = Span(buffer, 0, size)
        self.runtime.write_host(span, data)
        return span

    def give_back(self, span: Span) -> None:
        """Nobody reads it."""
        self.free[span.buffer.size].append(span.buffer)

    def lend(self, span: Span, stream: Stream) -> None:
        """What has been enqueued in the stream reads it."""
        event = self.runtime.event()
        self.runtime.record(event, stream)
        self.lent.setdefault(stream, deque()).append(Lent(span.buffer, event))

    def collect(self) -> None:
        """Take back what has been read."""
        for queue in self.lent.values():
            while queue and self.runtime.done(queue[0].event):
                buffer = queue.popleft().buffer
                self.free[buffer.size].append(buffer)

    def close(self) -> None:
        """Free all. Nothing runs any more."""
        with ExitStack() as last:
            while self.all:
                last.callback(self.runtime.free, self.all.pop())
