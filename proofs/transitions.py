"""The whole transitions: the pass, commit, and the events of one group; each from any state that satisfies the invariants."""

from typing import Any

from kvproof.core import schedule
from kvproof.core.status import Status
from kvproof.proofs.contracts import Clauses
from kvproof.proofs.events import (
    LIVE,
    case_abort,
    case_add,
    case_deny_append,
    case_finish_sequence,
    case_forget,
    case_fork,
    case_outgrown,
    case_rerank,
    guarded,
    prove,
    start,
)
from kvproof.proofs.pass_frames import bucket_shrinks, laws, who_goes_is_named
from kvproof.proofs.rules import RULES, Rule, check_frame
from kvproof.proofs.shapes import ZNumbers, ZResults
from kvproof.proofs.step_rules import STEP
from kvproof.proofs.sym import ZMap, forall, fresh, fresh_bool, run
from kvproof.spec import decisions, effects, ownership, progress
from kvproof.spec.invariants import calendars
from kvproof.spec.logic import both, choose, either, implies, negate
from kvproof.spec.ownership import R, decodes, tokens_of, unfinished
from kvproof.spec.promises import counted, protected_stay

PASS = tuple(dict.fromkeys((*STEP, "issued", "epoch", "spent", "charged")))
"""What a pass may change."""


# --- the pass --------------------------------------------------------------------------------------
def case_schedule() -> None:
    """The pass, from the contracts of its steps; events may preempt before it."""
    d = start()
    run().assume(d.span_rises())
    u = fresh("u")
    run().assume(either(negate(unfinished(d, u)), d.waiting.n + d.running.n + d.swapped.n >= 1))
    calm = bool(fresh_bool("calm"))
    forced: Any = () if calm else ZMap("forced", 2, truth=True)
    e, before = d.snap(), d.versions()
    issued = d.issued
    guarded(negate(issued), schedule.schedule, d, forced)
    p, c = d.plan, d.config
    freed = next(m for name, m in run().notes["before"] if name in ("schedule_either", "schedule_mixed"))
    when = "after schedule"
    prove(effects.everything(d), when)
    made_way = both(c.priority, e.running.n >= 1, d.running.n == 0, p.victims >= 1)
    undisturbed = both(calm, negate(d.testing), negate(c.vllm_v0))
    prove(
        [
            (
                "no_deadlock: a token, an end, or all that ran made way for the head",
                implies(both(undisturbed, unfinished(e, u)), either(d.spent >= 1, p.ends >= 1, made_way)),
            ),
            ("budget_exact: the plan's sum", choose(d.prefilled, d.spent == p.total, effects.decode_budget(d)[1])),
            (
                "budget_exact: never above the limits",
                both(
                    d.spent <= c.max_num_batched_tokens,
                    either(d.seqs <= c.max_num_seqs, both(c.vllm_v0, c.enable_chunked_prefill)),
                ),
            ),
            ("no_swap_both_ways: no swap-in after a preemption", either(c.vllm_v0, p.victims == 0, p.ins == 0)),
            ("total: a step is issued", both(d.issued, d.epoch == e.epoch + 1)),
            *effects.victims(d),
            ("swap_preserves_view: contents", effects.written_kept(d, e)),
            ("table_length: the slots of the step exist", implies(negate(d.prefilled), effects.nobody_due(d)[1])),
            effects.prefills_exclusive(d),
            ("group_together: one device", ownership.group_together(d)),
            *decisions.turns(d, freed, run().notes["line"], both(calm, negate(d.testing))),
        ],
        when,
    )
    prove([(name, implies(undisturbed, clause)) for name, clause in of_undisturbed_pass(d, e)], when)
    check_frame("schedule", d, before, PASS)


def of_undisturbed_pass(d: Any, e: Any) -> Clauses:
    """What is proved of a pass of kvproof that no event strikes, and of which `case_round` makes use."""
    ended = forall(1, lambda t: implies(unfinished(d, t), unfinished(e, t)), lambda t: [[d.status[t]], [e.status[t]]])
    return [
        effects.tokens_kept(d, e),
        effects.victim_is_last(d, e),
        who_goes_is_named(d, e),
        counted(d, e),
        protected_stay(d, e),
        ("status_graph: who has ended stays so", ended),
        *progress.of_pass(d, e, run().notes["head"], run().notes["ahead"]),
    ]


STOPS = ((R, Status.FINISHED_STOPPED), (R, Status.FINISHED_LENGTH_CAPPED))
"""Moves of a commit."""


# --- commit ----------------------------------------------------------------------------------------
def _held(e: Any, done: Any) -> Any:
    return lambda g: choose(both(done[g], negate(e.prefilling.has_[g])), 1, 0)


RULES["hold"] = Rule(
    ("born", "alarm", "due"),
    lambda d, e, done, ids: [
        (
            "recompute_keeps_output: held back",
            forall(1, lambda g: d.born[g] == e.born[g] + _held(e, done)(g), lambda g: [[d.born[g]]]),
        ),
        (
            "helper: their alarms too",
            forall(
                1,
                lambda g: d.alarm[g] == e.alarm[g] + choose(effects.wishes(e), _held(e, done)(g), 0),
                lambda g: [[d.alarm[g]]],
            ),
        ),
        ("helper: calendars hold who decodes", calendars(d)),
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
                    both(
                        both(d.status[g] == e.status[g], d.length[g] == e.length[g]),
                        d.prefilling.has_[g] == e.prefilling.has_[g],
                        either(
                            negate(d.prefilling.has_[g]),
                            both(d.members.n[g] == e.members.n[g], d.members.line[g] == e.members.line[g]),
                        ),
                    ),
                ),
                lambda g: [[d.status[g]]],
            ),
        ),
    ]


def _ended(d: Any, done: Any) -> Clauses:
    """No sequence that the engine says has ended goes on, but for one of several that are being recomputed."""
    runs = forall(
        2,
        lambda g, q: implies(
            both(done[g, q], d.status[g] == R, d.members.has_[g, q]), both(d.prefilling.has_[g], d.members.n[g] > 1)
        ),
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
        (
            "helper: nobody samples or is idle",
            forall(
                1,
                lambda t: both(negate(d.sampling.has_[t]), negate(d.idle.has_[t])),
                lambda t: [[d.sampling.has_[t]], [d.idle.has_[t]]],
            ),
        ),
    ]


RULES["advance"] = Rule(
    ("born", "alarm", "due", "expires", "expiry"),
    lambda d, e, done, ids: [
        (
            "recompute_keeps_output: given its token",
            forall(1, lambda g: d.born[g] == e.born[g] - choose(done[g], 1, 0), lambda g: [[d.born[g]]]),
        ),
        ("helper: calendars hold who decodes", calendars(d)),
        (
            "helper: alarms and limits",
            forall(
                1,
                lambda g: implies(
                    decodes(d, g),
                    both(
                        d.alarm[g] >= d.clock,
                        d.expires[g] >= d.clock,
                        d.expires[g] <= d.born[g] + d.limit[g],
                        either(both(d.alarm[g] == e.alarm[g], d.expires[g] == e.expires[g]), done[g]),
                    ),
                ),
                lambda g: [[d.alarm[g]], [d.expires[g]], [done[g]]],
            ),
        ),
        (
            "helper: alarm in time for a block",
            forall(
                2,
                lambda g, q: implies(
                    both(decodes(d, g), d.members.has_[g, q]),
                    d.alarm[g] <= d.born[g] + d.span(d.table.size_[g, q]) + 1,
                ),
                lambda g, q: [[d.members.has_[g, q]], [d.table.size_[g, q]]],
            ),
        ),
        ("helper: given are scheduled", forall(1, lambda g: implies(done[g], ids.has(g)), lambda g: [[done[g]]])),
    ],
)
COMMIT = tuple(dict.fromkeys((*COMMITTED, *EXPIRE, "born", "alarm", "ungiven", "clock", "issued")))
"""What a commit may change."""
ACCEPT = ("born", "ungiven", "alarm", "due", "expires", "expiry")


def _given(e: Any, g: Any, more: Any, results: Any) -> Any:
    """May g, which decoded and has a result, get more than a token?"""
    decoded = both(decodes(e, g), negate(e.idle.has_[g]), negate(e.sampling.has_[g]), negate(e.prefilled))
    return both(more.has(g), decoded, results.has(g))


def _gets(born: Any, d: Any, e: Any, g: Any, besides: Any) -> Any:
    """g is so much younger, and has had one token and these at once."""
    return both(born == -besides, d.ungiven[g] == choose(besides > 0, besides + 1, e.ungiven[g]))


RULES["accept"] = Rule(
    ACCEPT,
    lambda d, e, done, more, results: [
        *effects.everything(d),
        (
            "recompute_keeps_output: nobody else gets more",
            forall(
                1,
                lambda g: either(
                    both(d.born[g] == e.born[g], d.ungiven[g] == e.ungiven[g], d.alarm[g] == e.alarm[g]),
                    both(done[g], _given(e, g, more, results)),
                ),
                lambda g: [[d.born[g]], [d.ungiven[g]], [d.alarm[g]]],
            ),
        ),
        (
            "recompute_keeps_output: exactly what lookahead gave",
            forall(
                2,
                lambda g, q: implies(
                    both(done[g], _given(e, g, more, results), e.members.has_[g, q]),
                    _gets(d.born[g] - e.born[g], d, e, g, effects.granted(e, g, q, more.of[g])),
                ),
                lambda g, q: [[e.members.has_[g, q], d.born[g]], [e.members.has_[g, q], d.ungiven[g]]],
            ),
        ),
        (
            "recompute_keeps_output: more is not less",
            forall(1, lambda g: d.born[g] <= e.born[g], lambda g: [[d.born[g]]]),
        ),
        ("helper: numbered ones", forall(1, lambda g: implies(done[g], more.has(g)), lambda g: [[done[g]]])),
    ],
    laws=laws,
)


def case_commit() -> None:
    """The results of a step come back, for any set of results, any tokens of lookahead and any list of ended sequences."""
    d, results, ended = start(), ZResults(), ZMap("ended", 2, truth=True)
    more: Any = {} if fresh_bool("plain") else ZNumbers()
    e, before = d.snap(), d.versions()
    run().notes["clock_passed"] = True
    guarded(d.issued, schedule.commit, d, results, ended, more)
    when = "after commit"
    prove(effects.everything(d), when)

    def advanced(g: Any) -> Any:
        scheduled = choose(e.prefilled, e.sampling.has_[g], both(decodes(e, g), negate(e.idle.has_[g])))
        now = tokens_of(e, g) + choose(both(scheduled, results.has(g)), 1, 0)
        besides = False if more == {} else _given(e, g, more, results)
        plain = both(tokens_of(d, g) == now, d.ungiven[g] == e.ungiven[g])
        return implies(both(unfinished(e, g), unfinished(d, g)), either(besides, plain))

    def got_more(g: Any, q: Any) -> Any:
        some = both(_given(e, g, more, results), e.members.has_[g, q], unfinished(d, g))
        return implies(some, _gets(tokens_of(e, g) + 1 - tokens_of(d, g), d, e, g, effects.granted(e, g, q, more.of[g])))

    if more != {}:
        exact = forall(2, got_more, lambda g, q: [[e.members.has_[g, q], d.status[g]]])
        prove([("recompute_keeps_output: exactly what lookahead gave", exact)], when)
    prove(
        [
            ("recompute_keeps_output: exactly who has a result advances", forall(1, advanced, lambda g: [[d.status[g]]])),
            ("total: no step is in flight", negate(d.issued)),
            *_ended(d, ended),
            effects.moves(d, e, *STOPS),
            (
                "helper: everybody is below its limit",
                forall(1, lambda g: implies(decodes(d, g), d.clock - d.born[g] < d.limit[g]), lambda g: [[d.status[g]]]),
            ),
            effects.capped(d, e),
            effects.known_slots(d, e, results.has),
            ("group_together: one device", ownership.group_together(d)),
            progress.advances(d, e, results.has),
        ],
        when,
    )
    check_frame("commit", d, before, COMMIT)


def case_round() -> None:
    """A pass that no event strikes, and the commit of all its results: from what is proved of each."""
    d = start()
    head, line = run().notes["head"], run().notes["ahead"]
    run().assume(both(negate(d.testing), negate(d.config.vllm_v0)))
    e = d.snap()
    d.havoc(PASS)
    for _, c in (*effects.everything(d), *of_undisturbed_pass(d, e)):
        run().assume(c)
    m = d.snap()
    d.havoc(COMMIT)
    for _, c in (*effects.everything(d), effects.moves(d, m, *STOPS), progress.advances(d, m, lambda g: True)):
        run().assume(c)
    when = "after a pass and the commit of its results"
    prove([progress.nobody_falls_back(d, e), progress.head_falls(d, m, e, head), progress.order_regained(m, e, line)], when)


# name: (proof, functions for which summaries stand, functions of the core that are called)
CASES: dict[str, Any] = {
    "schedule": (case_schedule, ("schedule_either", "schedule_mixed", "evict", "look_ahead", "trim"), "schedule"),
    "commit": (case_commit, ("end",), "commit"),
    "round": (case_round, ()),
    "add": (case_add, (), "add"),
    "abort": (case_abort, ("end",), "abort"),
    "fork": (case_fork, (), "fork"),
    "finish_sequence": (case_finish_sequence, ("end",), "finish_sequence"),
    "forget": (case_forget, (), "forget"),
    "rerank": (case_rerank, (), "rerank"),
    "deny_append": (case_deny_append, (), "deny_append"),
    "outgrown": (case_outgrown, ("append_slots", "find_blocks"), "serve"),
}
