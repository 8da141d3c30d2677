"""What holds all through the prefills of a pass, and the rules of the loops that compute unfinished ones."""

from typing import Any

from kvproof.core.status import Status
from kvproof.proofs.contracts import Clauses
from kvproof.proofs.frames import BLOCKS
from kvproof.proofs.group_rules import laws, plan_keeps
from kvproof.proofs.rules import RULES, Rule
from kvproof.proofs.sym import forall
from kvproof.spec import effects
from kvproof.spec.logic import both, either, iff, implies, negate
from kvproof.spec.ownership import R, S, W, decodes


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


# --- prefills --------------------------------------------------------------------------------------
COMPUTE = ("computed", "spent", "decoders", "plan", "prefilling", "born", "alarm", "due", "expires", "expiry", "sampling")
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
        effects.prefills_exclusive(d),
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
        effects.prefills_exclusive(d),
        (
            "no_deadlock: an unfinished prefill goes on",
            either(d.spent > e.spent, both(d.prefilling.n == e.prefilling.n, d.spent == e.spent)),
        ),
        ("helper: nothing spent, as many decode", implies(d.spent == e.spent, d.decoders == e.decoders)),
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
