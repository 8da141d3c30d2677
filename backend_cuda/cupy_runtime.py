"""The runtime on a real device, by CuPy. Pools are allocated from CUDA itself: a cache of freed memory would not wait for copies.

Every CUDA error becomes a `CudaError` that says what to do. What cannot be told apart from a broken device is `DeviceLost`.
"""

import logging
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from kvproof.backend_cuda import kernels
from kvproof.backend_cuda.errors import (
    CaptureRefused,
    CudaError,
    DeviceLost,
    NoDevice,
    NoDriver,
    OutOfDeviceMemory,
    PinRefused,
)
from kvproof.backend_cuda.host_memory import free_host_memory
from kvproof.backend_cuda.kernels import KernelError
from kvproof.backend_cuda.runtime import Buffer, Device, Move, Place, Span, Work

log = logging.getLogger("kvproof")
INSTALL = "pip install 'kvproof[cuda]', or 'kvproof[cuda12]' for a driver of CUDA 12"
SUCCESS, MEMORY_ALLOCATION, INSUFFICIENT_DRIVER, NO_DEVICE, NOT_READY = 0, 2, 35, 100, 600
"""Numbers of CUDA's errors, of which CuPy has no names."""
NOT_PINNED = {1, MEMORY_ALLOCATION, 304, 800, 801}
"""A driver refuses to pin: invalid value, no memory, the operating system, not permitted, not supported."""
CAPTURE = range(900, 909)
"""What is asked may not be done while a graph is captured."""
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
        with self._asking("ask for the device", NoDevice):
            self.device = self._describe()
        self._bindings = self._batched_copies()
        self._functions = self._kernels()

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
        fits = self.api.driverGetVersion() >= BATCHES_SINCE and hasattr(runtime, "cudaMemcpyBatchAsync")
        return runtime if fits and int(runtime.cudaGetDeviceCount()[0]) == SUCCESS else None

    def _kernels(self) -> dict[str, Any]:
        """All of them, loaded; none if there is no compiler: then each block is a copy of its own."""
        major, minor = self.device.capability
        functions = {}
        for name in kernels.NAMES:
            try:
                cubin = kernels.compile_nvrtc(name, f"sm_{major}{minor}")
            except KernelError as error:
                log.warning("the CUDA backend copies without kernels, which costs time: %s", error)
                return {}
            with self._asking(f"load kernel {name}"):
                module = self.cupy.cuda.function.Module()
                module.load(cubin)
                functions[name] = module.get_function(name)
        return functions

    @property
    def batches(self) -> bool:
        """Can `copy_batch` submit many copies in one call?"""
        return self._bindings is not None

    @property
    def kernels(self) -> bool:
        """Has the compiler made them?"""
        return bool(self._functions)

    @contextmanager
    def _asking(self, what: str, short: type[CudaError] = DeviceLost) -> Iterator[None]:
        """On this device, whatever the thread's is. What CUDA says becomes an error of ours; `short`: if it gives none."""
        try:
            with self.cupy.cuda.Device(self.index):
                yield
        except self.api.CUDARuntimeError as error:
            raise self._error(what, error.status, str(error), short) from error
        except self.cupy.cuda.driver.CUDADriverError as error:
            raise self._error(what, error.status, str(error), short) from error

    def _error(self, what: str, status: int, said: str, short: type[CudaError]) -> CudaError:
        if status in CAPTURE:
            return CaptureRefused(f"{what}: {said}: not while a graph is captured")
        if short is NoDevice or status == MEMORY_ALLOCATION or (short is PinRefused and status in NOT_PINNED):
            return short(f"{what}: {said}")
        return DeviceLost(
            f"{what}: {said}; a kernel or a copy before it may have failed, and nothing on the device can be relied on: "
            "start the process again"
        )

    # Memory.

    def free_memory(self) -> tuple[int, int]:
        """(free, total) bytes of the device."""
        with self._asking("free memory"):
            free, total = self.api.memGetInfo()
        return int(free), int(total)

    def host_memory(self) -> int:
        """Bytes that the kernel of the host could give out without swapping, and that the container may have."""
        return free_host_memory(Path("/"))

    def allocate(self, size: int) -> CupyBuffer:
        """Device memory."""
        with self._asking(f"{size:,} bytes of device memory", OutOfDeviceMemory):
            return CupyBuffer(Place.DEVICE, size, self.api.malloc(size))

    def pin(self, size: int) -> CupyBuffer:
        """Pinned memory from the driver."""
        with self._asking(f"pin {size:,} bytes", PinRefused):
            address = self.api.hostAlloc(size, PORTABLE | MAPPED)
        return CupyBuffer(Place.PINNED, size, address, host_array(address, size))

    def register(self, buffer: Buffer) -> None:
        """Pin pageable memory where it lies."""
        assert isinstance(buffer, CupyBuffer)
        start = buffer.host.ctypes.data
        with self._asking(f"register {buffer.size:,} bytes", PinRefused):
            self.api.hostRegister(start, buffer.size, PORTABLE | MAPPED)
            buffer.registered = True
            buffer.address = self.api.pointerGetAttributes(start).devicePointer
        buffer.place = Place.PINNED

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
        with self._asking("ask for an event"):  # Event.done would not tell a failure from an event to come
            status = self.api.eventQuery(event.ptr)
            if status not in (SUCCESS, NOT_READY):
                raise self.api.CUDARuntimeError(status)
            return bool(status == SUCCESS)

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
            try:
                return bool(stream.is_capturing())
            except RuntimeError as error:
                if isinstance(error, self.api.CUDARuntimeError):
                    raise
                raise CaptureRefused(f"a capture has gone wrong: {error}") from error

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
        what = f"a batch of {len(moves)} copies"
        with self._asking(what):
            status = int(b.cudaMemcpyBatchAsync(targets, sources, sizes, len(moves), [order], [0], 1, stream.ptr)[0])
        if status != SUCCESS:
            raise self._error(what, status, f"CUDA error {status}", DeviceLost)

    def launch(self, kernel: str, stream: Any, blocks: int, threads: int, args: Sequence[Any], work: Callable[[], Work]) -> None:
        """Enqueue a kernel."""
        with self._asking(f"launch kernel {kernel}"):
            self._functions[kernel]((blocks,), (threads,), tuple(args), stream=stream)

    def close(self) -> None:
        """Unload the kernels."""
        self._functions = {}


def host_array(address: int, size: int) -> Any:
    """Host memory that numpy does not own."""
    from ctypes import c_uint8

    return np.ctypeslib.as_array((c_uint8 * size).from_address(address))
