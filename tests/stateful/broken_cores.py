"""Cores that are each broken in one function. The broken version replaces the function wherever the core calls it."""

from broken_features import FEATURES

from kvproof.core import admission, blocks, displacing, groups, promises, running, schedule, swapping
from kvproof.core.status import Status
from kvproof.store.collections import Members
from kvproof.store.draft import Draft
from kvproof.store.measures import Measures


def take_block_twice(d, q, g):
    """A block stands twice in one table."""
    d.table.extend(g, q, d.gpu)
    if d.table.size(g, q) == 2:
        d.table.put(g, q, 1, d.table.block(g, q, 0))


def unshare_keeps_reference(d, q, g):
    """Copy-on-write does not drop the reference to the source."""
    i = d.table.size(g, q) - 1
    source = d.table.block(g, q, i)
    if d.refs.shared(source):
        target = d.gpu.take()
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
    running.enqueue_victim(d, g)
    d.waiting.add(g)
    d.plan.preempted(g, "recompute")


def shared_tail_is_written(d, q, g):
    """A shared tail is written in place: no copy."""


def uncharge_nothing(d, g):
    """What a victim would have used stays spent."""


def move_sequence_in_reversed(d, q, g):
    """The blocks of a sequence come back in the wrong order."""
    size = d.table.size(g, q)
    d.each_index("move_in", size, lambda d, i, g, q: blocks.move_in(d, i, g, q), g, q)
    for i in range(size // 2):
        j = size - 1 - i
        a, b = d.table.block(g, q, i), d.table.block(g, q, j)
        d.table.put(g, q, i, b)
        d.table.put(g, q, j, a)
        d.plan.slot(g, q, i, b)
        d.plan.slot(g, q, j, a)


BROKEN = {
    take_block_twice: (blocks.take_block, ("refcount_exact",)),
    unshare_keeps_reference: (blocks.unshare, ("refcount_exact", "conservation", "no_hazard_ordered", "NoneType")),
    give_back_forgets_host: (blocks.give_back, ("conservation",)),
    recompute_keeps_computed: (running.recompute, ("token counts",)),
    shared_tail_is_written: (blocks.unshare, ("no_shared_write", "two writers")),
    uncharge_nothing: (running.uncharge, ("budget_exact",)),
    move_sequence_in_reversed: (blocks.move_sequence_in, ("swap_", "two owners", "shared within")),
    **FEATURES,
}
"""Broken function -> the real one, and words of which one is in what the machine says of it."""

PLACES = (admission, blocks, displacing, groups, promises, running, schedule, swapping, Draft, Measures, Members)


def switch_in(monkeypatch, broken):
    """The broken function stands for the real one in every module of the core that has it, or in the draft."""
    real, _ = BROKEN[broken]
    places = [(m, name) for m in PLACES for name, value in vars(m).items() if value is real]
    assert places
    for module, name in places:
        monkeypatch.setattr(module, name, broken)
