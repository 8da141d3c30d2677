"""The fake backend with a CUDA backend at its side: plans are executed by both, and what the model reads must be the same.

A word of the fake memory is stored in every layer, in keys and values, mixed with where; so a byte that goes astray is seen.
"""

import random
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol

import attrs
import numpy as np

from kvproof.backend_cuda.backend import CudaBackend
from kvproof.backend_cuda.copier import Path
from kvproof.backend_cuda.layout import Layout
from kvproof.backend_cuda.runtime import Event, Span, Work
from kvproof.backend_cuda.simulator import Kernel, Simulator
from kvproof.backend_fake.backend import FakeBackend
from kvproof.backend_fake.errors import Misuse, fail
from kvproof.backend_fake.memory import Bools, Ints, Words
from kvproof.core.config import Config
from kvproof.store.plan import Plan

GOLDEN = 0x9E3779B97F4A7C15


class Cells(Protocol):
    """Computing on the blocks of a CUDA backend: what a model does, but with words."""

    def store(self, blocks: Ints, offsets: Ints, words: Words) -> None:
        """One word in each slot of all layers."""

    def load(self, blocks: Ints) -> "Reading":
        """Enqueue to read these blocks."""


class Reading(Protocol):
    """Contents that are being read."""

    def wait(self) -> tuple[Words, Bools]:
        """[blocks, block_size]: the words, and whether all layers agree on each."""


@attrs.frozen(eq=False)
class Expected:
    """What a reading must give."""

    blocks: Ints
    positions: Ints
    wanted: Bools
    contents: Words


class MirroredBackend(FakeBackend):
    """Executes every plan twice, and raises `BackendError` where the contents differ.

    Readings are waited for up to `behind` readings later, as by an engine that does not wait for its results. `pins`: is a chunk
    of the host pool pinned after the plan of this epoch?
    """

    def __init__(
        self, cuda: CudaBackend, cells: Cells, behind: int = 0, pins: Callable[[int], bool] = lambda epoch: True
    ) -> None:
        super().__init__(cuda.sizes.gpu, cuda.sizes.host, cuda.layout.block_size)
        self.cuda, self.cells, self.behind, self.pins = cuda, cells, behind, pins
        self.readings: deque[tuple[Reading, Expected]] = deque()
        self.copied: dict[int, tuple[int, Words, Bools]] = {}
        """Host block -> the epoch that copied into it last, not told to be done yet, and what must be there."""

    def execute(self, plan: Plan) -> None:
        """The fake backend refuses first. What is told to have been copied is looked at."""
        super().execute(plan)
        self.cuda.execute(plan)
        n = self.sizes.gpu
        for _, t in plan.swap_out:
            self.copied[t - n] = plan.epoch, self.host.contents[t - n].copy(), self.host.valid(np.array([t - n]))[0]
        done = set(self.cuda.poll().done)
        for b in [b for b, (epoch, _, _) in self.copied.items() if epoch in done]:
            self.look(b, *self.copied.pop(b)[1:])
        if self.pins(plan.epoch):
            self.cuda.pin_next()

    def look(self, b: int, contents: Words, valid: Bools) -> None:
        """Host block b, which nothing has written since, must have these contents."""
        found = self.cuda.runtime.read_host(self.cuda.host.span(b)).view(np.uint64)
        shape = self.cuda.layout.layers * 2, self.block_size, -1
        seen, same = agreed(found.reshape(1, *shape), salts(self.cuda.layout))
        wrong = valid & ((seen[0] != contents) | ~same[0])
        if wrong.any():
            fail(Misuse.CORRUPTED, f"slot {int(wrong.argmax())} of host block {b}")

    def store(self, blocks: Ints, offsets: Ints, writers: Ints, positions: Ints, words: Words) -> None:
        """In both."""
        super().store(blocks, offsets, writers, positions, words)
        self.cells.store(blocks, offsets, words)

    def load(self, blocks: Ints, writers: Ints, positions: Ints, wanted: Bools) -> Words:
        """From both, and the same, sooner or later."""
        contents = super().load(blocks, writers, positions, wanted)
        self.readings.append((self.cells.load(blocks), Expected(blocks, positions, wanted, contents)))
        self.compare(self.behind)
        return contents

    def compare(self, behind: int = 0) -> None:
        """Wait for all readings but the last few."""
        while len(self.readings) > behind:
            reading, expected = self.readings.popleft()
            seen, agreed = reading.wait()
            wrong = expected.wanted & ((seen != expected.contents) | ~agreed)
            if wrong.any():
                i, j = np.argwhere(wrong)[0]
                where = f"slot {j} of GPU block {expected.blocks[i]}, position {expected.positions[i, j]}"
                fail(Misuse.CORRUPTED, where)

    def close(self) -> None:
        """Of the CUDA backend, and of its runtime, which says what was never freed."""
        self.compare()
        self.cuda.close()
        self.cuda.runtime.close()


def salts(layout: Layout) -> Words:
    """What a word is mixed with in the keys, and in the values, of each layer."""
    return (np.arange(layout.layers * 2, dtype=np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)


def agreed(found: Words, salt: Words) -> tuple[Words, Bools]:
    """What is found in [blocks, 2 * layers, block_size, words of a slot]: the words, and whether all agree on each."""
    words = found ^ salt[None, :, None, None]
    first: Words = words[:, 0, :, 0]
    return first, (words == first[:, None, :, None]).all(axis=(1, 3))


class SimulatedCells:
    """Kernels of the stream simulator. A slot holds whole words: slot_bytes is a multiple of 8."""

    def __init__(self, cuda: CudaBackend) -> None:
        assert isinstance(cuda.runtime, Simulator) and cuda.layout.slot_bytes % 8 == 0
        self.cuda, self.runtime = cuda, cuda.runtime
        layout = cuda.layout
        self.salt = salts(layout)
        self.shape = (layout.layers * 2, layout.block_size, layout.slot_bytes // 8)
        self.runtime.references |= {"store_words": self._store, "load_words": self._load}

    def _block(self, b: int) -> Span:
        size = self.cuda.layout.block_bytes
        return Span(self.cuda.gpu, b * size, size)

    def _slots(self, b: int, j: int, n: int) -> list[Span]:
        """Keys and values of slots j .. j + n - 1 of block b, layer by layer."""
        size, per = self.cuda.layout.slot_bytes, self.cuda.layout.block_size
        first = b * self.cuda.layout.block_bytes + j * size
        return [Span(self.cuda.gpu, first + k * per * size, n * size) for k in range(len(self.salt))]

    def store(self, blocks: Ints, offsets: Ints, words: Words) -> None:
        """Just these slots are written, so that the race detector knows exactly what is touched."""
        ends = np.flatnonzero((np.diff(blocks) != 0) | (np.diff(offsets) != 1)) + 1
        parts: list[tuple[list[Span], Words]] = []
        for start, stop in pairwise((0, *ends.tolist(), len(words))):
            spans = self._slots(int(blocks[start]), int(offsets[start]), stop - start)
            parts.append((spans, words[start:stop].copy()))
        work = Work([], [span for spans, _ in parts for span in spans])
        self.runtime.launch("store_words", self.cuda.compute, 1, 1, (parts,), lambda: work)

    def _store(self, kernel: Kernel) -> None:
        (parts,) = kernel.args
        for spans, words in parts:
            for span, salt in zip(spans, self.salt, strict=True):
                kernel.write(span.address, np.repeat(words ^ salt, self.shape[2]).view(np.uint8))

    def load(self, blocks: Ints) -> Reading:
        """Reads whole blocks."""
        out: list[Any] = []
        work = Work([self._block(b) for b in dict.fromkeys(blocks.tolist())], [])
        self.runtime.launch("load_words", self.cuda.compute, 1, 1, (blocks.tolist(), out), lambda: work)
        event = self.runtime.event()
        self.runtime.record(event, self.cuda.compute)
        return SimulatedReading(self, out, event)

    def _load(self, kernel: Kernel) -> None:
        blocks, out = kernel.args
        out += [kernel.read(self._block(b).address, self.cuda.layout.block_bytes).copy() for b in blocks]


@attrs.frozen(eq=False)
class SimulatedReading:
    """Blocks that arrive in `out` before the event."""

    cells: SimulatedCells
    out: list[Any]
    event: Event

    def wait(self) -> tuple[Words, Bools]:
        """See `Reading`."""
        self.cells.runtime.synchronize(self.event)
        found = np.stack(self.out).view(np.uint64).reshape(len(self.out), *self.cells.shape)
        return agreed(found, self.cells.salt)


def drawn(num_gpu_blocks: int, num_cpu_blocks: int, block_size: int, seed: int, r: random.Random) -> CudaBackend:
    """A backend on a simulated device of some kind."""
    layout = Layout(layers=2, kv_heads=2, head_size=4, block_size=block_size, dtype="float16")
    runtime = Simulator(
        seed,
        batches=r.random() < 0.6,
        kernels=r.random() < 0.9,
        pin_works=r.random() < 0.8,
        register_works=r.random() < 0.8,
        pinned=r.choice((None, None, None, 1 << 15)),
    )
    chunk = r.choice((1, 3, 64)) * layout.block_bytes
    cuda = CudaBackend(runtime, layout, num_gpu_blocks, num_cpu_blocks, chunk_bytes=chunk, kernel_below=r.choice((0, 1 << 20)))
    cuda.copier.force = r.choice((None, None, *Path))
    return cuda


def simulated(config: Config, seed: int = 0) -> MirroredBackend:
    """On the stream simulator, with blocks of two small layers. The seed draws the order of things, the way of copying, what the
    driver can do and will pin, and how far the engine runs ahead of its results."""
    r = random.Random(seed)
    cuda = drawn(config.num_gpu_blocks, config.num_cpu_blocks, config.block_size, seed, r)
    often = r.choice((0, 0.1, 0.5, 1))
    return MirroredBackend(cuda, SimulatedCells(cuda), r.choice((0, 0, 1, 3, 8)), lambda epoch: r.random() < often)
