"""Moves lists of blocks: one batch call, one copy per run, or one kernel for many small fragments. All move the same bytes."""

from collections import Counter
from collections.abc import Sequence
from enum import Enum
from itertools import chain

import numpy as np

from kvproof.backend_cuda.host_pool import HostPool
from kvproof.backend_cuda.runs import cut, runs
from kvproof.backend_cuda.runtime import Buffer, Move, Place, Runtime, Span, Stream, Work
from kvproof.backend_cuda.staging import Staging

Pairs = Sequence[tuple[int, int]]
KERNEL_BELOW = 32 << 10
"""Bytes of a fragment, on average, below which one kernel beats a copy each. Measured on the device where there is one."""
VECTOR = 16
"""Bytes that a thread moves at once."""
THREADS = 256
GRID = 64
"""Blocks of threads: enough to fill the bus, few enough to leave the multiprocessors to the model."""


class Path(Enum):
    """How a list was moved."""

    BATCH = "batch"
    RUNS = "runs"
    KERNEL = "kernel"


class Copier:
    """`force`: the path to take where it can be taken; None: whatever is best."""

    def __init__(self, runtime: Runtime, gpu: Buffer, host: HostPool, kernel_below: int = KERNEL_BELOW) -> None:
        self.runtime, self.gpu, self.host, self.kernel_below = runtime, gpu, host, kernel_below
        self.block_bytes = host.block_bytes
        self.staging = Staging(runtime)
        self.force: Path | None = None
        self.taken: Counter[str] = Counter()
        """Lists by path, and what they came to: blocks, copies."""

    def _gpu(self, block: int, n: int = 1) -> Span:
        return Span(self.gpu, block * self.block_bytes, n * self.block_bytes)

    def out(self, pairs: Pairs, stream: Stream) -> None:
        """GPU blocks to host blocks, each numbered from 0."""
        pieces = [p for run in runs(pairs) for p in cut(run, self.host.per_chunk, 1)]
        moves = [(self.host.span(t, n), self._gpu(s, n)) for s, t, n in pieces]
        if not self._swap(moves, stream):
            self._fragments([(self.host.span(t), self._gpu(s)) for s, t in pairs], stream)

    def back(self, pairs: Pairs, stream: Stream) -> None:
        """Host blocks to GPU blocks."""
        pieces = [p for run in runs(pairs) for p in cut(run, self.host.per_chunk, 0)]
        moves = [(self._gpu(t, n), self.host.span(s, n)) for s, t, n in pieces]
        if not self._swap(moves, stream):
            self._fragments([(self._gpu(t), self.host.span(s)) for s, t in pairs], stream)

    def within(self, pairs: Pairs, stream: Stream) -> None:
        """GPU blocks to GPU blocks: copy-on-write."""
        self._fragments([(self._gpu(t), self._gpu(s)) for s, t in pairs], stream)

    def _swap(self, moves: list[Move], stream: Stream) -> bool:
        """Move the runs, unless a kernel shall move their blocks."""
        size = sum(target.size for target, _ in moves)
        path = self._path(moves, size)
        if path == Path.KERNEL:
            return False
        self._note(path, size // self.block_bytes, len(moves))
        if path == Path.BATCH:
            self.runtime.copy_batch(moves, stream)
        else:
            for target, source in moves:
                self.runtime.copy(target, source, stream)
        return True

    def _path(self, moves: list[Move], size: int) -> Path:
        pinned = all(Place.PAGEABLE not in (target.buffer.place, source.buffer.place) for target, source in moves)
        if pinned and (self.force or self._best(size // len(moves))) == Path.KERNEL:
            return Path.KERNEL
        batch = pinned and self.runtime.batches and self.force != Path.RUNS
        return Path.BATCH if batch else Path.RUNS

    def _best(self, fragment: int) -> Path:
        if fragment < self.kernel_below:
            return Path.KERNEL
        return Path.BATCH if self.runtime.batches else Path.RUNS

    def _fragments(self, moves: list[Move], stream: Stream) -> None:
        """One kernel for all of them. It reads their addresses in pinned memory, of which there may be none: then a copy each."""
        addresses = chain.from_iterable((source.address, target.address) for target, source in moves)
        table = np.fromiter(addresses, dtype=np.uint64, count=2 * len(moves))
        span = self.staging.put(table.tobytes(), table.nbytes)
        if span is None:
            self._note(Path.RUNS, len(moves), len(moves))
            for target, source in moves:
                self.runtime.copy(target, source, stream)
            return

        def work() -> Work:
            return Work([span, *(source for _, source in moves)], [target for target, _ in moves])

        self._note(Path.KERNEL, len(moves), 1)
        args = (np.uint64(span.address), np.uint32(len(moves)), np.uint64(self.block_bytes))
        grid = min(GRID, -(-len(moves) * self.block_bytes // (VECTOR * THREADS)))
        self.runtime.launch("copy_fragments", stream, grid, THREADS, args, work)
        self.staging.lend(span, stream)

    def _note(self, path: Path, blocks: int, copies: int) -> None:
        self.taken[path.value] += 1
        self.taken["blocks"] += blocks
        self.taken["copies"] += copies
