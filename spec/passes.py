"""What one pass, and one commit, may do: clauses over the state before (`e`), the state after (`d`) and its plan (`d.plan`).

They add to `effects` what is said of a pass as a whole. `out_to` and `in_to` are the inverses of `out_of` and `in_of`.
"""

from typing import Any

from kvproof.core.status import Status
from kvproof.spec.decisions import exceeds, in_prefill, takes
from kvproof.spec.effects import (
    granted,
    hazards,
    known_slots,
    legal_moves,
    nobody_due,
    tokens_kept,
    victim_is_last,
    victims,
    wishes,
    written_kept,
)
from kvproof.spec.logic import Truth, both, choose, either, iff, implies, negate
from kvproof.spec.ownership import Clause, R, S, W, decodes, tokens_of, unfinished
from kvproof.spec.progress import order_kept
from kvproof.spec.promises import counted, may_go, protected_stay, whole


def free_by_then(d: Any, e: Any, b: Any) -> Truth:
    """Was b free before the pass, or of somebody who was ended or preempted by it, or lookahead slots that nobody has written?"""
    owner = e.table.group_of[b]
    i = e.table.index_of[b]
    wish = both(wishes(e), decodes(e, owner), i > 0, e.span(i) >= tokens_of(e, owner) - 1)
    return either(e.refs.of[b] == 0, d.plan.ended_[owner], d.plan.victim[owner], wish)


def swap_maps(d: Any, e: Any) -> list[Clause]:
    """Each way: no two pairs share a source or a target, sources are of who moves, targets were free, sharing is preserved."""
    p, t, s = d.plan, d.table, e.table

    def same_place(source: Any, target: Any) -> Truth:
        return both(e.refs.of[source] >= 1, s.group_of[source] == t.group_of[target], s.index_of[source] == t.index_of[target])

    def out(b: Any) -> Truth:
        return implies(
            p.out_of[b] != -1,
            lambda: both(
                p.out_to[p.out_of[b]] == b,
                e.refs.of[b] == 0,
                p.victim[t.group_of[b]],
                same_place(p.out_of[b], b),
                d.refs.of[b] == e.refs.of[p.out_of[b]],
            ),
        )

    def back(b: Any) -> Truth:
        return implies(
            p.in_of[b] != -1,
            lambda: both(
                p.in_to[p.in_of[b]] == b,
                free_by_then(d, e, b),
                p.back[t.group_of[b]],
                same_place(p.in_of[b], b),
                d.refs.of[b] <= e.refs.of[p.in_of[b]],
            ),
        )

    return [
        ("swap_map_bijective: out", d.forall("block", out, lambda b: [[p.out_of[b]]])),
        ("swap_map_bijective: in", d.forall("block", back, lambda b: [[p.in_of[b]]])),
    ]


def copies(d: Any, e: Any) -> list[Clause]:
    """A copy goes to a fresh block; no target is a source of the list."""
    p = d.plan

    def fresh(b: Any) -> Truth:
        return implies(p.copy_of[b] != -1, lambda: free_by_then(d, e, b))

    def apart(b: Any) -> Truth:
        return negate(both(p.copy_of[b] != -1, p.copied_from[b]))

    return [
        ("copy_target_exclusive: fresh", d.forall("block", fresh, lambda b: [[p.copy_of[b]]])),
        ("no_hazard_ordered: no target is a source", d.forall("block", apart, lambda b: [[p.copy_of[b]], [p.copied_from[b]]])),
    ]


def budget(d: Any) -> list[Clause]:
    """What the pass spent is what the plan holds, within both limits. `d.spent` of a concrete state is counted from the plan."""
    p, c = d.plan, d.config
    decode = d.spent == d.decoders - d.sampling.live - d.idle.live + p.total
    seats = either(d.running.weight <= c.max_num_seqs, both(c.vllm_v0, c.enable_chunked_prefill))
    return [
        ("budget_exact: the sum over the plan", choose(d.prefilled, d.spent == p.total, decode)),
        ("budget_exact: never above the limits", both(d.spent <= c.max_num_batched_tokens, seats)),
    ]


def reported(d: Any, e: Any) -> Clause:
    """The plan names exactly those whose status changed."""
    p = d.plan

    def clause(g: Any) -> Truth:
        return both(
            iff(p.victim[g], both(e.status[g] == R, either(d.status[g] == W, d.status[g] == S))),
            iff(p.back[g], both(e.status[g] == S, d.status[g] == R)),
            iff(p.ended_[g], both(unfinished(e, g), negate(unfinished(d, g)))),
            implies(both(e.status[g] == W, d.status[g] == R), p.piece[g] >= 1),
            implies(p.piece[g] >= 1, both(d.status[g] == R, d.computed[g] <= d.work(g, d.length[g]))),
        )

    return ("status_graph: the plan names every move", d.forall("group", clause, lambda g: [[d.status[g]], [e.status[g]]]))


def needs(e: Any, g: Any) -> Any:
    """Blocks that g holds once it has the slots of its next token; it has them already in the middle of its prefill."""
    has = either(e.prefilling.has_[g], both(e.status[g] == S, in_prefill(e, g)))
    return e.table.held[g] + choose(has, 0, takes(e, g, tokens_of(e, g)))


def refusals(d: Any, e: Any) -> Clause:
    """kvproof: who is ended cannot be served, by the pool alone."""
    c = d.config

    def refused(g: Any) -> Truth:
        new = e.length[g] == e.prompt[g]
        beyond = exceeds(e, g, c.num_gpu_blocks)
        too_long = either(e.prompt[g] > c.max_model_len, beyond)
        return both(
            implies(new, both(d.status[g] == Status.FINISHED_IGNORED, too_long)),
            either(new, both(d.status[g] == Status.FINISHED_CAPACITY, beyond)),
        )

    def ended(g: Any) -> Truth:
        kept = both(e.status[g] == S, negate(may_go(e, g)), whole(e, g) > c.num_gpu_blocks)
        return both(d.status[g] == Status.FINISHED_CAPACITY, either(kept, needs(e, g) > c.num_gpu_blocks))

    def clause(g: Any) -> Truth:
        return implies(
            d.plan.ended_[g],
            lambda: both(implies(e.status[g] == W, lambda: refused(g)), implies(e.status[g] != W, lambda: ended(g))),
        )

    return ("infeasible_refused: only who cannot be served", d.forall("group", clause, lambda g: [[d.plan.ended_[g]]]))


def progress(d: Any, e: Any) -> Clause:
    """kvproof: while anybody is unfinished, a pass schedules a token or ends somebody, or all that ran made way for the head."""
    nothing_to_do = both(e.waiting.n == 0, e.running.n == 0, e.swapped.n == 0)
    made_way = both(d.config.priority, e.running.n >= 1, d.running.n == 0, d.plan.victims >= 1)
    return ("no_deadlock: a token or an end", either(nothing_to_do, d.spent >= 1, d.plan.ends >= 1, made_way))


def of_pass(d: Any, e: Any, calm: Truth = True) -> list[Clause]:
    """Every clause about one pass; some only of profile kvproof, or (`calm`) if no event has struck it."""
    p = d.plan
    struck = negate(calm)
    undisturbed = [victim_is_last(d, e), progress(d, e), counted(d, e), protected_stay(d, e)]
    kvproof_only = [order_kept(d, e), refusals(d, e), *((name, either(struck, c)) for name, c in undisturbed)]
    return [
        ("status_graph: legal moves", legal_moves(d, e)),
        reported(d, e),
        tokens_kept(d, e),
        ("swap_preserves_view: contents are kept", written_kept(d, e)),
        *hazards(d),
        *swap_maps(d, e),
        *copies(d, e),
        *victims(d),
        *budget(d),
        ("no_swap_both_ways: nothing comes in when somebody went", either(p.victims == 0, p.ins == 0, d.config.vllm_v0)),
        (nobody_due(d)[0], either(d.prefilled, nobody_due(d)[1])),
        *((name, implies(negate(d.config.vllm_v0), c)) for name, c in kvproof_only),
    ]


def of_commit(d: Any, e: Any, got: Any, more: Any) -> list[Clause]:
    """Who was scheduled for a token and has a result (`got[g]`) advances by one, nobody else; who goes on keeps its status.

    more[g]: further tokens that lookahead gave it, if it decoded, as far as its lookahead slots and its limit allow. `ungiven[g]`
    is how many it had at once then.
    """

    def clause(g: Any) -> Truth:
        scheduled = choose(e.prefilled, e.sampling.has_[g], both(decodes(e, g), negate(e.idle.has_[g])))
        one, tokens = choose(both(scheduled, got[g]), 1, 0), tokens_of(e, g)
        decoded = both(one == 1, negate(e.prefilled), negate(e.sampling.has_[g]))
        besides = choose(decoded, granted(e, g, e.members.some(g), more[g]), 0)
        last = choose(besides > 0, besides + 1, e.ungiven[g])
        return implies(
            both(unfinished(e, g), unfinished(d, g)),
            lambda: both(d.status[g] == e.status[g], tokens_of(d, g) == tokens + one + besides, d.ungiven[g] == last),
        )

    return [
        ("recompute_keeps_output: results are counted once", d.forall("group", clause, lambda g: [[d.status[g]]])),
        known_slots(d, e, lambda g: got[g]),
    ]
