"""The contents of the blocks of one device, and their shadow: who wrote each slot, for which position, and when.

Ids here count from 0 on each device. A slot is *valid* if it was written since its block was handed out; a transfer hands out
its targets and carries the validity of every slot along. All shadow arrays start as zeros, which mean "never" and "nobody",
so that a large pool costs memory only where it is touched.
"""

import numpy as np
from numpy.typing import NDArray

from kvproof.backend_fake.errors import Misuse, fail

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Bools = NDArray[np.bool_]


class Memory:
    """`blocks` blocks of `block_size` slots on one device."""

    def __init__(self, name: str, blocks: int, block_size: int) -> None:
        shape = (blocks, block_size)
        self.name = name
        self.contents: Words = np.zeros(shape, dtype=np.uint64)
        self.writer = np.zeros(shape, dtype=np.int64)  # serial number of the sequence that wrote the slot; 0: nobody
        self.position = np.zeros(shape, dtype=np.int64)  # of the token in its sequence
        self.written = np.zeros(shape, dtype=np.int32)  # step of the write; 0: never
        self.handed = np.zeros(blocks, dtype=np.int32)  # step in which the block was last handed out

    def hand_out(self, blocks: list[int], step: int) -> None:
        """New owners: whatever the blocks hold is stale from now on."""
        self.handed[blocks] = step

    def valid(self, blocks: Ints) -> Bools:
        """[len(blocks), block_size]: was the slot written since the block was handed out?"""
        return self.written[blocks] >= np.maximum(self.handed[blocks], 1)[:, None]

    def receive(self, origin: "Memory", sources: list[int], targets: list[int], step: int) -> None:
        """Copy whole blocks with their shadow. Sources and targets are distinct blocks (the backend has checked)."""
        s, t = np.array(sources), np.array(targets)
        valid = origin.valid(s)
        self.contents[t] = origin.contents[s]
        self.position[t] = origin.position[s]
        self.writer[t] = origin.writer[s]
        self.written[t] = np.where(valid, step, 0)
        self.handed[t] = step

    def write(self, blocks: Ints, offsets: Ints, writers: Ints, positions: Ints, tokens: Words, step: int) -> None:
        """Store one token per slot. A valid slot has its writer: only the same write may be repeated (a result was dropped)."""
        at = (blocks, offsets)
        valid = self.written[at] >= np.maximum(self.handed[blocks], 1)
        same = (self.position[at] == positions) & (self.contents[at] == tokens)
        taken = valid & ~same
        if taken.any():
            i = int(taken.argmax())
            fail(Misuse.TWO_WRITERS, f"slot {offsets[i]} of {self.name} block {blocks[i]} is written already")
        if len(blocks) > 1 and len(set(zip(blocks.tolist(), offsets.tolist(), strict=True))) != len(blocks):
            fail(Misuse.TWO_WRITERS, f"one slot of the {self.name} pool is written twice in a step")
        self.contents[at] = tokens
        self.writer[at] = writers
        self.position[at] = positions
        self.written[at] = step

    def read(self, blocks: Ints, writers: Ints, positions: Ints, wanted: Bools) -> Words:
        """The contents of `blocks`; every slot in `wanted` must be valid and written by its writer for its position."""
        stale = wanted & ~self.valid(blocks)
        if stale.any():
            i, j = np.argwhere(stale)[0]
            fail(Misuse.STALE_READ, f"position {positions[i, j]}, slot {j} of {self.name} block {blocks[i]}")
        foreign = wanted & ((self.writer[blocks] != writers) | (self.position[blocks] != positions))
        if foreign.any():
            i, j = np.argwhere(foreign)[0]
            fail(Misuse.FOREIGN_READ, f"position {positions[i, j]}, slot {j} of {self.name} block {blocks[i]}")
        return self.contents[blocks]
