"""Contracts of the functions that end, preempt and serve one group, and the rules of the loops of the running phase."""

from typing import Any

from kvproof.core.status import Status
from kvproof.proofs.block_rules import BLOCKS, CONTRACTS, PLAN_NUMBERS, frame_others, kept
from kvproof.proofs.contracts import Clauses, Contract
from kvproof.proofs.rules import RULES, Rule
from kvproof.proofs.sym import forall, fresh, run
from kvproof.spec import effects
from kvproof.spec.invariants import R, S, W, decodes, tokens_of, unfinished
from kvproof.spec.logic import both, choose, either, iff, implies, negate

QUEUES = ("waiting", "running", "swapped", "prefilling", "sampling")
LEAVE = (*BLOCKS, "status", "length", "seqs", "due", "expiry", *QUEUES, "plan")
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
        d.running.weight - d.prefilling.n >= decoding,
        either(d.running.n != 0, d.running.weight == 0),
        forall(1, lambda g: implies(d.running.has_[g], m.n[g] <= d.running.weight), lambda g: [[d.running.has_[g]]]),
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


def others_keep_tables(d: Any, e: Any, g: Any) -> Clauses:
    """The tables of other groups have not changed, nor what they hold."""
    t, s = d.table, e.table
    return [
        (
            "helper: other tables",
            forall(2, lambda h, q: either(h == g, t.size_[h, q] == s.size_[h, q]), lambda h, q: [[t.size_[h, q]]]),
        ),
        (
            "helper: other entries",
            forall(
                3,
                lambda h, q, i: implies(both(h != g, s.live(h, q, i)), t.at[h, q, i] == s.at[h, q, i]),
                lambda h, q, i: [[t.at[h, q, i]]],
            ),
        ),
        ("helper: others hold as much", forall(1, lambda h: either(h == g, t.held[h] == s.held[h]), lambda h: [[t.held[h]]])),
    ]


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
        ("budget_exact: seats given back", d.seqs == e.seqs - choose(e.status[g] == R, e.members.n[g], 0)),
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


# --- serve -----------------------------------------------------------------------------------------
def since(d: Any, e: Any) -> Clauses:
    """What the running phase has done between e and d, whoever was served."""
    p, o = d.plan, e.plan
    head = run().notes["head"]
    first = both(
        e.status[head] == R, forall(1, lambda t: implies(e.status[t] == R, e.key[head] <= e.key[t]), lambda t: [[e.status[t]]])
    )
    return [
        effects.moves(d, e, *RUN_MOVES),
        effects.tokens_kept(d, e),
        (
            "helper: who runs keeps its key and phase",
            forall(
                1,
                lambda t: implies(d.status[t] == R, both(d.key[t] == e.key[t], d.prefilling.has_[t] == e.prefilling.has_[t])),
                lambda t: [[d.status[t]]],
            ),
        ),
        (
            "victim_is_last: none below keeps running",
            forall(
                2,
                lambda v, t: implies(both(p.victim[v], negate(o.victim[v]), d.status[t] == R), e.key[t] < e.key[v]),
                lambda v, t: [[p.victim[v], d.status[t]]],
            ),
        ),
        (
            "victim_is_last: victims ran",
            forall(1, lambda v: implies(both(p.victim[v], negate(o.victim[v])), e.status[v] == R), lambda v: [[p.victim[v]]]),
        ),
        (
            "helper: only more preempted or ended",
            both(p.victims >= o.victims, p.ends >= o.ends, d.swapped.n >= e.swapped.n, p.total == o.total),
        ),
        ("helper: nobody enters its prefill", d.prefilling.n <= e.prefilling.n),
        (
            "no_deadlock: the head keeps running or ends",
            implies(both(negate(d.config.vllm_v0), first), either(d.status[head] == R, p.ends > o.ends)),
        ),
        ("helper: nobody runs, nobody is preempted", either(e.running.n >= 1, both(p.victims == o.victims, p.ends == o.ends))),
        ("swap_preserves_view: contents", effects.contents_kept(d, e)),
        no_new_tables(d, e),
        *bucket_shrinks(d, e),
        (
            "helper: nobody runs, nothing changes",
            implies(
                e.running.n == 0,
                both(
                    d.waiting.n == e.waiting.n,
                    d.swapped.n == e.swapped.n,
                    d.running.n == 0,
                    forall(
                        1, lambda t: both(d.status[t] == e.status[t], d.key[t] == e.key[t]), lambda t: [[d.status[t]], [d.key[t]]]
                    ),
                ),
            ),
        ),
    ]


def no_new_tables(d: Any, e: Any) -> tuple[str, Any]:
    """Who owned nothing owns nothing."""
    return (
        "helper: no new tables",
        forall(2, lambda g, q: implies(e.table.size_[g, q] == 0, d.table.size_[g, q] == 0), lambda g, q: [[d.table.size_[g, q]]]),
    )


def _make_room_inv(d: Any, e: Any, g: Any, blocks: Any) -> Clauses:
    run().notes["served"] = g
    t, s = d.table, e.table
    return [
        *in_running_phase(d),
        *since(d, e),
        ("helper: g still runs", both(d.status[g] == R, negate(d.prefilling.has_[g]), negate(d.plan.grown[g]))),
        (
            "helper: who has slots has them",
            forall(1, lambda h: d.plan.grown[h] == e.plan.grown[h], lambda h: [[d.plan.grown[h]]]),
        ),
        ("helper: the tables of g stay", forall(1, lambda q: t.size_[g, q] == s.size_[g, q], lambda q: [[t.size_[g, q]]])),
        (
            "helper: the entries of g stay",
            forall(2, lambda q, i: implies(s.live(g, q, i), t.at[g, q, i] == s.at[g, q, i]), lambda q, i: [[t.at[g, q, i]]]),
        ),
        ("helper: g holds as much", t.held[g] == s.held[g]),
    ]


def _make_room_cuts(d: Any, e: Any, g: Any, blocks: Any) -> Clauses:
    head = run().notes["head"]
    alone = forall(1, lambda t: implies(d.status[t] == R, t == g), lambda t: [[d.status[t]]])
    first = both(head == g, forall(1, lambda t: implies(e.status[t] == R, e.key[head] <= e.key[t]), lambda t: [[e.status[t]]]))
    fits = d.table.held[g] + blocks <= d.config.num_gpu_blocks
    b, t = run().notes["foreign"], d.table
    foreign = both(b >= 0, b < d.config.num_gpu_blocks, d.refs.of[b] >= 1, t.group_of[b] != g)
    h, q, i = t.owner_g[b, 0], t.owner_q[b, 0], t.owner_i[b, 0]
    return [
        (
            "no_deadlock: a used block has an owner",
            implies(foreign, both(t.live(h, q, i), t.at[h, q, i] == b, h == t.group_of[b])),
        ),
        ("no_deadlock: the owner of a GPU block runs", implies(foreign, d.status[h] == R)),
        ("no_deadlock: first and last is alone", implies(both(first, blocks > d.gpu.n), alone)),
        ("no_deadlock: alone, it holds all that is used", implies(alone, d.refs.used_gpu <= d.table.held[g])),
        ("no_deadlock: alone, it finds room", implies(both(first, fits), blocks <= d.gpu.n)),
    ]


RULES["make_room"] = Rule(PREEMPT, _make_room_inv, lambda d, g, blocks: (d.running.n, 0), laws, _make_room_cuts)


def serve_pre(d: Any, g: Any) -> Clauses:
    """When a group is served: in the running phase, it decodes, and who has slots already ranks before it."""
    return [
        *in_running_phase(d),
        ("helper: g decodes", decodes(d, g)),
        ("victim_not_in_plan: g has no new slots", negate(d.plan.grown[g])),
        (
            "victim_not_in_plan: who has slots ranks before g",
            forall(1, lambda t: implies(d.plan.grown[t], d.key[t] < d.key[g]), lambda t: [[d.plan.grown[t]], [d.key[t]]]),
        ),
    ]


def _serve_post(d: Any, e: Any, g: Any) -> Clauses:
    return [
        *in_running_phase(d),
        *since(d, e),
        ("table_length: g has its slots", implies(d.status[g] == R, d.alarm[g] > d.clock)),
        ("helper: others' alarms", forall(1, lambda h: either(h == g, d.alarm[h] == e.alarm[h]), lambda h: [[d.alarm[h]]])),
        (
            "victim_not_in_plan: only g has new slots",
            forall(1, lambda h: implies(d.plan.grown[h], either(h == g, e.plan.grown[h])), lambda h: [[d.plan.grown[h]]]),
        ),
    ]


def _find_post(d: Any, e: Any, g: Any, blocks: Any, found: Any) -> Clauses:
    t, s = d.table, e.table
    exceeds = s.held[g] + blocks > d.config.num_gpu_blocks
    single = e.members.n[g] == 1
    return [
        *in_running_phase(d),
        *since(d, e),
        (
            "total: if it found them g goes on, else it has left",
            choose(found, both(d.status[g] == R, negate(d.prefilling.has_[g]), d.gpu.n >= blocks), d.status[g] != R),
        ),
        (
            "helper: who has slots has them",
            forall(1, lambda h: d.plan.grown[h] == e.plan.grown[h], lambda h: [[d.plan.grown[h]]]),
        ),
        (
            "helper: the tables of g stay",
            forall(1, lambda q: implies(d.status[g] == R, t.size_[g, q] == s.size_[g, q]), lambda q: [[t.size_[g, q]]]),
        ),
        (
            "helper: the entries of g stay",
            forall(
                2,
                lambda q, i: implies(both(d.status[g] == R, s.live(g, q, i)), t.at[g, q, i] == s.at[g, q, i]),
                lambda q, i: [[t.at[g, q, i]]],
            ),
        ),
        (
            "infeasible_refused: a single sequence ends exactly if it exceeds the pool",
            implies(single, iff(d.status[g] == Status.FINISHED_CAPACITY, both(negate(d.config.vllm_v0), exceeds))),
        ),
        (
            "victim_is_last: it is recomputed only if blocks lack without it",
            implies(both(d.status[g] == W, single), d.gpu.n - s.held[g] < blocks),
        ),
        (
            "infeasible_refused: nobody is evicted for it",
            implies(both(negate(d.config.vllm_v0), exceeds), d.plan.victims == e.plan.victims),
        ),
    ]


FIND_CONTRACT = Contract(
    "running",
    "find_blocks",
    PREEMPT,
    lambda d, g, blocks: [*serve_pre(d, g), ("total: they are missing", blocks > d.gpu.n)],
    _find_post,
    lambda d: (fresh("g"), fresh("blocks")),
    uses=("preempt", "end"),
    answers=True,
)
SERVE_CONTRACT, SERVE_V0_CONTRACT = (
    Contract("running", name, SERVE, serve_pre, _serve_post, lambda d: (fresh("g"),), uses=("append_slots", "find_blocks"))
    for name in ("serve", "serve_v0")
)
for _c in (END, PREEMPT_CONTRACT, FIND_CONTRACT, SERVE_CONTRACT, SERVE_V0_CONTRACT):
    CONTRACTS[_c.function] = _c
