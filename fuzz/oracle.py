"""What is right, without any scheduler: the tokens of a request on its own, and the contents of a state as plain values."""

from typing import Any

import numpy as np

from kvproof.backend_fake.backend import Histories
from kvproof.backend_fake.model import GOLDEN, Sequence, fold, mix
from kvproof.store.state import State
from kvproof.store.versions import NAMES


def next_token(sequence: Sequence, q: int, length: int) -> int:
    """The token after the first `length` tokens of sequence q: a hash of them, of the request and of q. No block is involved."""
    history = sequence.tokens(0, length)[None, :]
    positions = np.arange(length)[None, :]
    words = fold(Histories(history, positions, np.ones((1, length), dtype=bool), np.zeros(1, dtype=np.int64)))
    key, index = np.array([sequence.key], dtype=np.uint64), np.array([q + 1], dtype=np.uint64)
    token: int = mix(mix(words ^ key) + index * GOLDEN).tolist()[0]
    return token


def contents(state: State) -> dict[str, Any]:
    """Everything in a state, by value: two readings of one state must be equal for ever."""
    out: dict[str, Any] = {
        name: getattr(state, name)
        for name in ("clock", "ticket", "seqs", "decoders", "issued", "prefilled", "epoch", "denied", "timing", "owing")
    }
    for name in NAMES:
        out[name] = getattr(state, name).to_dict()
    out["table"] = {k: tuple(blocks[:n]) for k, (blocks, n) in out["table"].items()}
    for name in ("due", "expiry"):
        out[name] = {t: frozenset(bucket) for t, bucket in out[name].items()}
    for name in ("waiting", "running", "swapped", "prefilling", "sampling", "idle"):
        out[name] = getattr(state, name)
    out["gpu"], out["cpu"] = state.free_blocks()
    return out
