"""The running phase: every decoding group gets its next slots; who finds none evicts the tail of the queue.

Only groups whose alarm rings are looked at (V0: all of them), in policy order.
"""

from kvproof.core.blocks import append_slots, move_group_out, outgrown, release
from kvproof.core.groups import end, grown_until, stop_running
from kvproof.core.profiles import enqueue_back, enqueue_front, host_blocks, outgrew_pool
from kvproof.core.status import Status
from kvproof.store.draft import Draft


def recompute(d: Draft, g: int) -> None:
    """RUNNING -> WAITING: the blocks are freed, nothing counts as computed, the generated tokens are kept."""
    stop_running(d, g)
    release(d, g)
    d.computed[g] = 0
    d.status[g] = Status.WAITING
    enqueue_front(d, g)
    d.waiting.add(g)
    d.plan.preempted(g, "recompute")


def swap_out(d: Draft, g: int) -> None:
    """RUNNING -> SWAPPED: every block moves to the host, shared ones once."""
    stop_running(d, g)
    move_group_out(d, g)
    d.status[g] = Status.SWAPPED
    enqueue_back(d, g)
    d.swapped.add(g)
    d.plan.preempted(g, "swap")


def can_recompute(d: Draft, g: int) -> bool:
    """One sequence only: siblings would have to be forked again."""
    return d.members.count(g) == 1


def can_swap(d: Draft, g: int) -> bool:
    """Not in the middle of a prefill (nothing was generated that recompute loses), and only if the host has room."""
    if d.prefilling.has(g):
        return False
    return host_blocks(d, g, d.clock - d.born[g]) <= d.cpu.n


def uncharge(d: Draft, g: int) -> None:
    """Take what g holds out of the token budget of a decode step."""
    if not d.prefilling.has(g):
        d.spent -= d.members.count(g)


def end_in_pass(d: Draft, g: int) -> None:
    """g cannot go on: it ends with its tokens kept."""
    uncharge(d, g)
    end(d, g, Status.FINISHED_CAPACITY)


def preempt(d: Draft, g: int) -> None:
    """The policy wishes for a mode; if that is impossible the other is used; if both are, g ends."""
    wish = d.policy.swaps(g)
    recomputable = can_recompute(d, g)
    if (wish or not recomputable) and can_swap(d, g):
        uncharge(d, g)
        swap_out(d, g)
    elif recomputable:
        uncharge(d, g)
        recompute(d, g)
    else:
        end_in_pass(d, g)


def make_room(d: Draft, g: int, blocks: int) -> bool:
    """One step of the preemption loop for g: the victim is the tail of the running queue, never g itself."""
    if blocks <= d.gpu.n:
        return False
    victim = d.running.last()
    if victim == g:
        return False
    preempt(d, victim)
    return True


def find_blocks(d: Draft, g: int, blocks: int) -> bool:
    """Are `blocks` free for g, if need be from the tail of the queue? If not, g itself has gone."""
    if outgrew_pool(d, g, blocks):
        end_in_pass(d, g)
        return False
    d.repeat("make_room", make_room, g, blocks)
    if blocks > d.gpu.n:
        preempt(d, g)
        return False
    return True


def serve(d: Draft, g: int) -> None:
    """Slots for the next token of g, which has outgrown its tables or shares the tail of one."""
    slots, born = d.capacity(g), d.born[g]
    if d.clock - born > slots:
        blocks = d.members.count(g)
        if blocks <= d.gpu.n or find_blocks(d, g, blocks):
            append_slots(d, g, True)
            d.due.move(g, born + slots + d.config.block_size + 1)
    else:
        blocks = d.table.pending_copies(g)
        if blocks <= d.gpu.n or find_blocks(d, g, blocks):
            append_slots(d, g, False)
            d.due.move(g, born + slots + 1)


def serve_v0(d: Draft, g: int) -> None:
    """The same, but V0 asks for a free block per sequence even if none is needed."""
    blocks = d.members.count(g)
    if blocks <= d.gpu.n or find_blocks(d, g, blocks):
        append_slots(d, g, outgrown(d, g, d.clock - d.born[g]))
        d.due.move(g, grown_until(d, g))


def schedule_running(d: Draft) -> None:
    """One token for every sequence that decodes."""
    d.spent = d.decoders
    if d.config.vllm_v0:
        d.each_running("serve_all", serve_v0)
    else:
        d.each_due("serve", serve)
