"""The host pool: chunks of whole blocks, each pinned on its own, and usable before it is.

To pin a large pool in one call stalls every process that uses the driver; so chunks are pinned one at a time, in the order in
which they will be needed, while the engine runs already. Who needs a chunk before its turn gets pageable memory, which is
registered when its turn comes and no copy touches it. What the driver refuses is asked for once: memory that it allocates pinned,
and memory that it registers; then the rest stays pageable, with one warning.
"""

import logging
from contextlib import ExitStack
from threading import RLock

from kvproof.backend_cuda.errors import CaptureRefused, PinRefused
from kvproof.backend_cuda.layout import Layout, require_host_memory
from kvproof.backend_cuda.runtime import Buffer, Event, Place, Runtime, Span

log = logging.getLogger("kvproof")
CHUNK_BYTES = 64 << 20


class HostPool:
    """`blocks` blocks, numbered from 0. `pin_next` may be called in a thread of its own; who submits copies holds `lock`."""

    def __init__(self, runtime: Runtime, layout: Layout, blocks: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        require_host_memory(runtime, layout, blocks)
        self.runtime, self.block_bytes, self.blocks = runtime, layout.block_bytes, blocks
        self.per_chunk = max(1, chunk_bytes // layout.block_bytes)
        self.chunks: list[Buffer | None] = [None] * -(-blocks // self.per_chunk)
        self.ways = {"pin", "register"}
        """What has not been refused."""
        self.lock = RLock()
        self._turn = 0
        self._events: dict[Buffer, list[Event]] = {}
        """Of pageable chunks: what follows the copies that touch them."""
        self._warned = False

    @property
    def finished(self) -> bool:
        """Has every chunk had its turn?"""
        return self._turn >= len(self.chunks)

    def pin_next(self) -> bool:
        """Pin the next chunk, if there is one, no copy touches it, no graph is captured and the driver lets us. False: all had
        their turn."""
        with self.lock:
            if not self.finished and self._pin(self._turn):
                self._turn += 1
            return not self.finished

    def _bytes(self, k: int) -> int:
        return min(self.per_chunk, self.blocks - k * self.per_chunk) * self.block_bytes

    def _pin(self, k: int) -> bool:
        """Has chunk k had its turn?"""
        chunk = self.chunks[k]
        try:
            if chunk is None and "pin" in self.ways:
                try:
                    self.chunks[k] = self.runtime.pin(self._bytes(k))
                    return True
                except PinRefused as error:
                    self._refused("pin", k, error)
            if chunk is None:
                chunk = self.chunks[k] = self.runtime.pageable(self._bytes(k))
            if "register" in self.ways:
                if not all(map(self.runtime.done, self._events.get(chunk, ()))):
                    return False
                self._events.pop(chunk, None)
                try:
                    self.runtime.register(chunk)
                    return True
                except PinRefused as error:
                    self._refused("register", k, error)
        except CaptureRefused:
            return False
        self._stays(k)
        return True

    def _refused(self, way: str, k: int, error: PinRefused) -> None:
        self.ways.remove(way)
        log.info("host pool: chunk %d of %d: %s", k, len(self.chunks), error)

    def _stays(self, k: int) -> None:
        """Chunk k stays pageable."""
        if not self._warned:
            left = "its copies" if self.ways else f"copies of {len(self.chunks) - k} chunks"
            log.warning(
                "host pool: the driver does not pin chunk %d of %d: %s will be slow and may wait", k, len(self.chunks), left
            )
        self._warned = True

    def span(self, block: int, n: int = 1) -> Span:
        """The bytes of n blocks of one chunk."""
        k, i = divmod(block, self.per_chunk)
        with self.lock:
            chunk = self.chunks[k]
            if chunk is None:
                chunk = self.chunks[k] = self.runtime.pageable(self._bytes(k))
        return Span(chunk, i * self.block_bytes, n * self.block_bytes)

    def used(self, chunk: Buffer, event: Event) -> None:
        """Copies that touch this pageable chunk are over when the event has happened."""
        events = self._events.setdefault(chunk, [])
        events[:] = [e for e in events if not self.runtime.done(e)]
        events.append(event)

    @property
    def pinned_blocks(self) -> int:
        """Blocks whose copies do not wait."""
        sizes = (c.size for c in self.chunks if c is not None and c.place == Place.PINNED)
        return sum(sizes) // self.block_bytes

    def close(self) -> None:
        """Free every chunk. Nothing runs any more."""
        with self.lock, ExitStack() as last:
            self._turn = len(self.chunks)
            while self.chunks:
                chunk = self.chunks.pop()
                if chunk is not None:
                    last.callback(self.runtime.free, chunk)
