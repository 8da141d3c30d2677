"""Rules of the loops that move a group between the devices, and their contracts.

In the middle, the entries of the group are partly on one device and partly on the other; `twin` maps each block that has moved
to its twin. "Moved" is: the entry lies on the other device.
"""

from typing import Any

from kvproof.proofs.block_rules import CONTRACTS
from kvproof.proofs.block_shapes import assume
from kvproof.proofs.contracts import Clauses, Contract
from kvproof.proofs.frames import BLOCKS, frame_others, only, others_read_same, same_plan, told_now
from kvproof.proofs.rules import RULES, Rule
from kvproof.proofs.sym import forall, fresh, run
from kvproof.spec import effects, ownership
from kvproof.spec.logic import both, choose, either, iff, implies, negate

CHANGED = {True: ("outs", "out_of"), False: ("ins", "in_of")}


def _swap_facts(d: Any, o: Any, g: Any, out: bool) -> Clauses:
    """What holds while g moves, since `o`."""
    t, s, w = d.table, o.table, d.twin
    here, there = (ownership.on_gpu, ownership.on_host) if out else (ownership.on_host, ownership.on_gpu)
    pool, pool_o, other, other_o = (d.cpu, o.cpu, d.gpu, o.gpu) if out else (d.gpu, o.gpu, d.cpu, o.cpu)
    pairs, pairs_o = (d.plan.out_of, o.plan.out_of) if out else (d.plan.in_of, o.plan.in_of)

    def twinned(part: Any) -> Any:
        return forall(1, lambda b: implies(w.dom[b], part(b, w.of[b])), lambda b: [[w.dom[b]]])

    def elsewhere(b: Any) -> Any:
        return implies(both(there(d, b), o.refs.of[b] >= 1), both(s.owner_g[b, 0] == s.group_of[b], s.group_of[b] != g))

    def inverse(c: Any) -> Any:
        b = w.inverse[c]
        return either(both(b == -1, pairs[c] == pairs_o[c]), both(w.dom[b], w.of[b] == c))

    def entry(q: Any, i: Any) -> Any:
        b, a = t.at[g, q, i], s.at[g, q, i]
        moved = both(there(d, b), w.dom[a], b == w.of[a])
        return implies(s.live(g, q, i), either(both(here(d, b), b == a), moved))

    return [
        *ownership.blocks(d),
        *frame_others(d, o, g),
        *same_plan(d, o, None if out else g, CHANGED[out]),
        ("helper: g had nothing there", forall(1, elsewhere, lambda b: [[o.refs.of[b]]])),
        ("helper: sizes of g stay", forall(1, lambda q: t.size_[g, q] == s.size_[g, q], lambda q: [[t.size_[g, q]]])),
        (
            "swap_map_bijective: sources were owned by g",
            twinned(lambda b, c: both(here(d, b), o.refs.of[b] >= 1, s.group_of[b] == g)),
        ),
        ("swap_map_bijective: targets were free", twinned(lambda b, c: both(there(d, c), o.refs.of[c] == 0))),
        ("swap_map_bijective: injective, in the plan", twinned(lambda b, c: both(w.inverse[c] == b, pairs[c] == b))),
        ("swap_map_bijective: targets are referenced", twinned(lambda b, c: d.refs.of[c] >= 1)),
        ("swap_map_bijective: targets belong to g", twinned(lambda b, c: t.group_of[c] == g)),
        ("swap_map_bijective: pairs of the plan", forall(1, inverse, lambda c: [[w.inverse[c]], [pairs[c]]])),
        ("swap_map_bijective: entries are theirs or their twins", forall(2, entry, lambda q, i: [[t.at[g, q, i]]])),
        ("total: room for the rest", both(pool.n == pool_o.n - w.n, w.n >= 0, other.n >= other_o.n)),
        ("plan_reports_tables: who comes back is announced", True if out else either(w.n == 0, d.plan.grown[g])),
        ("no_swap_both_ways: counted", both((d.plan.outs if out else d.plan.ins) == (o.plan.outs if out else o.plan.ins) + w.n)),
    ]


def _told_rows(d: Any, o: Any, g: Any, j: Any) -> Clauses:
    t, p = d.table, d.plan

    def row(q: Any) -> Any:
        return p.told_n[g, q] == choose(q < j, t.size_[g, q], 0)

    def entry(q: Any, i: Any) -> Any:
        return implies(both(t.live(g, q, i), q < j), p.told[g, q, i] == t.at[g, q, i])

    return [
        ("plan_reports_tables: rows announced so far", forall(1, row, lambda q: [[p.told_n[g, q]], [t.size_[g, q]]])),
        ("plan_reports_tables: entries announced so far", forall(2, entry, lambda q, i: [[t.at[g, q, i]]])),
    ]


def _law(d: Any, o: Any, g: Any) -> None:
    """Law: a set of blocks of g has no more than g holds, and fewer if one of them is missing."""
    w, s = d.twin, o.table

    def mine(b: Any) -> Any:
        return both(o.refs.of[b] >= 1, s.group_of[b] == g)

    subset = forall(1, lambda b: implies(w.dom[b], mine(b)), lambda b: [[w.dom[b]]])
    missing = forall(1, lambda b: implies(both(mine(b), negate(w.dom[b])), w.n < s.held[g]), lambda b: [[w.dom[b]]])
    assume(implies(subset, both(w.n <= s.held[g], missing)))
    assume(forall(1, lambda b: implies(w.dom[b], w.n >= 1), lambda b: [[w.dom[b]]]))


def _rows_rule(out: bool) -> Rule:
    there = ownership.on_host if out else ownership.on_gpu

    def clauses(d: Any, e: Any, j: Any, g: Any) -> Clauses:
        run().notes["swap"] = e
        _law(d, e, g)
        t = d.table
        done = forall(
            2,
            lambda q, i: implies(
                t.live(g, q, i), either(both(q < j, there(d, t.at[g, q, i])), both(q >= j, t.at[g, q, i] == e.table.at[g, q, i]))
            ),
            lambda q, i: [[t.at[g, q, i]]],
        )
        told = [] if out else _told_rows(d, e, g, j)
        return [*_swap_facts(d, e, g, out), *told, ("swap_map_bijective: rows moved so far", done)]

    return Rule((*BLOCKS, "plan", "twin"), clauses)


def _row_rule(out: bool) -> Rule:
    there = ownership.on_host if out else ownership.on_gpu

    def clauses(d: Any, e: Any, i: Any, g: Any, q: Any) -> Clauses:
        o = run().notes["swap"]
        _law(d, o, g)
        t, p = d.table, d.plan
        done = forall(
            1,
            lambda k: implies(
                t.live(g, q, k), either(both(k < i, there(d, t.at[g, q, k])), both(k >= i, t.at[g, q, k] == e.table.at[g, q, k]))
            ),
            lambda k: [[t.at[g, q, k]]],
        )
        rows = forall(
            2,
            lambda r, k: implies(both(t.live(g, r, k), r != q), t.at[g, r, k] == e.table.at[g, r, k]),
            lambda r, k: [[t.at[g, r, k]]],
        )
        told: Clauses = (
            []
            if out
            else [
                (
                    "plan_reports_tables: other rows as announced",
                    forall(1, lambda r: either(r == q, p.told_n[g, r] == e.plan.told_n[g, r]), lambda r: [[p.told_n[g, r]]]),
                ),
                (
                    "plan_reports_tables: their entries",
                    forall(
                        2, lambda r, k: either(r == q, p.told[g, r, k] == e.plan.told[g, r, k]), lambda r, k: [[p.told[g, r, k]]]
                    ),
                ),
                ("plan_reports_tables: slots announced so far", p.told_n[g, q] == i),
                (
                    "plan_reports_tables: as they are",
                    forall(
                        1, lambda k: implies(both(k >= 0, k < i), p.told[g, q, k] == t.at[g, q, k]), lambda k: [[t.at[g, q, k]]]
                    ),
                ),
            ]
        )
        return [
            *_swap_facts(d, o, g, out),
            *told,
            ("swap_map_bijective: slots moved so far", done),
            ("helper: other rows stay", rows),
        ]

    return Rule((*BLOCKS, "plan", "twin"), clauses)


RULES["swap_out"], RULES["move_out"] = _rows_rule(True), _row_rule(True)
RULES["swap_in"], RULES["move_in"] = _rows_rule(False), _row_rule(False)


def _contents(d: Any, e: Any, g: Any) -> Any:
    t, s = d.table, e.table
    return forall(
        2,
        lambda q, i: implies(s.live(g, q, i), effects.source(d.plan, t.at[g, q, i]) == effects.source(e.plan, s.at[g, q, i])),
        lambda q, i: [[t.at[g, q, i]]],
    )


def _sharing(d: Any, e: Any, g: Any) -> Any:
    """Entries are shared after the move exactly where they were before."""
    t, s = d.table, e.table
    return forall(
        3,
        lambda p, q, i: implies(
            both(s.live(g, p, i), s.live(g, q, i)),
            iff(t.at[g, p, i] == t.at[g, q, i], s.at[g, p, i] == s.at[g, q, i]),
        ),
    )


def _held_back(d: Any, e: Any, g: Any) -> Clauses:
    """Law: g holds no fewer blocks than have different twins that belong to it."""
    w, t = d.twin, d.table
    mine = forall(
        1,
        lambda b: implies(w.dom[b], both(d.refs.of[w.of[b]] >= 1, t.group_of[w.of[b]] == g, w.inverse[w.of[b]] == b)),
        lambda b: [[w.dom[b]]],
    )
    assume(either(negate(mine), w.n <= t.held[g]))
    return [("conservation: g holds what is taken", d.gpu.n + t.held[g] >= e.gpu.n)]


def _move(out: bool) -> Contract:
    here, there = (ownership.on_gpu, ownership.on_host) if out else (ownership.on_host, ownership.on_gpu)

    def on(d: Any, g: Any, side: Any) -> Any:
        return forall(
            2, lambda q, i: implies(d.table.live(g, q, i), side(d, d.table.at[g, q, i])), lambda q, i: [[d.table.at[g, q, i]]]
        )

    def knows(d: Any, g: Any) -> Clauses:
        return [("plan_reports_tables: announced = owned", effects.plan_reports_tables(d, only(g))), *effects.hazards(d)]

    def pre(d: Any, g: Any) -> Clauses:
        pool = d.cpu if out else d.gpu
        told: Clauses = (
            []
            if out
            else [
                (
                    "plan_reports_tables: nothing announced yet",
                    forall(1, lambda q: d.plan.told_n[g, q] == 0, lambda q: [[d.plan.told_n[g, q]]]),
                )
            ]
        )
        return [
            *ownership.blocks(d),
            *ownership.placement(d, only(g)),
            *knows(d, g),
            *told,
            ("helper: g where it comes from", on(d, g, here)),
            ("helper: not in the plan yet", both(negate(d.plan.grown[g]), negate(d.plan.victim[g]))),
            ("no_swap_both_ways: one way", d.plan.ins == 0 if out else d.plan.outs == 0),
            ("total: room for what g holds", d.table.held[g] <= pool.n),
        ]

    def post(d: Any, e: Any, g: Any) -> Clauses:
        pool, pool_e = (d.cpu, e.cpu) if out else (d.gpu, e.gpu)
        owners = forall(
            1,
            lambda b: implies(
                (e.plan.out_of if out else e.plan.in_of)[b] != (d.plan.out_of if out else d.plan.in_of)[b],
                both(there(d, b), d.refs.of[b] >= 1, d.table.group_of[b] == g, True if out else d.plan.grown[g]),
            ),
            lambda b: [[(d.plan.out_of if out else d.plan.in_of)[b]]],
        )
        pairs = forall(
            1,
            lambda b: implies(
                (e.plan.out_of if out else e.plan.in_of)[b] != (d.plan.out_of if out else d.plan.in_of)[b],
                here(d, (d.plan.out_of if out else d.plan.in_of)[b]),
            ),
            lambda b: [[(d.plan.out_of if out else d.plan.in_of)[b]]],
        )
        return [
            *ownership.blocks(d),
            *ownership.placement(d, only(g)),
            *frame_others(d, e, g),
            *same_plan(d, e, None if out else g, CHANGED[out]),
            *others_read_same(d, e, g),
            ("plan_reports_tables: others", effects.plan_reports_tables(d, only(g))),
            *([] if out else told_now(d, g)),
            ("helper: g where it goes", on(d, g, there)),
            (
                "helper: sizes of g stay",
                forall(1, lambda q: d.table.size_[g, q] == e.table.size_[g, q], lambda q: [[d.table.size_[g, q]]]),
            ),
            ("swap_preserves_view: g reads the same", _contents(d, e, g)),
            ("swap_map_bijective: sharing is kept", _sharing(d, e, g)),
            (
                "total: room taken",
                both(pool.n >= pool_e.n - e.table.held[g], (d.gpu.n >= e.gpu.n) if out else (d.cpu.n >= e.cpu.n)),
            ),
            (
                "conservation: g holds what is taken",
                True if out else both(d.gpu.n + d.table.held[g] >= e.gpu.n, d.gpu.n >= e.gpu.n - e.table.held[g]),
            ),
            ("swap_map_bijective: targets belong to g", owners),
            ("swap_map_bijective: sources are of the other device", pairs),
            ("no_swap_both_ways: counts", both(d.plan.outs >= e.plan.outs, d.plan.ins >= e.plan.ins)),
            (
                "no_swap_both_ways: none means none",
                both(
                    implies(
                        d.plan.outs == e.plan.outs,
                        forall(1, lambda b: d.plan.out_of[b] == e.plan.out_of[b], lambda b: [[d.plan.out_of[b]]]),
                    ),
                    implies(
                        d.plan.ins == e.plan.ins,
                        forall(1, lambda b: d.plan.in_of[b] == e.plan.in_of[b], lambda b: [[d.plan.in_of[b]]]),
                    ),
                ),
            ),
        ]

    return Contract(
        "blocks",
        "move_group_out" if out else "move_group_in",
        (*BLOCKS, "plan", "twin"),
        pre,
        post,
        lambda d: (fresh("g"),),
        cuts=None if out else _held_back,
    )


for _c in (_move(True), _move(False)):
    CONTRACTS[_c.function] = _c
