"""The CUDA kernels without a GPU: NVRTC compiles them, and compiled as host C++ they do what numpy does.

Host runs are watched by UBSan, for a GPU faults on the misaligned reads and writes that a CPU lets pass.
"""

import ctypes
import shutil
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

from kvproof.backend_cuda import kernels

ARCHES = ("sm_80", "sm_90", "sm_100")
SIZES = (1, 3, 4, 8, 16, 24, 100, 4096 + 5)
GRIDS = ((1, 1), (1, 32), (3, 64), (1000, 1))
"""(blocks, threads)."""
STARTS = ((0, 0), (8, 8), (0, 8), (4, 4), (12, 8), (2, 2), (1, 1), (0, 1), (3, 0), (5, 6))
"""(source, target) modulo 16."""
GUARD = 48
"""Bytes at least between two targets."""


@pytest.fixture
def nvrtc():
    lacking = kernels.missing()
    if lacking is not None:
        pytest.skip(lacking)


@pytest.mark.parametrize("name", kernels.NAMES)
def test_every_architecture_compiles_without_a_warning(nvrtc, name):
    cubins = [kernels.compile_nvrtc(name, arch, strict=True) for arch in ARCHES]
    assert all(cubin.startswith(b"\x7fELF") and name.encode() in cubin for cubin in cubins)
    assert len(set(cubins)) == len(ARCHES)


@pytest.mark.parametrize(
    ("text", "log"),
    [
        ("int unused = 3;", 'variable "unused" was declared but never referenced'),
        ("missing = 3;", 'identifier "missing" is undefined'),
    ],
)
def test_warnings_and_errors_are_refused_with_the_log(nvrtc, text, log):
    with pytest.raises(kernels.KernelError) as caught:
        kernels.compile_source("spoiled", f'extern "C" __global__ void spoiled() {{ {text} }}', "sm_90", strict=True)
    assert log in caught.value.log and "spoiled.cu(1)" in caught.value.log
    assert str(caught.value) == f"kernel spoiled for sm_90: {caught.value.log}"


@pytest.mark.parametrize("arch", ["sm_1", "compute_90", ""])
def test_what_is_no_real_architecture_is_refused(nvrtc, arch):
    with pytest.raises(kernels.KernelError, match="arch"):
        kernels.compile_nvrtc("copy_fragments", arch)


def test_an_unknown_kernel_is_refused():
    with pytest.raises(ValueError, match="no kernel 'copy'; there are copy_fragments"):
        kernels.source("copy")


def no_nvrtc() -> tuple[int, int]:
    raise RuntimeError("no libnvrtc.so")


def test_missing_wheels_are_named(monkeypatch):
    cuda = ModuleType("cupy.cuda")
    cuda.nvrtc = ModuleType("nvrtc")
    cuda.nvrtc.getVersion = no_nvrtc
    for module, wheel in ((None, "cupy-cuda13x"), (cuda, "nvidia-cuda-nvrtc")):
        monkeypatch.setitem(sys.modules, "cupy.cuda", module)
        with pytest.raises(kernels.KernelError, match=f"install {wheel}"):
            kernels.compile_nvrtc("copy_fragments", "sm_90")


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """host(name) -> the library of that kernel."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed: kernels cannot be compiled as host C++")
    folder = tmp_path_factory.mktemp("host")

    def library(name: str) -> ctypes.CDLL:
        path = folder / f"{name}.so"
        if not path.exists():
            sources = kernels.FOLDER
            options = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-O1", "-fsanitize=undefined", "-fPIC", "-shared"]
            shim = ["-include", sources / "cuda_host.h", "-x", "c++", "-"]
            text = f'#include "{sources / name}.cu"\nHOST_KERNEL({name})\n'
            subprocess.run(["g++", *options, *shim, "-o", path], input=text, text=True, check=True)
        return ctypes.CDLL(str(path))

    return library


def random_bytes(random: np.random.Generator, size: int) -> np.ndarray:
    """The first is at a multiple of 16."""
    room = random.integers(0, 256, size + 16, dtype=np.uint8)
    start = -room.ctypes.data % 16
    return room[start : start + size]


class Fragments:
    """A random table of copies from one array to another, and the arguments of the kernel."""

    def __init__(self, seed: int, size: int, starts: tuple[int, int]) -> None:
        random = np.random.default_rng(seed)
        count = int(random.integers(1, 12))
        pitch = (size + GUARD + 31) // 16 * 16
        self.sources = random_bytes(random, (count + 2) * pitch)
        self.targets = random_bytes(random, (count + 2) * pitch)
        self.expected = self.targets.copy()
        self.touched = np.zeros(len(self.targets), dtype=int)
        table = np.empty((count, 2), dtype=np.uint64)
        for k, place in enumerate(random.permutation(count)):
            # Sources may overlap, targets may not.
            source = int(random.integers(0, count * pitch // 16)) * 16 + starts[0]
            target = int(place + 1) * pitch + starts[1]
            table[k] = self.sources.ctypes.data + source, self.targets.ctypes.data + target
            self.expected[target : target + size] = self.sources[source : source + size]
            self.touched[target : target + size] += 1
        self.table = table
        values = ctypes.c_uint64(table.ctypes.data), ctypes.c_uint32(count), ctypes.c_uint64(size)
        self.args = (ctypes.c_void_p * 3)(*map(ctypes.addressof, values))
        self.values = values  # args has only their addresses


@pytest.mark.parametrize("grid", GRIDS, ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("size", SIZES)
def test_fragments_are_copied_and_neighbours_untouched(host, capfd, size, grid):
    library = host("copy_fragments")
    for seed, starts in enumerate(STARTS):
        f = Fragments(seed, size, starts)
        before = f.sources.copy()
        library.copy_fragments_grid(*grid, f.args)
        assert np.array_equal(f.targets, f.expected), starts
        assert np.array_equal(f.sources, before), starts
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("grid", GRIDS, ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("size", SIZES)
def test_every_byte_is_written_by_one_thread(host, size, grid):
    library = host("copy_fragments")
    f = Fragments(size, size, (4, 8))
    writers = np.zeros_like(f.touched)
    blocks, threads = grid
    for block in range(blocks):
        for thread in range(threads):
            np.invert(f.expected, out=f.targets)
            library.copy_fragments_thread(blocks, threads, block, thread, f.args)
            writers += f.targets == f.expected
    assert np.array_equal(writers, f.touched)


@pytest.mark.parametrize(("count", "size"), [(0, 16), (3, 0)])
def test_nothing_to_copy_is_nothing(host, count, size):
    f = Fragments(1, 16, (0, 0))
    before = f.targets.copy()
    f.values[1].value, f.values[2].value = count, size
    host("copy_fragments").copy_fragments_grid(3, 64, f.args)
    assert np.array_equal(f.targets, before)
