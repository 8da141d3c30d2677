"""What one step of a pass decides, exactly, in both profiles: clauses over the state before the step (`e`) and after it (`d`).

A step looks at one group: the head of waiting, the head of swapped, an unfinished prefill, a group that must grow, a victim.
Each clause says "if and only if", so a step that waits where it could go on is as wrong as one that goes on where it must not.
"""

from typing import Any

from kvproof.core.status import Status
from kvproof.spec import promises
from kvproof.spec.logic import Truth, both, choose, either, iff, implies, negate
from kvproof.spec.ownership import Clause, R, S, W


def least(a: Any, b: Any) -> Any:
    """The smaller one."""
    return choose(a <= b, a, b)


def takes(e: Any, g: Any, tokens: Any) -> Any:
    """Blocks that g takes for its next token: one a sequence when it has outgrown its tables, else copies of shared tails."""
    outgrown = tokens > e.span(e.table.size_[g, e.members.some(g)])
    return choose(outgrown, e.members.n[g], e.table.pending_copies(g))


def ahead_of(e: Any, g: Any, queue: Any) -> Truth:
    """Does g rank before everybody in the queue?"""
    return e.forall("group", lambda t: implies(queue.has_[t], e.key[g] < e.key[t]), lambda t: [[queue.has_[t]]])


def to_return(e: Any, g: Any, tokens: Any) -> Any:
    """Blocks that g, which has computed its prompt, is to have besides those it holds; V0 counts lookahead slots."""
    needed, height = takes(e, g, tokens), e.table.size_[g, e.members.some(g)]
    height = height + choose(tokens > e.span(height), 1, 0)
    slots = e.config.num_lookahead_slots
    more = e.blocks_of(tokens + slots) - height
    return needed + choose(both(e.config.vllm_v0, slots > 0, more > 0), e.per_sequence(g, more), 0)


def in_prefill(e: Any, g: Any) -> Truth:
    """Is g, which is swapped, in the middle of its prefill?"""
    return e.computed[g] < e.length[g]


def comes_with(e: Any, g: Any) -> Any:
    """Blocks that swapped g holds once it is back and can go on."""
    return e.table.held[g] + choose(in_prefill(e, g), 0, to_return(e, g, e.length[g]))


def back_needs(e: Any, g: Any) -> Any:
    """GPU blocks that must be free for swapped g to come back: all that it may ever hold, if it is protected."""
    return promises.needed(e, g, comes_with(e, g))


def seated(e: Any, g: Any) -> Truth:
    """Are there seats for g? With chunked prefill V0 counts only those that it has scheduled in this pass."""
    taken = choose(both(e.config.vllm_v0, e.config.enable_chunked_prefill), e.charged, e.seqs)
    return taken + e.seats[g] <= e.config.max_num_seqs


def kept_free(e: Any) -> Any:
    """What is kept for those that run, and the watermark, where it applies: kvproof drops it when nothing runs."""
    return e.owing + choose(either(e.config.vllm_v0, e.running.n >= 1), e.config.watermark_blocks, 0)


def joins(d: Any, e: Any, g: Any, queue: Any) -> Clause:
    """In V0 g stands at the back of the queue; kvproof's queues are in policy order, so its key is what it was."""
    last = d.forall("group", lambda t: implies(both(queue.has_[t], t != g), d.key[t] < d.key[g]), lambda t: [[queue.has_[t]]])
    moved, stays = both(last, d.ticket == e.ticket + 1), both(d.key[g] == e.key[g], d.ticket == e.ticket)
    return ("one_queue: its place in line", choose(e.config.vllm_v0, moved, stays))


def refusable(e: Any, g: Any) -> Truth:
    """Can g, which waits, never be admitted? V0: all its tokens count against the limits, and the watermark against the pool."""
    c, tokens = e.config, e.length[g]
    too_long = choose(
        c.vllm_v0,
        either(tokens > c.max_model_len, both(e.work(g, tokens) > c.max_num_batched_tokens, negate(c.enable_chunked_prefill))),
        e.prompt[g] > c.max_model_len,
    )
    return either(too_long, exceeds(e, g, c.num_gpu_blocks - choose(c.vllm_v0, c.watermark_blocks, 0)))


def exceeds(e: Any, g: Any, blocks: Any) -> Truth:
    """Do the tables of g, which waits, take more blocks than so many, or may they come to, if it is protected?"""
    tokens = e.length[g]
    now = choose(e.members.n[g] == 1, tokens > e.span(blocks), e.rows(g, tokens) > blocks)
    return either(now, both(negate(promises.may_go(e, g)), promises.whole(e, g) > blocks))


def admissible(e: Any, g: Any, spent: Any) -> Truth:
    """Has the pass seats, tokens and blocks for g, which waits? If prompts are cut, tokens for a part of it."""
    return both(in_budget(e, g, spent), in_room(e, g))


def in_room(e: Any, g: Any) -> Truth:
    """Are the blocks for g, which waits, free?"""
    return negate(exceeds(e, g, e.gpu.n - kept_free(e)))


def in_budget(e: Any, g: Any, spent: Any) -> Truth:
    """Has the pass seats and tokens for g, which waits?"""
    c, tokens = e.config, e.work(g, e.length[g])
    whole = choose(tokens > c.max_num_batched_tokens, spent == 0, spent + tokens <= c.max_num_batched_tokens)
    budget = choose(c.enable_chunked_prefill, spent < c.max_num_batched_tokens, whole)
    return both(seated(e, g), budget)


def waits_its_turn(e: Any, g: Any, delay: Truth) -> Truth:
    """Must g, head of waiting, wait for the delay, or because the pass has evicted it, or for the swapped?

    V0 lets all that are swapped go first (with chunked prefill none), kvproof those that rank before g.
    """
    first = choose(e.config.vllm_v0, e.config.enable_chunked_prefill, ahead_of(e, g, e.swapped))
    delayed = both(e.running.n >= 1, delay)
    return either(delayed, e.plan.victim[g], negate(either(e.swapped.n == 0, first)))


def nobody_else_moves(d: Any, e: Any, g: Any) -> Clause:
    """The status of every other group is what it was."""
    return (
        "status_graph: nobody else moves",
        d.forall("group", lambda t: either(t == g, d.status[t] == e.status[t]), lambda t: [[d.status[t]]]),
    )


def admission(d: Any, e: Any, g: Any, went_on: Any, delay: Truth) -> list[Clause]:
    """g, head of waiting, is refused, admitted, or waits. `went_on`: the step said that there may be more to do.

    `delay`: has the one that waits longest not waited long enough?
    """
    turn = negate(waits_its_turn(e, g, delay))
    refused = both(turn, refusable(e, g))
    admitted = both(turn, negate(refusable(e, g)), admissible(e, g, e.spent))
    computed = least(e.work(g, e.length[g]), e.config.max_num_batched_tokens - e.spent)
    outcome = choose(e.length[g] > e.prompt[g], Status.FINISHED_CAPACITY, Status.FINISHED_IGNORED)
    return [
        nobody_else_moves(d, e, g),
        (
            "infeasible_refused: exactly who can never be admitted, at its turn",
            d.status[g] == choose(refused, outcome, choose(admitted, R, W)),
        ),
        ("total: the step goes on exactly if it did something", iff(went_on, either(refused, admitted))),
        ("budget_exact: charged what it computes", d.spent == e.spent + choose(admitted, computed, 0)),
        ("budget_exact: its seats are taken in this pass", d.charged == e.charged + choose(admitted, e.seats[g], 0)),
        ("recompute_keeps_output: its table is given all its tokens", d.ungiven[g] == choose(admitted, 1, e.ungiven[g])),
        ("total: the delay counts from the last admission", iff(d.marked, either(e.marked, admitted))),
        (joins(d, e, g, d.running)[0], implies(admitted, joins(d, e, g, d.running)[1])),
    ]


def first_of(e: Any, g: Any, has: Any) -> Truth:
    """Does nobody of whom `has` is true rank before g?"""
    return e.forall("group", lambda t: implies(has(t), e.key[g] <= e.key[t]), lambda t: [[e.status[t]]])


def left_waiting(d: Any, g: Any) -> Clause:
    """When a pass has admitted whom it could: g, if it is the head of waiting, has to wait its turn or cannot be admitted."""
    head = both(d.status[g] == W, first_of(d, g, lambda t: d.status[t] == W))
    blocked = either(waits_its_turn(d, g, d.delay), both(negate(refusable(d, g)), negate(admissible(d, g, d.spent))))
    return ("one_queue: nobody waits in vain", implies(head, blocked))


def left_swapped(d: Any, g: Any) -> Clause:
    """When a pass has brought back whom it could: g, if it is the head of swapped, has to wait its turn or cannot come back."""
    head = both(d.status[g] == S, first_of(d, g, lambda t: d.status[t] == S))
    turn = either(d.config.vllm_v0, ahead_of(d, g, d.waiting))
    never = back_needs(d, g) > d.config.num_gpu_blocks
    return ("one_queue: nobody stays swapped in vain", implies(both(head, turn), both(negate(never), negate(returnable(d, g)))))


def prefill_turn(e: Any) -> Truth:
    """May a pass from e prefill? kvproof decodes after a prefill step, if anybody can decode."""
    return either(e.config.vllm_v0, negate(e.prefilled), e.running.n == e.prefilling.n)


def turns(d: Any, e: Any, g: Any, calm: Truth) -> list[Clause]:
    """What a pass does first, and that it leaves nobody in line who could go on: g is any group. `calm`: no event strikes it."""
    either_or = negate(e.config.enable_chunked_prefill)
    plain = both(calm, either_or, negate(e.config.priority))
    stays = both(e.status[g] == W, d.status[g] == W)
    head = both(stays, first_of(e, g, lambda t: both(e.status[t] == W, d.status[t] == W)))
    before = either(waits_its_turn(e, g, d.delay), both(negate(refusable(e, g)), negate(admissible(e, g, 0))))
    back = both(plain, negate(d.prefilled), d.plan.victims == 0)
    admitted = d.forall(
        "group", lambda t: negate(both(e.status[t] == W, d.status[t] == R)), lambda t: [[d.status[t]], [e.status[t]]]
    )
    return [
        ("one_queue: who decodes is not passed over", either(prefill_turn(e), admitted, negate(plain))),
        (
            "one_queue: an unfinished prefill goes first",
            implies(both(plain, prefill_turn(e), e.prefilling.n >= 1), d.prefilled),
        ),
        (
            "one_queue: nobody waits in vain",
            implies(
                both(plain, head, prefill_turn(e)),
                either(both(d.prefilled, left_waiting(d, g)[1]), before),
            ),
        ),
        (
            "one_queue: nobody waits in vain, in a step of decodes and prompts",
            implies(both(e.config.enable_chunked_prefill, negate(e.config.vllm_v0)), left_waiting(d, g)[1]),
        ),
        ("one_queue: nobody stays swapped in vain", implies(back, left_swapped(d, g)[1])),
    ]


def returnable(e: Any, g: Any) -> Truth:
    """Has the pass seats, tokens and blocks for swapped group g and its next tokens?"""
    c = e.config
    tokens = choose(in_prefill(e, g), choose(c.enable_chunked_prefill, 1, 0), e.members.n[g])
    return both(seated(e, g), e.spent + tokens <= c.max_num_batched_tokens, back_needs(e, g) <= e.gpu.n - kept_free(e))


def given_back(e: Any, g: Any, back: Any) -> Any:
    """`ungiven[g]` once g is back, if it is."""
    return choose(both(back, negate(in_prefill(e, g))), 1, e.ungiven[g])


def in_front(d: Any, e: Any, g: Any) -> list[Clause]:
    """V0 puts g, which it has recomputed, before all that ever came."""
    waits = e.status[g] == W
    return [
        ("one_queue: before all that ever came", d.key[g] == choose(waits, -e.ticket, e.key[g])),
        ("one_queue: whoever comes next is before it", d.ticket == e.ticket + choose(waits, 1, 0)),
    ]


def returned(d: Any, e: Any, g: Any, q: Any) -> list[Clause]:
    """The table of sequence q of g, which has come back from the host: slots for its next token, and in V0 lookahead slots."""
    c, size, old = e.config, d.table.size_[g, q], e.table.size_[g, q]
    decoding = e.computed[g] == e.length[g]
    needed = old + choose(both(decoding, e.length[g] > e.span(old)), 1, 0)
    wish = both(decoding, c.vllm_v0, e.members.n[g] == 1)
    slots = e.length[g] + choose(wish, c.num_lookahead_slots, 0)
    return [
        ("table_length: with its next slots", size >= needed),
        ("table_length: V0 reserves lookahead slots", implies(wish, either(d.span(size) >= slots, d.gpu.n == 0))),
        ("table_length: and nobody else does", either(size == needed, both(wish, d.span(size - 1) < slots))),
    ]


def comeback(d: Any, e: Any, g: Any, went_on: Any) -> list[Clause]:
    """g, head of swapped, is ended, brought back, or has to wait."""
    never = back_needs(e, g) > e.config.num_gpu_blocks
    piece = least(e.length[g] - e.computed[g], e.config.max_num_batched_tokens - e.spent)
    tokens = choose(in_prefill(e, g), choose(e.config.enable_chunked_prefill, piece, 0), e.members.n[g])
    turn = either(e.config.vllm_v0, ahead_of(e, g, e.waiting))
    ended, back = both(turn, never), both(turn, negate(never), returnable(e, g))
    return [
        nobody_else_moves(d, e, g),
        (
            "infeasible_refused: exactly who can never come back, at its turn",
            d.status[g] == choose(ended, Status.FINISHED_CAPACITY, choose(back, R, S)),
        ),
        ("total: the step goes on exactly if it did something", iff(went_on, either(ended, back))),
        ("budget_exact: a token a sequence, or a piece", d.spent == e.spent + choose(back, tokens, 0)),
        ("budget_exact: its seats are taken in this pass", d.charged == e.charged + choose(back, e.seats[g], 0)),
        ("table_length: its table is given its last token", d.ungiven[g] == given_back(e, g, back)),
        (joins(d, e, g, d.running)[0], implies(back, joins(d, e, g, d.running)[1])),
        *((label, implies(back, clause)) for label, clause in returned(d, e, g, e.members.some(g))),
    ]


def piece(d: Any, e: Any, g: Any, went_on: Any) -> list[Clause]:
    """g, the first unfinished prefill, computes as much as the budget takes; after its last token it decodes."""
    left = e.config.max_num_batched_tokens - e.spent
    rest = e.work(g, e.length[g]) - e.computed[g]
    done = choose(left >= 1, least(rest, left), 0)
    return [
        nobody_else_moves(d, e, g),
        ("total: the step goes on exactly if it did something", iff(went_on, left >= 1)),
        ("budget_exact: as much as the budget takes", both(d.spent == e.spent + done, d.computed[g] == e.computed[g] + done)),
        ("recompute_keeps_output: it decodes after its last token", iff(d.prefilling.has_[g], rest > done)),
        ("recompute_keeps_output: and has its next token then", iff(d.sampling.has_[g], rest <= done)),
    ]


def quiet(e: Any) -> Truth:
    """Is there nothing to decide in the next pass of kvproof? Everybody runs and decodes, alone in its group; there are blocks
    for all that may need one, besides those that are kept; nobody is looked at for its limit; no test of an engine answers."""
    c = e.config
    plain = both(negate(c.vllm_v0), c.num_lookahead_slots == 0, negate(e.testing))
    decode = both(e.running.n >= 1, e.waiting.n == 0, e.swapped.n == 0, e.prefilling.n == 0)
    room = e.due_count() <= e.gpu.n - e.owing
    return both(plain, decode, negate(e.siblings()), room, negate(e.expiring(e.clock + 1)))


def forward_step(d: Any, e: Any, last: Any, went_on: Any, idle: Any) -> list[Clause]:
    """A step of several passes at once, up to epoch `last`. `idle`: passes in which nobody is looked at, if it has asked."""
    some = both(went_on, idle >= 1)
    moved = both(d.clock == e.clock + idle, d.epoch == e.epoch + idle, negate(d.prefilled))
    return [
        ("total: it goes on exactly while there is nothing to decide", iff(went_on, both(e.epoch < last, quiet(e)))),
        ("total: passes in which nobody is looked at move the clock", implies(some, moved)),
        ("total: else it is one pass", implies(both(went_on, idle < 1), d.epoch == e.epoch + 1)),
    ]
