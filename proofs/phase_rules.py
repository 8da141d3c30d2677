"""Contracts of the three phases of a pass, and the rules of their loops."""

from typing import Any

from kvproof.core.status import Status
from kvproof.proofs.block_rules import BLOCKS, CONTRACTS
from kvproof.proofs.contracts import Clauses, Contract
from kvproof.proofs.pass_rules import (
    QUEUES,
    SERVE,
    in_running_phase,
    laws,
    no_new_tables,
    others_same,
    plan_keeps,
    since,
)
from kvproof.proofs.rules import RULES, Rule
from kvproof.proofs.shapes import assume
from kvproof.proofs.sym import forall, fresh, run
from kvproof.spec import decisions, effects
from kvproof.spec.invariants import R, S, W, decodes
from kvproof.spec.logic import both, choose, either, iff, implies, negate


# --- the running phase -----------------------------------------------------------------------------
def _sweep_inv(d: Any, e: Any, passed: Any) -> Clauses:
    return [
        *in_running_phase(d),
        *since(d, e),
        (
            "table_length: who was served has its slots",
            forall(
                1, lambda t: implies(both(passed[t], decodes(d, t)), d.alarm[t] > d.clock), lambda t: [[passed[t]], [d.status[t]]]
            ),
        ),
        (
            "victim_not_in_plan: only who was served has new slots",
            forall(1, lambda t: implies(d.plan.grown[t], passed[t]), lambda t: [[d.plan.grown[t]]]),
        ),
    ]


RULES["serve"] = Rule(SERVE, _sweep_inv, laws=laws)
RULES["serve_all"] = Rule(SERVE, _sweep_inv, laws=laws)


def before_running(d: Any) -> Clauses:
    """Nothing is planned yet; refused requests may have been reported."""
    p = d.plan
    return [
        *effects.everything(d, in_pass=True),
        ("helper: no step is issued", negate(d.issued)),
        (
            "helper: nothing planned",
            both(p.victims == 0, p.ins == 0, p.outs == 0, p.copies == 0, p.pieces == 0, p.total == 0, p.ends >= 0),
        ),
        (
            "helper: nobody planned",
            forall(
                1,
                lambda t: both(
                    negate(p.victim[t]), negate(p.grown[t]), negate(p.back[t]), p.piece[t] == 0, negate(d.sampling.has_[t])
                ),
                lambda t: [[p.victim[t]], [p.grown[t]], [p.back[t]], [d.sampling.has_[t]]],
            ),
        ),
        (
            "helper: no pairs",
            forall(
                1,
                lambda b: both(p.copy_of[b] == -1, p.in_of[b] == -1, p.out_of[b] == -1, negate(p.copied_from[b])),
                lambda b: [[p.copy_of[b]], [p.in_of[b]], [p.out_of[b]], [p.copied_from[b]]],
            ),
        ),
    ]


def _running_post(d: Any, e: Any) -> Clauses:
    return [
        *in_running_phase(d),
        *since(d, e),
        effects.nobody_due(d),
        (
            "no_deadlock: a token, an end, or a prefill to go on with",
            implies(
                both(negate(d.config.vllm_v0), e.running.n >= 1),
                either(d.spent >= 1, d.plan.ends > e.plan.ends, d.prefilling.n >= 1),
            ),
        ),
        ("budget_exact: never above the limit", both(d.spent <= d.config.max_num_batched_tokens, d.spent >= 0)),
    ]


def _pick_head(d: Any) -> Clauses:
    """The ghost `head` is the first of the running queue, if anybody runs (every finite set has a first)."""
    head = run().notes["head"]
    return [
        (
            "helper: the head is first",
            either(
                d.running.n == 0,
                both(
                    d.status[head] == R,
                    forall(1, lambda t: implies(d.status[t] == R, d.key[head] <= d.key[t]), lambda t: [[d.status[t]]]),
                ),
            ),
        )
    ]


SCHEDULE_RUNNING = Contract(
    "running",
    "schedule_running",
    SERVE,
    lambda d: [*before_running(d), *_pick_head(d)],
    _running_post,
    lambda d: (),
    uses=("serve", "serve_v0"),
)

# --- prefills --------------------------------------------------------------------------------------
COMPUTE = ("computed", "spent", "plan", "prefilling", "born", "alarm", "due", "expires", "expiry", "sampling")
ADMIT = (*COMPUTE, *BLOCKS, "status", "key", "ticket", "seqs", "running", "waiting", "length", "swapped")


def in_prefill_phase(d: Any) -> Clauses:
    """What holds all through the prefills of a pass."""
    p = d.plan
    return [
        *effects.everything(d, in_pass=True),
        (
            "budget_exact: spent = sum of the plan",
            both(d.spent == p.total, d.spent >= 0, d.spent <= d.config.max_num_batched_tokens),
        ),
        ("helper: no step is issued", negate(d.issued)),
        (
            "no_shared_write: what is prefilled is exclusive",
            forall(
                3,
                lambda g, q, i: implies(both(p.piece[g] != 0, d.table.live(g, q, i)), d.refs.of[d.table.at[g, q, i]] == 1),
                lambda g, q, i: [[d.table.at[g, q, i]]],
            ),
        ),
        ("helper: nothing runs, nothing spent", either(d.running.n >= 1, d.spent == 0)),
        (
            "helper: nobody preempted, nothing swapped or copied",
            both(p.victims == 0, p.ins == 0, p.outs == 0, p.copies == 0, p.pieces >= 0),
        ),
        (
            "helper: no victims, nobody resumed",
            forall(1, lambda t: both(negate(p.victim[t]), negate(p.back[t])), lambda t: [[p.victim[t]], [p.back[t]]]),
        ),
        (
            "helper: only who runs is in the plan",
            forall(
                1,
                lambda t: both(
                    implies(p.piece[t] != 0, d.status[t] == R),
                    implies(p.grown[t], d.status[t] == R),
                    implies(d.sampling.has_[t], decodes(d, t)),
                ),
                lambda t: [[p.piece[t]], [p.grown[t]], [d.sampling.has_[t]]],
            ),
        ),
        (
            "helper: no copies",
            forall(
                1, lambda b: both(p.copy_of[b] == -1, negate(p.copied_from[b])), lambda b: [[p.copy_of[b]], [p.copied_from[b]]]
            ),
        ),
        (
            "helper: nothing spent, nothing planned",
            implies(
                d.spent == 0,
                both(
                    p.pieces == 0,
                    forall(
                        1,
                        lambda t: both(negate(p.grown[t]), p.piece[t] == 0, negate(d.sampling.has_[t])),
                        lambda t: [[p.grown[t]], [p.piece[t]], [d.sampling.has_[t]]],
                    ),
                ),
            ),
        ),
    ]


def in_admission(d: Any) -> Clauses:
    """The same once unfinished prefills have had their part."""
    return [*in_prefill_phase(d), ("helper: unfinished prefills went first", either(d.prefilling.n == 0, d.spent >= 1))]


def prefilled_since(d: Any, e: Any) -> Clauses:
    """What the prefills have done between e and d."""
    return [
        effects.moves(d, e, (W, R), (W, Status.FINISHED_IGNORED), (W, Status.FINISHED_CAPACITY)),
        effects.tokens_kept(d, e),
        ("swap_preserves_view: contents", effects.contents_kept(d, e)),
        (
            "helper: only more",
            both(d.spent >= e.spent, d.plan.ends >= e.plan.ends, d.running.n >= e.running.n, d.swapped.n == e.swapped.n),
        ),
        ("helper: nothing spent, no less room", implies(d.spent == e.spent, both(d.seqs == e.seqs, d.gpu.n >= e.gpu.n))),
        (
            "helper: no table is lost",
            forall(
                2,
                lambda g, q: implies(e.table.size_[g, q] >= 1, d.table.size_[g, q] >= 1),
                lambda g, q: [[d.table.size_[g, q]], [e.table.size_[g, q]]],
            ),
        ),
        (
            "helper: only more sample",
            forall(
                1,
                lambda t: implies(e.sampling.has_[t], d.sampling.has_[t]),
                lambda t: [[d.sampling.has_[t]], [e.sampling.has_[t]]],
            ),
        ),
        (
            "helper: nothing done, nothing changed",
            implies(
                both(d.spent == e.spent, d.plan.ends == e.plan.ends),
                both(
                    d.running.n == e.running.n,
                    d.prefilling.n == e.prefilling.n,
                    d.waiting.n == e.waiting.n,
                    forall(1, lambda t: d.status[t] == e.status[t], lambda t: [[d.status[t]]]),
                ),
            ),
        ),
        (
            "helper: who is swapped keeps its key",
            forall(1, lambda t: implies(e.status[t] == S, d.key[t] == e.key[t]), lambda t: [[d.key[t]]]),
        ),
        (
            "helper: who runs goes on",
            forall(
                1,
                lambda t: implies(e.status[t] == R, both(d.status[t] == R, d.key[t] == e.key[t])),
                lambda t: [[d.status[t]], [d.key[t]]],
            ),
        ),
        (
            "helper: nothing spent, the same run",
            implies(
                d.spent == e.spent,
                both(
                    d.running.n == e.running.n,
                    d.prefilling.n == e.prefilling.n,
                    forall(1, lambda t: iff(d.status[t] == R, e.status[t] == R), lambda t: [[d.status[t]]]),
                ),
            ),
        ),
    ]


def _left(d: Any) -> Any:
    return d.config.max_num_batched_tokens - d.spent


RULES["compute"] = Rule(
    COMPUTE,
    lambda d, e: [
        *in_prefill_phase(d),
        *prefilled_since(d, e),
        (
            "no_deadlock: an unfinished prefill goes on",
            either(d.spent > e.spent, both(d.prefilling.n == e.prefilling.n, d.spent == e.spent)),
        ),
    ],
    lambda d: (_left(d), 0),
    laws,
)


def _admit_post(d: Any, e: Any, g: Any, tokens: Any, blocks: Any) -> Clauses:
    return [
        *in_admission(d),
        *prefilled_since(d, e),
        *others_same(d, e, g, ("status", "key")),
        ("status_graph: it runs", d.status[g] == R),
        ("budget_exact: charged", both(d.spent > e.spent, d.plan.ends == e.plan.ends)),
        (
            "budget_exact: what it computes",
            d.spent == e.spent + decisions.least(e.length[g], d.config.max_num_batched_tokens),
        ),
        decisions.joins(d, e, g, d.running),
        ("helper: one less waits", both(d.waiting.n == e.waiting.n - 1, d.running.n == e.running.n + 1)),
    ]


ADMIT_CONTRACT = Contract(
    "admission",
    "admit",
    ADMIT,
    lambda d, g, tokens, blocks: [
        *in_admission(d),
        ("helper: g waits", both(d.status[g] == W, tokens == d.length[g])),
        ("table_length: blocks for all tokens", both(blocks >= 1, tokens <= d.span(blocks), d.span(blocks - 1) < tokens)),
        ("total: room", d.gpu.n >= blocks),
        (
            "budget_exact: room",
            both(
                d.seqs < d.config.max_num_seqs,
                choose(
                    tokens > d.config.max_num_batched_tokens,
                    both(d.spent == 0, negate(d.config.vllm_v0)),
                    d.spent + tokens <= d.config.max_num_batched_tokens,
                ),
            ),
        ),
    ],
    _admit_post,
    lambda d: (fresh("g"), fresh("tokens"), fresh("blocks")),
    uses=("allocate",),
)


PLAN_BUT_PIECES = (
    "victims",
    "ends",
    "outs",
    "ins",
    "copies",
    "victim",
    "ended_",
    "grown",
    "back",
    "out_of",
    "in_of",
    "copy_of",
    "copied_from",
)


def _go_on_inv(d: Any, e: Any) -> Clauses:
    p = d.plan
    return [
        *effects.everything(d, in_pass=True),
        *effects.victims(d),
        effects.tokens_kept(d, e),
        *plan_keeps(d, e, PLAN_BUT_PIECES),
        ("helper: no step is issued", negate(d.issued)),
        (
            "budget_exact: spent = sum of the plan",
            both(d.spent == p.total, d.spent >= 0, d.spent <= d.config.max_num_batched_tokens),
        ),
        (
            "helper: only who runs is in the plan",
            forall(
                1,
                lambda t: both(implies(p.piece[t] != 0, d.status[t] == R), implies(d.sampling.has_[t], decodes(d, t))),
                lambda t: [[p.piece[t]], [d.sampling.has_[t]]],
            ),
        ),
        (
            "no_shared_write: what is prefilled is exclusive",
            forall(
                3,
                lambda g, q, i: implies(both(p.piece[g] != 0, d.table.live(g, q, i)), d.refs.of[d.table.at[g, q, i]] == 1),
                lambda g, q, i: [[d.table.at[g, q, i]]],
            ),
        ),
        (
            "no_deadlock: an unfinished prefill goes on",
            either(d.spent > e.spent, both(d.prefilling.n == e.prefilling.n, d.spent == e.spent)),
        ),
        ("helper: nothing to go on with", implies(e.prefilling.n == 0, both(d.spent == e.spent, d.prefilling.n == 0))),
        (
            "helper: only more sample",
            forall(
                1,
                lambda t: implies(e.sampling.has_[t], d.sampling.has_[t]),
                lambda t: [[d.sampling.has_[t]], [e.sampling.has_[t]]],
            ),
        ),
        (
            "table_length: nobody is due but who was prefilled",
            forall(
                1, lambda t: implies(both(decodes(d, t), d.spent == e.spent), d.alarm[t] == e.alarm[t]), lambda t: [[d.alarm[t]]]
            ),
        ),
        (
            "helper: the same decode unless something was spent",
            implies(
                d.spent == e.spent,
                forall(1, lambda t: d.prefilling.has_[t] == e.prefilling.has_[t], lambda t: [[d.prefilling.has_[t]]]),
            ),
        ),
        (
            "helper: nothing spent, nobody samples",
            implies(
                d.spent == e.spent,
                forall(1, lambda t: d.sampling.has_[t] == e.sampling.has_[t], lambda t: [[d.sampling.has_[t]]]),
            ),
        ),
    ]


RULES["go_on"] = Rule(COMPUTE, _go_on_inv, lambda d: (_left(d), 0), laws)


def line_moves(d: Any, e: Any) -> Clauses:
    """No skipping: who still waits ranks behind all that were taken from waiting."""
    return [
        (
            "one_queue: nobody is skipped",
            forall(
                2,
                lambda t, u: implies(both(e.status[t] == W, d.status[t] != W, d.status[u] == W), e.key[t] < e.key[u]),
                lambda t, u: [[d.status[t], d.status[u]]],
            ),
        ),
        (
            "helper: who waits keeps its key",
            forall(
                1, lambda t: implies(d.status[t] == W, both(e.status[t] == W, d.key[t] == e.key[t])), lambda t: [[d.status[t]]]
            ),
        ),
    ]


def _idle_blocked(d: Any) -> Any:
    """kvproof, nothing runs: then whoever waits stands behind a swapped group."""

    def first_in_line(g: Any) -> Any:
        return both(
            d.status[g] == S, forall(1, lambda t: implies(d.status[t] == W, d.key[g] < d.key[t]), lambda t: [[d.status[t]]])
        )

    return either(d.waiting.n == 0, negate(forall(1, lambda g: negate(first_in_line(g)), lambda g: [[d.swapped.has_[g]]])))


def _owner_runs(d: Any) -> Any:
    b, t = run().notes["foreign"], d.table
    h, q, i = t.owner_g[b, 0], t.owner_q[b, 0], t.owner_i[b, 0]
    used = both(b >= 0, b < d.config.num_gpu_blocks, d.refs.of[b] >= 1)
    return implies(used, both(t.live(h, q, i), t.at[h, q, i] == b, d.status[h] == R, d.running.n >= 1))


RULES["admit"] = Rule(
    ADMIT,
    lambda d, e: [*in_admission(d), *prefilled_since(d, e), *line_moves(d, e)],
    lambda d: (d.waiting.n, 0),
    lambda d: [*laws(d), d.span_rises()],
    lambda d, e: [
        ("no_deadlock: the owner of a GPU block runs", _owner_runs(d)),
        ("no_deadlock: if nothing runs everything is free", implies(d.running.n == 0, d.gpu.n == d.config.num_gpu_blocks)),
        (
            "no_deadlock: if nothing runs, a swapped group is first in line",
            implies(both(negate(d.config.vllm_v0), d.running.n == 0), _idle_blocked(d)),
        ),
        decisions.left_waiting(d, run().notes["line"]),
    ],
)


def _prefills_post(d: Any, e: Any) -> Clauses:
    return [
        *in_prefill_phase(d),
        *prefilled_since(d, e),
        *line_moves(d, e),
        decisions.left_waiting(d, run().notes["line"]),
        ("no_deadlock: an unfinished prefill goes on", implies(e.prefilling.n >= 1, d.spent >= 1)),
        (
            "no_deadlock: nothing runs: a swapped group is first in line",
            implies(both(negate(d.config.vllm_v0), d.running.n == 0), _idle_blocked(d)),
        ),
    ]


SCHEDULE_PREFILLS = Contract(
    "schedule",
    "schedule_prefills",
    tuple(dict.fromkeys((*ADMIT, *COMPUTE))),
    lambda d: [*before_running(d), ("helper: nothing spent", d.spent == 0)],
    _prefills_post,
    lambda d: (),
    uses=("end", "admit"),
)

# --- swap-in ---------------------------------------------------------------------------------------
SWAP = (
    *BLOCKS,
    "status",
    "key",
    "ticket",
    "seqs",
    "spent",
    "born",
    "alarm",
    "due",
    "expires",
    "expiry",
    "length",
    *QUEUES,
    "plan",
    "twin",
)


def in_swap_phase(d: Any) -> Clauses:
    """What holds all through the swap-ins of a pass."""
    p = d.plan
    return [
        *effects.everything(d, in_pass=True),
        ("helper: no step is issued", negate(d.issued)),
        effects.decode_budget(d),
        effects.nobody_due(d),
        ("no_swap_both_ways: nobody was preempted", both(p.victims == 0, p.outs == 0, p.pieces == 0, p.total == 0)),
        ("budget_exact: never above the limit", both(d.spent >= 0, d.spent <= d.config.max_num_batched_tokens)),
        (
            "helper: no victims, no prefills",
            forall(
                1,
                lambda t: both(
                    negate(p.victim[t]),
                    p.piece[t] == 0,
                    negate(d.sampling.has_[t]),
                    implies(either(p.grown[t], p.back[t]), d.status[t] == R),
                ),
                lambda t: [[p.victim[t]], [p.piece[t]], [d.sampling.has_[t]], [p.grown[t]], [p.back[t]]],
            ),
        ),
    ]


def swapped_since(d: Any, e: Any) -> Clauses:
    """What the swap-ins have done between e and d."""
    return [
        effects.moves(d, e, (S, R), (S, Status.FINISHED_CAPACITY)),
        effects.tokens_kept(d, e),
        ("swap_preserves_view: contents", effects.contents_kept(d, e)),
        no_new_tables(d, e),
        (
            "helper: only more",
            both(d.spent >= e.spent, d.plan.ends >= e.plan.ends, d.waiting.n == e.waiting.n, d.prefilling.n == e.prefilling.n),
        ),
        (
            "helper: nothing done, nothing changed",
            implies(
                both(d.spent == e.spent, d.plan.ends == e.plan.ends),
                both(
                    d.running.n == e.running.n,
                    d.swapped.n == e.swapped.n,
                    forall(1, lambda t: d.status[t] == e.status[t], lambda t: [[d.status[t]]]),
                ),
            ),
        ),
        (
            "helper: who is swapped keeps its key",
            forall(
                1, lambda t: implies(either(d.status[t] == S, e.status[t] == W), d.key[t] == e.key[t]), lambda t: [[d.key[t]]]
            ),
        ),
    ]


RULES["swap_in_next"] = Rule(
    SWAP,
    lambda d, e: [*in_swap_phase(d), *swapped_since(d, e)],
    lambda d: (d.swapped.n, 0),
    laws,
    lambda d, e: [
        ("no_deadlock: the owner of a GPU block runs", _owner_runs(d)),
        ("no_deadlock: if nothing runs everything is free", implies(d.running.n == 0, d.gpu.n == d.config.num_gpu_blocks)),
        decisions.left_swapped(d, run().notes["line"]),
    ],
)


def _swap_in_post(d: Any, e: Any, g: Any) -> Clauses:
    return [
        *in_swap_phase(d),
        *swapped_since(d, e),
        *others_same(d, e, g, ("status", "key")),
        ("status_graph: it runs", d.status[g] == R),
        ("budget_exact: charged", both(d.spent == e.spent + e.members.n[g], d.spent > e.spent, d.plan.ends == e.plan.ends)),
        decisions.joins(d, e, g, d.running),
        ("helper: one less is swapped", both(d.swapped.n == e.swapped.n - 1, d.running.n == e.running.n + 1)),
    ]


def _swap_in_pre(d: Any, g: Any) -> Clauses:
    copies, w = d.table.pending_copies(g), fresh("row")
    assume(implies(d.members.n[g] >= 1, d.members.has_[g, w]))
    need = choose(d.length[g] > d.span(d.table.size_[g, w]), d.members.n[g], copies)
    return [
        *in_swap_phase(d),
        ("helper: g is swapped", d.status[g] == S),
        ("total: room for it and its next tokens", d.gpu.n >= d.table.held[g] + need),
        (
            "budget_exact: room",
            both(d.seqs + d.members.n[g] <= d.config.max_num_seqs, d.spent + d.members.n[g] <= d.config.max_num_batched_tokens),
        ),
    ]


SWAP_IN_CONTRACT = Contract(
    "swapping", "swap_in", SWAP, _swap_in_pre, _swap_in_post, lambda d: (fresh("g"),), uses=("append_slots", "move_group_in")
)


def _swapped_post(d: Any, e: Any) -> Clauses:
    idle = both(negate(d.config.vllm_v0), e.running.n == 0, e.spent == 0, e.swapped.n >= 1, _idle_blocked(e))
    return [
        *in_swap_phase(d),
        *swapped_since(d, e),
        (
            "no_deadlock: if nothing runs, the first in line comes back or ends",
            implies(idle, either(d.spent >= 1, d.plan.ends > e.plan.ends)),
        ),
        decisions.left_swapped(d, run().notes["line"]),
    ]


SCHEDULE_SWAPPED = Contract(
    "schedule", "schedule_swapped", SWAP, lambda d: in_swap_phase(d), _swapped_post, lambda d: (), uses=("swap_in", "end")
)
for _c in (ADMIT_CONTRACT, SWAP_IN_CONTRACT, SCHEDULE_RUNNING, SCHEDULE_PREFILLS, SCHEDULE_SWAPPED):
    CONTRACTS[_c.function] = _c
