"""For whom others make way when requests have priorities, exactly: over the state before (`e`) and after it (`d`).

g is the head of the line: in kvproof the first of all that wait or are swapped, in V0 the first that waits; it needs `blocks`.
"""

from typing import Any

from kvproof.spec.decisions import back_needs, kept_free, nobody_else_moves, seated
from kvproof.spec.logic import Truth, both, choose, either, iff, implies, negate
from kvproof.spec.ownership import Clause, R, W
from kvproof.spec.promises import needed as kept


def needed(e: Any, g: Any) -> Any:
    """GPU blocks that must be free for g to go on."""
    return choose(e.status[g] == W, kept(e, g, e.rows(g, e.length[g])), back_needs(e, g))


def kept_back(e: Any, g: Any, delay: Truth) -> Truth:
    """Would g not come in whoever makes way? It was preempted by this pass, waits too short a time, or will be refused."""
    too_long = e.prompt[g] > e.config.max_model_len
    return either(e.plan.victim[g], both(e.status[g] == W, either(delay, too_long)))


def makes_way(e: Any, g: Any, blocks: Any) -> Truth:
    """Has g room without all that rank below it and may go? Who ranks above it must leave it a token, if the step decodes too.

    If these are all that run, g will run alone and needs no watermark.
    """
    c, (freed, seats) = e.config, e.behind(g)
    mark = choose(e.seqs > seats, c.watermark_blocks, 0)
    room = blocks + mark <= e.gpu.n - e.owing + freed
    token = either(negate(c.enable_chunked_prefill), e.tokens_before(g) < c.max_num_batched_tokens)
    return both(token, room, e.seqs - seats + e.seats[g] <= c.max_num_seqs)


def lacks(e: Any, g: Any, blocks: Any) -> Truth:
    """Does g lack blocks or a seat?"""
    return negate(both(blocks <= e.gpu.n - kept_free(e), seated(e, g)))


def goes(e: Any, g: Any, blocks: Any, last: Any) -> Truth:
    """Must `last`, the last of those that run and may go, go? g lacks room, and ranks above it."""
    return both(e.running.n >= 1, lacks(e, g, blocks), e.rank(g) < e.rank(last))


def step(d: Any, e: Any, g: Any, blocks: Any, last: Any, went_on: Any) -> list[Clause]:
    """One step of making way: the tail of the running queue goes, or nobody does."""
    off = goes(e, g, blocks, last)
    return [
        ("total: the step goes on exactly if it did something", iff(went_on, off)),
        (
            "victim_is_last: the tail makes way, if it must",
            implies(both(e.running.n >= 1, last != g), iff(d.status[last] == R, negate(off))),
        ),
        nobody_else_moves(d, e, last),
        ("bounded_preemptions: it is counted", d.preemptions[last] == e.preemptions[last] + choose(off, 1, 0)),
    ]


def way(d: Any, e: Any, g: Any, blocks: Any, delay: Truth, last: Any) -> list[Clause]:
    """kvproof: nobody goes for a head that does not come in all the same, else as many as it needs.

    `last`: who runs last now.
    """
    somebody = both(e.running.n >= 1, either(e.waiting.n >= 1, e.swapped.n >= 1))
    may = both(somebody, negate(kept_back(e, g, delay)), makes_way(e, g, blocks))
    return _as_many(d, e, g, may, blocks, last)


def needed_v0(e: Any, g: Any) -> Any:
    """The same in V0: more than there are for one that is longer than the token budget."""
    long = e.work(g, e.length[g]) > e.config.max_num_batched_tokens
    return choose(long, e.config.num_gpu_blocks + 1, e.rows(g, e.length[g]))


def in_policy_order(d: Any, name: str) -> Truth:
    """Are the groups of this queue in the order of their ranks?"""
    has = getattr(d, name).has_

    def clause(t: Any, u: Any) -> Truth:
        return implies(both(has[t], has[u], d.key[t] < d.key[u]), lambda: d.rank(t) <= d.rank(u))

    return d.forall("neighbours", clause, lambda t, u: [[has[t], has[u]]])


def way_v0(d: Any, e: Any, g: Any, blocks: Any, last: Any) -> list[Clause]:
    """V0: whoever ranks below the head of waiting goes while it lacks room; all do if it is longer than the token budget."""
    order = both(in_policy_order(d, "running"), either(e.waiting.n == 0, in_policy_order(d, "waiting")))
    return [*_as_many(d, e, g, e.waiting.n >= 1, blocks, last), ("one_queue: V0's queues in policy order", order)]


def _as_many(d: Any, e: Any, g: Any, may: Truth, blocks: Any, last: Any) -> list[Clause]:
    same = d.forall("group", lambda t: d.status[t] == e.status[t], lambda t: [[d.status[t]]])
    return [
        ("victim_is_last: nobody goes for a head that does not come in", either(may, same)),
        ("victim_is_last: nobody goes for a head that has room", either(lacks(e, g, blocks), same)),
        ("victim_is_last: as many go as it needs", either(negate(may), negate(goes(d, g, blocks, last)))),
    ]
