"""What can go wrong with a GPU, each with what to do about it. No call of the backend raises anything else of CUDA's."""


class CudaError(Exception):
    """Something about the GPU. The message says what to do."""


class NoDriver(CudaError):  # noqa: N818
    """No CUDA driver, or no CuPy."""


class NoDevice(CudaError):  # noqa: N818
    """No such GPU."""


class OutOfDeviceMemory(CudaError):  # noqa: N818
    """The pool does not fit on the GPU."""


class OutOfHostMemory(CudaError):  # noqa: N818
    """The pool does not fit into the memory of the host."""


class PinRefused(CudaError):  # noqa: N818
    """The driver pins no more memory. The backend goes on with another kind, so users see it only in the log."""


class DeviceLost(CudaError):  # noqa: N818
    """The device does not answer any more, or a kernel broke it: everything on it is lost."""


class CaptureRefused(CudaError):  # noqa: N818
    """Plans cannot be executed while a graph is captured: the graph would repeat the copies of one plan for ever."""


class Closed(CudaError):  # noqa: N818
    """The backend was closed."""
