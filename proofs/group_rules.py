"""Contracts of the functions that end and preempt one group, and what the phases of a pass have in common."""

from typing import Any

from kvproof.core.status import Status
from kvproof.proofs.contracts import Clauses, Contract
from kvproof.proofs.frames import BLOCKS, PLAN_NUMBERS, frame_others, kept, others_keep_tables
from kvproof.proofs.sym import forall, fresh, run
from kvproof.spec import effects
from kvproof.spec.logic import both, choose, either, implies, negate
from kvproof.spec.ownership import R, S, W, decodes, tokens_of, unfinished

QUEUES = ("waiting", "running", "swapped", "prefilling", "sampling")
LEAVE = (*BLOCKS, "status", "length", "seqs", "decoders", "due", "expiry", *QUEUES, "plan")
PREEMPT = (*LEAVE, "computed", "key", "ticket", "spent", "twin")
SERVE = (*PREEMPT, "alarm")


def laws(d: Any) -> list[Any]:
    """Laws of finite sets (`lemmas.py`), given the invariants: running groups, those in mid-prefill, their sequences."""
    w = fresh("decoding")
    m = d.members
    decoding = d.running.n - d.prefilling.n
    return [
        decoding >= 0,
        either(decoding == 0, decodes(d, w)),
        forall(1, lambda g: implies(decodes(d, g), decoding >= 1), lambda g: [[d.running.has_[g]], [d.status[g]]]),
        d.running.live - d.prefilling.live >= decoding,
        d.running.live <= d.running.weight,
        d.prefilling.live >= d.prefilling.n,
        either(d.running.n != 0, both(d.running.weight == 0, d.running.live == 0)),
        forall(1, lambda g: implies(d.running.has_[g], d.seats[g] <= d.running.weight), lambda g: [[d.running.has_[g]]]),
        forall(
            1,
            lambda g: implies(decodes(d, g), m.n[g] <= d.running.live - d.prefilling.live),
            lambda g: [[d.running.has_[g]], [d.status[g]]],
        ),
        # all used GPU blocks are those of one group, or one is not
        *_alone(d),
    ]


def _alone(d: Any) -> list[Any]:
    b = fresh("foreign")
    g = run().notes.get("served")
    run().notes["foreign"] = b
    if g is None:
        return [
            either(
                d.refs.used_gpu == 0,
                both(b >= 0, b < d.config.num_gpu_blocks, d.refs.of[b] >= 1, fresh("o") == d.table.owner_g[b, 0]),
            )
        ]
    return [
        either(
            d.refs.used_gpu <= d.table.held[g],
            both(
                b >= 0,
                b < d.config.num_gpu_blocks,
                d.refs.of[b] >= 1,
                d.table.group_of[b] != g,
                fresh("o") == d.table.owner_g[b, 0],
            ),
        ),
    ]


def others_same(d: Any, e: Any, g: Any, maps: tuple[str, ...]) -> Clauses:
    """These maps have changed at g only."""
    return [kept(f"helper: others keep {n}", getattr(d, n), getattr(e, n), g) for n in maps]


def others_in_prefill(d: Any, e: Any, g: Any) -> Clauses:
    """Nobody else has entered or left its prefill."""
    return [
        (
            "helper: others' prefills",
            forall(1, lambda h: either(h == g, d.prefilling.has_[h] == e.prefilling.has_[h]), lambda h: [[d.prefilling.has_[h]]]),
        )
    ]


def plan_keeps(d: Any, e: Any, names: tuple[str, ...]) -> Clauses:
    """These parts of the plan have not changed."""
    pairs = [(f"helper: plan keeps {n}", n in PLAN_NUMBERS, getattr(d.plan, n), getattr(e.plan, n)) for n in names]
    return [(label, a == b) if number else kept(label, a, b) for label, number, a, b in pairs]


def bucket_shrinks(d: Any, e: Any) -> Clauses:
    """Nobody new is due now or expires now."""
    return [
        (
            "helper: buckets of now only shrink",
            both(
                forall(
                    1, lambda h: implies(d.due.has_[d.clock, h], e.due.has_[e.clock, h]), lambda h: [[d.due.has_[d.clock, h]]]
                ),
                forall(
                    1,
                    lambda h: implies(d.expiry.has_[d.clock, h], e.expiry.has_[e.clock, h]),
                    lambda h: [[d.expiry.has_[d.clock, h]]],
                ),
            ),
        ),
    ]


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
                "pieces",
                "outs",
                "ins",
                "copies",
                "victim",
                "grown",
                "piece",
                "back",
                "out_of",
                "in_of",
                "copy_of",
                "copied_from",
            ),
        ),
        *bucket_shrinks(d, e),
        ("ownership_by_status: ended as said", d.status[g] == outcome),
        ("recompute_keeps_output: its token count stays", d.length[g] == tokens_of(e, g) - choose(e.sampling.has_[g], 1, 0)),
        (
            "helper: others sample on",
            forall(1, lambda h: either(h == g, d.sampling.has_[h] == e.sampling.has_[h]), lambda h: [[d.sampling.has_[h]]]),
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
    ]


END = Contract("groups", "end", LEAVE, _end_pre, _end_post, lambda d: (fresh("g"), fresh("outcome")), uses=("release",))

# --- preempt ---------------------------------------------------------------------------------------
RUN_MOVES = ((R, W), (R, S), (R, Status.FINISHED_CAPACITY))


def in_running_phase(d: Any) -> Clauses:
    """What holds all through the running phase."""
    return [
        *effects.everything(d, in_pass=True),
        ("helper: no step is issued", negate(d.issued)),
        effects.decode_budget(d),
        *effects.victims(d),
        ("no_swap_both_ways: nothing comes in", both(d.plan.ins == 0, d.plan.pieces == 0)),
        (
            "victim_not_in_plan: counted",
            both(
                either(d.plan.victims >= 1, d.plan.outs == 0),
                forall(1, lambda t: implies(d.plan.victim[t], d.plan.victims >= 1), lambda t: [[d.plan.victim[t]]]),
            ),
        ),
        (
            "victim_not_in_plan: who has slots runs",
            forall(1, lambda t: implies(d.plan.grown[t], d.status[t] == R), lambda t: [[d.plan.grown[t]]]),
        ),
        (
            "victim_not_in_plan: nobody resumed or prefilled",
            forall(
                1, lambda t: both(negate(d.plan.back[t]), d.plan.piece[t] == 0), lambda t: [[d.plan.back[t]], [d.plan.piece[t]]]
            ),
        ),
        ("helper: nobody samples yet", forall(1, lambda t: negate(d.sampling.has_[t]), lambda t: [[d.sampling.has_[t]]])),
    ]


def _preempt_post(d: Any, e: Any, g: Any) -> Clauses:
    p, o = d.plan, e.plan
    return [
        *in_running_phase(d),
        *others_same(d, e, g, ("status", "length", "computed", "key")),
        *others_keep_tables(d, e, g),
        *others_in_prefill(d, e, g),
        *plan_keeps(d, e, ("total", "pieces", "ins", "grown", "piece", "back", "in_of", "copy_of", "copied_from", "copies")),
        *bucket_shrinks(d, e),
        (
            "status_graph: a running group leaves",
            either(d.status[g] == W, d.status[g] == S, d.status[g] == Status.FINISHED_CAPACITY),
        ),
        ("recompute_keeps_output: its token count stays", d.length[g] == tokens_of(e, g)),
        (
            "victim_not_in_plan: others' victims",
            forall(1, lambda h: either(h == g, p.victim[h] == o.victim[h]), lambda h: [[p.victim[h]]]),
        ),
        (
            "total: it was preempted or it ended",
            either(
                both(p.victim[g], p.victims == o.victims + 1, p.ends == o.ends),
                both(negate(p.victim[g]), p.victims == o.victims, p.ends == o.ends + 1),
            ),
        ),
        (
            "helper: one less runs",
            both(
                d.running.n == e.running.n - 1,
                d.swapped.n >= e.swapped.n,
                d.prefilling.n == e.prefilling.n - choose(e.prefilling.has_[g], 1, 0),
            ),
        ),
        (
            "conservation: the pool gets what it held",
            both(d.gpu.n >= e.gpu.n, implies(d.status[g] == W, d.gpu.n == e.gpu.n + e.table.held[g])),
        ),
        ("helper: kvproof keeps keys", either(d.config.vllm_v0, d.key[g] == e.key[g])),
        ("swap_preserves_view: contents", effects.contents_kept(d, e)),
        no_new_tables(d, e),
        (
            "infeasible_refused: preemption ends no single sequence",
            implies(e.members.n[g] == 1, d.status[g] != Status.FINISHED_CAPACITY),
        ),
    ]


PREEMPT_CONTRACT = Contract(
    "running",
    "preempt",
    PREEMPT,
    pre=lambda d, g: [
        *in_running_phase(d),
        ("helper: the victim runs", both(d.status[g] == R)),
        ("victim_not_in_plan: the victim has no new slots", negate(d.plan.grown[g])),
    ],
    post=_preempt_post,
    args=lambda d: (fresh("g"),),
    uses=("release", "move_group_out", "end"),
)


def no_new_tables(d: Any, e: Any) -> tuple[str, Any]:
    """Who owned nothing owns nothing."""
    return (
        "helper: no new tables",
        forall(2, lambda g, q: implies(e.table.size_[g, q] == 0, d.table.size_[g, q] == 0), lambda g, q: [[d.table.size_[g, q]]]),
    )
