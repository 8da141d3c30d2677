"""Contracts of the prefills of a pass, and the rules of their loops."""

from typing import Any

from kvproof.proofs.contracts import Clauses, Contract
from kvproof.proofs.group_rules import laws, others_same
from kvproof.proofs.prefill_phase import ADMIT, COMPUTE, before_running, in_admission, in_prefill_phase, prefilled_since
from kvproof.proofs.rules import RULES, Rule
from kvproof.proofs.sym import forall, fresh, run
from kvproof.spec import decisions
from kvproof.spec.logic import both, choose, either, implies, negate
from kvproof.spec.ownership import R, S, W


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
                d.seqs + d.seats[g] <= d.config.max_num_seqs,
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
