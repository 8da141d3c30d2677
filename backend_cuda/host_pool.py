"""The host pool: chunks of whole blocks, each pinned on its own, and usable before it is.

To pin a large pool in one call stalls every process that uses the driver; so chunks are pinned one at a time, in the order in
which they will be needed, while the engine runs already. Who needs a chunk before its turn gets pageable memory, which is
registered when its turn comes. What the driver refuses is asked for once: first memory that it allocates pinned, then memory that
it registers; then the rest stays pageable, with one warning.
"""

import logging
from threading import Lock

from kvproof.backend_cuda.errors import PinRefused
from kvproof.backend_cuda.layout import Layout, fits
from kvproof.backend_cuda.runtime import Buffer, Place, Runtime, Span

log = logging.getLogger("kvproof")
CHUNK_BYTES = 64 << 20


class HostPool:
    """`blocks` blocks, numbered from 0."""

    def __init__(self, runtime: Runtime, layout: Layout, blocks: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        fits(runtime, layout, blocks)
        self.runtime, self.block_bytes, self.blocks = runtime, layout.block_bytes, blocks
        self.per_chunk = max(1, chunk_bytes // layout.block_bytes)
        self.chunks: list[Buffer | None] = [None] * -(-blocks // self.per_chunk)
        self.ways = ["pin", "register"]
        """What has not been refused, the better one first."""
        self._next = 0
        self._lock = Lock()

    @property
    def finished(self) -> bool:
        """Has every chunk had its turn?"""
        return self._next >= len(self.chunks)

    def pin_next(self) -> bool:
        """Pin the next chunk, if there is one and the driver lets us. Is there more to do?"""
        with self._lock:
            if not self.finished:
                k = self._next
                self._next += 1
                self.chunks[k] = self._pinned(k, self.chunks[k])
            return not self.finished

    def _bytes(self, k: int) -> int:
        return min(self.per_chunk, self.blocks - k * self.per_chunk) * self.block_bytes

    def _pinned(self, k: int, chunk: Buffer | None) -> Buffer:
        """Chunk k, pinned if possible. One that is in use stays where it lies."""
        if chunk is None and "pin" in self.ways:
            try:
                return self.runtime.pin(self._bytes(k))
            except PinRefused as error:
                self._refused("pin", k, error)
        if chunk is None:
            chunk = self.runtime.pageable(self._bytes(k))
        if "register" in self.ways:
            try:
                self.runtime.register(chunk)
            except PinRefused as error:
                self._refused("register", k, error)
        return chunk

    def _refused(self, way: str, k: int, error: PinRefused) -> None:
        self.ways.remove(way)
        if self.ways:
            log.info("host pool: chunk %d of %d: %s; trying to register memory instead", k, len(self.chunks), error)
        else:
            log.warning(
                "host pool: the driver pins no more memory (%s): swaps of %d of %d chunks will wait for their copies",
                *(error, len(self.chunks) - k, len(self.chunks)),
            )

    def span(self, block: int, n: int = 1) -> Span:
        """The bytes of n blocks of one chunk."""
        k, i = divmod(block, self.per_chunk)
        chunk = self.chunks[k]
        if chunk is None:
            with self._lock:
                if self.chunks[k] is None:
                    self.chunks[k] = self.runtime.pageable(self._bytes(k))
                chunk = self.chunks[k]
        assert chunk is not None
        return Span(chunk, i * self.block_bytes, n * self.block_bytes)

    @property
    def pinned_blocks(self) -> int:
        """Blocks whose copies do not wait."""
        sizes = (c.size for c in self.chunks if c is not None and c.place == Place.PINNED)
        return sum(sizes) // self.block_bytes

    def close(self) -> None:
        """Free every chunk."""
        with self._lock:
            self._next = len(self.chunks)
            while self.chunks:
                chunk = self.chunks.pop()
                if chunk is not None:
                    self.runtime.free(chunk)
