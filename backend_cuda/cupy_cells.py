"""Computing with words on a real device, for `MirroredBackend`: what the kernels of a model do, by CuPy's indexing."""

from typing import Any

import attrs
import numpy as np

from kvproof.backend_cuda.backend import CudaBackend
from kvproof.backend_cuda.cupy_runtime import CupyRuntime
from kvproof.backend_cuda.mirror import Reading, agreed, salts
from kvproof.backend_fake.memory import Bools, Ints, Words


class CupyCells:
    """A slot holds whole words: slot_bytes is a multiple of 8."""

    def __init__(self, cuda: CudaBackend) -> None:
        assert isinstance(cuda.runtime, CupyRuntime) and cuda.layout.slot_bytes % 8 == 0
        self.cuda, self.runtime, self.cupy = cuda, cuda.runtime, cuda.runtime.cupy
        layout = cuda.layout
        words = self.runtime.array(cuda.gpu).view(self.cupy.uint64)
        self.words = words.reshape(cuda.sizes.gpu, layout.layers * 2, layout.block_size, layout.slot_bytes // 8)
        self.salt = salts(layout)

    def store(self, blocks: Ints, offsets: Ints, words: Words) -> None:
        """One word in each slot of all layers."""
        mixed = words[:, None, None] ^ self.salt[None, :, None]
        with self.cuda.compute:
            self.words[self.cupy.asarray(blocks), :, self.cupy.asarray(offsets)] = self.cupy.asarray(mixed)

    def load(self, blocks: Ints) -> Reading:
        """Enqueue to read these blocks."""
        with self.cuda.compute:
            found = self.words[self.cupy.asarray(blocks)]
        event = self.runtime.event()
        self.runtime.record(event, self.cuda.compute)
        return CupyReading(self, found, event)


@attrs.frozen(eq=False)
class CupyReading:
    """An array on the device that is there after the event."""

    cells: CupyCells
    found: Any
    event: Any

    def wait(self) -> tuple[Words, Bools]:
        """See `Reading`."""
        self.cells.runtime.synchronize(self.event)
        return agreed(np.asarray(self.cells.cupy.asnumpy(self.found)), self.cells.salt)
