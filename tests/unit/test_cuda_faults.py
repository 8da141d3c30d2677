"""Faults in the CUDA backend, each put in on purpose: random workloads on the stream simulator must notice every one of them."""

import random
from itertools import pairwise

import pytest

from kvproof.backend_cuda import backend as backend_module
from kvproof.backend_cuda import copier as copier_module
from kvproof.backend_cuda.backend import CudaBackend
from kvproof.backend_cuda.copier import Copier
from kvproof.backend_cuda.host_pool import HostPool
from kvproof.backend_cuda.races import HazardError
from kvproof.backend_cuda.runs import runs
from kvproof.backend_cuda.simulator import Simulator
from kvproof.backend_cuda.staging import Staging
from kvproof.backend_fake import BackendError
from kvproof.fuzz import transfers
from kvproof.fuzz.transfers import Tally, workload

WORKLOADS = 80


def without_wait(stream, monkeypatch):
    """This stream waits for nobody."""
    wait = Simulator.wait
    monkeypatch.setattr(Simulator, "wait", lambda self, s, event: None if s.name == stream else wait(self, s, event))


def events_too_early(monkeypatch):
    """Events are recorded before what they are to follow: each on a stream where nothing has been enqueued since."""
    record = Simulator.record

    def early(self, event, stream):
        if stream.name in ("out", "in"):
            event.recorded += 1
            event.happened = event.recorded
        else:
            record(self, event, stream)

    monkeypatch.setattr(Simulator, "record", early)


def wrong_stream(monkeypatch):
    """What goes out is enqueued where things come in; nobody waits for that."""
    out, execute = Copier.out, CudaBackend.execute

    def remember(self, plan):
        self.copier.other = self.back
        return execute(self, plan)

    monkeypatch.setattr(CudaBackend, "execute", remember)
    monkeypatch.setattr(Copier, "out", lambda self, pairs, stream: out(self, pairs, self.other))


def run_too_long(monkeypatch):
    """A run takes one block more with it."""
    longer = lambda pairs: ((s, t, n + (n > 1)) for s, t, n in runs(pairs))  # noqa: E731
    monkeypatch.setattr(copier_module, "runs", longer)


def run_too_short(monkeypatch):
    """A run leaves its last block behind."""
    monkeypatch.setattr(copier_module, "runs", lambda pairs: ((s, t, n - (n > 1)) for s, t, n in runs(pairs)))


def runs_of_targets(monkeypatch):
    """Neighbours on one side are enough."""

    def careless(pairs):
        pairs = sorted(pairs)
        if pairs and all(b[1] == a[1] + 1 for a, b in pairwise(pairs)):
            return [(*pairs[0], len(pairs))]
        return list(runs(pairs))

    monkeypatch.setattr(copier_module, "runs", careless)


def staging_reused(monkeypatch):
    """A table is written again while a kernel may still read it."""

    def lend(self, span, stream):
        self.free.setdefault(span.buffer.size, []).append(span.buffer)

    monkeypatch.setattr(Staging, "lend", lend)


def staging_freed(monkeypatch):
    """A table is freed while a kernel may still read it."""
    monkeypatch.setattr(Staging, "lend", lambda self, span, stream: self.runtime.free(span.buffer))


def chunk_freed(monkeypatch):
    """A chunk of the host pool is given back with the copies into it on their way."""
    out = Copier.out

    def careless(self, pairs, stream):
        out(self, pairs, stream)
        chunk = self.host.span(pairs[0][1]).buffer
        self.runtime.free(chunk)

    monkeypatch.setattr(Copier, "out", careless)


def pinned_in_use(monkeypatch):
    """Chunks are never freed."""
    monkeypatch.setattr(HostPool, "close", lambda self: None)


def copy_dropped_in_capture(monkeypatch):
    """A graph is captured on the stream while the plan is executed, and nobody asks."""
    execute = CudaBackend.execute

    def captured(self, plan):
        self.runtime.begin_capture(self.out)
        try:
            return execute(self, plan)
        finally:
            self.runtime.end_capture(self.out)

    monkeypatch.setattr(CudaBackend, "execute", captured)
    monkeypatch.setattr(Simulator, "capturing", lambda self, stream: False)


def swapped_sides(monkeypatch):
    """Copy-on-write copies the wrong way."""
    within = Copier.within
    monkeypatch.setattr(Copier, "within", lambda self, pairs, stream: within(self, [(t, s) for s, t in pairs], stream))


def host_blocks_shifted(monkeypatch):
    """Host blocks are one off."""
    span = HostPool.span
    monkeypatch.setattr(HostPool, "span", lambda self, b, n=1: span(self, max(0, b - 1), n))


def chunks_ignored(monkeypatch):
    """A run goes on over the end of its chunk."""
    monkeypatch.setattr(copier_module, "cut", lambda run, size, side: [run])


def forgotten_plan(monkeypatch):
    """Swap-ins of plans that also copy are left out."""
    monkeypatch.setattr(backend_module, "check_lists", lambda sizes, plan: None)
    monkeypatch.setattr(Copier, "back", lambda self, pairs, stream: None)


FAULTS = {
    "out does not wait": lambda m: without_wait("out", m),
    "in does not wait": lambda m: without_wait("in", m),
    "compute does not wait": lambda m: without_wait("compute", m),
    "events too early": events_too_early,
    "wrong stream": wrong_stream,
    "run too long": run_too_long,
    "run too short": run_too_short,
    "runs of targets": runs_of_targets,
    "staging reused": staging_reused,
    "staging freed": staging_freed,
    "chunk freed": chunk_freed,
    "chunks never freed": pinned_in_use,
    "copy dropped in capture": copy_dropped_in_capture,
    "copy-on-write the wrong way": swapped_sides,
    "host blocks shifted": host_blocks_shifted,
    "chunks ignored": chunks_ignored,
    "swap-ins forgotten": forgotten_plan,
}


def test_random_workloads_find_nothing_in_the_backend_as_it_is():
    tally = Tally()
    for seed in range(WORKLOADS):
        workload(seed, tally)
    assert tally.plans > 2000 and tally.aborts > 50 and tally.outputs > 300
    assert min(tally.taken[path] for path in ("batch", "runs", "kernel")) > 20


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault, monkeypatch):
    FAULTS[fault](monkeypatch)
    seeds = list(range(WORKLOADS))
    random.Random(7).shuffle(seeds)
    with pytest.raises((HazardError, BackendError)):
        for seed in seeds:
            workload(seed, Tally())


def test_main_says_what_it_found(monkeypatch, capsys):
    assert transfers.main(["--plans", "100"]) == 0
    assert "no race, no leak, contents equal" in capsys.readouterr().out
    staging_freed(monkeypatch)
    assert transfers.main(["--plans", "100"]) == 1
    assert "HazardError" in capsys.readouterr().out
