"""Contracts of the three phases of a pass, and the rules of their loops."""

from typing import Any

from kvproof.core.status import Status
from kvproof.proofs.block_rules import CONTRACTS
from kvproof.proofs.block_shapes import assume
from kvproof.proofs.contracts import Clauses, Contract
from kvproof.proofs.frames import BLOCKS, alone
from kvproof.proofs.pass_frames import (
    KEEP,
    QUEUES,
    SERVE,
    in_pass,
    in_running_phase,
    laws,
    no_new_tables,
    others_same,
    who_goes_is_named,
)
from kvproof.proofs.pass_rules import since, stops_late
from kvproof.proofs.prefill_phase import before_running
from kvproof.proofs.prefill_rules import ADMIT_CONTRACT, ADMIT_WAITING, GO_ON, SCHEDULE_PREFILLS, _owner_runs, leads
from kvproof.proofs.rules import RULES, Rule
from kvproof.proofs.sym import forall, fresh, run
from kvproof.spec import decisions, effects, progress
from kvproof.spec.invariants import whole_prompts
from kvproof.spec.logic import both, choose, either, iff, implies, negate
from kvproof.spec.ownership import R, S, W, decodes
from kvproof.spec.promises import needed


# --- the running phase -----------------------------------------------------------------------------
def _sweep_inv(d: Any, e: Any, passed: Any) -> Clauses:
    return [
        *in_running_phase(d),
        *since(d, e),
        stops_late(d),
        (
            "table_length: who was served has its slots",
            forall(
                1, lambda t: implies(both(passed[t], decodes(d, t)), d.alarm[t] > d.clock), lambda t: [[passed[t]], [d.status[t]]]
            ),
        ),
        (
            "victim_not_in_plan: only who was served has new slots",
            forall(
                1,
                lambda t: implies(either(d.plan.grown[t], d.plan.piece[t] != 0, d.sampling.has_[t], d.idle.has_[t]), passed[t]),
                lambda t: [[d.plan.grown[t]], [d.plan.piece[t]], [d.sampling.has_[t]], [d.idle.has_[t]]],
            ),
        ),
    ]


RULES["serve"] = Rule(SERVE, _sweep_inv, laws=laws)
RULES["serve_all"] = RULES["serve_asked"] = Rule(SERVE, _sweep_inv, laws=laws)


def _running_post(d: Any, e: Any) -> Clauses:
    return [
        *in_running_phase(d),
        *since(d, e),
        stops_late(d),
        effects.nobody_due(d),
        (
            "no_deadlock: a token, an end, or a prefill to go on with",
            implies(
                both(negate(d.config.vllm_v0), negate(d.testing), e.running.n >= 1),
                either(d.spent >= 1, d.plan.ends > e.plan.ends, d.prefilling.n >= 1),
            ),
        ),
        ("budget_exact: never above the limit", both(d.spent <= d.config.max_num_batched_tokens, d.spent >= 0)),
        ("helper: nothing runs, nothing spent", either(d.config.vllm_v0, d.running.n >= 1, d.spent == 0)),
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
    lambda d: before_running(d),
    _running_post,
    lambda d: (),
    uses=("serve", "serve_v0"),
    laws=lambda d: [*laws(d), *[law for _, law in _pick_head(d)]],
)

# --- swap-in ---------------------------------------------------------------------------------------
SWAP = (
    *BLOCKS,
    *KEEP,
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
    "computed",
    "charged",
    "ungiven",
)


def in_swap_phase(d: Any) -> Clauses:
    """What holds all through the swap-ins of a pass."""
    p, mixed = d.plan, d.config.enable_chunked_prefill
    return [
        *in_pass(d),
        whole_prompts(d),
        effects.decode_budget(d),
        effects.nobody_due(d),
        ("helper: nothing runs, nothing spent", either(d.config.vllm_v0, d.running.n >= 1, d.spent == 0)),
        ("no_swap_both_ways: nothing has gone out", both(p.left == 0, either(d.config.vllm_v0, p.victims == 0))),
        ("helper: pieces only in a mixed step", either(mixed, both(p.pieces == 0, p.total == 0))),
        (
            "helper: prefills only in a mixed step",
            either(
                mixed,
                forall(
                    1, lambda t: both(p.piece[t] == 0, negate(d.sampling.has_[t])), lambda t: [[p.piece[t]], [d.sampling.has_[t]]]
                ),
            ),
        ),
    ]


def _prefills_on(d: Any, e: Any, t: Any) -> Any:
    """t, which runs, is in its prefill if it was."""
    return d.prefilling.has_[t] == e.prefilling.has_[t]


def swapped_since(d: Any, e: Any) -> Clauses:
    """What the swap-ins have done between e and d."""
    return [
        effects.moves(d, e, (S, R), (S, Status.FINISHED_CAPACITY)),
        effects.tokens_kept(d, e),
        ("swap_preserves_view: contents", effects.contents_kept(d, e)),
        no_new_tables(d, e),
        who_goes_is_named(d, e),
        (
            "helper: only more",
            both(
                d.spent >= e.spent,
                d.plan.ends >= e.plan.ends,
                d.plan.victims == e.plan.victims,
                d.waiting.n == e.waiting.n,
                d.prefilling.n >= choose(mixed(d), 0, e.prefilling.n),
                d.running.n >= e.running.n,
            ),
        ),
        (
            "helper: who comes back computes, or its prefill goes on",
            either(d.running.n == e.running.n, d.spent > e.spent, both(negate(mixed(d)), d.prefilling.n >= 1)),
        ),
        progress.kept(d, e),
        (
            "helper: the same victims",
            forall(1, lambda t: iff(d.plan.victim[t], e.plan.victim[t]), lambda t: [[d.plan.victim[t]]]),
        ),
        (
            "helper: who runs goes on",
            forall(
                1,
                lambda t: implies(
                    e.status[t] == R,
                    both(d.status[t] == R, either(d.config.vllm_v0, d.key[t] == e.key[t]), _prefills_on(d, e, t)),
                ),
                lambda t: [[d.status[t]], [d.key[t]]],
            ),
        ),
        (
            "helper: nothing done, nothing changed",
            implies(
                both(d.plan.ends == e.plan.ends, d.running.n == e.running.n),
                both(
                    d.swapped.n == e.swapped.n,
                    d.spent == e.spent,
                    d.prefilling.n == e.prefilling.n,
                    forall(1, lambda t: d.key[t] == e.key[t], lambda t: [[d.key[t]]]),
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
    lambda d, e: [*in_swap_phase(d), *swapped_since(d, e), progress.order_kept(d, e)],
    lambda d: (d.swapped.n, 0),
    lambda d: [*laws(d), d.span_rises()],
    lambda d, e: [
        ("no_deadlock: the owner of a GPU block runs", _owner_runs(d)),
        (
            "no_deadlock: if nothing runs everything is free",
            implies(d.running.n == 0, both(d.gpu.n == d.config.num_gpu_blocks, d.owing == 0)),
        ),
        decisions.left_swapped(d, run().notes["line"]),
        _head_comes_in(d, e),
    ],
)


def _head_comes_in(d: Any, e: Any) -> tuple[str, Any]:
    """kvproof: if nothing runs, the first in line is not swapped any more."""
    h = run().notes["ahead"]
    idle = both(negate(d.config.vllm_v0), e.running.n == 0, e.spent == 0, leads(e, h))
    return ("head_advances: if nothing runs the first in line comes in", implies(idle, d.status[h] != S))


def mixed(d: Any) -> Any:
    """Does a step decode and compute parts of prompts?"""
    return d.config.enable_chunked_prefill


def _charge(e: Any, g: Any) -> Any:
    """What swapped g costs when it comes back."""
    piece = decisions.least(e.length[g] - e.computed[g], e.config.max_num_batched_tokens - e.spent)
    return choose(decisions.in_prefill(e, g), choose(mixed(e), piece, 0), e.members.n[g])


def _swap_in_post(d: Any, e: Any, g: Any) -> Clauses:
    return [
        *in_swap_phase(d),
        *swapped_since(d, e),
        *others_same(d, e, g, ("status", "key", "ungiven")),
        ("status_graph: it runs", d.status[g] == R),
        ("budget_exact: charged", both(d.spent == e.spent + _charge(e, g), d.plan.ends == e.plan.ends)),
        ("budget_exact: its seats are taken in this pass", d.charged == e.charged + e.seats[g]),
        ("table_length: its table is given its last token", d.ungiven[g] == decisions.given_back(e, g, True)),
        (
            "helper: in its prefill",
            d.prefilling.n >= e.prefilling.n + choose(both(decisions.in_prefill(e, g), negate(mixed(d))), 1, 0),
        ),
        decisions.joins(d, e, g, d.running),
        ("plan_reports_tables: the plan names it", d.plan.back[g]),
        *decisions.returned(d, e, g, d.members.some(g)),
        ("helper: one less is swapped", both(d.swapped.n == e.swapped.n - 1, d.running.n == e.running.n + 1)),
    ]


def _swap_in_pre(d: Any, g: Any) -> Clauses:
    copies, w = d.table.pending_copies(g), fresh("row")
    assume(implies(d.members.n[g] >= 1, d.members.has_[g, w]))
    need = choose(decisions.in_prefill(d, g), 0, choose(d.length[g] > d.span(d.table.size_[g, w]), d.members.n[g], copies))
    return [
        *in_swap_phase(d),
        ("helper: g is swapped", d.status[g] == S),
        ("total: room for it and its next tokens", d.gpu.n - d.owing >= needed(d, g, d.table.held[g] + need)),
        (
            "budget_exact: room",
            both(
                either(d.seqs + d.seats[g] <= d.config.max_num_seqs, both(d.config.vllm_v0, mixed(d))),
                either(decisions.in_prefill(d, g), d.spent + d.members.n[g] <= d.config.max_num_batched_tokens),
                either(negate(mixed(d)), d.spent < d.config.max_num_batched_tokens),
            ),
        ),
    ]


SWAP_IN_CONTRACT = Contract(
    "swapping",
    "swap_in",
    SWAP,
    _swap_in_pre,
    _swap_in_post,
    lambda d: (fresh("g"),),
    uses=("append_slots", "move_group_in", "compute", "look_ahead"),
    cuts=lambda d, e, g: alone(d, g),
)


def _swapped_post(d: Any, e: Any) -> Clauses:
    h = run().notes["ahead"]
    idle = both(negate(d.config.vllm_v0), e.running.n == 0, e.spent == 0, leads(e, h), e.status[h] == S)
    return [
        *in_swap_phase(d),
        *swapped_since(d, e),
        progress.order_kept(d, e),
        (
            "no_deadlock: if nothing runs, the first in line comes back or ends",
            implies(idle, either(d.spent >= 1, d.plan.ends > e.plan.ends, d.prefilling.n >= 1)),
        ),
        decisions.left_swapped(d, run().notes["line"]),
        _head_comes_in(d, e),
    ]


SCHEDULE_SWAPPED = Contract(
    "schedule", "schedule_swapped", SWAP, lambda d: in_swap_phase(d), _swapped_post, lambda d: (), uses=("swap_in", "end")
)
for _c in (ADMIT_CONTRACT, ADMIT_WAITING, GO_ON, SWAP_IN_CONTRACT, SCHEDULE_RUNNING, SCHEDULE_PREFILLS, SCHEDULE_SWAPPED):
    CONTRACTS[_c.function] = _c
