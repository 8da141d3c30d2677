"""Small pinned buffers that kernels read: each is written again only when the host has seen that its last reader is done."""

from collections import deque
from contextlib import ExitStack
from typing import Any

import attrs

from kvproof.backend_cuda.errors import PinRefused
from kvproof.backend_cuda.runtime import Buffer, Event, Runtime, Span, Stream

SMALLEST = 1 << 10


@attrs.frozen(eq=False)
class Lent:
    """A buffer that a kernel reads, until the event."""

    buffer: Buffer
    event: Event


class Staging:
    """Buffers by size, a power of two."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.free: dict[int, list[Buffer]] = {}
        self.lent: dict[Stream, deque[Lent]] = {}
        self.refused = False

    def put(self, data: Any, size: int) -> Span | None:
        """A buffer with these bytes; None if the driver gives none."""
        self.collect()
        room = max(SMALLEST, 1 << (size - 1).bit_length())
        some = self.free.setdefault(room, [])
        if not some:
            if self.refused:
                return None
            try:
                some.append(self.runtime.pin(room))
            except PinRefused:
                self.refused = True
                return None
        span = Span(some.pop(), 0, size)
        self.runtime.write_host(span, data)
        return span

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
                self.free.setdefault(buffer.size, []).append(buffer)

    def close(self) -> None:
        """Wait for the readers and free all, also if the device is lost."""
        with ExitStack() as last:
            for some in self.free.values():
                while some:
                    last.callback(self.runtime.free, some.pop())
            for queue in self.lent.values():
                for lent in queue:
                    last.callback(self.runtime.free, lent.buffer)
            for queue in self.lent.values():
                while queue:
                    self.runtime.synchronize(queue.popleft().event)
