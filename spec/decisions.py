"""What one step of a pass decides, exactly, in both profiles: clauses over the state before the step (`e`) and after it (`d`).

A step looks at one group: the head of waiting, the head of swapped, an unfinished prefill, a group that must grow, a victim.
Each clause says "if and only if", so a step that waits where it could go on is as wrong as one that goes on where it must not.
"""

from typing import Any

from kvproof.core.status import Status
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


def kept_free(e: Any) -> Any:
    """The watermark, where it applies: kvproof drops it when nothing runs."""
    return choose(either(e.config.vllm_v0, e.running.n >= 1), e.config.watermark_blocks, 0)


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
        either(tokens > c.max_model_len, tokens > c.max_num_batched_tokens),
        e.prompt[g] > c.max_model_len,
    )
    return either(too_long, tokens > e.span(c.num_gpu_blocks - choose(c.vllm_v0, c.watermark_blocks, 0)))


def admissible(e: Any, g: Any, spent: Any) -> Truth:
    """Has the pass a seat, tokens and blocks for g, which waits? One longer than the whole budget needs all of it."""
    c, tokens = e.config, e.length[g]
    budget = choose(tokens > c.max_num_batched_tokens, spent == 0, spent + tokens <= c.max_num_batched_tokens)
    return both(e.seqs + e.seats[g] <= c.max_num_seqs, budget, tokens <= e.span(e.gpu.n - kept_free(e)))


def waits_its_turn(e: Any, g: Any) -> Truth:
    """Must g, head of waiting, let the swapped go first? In V0 always, in kvproof those that rank before it."""
    return negate(either(e.swapped.n == 0, both(negate(e.config.vllm_v0), ahead_of(e, g, e.swapped))))


def nobody_else_moves(d: Any, e: Any, g: Any) -> Clause:
    """The status of every other group is what it was."""
    return (
        "status_graph: nobody else moves",
        d.forall("group", lambda t: either(t == g, d.status[t] == e.status[t]), lambda t: [[d.status[t]]]),
    )


def admission(d: Any, e: Any, g: Any, went_on: Any) -> list[Clause]:
    """g, head of waiting, is refused, admitted, or waits. `went_on`: the step said that there may be more to do."""
    c, turn = e.config, negate(waits_its_turn(e, g))
    refused = both(turn, refusable(e, g))
    admitted = both(turn, negate(refusable(e, g)), admissible(e, g, e.spent))
    computed = least(e.length[g], c.max_num_batched_tokens)
    outcome = choose(e.length[g] > e.prompt[g], Status.FINISHED_CAPACITY, Status.FINISHED_IGNORED)
    return [
        nobody_else_moves(d, e, g),
        (
            "infeasible_refused: exactly who can never be admitted, at its turn",
            d.status[g] == choose(refused, outcome, choose(admitted, R, W)),
        ),
        ("total: the step goes on exactly if it did something", iff(went_on, either(refused, admitted))),
        ("budget_exact: charged what it computes", d.spent == e.spent + choose(admitted, computed, 0)),
        (joins(d, e, g, d.running)[0], implies(admitted, joins(d, e, g, d.running)[1])),
    ]


def first_of(e: Any, g: Any, has: Any) -> Truth:
    """Does nobody of whom `has` is true rank before g?"""
    return e.forall("group", lambda t: implies(has(t), e.key[g] <= e.key[t]), lambda t: [[e.status[t]]])


def left_waiting(d: Any, g: Any) -> Clause:
    """When a pass has admitted whom it could: g, if it is the head of waiting, has to wait its turn or cannot be admitted."""
    head = both(d.status[g] == W, first_of(d, g, lambda t: d.status[t] == W))
    blocked = either(waits_its_turn(d, g), both(negate(refusable(d, g)), negate(admissible(d, g, d.spent))))
    return ("one_queue: nobody waits in vain", implies(head, blocked))


def left_swapped(d: Any, g: Any) -> Clause:
    """When a pass has brought back whom it could: g, if it is the head of swapped, has to wait its turn or cannot come back."""
    head = both(d.status[g] == S, first_of(d, g, lambda t: d.status[t] == S))
    turn = either(d.config.vllm_v0, ahead_of(d, g, d.waiting))
    never = d.table.held[g] + takes(d, g, d.length[g]) > d.config.num_gpu_blocks
    return ("one_queue: nobody stays swapped in vain", implies(both(head, turn), both(negate(never), negate(returnable(d, g)))))


def prefill_turn(e: Any) -> Truth:
    """May a pass from e prefill? kvproof decodes after a prefill step, if anybody can decode."""
    return either(e.config.vllm_v0, negate(e.prefilled), e.running.n == e.prefilling.n)


def turns(d: Any, e: Any, g: Any) -> list[Clause]:
    """What a pass does first, and that it leaves nobody in line who could go on: g is any group."""
    stays = both(e.status[g] == W, d.status[g] == W)
    head = both(stays, first_of(e, g, lambda t: both(e.status[t] == W, d.status[t] == W)))
    before = either(waits_its_turn(e, g), both(negate(refusable(e, g)), negate(admissible(e, g, 0))))
    back = both(negate(d.prefilled), d.plan.victims == 0)
    admitted = d.forall(
        "group", lambda t: negate(both(e.status[t] == W, d.status[t] == R)), lambda t: [[d.status[t]], [e.status[t]]]
    )
    return [
        ("one_queue: who decodes is not passed over", either(prefill_turn(e), admitted)),
        ("one_queue: an unfinished prefill goes first", implies(both(prefill_turn(e), e.prefilling.n >= 1), d.prefilled)),
        (
            "one_queue: nobody waits in vain",
            implies(
                both(head, prefill_turn(e)),
                either(both(d.prefilled, left_waiting(d, g)[1]), both(negate(d.prefilled), before)),
            ),
        ),
        ("one_queue: nobody stays swapped in vain", implies(back, left_swapped(d, g)[1])),
    ]


def returnable(e: Any, g: Any) -> Truth:
    """Has the pass seats, tokens and blocks for swapped group g and its next tokens?"""
    c, n = e.config, e.members.n[g]
    blocks = e.table.held[g] + takes(e, g, e.length[g])
    return both(e.seqs + e.seats[g] <= c.max_num_seqs, e.spent + n <= c.max_num_batched_tokens, blocks <= e.gpu.n - kept_free(e))


def comeback(d: Any, e: Any, g: Any, went_on: Any) -> list[Clause]:
    """g, head of swapped, is ended, brought back, or has to wait."""
    never = e.table.held[g] + takes(e, g, e.length[g]) > e.config.num_gpu_blocks
    turn = either(e.config.vllm_v0, ahead_of(e, g, e.waiting))
    ended, back = both(turn, never), both(turn, negate(never), returnable(e, g))
    return [
        nobody_else_moves(d, e, g),
        (
            "infeasible_refused: exactly who can never come back, at its turn",
            d.status[g] == choose(ended, Status.FINISHED_CAPACITY, choose(back, R, S)),
        ),
        ("total: the step goes on exactly if it did something", iff(went_on, either(ended, back))),
        ("budget_exact: a token a sequence", d.spent == e.spent + choose(back, e.members.n[g], 0)),
        (joins(d, e, g, d.running)[0], implies(back, joins(d, e, g, d.running)[1])),
    ]


def piece(d: Any, e: Any, g: Any, went_on: Any) -> list[Clause]:
    """g, the first unfinished prefill, computes as much as the budget takes; after its last token it decodes."""
    left = e.config.max_num_batched_tokens - e.spent
    rest = e.length[g] - e.computed[g]
    done = choose(left >= 1, least(rest, left), 0)
    return [
        nobody_else_moves(d, e, g),
        ("total: the step goes on exactly if it did something", iff(went_on, left >= 1)),
        ("budget_exact: as much as the budget takes", both(d.spent == e.spent + done, d.computed[g] == e.computed[g] + done)),
        ("recompute_keeps_output: it decodes after its last token", iff(d.prefilling.has_[g], rest > done)),
        ("recompute_keeps_output: and has its next token then", iff(d.sampling.has_[g], rest <= done)),
    ]


def host_need(e: Any, g: Any) -> Any:
    """Host blocks asked for to swap g, which decodes, out: those it holds; V0 asks for its next append as well."""
    more = choose(e.config.vllm_v0, takes(e, g, e.clock - e.born[g]), 0)
    return e.table.held[g] + more


def mode(d: Any, e: Any, g: Any, wish: Any) -> list[Clause]:
    """g, which runs, is preempted as the policy wishes (`wish`: swap), if that is possible, else in the other way; or it ends."""
    single = e.members.n[g] == 1
    swappable = both(negate(e.prefilling.has_[g]), host_need(e, g) <= e.cpu.n)
    swapped = both(either(wish, negate(single)), swappable)
    recomputed = both(negate(swapped), single)
    back, front = joins(d, e, g, d.swapped), _joins_front(d, e, g)
    return [
        nobody_else_moves(d, e, g),
        ("total: as wished if possible", d.status[g] == choose(swapped, S, choose(recomputed, W, Status.FINISHED_CAPACITY))),
        (back[0], both(implies(swapped, back[1]), implies(recomputed, front))),
        (
            "budget_exact: what it would have used is given back",
            d.spent == e.spent - choose(e.prefilling.has_[g], 0, e.members.n[g]),
        ),
        ("recompute_keeps_output: nothing counts as computed", implies(recomputed, d.computed[g] == 0)),
    ]


def _joins_front(d: Any, e: Any, g: Any) -> Truth:
    first = d.forall(
        "group", lambda t: implies(both(d.waiting.has_[t], t != g), d.key[g] < d.key[t]), lambda t: [[d.waiting.has_[t]]]
    )
    return choose(e.config.vllm_v0, both(first, d.ticket == e.ticket + 1), both(d.key[g] == e.key[g], d.ticket == e.ticket))


def victim(d: Any, e: Any, g: Any, blocks: Any, last: Any, went_on: Any) -> list[Clause]:
    """`last`, the tail of the running queue, is preempted if g lacks blocks and is not the tail itself."""
    lacks = both(blocks > e.gpu.n, last != g)
    return [
        nobody_else_moves(d, e, last),
        ("victim_is_last: preempted exactly if blocks lack", iff(d.status[last] == R, negate(lacks))),
        ("total: the step goes on exactly if it did something", iff(went_on, lacks)),
    ]


def service(d: Any, e: Any, g: Any) -> list[Clause]:
    """Nobody is preempted for g, which decodes, while the blocks that it needs are free; V0 asks for one a sequence always."""
    blocks = choose(e.config.vllm_v0, e.members.n[g], takes(e, g, e.clock - e.born[g]))
    same = d.forall("group", lambda t: d.status[t] == e.status[t], lambda t: [[d.status[t]]])
    exceeds = both(negate(e.config.vllm_v0), e.table.held[g] + blocks > e.config.num_gpu_blocks)
    recomputed = both(d.status[g] == W, e.members.n[g] == 1)
    return [
        ("victim_is_last: nobody leaves while there is room", implies(blocks <= e.gpu.n, same)),
        (
            "infeasible_refused: a single sequence ends exactly if it exceeds the pool",
            implies(e.members.n[g] == 1, iff(d.status[g] == Status.FINISHED_CAPACITY, both(exceeds, blocks > e.gpu.n))),
        ),
        (
            "victim_is_last: it is recomputed only if blocks lack without it",
            implies(recomputed, d.gpu.n - e.table.held[g] < blocks),
        ),
    ]
