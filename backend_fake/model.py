"""FakeModel: the next token is a hash of the whole history as read through the block table, the request and the sequence.

Prompt token i of request r is a hash of (r, i). So requests and siblings differ at once, and any misplaced, stale or wrongly
shared block changes the tokens. All hashing is on uint64 arrays, where wraparound is defined.
"""

from collections.abc import Iterable
from hashlib import blake2b

import attrs
import numpy as np

from kvproof.backend_fake.backend import FakeBackend, Histories
from kvproof.backend_fake.memory import Words
from kvproof.store.plan import Plan, Recompute

Piece = tuple[int, int, int, int]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
ODD_1 = np.uint64(0xBF58476D1CE4E5B9)
ODD_2 = np.uint64(0x94D049BB133111EB)


def mix(z: Words) -> Words:
    """The finaliser of splitmix64, elementwise: a bijection that spreads every bit."""
    z = (z ^ (z >> np.uint64(30))) * ODD_1
    z = (z ^ (z >> np.uint64(27))) * ODD_2
    return z ^ (z >> np.uint64(31))


def request_key(name: str) -> int:
    """64 bits that stand for the request with this id."""
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def prompt(key: int, start: int, stop: int) -> Words:
    """Prompt tokens start .. stop - 1 of a request."""
    return mix(np.arange(start + 1, stop + 1, dtype=np.uint64) * GOLDEN + np.full(1, key, dtype=np.uint64))


def fold(histories: Histories) -> Words:
    """One word per history: the sum over its slots of a mix of (position, content)."""
    v = (histories.contents ^ (histories.positions.astype(np.uint64) * GOLDEN)) * ODD_1
    v = (v ^ (v >> np.uint64(32))) * ODD_2
    v ^= v >> np.uint64(29)
    v[~histories.wanted] = 0
    return np.add.reduceat(v.sum(axis=1, dtype=np.uint64), histories.starts)


@attrs.define
class Sequence:
    """What the model runner knows of one sequence: its request, its prompt length, and the tokens it has generated."""

    key: int
    prompt_tokens: int
    output: list[int] = attrs.field(factory=list)

    @property
    def length(self) -> int:
        """Prompt and generated tokens."""
        return self.prompt_tokens + len(self.output)

    def tokens(self, start: int, stop: int) -> Words:
        """Tokens start .. stop - 1 of prompt + output: the inputs of a prefill or of a decode."""
        cut = self.prompt_tokens
        made = np.array(self.output[max(start - cut, 0) : max(stop - cut, 0)], dtype=np.uint64)
        return made if start >= cut else np.concatenate([prompt(self.key, start, min(stop, cut)), made])


class FakeModel:
    """Runs the computing part of a plan on a `FakeBackend`."""

    def __init__(self, backend: FakeBackend) -> None:
        self.backend = backend
        self.sequences: dict[tuple[int, int], Sequence] = {}

    def add(self, g: int, key: int, prompt_tokens: int) -> None:
        """Group g is the request with this key."""
        self.sequences[g, 0] = Sequence(key, prompt_tokens)

    def fork(self, g: int, parent: int, child: int, blocks: int | None = None) -> None:
        """The child goes on from all tokens of its parent, of which the last is not written yet. `blocks`: as in the backend."""
        origin = self.sequences[g, parent]
        self.sequences[g, child] = Sequence(origin.key, origin.prompt_tokens, list(origin.output))
        self.backend.fork(g, parent, child, origin.length - 1, blocks)

    def output(self, g: int, q: int = 0) -> list[int]:
        """The tokens generated so far."""
        return self.sequences[g, q].output

    def run(self, plan: Plan) -> list[tuple[int, ...]]:
        """Compute: write the inputs of every prefill and decode, read every history, append one token to each that is complete.

        Returns (group, token of each of its sequences) for every group that got tokens, in plan order.
        """
        several = {r.group: r for r in plan.recomputes}
        pieces: list[Piece] = []
        for g, start, n in plan.prefills:
            if g in several:
                pieces += self._recompute(several[g])
            else:
                pieces += [(g, q, start, start + n) for q in self.backend.sequences(g)]
        return self._compute(pieces + self._next(plan.decodes))

    def _recompute(self, r: Recompute) -> list[Piece]:
        """Write what several sequences have in common once, wherever it is read. What is left to do: to read it back.

        After the last piece all of them go on. (An engine samples the next token of each when its part is done, and keeps it.)
        """
        g, size = r.group, self.backend.block_size
        runs = [(q, q, first, n) for q, first, n in r.parts] + r.shared(size)
        inputs = [self.sequences[g, q].tokens(first, first + n) for q, _, first, n in runs]
        self.backend.write([(g, q, first) for q, _, first, _ in runs], inputs, [owner for _, owner, _, _ in runs])
        ends = [(q, r.length) for q, _ in r.kin] if r.complete else [(q, i + n) for q, i, n in r.parts if i + n < r.length]
        return [(g, q, end, end) for q, end in sorted(ends)]

    def decode(self, groups: Iterable[int]) -> list[tuple[int, ...]]:
        """One more token for every sequence of these: what lookahead slots are for."""
        return self._compute(self._next(groups))

    def _next(self, groups: Iterable[int]) -> list[Piece]:
        """The last token of each sequence, which is in no slot yet."""
        lengths = [(g, q, self.sequences[g, q].length) for g in groups for q in self.backend.sequences(g)]
        return [(g, q, end - 1, end) for g, q, end in lengths]

    def _compute(self, pieces: list[Piece]) -> list[tuple[int, ...]]:
        """Write the tokens start .. stop - 1 of each (group, sequence, start, stop), and go on from those that are complete."""
        if not pieces:
            return []
        new = [piece for piece in pieces if piece[2] < piece[3]]
        inputs = [self.sequences[g, q].tokens(start, stop) for g, q, start, stop in new]
        self.backend.write([(g, q, start) for g, q, start, _ in new], inputs)
        words = fold(self.backend.read([(g, q, stop) for g, q, _, stop in pieces]))
        keys = np.array([self.sequences[g, q].key for g, q, _, _ in pieces], dtype=np.uint64)
        indices = np.array([q + 1 for _, q, _, _ in pieces], dtype=np.uint64)
        tokens = mix(mix(words ^ keys) + indices * GOLDEN).tolist()
        results: dict[int, list[int]] = {}
        for (g, q, _, stop), token in zip(pieces, tokens, strict=True):
            sequence = self.sequences[g, q]
            if stop == sequence.length:
                sequence.output.append(token)
                results.setdefault(g, []).append(token)
        return [(g, *row) for g, row in results.items()]
