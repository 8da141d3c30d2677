"""CudaBackend: executes plans on GPU and pinned host memory, on streams of its own, and never waits unless it is asked to."""

from collections import deque
from contextlib import ExitStack
from typing import Any

import attrs

from kvproof.backend_cuda.copier import KERNEL_BELOW, Copier
from kvproof.backend_cuda.errors import CaptureRefused, Closed, OutOfDeviceMemory
from kvproof.backend_cuda.host_pool import CHUNK_BYTES, HostPool
from kvproof.backend_cuda.layout import NUMPY, Layout
from kvproof.backend_cuda.runtime import Event, Runtime
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

    The engine enqueues the kernels of a step on `compute` after it has called `execute` with the plan of that step.
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
        """Raises `OutOfDeviceMemory` or `OutOfHostMemory`, and has allocated nothing then."""
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
        self.gpu = runtime.allocate(size)
        self.out, self.back, self.compute = (runtime.stream(name) for name in ("out", "in", "compute"))
        self.copier = Copier(runtime, self.gpu, self.host, kernel_below)
        self._flying: deque[Ticket] = deque()
        self._closed = False

    # Plans.

    def execute(self, plan: Plan) -> Ticket:
        """Submit the plan's copies. Raises before anything is submitted: `BackendError` names an entry that names no block of the
        side where it is used, `CaptureRefused` if a graph is being captured."""
        self._open()
        check_lists(self.sizes, plan)
        for stream in (self.out, self.back, self.compute):
            if self.runtime.capturing(stream):
                raise CaptureRefused("a plan is executed while a graph is captured on one of the backend's streams")
        events: list[Event] = []
        n = self.sizes.gpu
        if plan.swap_out or plan.swap_in:
            ready = self.runtime.event()
            self.runtime.record(ready, self.compute)
            if plan.swap_out:
                self.runtime.wait(self.out, ready)
                self.copier.out([(s, t - n) for s, t in plan.swap_out], self.out)
                events.append(self._mark(self.out))
            if plan.swap_in:
                self.runtime.wait(self.back, ready)
                self.copier.back([(s - n, t) for s, t in plan.swap_in], self.back)
                events.append(self._mark(self.back))
            for event in events:
                self.runtime.wait(self.compute, event)
        if plan.copy:
            self.copier.within(plan.copy, self.compute)
            events.append(self._mark(self.compute))
        ticket = Ticket(plan.epoch, tuple(events))
        self._flying.append(ticket)
        return ticket

    def _mark(self, stream: Any) -> Event:
        event = self.runtime.event()
        self.runtime.record(event, stream)
        return event

    def poll(self) -> Progress:
        """What has come to an end. Never waits."""
        self._open()
        done = []
        while self._flying and all(self.runtime.done(event) for event in self._flying[0].events):
            done.append(self._flying.popleft().epoch)
        self.copier.staging.collect()
        return Progress(tuple(done))

    def wait(self, ticket: Ticket) -> None:
        """Until the transfers of this plan are done. `poll` tells of it as well."""
        self._open()
        for event in ticket.events:
            self.runtime.synchronize(event)

    # Memory.

    def view(self, layer: int) -> Any:
        """Keys and values of a layer, [num_gpu_blocks, 2, block_size, kv_heads, head_size], on the device, no copy.

        bfloat16 comes as uint16 and float8 as uint8: `torch.from_dlpack(backend.view(0)).view(torch.bfloat16)`.
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
        """Wait for everything and free it. Harmless the second time."""
        if self._closed:
            return
        self._closed = True
        with ExitStack() as last:  # also if the device is lost
            last.callback(self.runtime.free, self.gpu)
            last.callback(self.host.close)
            last.callback(self.copier.staging.close)
            for stream in (self.out, self.back, self.compute):
                self.runtime.drain(stream)

    def __enter__(self) -> "CudaBackend":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
