"""The CUDA backend on the stream simulator: pools, refusals, ways of copying, what is freed."""

import logging
import random
from itertools import pairwise

import numpy as np
import pytest

from kvproof.backend_cuda.backend import CudaBackend
from kvproof.backend_cuda.copier import Path
from kvproof.backend_cuda.errors import CaptureRefused, Closed, DeviceLost, OutOfDeviceMemory, OutOfHostMemory
from kvproof.backend_cuda.layout import Layout, num_cpu_blocks, num_gpu_blocks
from kvproof.backend_cuda.races import HazardError
from kvproof.backend_cuda.runs import cut, runs
from kvproof.backend_cuda.runtime import Place, Span
from kvproof.backend_cuda.simulator import Simulator
from kvproof.backend_fake import BackendError
from kvproof.store.plan import Plan

SMALL = Layout(layers=2, kv_heads=1, head_size=4, block_size=2, dtype="float16")
EMPTY = {"prefills": (), "running": (), "resumed": (), "preempted": (), "ended": (), "slots": (), "decode": False}


def plan(epoch=1, swap_out=(), swap_in=(), copy=()):
    return Plan(epoch, swap_out=tuple(swap_out), swap_in=tuple(swap_in), copy=tuple(copy), **EMPTY)


def backend(runtime=None, gpu=8, host=8, chunk=3, layout=SMALL, **options):
    runtime = Simulator() if runtime is None else runtime
    return CudaBackend(runtime, layout, gpu, host, chunk_bytes=chunk * layout.block_bytes, **options)


def fill(b):
    """Every GPU block has its own number in every byte."""
    rows = b.runtime.array(b.gpu).reshape(b.sizes.gpu, -1)
    rows[:] = np.arange(1, b.sizes.gpu + 1, dtype=np.uint8)[:, None]
    return rows


def test_a_block_is_one_fragment_with_all_layers():
    layout = Layout(layers=32, kv_heads=8, head_size=128, block_size=16, dtype="bfloat16")
    assert layout.slot_bytes == 2048 and layout.block_bytes == 32 * 2 * 16 * 2048 == 2 << 20
    with backend() as b:
        rows = fill(b)
        view = b.view(1)
        assert view.shape == (8, 2, 2, 1, 4) and view.dtype == np.float16
        view[3] = 7.5
        assert (b.view(0)[3] != 7.5).all() and (b.view(1)[2] != 7.5).all()
        assert (rows[3].view(np.float16).reshape(2, -1)[1] == 7.5).all()
        with pytest.raises(IndexError, match="layer 2 of 2"):
            b.view(2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 0}, "layers must be an integer >= 1, not 0"),
        ({"block_size": 2.0}, "block_size must be an integer >= 1, not 2.0"),
        ({"kv_heads": True}, "kv_heads must be an integer >= 1, not True"),
        ({"dtype": "int8"}, "dtype must be one of float32, float16, .*, not 'int8'"),
    ],
)
def test_a_layout_that_is_none(options, message):
    with pytest.raises(ValueError, match=message):
        Layout(**({"layers": 2, "kv_heads": 1, "head_size": 4, "block_size": 2} | options))


def test_pool_sizes_from_memory():
    runtime = Simulator(total=1000 * SMALL.block_bytes, host=5000 * SMALL.block_bytes)
    assert num_gpu_blocks(runtime, SMALL, 0.9) == 900
    runtime.allocate(100 * SMALL.block_bytes)
    assert num_gpu_blocks(runtime, SMALL, 0.9) == 800
    assert num_cpu_blocks(runtime, SMALL, 3000 * SMALL.block_bytes / 2**30) == 3000
    with pytest.raises(OutOfDeviceMemory, match=r"gpu_memory_utilization 0\.05 leaves 0 of them"):
        num_gpu_blocks(runtime, SMALL, 0.05)
    with pytest.raises(OutOfHostMemory, match="num_cpu_blocks can be at most 5000"):
        num_cpu_blocks(runtime, SMALL, 6000 * SMALL.block_bytes / 2**30)
    for wrong in (0, 1.1, float("nan")):
        with pytest.raises(ValueError, match="gpu_memory_utilization"):
            num_gpu_blocks(runtime, SMALL, wrong)
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="swap_space"):
            num_cpu_blocks(runtime, SMALL, wrong)


def test_pools_that_do_not_fit_are_refused_and_nothing_is_kept():
    """C112: never a pool unlike the scheduler's."""
    for runtime, error, message in (
        (Simulator(total=7 * SMALL.block_bytes), OutOfDeviceMemory, "num_gpu_blocks can be at most 7"),
        (Simulator(host=7 * SMALL.block_bytes), OutOfHostMemory, "num_cpu_blocks can be at most 7"),
    ):
        with pytest.raises(error, match=message):
            backend(runtime)
        runtime.close()


@pytest.mark.parametrize("path", [None, *Path])
@pytest.mark.parametrize("batches", [True, False])
@pytest.mark.parametrize("pinned", [None, 0])
def test_exactly_the_bytes_of_these_blocks_move(path, batches, pinned):
    """C120, C121: every way of copying moves the same bytes and leaves the neighbours alone."""
    for seed in range(20):
        r = random.Random(seed)
        runtime = Simulator(seed, batches=batches, pinned=pinned, register_works=pinned is None)
        with backend(runtime, 12, 12) as b:
            b.copier.force = path
            rows = fill(b)
            gone, places = r.sample(range(12), 6), r.sample(range(12, 24), 6)
            if seed % 2:
                gone, places = sorted(gone), sorted(places)
            b.wait(b.execute(plan(1, swap_out=zip(gone, places, strict=True))))
            rows[gone] = 99
            back = r.sample(range(12), 6)
            rest = {i: rows[i].copy() for i in range(12) if i not in back}
            b.wait(b.execute(plan(2, swap_in=zip(places, back, strict=True))))
            assert all((rows[t] == s + 1).all() for s, t in zip(gone, back, strict=True))
            assert all((rows[i] == row).all() for i, row in rest.items())
            b.wait(b.execute(plan(3, copy=[(0, 11), (3, 10)])))
            assert (rows[11] == rows[0]).all() and (rows[10] == rows[3]).all()
        runtime.close()


def test_an_entry_that_names_no_block_moves_nothing():
    """C109: the entry is named before anything is submitted."""
    with backend() as b:
        rows = fill(b).copy()
        for wrong, message in (
            (plan(swap_out=[(0, 8), (8, 9)]), r"swap_out\[1\] source: 8 is not a gpu block"),
            (plan(swap_out=[(0, 16)]), r"swap_out\[0\] target: 16, there are 8 GPU and 8 host blocks"),
            (plan(swap_in=[(9, -1)]), r"swap_in\[0\] target: -1"),
            (plan(copy=[(1, 2), (3, 12)]), r"copy\[1\] target: 12 is not a gpu block"),
            (plan(copy=[(1, 2), (3, 2)]), "block 2 is the target of two transfers"),
            (plan(swap_out=[(0, 8)], swap_in=[(9, 1)]), "both swap directions"),
        ):
            with pytest.raises(BackendError, match=message):
                b.execute(wrong)
        assert not b.copier.taken and (b.runtime.array(b.gpu).reshape(8, -1) == rows).all()
        assert b.poll().done == ()


def test_epochs_are_told_in_order_when_their_copies_are_done():
    with backend(Simulator(5)) as b:
        fill(b)
        tickets = [b.execute(plan(k, swap_out=[(k, 8 + k)])) for k in range(1, 5)]
        told = []
        for _ in range(200):
            told += b.poll().done
        b.wait(tickets[-1])
        for _ in range(50):
            told += b.poll().done
        assert told == [1, 2, 3, 4]
        assert b.execute(plan(5)).events == ()
        assert b.poll().done == (5,)


def test_a_plan_is_refused_while_a_graph_is_captured():
    with backend() as b:
        rows = fill(b)
        for stream in (b.out, b.back, b.compute):
            b.runtime.begin_capture(stream)
            with pytest.raises(CaptureRefused, match="while a graph is captured"):
                b.execute(plan(copy=[(1, 2)]))
            assert b.runtime.end_capture(stream) == []
        b.wait(b.execute(plan(copy=[(1, 2)])))
        assert (rows[2] == rows[1]).all()


def test_a_lost_device_is_said_and_the_backend_still_closes():
    b = backend()
    b.execute(plan(swap_out=[(1, 8)], copy=[(2, 3)]))
    b.runtime.lost = True
    with pytest.raises(DeviceLost):
        b.execute(plan(swap_out=[(1, 8)]))
    with pytest.raises(DeviceLost):
        b.close()
    assert b.runtime.buffers == []


def test_a_closed_backend_does_nothing_and_has_freed_everything():
    b = backend()
    ticket = b.execute(plan(swap_out=[(1, 8)], copy=[(2, 3)]))
    b.close()
    b.close()
    b.runtime.close()
    for call in (lambda: b.execute(plan()), b.poll, lambda: b.wait(ticket), lambda: b.view(0)):
        with pytest.raises(Closed):
            call()


# --- the host pool -----------------------------------------------------------------------------------------------------
def test_chunks_are_pinned_one_at_a_time_and_usable_before():
    """C117: no call pins more than a chunk; copies into what is not pinned yet are right."""
    runtime = Simulator(3)
    with backend(runtime, 8, 20, chunk=3) as b:
        rows = fill(b)
        assert runtime.calls.get("pin", 0) == 0
        b.host.pin_next()
        b.wait(b.execute(plan(1, swap_out=[(k, 8 + 2 * k) for k in range(8)])))
        places = [c.place if c else None for c in b.host.chunks]
        assert places[:2] == [Place.PINNED, Place.PAGEABLE] and places[-1] is None
        while b.host.pin_next():
            pass
        assert b.host.finished and b.host.pinned_blocks == 20
        assert runtime.calls["pin"] == 3 and runtime.calls["register"] == 4 and len(b.host.chunks) == 7
        assert max(runtime.calls["largest pin"], runtime.calls["largest register"]) == 3 * SMALL.block_bytes
        rows[:] = 0
        b.wait(b.execute(plan(2, swap_in=[(8 + 2 * k, k) for k in range(8)])))
        assert (rows[:, 0] == np.arange(1, 9)).all()
    runtime.close()


@pytest.mark.parametrize(
    ("options", "calls", "pinned", "messages"),
    [
        ({"pin_works": False}, {"pin": 1, "register": 4}, 10, ["trying to register memory instead"]),
        ({"register_works": False}, {"pin": 4}, 10, []),
        ({"pin_works": False, "register_works": False}, {"pin": 1, "register": 1}, 0, ["instead", "swaps of 4 of 4 chunks"]),
        ({"pinned": 2 * 3 * SMALL.block_bytes}, {"pin": 3, "register": 1}, 6, ["instead", "swaps of 2 of 4 chunks"]),
    ],
)
def test_what_the_driver_refuses_is_asked_for_once(options, calls, pinned, messages, caplog):
    """C113, C114, C116: allocated pinned, registered, pageable; each refusal is logged, one warning, no endless trying."""
    runtime = Simulator(**options)
    with caplog.at_level(logging.INFO, "kvproof"), backend(runtime, 8, 10) as b:
        rows = fill(b)
        while b.host.pin_next():
            pass
        assert {name: runtime.calls.get(name) for name in calls} == calls
        assert b.host.pinned_blocks == pinned
        assert len(caplog.records) == len(messages)
        for record, message in zip(caplog.records, messages, strict=True):
            assert message in record.getMessage()
        assert sum(record.levelno == logging.WARNING for record in caplog.records) == (pinned < 10)
        b.wait(b.execute(plan(1, swap_out=[(k, 17 - k) for k in range(8)])))
        rows[:] = 0
        b.wait(b.execute(plan(2, swap_in=[(17 - k, k) for k in range(8)])))
        assert (rows[:, 0] == np.arange(1, 9)).all()
    runtime.close()


# --- runs --------------------------------------------------------------------------------------------------------------
def test_runs_are_the_same_pairs():
    for seed in range(300):
        r = random.Random(seed)
        n = r.randint(0, 12)
        pairs = list(zip(r.sample(range(16), n), r.sample(range(100, 116), n), strict=True))
        found = list(runs(pairs))
        assert sorted((s + i, t + i) for s, t, k in found for i in range(k)) == sorted(pairs)
        for (s, t, k), (s2, t2, _) in pairwise(found):
            assert (s + k, t + k) != (s2, t2), "two runs that are one"
        for side in (0, 1):
            pieces = [p for run in found for p in cut(run, 5, side)]
            assert sorted((s + i, t + i) for s, t, k in pieces for i in range(k)) == sorted(pairs)
            assert all(p[side] // 5 == (p[side] + p[2] - 1) // 5 for p in pieces)


# --- the simulator -----------------------------------------------------------------------------------------------------
def two_streams(order):
    """A copy on one stream, then one that reads its target on another; `order` puts what it likes between them."""
    runtime = Simulator(1)
    a, b, c = (runtime.allocate(16) for _ in range(3))
    one, two = runtime.stream("one"), runtime.stream("two")
    event = runtime.event()
    runtime.copy(Span(b, 0, 8), Span(a, 0, 8), one)
    order(runtime, one, two, event)
    runtime.copy(Span(c, 0, 8), Span(b, 4, 8), two)


def test_streams_are_ordered_by_events_and_by_the_host_only():
    def by_event(runtime, one, two, event):
        runtime.record(event, one)
        runtime.wait(two, event)

    def by_host(runtime, one, two, event):
        runtime.record(event, one)
        runtime.synchronize(event)

    def by_asking(runtime, one, two, event):
        runtime.record(event, one)
        while not runtime.done(event):
            pass

    def by_an_event_never_recorded(runtime, one, two, event):
        runtime.wait(two, event)

    def recorded_too_late(runtime, one, two, event):
        runtime.wait(two, event)
        runtime.record(event, one)

    def of_the_wrong_stream(runtime, one, two, event):
        runtime.record(event, two)
        runtime.synchronize(event)

    for order in (by_event, by_host, by_asking, lambda runtime, one, two, event: runtime.drain(one)):
        two_streams(order)
    for order in (by_an_event_never_recorded, recorded_too_late, of_the_wrong_stream, lambda *_: None):
        with pytest.raises(HazardError, match="a copy on two races with a copy on one, by which byte 4 of device buffer 2"):
            two_streams(order)


def test_bytes_that_do_not_overlap_do_not_race():
    runtime = Simulator(2)
    a, b = runtime.allocate(64), runtime.allocate(64)
    one, two = runtime.stream("one"), runtime.stream("two")
    for k in range(8):
        runtime.copy(Span(b, 8 * k, 8), Span(a, 0, 8), (one, two)[k % 2])
    with pytest.raises(HazardError, match="byte 8 of device buffer 2 was written"):
        runtime.copy(Span(b, 0, 16), Span(a, 0, 16), one)


def test_memory_that_is_not_there():
    runtime = Simulator()
    a, host, slow = runtime.allocate(8), runtime.pin(8), runtime.pageable(8)
    stream = runtime.stream("one")
    with pytest.raises(HazardError, match=r"bytes 4 to 12 of device buffer 1, which has 8"):
        runtime.copy(Span(a, 4, 8), Span(host, 0, 8), stream)
    with pytest.raises(HazardError, match="a copy of 8 bytes to 4"):
        runtime.copy(Span(a, 0, 4), Span(host, 0, 8), stream)
    with pytest.raises(HazardError, match="the host touches device buffer 1"):
        runtime.read_host(Span(a, 0, 8))
    runtime.copy(Span(a, 0, 8), Span(host, 0, 8), stream)
    for buffer in (a, host):
        with pytest.raises(HazardError, match=f"free races with a copy on one, by which byte 0 of {buffer.name}"):
            runtime.free(buffer)
    with pytest.raises(HazardError, match=r"the host's write .* races"):
        runtime.write_host(Span(host, 0, 8), bytes(8))
    runtime.drain(stream)
    runtime.free(host)
    with pytest.raises(HazardError, match="freed twice"):
        runtime.free(host)
    with pytest.raises(HazardError, match="used after it was freed"):
        runtime.copy(Span(a, 0, 8), Span(host, 0, 8), stream)
    with pytest.raises(HazardError, match="never freed: device buffer 1, pageable buffer 3"):
        runtime.close()
    runtime.free(slow)


def test_every_order_that_streams_allow_is_tried():
    """Two copies on two streams into one byte each: over the seeds either comes first, early or as late as can be."""
    seen = set()
    for seed in range(60):
        runtime = Simulator(seed)
        a, b = runtime.allocate(2), runtime.pin(2)
        runtime.array(a)[:] = 0
        runtime.write_host(Span(b, 0, 2), bytes((1, 2)))
        one, two = runtime.stream("one"), runtime.stream("two")
        runtime.copy(Span(a, 0, 1), Span(b, 0, 1), one)
        runtime.copy(Span(a, 1, 1), Span(b, 1, 1), two)
        seen.add(tuple(runtime.array(a)))
        runtime.drain(one)
        seen.add(tuple(runtime.array(a)))
        runtime.drain(two)
        assert tuple(runtime.array(a)) == (1, 2)
    assert seen == {(0, 0), (1, 0), (0, 2), (1, 2)}
