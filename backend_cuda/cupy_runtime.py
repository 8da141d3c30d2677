"""The runtime on a real device, by CuPy. Pools are allocated from CUDA itself: a cache of freed memory would not wait for copies.

Every CUDA error becomes a `CudaError` that says what to do. What cannot be told apart from a broken device is `DeviceLost`.
"""

import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from kvproof.backend_cuda import kernels
from kvproof.backend_cuda.errors import CudaError, DeviceLost, NoDevice, NoDriver, OutOfDeviceMemory, PinRefused
from kvproof.backend_cuda.runtime import Buffer, Device, Move, Place, Span, Work

INSTALL = "pip install 'kvproof[cuda]', or 'kvproof[cuda12]' for a driver of CUDA 12"
MEMORY_ALLOCATION, INSUFFICIENT_DRIVER, NO_DEVICE, INVALID_DEVICE = 2, 35, 100, 101
"""Numbers of CUDA's errors, of which CuPy has no names."""
PORTABLE, MAPPED = 1, 2
BATCHES_SINCE = 12_080
"""Driver that has `cudaMemcpyBatchAsync`: 12.8."""


@attrs.define(eq=False)
class CupyBuffer:
    """Memory of CUDA's, or of the host's."""

    place: Place
    size: int
    address: int
    host: Any = attrs.field(default=None, repr=False)
    """Host memory as an array of uint8."""
    registered: bool = False


def version(number: int) -> str:
    """13020 is 13.2."""
    return f"{number // 1000}.{number % 1000 // 10}"


class CupyRuntime:
    """See `Runtime`. Raises `NoDriver` or `NoDevice`."""

    def __init__(self, index: int = 0) -> None:
        try:
            import cupy
        except ImportError as error:
            raise NoDriver(f"CuPy cannot be imported ({error}): {INSTALL}") from error
        self.cupy, self.api = cupy, cupy.cuda.runtime
        try:
            count = self.api.getDeviceCount()
        except self.api.CUDARuntimeError as error:
            if error.status == NO_DEVICE:
                raise NoDevice("the driver sees no GPU: look at nvidia-smi and CUDA_VISIBLE_DEVICES") from error
            raise NoDriver(f"there is no CUDA driver that CuPy can use ({error}): install one, or {INSTALL}") from error
        if not 0 <= index < count:
            raise NoDevice(f"there is no GPU {index}: the driver sees {count}")
        self.index = index
        self.api.setDevice(index)
        self.device = self._describe()
        self._bindings = self._batched_copies()
        self._functions: dict[str, Any] = {}

    def _describe(self) -> Device:
        found = self.api.getDeviceProperties(self.index)
        bus = self.api.deviceGetPCIBusId(self.index).lower()
        try:
            node = int(Path(f"/sys/bus/pci/devices/{bus}/numa_node").read_text())
        except (OSError, ValueError):
            node = -1
        name = found["name"]
        return Device(
            name.decode() if isinstance(name, bytes) else name,
            self.index,
            (found["major"], found["minor"]),
            version(self.api.driverGetVersion()),
            version(self.api.runtimeGetVersion()),
            found["multiProcessorCount"],
            node if node >= 0 else None,
        )

    def _batched_copies(self) -> Any:
        """`cuda.bindings.runtime`, if it and the driver can copy in batches."""
        try:
            from cuda.bindings import runtime
        except ImportError:
            return None
        return runtime if self.api.driverGetVersion() >= BATCHES_SINCE and hasattr(runtime, "cudaMemcpyBatchAsync") else None

    @property
    def batches(self) -> bool:
        """Can `copy_batch` submit many copies in one call?"""
        return self._bindings is not None

    @contextmanager
    def _asking(self, what: str, short: type[CudaError] = DeviceLost) -> Iterator[None]:
        """What CUDA says becomes an error of ours; `short`: if it has no memory."""
        try:
            yield
        except self.api.CUDARuntimeError as error:
            if error.status == MEMORY_ALLOCATION or short is PinRefused:
                raise short(f"{what}: {error}") from error
            raise DeviceLost(
                f"{what}: {error}; a kernel or a copy before it may have failed, and nothing on the device can be relied on: "
                "start the process again"
            ) from error
        except self.cupy.cuda.driver.CUDADriverError as error:
            raise DeviceLost(f"{what}: {error}: start the process again") from error

    # Memory.

    def free_memory(self) -> tuple[int, int]:
        """(free, total) bytes of the device."""
        with self._asking("free memory"):
            free, total = self.api.memGetInfo()
        return int(free), int(total)

    def host_memory(self) -> int:
        """Bytes that the kernel of the host could give out without swapping."""
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
        return 1 << 62

    def allocate(self, size: int) -> CupyBuffer:
        """Device memory."""
        with self._asking(f"{size:,} bytes of device memory", OutOfDeviceMemory):
            return CupyBuffer(Place.DEVICE, size, self.api.malloc(size))

    def pin(self, size: int) -> CupyBuffer:
        """Pinned memory from the driver."""
        self.api.setDevice(self.index)  # of the thread that asks
        with self._asking(f"pin {size:,} bytes", PinRefused):
            address = self.api.hostAlloc(size, PORTABLE | MAPPED)
        return CupyBuffer(Place.PINNED, size, address, host_array(address, size))

    def register(self, buffer: Buffer) -> None:
        """Pin pageable memory where it lies."""
        assert isinstance(buffer, CupyBuffer)
        self.api.setDevice(self.index)
        start = buffer.host.ctypes.data
        with self._asking(f"register {buffer.size:,} bytes", PinRefused):
            self.api.hostRegister(start, buffer.size, PORTABLE | MAPPED)
            buffer.address = self.api.pointerGetAttributes(start).devicePointer
        buffer.place, buffer.registered = Place.PINNED, True

    def pageable(self, size: int) -> CupyBuffer:
        """Whole pages, so that they can be registered."""
        return CupyBuffer(Place.PAGEABLE, size, 0, np.frombuffer(mmap.mmap(-1, size), dtype=np.uint8))

    def free(self, buffer: Buffer) -> None:
        """Give it back."""
        assert isinstance(buffer, CupyBuffer)
        with self._asking("free"):
            if buffer.place == Place.DEVICE:
                self.api.free(buffer.address)
            elif buffer.registered:
                self.api.hostUnregister(buffer.host.ctypes.data)
            elif buffer.place == Place.PINNED:
                self.api.freeHost(buffer.address)
        buffer.host, buffer.size = None, 0

    def write_host(self, target: Span, data: Any) -> None:
        """The host writes, now."""
        assert isinstance(target.buffer, CupyBuffer)
        target.buffer.host[target.start : target.start + target.size] = np.frombuffer(data, dtype=np.uint8)

    def read_host(self, source: Span) -> Any:
        """The host reads, now."""
        assert isinstance(source.buffer, CupyBuffer)
        return source.buffer.host[source.start : source.start + source.size].copy()

    def array(self, buffer: Buffer) -> Any:
        """A CuPy array of uint8, which does not own it."""
        memory = self.cupy.cuda.memory.UnownedMemory(buffer.address, buffer.size, buffer, self.index)
        return self.cupy.ndarray((buffer.size,), self.cupy.uint8, self.cupy.cuda.memory.MemoryPointer(memory, 0))

    # Order.

    def stream(self, name: str) -> Any:
        """A stream that the legacy default stream does not wait for, nor it for that."""
        with self._asking("a stream"):
            return self.cupy.cuda.Stream(non_blocking=True)

    def event(self) -> Any:
        """Without times: those cost."""
        with self._asking("an event"):
            return self.cupy.cuda.Event(disable_timing=True)

    def record(self, event: Any, stream: Any) -> None:
        """The event happens when the stream has come so far."""
        with self._asking("record an event"):
            stream.record(event)

    def wait(self, stream: Any, event: Any) -> None:
        """What follows in the stream runs after the event."""
        with self._asking("wait for an event"):
            stream.wait_event(event)

    def done(self, event: Any) -> bool:
        """Has it happened?"""
        with self._asking("ask for an event"):
            return bool(event.done)

    def synchronize(self, event: Any) -> None:
        """Wait till it has."""
        with self._asking("wait for the device"):
            event.synchronize()

    def drain(self, stream: Any) -> None:
        """Wait till everything in the stream has run."""
        with self._asking("wait for a stream"):
            stream.synchronize()

    def capturing(self, stream: Any) -> bool:
        """Is a graph captured?"""
        with self._asking("ask for a capture"):
            return bool(stream.is_capturing())

    # Work.

    def _pointer(self, span: Span) -> int:
        """As copies take it: pageable memory by its address on the host."""
        buffer = span.buffer
        assert isinstance(buffer, CupyBuffer)
        return span.start + (buffer.host.ctypes.data if buffer.place == Place.PAGEABLE else buffer.address)

    def copy(self, target: Span, source: Span, stream: Any) -> None:
        """Enqueue one copy."""
        with self._asking("a copy"):
            self.api.memcpyAsync(self._pointer(target), self._pointer(source), source.size, self.api.memcpyDefault, stream.ptr)

    def copy_batch(self, moves: Sequence[Move], stream: Any) -> None:
        """Enqueue many by one call."""
        b = self._bindings
        order = b.cudaMemcpyAttributes()
        order.srcAccessOrder = b.cudaMemcpySrcAccessOrder.cudaMemcpySrcAccessOrderStream
        targets, sources = [t.address for t, _ in moves], [s.address for _, s in moves]
        sizes = [s.size for _, s in moves]
        error = b.cudaMemcpyBatchAsync(targets, sources, sizes, len(moves), [order], [0], 1, stream.ptr)[0]
        if int(error):
            raise DeviceLost(f"a batch of {len(moves)} copies: {error.name}: start the process again")

    def launch(self, kernel: str, stream: Any, blocks: int, threads: int, args: Sequence[Any], work: Callable[[], Work]) -> None:
        """Enqueue a kernel; the first of its name is compiled."""
        if kernel not in self._functions:
            module = self.cupy.cuda.function.Module()
            with self._asking(f"load kernel {kernel}"):
                major, minor = self.device.capability
                module.load(kernels.compile_nvrtc(kernel, f"sm_{major}{minor}"))
                self._functions[kernel] = module.get_function(kernel)
        with self._asking(f"launch kernel {kernel}"):
            self._functions[kernel]((blocks,), (threads,), tuple(args), stream=stream)

    def close(self) -> None:
        """Streams and events go with their last user."""
        self._functions.clear()


def host_array(address: int, size: int) -> Any:
    """Host memory that numpy does not own."""
    from ctypes import c_uint8

    return np.ctypeslib.as_array((c_uint8 * size).from_address(address))
