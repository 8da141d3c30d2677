"""What a step leaves as it was: clauses that the rules and contracts share."""

from typing import Any

from kvproof.proofs.block_shapes import assume
from kvproof.proofs.contracts import Clauses
from kvproof.proofs.sym import forall, fresh
from kvproof.spec import effects, ownership
from kvproof.spec.logic import both, choose, either, implies

BLOCKS = ("table", "refs", "gpu", "cpu")


def only(g: Any) -> ownership.Exempt:
    """The exemption of one group."""
    return lambda t: t == g


def others_keep_tables(d: Any, e: Any, g: Any) -> Clauses:
    """The tables of other groups have not changed, nor what they hold."""
    t, s = d.table, e.table
    return [
        (
            "helper: other tables",
            forall(2, lambda h, q: either(h == g, t.size_[h, q] == s.size_[h, q]), lambda h, q: [[t.size_[h, q]]]),
        ),
        (
            "helper: other entries",
            forall(
                3,
                lambda h, q, i: implies(both(h != g, s.live(h, q, i)), t.at[h, q, i] == s.at[h, q, i]),
                lambda h, q, i: [[t.at[h, q, i]]],
            ),
        ),
        ("helper: others hold as much", forall(1, lambda h: either(h == g, t.held[h] == s.held[h]), lambda h: [[t.held[h]]])),
    ]


def frame_others(d: Any, e: Any, g: Any) -> Clauses:
    """Nothing of any other group has changed: tables, entries, references, what it holds."""
    t, s = d.table, e.table
    return [
        *others_keep_tables(d, e, g),
        (
            "helper: blocks of others",
            forall(
                1,
                lambda b: both(
                    implies(
                        both(e.refs.of[b] >= 1, s.group_of[b] != g),
                        both(d.refs.of[b] == e.refs.of[b], t.group_of[b] == s.group_of[b], t.text[b] == s.text[b]),
                    ),
                    implies(both(d.refs.of[b] >= 1, t.group_of[b] != g), both(e.refs.of[b] >= 1, s.group_of[b] == t.group_of[b])),
                ),
                lambda b: [[d.refs.of[b]], [t.group_of[b]]],
            ),
        ),
    ]


PLAN_NUMBERS = ("total", "victims", "left", "ends", "pieces", "outs", "ins", "copies")
PLAN_MAPS = ("victim", "ended_", "piece", "first", "back", "out_of", "in_of", "copy_of", "copied_from", "grown")


def kept(name: str, new: Any, old: Any, g: Any = None) -> tuple[str, Any]:
    """A map of one argument is what it was; with g: everywhere but at g."""
    here = only(g) if g is not None else ownership.nobody
    return (name, forall(1, lambda h: either(here(h), new[h] == old[h]), lambda h: [[new[h]]]))


def same_plan(d: Any, e: Any, g: Any = None, changed: tuple[str, ...] = ()) -> Clauses:
    """The plan is what it was, but for `changed`; with g: grown and announcements of other groups are."""
    p, o = d.plan, e.plan
    numbers = both(*[getattr(p, n) == getattr(o, n) for n in PLAN_NUMBERS if n not in changed])
    maps = [
        kept(f"helper: plan keeps {n}", getattr(p, n), getattr(o, n), g if n == "grown" else None)
        for n in PLAN_MAPS
        if n not in changed
    ]
    other = only(g) if g is not None else ownership.nobody
    told = [
        (
            "helper: others' announcements",
            forall(2, lambda h, q: either(other(h), p.told_n[h, q] == o.told_n[h, q]), lambda h, q: [[p.told_n[h, q]]]),
        ),
        (
            "helper: others' entries",
            forall(3, lambda h, q, i: either(other(h), p.told[h, q, i] == o.told[h, q, i]), lambda h, q, i: [[p.told[h, q, i]]]),
        ),
    ]
    return [("helper: plan keeps its numbers", numbers), *maps, *told]


def told_now(d: Any, g: Any) -> Clauses:
    """What is announced of g is its tables."""
    t, p = d.table, d.plan
    return [
        (
            "plan_reports_tables: sizes of g",
            forall(1, lambda q: p.told_n[g, q] == t.size_[g, q], lambda q: [[p.told_n[g, q]], [t.size_[g, q]]]),
        ),
        (
            "plan_reports_tables: entries of g",
            forall(2, lambda q, i: implies(t.live(g, q, i), p.told[g, q, i] == t.at[g, q, i]), lambda q, i: [[t.at[g, q, i]]]),
        ),
    ]


def others_read_same(d: Any, e: Any, g: Any) -> Clauses:
    """The contents of the blocks of other groups come from where they came from."""
    return [
        (
            "swap_preserves_view: others read the same",
            forall(
                1,
                lambda b: implies(
                    both(e.refs.of[b] >= 1, e.table.group_of[b] != g), effects.source(d.plan, b) == effects.source(e.plan, b)
                ),
                lambda b: [[d.plan.copy_of[b]], [e.plan.copy_of[b]]],
            ),
        )
    ]


# --- who has no siblings -------------------------------------------------------------------------------------------------
def exclusive(d: Any, g: Any) -> Any:
    """All blocks of g have one reference."""
    return forall(
        2, lambda q, i: implies(d.table.live(g, q, i), d.refs.of[d.table.at[g, q, i]] == 1), lambda q, i: [[d.table.at[g, q, i]]]
    )


def alone(d: Any, g: Any) -> Clauses:
    """A cut in two steps: a block of g with two references has another entry, of a live sequence of g at the same index; so all
    blocks of a group of one sequence are its own."""
    t, m = d.table, d.members

    def other(q: Any, i: Any) -> Any:
        b = t.at[g, q, i]
        k = choose(t.rank[g, q, i] == 0, 1, 0)
        p, j = t.owner_q[b, k], t.owner_i[b, k]
        entry = both(t.owner_g[b, k] == g, j == i, t.live(g, p, j), t.at[g, p, j] == b, m.has_[g, p], t.rank[g, p, j] == k)
        return implies(both(t.live(g, q, i), d.refs.of[b] != 1), entry)

    w = fresh("sole")
    assume(implies(m.n[g] == 1, forall(1, lambda q: implies(m.has_[g, q], q == w), lambda q: [[m.has_[g, q]]])))
    return [
        ("helper: cut: shared with a sibling", forall(2, other, lambda q, i: [[t.at[g, q, i]]])),
        ("helper: cut: without siblings all is its own", implies(m.n[g] == 1, exclusive(d, g))),
    ]
