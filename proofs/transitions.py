"""The whole transitions: the pass, commit, and the events of one group; each from any state that satisfies the invariants."""

from typing import Any

from kvproof.core import groups, running, schedule
from kvproof.core.errors import Rejected
from kvproof.core.status import Status
from kvproof.proofs.block_rules import BLOCKS, frame_others, same_plan
from kvproof.proofs.contracts import Clauses
from kvproof.proofs.draft import ZDraft
from kvproof.proofs.pass_rules import bucket_shrinks, laws, serve_pre
from kvproof.proofs.rules import RULES, Hoare, Rule
from kvproof.proofs.shapes import ZResults
from kvproof.proofs.sym import PathEnd, ZMap, forall, fresh, run
from kvproof.spec import decisions, effects
from kvproof.spec import invariants as inv
from kvproof.spec.invariants import R, W, decodes, tokens_of, unfinished
from kvproof.spec.logic import both, choose, either, implies, negate

LIVE = (
    "table",
    "refs",
    "gpu",
    "cpu",
    "status",
    "length",
    "seqs",
    "due",
    "expiry",
    "waiting",
    "running",
    "swapped",
    "prefilling",
    "sampling",
    "plan",
)


def start() -> Any:
    """Any state between two transitions, with an empty plan."""
    d = ZDraft(Hoare())
    for _, c in effects.everything(d):
        run().assume(c)
    for c in laws(d):
        run().assume(c)
    run().notes.update(head=fresh("head"), line=fresh("line"))
    return d


def prove(clauses: Clauses, when: str) -> None:
    """Obligations after a transition."""
    for label, c in clauses:
        run().prove(f"{label} [{when}]", c)


def guarded(enabled: Any, fn: Any, *args: Any) -> Any:
    """Call a transition. It is rejected exactly when it is not enabled, and then nothing survives."""
    try:
        result = fn(*args)
    except Rejected:
        run().prove("total: rejected only when not enabled", negate(enabled))
        raise PathEnd from None
    run().prove("total: done only when enabled", enabled)
    return result


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
                choose(d.prefilled, d.spent == p.total, d.spent == d.running.weight - d.prefilling.n),
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
            (
                "no_shared_write: what is prefilled is exclusive",
                forall(
                    3,
                    lambda g, q, i: implies(both(p.piece[g] != 0, d.table.live(g, q, i)), d.refs.of[d.table.at[g, q, i]] == 1),
                    lambda g, q, i: [[d.table.at[g, q, i]]],
                ),
            ),
            ("group_together: one device", inv.group_together(d)),
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
            ("group_together: one device", inv.group_together(d)),
        ],
        when,
    )


# --- events of one group ---------------------------------------------------------------------------
def case_add() -> None:
    """A new request waits."""
    d, prompt, limit = start(), fresh("prompt"), fresh("limit")
    e = d.snap()
    g = guarded(both(prompt >= 1, limit > prompt), groups.add, d, prompt, limit)
    prove(effects.everything(d), "after add")
    prove(
        [
            (
                "status_graph: it waits, with its prompt",
                both(
                    e.status[g] == Status.ABSENT,
                    d.status[g] == W,
                    d.length[g] == prompt,
                    d.prompt[g] == prompt,
                    d.limit[g] == limit,
                    both(g == e.ticket, d.ticket == e.ticket + 1),
                ),
            ),
            effects.moves(d, e, (Status.ABSENT, W)),
            (
                "one_queue: at the end of the line",
                forall(
                    1,
                    lambda t: implies(both(unfinished(d, t), t != g), d.key[t] < d.key[g]),
                    lambda t: [[d.status[t]], [d.key[t]]],
                ),
            ),
        ],
        "after add",
    )


def case_abort() -> None:
    """Legal in every unfinished status; frees exactly what is held."""
    d, g = start(), fresh("g")
    e = d.snap()
    guarded(unfinished(d, g), groups.abort, d, g)
    prove(effects.everything(d), "after abort")
    prove(
        [
            ("ownership_by_status: aborted", d.status[g] == Status.FINISHED_ABORTED),
            (
                "status_graph: nobody else moves",
                forall(1, lambda t: either(t == g, d.status[t] == e.status[t]), lambda t: [[d.status[t]]]),
            ),
            (
                "recompute_keeps_output: its tokens stay, without one that may be in the making",
                d.length[g] == tokens_of(e, g) - choose(e.sampling.has_[g], 1, 0),
            ),
        ],
        "after abort",
    )


def _share_inv(d: Any, e: Any, i: Any, g: Any, parent: Any, child: Any) -> Clauses:
    t, s = d.table, e.table
    return [
        *inv.blocks(d),
        *frame_others(d, e, g),
        *same_plan(d, e, g),
        (
            "fork_shares: the child has the first blocks of the parent",
            both(
                t.size_[g, child] == i,
                forall(
                    1,
                    lambda k: implies(both(k >= 0, k < i), t.at[g, child, k] == t.at[g, parent, k]),
                    lambda k: [[t.at[g, child, k]]],
                ),
            ),
        ),
        (
            "helper: siblings keep theirs",
            forall(1, lambda q: either(q == child, t.size_[g, q] == s.size_[g, q]), lambda q: [[t.size_[g, q]]]),
        ),
        (
            "helper: siblings keep entries",
            forall(
                2,
                lambda q, k: implies(both(q != child, s.live(g, q, k)), t.at[g, q, k] == s.at[g, q, k]),
                lambda q, k: [[t.at[g, q, k]]],
            ),
        ),
        ("fork_shares: no block is taken", both(d.gpu.n == e.gpu.n, d.cpu.n == e.cpu.n)),
        (
            "plan_reports_tables: sizes of g",
            forall(1, lambda q: d.plan.told_n[g, q] == t.size_[g, q], lambda q: [[d.plan.told_n[g, q]], [t.size_[g, q]]]),
        ),
        (
            "plan_reports_tables: entries of g",
            forall(
                2, lambda q, k: implies(t.live(g, q, k), d.plan.told[g, q, k] == t.at[g, q, k]), lambda q, k: [[t.at[g, q, k]]]
            ),
        ),
    ]


RULES["share"] = Rule((*BLOCKS, "plan"), _share_inv)


def case_fork() -> None:
    """A child shares all blocks of its parent."""
    d, g, parent = start(), fresh("g"), fresh("parent")
    e = d.snap()
    enabled = both(negate(d.issued), decodes(d, g), d.members.has_[g, parent], d.seqs < d.config.max_num_seqs)
    child = guarded(enabled, groups.fork, d, g, parent)
    prove(effects.everything(d), "after fork")
    t = d.table
    prove(
        [
            (
                "fork_shares: both read the same",
                both(
                    t.size_[g, child] == t.size_[g, parent],
                    forall(
                        1,
                        lambda k: implies(t.live(g, child, k), t.at[g, child, k] == t.at[g, parent, k]),
                        lambda k: [[t.at[g, child, k]]],
                    ),
                ),
            ),
            ("fork_shares: it costs no block", both(d.gpu.n == e.gpu.n, d.cpu.n == e.cpu.n)),
            (
                "fork_shares: it is a new live sequence",
                both(d.members.has_[g, child], negate(e.members.has_[g, child]), d.members.n[g] == e.members.n[g] + 1),
            ),
            ("status_graph: nobody moves", forall(1, lambda h: d.status[h] == e.status[h], lambda h: [[d.status[h]]])),
        ],
        "after fork",
    )


def case_finish_sequence() -> None:
    """A sequence ends; the group goes with its last one."""
    d, g, q = start(), fresh("g"), fresh("q")
    e = d.snap()
    guarded(both(d.status[g] == R, d.members.has_[g, q]), groups.finish_sequence, d, g, q)
    prove(effects.everything(d), "after finish_sequence")
    last = e.members.n[g] == 1
    prove(
        [
            ("ownership_by_status: the sequence owns nothing", d.table.size_[g, q] == 0),
            ("status_graph: the group goes with its last sequence", d.status[g] == choose(last, Status.FINISHED_STOPPED, R)),
            (
                "status_graph: nobody else moves",
                forall(1, lambda h: either(h == g, d.status[h] == e.status[h]), lambda h: [[d.status[h]]]),
            ),
            ("helper: one sequence less", either(last, both(negate(d.members.has_[g, q]), d.members.n[g] == e.members.n[g] - 1))),
        ],
        "after finish_sequence",
    )


def case_forget() -> None:
    """An ended group leaves no trace."""
    d, g = start(), fresh("g")
    e = d.snap()
    guarded(d.status[g] >= Status.FINISHED_STOPPED, groups.forget, d, g)
    prove(effects.everything(d), "after forget")
    prove(
        [
            ("status_graph: it is absent", d.status[g] == Status.ABSENT),
            (
                "status_graph: nobody else moves",
                forall(1, lambda h: either(h == g, d.status[h] == e.status[h]), lambda h: [[d.status[h]]]),
            ),
        ],
        "after forget",
    )


# --- exact endings -----------------------------------------------------------------------------------
def case_outgrown() -> None:
    """kvproof: a running group of one sequence ends for capacity exactly when its next block would exceed the pool."""
    d: Any = ZDraft(Hoare())
    g: Any = fresh("g")
    run().notes.update(head=fresh("head"), line=fresh("line"), served=g)
    for _, c in serve_pre(d, g):
        run().assume(c)
    for c in laws(d):
        run().assume(c)
    run().assume(both(d.members.n[g] == 1, negate(d.config.vllm_v0)))
    e, q = d.snap(), d.members.first(g)
    size = d.table.size_[g, q]
    boundary = d.clock - d.born[g] > d.span(size)
    # the blocks of g are as many as its only table has entries, and are among the used ones (`lemmas.py`: a subset)
    run().assume(both(d.refs.used_gpu >= d.table.held[g], d.table.held[g] == size))
    running.serve(d, g)
    exceeds = both(boundary, size + 1 > d.config.num_gpu_blocks)
    ended = d.status[g] == Status.FINISHED_CAPACITY
    prove(
        [
            ("infeasible_refused: ended only if it exceeds the pool", implies(ended, exceeds)),
            ("infeasible_refused: ended if it exceeds the pool", implies(exceeds, ended)),
            ("infeasible_refused: nobody is evicted for it", implies(exceeds, d.plan.victims == e.plan.victims)),
        ],
        "after serve",
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
