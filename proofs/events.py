"""The events of one group, each from any state that satisfies the invariants."""

from typing import Any

from kvproof.core import groups, running
from kvproof.core.errors import Rejected
from kvproof.core.status import Status
from kvproof.proofs.contracts import Clauses
from kvproof.proofs.draft import ZDraft
from kvproof.proofs.frames import BLOCKS, frame_others, same_plan
from kvproof.proofs.pass_frames import laws
from kvproof.proofs.pass_rules import serve_pre
from kvproof.proofs.rules import RULES, Hoare, Rule
from kvproof.proofs.sym import PathEnd, forall, fresh, run, same_version
from kvproof.spec import effects, ownership
from kvproof.spec.logic import both, choose, either, implies, negate
from kvproof.spec.ownership import R, W, decodes, tokens_of, unfinished
from kvproof.spec.promises import may_go

LIVE = (
    "table",
    "refs",
    "gpu",
    "cpu",
    "owed",
    "owing",
    "status",
    "length",
    "seqs",
    "decoders",
    "seats",
    "due",
    "expiry",
    "waiting",
    "running",
    "swapped",
    "prefilling",
    "sampling",
    "idle",
    "plan",
)


def start(rules: Any = None) -> Any:
    """Any state between two transitions, with an empty plan."""
    d = ZDraft(Hoare() if rules is None else rules)
    for _, c in effects.everything(d):
        run().assume(c)
    for c in laws(d):
        run().assume(c)
    run().notes.update(head=fresh("head"), line=fresh("line"), ahead=fresh("ahead"))
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


# --- events of one group ---------------------------------------------------------------------------
def case_add() -> None:
    """A new request waits."""
    d, prompt, limit, seats, reserve = start(), fresh("prompt"), fresh("limit"), fresh("seats"), fresh("reserve")
    priority: Any = fresh("priority")
    e = d.snap()
    enabled = both(prompt >= 1, limit > prompt, reserve >= 1, reserve <= seats, seats <= d.config.max_num_seqs)
    enabled = both(enabled, d.ticket < d.ranks)
    g = guarded(enabled, groups.add, d, prompt, limit, seats, reserve, priority)
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
                    both(d.members.n[g] == 1, d.seats[g] == seats, d.reserve[g] == reserve, d.priority[g] == priority),
                    both(g == e.ticket, d.ticket == e.ticket + 1, d.preemptions[g] == 0),
                ),
            ),
            effects.moves(d, e, (Status.ABSENT, W)),
            (
                "one_queue: at its place in line: V0 at the end, kvproof behind all of no lower priority",
                forall(
                    1,
                    lambda t: implies(
                        both(unfinished(d, t), t != g, either(d.config.vllm_v0, d.priority[t] <= priority)), d.key[t] < d.key[g]
                    ),
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
                d.length[g] == tokens_of(e, g),
            ),
        ],
        "after abort",
    )


def _share_inv(d: Any, e: Any, i: Any, g: Any, parent: Any, child: Any) -> Clauses:
    t, s = d.table, e.table
    return [
        *ownership.blocks(d),
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
        ("fork_shares: no block is taken", both(d.gpu.n == e.gpu.n, d.cpu.n == e.cpu.n, t.held[g] == s.held[g])),
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
    """A child shares all blocks of its parent, and has its tokens."""
    d, g, parent, own = start(), fresh("g"), fresh("parent"), fresh("own")
    e = d.snap()
    seat = either(d.members.n[g] != d.seats[g], both(d.seqs < d.config.max_num_seqs, may_go(d, g)))
    enabled = both(negate(d.issued), decodes(d, g), d.members.has_[g, parent], seat, own >= 0, own <= 1)
    child = guarded(enabled, groups.fork, d, g, parent, own)
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
            ("fork_shares: it costs no block", both(d.gpu.n >= e.gpu.n, d.cpu.n == e.cpu.n)),
            (
                "fork_shares: both end with the tokens so far",
                either(
                    e.members.n[g] > 1,
                    t.size_[g, child] == 1,
                    d.span(t.size_[g, child]) < d.clock - d.born[g] - 1 + d.config.block_size,
                ),
            ),
            (
                "fork_shares: it is a new live sequence",
                both(d.members.has_[g, child], negate(e.members.has_[g, child]), d.members.n[g] == e.members.n[g] + 1),
            ),
            (
                "fork_shares: it has its parent's tokens, but for its own",
                both(d.members.origin[g, child] == parent, d.members.common[g, child] == tokens_of(e, g) - own),
            ),
            ("status_graph: nobody moves", forall(1, lambda h: d.status[h] == e.status[h], lambda h: [[d.status[h]]])),
            (
                "budget_exact: it takes a seat of its group, or one more",
                d.seats[g] == e.seats[g] + choose(e.members.n[g] == e.seats[g], 1, 0),
            ),
        ],
        "after fork",
    )


def case_deny_append() -> None:
    """An event that changes nothing but answers of later passes, which are arbitrary here."""
    d, g, count = start(), fresh("g"), fresh("count")
    before = d.versions()
    guarded(both(unfinished(d, g), count >= 1), groups.deny_append, d, g, count)
    run().prove("total: nothing else changes [after deny_append]", d.versions() == before)
    asked = run().notes.get("refused", [])
    run().prove("total: so many of its questions [after deny_append]", [(x is g, n is count) for x, n in asked] == [(True, True)])


def case_rerank() -> None:
    """Another priority: another place in line, and nothing else."""
    d, g, priority = start(), fresh("g"), fresh("priority")
    e = d.snap()
    before = d.versions()
    guarded(unfinished(d, g), groups.rerank, d, g, priority)
    changed = {name for name, version in d.versions().items() if not same_version(version, before[name])}
    prove(effects.everything(d), "after rerank")
    rank = choose(d.config.vllm_v0, e.key[g], priority * d.ranks + g)
    prove(
        [
            ("total: nothing but priority and key [rerank]", changed <= {"priority", "key"}),
            ("one_queue: at its place in line", both(d.priority[g] == priority, d.key[g] == rank)),
            (
                "one_queue: nobody else moves",
                forall(
                    1,
                    lambda t: either(t == g, both(d.priority[t] == e.priority[t], d.key[t] == e.key[t])),
                    lambda t: [[d.priority[t]], [d.key[t]]],
                ),
            ),
        ],
        "after rerank",
    )


def case_finish_sequence() -> None:
    """A sequence ends; the group goes with its last one."""
    d, g, q = start(), fresh("g"), fresh("q")
    e = d.snap()
    goes = either(d.members.n[g] == 1, negate(d.prefilling.has_[g]))
    guarded(both(d.status[g] == R, d.members.has_[g, q], goes), groups.finish_sequence, d, g, q)
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
            (
                "budget_exact: it gives its seat back, but for what is reserved",
                either(last, d.seats[g] == e.seats[g] - choose(e.seats[g] > e.reserve[g], 1, 0)),
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
            ("status_graph: no trace is left", any(x is g for x in run().notes.get("forgotten", []))),
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
    run().notes.update(head=fresh("head"), line=fresh("line"), ahead=fresh("ahead"), served=g)
    for _, c in serve_pre(d, g):
        run().assume(c)
    for c in laws(d):
        run().assume(c)
    run().assume(both(d.members.n[g] == 1, negate(d.config.vllm_v0), negate(d.testing), d.config.num_lookahead_slots == 0))
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
