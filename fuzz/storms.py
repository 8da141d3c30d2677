"""Plans without a scheduler, one after another with hardly a wait, of up to a hundred blocks each, on the stream simulator."""

import random
from collections import Counter

import attrs
import numpy as np

from kvproof.backend_cuda.backend import CudaBackend
from kvproof.backend_cuda.mirror import drawn
from kvproof.backend_cuda.runtime import Span, Work
from kvproof.backend_cuda.simulator import Kernel, Simulator
from kvproof.backend_fake.errors import Misuse, fail
from kvproof.store.plan import Plan

Pairs = list[tuple[int, int]]
PLANS = 60


@attrs.define
class Tally:
    """What has happened so far."""

    workloads: int = 0
    storms: int = 0
    plans: int = 0
    aborts: int = 0
    outputs: int = 0
    """Requests whose tokens were compared with those of a run alone."""
    taken: Counter[str] = attrs.field(factory=Counter)


def calls(cuda: CudaBackend) -> dict[str, int]:
    """How often the simulated device was asked for what."""
    assert isinstance(cuda.runtime, Simulator)
    return cuda.runtime.calls


class Storm:
    """A backend, and what must be in each block: one byte, over and over."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.n, self.m = self.r.choice((6, 40, 120)), self.r.choice((6, 40, 120))
        self.cuda = drawn(self.n, self.m, 1, seed, self.r)
        assert isinstance(self.cuda.runtime, Simulator)
        self.runtime, self.size = self.cuda.runtime, self.cuda.layout.block_bytes
        self.runtime.references["fill"] = self._fill
        self.own = self.runtime.stream("engine")
        self.gpu: list[int] = [0] * self.n
        self.host: dict[int, int] = {}

    def _fill(self, kernel: Kernel) -> None:
        for address, value in kernel.args[0]:
            kernel.write(address, np.full(self.size, value, np.uint8))

    def compute(self, blocks: list[int]) -> None:
        """The engine writes these blocks, on the stream of the backend or on its own."""
        spans = [Span(self.cuda.gpu, b * self.size, self.size) for b in blocks]
        values = [self.r.randrange(256) for _ in blocks]
        for b, value in zip(blocks, values, strict=True):
            self.gpu[b] = value
        args = [(span.address, value) for span, value in zip(spans, values, strict=True)]
        own = self.r.random() < 0.5
        if own:
            self.cuda.begin_step(self.own)
        self.runtime.launch("fill", self.own if own else self.cuda.compute, 1, 1, (args,), lambda: Work([], spans))
        if own:
            self.cuda.end_step(self.own)

    def plan(self, epoch: int) -> None:
        """A plan of any lists that one may have, executed."""
        r, n = self.r, self.n
        swap_out: Pairs = []
        swap_in: Pairs = []
        if r.random() < 0.5:
            k = r.randint(0, min(n, self.m))
            swap_out = list(zip(r.sample(range(n), k), r.sample(range(self.m), k), strict=True))
        elif r.random() < 0.7:
            swap_in = list(zip(sorted(self.host), r.sample(range(n), n), strict=False))
        came = {t for _, t in swap_in}
        free = [b for b in r.sample(range(n), n) if b not in came]
        copy = [(free[2 * i], free[2 * i + 1]) for i in range(r.choice((0, 0, min(1, len(free) // 2), len(free) // 2)))]
        self.cuda.execute(
            Plan(
                epoch,
                swap_out=tuple((s, n + t) for s, t in swap_out),
                swap_in=tuple((n + s, t) for s, t in swap_in),
                copy=tuple(copy),
                **dict.fromkeys(("prefills", "running", "resumed", "preempted", "ended", "slots"), ()),
                decode=True,
            )
        )
        self.host |= {t: self.gpu[s] for s, t in swap_out}
        for s, t in swap_in:
            self.gpu[t] = self.host[s]
        for s, t in copy:
            self.gpu[t] = self.gpu[s]

    def compare(self) -> None:
        """Wait for everything: every byte must be where the plans say. Raises `BackendError`."""
        for stream in (self.cuda.out, self.cuda.back, self.cuda.compute):
            self.runtime.drain(stream)
        found = self.runtime.array(self.cuda.gpu).reshape(self.n, self.size)
        wrong = [b for b in range(self.n) if (found[b] != self.gpu[b]).any()]
        host = {b: self.runtime.read_host(self.cuda.host.span(b)) for b in self.host}
        wrong += [self.n + b for b, value in self.host.items() if (host[b] != value).any()]
        if wrong:
            fail(Misuse.CORRUPTED, f"blocks {wrong}")


def storm(seed: int, tally: Tally) -> None:
    """One storm."""
    s = Storm(seed)
    s.compute(list(range(s.n)))
    for epoch in range(1, PLANS + 1):
        s.plan(epoch)
        if s.r.random() < 0.5:
            s.compute(s.r.sample(range(s.n), s.r.randint(1, s.n)))
        if s.r.random() < 0.1:
            s.cuda.poll()
            s.cuda.pin_next()
    s.compare()
    s.cuda.close()
    s.runtime.close()
    tally.plans += PLANS
    tally.taken += s.cuda.copier.taken
    tally.taken["chunks registered"] += calls(s.cuda).get("registered", 0)
    tally.storms += 1
