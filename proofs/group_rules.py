"""Contracts of the functions that end and preempt one group, or compute a piece of its prompt."""

from typing import Any

from kvproof.core.status import Status
from kvproof.proofs.contracts import Clauses, Contract
from kvproof.proofs.frames import alone, frame_others, kept, others_keep_tables
from kvproof.proofs.pass_frames import (
    COMPUTE,
    EVICT,
    LEAVE,
    PLAN_BUT_PIECES,
    bucket_shrinks,
    in_pass,
    no_new_tables,
    others_in_prefill,
    others_same,
    plan_keeps,
)
from kvproof.proofs.sym import forall, fresh, fresh_bool, run
from kvproof.spec import effects
from kvproof.spec.logic import both, choose, either, iff, implies, negate
from kvproof.spec.ownership import R, S, W, decodes, tokens_of, unfinished


# --- end -------------------------------------------------------------------------------------------
def _end_pre(d: Any, g: Any, outcome: Any) -> Clauses:
    passed = bool(run().notes.get("clock_passed"))
    return [
        *effects.everything(d, in_pass=True, clock_passed=passed),
        ("status_graph: an unfinished group ends", unfinished(d, g)),
        ("status_graph: as the table allows", ends_legally(d.status[g], outcome)),
        ("victim_not_in_plan: who ends is not in the plan", both(negate(d.plan.grown[g]), negate(d.plan.victim[g]))),
    ]


def ends_legally(status: Any, outcome: Any) -> Any:
    """May a group of this status end so?"""
    s = Status
    return either(
        both(status == W, either(outcome == s.FINISHED_IGNORED, outcome == s.FINISHED_CAPACITY, outcome == s.FINISHED_ABORTED)),
        both(
            status == R,
            either(
                *[outcome == x for x in (s.FINISHED_STOPPED, s.FINISHED_LENGTH_CAPPED, s.FINISHED_CAPACITY, s.FINISHED_ABORTED)]
            ),
        ),
        both(status == S, either(outcome == s.FINISHED_CAPACITY, outcome == s.FINISHED_ABORTED)),
    )


def _end_post(d: Any, e: Any, g: Any, outcome: Any) -> Clauses:
    passed = bool(run().notes.get("clock_passed"))
    return [
        *effects.everything(d, in_pass=True, clock_passed=passed),
        *others_same(d, e, g, ("status", "length")),
        *frame_others(d, e, g),
        *others_in_prefill(d, e, g),
        *plan_keeps(
            d,
            e,
            (
                "total",
                "victims",
                "left",
                "pieces",
                "outs",
                "ins",
                "copies",
                "victim",
                "grown",
                "piece",
                "first",
                "back",
                "out_of",
                "in_of",
                "copy_of",
                "copied_from",
            ),
        ),
        *bucket_shrinks(d, e),
        ("ownership_by_status: ended as said", d.status[g] == outcome),
        ("recompute_keeps_output: its token count stays", d.length[g] == tokens_of(e, g)),
        (
            "helper: others sample on",
            forall(1, lambda h: either(h == g, d.sampling.has_[h] == e.sampling.has_[h]), lambda h: [[d.sampling.has_[h]]]),
        ),
        (
            "helper: others are idle on",
            forall(1, lambda h: either(h == g, d.idle.has_[h] == e.idle.has_[h]), lambda h: [[d.idle.has_[h]]]),
        ),
        (
            "helper: sequences that sample",
            d.sampling.live == e.sampling.live - choose(e.sampling.has_[g], e.members.n[g], 0),
        ),
        ("infeasible_refused: reported", both(d.plan.ends == e.plan.ends + 1, d.plan.ended_[g])),
        (
            "helper: others' endings",
            forall(1, lambda h: either(h == g, d.plan.ended_[h] == e.plan.ended_[h]), lambda h: [[d.plan.ended_[h]]]),
        ),
        ("budget_exact: seats given back", d.seqs == e.seqs - choose(e.status[g] == R, e.seats[g], 0)),
        ("budget_exact: its sequences decode no more", d.decoders == e.decoders - choose(decodes(e, g), e.members.n[g], 0)),
        (
            "helper: queues shrink by it",
            both(
                d.running.n == e.running.n - choose(e.status[g] == R, 1, 0),
                d.waiting.n == e.waiting.n - choose(e.status[g] == W, 1, 0),
                d.swapped.n == e.swapped.n - choose(e.status[g] == S, 1, 0),
                d.prefilling.n == e.prefilling.n - choose(e.prefilling.has_[g], 1, 0),
            ),
        ),
        ("helper: pools only grow", both(d.gpu.n >= e.gpu.n, d.cpu.n >= e.cpu.n)),
        ("bounded_preemptions: nothing is kept for it", d.owing == e.owing - e.owed[g]),
    ]


END = Contract("groups", "end", LEAVE, _end_pre, _end_post, lambda d: (fresh("g"), fresh("outcome")), uses=("release",))


# --- a piece of a prompt ---------------------------------------------------------------------------
def _compute_post(d: Any, e: Any, g: Any, rest: Any) -> Clauses:
    p, o = d.plan, e.plan
    left = d.config.max_num_batched_tokens - e.spent
    amount = choose(rest <= left, rest, left)
    done = rest <= left
    return [
        *in_pass(d),
        *others_same(d, e, g, ("computed", "born", "alarm", "expires")),
        *others_in_prefill(d, e, g),
        *plan_keeps(d, e, PLAN_BUT_PIECES),
        ("budget_exact: charged what it computes", both(d.spent == e.spent + amount, p.total == o.total + amount, amount >= 1)),
        (
            "budget_exact: the plan says so",
            both(p.piece[g] == amount, p.pieces == o.pieces + 1, d.computed[g] == e.computed[g] + amount),
        ),
        kept("helper: others' pieces", p.piece, o.piece, g),
        kept("helper: others' first pieces", p.first, o.first, g),
        ("helper: is it the first piece?", iff(p.first[g], e.computed[g] == 0)),
        ("recompute_keeps_output: it decodes after its last token", iff(d.prefilling.has_[g], negate(done))),
        ("recompute_keeps_output: and samples then", iff(d.sampling.has_[g], either(done, e.sampling.has_[g]))),
        (
            "helper: others sample on",
            forall(1, lambda h: either(h == g, d.sampling.has_[h] == e.sampling.has_[h]), lambda h: [[d.sampling.has_[h]]]),
        ),
        (
            "helper: counted",
            both(
                d.prefilling.n == e.prefilling.n - choose(done, 1, 0),
                d.decoders == e.decoders + choose(done, d.members.n[g], 0),
                d.sampling.live == e.sampling.live + choose(done, d.members.n[g], 0),
                d.sampling.n == e.sampling.n + choose(done, 1, 0),
            ),
        ),
        ("recompute_keeps_output: its tokens stay", tokens_of(d, g) == tokens_of(e, g)),
        (
            "table_length: its alarm rings later, if it has not its token before",
            implies(done, d.alarm[g] >= d.clock + choose(d.config.enable_chunked_prefill, 1, 0)),
        ),
        *[(name, implies(d.config.enable_chunked_prefill, clause)) for name, clause in bucket_shrinks(d, e)],
    ]


COMPUTE_CONTRACT = Contract(
    "admission",
    "compute",
    COMPUTE,
    lambda d, g, rest: [
        *in_pass(d),
        ("helper: g is in its prefill", both(d.status[g] == R, d.prefilling.has_[g], negate(d.plan.victim[g]))),
        ("helper: what is left of it", rest == d.work(g, d.length[g]) - d.computed[g]),
        ("budget_exact: some budget is left", d.spent < d.config.max_num_batched_tokens),
    ],
    _compute_post,
    lambda d: (fresh("g"), fresh("rest")),
    lemma=lambda d, g, rest: alone(d, g),
)


# --- preempt ---------------------------------------------------------------------------------------
def _evict_post(d: Any, e: Any, g: Any, wish: Any) -> Clauses:
    p, o = d.plan, e.plan
    return [
        *in_pass(d),
        *others_same(d, e, g, ("status", "length", "computed", "key")),
        *others_keep_tables(d, e, g),
        *others_in_prefill(d, e, g),
        *plan_keeps(
            d,
            e,
            ("total", "pieces", "ins", "grown", "piece", "first", "back", "in_of", "copy_of", "copied_from", "copies"),
        ),
        *bucket_shrinks(d, e),
        (
            "helper: who samples and who is idle does on",
            forall(
                1,
                lambda h: both(d.sampling.has_[h] == e.sampling.has_[h], either(h == g, d.idle.has_[h] == e.idle.has_[h])),
                lambda h: [[d.sampling.has_[h]], [d.idle.has_[h]]],
            ),
        ),
        ("helper: sequences that sample", d.sampling.live == e.sampling.live),
        ("status_graph: a running group leaves", either(d.status[g] == W, d.status[g] == S)),
        ("recompute_keeps_output: its token count stays", d.length[g] == tokens_of(e, g)),
        (
            "recompute_keeps_output: what is swapped counts as computed",
            implies(d.status[g] == S, d.computed[g] == choose(e.prefilling.has_[g], e.computed[g], tokens_of(e, g))),
        ),
        (
            "victim_not_in_plan: others' victims",
            forall(1, lambda h: either(h == g, p.victim[h] == o.victim[h]), lambda h: [[p.victim[h]]]),
        ),
        ("total: it was preempted", both(p.victim[g], p.victims == o.victims + 1, p.ends == o.ends)),
        ("victim_not_in_plan: counted", p.left == o.left + choose(d.status[g] == S, 1, 0)),
        (
            "helper: one less runs",
            both(
                d.running.n == e.running.n - 1,
                d.swapped.n >= e.swapped.n,
                d.waiting.n >= e.waiting.n,
                d.prefilling.n == e.prefilling.n - choose(e.prefilling.has_[g], 1, 0),
                d.decoders == e.decoders - choose(e.prefilling.has_[g], 0, e.members.n[g]),
            ),
        ),
        (
            "conservation: the pool gets what it held",
            both(d.gpu.n >= e.gpu.n, implies(d.status[g] == W, d.gpu.n == e.gpu.n + e.table.held[g])),
        ),
        ("bounded_preemptions: nothing is kept for it", d.owing == e.owing - e.owed[g]),
        ("helper: kvproof keeps keys", either(d.config.vllm_v0, d.key[g] == e.key[g])),
        ("swap_preserves_view: contents", effects.contents_kept(d, e)),
        no_new_tables(d, e),
    ]


EVICT_CONTRACT = Contract(
    "running",
    "evict",
    EVICT,
    pre=lambda d, g, wish: [
        *in_pass(d),
        ("helper: the victim runs", d.status[g] == R),
        (
            "victim_not_in_plan: the victim is not in the plan",
            both(negate(d.plan.grown[g]), d.plan.piece[g] == 0, negate(d.plan.back[g]), negate(d.sampling.has_[g])),
        ),
        ("no_swap_both_ways: nothing has come in", d.plan.ins == 0),
    ],
    post=_evict_post,
    args=lambda d: (fresh("g"), fresh_bool("wish")),
    uses=("release", "move_group_out"),
)
