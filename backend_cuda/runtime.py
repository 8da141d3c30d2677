"""What the backend asks of a GPU: a few calls, with two implementations, CuPy's and the stream simulator.

`synchronize` and `drain` wait for the device. So may copies that touch pageable memory, and calls that allocate, pin or free; no
other does.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol

import attrs


class Place(Enum):
    """Where a buffer lies."""

    DEVICE = "device"
    PINNED = "pinned"
    """Host memory that the device reads and writes by itself."""
    PAGEABLE = "pageable"
    """Any other host memory: copies are right, and may wait."""


class Buffer(Protocol):
    """Memory that a runtime gave out."""

    @property
    def place(self) -> Place:
        """Where it lies."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def address(self) -> int:
        """As kernels see it; 0 for pageable memory, which they must not touch."""


@attrs.frozen(eq=False)
class Span:
    """`size` bytes of a buffer, from byte `start` on."""

    buffer: Buffer
    start: int
    size: int

    @property
    def address(self) -> int:
        """Of its first byte, as kernels see it."""
        return self.buffer.address + self.start


Move = tuple[Span, Span]
"""(target, source), of one size."""
Stream = Any
"""Operations run in the order in which they were enqueued; those of two streams in any."""
Event = Any
"""A mark in a stream."""


@attrs.frozen
class Device:
    """What there is to know of it."""

    name: str
    index: int
    capability: tuple[int, int]
    """Compute capability: (9, 0) is sm_90."""
    driver: str
    runtime: str
    multiprocessors: int
    numa_node: int | None
    """Of the host memory that is nearest; None: unknown."""


@attrs.frozen(eq=False)
class Work:
    """The bytes that one launch of a kernel reads and writes."""

    reads: Sequence[Span]
    writes: Sequence[Span]


class Runtime(Protocol):
    """See the classes for what each raises; all errors are `CudaError`s."""

    @property
    def device(self) -> Device:
        """The device that everything here is about."""

    @property
    def batches(self) -> bool:
        """Can `copy_batch` submit many copies in one call?"""

    @property
    def kernels(self) -> bool:
        """Can `launch` launch anything?"""

    # Memory.

    def free_memory(self) -> tuple[int, int]:
        """(free, total) bytes of the device."""

    def host_memory(self) -> int:
        """Free bytes of the host."""

    def allocate(self, size: int) -> Buffer:
        """Device memory, contents undefined. Raises `OutOfDeviceMemory`."""

    def pin(self, size: int) -> Buffer:
        """Pinned memory from the driver. Raises `PinRefused`."""

    def register(self, buffer: Buffer) -> None:
        """Pin pageable memory where it lies; no copy that touches it may be on its way. Raises `PinRefused`, or `CaptureRefused`
        while a graph is captured; so does `pin`."""

    def pageable(self, size: int) -> Buffer:
        """Host memory as it is."""

    def free(self, buffer: Buffer) -> None:
        """Give it back. Nothing that touches it may run any more."""

    def write_host(self, target: Span, data: Any) -> None:
        """The host writes these bytes to host memory, now."""

    def read_host(self, source: Span) -> Any:
        """The host reads bytes from host memory, now: an array of uint8 of its own."""

    def array(self, buffer: Buffer) -> Any:
        """All of a device buffer as an array of uint8 on the device, no copy."""

    # Order.

    def stream(self, name: str) -> Stream:
        """A new stream that waits for no other, the legacy default stream included."""

    def event(self) -> Event:
        """A new event; until it is recorded, waiting for it is no waiting."""

    def record(self, event: Event, stream: Stream) -> None:
        """The event happens when the stream has come so far."""

    def wait(self, stream: Stream, event: Event) -> None:
        """What is enqueued in the stream from now on runs after the event as it was recorded last."""

    def done(self, event: Event) -> bool:
        """Has it happened? Raises `DeviceLost`."""

    def synchronize(self, event: Event) -> None:
        """Wait till it has happened."""

    def drain(self, stream: Stream) -> None:
        """Wait till everything in the stream has run."""

    def capturing(self, stream: Stream) -> bool:
        """Is what is enqueued recorded for a graph, instead of run?"""

    # Work.

    def copy(self, target: Span, source: Span, stream: Stream) -> None:
        """Enqueue one copy."""

    def copy_batch(self, moves: Sequence[Move], stream: Stream) -> None:
        """Enqueue many, in any order among themselves."""

    def launch(
        self, kernel: str, stream: Stream, blocks: int, threads: int, args: Sequence[Any], work: Callable[[], Work]
    ) -> None:
        """Enqueue a kernel of `backend_cuda/kernels`. `work` says what it touches, for runtimes that ask."""

    def close(self) -> None:
        """The last call. Buffers are freed by who has them; streams and events go with their last user."""
