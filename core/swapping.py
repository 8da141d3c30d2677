"""Swap-in (swapped -> running): what the last passes moved to the host comes back and decodes in this step."""

from kvproof.core.blocks import append_slots, blocks_needed, move_group_in, outgrown
from kvproof.core.groups import end, set_alarms
from kvproof.core.profiles import enqueue_back, has_room, next_to_return
from kvproof.core.status import Status
from kvproof.store.draft import Draft


def swap_in(d: Draft, g: int) -> None:
    """SWAPPED -> RUNNING, in time for this decode."""
    move_group_in(d, g)
    d.swapped.remove(g)
    d.status[g] = Status.RUNNING
    enqueue_back(d, g)
    d.running.add(g)
    d.seqs += d.seats[g]
    d.spent += d.members.count(g)
    d.born[g] = d.clock - d.length[g]
    append_slots(d, g, outgrown(d, g, d.length[g]))
    set_alarms(d, g)
    d.plan.resumed(g)


def swap_in_next(d: Draft) -> bool:
    """One step of swap-in: the head of swapped is ended, brought back, or has to wait (it is not skipped)."""
    if d.swapped.empty():
        return False
    g = d.swapped.first()
    if not next_to_return(d, g):
        return False
    blocks = d.table.distinct(g) + blocks_needed(d, g, d.length[g])
    if blocks > d.config.num_gpu_blocks:
        end(d, g, Status.FINISHED_CAPACITY)
        return True
    count = d.members.count(g)
    if d.seqs + d.seats[g] > d.config.max_num_seqs or d.spent + count > d.config.max_num_batched_tokens:
        return False
    if not has_room(d, blocks):
        return False
    swap_in(d, g)
    return True
