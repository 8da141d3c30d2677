"""Seven cores, each broken in one function. The broken version replaces the function wherever the core calls it."""

from kvproof.core import admission, blocks, groups, running, schedule, swapping
from kvproof.core.status import Status


def take_block_twice(d, g, q):
    """A block stands twice in one table."""
    b = d.gpu.pop()
    d.refs.take(b)
    d.plan.slot(g, q, d.table.size(g, q), b)
    d.table.append(g, q, b)
    if d.table.size(g, q) == 2:
        d.table.put(g, q, 1, d.table.block(g, q, 0))


def copy_tail_keeps_reference(d, g, q):
    """Copy-on-write does not drop the reference to the source."""
    i = d.table.size(g, q) - 1
    source = d.table.block(g, q, i)
    target = d.gpu.pop()
    d.refs.take(target)
    d.table.put(g, q, i, target)
    d.plan.copied(source, target)
    d.plan.slot(g, q, i, target)


def give_back_forgets_host(d, b):
    """Blocks of the host are never freed, so whoever is aborted while swapped leaks them."""
    if d.refs.drop(b) and b < d.config.num_gpu_blocks:
        d.gpu.push(b)


def recompute_keeps_computed(d, g):
    """A victim thinks that its tokens are computed still."""
    groups.stop_running(d, g)
    blocks.release(d, g)
    d.status[g] = Status.WAITING
    running.enqueue_front(d, g)
    d.waiting.add(g)
    d.plan.preempted(g, "recompute")


def grow_writes_shared_tail(d, q, g):
    """A shared tail is written in place: no copy."""
    if d.clock - d.born[g] > d.span(d.table.size(g, q)):
        blocks.take_block(d, g, q)


def uncharge_nothing(d, g):
    """What a victim would have used stays spent."""


def move_sequence_in_reversed(d, q, g):
    """The blocks of a sequence come back in the wrong order."""
    size = d.table.size(g, q)
    d.times("move_in", size, lambda d, i, g, q: blocks.move_in(d, i, g, q), g, q)
    for i in range(size // 2):
        j = size - 1 - i
        a, b = d.table.block(g, q, i), d.table.block(g, q, j)
        d.table.put(g, q, i, b)
        d.table.put(g, q, j, a)
        d.plan.slot(g, q, i, b)
        d.plan.slot(g, q, j, a)


BROKEN = {
    take_block_twice: (blocks.take_block, ("refcount_exact",)),
    copy_tail_keeps_reference: (blocks.copy_tail, ("refcount_exact", "conservation", "no_hazard_ordered")),
    give_back_forgets_host: (blocks.give_back, ("conservation",)),
    recompute_keeps_computed: (running.recompute, ("token counts",)),
    grow_writes_shared_tail: (blocks.grow_sequence, ("no_shared_write", "two writers")),
    uncharge_nothing: (running.uncharge, ("budget_exact",)),
    move_sequence_in_reversed: (blocks.move_sequence_in, ("swap_", "two owners", "shared within")),
}
"""Broken function -> the real one, and words of which one is in what the machine says of it."""

MODULES = (admission, blocks, groups, running, schedule, swapping)


def switch_in(monkeypatch, broken):
    """The broken function stands for the real one in every module of the core that has it."""
    real, _ = BROKEN[broken]
    places = [(m, name) for m in MODULES for name, value in vars(m).items() if value is real]
    assert places
    for module, name in places:
        monkeypatch.setattr(module, name, broken)
