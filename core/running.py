"""The running phase: every decoding group gets its next slots; who finds none evicts the tail of the queue.

Only groups whose alarm rings are looked at (V0: all of them), in policy order.
"""

from kvproof.core.admission import compute
from kvproof.core.blocks import append_slots, move_group_out, outgrown, release, take_block
from kvproof.core.groups import end, grown_until, stop_running
from kvproof.core.profiles import enqueue_back, enqueue_victim, host_blocks, outgrew_pool, touched
from kvproof.core.promises import free, keep_promise
from kvproof.core.status import Status
from kvproof.store.draft import Draft


# --- preemption --------------------------------------------------------------------------------------------------------
def recompute(d: Draft, g: int) -> None:
    """RUNNING -> WAITING: the blocks are freed, nothing counts as computed, the generated tokens are kept."""
    stop_running(d, g)
    release(d, g)
    d.computed[g] = 0
    d.status[g] = Status.WAITING
    enqueue_victim(d, g)
    d.waiting.add(g)
    d.plan.preempted(g, "recompute")


def swap_out(d: Draft, g: int) -> None:
    """RUNNING -> SWAPPED: every block moves to the host, shared ones once. Who decodes has computed all its tokens."""
    if not d.prefilling.has(g):
        d.computed[g] = d.clock - d.born[g]
    stop_running(d, g)
    move_group_out(d, g)
    d.status[g] = Status.SWAPPED
    enqueue_back(d, g)
    d.swapped.add(g)
    d.plan.preempted(g, "swap")


def can_swap(d: Draft, g: int) -> bool:
    """Only if the host has room, and not several sequences in the middle of their recompute."""
    if d.prefilling.has(g) and d.members.count(g) > 1:
        return False
    return host_blocks(d, g) <= d.cpu.n


def evict(d: Draft, g: int, wish: bool) -> None:
    """g is swapped out if that is the wish and it is possible, else recomputed."""
    if wish and can_swap(d, g):
        swap_out(d, g)
    else:
        recompute(d, g)


def uncharge(d: Draft, g: int) -> None:
    """Take what g holds out of the token budget of a decode step."""
    if not d.config.vllm_v0 and not d.prefilling.has(g):
        d.spent -= d.members.count(g)


def preempt(d: Draft, g: int) -> None:
    """Take what g holds out of the budget, evict it in the mode that the policy wishes, and count that."""
    wish = d.swaps(g)
    uncharge(d, g)
    evict(d, g, wish)
    d.preemptions[g] += 1


def force(d: Draft, g: int, mode: int) -> None:
    """An event, not counted: g, if it runs, is preempted before the pass. mode: 0 as the policy wishes, 1 recompute, 2 swap."""
    if d.status[g] == Status.RUNNING:
        wish = d.swaps(g) if mode == 0 else mode == 2
        evict(d, g, wish)


# --- making room -------------------------------------------------------------------------------------------------------
def can_append(d: Draft, g: int, blocks: int) -> bool:
    """Are `blocks` free for g? In tests of an engine the answer may be no all the same, but for who is protected."""
    return not (d.testing and d.may_go(g) and d.denies(g)) and blocks <= free(d, g)


def next_victim(d: Draft, g: int, blocks: int, last: int) -> int:
    """Who goes next for g: `last`, the last that may go, or whom the policy names, if it ranks below and is not protected."""
    if d.config.choose_victims:
        named = d.named(g, blocks)
        if d.running.has(named) and d.key[g] < d.key[named] and d.may_go(named):
            return named
    return last


def make_room(d: Draft, g: int, blocks: int) -> bool:
    """One step of the preemption loop for g, while it cannot append: who goes ranks below g, and is never g itself."""
    last = d.last_below(g)
    if d.granted or last == g:
        return False
    preempt(d, next_victim(d, g, blocks, last))
    d.granted = can_append(d, g, blocks)
    return True


def find_blocks(d: Draft, g: int, blocks: int) -> bool:
    """Are `blocks` free for g, which cannot append, from the tail of the queue? If not, g itself has gone."""
    if outgrew_pool(d, g, blocks):
        uncharge(d, g)
        end(d, g, Status.FINISHED_CAPACITY)
        return False
    d.granted = False
    d.repeat("make_room", make_room, g, blocks)
    if not d.granted:
        preempt(d, g)
    return d.granted


# --- serving -----------------------------------------------------------------------------------------------------------
def serve(d: Draft, g: int) -> None:
    """Slots for the next token of g, which has outgrown its tables or shares the tail of one."""
    slots, born = d.capacity(g), d.born[g]
    if d.clock - born > slots:
        blocks = d.members.count(g)
        if can_append(d, g, blocks) or find_blocks(d, g, blocks):
            append_slots(d, g, True)
            if d.bounded:
                keep_promise(d, g)
            d.due.move(g, born + slots + d.config.block_size + 1)
    else:
        blocks = d.table.pending_copies(g)
        if can_append(d, g, blocks) or find_blocks(d, g, blocks):
            append_slots(d, g, False)
            if d.bounded:
                keep_promise(d, g)
            d.due.move(g, born + slots + 1)


def serve_asked(d: Draft, g: int) -> None:
    """In tests of an engine everybody who decodes is asked whether it can append."""
    if not d.prefilling.has(g):
        serve(d, g)


def look_ahead_next(d: Draft, g: int) -> bool:
    """One block of the lookahead slots that the only sequence of g wishes for, if one is free."""
    wanted = d.clock - d.born[g] + d.config.num_lookahead_slots
    if not d.config.vllm_v0 and wanted > d.config.max_model_len:
        wanted = d.config.max_model_len
    if d.capacity(g) >= wanted or d.gpu.n <= d.owing:
        return False
    take_block(d, d.members.first(g), g)
    return True


def look_ahead(d: Draft, g: int) -> None:
    """Lookahead slots for g, as far as blocks are free. Siblings get none: what they reserve they would share when they fork.

    In kvproof the alarm does not know of them: the next pass takes them back, and looks at g when it would without them.
    """
    if not d.prefilling.has(g) and not d.sampling.has(g) and d.members.count(g) == 1:
        d.repeat("look_ahead", look_ahead_next, g)
        if d.config.vllm_v0:
            d.due.move(g, grown_until(d, g))


def serve_v0(d: Draft, g: int) -> None:
    """The same in V0, which asks for the blocks that it touches, charges as it goes, and stops when the token budget is spent."""
    left = d.config.max_num_batched_tokens - d.spent
    if d.prefilling.has(g):
        prefill_v0(d, g, left)
        return
    tokens, count = d.clock - d.born[g], d.members.count(g)
    if left < count or d.stopped:
        d.stopped = True
        d.idle.add(g)
        d.due.move(g, d.clock + 1)
        return
    blocks = touched(d, g, tokens)
    if can_append(d, g, blocks) or find_blocks(d, g, blocks):
        append_slots(d, g, outgrown(d, g, tokens))
        d.ungiven[g] = 1
        d.due.move(g, grown_until(d, g))
        if d.config.num_lookahead_slots > 0:
            look_ahead(d, g)
        d.charged += count
        d.spent += count


def prefill_v0(d: Draft, g: int, left: int) -> None:
    """V0 goes on with a prompt. It asks for a block if the prompt ends within one, though it has it."""
    if left < 1 or d.stopped:
        d.stopped = True
        return
    blocks = d.blocks_for(d.length[g]) - d.full_blocks(d.length[g])
    if can_append(d, g, blocks) or find_blocks(d, g, blocks):
        d.charged += d.seats[g]
        compute(d, g, d.work(g, d.length[g]) - d.computed[g])


def schedule_running(d: Draft) -> None:
    """One token for every sequence that decodes. V0 goes through the whole queue, unfinished prefills too."""
    if d.config.vllm_v0:
        d.stopped = False
        d.each_running("serve_all", serve_v0)
    else:
        d.spent = d.decoders
        if d.testing:
            d.each_running("serve_asked", serve_asked)
        else:
            d.each_due("serve", serve)
