"""Every kind of misuse is provoked, caught, and changes nothing; what is right is executed in the order of effects."""

from pathlib import Path

import numpy as np
import pytest

from kvproof.backend_fake import BackendError, FakeBackend, FakeModel, Misuse
from kvproof.store.plan import Plan

GPU, HOST, SIZE = 8, 4, 4


def plan(**fields) -> Plan:
    empty = dict.fromkeys(("prefills", "running", "resumed", "preempted", "ended", "swap_out", "swap_in", "copy", "slots"), ())
    return Plan(**{"epoch": 0, "decode": False, **empty, **fields})


@pytest.fixture
def backend() -> FakeBackend:
    """Group 0 holds GPU blocks 0, 1; group 1 holds 2; group 2 is on the host in 8; the rest is free."""
    b = FakeBackend(GPU, HOST, SIZE)
    b.execute(plan(slots=((0, 0, 0, 0), (0, 0, 1, 1), (1, 0, 0, 2), (2, 0, 0, 3))))
    for g, tokens in ((0, 6), (1, 4), (2, 3)):
        b.write([(g, 0, 0)], [np.arange(tokens, dtype=np.uint64) + np.uint64(100 * g)])
    b.execute(plan(preempted=((2, "swap"),), swap_out=((3, 8),)))
    return b


def contents(b: FakeBackend, g: int, length: int, q: int = 0) -> list[int]:
    """A history as read through the block table."""
    histories = b.read([(g, q, length)])
    return histories.contents[histories.wanted].tolist()


BAD_PLANS = {
    "a block that exists nowhere": (Misuse.OUT_OF_RANGE, {"slots": ((1, 0, 1, GPU + HOST),)}),
    "a negative block": (Misuse.OUT_OF_RANGE, {"slots": ((1, 0, 1, -1),)}),
    "a copy from nowhere": (Misuse.OUT_OF_RANGE, {"copy": ((99, 4),)}),
    "a host block in a table": (Misuse.WRONG_DEVICE, {"slots": ((1, 0, 1, GPU + 1),)}),
    "a swap-out to the GPU": (Misuse.WRONG_DEVICE, {"preempted": ((1, "swap"),), "swap_out": ((2, 4),)}),
    "a swap-out from the host": (Misuse.WRONG_DEVICE, {"preempted": ((1, "swap"),), "swap_out": ((8, 9),)}),
    "a swap-in from the GPU": (Misuse.WRONG_DEVICE, {"resumed": (2,), "swap_in": ((2, 4),)}),
    "a copy to the host": (Misuse.WRONG_DEVICE, {"copy": ((2, 9),)}),
    "a copy of a free block": (Misuse.FREE_BLOCK, {"copy": ((4, 5),), "slots": ((1, 0, 0, 5),)}),
    "a swap-out of a free block": (Misuse.FREE_BLOCK, {"swap_out": ((4, 9),)}),
    "a swap-in of a free block": (Misuse.FREE_BLOCK, {"swap_in": ((9, 4),)}),
    "a copy of a block that the plan has freed": (
        Misuse.FREE_BLOCK,
        {"preempted": ((1, "recompute"),), "copy": ((2, 5),), "slots": ((0, 0, 1, 5),)},
    ),
    "a block of somebody else": (Misuse.TWO_OWNERS, {"slots": ((1, 0, 1, 0),)}),
    "a block twice in one table": (Misuse.TWO_OWNERS, {"slots": ((1, 0, 1, 2),)}),
    "one new block for two": (Misuse.TWO_OWNERS, {"slots": ((0, 0, 2, 4), (1, 0, 1, 4))}),
    "one new block for two sequences": (Misuse.TWO_OWNERS, {"slots": ((5, 0, 0, 4), (5, 1, 0, 4))}),
    "a swap-out onto a used host block": (Misuse.TWO_OWNERS, {"preempted": ((1, "swap"),), "swap_out": ((2, 8),)}),
    "a swap-in onto a used block": (Misuse.TWO_OWNERS, {"resumed": (2,), "swap_in": ((8, 1),)}),
    "a copy for another group": (Misuse.BAD_INDEX, {"copy": ((0, 5),), "slots": ((1, 0, 0, 5),)}),
    "a replacement by a used block": (Misuse.TWO_OWNERS, {"slots": ((1, 0, 0, 0),)}),
    "two swap-outs to one block": (
        Misuse.TWO_WRITERS,
        {"preempted": ((0, "swap"),), "swap_out": ((0, 9), (1, 9))},
    ),
    "two copies to one block": (Misuse.TWO_WRITERS, {"copy": ((0, 4), (1, 4)), "slots": ((0, 0, 0, 4),)}),
    "a swap-in and a copy to one block": (Misuse.TWO_WRITERS, {"resumed": (2,), "swap_in": ((8, 4),), "copy": ((0, 4),)}),
    "a copy to a new block": (Misuse.TWO_WRITERS, {"copy": ((2, 4),), "slots": ((1, 0, 1, 4),)}),
    "a copy that reads what a copy wrote": (Misuse.OVERWRITTEN_SOURCE, {"copy": ((0, 4), (4, 5))}),
    "a copy that reads what a swap-in wrote": (
        Misuse.OVERWRITTEN_SOURCE,
        {"resumed": (2,), "swap_in": ((8, 1),), "copy": ((1, 5),), "slots": ((0, 0, 1, 5),)},
    ),
    "a copy that writes what a later one reads": (Misuse.OVERWRITTEN_SOURCE, {"copy": ((0, 1), (1, 5))}),
    "a copy that writes what an earlier one read": (Misuse.TARGET_IS_SOURCE, {"copy": ((1, 5), (0, 1))}),
    "a copy onto itself": (Misuse.TARGET_IS_SOURCE, {"copy": ((1, 1),)}),
    "out and in": (
        Misuse.BOTH_DIRECTIONS,
        {"preempted": ((1, "swap"),), "swap_out": ((2, 9),), "resumed": (2,), "swap_in": ((8, 4),)},
    ),
    "a copy that nobody gets": (Misuse.UNOWNED_TARGET, {"copy": ((0, 5),)}),
    "a swap-out that misses a block": (Misuse.WRONG_MAP, {"preempted": ((0, "swap"),), "swap_out": ((0, 9),)}),
    "a swap-out without its victim": (Misuse.WRONG_MAP, {"swap_out": ((2, 9),)}),
    "a swap-out of one block to two places": (Misuse.WRONG_MAP, {"preempted": ((1, "swap"),), "swap_out": ((2, 9), (2, 10))}),
    "a swap-in that is not announced": (Misuse.WRONG_MAP, {"swap_in": ((8, 4),)}),
    "a swap-in that misses a block": (Misuse.WRONG_MAP, {"resumed": (2,)}),
    "a swap-in of one block to two places": (Misuse.WRONG_MAP, {"resumed": (2,), "swap_in": ((8, 4), (8, 5))}),
    "a trim to nothing": (Misuse.BAD_INDEX, {"trimmed": ((0, 0, 0),)}),
    "a trim that keeps all": (Misuse.BAD_INDEX, {"trimmed": ((0, 0, 2),)}),
    "a trim to a part of a block": (Misuse.BAD_INDEX, {"trimmed": ((0, 0, 1.0),)}),
    "a trim of nobody": (Misuse.BAD_INDEX, {"trimmed": ((7, 0, 1),)}),
    "a hole in a table": (Misuse.BAD_INDEX, {"slots": ((1, 0, 2, 4),)}),
    "a replacement without a copy": (Misuse.BAD_INDEX, {"slots": ((1, 0, 0, 4),)}),
    "a victim without a table": (Misuse.UNKNOWN_GROUP, {"preempted": ((7, "recompute"),)}),
    "a return without a table": (Misuse.UNKNOWN_GROUP, {"resumed": (7,)}),
}


def snapshot(b: FakeBackend):
    arrays = [m for memory in (b.gpu, b.host) for m in (memory.contents, memory.writer, memory.position, memory.written)]
    return (repr(b.ledger.tables), dict(b.ledger.refs), dict(b.ledger.holder), [a.tobytes() for a in arrays])


@pytest.mark.parametrize(("kind", "fields"), BAD_PLANS.values(), ids=BAD_PLANS.keys())
def test_a_bad_plan_is_refused_and_changes_nothing(backend, kind, fields):
    before = snapshot(backend)
    with pytest.raises(BackendError) as caught:
        backend.execute(plan(**fields))
    assert caught.value.kind is kind, str(caught.value)
    assert snapshot(backend) == before


def test_a_table_on_the_host_is_not_trimmed(backend):
    backend.execute(plan(preempted=((0, "swap"),), swap_out=((0, 9), (1, 10))))
    with pytest.raises(BackendError) as caught:
        backend.execute(plan(trimmed=((0, 0, 1),)))
    assert caught.value.kind is Misuse.WRONG_DEVICE


def test_a_trimmed_block_may_be_handed_to_another_by_the_same_plan(backend):
    backend.execute(plan(trimmed=((0, 0, 1),), slots=((1, 0, 1, 1),)))
    assert backend.gpu_used == 3 and [b for row in backend.ledger.tables[1].values() for b in row] == [2, 1]


def test_the_order_of_effects(backend):
    """Group 1 goes out through block 2, which the same plan hands to group 0: the host has what group 1 wrote."""
    backend.execute(plan(preempted=((1, "swap"),), swap_out=((2, 9),), slots=((0, 0, 2, 2),)))
    backend.write([(0, 0, 6)], [np.array([6, 7, 8], dtype=np.uint64)])
    backend.execute(plan(ended=((0, 6),), resumed=(1,), swap_in=((9, 2),), slots=((1, 0, 0, 2), (1, 0, 1, 0))))
    assert contents(backend, 1, 4) == [100, 101, 102, 103]
    assert (backend.gpu_used, backend.host_used) == (2, 1)


def test_a_swap_keeps_bytes_and_positions(backend):
    backend.execute(plan(resumed=(2,), swap_in=((8, 7),)))
    assert contents(backend, 2, 3) == [200, 201, 202]
    assert backend.gpu.contents[7, :3].tolist() == backend.host.contents[0, :3].tolist()


def test_a_free_block_can_be_reused_by_the_plan_that_frees_it(backend):
    backend.execute(plan(preempted=((1, "recompute"),), slots=((0, 0, 2, 2),)))
    assert backend.ledger.row(0, 0) == [0, 1, 2]


def test_a_notice_is_needed_before_blocks_go_to_another(backend):
    with pytest.raises(BackendError, match="two owners"):
        backend.execute(plan(slots=((5, 0, 0, 2),)))
    backend.release(1)
    backend.release(1)  # as harmless as the first time
    backend.execute(plan(slots=((5, 0, 0, 2),)))


def misuse(action, *arguments) -> Misuse:
    """What the backend calls it."""
    with pytest.raises(BackendError) as caught:
        action(*arguments)
    return caught.value.kind


WORD = [np.array([1], dtype=np.uint64)]


def test_reading_what_was_never_written(backend):
    assert misuse(backend.read, [(0, 0, 7)]) is Misuse.STALE_READ


def test_reading_what_an_earlier_owner_wrote(backend):
    """Block 2 comes back to group 1 itself, at the same index: its old contents are right, and stale all the same."""
    backend.execute(plan(preempted=((1, "recompute"),)))
    backend.execute(plan(slots=((1, 0, 0, 2),)))
    assert misuse(backend.read, [(1, 0, 4)]) is Misuse.STALE_READ


def test_an_unwritten_slot_stays_unwritten_through_a_swap(backend):
    backend.execute(plan(resumed=(2,), swap_in=((8, 3),)))
    assert misuse(backend.read, [(2, 0, 4)]) is Misuse.STALE_READ


def test_reading_what_somebody_else_wrote(backend):
    backend.gpu.writer[2, 1] = 77
    assert misuse(backend.read, [(1, 0, 4)]) is Misuse.FOREIGN_READ


def test_reading_another_position(backend):
    """The blocks of group 0 in the wrong order."""
    backend.ledger.tables[0][0] = [1, 0]
    backend.gpu.written[1] = backend.gpu.written[0]
    assert misuse(backend.read, [(0, 0, 5)]) is Misuse.FOREIGN_READ


def test_computing_beyond_the_table(backend):
    assert misuse(backend.write, [(1, 0, 4)], WORD) is Misuse.NO_SLOT
    assert misuse(backend.read, [(1, 0, 5)]) is Misuse.NO_SLOT


def test_computing_on_the_host(backend):
    assert misuse(backend.write, [(2, 0, 3)], WORD) is Misuse.WRONG_DEVICE
    assert misuse(backend.read, [(2, 0, 3)]) is Misuse.WRONG_DEVICE


def test_computing_without_a_table(backend):
    assert misuse(backend.read, [(6, 0, 1)]) is Misuse.UNKNOWN_GROUP


def test_writing_a_slot_again(backend):
    assert misuse(backend.write, [(1, 0, 3)], WORD) is Misuse.TWO_WRITERS


def test_a_step_whose_result_was_dropped_may_be_repeated(backend):
    backend.write([(1, 0, 3)], [np.array([103], dtype=np.uint64)])
    assert contents(backend, 1, 4) == [100, 101, 102, 103]


def test_writing_a_slot_twice_in_a_step(backend):
    assert misuse(backend.write, [(0, 0, 6), (0, 0, 6)], WORD * 2) is Misuse.TWO_WRITERS


def test_writing_a_shared_block(backend):
    backend.fork(0, 0, 1, 6)
    assert misuse(backend.write, [(0, 1, 6)], WORD) is Misuse.TWO_WRITERS


def test_siblings_read_their_common_past_and_their_own_present(backend):
    backend.fork(0, 0, 1, 6)
    backend.execute(plan(copy=((1, 4),), slots=((0, 0, 1, 4),)))
    backend.write([(0, 0, 6), (0, 1, 6)], [WORD[0], WORD[0] + np.uint64(1)])
    assert contents(backend, 0, 7) == [0, 1, 2, 3, 4, 5, 1]
    assert contents(backend, 0, 7, q=1) == [0, 1, 2, 3, 4, 5, 2]
    backend.fork(0, 1, 2, 7)
    assert contents(backend, 0, 7, q=2) == [0, 1, 2, 3, 4, 5, 2]
    backend.ledger.tables[0][2] = backend.ledger.tables[0][0]
    assert misuse(backend.read, [(0, 2, 7)]) is Misuse.FOREIGN_READ


def test_a_sequence_that_ends_leaves_the_others_alone(backend):
    backend.fork(0, 0, 1, 6)
    backend.release_sequence(0, 0)
    assert contents(backend, 0, 6, q=1) == [0, 1, 2, 3, 4, 5]
    assert backend.sequences(0) == [1]


def model(key: int, blocks: list[int], output: int = 3) -> list[int]:
    """Tokens of a request of 6 prompt tokens in these blocks."""
    b = FakeBackend(GPU, HOST, SIZE)
    m = FakeModel(b)
    m.add(0, key, 6)
    b.execute(plan(slots=tuple((0, 0, i, block) for i, block in enumerate(blocks))))
    assert m.run(plan(prefills=((0, 0, 4),), running=(0,))) == []  # a piece yields no token
    m.run(plan(prefills=((0, 4, 2),), running=(0,)))
    for _ in range(output - 1):
        b.execute(plan())
        m.run(plan(running=(0,), decode=True))
    return m.output(0)


def test_tokens_depend_on_the_request_and_not_on_the_blocks():
    assert model(1, [0, 1]) == model(1, [6, 3])
    assert not set(model(1, [0, 1])) & set(model(2, [0, 1]))
    assert all(0 <= token < 2**64 for token in model(2**64 - 1, [0, 1]))


def test_a_changed_token_changes_what_follows():
    b = FakeBackend(GPU, HOST, SIZE)
    m = FakeModel(b)
    m.add(0, 1, 6)
    b.execute(plan(slots=((0, 0, 0, 0), (0, 0, 1, 1))))
    m.run(plan(prefills=((0, 0, 6),), running=(0,)))
    b.gpu.contents[0, 2] ^= np.uint64(1)
    m.run(plan(running=(0,), decode=True))
    assert m.output(0)[0] == model(1, [0, 1])[0]
    assert m.output(0)[1] != model(1, [0, 1])[1]


def test_exchanged_tokens_change_what_follows():
    b = FakeBackend(GPU, HOST, SIZE)
    m = FakeModel(b)
    m.add(0, 1, 6)
    b.execute(plan(slots=((0, 0, 0, 0), (0, 0, 1, 1))))
    m.run(plan(prefills=((0, 0, 6),), running=(0,)))
    b.gpu.contents[0, [1, 2]] = b.gpu.contents[0, [2, 1]]
    m.run(plan(running=(0,), decode=True))
    assert m.output(0)[1] != model(1, [0, 1])[1]


def test_a_decode_before_the_prefill_is_caught():
    b = FakeBackend(GPU, HOST, SIZE)
    m = FakeModel(b)
    m.add(0, 1, 6)
    b.execute(plan(slots=((0, 0, 0, 0), (0, 0, 1, 1))))
    assert misuse(m.run, plan(running=(0,), decode=True)) is Misuse.STALE_READ


def test_every_kind_is_provoked_here():
    source = Path(__file__).read_text()
    assert [kind.name for kind in Misuse if f"Misuse.{kind.name}" not in source] == []
