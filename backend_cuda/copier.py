"""Moves lists of blocks: one batch call, one copy per run, or one kernel for many small fragments. All move the same bytes.

A list becomes a `Job` first: all that may be refused is done then, so that a plan is submitted whole or not at all.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import chain
from typing import Any

import attrs
import numpy as np

from kvproof.backend_cuda.host_pool import HostPool
from kvproof.backend_cuda.runs import Run, cut, runs
from kvproof.backend_cuda.runtime import Buffer, Event, Move, Place, Runtime, Span, Stream, Work
from kvproof.backend_cuda.staging import Staging

Pairs = Sequence[tuple[int, int]]
KERNEL_BELOW = 32 << 10
"""Bytes of a fragment, on average, below which one kernel is thought to beat a copy each. To be measured on the device."""
VECTOR = 16
"""Bytes that a thread moves at once."""
THREADS = 256
GRID = 64
"""Blocks of threads: enough to fill the bus, few enough to leave the multiprocessors to the model."""


class Path(Enum):
    """How a list is moved."""

    BATCH = "batch"
    RUNS = "runs"
    KERNEL = "kernel"


@attrs.frozen(eq=False)
class Job:
    """A list that is ready to be submitted."""

    path: Path
    moves: Sequence[Move]
    blocks: int
    table: Span | None = None
    """Of the kernel: the addresses."""

    def slow(self) -> set[Buffer]:
        """The pageable buffers that it touches."""
        return {span.buffer for move in self.moves for span in move if span.buffer.place == Place.PAGEABLE}


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

    def out(self, pairs: Pairs) -> Job:
        """GPU blocks to host blocks, each numbered from 0."""
        return self._swap(pairs, 1, lambda s, t, n: (self.host.span(t, n), self._gpu(s, n)))

    def back(self, pairs: Pairs) -> Job:
        """Host blocks to GPU blocks."""
        return self._swap(pairs, 0, lambda s, t, n: (self._gpu(t, n), self.host.span(s, n)))

    def within(self, pairs: Pairs) -> Job:
        """GPU blocks to GPU blocks: copy-on-write."""
        moves = [(self._gpu(t), self._gpu(s)) for s, t in pairs]
        return self._kernel(moves) or Job(Path.RUNS, moves, len(moves))

    def _swap(self, pairs: Pairs, side: int, move: Any) -> Job:
        pieces: Iterable[Run] = (p for run in runs(pairs) for p in cut(run, self.host.per_chunk, side))
        moves = [move(*piece) for piece in pieces]
        path = self._path(moves, len(pairs))
        if path == Path.KERNEL:
            job = self._kernel([move(s, t, 1) for s, t in pairs])
            if job is not None:
                return job
            path = Path.RUNS
        return Job(path, moves, len(pairs))

    def _path(self, moves: Sequence[Move], blocks: int) -> Path:
        pinned = all(Place.PAGEABLE not in (target.buffer.place, source.buffer.place) for target, source in moves)
        if not pinned:
            return Path.RUNS
        best = Path.BATCH if self.runtime.batches else Path.RUNS
        if blocks * self.block_bytes < self.kernel_below * len(moves):
            best = Path.KERNEL
        path = self.force or best
        return Path.RUNS if path == Path.BATCH and not self.runtime.batches else path

    def _kernel(self, moves: Sequence[Move]) -> Job | None:
        """One kernel. It reads their addresses in pinned memory, of which there may be none."""
        if not self.runtime.kernels:
            return None
        addresses = chain.from_iterable((source.address, target.address) for target, source in moves)
        table = np.fromiter(addresses, dtype=np.uint64, count=2 * len(moves))
        span = self.staging.put(table.tobytes(), table.nbytes)
        return None if span is None else Job(Path.KERNEL, moves, len(moves), span)

    def cancel(self, job: Job) -> None:
        """It is not submitted after all."""
        if job.table is not None:
            self.staging.give_back(job.table)

    def submit(self, job: Job, stream: Stream) -> Event:
        """Enqueue it; the event follows it."""
        if job.table is not None:
            self._launch(job, job.table, stream)
        elif job.path == Path.BATCH:
            self.runtime.copy_batch(job.moves, stream)
        else:
            for target, source in job.moves:
                self.runtime.copy(target, source, stream)
        event = self.runtime.event()
        self.runtime.record(event, stream)
        for buffer in job.slow():
            self.host.used(buffer, event)
        self.taken[job.path.value] += 1
        self.taken["blocks"] += job.blocks
        self.taken["copies"] += 1 if job.path == Path.KERNEL else len(job.moves)
        return event

    def _launch(self, job: Job, table: Span, stream: Stream) -> None:
        def work() -> Work:
            return Work([table, *(source for _, source in job.moves)], [target for target, _ in job.moves])

        args = (np.uint64(table.address), np.uint32(len(job.moves)), np.uint64(self.block_bytes))
        grid = min(GRID, -(-len(job.moves) * self.block_bytes // (VECTOR * THREADS)))
        self.runtime.launch("copy_fragments", stream, grid, THREADS, args, work)
        self.staging.lend(table, stream)
