"""A runtime without a GPU: it holds real bytes, and runs what its streams are given in any order that is allowed.

An operation runs when an `Adversary` lets it: at the earliest when it is enqueued, at the latest when the host waits for it.
Copies of one batch run in any order, other streams in between. Copies that touch pageable memory wait, or do not. What is
enqueued is checked for races (`races.py`) at once; what it does to the bytes is seen when it has run.
"""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from kvproof.backend_cuda.errors import DeviceLost, OutOfDeviceMemory, PinRefused
from kvproof.backend_cuda.races import HOST, Access, Clock, HazardError, Ranges, join
from kvproof.backend_cuda.runtime import Buffer, Device, Move, Place, Span, Work
from kvproof.backend_cuda.streams import Adversary, Bytes, Op, SimBuffer, SimEvent, SimStream

APART = 1 << 40
"""Between the addresses of two buffers."""


Reference = Callable[["Kernel"], None]


class Simulator:
    """A `Runtime`. `pinned`: bytes that may be pinned, None for no limit; `total`: bytes of the device."""

    def __init__(
        self,
        seed: int = 0,
        *,
        total: int = 1 << 34,
        host: int = 1 << 34,
        pinned: int | None = None,
        pin_works: bool = True,
        register_works: bool = True,
        batches: bool = True,
        kernels: bool = True,
        adversary: Adversary | None = None,
    ) -> None:
        self.adversary = Adversary(seed) if adversary is None else adversary
        self.device = Device("simulated", 0, (9, 0), "none", "none", 4, None)
        self.batches, self.kernels = batches, kernels
        self.total, self.host_total, self.pinned_limit = total, host, pinned
        self.pin_works, self.register_works = pin_works, register_works
        self.buffers: list[SimBuffer] = []
        self.numbered: dict[int, SimBuffer] = {}
        self.streams: list[SimStream] = []
        self.clock: Clock = {}
        self.calls: dict[str, int] = {}
        self.lost = False
        self.references: dict[str, Reference] = {"copy_fragments": copy_fragments}
        self._made = 0

    # Memory.

    def _used(self, *places: Place) -> int:
        return sum(b.size for b in self.buffers if b.place in places)

    def free_memory(self) -> tuple[int, int]:
        """(free, total) bytes of the device."""
        return self.total - self._used(Place.DEVICE), self.total

    def host_memory(self) -> int:
        """Free bytes of the host."""
        return self.host_total - self._used(Place.PINNED, Place.PAGEABLE)

    def _make(self, place: Place, size: int) -> SimBuffer:
        self._made += 1
        data = np.full(size, 0xA5, dtype=np.uint8)  # undefined contents must not look like any
        name = f"{place.value} buffer {self._made}"
        buffer = SimBuffer(name, place, size, self._made * APART, data, Ranges(name, size))
        self.buffers.append(buffer)
        self.numbered[self._made] = buffer
        return buffer

    def allocate(self, size: int) -> SimBuffer:
        """Device memory."""
        self._count("allocate")
        if size > self.free_memory()[0]:
            raise OutOfDeviceMemory(f"{size:,} bytes asked for, {self.free_memory()[0]:,} free")
        return self._make(Place.DEVICE, size)

    def _may_pin(self, how: str, size: int) -> None:
        self._count(how)
        self.calls[f"largest {how}"] = max(self.calls.get(f"largest {how}", 0), size)
        if self.pinned_limit is not None and self._used(Place.PINNED) + size > self.pinned_limit:
            raise PinRefused(f"{how}: {size:,} bytes")

    def pin(self, size: int) -> SimBuffer:
        """Pinned memory, while the limit allows it."""
        if not self.pin_works:
            self._count("pin")
            raise PinRefused("pin: not supported")
        self._may_pin("pin", size)
        return self._make(Place.PINNED, size)

    def register(self, buffer: Buffer) -> None:
        """The same for what is there, unless registering is not supported."""
        if not self.register_works:
            self._count("register")
            raise PinRefused("register: not supported")
        assert isinstance(buffer, SimBuffer)
        buffer.ranges.free(self.clock, "register")
        self._may_pin("register", buffer.size)
        buffer.place = Place.PINNED
        self._count("registered")

    def pageable(self, size: int) -> SimBuffer:
        """Host memory as it is."""
        self._count("pageable")
        return self._make(Place.PAGEABLE, size)

    def free(self, buffer: Buffer) -> None:
        """Raises `HazardError` for a buffer that is free, or that something may still touch."""
        assert isinstance(buffer, SimBuffer)
        if not buffer.live:
            raise HazardError(f"{buffer.name} is freed twice")
        self._check_lost()
        buffer.ranges.free(self.clock, "free")
        buffer.live = False
        buffer.data[:] = 0x5A
        self.buffers.remove(buffer)

    def write_host(self, target: Span, data: Any) -> None:
        """The host writes, now."""
        by, clock = self._now(f"the host's write of {self._name(target)}")
        self._buffer(target, host=True).ranges.write(target.start, target.size, by, clock)
        self._bytes(target)[:] = np.frombuffer(data, dtype=np.uint8)

    def read_host(self, source: Span) -> Bytes:
        """The host reads, now."""
        by, clock = self._now(f"the host's read of {self._name(source)}")
        self._buffer(source, host=True).ranges.read(source.start, source.size, by, clock, clock)
        return self._bytes(source).copy()

    def array(self, buffer: Buffer) -> Bytes:
        """The bytes, unchecked: for whoever has waited."""
        assert isinstance(buffer, SimBuffer)
        return buffer.data

    def _buffer(self, span: Span, host: bool = False) -> SimBuffer:
        buffer = span.buffer
        assert isinstance(buffer, SimBuffer)
        if not buffer.live:
            raise HazardError(f"{buffer.name} is used after it was freed")
        if host and buffer.place == Place.DEVICE:
            raise HazardError(f"the host touches {buffer.name}")
        return buffer

    def at(self, address: int, size: int) -> Bytes:
        """The bytes at an address, as a kernel reaches them."""
        number, start = divmod(address, APART)
        buffer = self.numbered[number]
        return self._bytes(Span(buffer, start, size))

    @staticmethod
    def _name(span: Span) -> str:
        return f"[{span.start}, {span.start + span.size}) of {getattr(span.buffer, 'name', 'a buffer')}"

    def _bytes(self, span: Span) -> Bytes:
        return self._buffer(span).data[span.start : span.start + span.size]

    def _now(self, what: str) -> tuple[Access, Clock]:
        """An access by the host."""
        self.clock[HOST] = self.clock.get(HOST, 0) + 1
        return Access(HOST, self.clock[HOST], what), self.clock

    def _count(self, call: str) -> None:
        self.calls[call] = self.calls.get(call, 0) + 1

    # Order.

    def stream(self, name: str) -> SimStream:
        """A new one."""
        stream = SimStream(name, len(self.streams) + 1)
        self.streams.append(stream)
        return stream

    def event(self) -> SimEvent:
        """A new one."""
        return SimEvent()

    def record(self, event: SimEvent, stream: SimStream) -> None:
        """It happens when everything before has run."""
        event.recorded += 1
        event.clock = dict(stream.clock)
        number = event.recorded

        def happen() -> None:
            event.happened = max(event.happened, number)

        self._enqueue(stream, Op("record", [happen]))

    def wait(self, stream: SimStream, event: SimEvent) -> None:
        """What follows runs after the event as it was recorded last."""
        join(stream.clock, event.clock)
        self._enqueue(stream, Op("wait", [], (event, event.recorded)))

    def done(self, event: SimEvent) -> bool:
        """Has it happened, as far as the host can see? Then everything before it is ordered before what the host does next."""
        self._check_lost()
        self._go_on()
        if self.adversary.moves():
            self._run_one(None)
        if event.happened < event.recorded or not self.adversary.admits():
            return False
        join(self.clock, event.clock)
        return True

    def synchronize(self, event: SimEvent) -> None:
        """Run what is ready until it has happened."""
        self._check_lost()
        while event.happened < event.recorded:
            self._run_one("an event")
        join(self.clock, event.clock)

    def drain(self, stream: SimStream) -> None:
        """Run what is ready until the stream is empty."""
        self._check_lost()
        while stream.queue:
            self._run_one(f"stream {stream.name}")
        join(self.clock, stream.clock)

    def begin_capture(self, stream: SimStream) -> None:
        """What is enqueued from now on is recorded and does not run."""
        stream.graph = []

    def end_capture(self, stream: SimStream) -> list[Op]:
        """The graph."""
        graph, stream.graph = stream.graph, None
        return graph or []

    def capturing(self, stream: SimStream) -> bool:
        """Is a graph captured?"""
        return stream.graph is not None

    # Work.

    def copy(self, target: Span, source: Span, stream: SimStream) -> None:
        """Enqueue one copy."""
        self._count("copy")
        self._submit("a copy", stream, [(target, source)])

    def copy_batch(self, moves: Sequence[Move], stream: SimStream) -> None:
        """Enqueue many."""
        if not self.batches:
            raise HazardError("this driver has no batched copies")
        self._count("copy_batch")
        self._submit("a batch", stream, moves)

    def _submit(self, what: str, stream: SimStream, moves: Sequence[Move]) -> None:
        self._check_lost()
        slow = False
        for target, source in moves:
            if target.size != source.size:
                raise HazardError(f"{what} of {source.size} bytes to {target.size}")
            slow = slow or Place.PAGEABLE in (target.buffer.place, source.buffer.place)
        self._touch(f"{what} on {stream.name}", stream, [s for _, s in moves], [t for t, _ in moves])
        self._enqueue(stream, Op(what, [self._mover(target, source) for target, source in moves]))
        if slow and stream.graph is None and self.adversary.waits():
            self.drain(stream)

    def _mover(self, target: Span, source: Span) -> Callable[[], None]:
        def move() -> None:
            self._bytes(target)[:] = self._bytes(source)

        return move

    def launch(
        self, kernel: str, stream: SimStream, blocks: int, threads: int, args: Sequence[Any], work: Callable[[], Work]
    ) -> None:
        """Enqueue the reference of a kernel."""
        self._check_lost()
        self._count(kernel)
        if not self.kernels and kernel == "copy_fragments":
            raise HazardError("there are no kernels")
        said = work()
        for span in (*said.reads, *said.writes):
            if span.buffer.place == Place.PAGEABLE:
                raise HazardError(f"{kernel} touches pageable memory")
        self._touch(f"{kernel} on {stream.name}", stream, said.reads, said.writes)
        run = self.references[kernel]
        self._enqueue(stream, Op(kernel, [lambda: run(Kernel(self, kernel, tuple(args), said))]))

    def _touch(self, what: str, stream: SimStream, reads: Sequence[Span], writes: Sequence[Span]) -> None:
        """An operation of the stream: the next of its timeline, after everything that the host has seen."""
        number = stream.clock.get(stream.timeline, 0) + 1
        join(stream.clock, self.clock)
        by = Access(stream.timeline, number, what)
        for span in reads:
            self._buffer(span).ranges.read(span.start, span.size, by, stream.clock, self.clock)
        for span in writes:
            self._buffer(span).ranges.write(span.start, span.size, by, stream.clock)
        stream.clock[stream.timeline] = number

    def _enqueue(self, stream: SimStream, op: Op) -> None:
        if stream.graph is not None:
            stream.graph.append(op)
            return
        stream.queue.append(op)
        self._go_on()

    # Running.

    def _go_on(self) -> None:
        """Run as much as the adversary likes."""
        while self.adversary.more() and self._run_one(None):
            pass

    def _run_one(self, awaited: str | None) -> bool:
        """One step of one stream; False if nothing is ready, unless somebody waits."""
        ready = [s for s in self.streams if s.queue and s.queue[0].ready()]
        if not ready:
            if awaited is not None:
                raise HazardError(f"the host waits for {awaited} for ever")
            return False
        stream = ready[self.adversary.pick([s.timeline for s in ready])]
        op = stream.queue[0]
        if op.steps:
            op.steps.pop(self.adversary.step(len(op.steps)))()
        if not op.steps:
            stream.queue.popleft()
        return True

    def _check_lost(self) -> None:
        if self.lost:
            raise DeviceLost("the simulated device was lost")

    def close(self) -> None:
        """Everything must have run, and every buffer must be free."""
        if any(s.queue for s in self.streams) and not self.lost:
            raise HazardError("the runtime is closed while something is enqueued")
        if self.buffers:
            raise HazardError(f"never freed: {', '.join(b.name for b in self.buffers)}")


@attrs.frozen(eq=False)
class Kernel:
    """A kernel that runs: it reaches memory by addresses, and only what its launch said it would touch."""

    runtime: Simulator
    name: str
    args: tuple[Any, ...]
    work: Work
    reads: dict[int, int] = attrs.field(init=False)
    writes: dict[int, int] = attrs.field(init=False)
    """Address -> bytes from there on."""

    @reads.default
    def _reads(self) -> dict[int, int]:
        return {span.address: span.size for span in self.work.reads}

    @writes.default
    def _writes(self) -> dict[int, int]:
        return {span.address: span.size for span in self.work.writes}

    def _find(self, address: int, size: int, spans: Sequence[Span], how: str) -> Bytes:
        known = self.reads if how == "reads" else self.writes
        if known.get(address, -1) >= size:
            return self.runtime.at(address, size)
        for span in spans:
            if span.address <= address and address + size <= span.address + span.size:
                return self.runtime.at(address, size)
        raise HazardError(f"{self.name} {how} {size} bytes at {address:#x}, which its launch did not say")

    def read(self, address: int, size: int) -> Bytes:
        """Bytes that it reads."""
        return self._find(address, size, self.work.reads, "reads")

    def write(self, address: int, data: Bytes) -> None:
        """Bytes that it writes."""
        self._find(address, len(data), self.work.writes, "writes")[:] = data


def copy_fragments(kernel: Kernel) -> None:
    """The reference of `kernels/copy_fragments.cu`: pairs of addresses in a table, `size` bytes each."""
    table, count, size = kernel.args
    pairs = kernel.read(table, 16 * count).view(np.uint64).reshape(count, 2).tolist()
    for source, target in pairs:
        kernel.write(target, kernel.read(source, size))
