"""Lookahead slots: the loops that reserve them and, before a fork, give back what nobody has written."""

from typing import Any

from kvproof.proofs.block_rules import CONTRACTS, conserved, on_gpu_only
from kvproof.proofs.block_shapes import assume
from kvproof.proofs.contracts import Clauses, Contract
from kvproof.proofs.frames import BLOCKS, alone, exclusive, frame_others, kept, only, others_read_same, same_plan, told_now
from kvproof.proofs.pass_frames import KEEP, in_pass
from kvproof.proofs.prefill_phase import before_running
from kvproof.proofs.rules import RULES, Rule
from kvproof.proofs.sym import forall, fresh, run
from kvproof.spec import effects, ownership, serving
from kvproof.spec.logic import both, choose, either, implies, negate
from kvproof.spec.ownership import R, decodes

AHEAD = (*BLOCKS, "plan", "alarm", "due")


def sole(d: Any, g: Any) -> Any:
    """The only live sequence of g (ghost)."""
    q = run().notes.setdefault("sole", fresh("sole"))
    assume(implies(d.members.n[g] == 1, both(d.members.has_[g, q], forall(1, lambda p: implies(d.members.has_[g, p], p == q)))))
    return q


def _row(d: Any, e: Any, g: Any, grows: bool) -> Clauses:
    """The table of the only sequence of g has become longer, or shorter; what is left of it is as it was."""
    t, s, q = d.table, e.table, sole(e, g)
    n, old = t.size_[g, q], s.size_[g, q]
    return [
        ("table_length: it only grows", n >= old) if grows else ("table_length: it only shrinks", n <= old),
        (
            "helper: entries stay",
            forall(
                2,
                lambda p, i: implies(both(t.live(g, p, i), s.live(g, p, i)), t.at[g, p, i] == s.at[g, p, i]),
                lambda p, i: [[t.at[g, p, i]]],
            ),
        ),
        (
            "helper: no other rows",
            forall(1, lambda p: either(p == q, t.size_[g, p] == s.size_[g, p]), lambda p: [[t.size_[g, p]]]),
        ),
        ("ownership_by_status: g on the GPU", on_gpu_only(d, g)),
    ]


def alone_cut(d: Any, g: Any) -> None:
    """The cut of a loop, where it begins."""
    for label, c in alone(d, g):
        run().prove(label, c)
        run().assume(c)


def first_time(e: Any) -> bool:
    """Is the invariant of a loop asked for the first time, where the loop begins?"""
    seen = run().notes.setdefault("loops", [])
    if any(x is e for x in seen):
        return False
    seen.append(e)
    return True


def _ahead_inv(d: Any, e: Any, g: Any) -> Clauses:
    size, old = (x.table.size_[g, sole(e, g)] for x in (d, e))
    tokens, slots = d.clock - d.born[g], d.span(size)
    if first_time(e):
        alone_cut(d, g)
    return [
        *ownership.blocks(d),
        *effects.hazards(d),
        *frame_others(d, e, g),
        *same_plan(d, e, g),
        *told_now(d, g),
        *others_read_same(d, e, g),
        *_row(d, e, g, grows=True),
        ("table_length: and no more", either(size == old, d.span(size - 1) < serving.wished(e, g)[1])),
        ("table_length: as many as are wished for", slots < tokens + d.config.block_size + d.config.num_lookahead_slots),
        ("no_shared_write: all of it is its own", exclusive(d, g)),
        ("helper: blocks are only taken", d.gpu.n <= e.gpu.n),
        ("conservation: g holds what is taken", conserved(d, e, g)),
        ("bounded_preemptions: what is kept stays free", d.owing <= d.gpu.n),
    ]


def _ahead_laws(d: Any) -> list[Any]:
    return [d.gpu.n >= 0, d.span_rises()]


RULES["look_ahead"] = Rule((*BLOCKS, "plan"), _ahead_inv, lambda d, g: (d.gpu.n, 0), _ahead_laws)


def _ahead_post(d: Any, e: Any, g: Any) -> Clauses:
    t, s = d.table, e.table
    return [
        *in_pass(d),
        *frame_others(d, e, g),
        *same_plan(d, e, g),
        *others_read_same(d, e, g),
        kept("helper: others' alarms", d.alarm, e.alarm, g),
        ("table_length: its alarm has not rung", either(negate(decodes(d, g)), d.idle.has_[g], d.alarm[g] > d.clock)),
        (
            "helper: buckets of now only shrink",
            forall(1, lambda h: implies(d.due.has_[d.clock, h], e.due.has_[e.clock, h]), lambda h: [[d.due.has_[d.clock, h]]]),
        ),
        ("swap_preserves_view: contents", effects.contents_kept(d, e)),
        (
            "helper: tables only grow",
            forall(
                2,
                lambda h, q: both(t.size_[h, q] >= s.size_[h, q], implies(s.size_[h, q] == 0, t.size_[h, q] == 0)),
                lambda h, q: [[t.size_[h, q]], [s.size_[h, q]]],
            ),
        ),
        (
            "swap_preserves_view: every block reads the same",
            forall(
                1,
                lambda b: effects.source(d.plan, b) == effects.source(e.plan, b),
                lambda b: [[d.plan.copy_of[b]], [e.plan.copy_of[b]]],
            ),
        ),
        (
            "helper: entries stay",
            forall(
                3,
                lambda h, q, i: implies(s.live(h, q, i), t.at[h, q, i] == s.at[h, q, i]),
                lambda h, q, i: [[t.at[h, q, i]], [s.at[h, q, i]]],
            ),
        ),
        ("helper: blocks are only taken", d.gpu.n <= e.gpu.n),
        ("helper: it is planned only if it runs", implies(d.plan.grown[g], d.status[g] == R)),
        *serving.ahead(d, e, g, sole(e, g)),
    ]


LOOK_AHEAD_CONTRACT = Contract(
    "running",
    "look_ahead",
    AHEAD,
    lambda d, g: [
        *in_pass(d),
        ("helper: g runs and has its slots", both(d.status[g] == R, negate(d.plan.victim[g]))),
        ("table_length: g has its slots", either(negate(decodes(d, g)), d.idle.has_[g], d.alarm[g] > d.clock)),
        ("helper: g is not idle", negate(d.idle.has_[g])),
    ],
    _ahead_post,
    lambda d: (fresh("g"),),
)
CONTRACTS["look_ahead"] = LOOK_AHEAD_CONTRACT

RULES["look_ahead_all"] = Rule(
    AHEAD,
    lambda d, e, passed: [
        *in_pass(d),
        ("helper: plan keeps its numbers", same_plan(d, e)[0][1]),
        *[kept(f"helper: plan keeps {n}", getattr(d.plan, n), getattr(e.plan, n)) for n in ("victim", "piece", "first", "back")],
        *[kept(f"helper: plan keeps {n}", getattr(d.plan, n), getattr(e.plan, n)) for n in ("out_of", "in_of", "copy_of")],
        ("swap_preserves_view: contents", effects.contents_kept(d, e)),
        effects.nobody_due(d),
        ("helper: blocks are only taken", d.gpu.n <= e.gpu.n),
        (
            "helper: who does not run keeps its tables",
            both(
                forall(
                    2,
                    lambda h, q: either(d.status[h] == R, d.table.size_[h, q] == e.table.size_[h, q]),
                    lambda h, q: [[d.table.size_[h, q]]],
                ),
                forall(
                    3,
                    lambda h, q, i: implies(
                        both(d.status[h] != R, e.table.live(h, q, i)), d.table.at[h, q, i] == e.table.at[h, q, i]
                    ),
                    lambda h, q, i: [[d.table.at[h, q, i]]],
                ),
                forall(1, lambda h: either(d.status[h] == R, d.table.held[h] == e.table.held[h]), lambda h: [[d.table.held[h]]]),
            ),
        ),
        (
            "helper: no new tables",
            forall(
                2, lambda h, q: implies(e.table.size_[h, q] == 0, d.table.size_[h, q] == 0), lambda h, q: [[d.table.size_[h, q]]]
            ),
        ),
    ],
)


# --- before a pass and before a fork ---------------------------------------------------------------
def _trim_inv(d: Any, e: Any, g: Any, q: Any) -> Clauses:
    tokens, slots = d.clock - d.born[g], d.span(d.table.size_[g, q])
    if first_time(e):
        alone_cut(d, g)
    return [
        *ownership.blocks(d),
        *frame_others(d, e, g),
        *same_plan(d, e, g),
        *told_now(d, g),
        kept("helper: nobody is planned for it", d.plan.grown, e.plan.grown),
        *_row(d, e, g, grows=False),
        ("helper: it is the only sequence", both(d.members.n[g] == 1, q == sole(e, g))),
        (
            "table_length: what is written stays",
            both(either(d.table.size_[g, q] == e.table.size_[g, q], d.alarm[g] - d.born[g] - 1 <= slots), tokens - 1 <= slots),
        ),
        ("table_length: a block stays", d.table.size_[g, q] >= 1),
        ("no_shared_write: all of it is its own", exclusive(d, g)),
        ("fork_shares: no block is taken", both(d.gpu.n >= e.gpu.n, d.cpu.n == e.cpu.n)),
        ("conservation: g holds what is not given back", conserved(d, e, g)),
    ]


RULES["trim"] = Rule((*BLOCKS, "plan"), _trim_inv, lambda d, g, q: (d.table.size_[g, q], 0))


def _known(d: Any, e: Any, h: Any) -> Any:
    """Slots of h of which its alarm knew."""
    return e.alarm[h] - d.born[h] - 1


def _shrunk(d: Any, e: Any) -> Clauses:
    """Tables may have become shorter, by what nobody has written; what is left of them is as it was."""
    t, s = d.table, e.table
    return [
        *[clause for clause in same_plan(d, e) if "announcements" not in clause[0] and "entries" not in clause[0]],
        (
            "table_length: tables only shrink, and lose nothing that is written",
            forall(
                2,
                lambda h, q: both(
                    t.size_[h, q] <= s.size_[h, q],
                    implies(s.size_[h, q] >= 1, t.size_[h, q] >= 1),
                    either(t.size_[h, q] == s.size_[h, q], both(decodes(e, h), d.span(t.size_[h, q]) >= _known(d, e, h))),
                ),
                lambda h, q: [[t.size_[h, q]], [s.size_[h, q]]],
            ),
        ),
        (
            "swap_preserves_view: entries stay",
            forall(
                3,
                lambda h, q, i: implies(t.live(h, q, i), t.at[h, q, i] == s.at[h, q, i]),
                lambda h, q, i: [[t.at[h, q, i]], [s.at[h, q, i]]],
            ),
        ),
        ("helper: no block is taken", both(d.gpu.n >= e.gpu.n, d.cpu.n == e.cpu.n)),
    ]


TRIMMED = (*BLOCKS, *KEEP, "plan", "alarm", "due")
TRIM_CONTRACT = Contract(
    "groups",
    "trim",
    TRIMMED,
    lambda d, g: [*before_running(d), ("helper: g runs", d.status[g] == R)],
    lambda d, e, g: [
        *before_running(d),
        *_shrunk(d, e),
        *frame_others(d, e, g),
        kept("helper: others' alarms", d.alarm, e.alarm, g),
        *serving.trimmed(d, e, g, sole(e, g)),
    ],
    lambda d: (fresh("g"),),
    laws=lambda d: [d.span_rises()],
)
CONTRACTS["trim"] = TRIM_CONTRACT


def _all_trimmed(d: Any, e: Any, passed: Any) -> Any:
    """Whose turn has come has no block of which its alarm did not know, but for its first."""
    return forall(
        2,
        lambda g, q: implies(
            both(passed[g], decodes(d, g), d.members.n[g] == 1, d.members.has_[g, q]),
            either(d.table.size_[g, q] == 1, d.span(d.table.size_[g, q]) < _known(d, e, g) + d.config.block_size),
        ),
        lambda g, q: [[passed[g], d.table.size_[g, q]], [d.members.has_[g, q]]],
    )


RULES["trim_all"] = Rule(
    TRIMMED,
    lambda d, e, passed: [
        *before_running(d),
        *_shrunk(d, e),
        ("helper: alarms to come", forall(1, lambda g: either(passed[g], d.alarm[g] == e.alarm[g]), lambda g: [[d.alarm[g]]])),
        ("table_length: unwritten lookahead slots go back", _all_trimmed(d, e, passed)),
    ],
)

__all__ = ["AHEAD", "choose", "only"]
