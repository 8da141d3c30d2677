"""What holds all through the prefills of a pass, and the rules of the loops that compute unfinished ones."""

from typing import Any

from kvproof.core.status import Status
from kvproof.proofs.contracts import Clauses
from kvproof.proofs.frames import BLOCKS
from kvproof.proofs.pass_frames import COMPUTE, KEEP, PLAN_BUT_PIECES, in_pass, laws, plan_keeps, who_goes_is_named
from kvproof.proofs.rules import RULES, Rule
from kvproof.proofs.sym import forall, run
from kvproof.spec import effects, progress
from kvproof.spec.invariants import whole_prompts
from kvproof.spec.logic import both, choose, either, iff, implies, negate
from kvproof.spec.ownership import R, S, W, decodes


def before_running(d: Any) -> Clauses:
    """Nothing is planned yet; requests may have been refused, and somebody preempted by force or for a head of higher rank."""
    p = d.plan
    return [
        *in_pass(d),
        whole_prompts(d),
        ("helper: nothing planned", both(p.ins == 0, p.copies == 0, p.pieces == 0, p.total == 0, p.ends >= 0)),
        (
            "helper: nobody planned",
            forall(
                1,
                lambda t: both(
                    negate(p.grown[t]), negate(p.back[t]), p.piece[t] == 0, negate(d.sampling.has_[t]), negate(d.idle.has_[t])
                ),
                lambda t: [[p.grown[t]], [p.back[t]], [p.piece[t]], [d.sampling.has_[t]], [d.idle.has_[t]]],
            ),
        ),
        (
            "helper: no pairs",
            forall(
                1,
                lambda b: both(p.copy_of[b] == -1, p.in_of[b] == -1, negate(p.copied_from[b])),
                lambda b: [[p.copy_of[b]], [p.in_of[b]], [p.copied_from[b]]],
            ),
        ),
    ]


# --- prefills --------------------------------------------------------------------------------------
ADMIT = (
    *dict.fromkeys(
        (*COMPUTE, *BLOCKS, *KEEP, "status", "key", "ticket", "seqs", "running", "waiting", "length", "swapped", "idle"),
    ),
    *("charged", "ungiven", "delay", "marked"),
)


def in_prefill_phase(d: Any) -> Clauses:
    """What holds all through the prefills of a pass: of one of prefills alone, or of one that decodes too."""
    p, mixed = d.plan, d.config.enable_chunked_prefill
    due, budget = effects.nobody_due(d), effects.decode_budget(d)

    def alone(t: Any) -> Any:
        nothing = both(negate(p.grown[t]), p.piece[t] == 0, negate(d.sampling.has_[t]))
        return both(negate(p.back[t]), negate(d.idle.has_[t]), either(d.spent != 0, nothing))

    return [
        *in_pass(d),
        whole_prompts(d),
        (budget[0], choose(mixed, budget[1], d.spent == p.total)),
        (due[0], implies(mixed, due[1])),
        ("helper: nothing runs, nothing spent", either(both(mixed, d.config.vllm_v0), d.running.n >= 1, d.spent == 0)),
        ("helper: alone, nothing swapped in or copied", either(mixed, both(p.ins == 0, p.copies == 0, p.pieces >= 0))),
        (
            "helper: alone, nobody resumed; nothing spent, nothing planned",
            either(
                mixed,
                forall(1, alone, lambda t: [[p.back[t]], [p.grown[t]], [p.piece[t]], [d.sampling.has_[t]], [d.idle.has_[t]]]),
            ),
        ),
        (
            "helper: alone, no copies",
            either(
                mixed,
                forall(
                    1,
                    lambda b: both(p.copy_of[b] == -1, negate(p.copied_from[b])),
                    lambda b: [[p.copy_of[b]], [p.copied_from[b]]],
                ),
            ),
        ),
        ("helper: alone, no pieces without tokens", either(mixed, d.spent != 0, p.pieces == 0)),
    ]


def prefilled_since(d: Any, e: Any) -> Clauses:
    """What the prefills have done between e and d."""
    return [
        effects.moves(d, e, (W, R), (W, Status.FINISHED_IGNORED), (W, Status.FINISHED_CAPACITY)),
        effects.tokens_kept(d, e),
        ("swap_preserves_view: contents", effects.contents_kept(d, e)),
        (
            "helper: only more",
            both(
                d.spent >= e.spent,
                d.plan.ends >= e.plan.ends,
                d.running.n >= e.running.n,
                d.swapped.n == e.swapped.n,
                d.plan.victims == e.plan.victims,
                d.plan.left == e.plan.left,
            ),
        ),
        (
            "helper: nothing spent, no less room",
            implies(d.spent == e.spent, both(d.seqs == e.seqs, d.gpu.n - d.owing >= e.gpu.n - e.owing)),
        ),
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
        who_goes_is_named(d, e),
        (
            "helper: new tables only for who waited and is no victim",
            forall(
                2,
                lambda g, q: implies(
                    both(e.table.size_[g, q] == 0, d.table.size_[g, q] >= 1), both(e.status[g] == W, negate(e.plan.victim[g]))
                ),
                lambda g, q: [[d.table.size_[g, q]]],
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
        progress.kept(d, e),
        (
            "helper: the same victims",
            forall(1, lambda t: iff(d.plan.victim[t], e.plan.victim[t]), lambda t: [[d.plan.victim[t]]]),
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


def first_goes_on(d: Any, e: Any) -> tuple[str, Any]:
    """If anything has been computed, then a piece of the first unfinished prefill."""
    head = run().notes["head"]
    computed = either(d.spent == e.spent, d.computed[head] > e.computed[head])
    same = either(d.spent > e.spent, d.prefilling.has_[head] == e.prefilling.has_[head])
    return ("head_advances: the first prefill goes on", implies(progress.first_prefill(e, head), both(computed, same)))


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
        first_goes_on(d, e),
        ("helper: nothing to go on with", implies(e.prefilling.n == 0, both(d.spent == e.spent, d.prefilling.n == 0))),
    ],
    lambda d: (_left(d), 0),
    laws,
)


def _go_on_inv(d: Any, e: Any) -> Clauses:
    p = d.plan
    return [
        *in_pass(d),
        whole_prompts(d),
        effects.tokens_kept(d, e),
        *plan_keeps(d, e, PLAN_BUT_PIECES),
        ("budget_exact: spent = sum of the plan", d.spent == p.total),
        (
            "no_deadlock: an unfinished prefill goes on",
            either(d.spent > e.spent, both(d.prefilling.n == e.prefilling.n, d.spent == e.spent)),
        ),
        first_goes_on(d, e),
        progress.kept(d, e),
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
