"""Swap-in (swapped -> running): what the last passes moved to the host comes back and decodes in this step."""

from kvproof.core.admission import compute
from kvproof.core.blocks import append_slots, move_group_in, outgrown
from kvproof.core.groups import end, set_alarms
from kvproof.core.profiles import enqueue_back, has_room, has_seats, next_to_return, to_return
from kvproof.core.promises import keep_promise, needed
from kvproof.core.running import look_ahead
from kvproof.core.status import Status
from kvproof.store.draft import Draft


def swap_in(d: Draft, g: int) -> None:
    """SWAPPED -> RUNNING. Who decodes does so in this step; a prefill goes on, if the step computes prompts."""
    move_group_in(d, g)
    d.swapped.remove(g)
    d.status[g] = Status.RUNNING
    enqueue_back(d, g)
    d.running.add(g)
    d.seqs += d.seats[g]
    d.charged += d.seats[g]
    d.plan.resumed(g)
    rest = d.length[g] - d.computed[g]
    if rest > 0:
        d.prefilling.add(g)
        keep_promise(d, g)
        if d.config.enable_chunked_prefill:
            compute(d, g, rest)
    else:
        d.spent += d.members.count(g)
        d.born[g] = d.clock - d.length[g]
        append_slots(d, g, outgrown(d, g, d.length[g]))
        keep_promise(d, g)
        d.ungiven[g] = 1
        set_alarms(d, g)
        if d.config.vllm_v0 and d.config.num_lookahead_slots > 0:
            look_ahead(d, g)


def swap_in_next(d: Draft) -> bool:
    """One step of swap-in: the head of swapped is ended, brought back, or has to wait (it is not skipped)."""
    if d.swapped.empty():
        return False
    g = d.swapped.first()
    if not next_to_return(d, g):
        return False
    blocks = needed(d, g, returning(d, g))
    if blocks > d.config.num_gpu_blocks:
        end(d, g, Status.FINISHED_CAPACITY)
        return True
    if not may_come(d, g) or not has_room(d, blocks):
        return False
    swap_in(d, g)
    return True


def may_come(d: Draft, g: int) -> bool:
    """Has the pass seats and tokens for swapped g?"""
    if d.computed[g] == d.length[g]:
        tokens = d.members.count(g)
    elif d.config.enable_chunked_prefill:
        tokens = 1
    else:
        tokens = 0
    return has_seats(d, g) and d.spent + tokens <= d.config.max_num_batched_tokens


def returning(d: Draft, g: int) -> int:
    """Blocks that swapped g holds once it is back and can go on."""
    if d.computed[g] < d.length[g]:
        return d.table.distinct(g)
    return d.table.distinct(g) + to_return(d, g, d.length[g])
