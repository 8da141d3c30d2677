"""Contracts of the prefills of a pass, and the rules of their loops."""

from typing import Any

from kvproof.proofs.contracts import Clauses, Contract
from kvproof.proofs.pass_frames import COMPUTE, laws, others_same
from kvproof.proofs.prefill_phase import ADMIT, before_running, in_prefill_phase, prefilled_since
from kvproof.proofs.rules import RULES, Rule
from kvproof.proofs.sym import forall, fresh, run
from kvproof.spec import decisions, progress
from kvproof.spec.logic import both, either, implies, negate
from kvproof.spec.ownership import R, S, W, held_not_negative
from kvproof.spec.promises import needed


def _admit_post(d: Any, e: Any, g: Any, tokens: Any, blocks: Any) -> Clauses:
    return [
        *in_prefill_phase(d),
        *prefilled_since(d, e),
        *others_same(d, e, g, ("status", "key", "ungiven")),
        ("status_graph: it runs", d.status[g] == R),
        ("budget_exact: charged", both(d.spent > e.spent, d.plan.ends == e.plan.ends)),
        ("budget_exact: its seats are taken in this pass", d.charged == e.charged + e.seats[g]),
        ("recompute_keeps_output: its table is given all its tokens", d.ungiven[g] == 1),
        ("total: the delay counts from the last admission", d.marked),
        (
            "budget_exact: what it computes",
            d.spent == e.spent + decisions.least(tokens, d.config.max_num_batched_tokens - e.spent),
        ),
        decisions.joins(d, e, g, d.running),
        ("helper: one less waits", both(d.waiting.n == e.waiting.n - 1, d.running.n == e.running.n + 1)),
    ]


ADMIT_CONTRACT = Contract(
    "admission",
    "admit",
    ADMIT,
    lambda d, g, tokens, blocks: [
        *in_prefill_phase(d),
        ("helper: g waits", both(d.status[g] == W, tokens == d.work(g, d.length[g]), negate(d.plan.victim[g]))),
        ("table_length: blocks for all tokens", blocks == d.rows(g, d.length[g])),
        ("total: room", d.gpu.n - d.owing >= needed(d, g, blocks)),
        (
            "budget_exact: room",
            both(
                either(d.seqs + d.seats[g] <= d.config.max_num_seqs, both(d.config.vllm_v0, d.config.enable_chunked_prefill)),
                d.spent < d.config.max_num_batched_tokens,
                either(
                    negate(d.config.vllm_v0),
                    d.config.enable_chunked_prefill,
                    d.spent + tokens <= d.config.max_num_batched_tokens,
                ),
            ),
        ),
    ],
    _admit_post,
    lambda d: (fresh("g"), fresh("tokens"), fresh("blocks")),
    uses=("allocate", "rebuild", "compute"),
    laws=lambda d: [held_not_negative(d)],
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
            "head_advances: nobody comes in past who stays swapped",
            forall(
                2,
                lambda t, u: implies(
                    both(e.status[t] == W, d.status[t] == R, d.status[u] == S), either(d.config.vllm_v0, e.key[t] < e.key[u])
                ),
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


def swapped_head(d: Any, e: Any) -> tuple[str, Any]:
    """kvproof: while the first in line is swapped nobody is admitted."""
    h = run().notes["ahead"]
    head = both(negate(d.config.vllm_v0), leads(e, h), e.status[h] == S)
    return ("head_advances: nobody comes in past a swapped head of the line", implies(head, d.spent == e.spent))


def leads(d: Any, g: Any) -> Any:
    """Is g first of all that wait or are swapped?"""
    return both(
        either(d.status[g] == W, d.status[g] == S),
        forall(1, lambda t: implies(either(d.status[t] == W, d.status[t] == S), d.key[g] <= d.key[t]), lambda t: [[d.status[t]]]),
    )


def idle_blocked(d: Any) -> Any:
    """kvproof, nothing runs: then the head of the line (any group, if it is that) is swapped, or the pass has evicted it."""
    h = run().notes["ahead"]
    idle = both(negate(d.config.vllm_v0), d.running.n == 0)
    return implies(both(idle, leads(d, h)), either(d.status[h] == S, d.plan.victim[h]))


def _owner_runs(d: Any) -> Any:
    b, t = run().notes["foreign"], d.table
    h, q, i = t.owner_g[b, 0], t.owner_q[b, 0], t.owner_i[b, 0]
    used = both(b >= 0, b < d.config.num_gpu_blocks, d.refs.of[b] >= 1)
    return implies(used, both(t.live(h, q, i), t.at[h, q, i] == b, d.status[h] == R, d.running.n >= 1))


RULES["admit"] = Rule(
    ADMIT,
    lambda d, e: [*in_prefill_phase(d), *prefilled_since(d, e), *line_moves(d, e), swapped_head(d, e)],
    lambda d: (d.waiting.n, 0),
    lambda d: [*laws(d), d.span_rises()],
    lambda d, e: [
        ("no_deadlock: the owner of a GPU block runs", _owner_runs(d)),
        (
            "no_deadlock: if nothing runs everything is free",
            implies(d.running.n == 0, both(d.gpu.n == d.config.num_gpu_blocks, d.owing == 0)),
        ),
        ("no_deadlock: if nothing runs, the head of the line is swapped", idle_blocked(d)),
        decisions.left_waiting(d, run().notes["line"]),
    ],
)


def _admitted(d: Any, e: Any) -> Clauses:
    return [
        *in_prefill_phase(d),
        *prefilled_since(d, e),
        *line_moves(d, e),
        swapped_head(d, e),
        decisions.left_waiting(d, run().notes["line"]),
        ("no_deadlock: if nothing runs, the head of the line is swapped", idle_blocked(d)),
    ]


def _first_has_tokens(d: Any, e: Any) -> tuple[str, Any]:
    """The first unfinished prefill computes something if nothing else has but decodes: it has a seat itself."""
    head, c = run().notes["head"], d.config
    mixed = both(c.enable_chunked_prefill, negate(c.vllm_v0), e.plan.total == 0)
    begins = both(progress.first_prefill(e, head), either(mixed, e.spent == 0))
    return ("head_advances: the first prefill goes on", implies(begins, d.computed[head] > e.computed[head]))


def _went_on(d: Any, e: Any) -> Clauses:
    return [
        *in_prefill_phase(d),
        *prefilled_since(d, e),
        ("no_deadlock: an unfinished prefill goes on", implies(both(e.prefilling.n >= 1, e.spent == 0), d.spent >= 1)),
        _first_has_tokens(d, e),
        ("helper: nothing to go on with", implies(e.prefilling.n == 0, d.spent == e.spent)),
        (
            "helper: the line stays",
            both(
                d.waiting.n == e.waiting.n,
                forall(
                    1,
                    lambda t: both(d.status[t] == e.status[t], d.key[t] == e.key[t], d.prompt[t] == e.prompt[t]),
                    lambda t: [[d.status[t]], [d.key[t]]],
                ),
            ),
        ),
    ]


ADMIT_WAITING = Contract(
    "admission",
    "admit_waiting",
    ADMIT,
    in_prefill_phase,
    _admitted,
    lambda d: (),
    uses=("end", "admit"),
    laws=lambda d: [*laws(d), d.span_rises()],
)
GO_ON = Contract(
    "admission", "go_on_with_prefills", COMPUTE, in_prefill_phase, _went_on, lambda d: (), uses=("compute",), laws=laws
)


def _prefills_post(d: Any, e: Any) -> Clauses:
    return [
        *in_prefill_phase(d),
        *prefilled_since(d, e),
        *line_moves(d, e),
        decisions.left_waiting(d, run().notes["line"]),
        ("no_deadlock: an unfinished prefill goes on", implies(e.prefilling.n >= 1, d.spent >= 1)),
        _first_has_tokens(d, e),
        (swapped_head(d, e)[0], either(e.prefilling.n >= 1, swapped_head(d, e)[1])),
        ("no_deadlock: if nothing runs, the head of the line is swapped", idle_blocked(d)),
    ]


SCHEDULE_PREFILLS = Contract(
    "schedule",
    "schedule_prefills",
    tuple(dict.fromkeys((*ADMIT, *COMPUTE))),
    lambda d: [
        *before_running(d),
        ("helper: nothing spent", d.spent == 0),
        ("helper: a step of prefills", negate(d.config.enable_chunked_prefill)),
    ],
    _prefills_post,
    lambda d: (),
    uses=("admit_waiting", "go_on_with_prefills"),
)
