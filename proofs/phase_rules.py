"""Contracts of the three phases of a pass, and the rules of their loops."""

from typing import Any

from kvproof.core.status import Status
from kvproof.proofs.block_rules import CONTRACTS
from kvproof.proofs.block_shapes import assume
from kvproof.proofs.contracts import Clauses, Contract
from kvproof.proofs.frames import BLOCKS
from kvproof.proofs.group_rules import QUEUES, SERVE, in_running_phase, laws, no_new_tables, others_same
from kvproof.proofs.pass_rules import since
from kvproof.proofs.prefill_phase import before_running
from kvproof.proofs.prefill_rules import ADMIT_CONTRACT, SCHEDULE_PREFILLS, _idle_blocked, _owner_runs
from kvproof.proofs.rules import RULES, Rule
from kvproof.proofs.sym import forall, fresh, run
from kvproof.spec import decisions, effects
from kvproof.spec.logic import both, choose, either, implies, negate
from kvproof.spec.ownership import R, S, W, decodes


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

# --- swap-in ---------------------------------------------------------------------------------------
SWAP = (
    *BLOCKS,
    "status",
    "key",
    "ticket",
    "seqs",
    "decoders",
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
        ("plan_reports_tables: the plan names it", d.plan.back[g]),
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
            both(d.seqs + d.seats[g] <= d.config.max_num_seqs, d.spent + d.members.n[g] <= d.config.max_num_batched_tokens),
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
