"""What the runtime calls of CuPy and of cuda-bindings, on host memory: every operation runs when it is enqueued.

It shows that the calls fit together and that errors are told apart. That CUDA does what is asked is for a device to show.
"""

import ctypes
from types import SimpleNamespace

import numpy as np


class CUDARuntimeError(RuntimeError):
    def __init__(self, status):
        super().__init__(f"cuda error {status}")
        self.status = status


class CUDADriverError(CUDARuntimeError):
    pass


class Machine:
    """Devices, of which one is to be used. `fails`: call -> the status that it fails with."""

    def __init__(self, driver=13_000, devices=1, used=0):
        self.current, self.used = 0, used
        self.memory, self.fails, self.calls, self.devices, self.driver = {}, {}, [], devices, driver
        self.registered = set()
        self.graph = False
        names = (
            *(
                "getDeviceCount",
                "eventQuery",
                "getDeviceProperties",
                "deviceGetPCIBusId",
                "driverGetVersion",
                "runtimeGetVersion",
            ),
            *("memGetInfo", "malloc", "free", "hostAlloc", "freeHost", "hostRegister", "hostUnregister", "pointerGetAttributes"),
            "memcpyAsync",
        )
        api = SimpleNamespace(CUDARuntimeError=CUDARuntimeError, memcpyDefault=4, **{n: self.call(n) for n in names})
        machine = self

        class Device:
            def __init__(self, index):
                self.index = index

            def __enter__(self):
                self.before, machine.current = machine.current, self.index

            def __exit__(self, *error):
                machine.current = self.before

        class Event:
            def __init__(self, disable_timing=False):
                assert disable_timing
                machine.check("event")
                self.ptr = 1

            def synchronize(self):
                machine.check("synchronize")

        class Stream:
            def __init__(self, non_blocking=False):
                assert non_blocking
                machine.check("stream")
                self.ptr = id(self)

            def __enter__(self):
                return self

            def __exit__(self, *error):
                pass

            def record(self, event):
                machine.check("record")

            def wait_event(self, event):
                machine.check("wait_event")

            def synchronize(self):
                machine.check("synchronize")

            def is_capturing(self):
                if machine.graph is None:
                    raise RuntimeError("the capture is invalid")
                return machine.graph

        class Module:
            def load(self, cubin):
                assert cubin == b"cubin"

            def get_function(self, name):
                assert name == "copy_fragments"
                return machine.copy_fragments

        cuda = SimpleNamespace(
            runtime=api,
            driver=SimpleNamespace(CUDADriverError=CUDADriverError),
            Device=Device,
            Stream=Stream,
            Event=Event,
            function=SimpleNamespace(Module=Module),
            memory=SimpleNamespace(
                UnownedMemory=lambda address, size, owner, index: (address, size), MemoryPointer=lambda memory, offset: memory
            ),
        )
        self.cupy = SimpleNamespace(
            cuda=cuda, uint8=np.uint8, uint64=np.uint64, asarray=np.asarray, asnumpy=np.asarray, ndarray=self.ndarray
        )
        self.bindings = SimpleNamespace(
            cudaGetDeviceCount=lambda: (self.fails.get("bindings", 0), 1),
            cudaMemcpyAttributes=SimpleNamespace,
            cudaMemcpySrcAccessOrder=SimpleNamespace(cudaMemcpySrcAccessOrderStream=1),
            cudaMemcpyBatchAsync=self.batch,
        )

    def check(self, name):
        self.calls.append(name)
        assert self.current == self.used or name in ("getDeviceCount", "driverGetVersion", "runtimeGetVersion"), name
        if name in self.fails:
            raise CUDARuntimeError(self.fails[name])

    def call(self, name):
        def checked(*args):
            if name == "eventQuery":  # says so, and does not raise
                self.calls.append(name)
                return self.fails.get(name, 0)
            self.check(name)
            return getattr(self, name)(*args)

        return checked

    def getDeviceCount(self):  # noqa: N802
        return self.devices

    def getDeviceProperties(self, index):  # noqa: N802
        return {"name": b"stand-in", "major": 9, "minor": 0, "multiProcessorCount": 4}

    def deviceGetPCIBusId(self, index):  # noqa: N802
        return "0000:00:00.0"

    def driverGetVersion(self):  # noqa: N802
        return self.driver

    def runtimeGetVersion(self):  # noqa: N802
        return 13_020

    def memGetInfo(self):  # noqa: N802
        return 1 << 20, 1 << 21

    def malloc(self, size):
        buffer = ctypes.create_string_buffer(size + 512)
        address = -(-ctypes.addressof(buffer) // 256) * 256
        self.memory[address] = buffer
        return address

    def hostAlloc(self, size, flags):  # noqa: N802
        assert flags == 3
        return self.malloc(size)

    def free(self, address):
        del self.memory[address]

    freeHost = free  # noqa: N815

    def hostRegister(self, address, size, flags):  # noqa: N802
        assert flags == 3 and address % 4096 == 0
        self.registered.add(address)

    def hostUnregister(self, address):  # noqa: N802
        self.registered.remove(address)

    def pointerGetAttributes(self, address):  # noqa: N802
        return SimpleNamespace(devicePointer=address)

    def memcpyAsync(self, target, source, size, kind, stream):  # noqa: N802
        assert kind == 4 and target and source and stream
        ctypes.memmove(target, source, size)

    def batch(self, targets, sources, sizes, count, attributes, indices, n, stream):
        self.calls.append("batch")
        if "batch" in self.fails:
            return (self.fails["batch"],)
        assert len(targets) == len(sources) == len(sizes) == count and n == len(attributes) == 1 and list(indices) == [0]
        assert attributes[0].srcAccessOrder == 1 and stream
        for target, source, size in zip(targets, sources, sizes, strict=True):
            ctypes.memmove(target, source, size)
        return (0,)

    def copy_fragments(self, grid, block, args, stream):
        self.check("copy_fragments")
        table, count, size = args
        assert [type(a) for a in args] == [np.uint64, np.uint32, np.uint64] and grid[0] >= 1 and block == (256,) and stream
        for k in range(int(count)):
            source, target = (ctypes.c_uint64 * 2).from_address(int(table) + 16 * k)
            ctypes.memmove(target, source, int(size))

    def ndarray(self, shape, dtype, pointer):
        address, size = pointer
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address)).view(dtype).reshape(shape)
