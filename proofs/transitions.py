"""The whole transitions: the pass, commit, and the events of one group; each from any state that satisfies the invariants."""

from typing import Any

from kvproof.core import schedule
from kvproof.core.status import Status
from kvproof.proofs.contracts import Clauses
from kvproof.proofs.events import (
    LIVE,
    case_abort,
    case_add,
    case_finish_sequence,
    case_forget,
    case_fork,
    case_outgrown,
    guarded,
    prove,
    start,
)
from kvproof.proofs.group_rules import bucket_shrinks, laws
from kvproof.proofs.rules import RULES, Rule
from kvproof.proofs.shapes import ZResults
from kvproof.proofs.sym import ZMap, forall, fresh, run
from kvproof.spec import decisions, effects, ownership
from kvproof.spec.logic import both, choose, either, implies, negate
from kvproof.spec.ownership import R, decodes, tokens_of, unfinished


# --- the pass --------------------------------------------------------------------------------------
def case_schedule() -> None:
    """The pass, from the contracts of its phases."""
    d = start()
    run().assume(d.span_rises())
    u = fresh("u")
    run().assume(either(negate(unfinished(d, u)), d.waiting.n + d.running.n + d.swapped.n >= 1))
    head = run().notes["head"]
    run().assume(
        either(
            d.running.n == 0,
            both(
                d.status[head] == R,
                forall(1, lambda t: implies(d.status[t] == R, d.key[head] <= d.key[t]), lambda t: [[d.status[t]]]),
            ),
        )
    )
    e = d.snap()
    issued = d.issued
    guarded(negate(issued), schedule.schedule, d)
    p = d.plan
    when = "after schedule"
    prove(effects.everything(d), when)
    prove(
        [
            (
                "no_deadlock: a token or an end",
                implies(both(negate(d.config.vllm_v0), unfinished(e, u)), either(d.spent >= 1, p.ends >= 1)),
            ),
            (
                "budget_exact: the plan's sum",
                choose(d.prefilled, d.spent == p.total, d.spent == d.decoders),
            ),
            (
                "budget_exact: never above the limits",
                both(d.spent <= d.config.max_num_batched_tokens, d.seqs <= d.config.max_num_seqs),
            ),
            ("no_swap_both_ways: no swap-in after a preemption", either(p.victims == 0, p.ins == 0)),
            ("total: a step is issued", both(d.issued, d.epoch == e.epoch + 1)),
            *effects.victims(d),
            effects.tokens_kept(d, e),
            ("swap_preserves_view: contents", effects.contents_kept(d, e)),
            ("table_length: the slots of the step exist", implies(negate(d.prefilled), effects.nobody_due(d)[1])),
            effects.prefills_exclusive(d),
            ("group_together: one device", ownership.group_together(d)),
            *decisions.turns(d, e, run().notes["line"]),
        ],
        when,
    )


# --- commit ----------------------------------------------------------------------------------------
def _held(e: Any, done: Any) -> Any:
    return lambda g: choose(both(done[g], negate(e.prefilling.has_[g])), 1, 0)


RULES["hold"] = Rule(
    ("born",),
    lambda d, e, done, ids: [
        (
            "recompute_keeps_output: held back",
            forall(1, lambda g: d.born[g] == e.born[g] + _held(e, done)(g), lambda g: [[d.born[g]]]),
        ),
        ("helper: held are scheduled", forall(1, lambda g: implies(done[g], ids.has(g)), lambda g: [[done[g]]])),
    ],
)


def counts_stay(d: Any, e: Any) -> Clauses:
    """Whoever goes on keeps its token count."""
    return [
        (
            "recompute_keeps_output: counts stay",
            forall(
                1,
                lambda g: implies(
                    unfinished(d, g),
                    both(d.status[g] == e.status[g], d.length[g] == e.length[g], d.prefilling.has_[g] == e.prefilling.has_[g]),
                ),
                lambda g: [[d.status[g]]],
            ),
        ),
    ]


def _ended(d: Any, done: Any) -> Clauses:
    """No sequence that the engine says has ended goes on."""
    runs = forall(
        2,
        lambda g, q: negate(both(done[g, q], d.status[g] == R, d.members.has_[g, q])),
        lambda g, q: [[done[g, q]], [d.members.has_[g, q]]],
    )
    return [("status_graph: who is said to have ended has", runs)]


COMMITTED = (*LIVE, "members")
RULES["ended"] = Rule(
    COMMITTED,
    lambda d, e, done: [
        *_ended(d, done),
        *effects.everything(d, in_pass=True, clock_passed=True),
        *counts_stay(d, e),
        *_plan_untouched(d),
        effects.moves(d, e, (R, Status.FINISHED_STOPPED)),
        effects.capped(d, e),
    ],
    laws=laws,
)
EXPIRE = (*LIVE, "expires")
RULES["expire"] = Rule(
    EXPIRE,
    lambda d, e, passed: [
        *effects.everything(d, in_pass=True, clock_passed=True),
        *counts_stay(d, e),
        *_plan_untouched(d),
        effects.moves(d, e, (R, Status.FINISHED_LENGTH_CAPPED)),
        effects.capped(d, e),
        *bucket_shrinks(d, e),
        (
            "helper: who was looked at is below its limit",
            forall(
                1,
                lambda t: implies(both(passed[t], decodes(d, t)), d.expires[t] > d.clock),
                lambda t: [[passed[t]], [d.status[t]]],
            ),
        ),
    ],
    laws=laws,
)


def _plan_untouched(d: Any) -> Clauses:
    p = d.plan
    return [
        (
            "helper: nobody is in a plan",
            both(
                p.ins == 0,
                p.outs == 0,
                forall(1, lambda t: both(negate(p.grown[t]), negate(p.victim[t])), lambda t: [[p.grown[t]], [p.victim[t]]]),
            ),
        ),
        ("helper: nobody samples", forall(1, lambda t: negate(d.sampling.has_[t]), lambda t: [[d.sampling.has_[t]]])),
    ]


def case_commit() -> None:
    """The results of a step come back, for any set of results and any list of ended sequences."""
    d, results, ended = start(), ZResults(), ZMap("ended", 2, truth=True)
    e = d.snap()
    run().notes["clock_passed"] = True
    guarded(d.issued, schedule.commit, d, results, ended)
    when = "after commit"
    prove(effects.everything(d), when)

    def advanced(g: Any) -> Any:
        scheduled = choose(e.prefilled, e.sampling.has_[g], decodes(e, g))
        missed = both(scheduled, negate(results.has(g)))
        now = choose(missed, choose(e.prefilled, -1, 0), choose(both(decodes(e, g), negate(e.prefilled)), 1, 0))
        return implies(both(unfinished(e, g), unfinished(d, g)), tokens_of(d, g) == tokens_of(e, g) + now)

    prove(
        [
            ("recompute_keeps_output: exactly who has a result advances", forall(1, advanced, lambda g: [[d.status[g]]])),
            ("total: no step is in flight", negate(d.issued)),
            *_ended(d, ended),
            effects.moves(d, e, (R, Status.FINISHED_STOPPED), (R, Status.FINISHED_LENGTH_CAPPED)),
            (
                "helper: everybody is below its limit",
                forall(1, lambda g: implies(decodes(d, g), d.clock - d.born[g] < d.limit[g]), lambda g: [[d.status[g]]]),
            ),
            effects.capped(d, e),
            ("group_together: one device", ownership.group_together(d)),
        ],
        when,
    )


# name: (proof, functions for which summaries stand, functions of the core that are called)
CASES: dict[str, Any] = {
    "schedule": (case_schedule, ("schedule_running", "schedule_prefills", "schedule_swapped"), "schedule"),
    "commit": (case_commit, ("end",), "commit"),
    "add": (case_add, (), "add"),
    "abort": (case_abort, ("end",), "abort"),
    "fork": (case_fork, (), "fork"),
    "finish_sequence": (case_finish_sequence, ("end",), "finish_sequence"),
    "forget": (case_forget, (), "forget"),
    "outgrown": (case_outgrown, ("append_slots", "find_blocks"), "serve"),
}
