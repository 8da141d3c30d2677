"""CudaBackend: executes plans on GPU and pinned host memory, on streams of its own, and does not wait for them."""

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import attrs

from kvproof.backend_cuda.copier import KERNEL_BELOW, Copier, Job
from kvproof.backend_cuda.errors import CaptureRefused, Closed, DeviceLost, OutOfDeviceMemory
from kvproof.backend_cuda.host_pool import CHUNK_BYTES, HostPool
from kvproof.backend_cuda.layout import NUMPY, Layout
from kvproof.backend_cuda.runtime import Event, Runtime, Stream
from kvproof.backend_fake.checks import Sizes, check_lists
from kvproof.store.plan import Plan


@attrs.frozen(eq=False)
class Ticket:
    """The transfers of one plan."""

    epoch: int
    events: tuple[Event, ...]


@attrs.frozen
class Progress:
    """Epochs whose transfers have come to an end since it was asked last, in the order of their plans."""

    done: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()


class CudaBackend:
    """Block ids are those of plans: 0 .. num_gpu_blocks - 1 on the GPU, host blocks follow.

    The engine enqueues the kernels of a step on `compute` after it has called `execute` with the plan of that step, or on a
    stream of its own between `begin_step` and `end_step`. One thread uses all of this; only `pin_next` may be called in another.
    """

    def __init__(
        self,
        runtime: Runtime,
        layout: Layout,
        num_gpu_blocks: int,
        num_cpu_blocks: int,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        kernel_below: int = KERNEL_BELOW,
    ) -> None:
        """Raises `OutOfDeviceMemory` or `OutOfHostMemory`. Whatever it raises, it has kept nothing."""
        self.runtime, self.layout = runtime, layout
        self.sizes = Sizes(num_gpu_blocks, num_cpu_blocks)
        self.host = HostPool(runtime, layout, num_cpu_blocks, chunk_bytes)
        size = num_gpu_blocks * layout.block_bytes
        free, total = runtime.free_memory()
        if size > free:
            raise OutOfDeviceMemory(
                f"{num_gpu_blocks} GPU blocks take {size:,} bytes, and {free:,} of {total:,} are free on the device: "
                f"num_gpu_blocks can be at most {free // layout.block_bytes}"
            )
        with ExitStack() as last:
            self.out, self.back, self.compute = (runtime.stream(name) for name in ("out", "back", "compute"))
            self.gpu = runtime.allocate(size)
            last.callback(runtime.free, self.gpu)
            self.copier = Copier(runtime, self.gpu, self.host, kernel_below)
            last.pop_all()
        self._flying: deque[Ticket] = deque()
        self._done: list[int] = []
        self._closed = False

    # Plans.

    def execute(self, plan: Plan) -> Ticket:
        """Submit the plan's copies. What may be refused is refused before anything is submitted: `BackendError` names an entry
        that names no block of the side where it is used, `CaptureRefused` if a graph is captured on one of the streams here."""
        self._open()
        check_lists(self.sizes, plan)
        for stream in (self.out, self.back, self.compute):
            if self.runtime.capturing(stream):
                raise CaptureRefused("a plan is executed while a graph is captured on one of the backend's streams")
        n = self.sizes.gpu
        lists = (
            (self.copier.out, self.out, [(s, t - n) for s, t in plan.swap_out]),
            (self.copier.back, self.back, [(s - n, t) for s, t in plan.swap_in]),
            (self.copier.within, self.compute, plan.copy),
        )
        with self.host.lock:
            jobs: list[tuple[Job, Stream]] = []
            try:
                jobs += [(prepare(pairs), stream) for prepare, stream, pairs in lists if pairs]
            except BaseException:
                for job, _ in jobs:
                    self.copier.cancel(job)
                raise
            ticket = Ticket(plan.epoch, self._submit(jobs))
        self._flying.append(ticket)
        self._advance()
        return ticket

    def _submit(self, jobs: Sequence[tuple[Job, Stream]]) -> tuple[Event, ...]:
        """Swaps wait for what `compute` was given so far, and it waits for them."""
        ready = None
        events = []
        for job, stream in jobs:
            if stream is not self.compute:
                if ready is None:
                    ready = self._mark(self.compute)
                self.runtime.wait(stream, ready)
            events.append(self.copier.submit(job, stream))
            if stream is not self.compute:
                self.runtime.wait(self.compute, events[-1])
        return tuple(events)

    def _mark(self, stream: Stream) -> Event:
        event = self.runtime.event()
        self.runtime.record(event, stream)
        return event

    def begin_step(self, stream: Stream) -> None:
        """What the engine enqueues in a stream of its own from now on runs after the copies of the last plan."""
        self.runtime.wait(stream, self._mark(self.compute))

    def end_step(self, stream: Stream) -> None:
        """The copies of the next plan run after what the engine has enqueued in this stream."""
        self.runtime.wait(self.compute, self._mark(stream))

    def _advance(self) -> None:
        while self._flying and all(self.runtime.done(event) for event in self._flying[0].events):
            self._done.append(self._flying.popleft().epoch)

    def poll(self) -> Progress:
        """What has come to an end. Never waits. Raises `DeviceLost`."""
        self._open()
        self._advance()
        self.copier.staging.collect()
        done, self._done = tuple(self._done), []
        return Progress(done)

    def wait(self, ticket: Ticket) -> None:
        """Until the transfers of this plan are done. `poll` tells of it as well."""
        self._open()
        for event in ticket.events:
            self.runtime.synchronize(event)

    # Memory.

    def pin_next(self) -> bool:
        """Pin the next chunk of the host pool; False if there is nothing left to pin. Call it until then, while the engine runs
        already or before it starts: copies that touch memory that is not pinned are slow."""
        return self.host.pin_next()

    def view(self, layer: int) -> Any:
        """Keys and values of a layer, [num_gpu_blocks, 2, block_size, kv_heads, head_size], on the device, no copy.

        It is the pool: not to be used after `close`. bfloat16 comes as uint16 and float8 as uint8:
        `torch.from_dlpack(backend.view(0)).view(torch.bfloat16)`.
        """
        self._open()
        if not 0 <= layer < self.layout.layers:
            raise IndexError(f"layer {layer} of {self.layout.layers}")
        array = self.runtime.array(self.gpu).view(NUMPY[self.layout.dtype])
        return array.reshape(self.sizes.gpu, *self.layout.shape)[:, layer]

    def _open(self) -> None:
        if self._closed:
            raise Closed("the backend was closed")

    def close(self) -> None:
        """Wait for everything and free it. Harmless the second time; if it is interrupted while it waits, it can be called again.

        Raises `DeviceLost` if the device is, and has freed what can be freed.
        """
        if self._closed:
            return
        lost = None
        for stream in (self.out, self.back, self.compute):
            try:
                self.runtime.drain(stream)
            except DeviceLost as error:
                lost = error
        self._closed = True
        with ExitStack() as last:
            last.callback(self.runtime.free, self.gpu)
            last.callback(self.host.close)
            last.callback(self.copier.staging.close)
            if lost is not None:
                raise lost

    def __enter__(self) -> "CudaBackend":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
