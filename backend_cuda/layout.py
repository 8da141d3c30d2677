"""How a block lies in memory, and how many fit."""

from typing import Any

import attrs

from kvproof.backend_cuda.errors import OutOfDeviceMemory, OutOfHostMemory
from kvproof.backend_cuda.runtime import Runtime

ITEM_SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3": 1, "float8_e5m2": 1}
"""Bytes of a number. Formats that numpy does not have are seen as integers of that size."""
NUMPY = {"float32": "float32", "float16": "float16", "bfloat16": "uint16", "float8_e4m3": "uint8", "float8_e5m2": "uint8"}


def _positive(instance: Any, attribute: "attrs.Attribute[int]", value: int) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"{attribute.name} must be an integer >= 1, not {value!r}")


def _known(instance: Any, attribute: "attrs.Attribute[str]", value: str) -> None:
    if value not in ITEM_SIZES:
        raise ValueError(f"dtype must be one of {', '.join(ITEM_SIZES)}, not {value!r}")


@attrs.frozen
class Layout:
    """Block first: a block has keys and values of all layers, [layers, 2, block_size, kv_heads, head_size], in one piece."""

    layers: int = attrs.field(validator=_positive)
    kv_heads: int = attrs.field(validator=_positive)
    head_size: int = attrs.field(validator=_positive)
    block_size: int = attrs.field(validator=_positive)
    dtype: str = attrs.field(default="float16", validator=_known)

    @property
    def slot_bytes(self) -> int:
        """Keys, or values, of one token in one layer."""
        return self.kv_heads * self.head_size * ITEM_SIZES[self.dtype]

    @property
    def block_bytes(self) -> int:
        """All of a block."""
        return self.layers * 2 * self.block_size * self.slot_bytes

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one block."""
        return self.layers, 2, self.block_size, self.kv_heads, self.head_size


def num_gpu_blocks(runtime: Runtime, layout: Layout, gpu_memory_utilization: float) -> int:
    """Blocks that fit on the device, which may be filled to this share of its total memory. Raises `OutOfDeviceMemory`."""
    if not 0 < gpu_memory_utilization <= 1:
        raise ValueError(f"gpu_memory_utilization must be above 0 and at most 1, not {gpu_memory_utilization!r}")
    free, total = runtime.free_memory()
    usable = int(total * gpu_memory_utilization) - (total - free)
    blocks = usable // layout.block_bytes
    if blocks < 1:
        raise OutOfDeviceMemory(
            f"no block of {layout.block_bytes:,} bytes fits: {free:,} of {total:,} bytes are free, and gpu_memory_utilization "
            f"{gpu_memory_utilization} leaves {max(usable, 0):,} of them; raise it, or free memory on the device"
        )
    return blocks


def num_cpu_blocks(runtime: Runtime, layout: Layout, swap_space: float) -> int:
    """Blocks in `swap_space` GiB of host memory; 0 for none. Raises `OutOfHostMemory`."""
    if not 0 <= swap_space < 2**20:
        raise ValueError(f"swap_space must be >= 0 GiB, not {swap_space!r}")
    blocks = int(swap_space * 2**30) // layout.block_bytes
    require_host_memory(runtime, layout, blocks)
    return blocks


def require_host_memory(runtime: Runtime, layout: Layout, blocks: int) -> None:
    """Raises `OutOfHostMemory` unless so much is free: a pool that is nearly there would end the process later, by a signal."""
    free = runtime.host_memory()
    if blocks * layout.block_bytes > free:
        raise OutOfHostMemory(
            f"{blocks} host blocks take {blocks * layout.block_bytes:,} bytes, and the host has {free:,} free: "
            f"num_cpu_blocks can be at most {free // layout.block_bytes}"
        )
