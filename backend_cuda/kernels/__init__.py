"""The CUDA kernels, as source in `NAME.cu`, and how NVRTC compiles them to cubins.

Compiling needs CuPy and the NVRTC library, and neither a driver nor a GPU.
"""

from pathlib import Path

from kvproof.backend_cuda.errors import CudaError

FOLDER = Path(__file__).parent
NAMES = ("copy_fragments",)
"""Of every kernel: the function in `NAME.cu` has the same name."""


class KernelError(CudaError):
    """A kernel does not compile, or nothing is there to compile it. `log` is what the compiler says."""

    def __init__(self, name: str, arch: str, log: str) -> None:
        super().__init__(f"kernel {name} for {arch}: {log}")
        self.name = name
        self.arch = arch
        self.log = log


def source(name: str) -> str:
    """The CUDA C++ of a kernel of `NAMES`."""
    if name not in NAMES:
        raise ValueError(f"no kernel {name!r}; there are {', '.join(NAMES)}")
    return (FOLDER / f"{name}.cu").read_text(encoding="utf-8")


def missing() -> str | None:
    """What must be installed before anything compiles here; None: nothing."""
    try:
        from cupy.cuda import nvrtc
    except ImportError as error:
        return f"CuPy cannot be imported ({error}): install cupy-cuda13x, or cupy-cuda12x for a driver of CUDA 12"
    try:
        nvrtc.getVersion()
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        return f"NVRTC cannot be loaded ({reason}): install nvidia-cuda-nvrtc, or nvidia-cuda-nvrtc-cu12 for CuPy of CUDA 12"
    return None


def compile_nvrtc(name: str, arch: str, strict: bool = False) -> bytes:
    """The cubin of a kernel of `NAMES` for a real architecture, such as sm_90. Raises `KernelError`."""
    return compile_source(name, source(name), arch, strict)


def compile_source(name: str, text: str, arch: str, strict: bool = False) -> bytes:
    """The cubin of this CUDA C++; messages call it `name`. Raises `KernelError`; strict: for warnings too."""
    lacking = missing()
    if lacking is not None:
        raise KernelError(name, arch, lacking)
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(text, f"{name}.cu", (), ())
    try:
        nvrtc.compileProgram(program, (f"--gpu-architecture={arch}",))
        log = nvrtc.getProgramLog(program).strip()
        if log and strict:  # not by -Werror, which NVRTC of CUDA 12 does not know
            raise KernelError(name, arch, log)
        return bytes(nvrtc.getCUBIN(program))
    except RuntimeError as error:
        raise KernelError(name, arch, nvrtc.getProgramLog(program).strip() or str(error)) from error
    finally:
        nvrtc.destroyProgram(program)
