"""The runtime on CuPy against a stand-in for it: what is called, with what, and what errors become. No GPU is needed."""

import sys
from types import ModuleType

import numpy as np
import pytest
from stand_in_cupy import Machine

from kvproof.backend_cuda import kernels
from kvproof.backend_cuda.backend import CudaBackend
from kvproof.backend_cuda.copier import Path
from kvproof.backend_cuda.cupy_cells import CupyCells
from kvproof.backend_cuda.cupy_runtime import CupyRuntime
from kvproof.backend_cuda.errors import CaptureRefused, DeviceLost, NoDevice, NoDriver, OutOfDeviceMemory
from kvproof.backend_cuda.host_memory import free_host_memory
from kvproof.backend_cuda.layout import Layout
from kvproof.backend_cuda.mirror import MirroredBackend
from kvproof.backend_cuda.runtime import Place
from kvproof.backend_fake import BackendError, Misuse
from kvproof.core.config import Config
from kvproof.fake_engine import FakeEngine, alone

LAYOUT = Layout(layers=2, kv_heads=2, head_size=4, block_size=2, dtype="float16")


@pytest.fixture
def machine(monkeypatch):
    """A machine whose CuPy is the stand-in."""
    made = Machine()
    install(made, monkeypatch)
    return made


def install(machine, monkeypatch):
    monkeypatch.setattr(kernels, "compile_nvrtc", lambda name, arch: b"cubin")
    bindings = ModuleType("cuda.bindings")
    bindings.runtime = machine.bindings
    monkeypatch.setitem(sys.modules, "cupy", machine.cupy)
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", machine.bindings)


def engine(path, index=0):
    config = Config(
        num_gpu_blocks=9,
        num_cpu_blocks=9,
        block_size=2,
        watermark_blocks=0,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        max_model_len=16,
    )
    cuda = CudaBackend(CupyRuntime(index), LAYOUT, 9, 9, chunk_bytes=2 * LAYOUT.block_bytes, kernel_below=0)
    cuda.copier.force = path
    return FakeEngine(config, "swap", backend=lambda _: MirroredBackend(cuda, CupyCells(cuda)))


@pytest.mark.parametrize(("path", "call"), [(Path.BATCH, "batch"), (Path.RUNS, "memcpyAsync"), (Path.KERNEL, "copy_fragments")])
def test_an_engine_runs_on_it(machine, path, call):
    e = engine(path)
    for k in range(4):
        e.add(str(k), 5, 8)
    while e.scheduler.unfinished:
        e.step()
    assert call in machine.calls and e.backend.cuda.copier.taken["blocks"] > 4
    assert e.model.output(2) == list(alone("2", 5, 8, 2)[0])
    assert machine.calls.count("hostAlloc") >= 4 and {"eventQuery", "record", "wait_event", "synchronize"} <= set(machine.calls)
    e.backend.close()
    assert not machine.memory and not machine.registered


def test_contents_that_differ_are_seen(machine):
    e = engine(Path.RUNS)
    for k in range(3):
        e.add(str(k), 5, 8)
    e.step()
    e.backend.cuda.view(1)[:] = 0
    with pytest.raises(BackendError, match=Misuse.CORRUPTED.value):
        e.step()


def test_pinning_is_refused_piece_by_piece(machine):
    runtime = CupyRuntime()
    machine.fails["hostAlloc"] = 801
    with CudaBackend(runtime, LAYOUT, 4, 4, chunk_bytes=2 * LAYOUT.block_bytes) as b:
        b.host.pin_next()
        assert b.host.pinned_blocks == 2 and len(machine.registered) == 1
        machine.fails["hostRegister"] = 2
        b.host.pin_next()
        assert b.host.pinned_blocks == 2 and b.host.chunks[1].place == Place.PAGEABLE
    assert not machine.registered and not machine.memory


def test_what_the_device_is(machine):
    device = CupyRuntime().device
    assert (device.name, device.capability, device.driver, device.runtime) == ("stand-in", (9, 0), "13.0", "13.2")
    assert device.numa_node is None and CupyRuntime().batches
    machine.driver = 12_040
    assert not CupyRuntime().batches
    machine.driver, machine.fails["bindings"] = 13_000, 35
    assert not CupyRuntime().batches, "the bindings are of another CUDA than the driver"
    assert CupyRuntime().host_memory() > 1 << 20


def test_nothing_to_run_on(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(NoDriver, match=r"CuPy cannot be imported .*: pip install 'kvproof\[cuda\]'"):
        CupyRuntime()
    for status, error, message in ((35, NoDriver, "no CUDA driver that CuPy can use"), (100, NoDevice, "the driver sees no GPU")):
        machine = Machine()
        machine.fails["getDeviceCount"] = status
        install(machine, monkeypatch)
        with pytest.raises(error, match=message):
            CupyRuntime()
    install(Machine(devices=2, used=1), monkeypatch)
    assert CupyRuntime(1).device.index == 1
    for index in (2, -1):
        with pytest.raises(NoDevice, match=f"there is no GPU {index}: the driver sees 2"):
            CupyRuntime(index)


@pytest.mark.parametrize("call", ["memcpyAsync", "record", "wait_event", "copy_fragments", "eventQuery", "batch", "synchronize"])
def test_a_device_that_fails_is_lost(machine, call):
    path = {"copy_fragments": Path.KERNEL, "batch": Path.BATCH}.get(call, Path.RUNS)
    e = engine(path)
    for k in range(4):
        e.add(str(k), 5, 8)
    machine.fails[call] = 719
    with pytest.raises(DeviceLost, match=r"(?i)cuda error 719; .*start the process again"):
        while e.scheduler.unfinished:
            e.step()


def test_memory_that_runs_out_is_said(machine):
    machine.fails["malloc"] = 2
    with pytest.raises(OutOfDeviceMemory, match=f"{4 * LAYOUT.block_bytes:,} bytes of device memory"):
        CudaBackend(CupyRuntime(), LAYOUT, 4, 4)


def test_a_capture_is_noticed(machine):
    b = CudaBackend(CupyRuntime(), LAYOUT, 4, 4)
    plan = FakeEngine(Config(num_gpu_blocks=4, num_cpu_blocks=4)).scheduler.schedule()
    for machine.graph in (True, None):
        with pytest.raises(CaptureRefused):
            b.execute(plan)
    machine.graph = False
    machine.fails["hostAlloc"] = 900
    assert b.pin_next() and b.host.pinned_blocks == 0
    del machine.fails["hostAlloc"]
    assert not b.pin_next() and b.host.pinned_blocks == 4, "a capture does not end pinning for good"
    b.close()


def test_another_device_than_that_of_the_thread(monkeypatch):
    machine = Machine(devices=2, used=1)
    install(machine, monkeypatch)
    e = engine(Path.KERNEL, 1)
    for k in range(4):
        e.add(str(k), 5, 8)
    while e.scheduler.unfinished:
        e.step()
    e.backend.close()
    assert machine.current == 0 and not machine.memory


def test_without_a_compiler_blocks_are_copied_one_by_one(machine, monkeypatch, caplog):
    def refuse(name, arch):
        raise kernels.KernelError(name, arch, "no compiler")

    monkeypatch.setattr(kernels, "compile_nvrtc", refuse)
    e = engine(Path.KERNEL)
    assert caplog.text.count("copies without kernels") == 1
    for k in range(4):
        e.add(str(k), 5, 8)
    while e.scheduler.unfinished:
        e.step()
    assert set(e.backend.cuda.copier.taken) == {"runs", "blocks", "copies"}
    e.backend.close()


@pytest.mark.parametrize(("call", "status"), [("hostAlloc", 719), ("hostRegister", 719), ("pointerGetAttributes", 719)])
def test_a_lost_device_is_no_refusal_to_pin(machine, call, status):
    b = CudaBackend(CupyRuntime(), LAYOUT, 4, 4)
    if call != "hostAlloc":
        machine.fails["hostAlloc"] = 801
    machine.fails[call] = status
    with pytest.raises(DeviceLost):
        b.pin_next()
    machine.fails.clear()
    b.close()
    assert not machine.registered and not machine.memory


def test_free_memory_of_a_container(tmp_path):
    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    assert free_host_memory(tmp_path) == 1 << 62
    write("proc/meminfo", "MemTotal: 90 kB\nMemAvailable:   64 kB\n")
    assert free_host_memory(tmp_path) == 64 << 10
    write("sys/fs/cgroup/memory.max", "max\n")
    assert free_host_memory(tmp_path) == 64 << 10
    write("sys/fs/cgroup/memory.max", "5000\n")
    write("sys/fs/cgroup/memory.current", "1000\n")
    assert free_host_memory(tmp_path) == 4000


def test_views_are_of_the_pool(machine):
    with CudaBackend(CupyRuntime(), LAYOUT, 4, 4) as b:
        b.view(0)[2] = 1.5
        assert (b.view(0)[2] == 1.5).all() and b.view(1).shape == (4, 2, 2, 2, 4)
        assert np.shares_memory(b.view(1), b.runtime.array(b.gpu))
