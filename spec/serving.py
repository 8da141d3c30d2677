"""What serving a group that runs decides, exactly, in both profiles: its next slots, lookahead slots, who goes for them, and how.

Clauses over the state before the step (`e`) and after it (`d`), as in `decisions`.
"""

from typing import Any

from kvproof.core.status import Status
from kvproof.spec.decisions import joins, least, nobody_else_moves, takes
from kvproof.spec.logic import Truth, both, choose, either, iff, implies, negate
from kvproof.spec.ownership import Clause, R, S, W, tokens_of
from kvproof.spec.promises import free, may_go


def host_need(e: Any, g: Any) -> Any:
    """Host blocks asked for to swap g out: those it holds; V0 asks for the next append of one that decodes as well."""
    more = both(e.config.vllm_v0, negate(e.prefilling.has_[g]))
    return e.table.held[g] + choose(more, takes(e, g, e.clock - e.born[g]), 0)


def gone(d: Any, e: Any, g: Any, wish: Any) -> list[Clause]:
    """g, which runs, is preempted as it is wished: swapped (`wish`) if that is possible, else recomputed.

    Several sequences in the middle of their recompute are not swapped.
    """
    possible = both(either(negate(e.prefilling.has_[g]), e.members.n[g] == 1), host_need(e, g) <= e.cpu.n)
    swapped = both(wish, possible)
    recomputed = negate(swapped)
    back, front = joins(d, e, g, d.swapped), _joins_line(d, e, g)
    return [
        ("total: as wished if possible", d.status[g] == choose(swapped, S, W)),
        (back[0], both(implies(swapped, back[1]), implies(recomputed, front))),
        ("recompute_keeps_output: nothing counts as computed", implies(recomputed, d.computed[g] == 0)),
        (
            "recompute_keeps_output: what is swapped counts as computed",
            implies(swapped, d.computed[g] == choose(e.prefilling.has_[g], e.computed[g], tokens_of(e, g))),
        ),
    ]


def mode(d: Any, e: Any, g: Any, wish: Any) -> list[Clause]:
    """g, which runs, is preempted as the policy wishes, and what it would have used of the budget is free."""
    unused = choose(either(e.config.vllm_v0, e.prefilling.has_[g]), 0, e.members.n[g])
    return [
        nobody_else_moves(d, e, g),
        *gone(d, e, g, wish),
        ("budget_exact: what it would have used is given back", d.spent == e.spent - unused),
        ("bounded_preemptions: it is counted", d.preemptions[g] == e.preemptions[g] + 1),
    ]


def forced(d: Any, e: Any, g: Any, how: Any, wish: Any) -> list[Clause]:
    """An event preempts g, if it runs: as the policy wishes (`how` 0), by recompute (1), or by swap (2)."""
    runs = e.status[g] == R
    stays = both(d.status[g] == e.status[g], d.plan.victims == e.plan.victims)
    swap = either(how == 2, both(how == 0, wish))
    return [
        nobody_else_moves(d, e, g),
        *((name, implies(runs, clause)) for name, clause in gone(d, e, g, swap)),
        ("total: only who runs is preempted by force", choose(runs, d.plan.victims == e.plan.victims + 1, stays)),
    ]


def _joins_line(d: Any, e: Any, g: Any) -> Truth:
    """V0: in front of all that wait, or (with chunked prefill, until the pass has admitted others) behind them."""

    def before(t: Any) -> Truth:
        return choose(e.config.enable_chunked_prefill, d.key[t] < d.key[g], d.key[g] < d.key[t])

    place = d.forall("group", lambda t: implies(both(d.waiting.has_[t], t != g), before(t)), lambda t: [[d.waiting.has_[t]]])
    return choose(e.config.vllm_v0, both(place, d.ticket == e.ticket + 1), both(d.key[g] == e.key[g], d.ticket == e.ticket))


def standing(d: Any, g: Any) -> Any:
    """V0, after a step of decodes and prompts: where running g stands. 0 not reached, 1 and 2 back from the host (decodes,
    prefills), 3 decodes, 4 and 5 prefills (done, not done), 6 new prefills."""
    p = d.plan
    going_on = choose(p.first[g], 6, choose(d.prefilling.has_[g], 5, 4))
    here = choose(p.piece[g] > 0, going_on, choose(d.prefilling.has_[g], 0, 3))
    return choose(d.idle.has_[g], 0, choose(p.back[g], choose(p.piece[g] > 0, 2, 1), here))


def chosen(e: Any, g: Any, last: Any, named: Any) -> Any:
    """Who makes way for g: whom the policy has `named`, if it may and that one runs, ranks below g and may go, else `last`."""
    fit = both(e.config.choose_victims, e.running.has_[named], e.key[g] < e.key[named], may_go(e, named))
    return choose(fit, named, last)


def victim(d: Any, e: Any, g: Any, blocks: Any, last: Any, named: Any, went_on: Any, denied: Truth) -> list[Clause]:
    """`last`, the last of those that run and may go, or who was `named`, is preempted for g, which lacks blocks, unless it is g.

    `denied`: does a test of an engine answer no to the next question whether g can append?
    """
    goes = both(negate(e.granted), last != g)
    v = chosen(e, g, last, named)
    return [
        nobody_else_moves(d, e, v),
        ("victim_is_last: the tail or who was named, but not g itself", iff(d.status[v] == R, negate(goes))),
        ("victim_is_last: nobody is preempted for one of lower rank", implies(goes, e.key[g] < e.key[v])),
        (
            "total: then it looks again",
            implies(went_on, iff(d.granted, both(blocks <= free(d, g), negate(both(e.testing, may_go(d, g), denied))))),
        ),
        ("total: the step goes on exactly if it did something", iff(went_on, goes)),
        ("bounded_preemptions: it is counted", d.preemptions[v] == e.preemptions[v] + choose(goes, 1, 0)),
    ]


def counted(d: Any, e: Any, g: Any) -> Any:
    """Sequences that V0 adds to those of the pass when it has served g: those that decode, or the seats of a prefill."""
    decoded = choose(d.idle.has_[g], 0, e.members.n[g])
    served = choose(e.prefilling.has_[g], choose(d.plan.piece[g] > 0, e.seats[g], 0), decoded)
    return choose(both(e.config.vllm_v0, d.status[g] == R), served, 0)


def prompt_v0(d: Any, e: Any, g: Any) -> list[Clause]:
    """V0 goes on with the prompt of g as far as the budget goes. It asks for a block if the prompt ends within one."""
    left, rest = e.config.max_num_batched_tokens - e.spent, e.work(g, e.length[g]) - e.computed[g]
    stops = either(e.stopped, left < 1)
    lacks = both(negate(stops), e.blocks_of(e.length[g]) - e.full_of(e.length[g]) > e.gpu.n)
    same = d.forall("group", lambda t: d.status[t] == e.status[t], lambda t: [[d.status[t]]])
    gone = either(d.plan.victims > e.plan.victims, d.plan.ends > e.plan.ends)
    tokens = choose(both(negate(stops), d.status[g] == R), least(rest, left), 0)
    return [
        ("victim_is_last: nobody leaves while there is room", implies(both(negate(e.testing), negate(lacks)), same)),
        ("victim_is_last: somebody leaves if there is none", implies(lacks, gone)),
        ("budget_exact: V0 stops when the budget is spent", iff(d.stopped, stops)),
        ("budget_exact: as much as the budget takes", d.spent == e.spent + tokens),
        (
            "recompute_keeps_output: so much counts as computed",
            implies(d.status[g] == R, d.computed[g] == e.computed[g] + tokens),
        ),
        ("budget_exact: V0 counts the sequences of the pass", d.charged == e.charged + counted(d, e, g)),
    ]


def wished(e: Any, g: Any) -> tuple[Truth, Any]:
    """Does g get lookahead slots, and how many slots in all does it wish for? kvproof's do not pass max_model_len."""
    single = both(negate(e.prefilling.has_[g]), negate(e.sampling.has_[g]), e.members.n[g] == 1)
    slots = e.clock - e.born[g] + e.config.num_lookahead_slots
    return single, choose(e.config.vllm_v0, slots, least(slots, e.config.max_model_len))


def ahead(d: Any, e: Any, g: Any, q: Any) -> list[Clause]:
    """g, which has the slots of its next token, gets lookahead slots as far as blocks are free. q: its sequence, if it has one
    only."""
    single, wanted = wished(e, g)
    size, old = d.table.size_[g, q], e.table.size_[g, q]
    same = d.forall("sequence", lambda h, p: d.table.size_[h, p] == e.table.size_[h, p], lambda h, p: [[d.table.size_[h, p]]])
    enough = either(d.span(size) >= wanted, d.gpu.n <= d.owing)
    return [
        ("table_length: lookahead slots as far as blocks are free", implies(single, enough)),
        ("table_length: and no more", implies(single, either(size == old, d.span(size - 1) < wanted))),
        (
            "table_length: looked at when it has outgrown them, and in kvproof when it would without them",
            implies(single, d.alarm[g] == choose(e.config.vllm_v0, d.born[g] + d.span(size) + 1, e.alarm[g])),
        ),
        ("table_length: others get none", either(single, both(same, d.alarm[g] == e.alarm[g]))),
    ]


def trimmed(d: Any, e: Any, g: Any, q: Any) -> list[Clause]:
    """g, if it decodes, gives back its lookahead slots, but for those that have become tokens: its alarm knows of the others.
    q: its sequence, if it has one only."""
    single, size = both(negate(e.prefilling.has_[g]), e.members.n[g] == 1), d.table.size_[g, q]
    slots, known = d.span(size), e.alarm[g] - e.born[g] - 1
    same = d.forall("sequence", lambda h, p: d.table.size_[h, p] == e.table.size_[h, p], lambda h, p: [[d.table.size_[h, p]]])
    return [
        (
            "table_length: unwritten lookahead slots go back",
            implies(single, either(size == 1, slots < known + d.config.block_size)),
        ),
        ("table_length: what is needed stays", implies(single, either(size == e.table.size_[g, q], known <= slots))),
        ("table_length: looked at when it has outgrown its table", implies(single, d.alarm[g] == d.born[g] + slots + 1)),
        ("table_length: others keep their slots", either(single, both(same, d.alarm[g] == e.alarm[g]))),
    ]


def service(d: Any, e: Any, g: Any) -> list[Clause]:
    """Nobody is preempted for g, which decodes, while the blocks that it needs are free (in V0: those that it touches).

    V0 leaves g idle when the token budget is spent.
    """
    tokens, c = e.clock - e.born[g], e.config
    needed = takes(e, g, tokens)
    asked = e.per_sequence(g, e.blocks_of(tokens + c.num_lookahead_slots) - e.full_of(tokens - e.ungiven[g]))
    blocks = choose(c.vllm_v0, asked, needed)
    idle = both(c.vllm_v0, either(e.stopped, c.max_num_batched_tokens - e.spent < e.members.n[g]))
    same = d.forall("group", lambda t: d.status[t] == e.status[t], lambda t: [[d.status[t]]])
    lacks = both(blocks > free(e, g), negate(idle))
    left = either(d.plan.victims > e.plan.victims, d.plan.ends > e.plan.ends)
    outgrown = both(negate(c.vllm_v0), e.table.held[g] + blocks > c.num_gpu_blocks)
    ended, recomputed = d.status[g] == Status.FINISHED_CAPACITY, d.status[g] == W
    served = both(c.vllm_v0, negate(idle), d.status[g] == R, e.members.n[g] == 1)
    slots, size = tokens + c.num_lookahead_slots, d.table.size_[g, e.members.some(g)]
    return [
        ("victim_is_last: nobody leaves while there is room", implies(both(negate(e.testing), negate(lacks)), same)),
        ("victim_is_last: somebody leaves if there is none", implies(lacks, left)),
        ("budget_exact: only V0 leaves anybody idle, when the budget is spent", iff(d.idle.has_[g], idle)),
        ("budget_exact: V0 stops there", iff(d.stopped, either(e.stopped, idle))),
        ("table_length: who is idle is looked at in the next step", implies(idle, d.alarm[g] == e.clock + 1)),
        ("table_length: V0 reserves lookahead slots", implies(served, either(d.span(size) >= slots, d.gpu.n == 0))),
        ("budget_exact: V0 charges as it goes", implies(c.vllm_v0, d.spent == e.spent + counted(d, e, g))),
        ("budget_exact: V0 counts the sequences of the pass", d.charged == e.charged + counted(d, e, g)),
        (
            "table_length: its table is given its last token",
            d.ungiven[g] == choose(both(c.vllm_v0, negate(idle), d.status[g] == R), 1, e.ungiven[g]),
        ),
        (
            "infeasible_refused: it ends exactly if it exceeds the pool",
            both(implies(ended, outgrown), implies(both(outgrown, lacks), ended)),
        ),
        (
            "victim_is_last: it is recomputed only if blocks lack without it",
            implies(both(recomputed, negate(e.testing)), d.gpu.n - d.owing - e.table.held[g] < blocks),
        ),
    ]
