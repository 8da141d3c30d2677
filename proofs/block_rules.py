"""Rules of the loops that give blocks to one group or take them (release, grow, fill), and the contracts around them."""

from typing import Any

from kvproof.proofs.block_shapes import assume
from kvproof.proofs.contracts import Clauses, Contract
from kvproof.proofs.frames import BLOCKS, frame_others, only, others_read_same, same_plan, told_now
from kvproof.proofs.rules import RULES, Rule
from kvproof.proofs.sym import Dual, ZMap, forall, fresh, fresh_bool, run
from kvproof.spec import effects, ownership
from kvproof.spec.logic import both, choose, either, iff, implies, negate
from kvproof.spec.ownership import R


# --- release ---------------------------------------------------------------------------------------
def _release_inv(d: Any, e: Any, i: Any, g: Any, q: Any) -> Clauses:
    t, s = d.table, e.table
    return [
        *ownership.blocks(d),
        *frame_others(d, e, g),
        ("helper: blocks given back so far", t.size_[g, q] == s.size_[g, q] - i),
        ("helper: references only fall", forall(1, lambda b: d.refs.of[b] <= e.refs.of[b], lambda b: [[d.refs.of[b]]])),
        (
            "helper: siblings keep theirs",
            forall(1, lambda p: either(p == q, t.size_[g, p] == s.size_[g, p]), lambda p: [[t.size_[g, p]]]),
        ),
        (
            "helper: siblings keep entries",
            forall(
                2,
                lambda p, i: implies(both(p != q, s.live(g, p, i)), t.at[g, p, i] == s.at[g, p, i]),
                lambda p, i: [[t.at[g, p, i]]],
            ),
        ),
        ("helper: pools only grow", both(d.gpu.n >= e.gpu.n, d.cpu.n >= e.cpu.n)),
        ("conservation: what is not held any more is free", _freed(d, e, g)),
        ("conservation: on its own device", _on_one_device(d, e, g)),
    ]


def _freed(d: Any, e: Any, g: Any) -> Any:
    """Every block that g has given up for good is back in a pool."""
    return d.gpu.n + d.cpu.n + d.table.held[g] == e.gpu.n + e.cpu.n + e.table.held[g]


def _on_one_device(d: Any, e: Any, g: Any) -> Any:
    return implies(on_gpu_only(e, g), both(on_gpu_only(d, g), d.cpu.n == e.cpu.n))


def _holds_nothing(d: Any, g: Any) -> Any:
    w, rest = fresh("held"), d.table.held[g]
    owner = fresh("owner") == d.table.owner_g[w, 0]  # names the term for the solver
    assume(both(rest >= 0, owner, either(rest == 0, both(d.refs.of[w] >= 1, d.table.group_of[w] == g))))  # a number of blocks
    return rest == 0


def _gave(d: Any, e: Any, g: Any) -> Any:
    """A pool has what g held, if all that was on its device."""
    gpu, cpu, held = d.gpu.n - e.gpu.n, d.cpu.n - e.cpu.n, e.table.held[g]
    return both(gpu + cpu == held, implies(on_gpu_only(e, g), both(gpu == held, cpu == 0)))


RULES["release"] = Rule(BLOCKS, _release_inv)
RULES["release_all"] = Rule(
    BLOCKS,
    lambda d, e, j, g: [
        *ownership.blocks(d),
        *frame_others(d, e, g),
        (
            "ownership_by_status: released so far",
            forall(1, lambda q: implies(q < j, d.table.size_[g, q] == 0), lambda q: [[d.table.size_[g, q]]]),
        ),
        ("helper: pools only grow", both(d.gpu.n >= e.gpu.n, d.cpu.n >= e.cpu.n)),
        ("conservation: what is not held any more is free", _freed(d, e, g)),
        ("conservation: on its own device", _on_one_device(d, e, g)),
    ],
)

RELEASE = Contract(
    module="blocks",
    function="release",
    modifies=BLOCKS,
    args=lambda d: (fresh("g"),),
    pre=lambda d, g: [
        *ownership.blocks(d),
        *ownership.placement(d, only(g)),
        *effects.hazards(d),
        ("victim_not_in_plan: released groups are not in the plan", both(negate(d.plan.grown[g]), negate(d.plan.victim[g]))),
    ],
    post=lambda d, e, g: [
        *ownership.blocks(d),
        *ownership.placement(d, only(g)),
        *effects.hazards(d),
        *frame_others(d, e, g),
        ("ownership_by_status: g owns nothing", forall(1, lambda q: d.table.size_[g, q] == 0, lambda q: [[d.table.size_[g, q]]])),
        ("helper: pools only grow", both(d.gpu.n >= e.gpu.n, d.cpu.n >= e.cpu.n)),
        ("conservation: the pools get what g held", _gave(d, e, g)),
    ],
    cuts=lambda d, e, g: [("conservation: g holds nothing", _holds_nothing(d, g))],
)


# --- the next slots of a group ---------------------------------------------------------------------
def _rows(d: Any, g: Any, clause: Any) -> Any:
    """clause(q, size) for every live sequence of g."""
    return forall(
        1,
        lambda q: implies(d.members.has_[g, q], clause(q, d.table.size_[g, q])),
        lambda q: [[d.members.has_[g, q]], [d.table.size_[g, q]]],
    )


def one_size(d: Any, g: Any) -> Any:
    """The tables of g have one size."""
    m, t, common = d.members, d.table, fresh("common")
    proved = forall(2, lambda p, q: implies(both(m.has_[g, p], m.has_[g, q]), t.size_[g, p] == t.size_[g, q]))
    return Dual(proved, forall(1, lambda q: implies(m.has_[g, q], t.size_[g, q] == common), lambda q: [[m.has_[g, q]]]))


def on_gpu_only(d: Any, g: Any) -> Any:
    """All entries of g are GPU blocks."""
    return forall(
        2,
        lambda q, i: implies(d.table.live(g, q, i), ownership.on_gpu(d, d.table.at[g, q, i])),
        lambda q, i: [[d.table.at[g, q, i]]],
    )


def ready(d: Any, g: Any, slack: int) -> Clauses:
    """The tables of a decoding group, before (slack 1) or after (slack 0) it got the slots of its next token."""
    tokens, most = d.clock - d.born[g], d.config.block_size + ownership.lookahead(d, g)
    return [
        ("table_length: g", _rows(d, g, lambda q, n: both(n >= 1, tokens - slack <= d.span(n), d.span(n) < tokens + most))),
        ("helper: tables of g have one size", one_size(d, g)),
        ("ownership_by_status: g on the GPU", on_gpu_only(d, g)),
    ]


def _room(d: Any, g: Any, grows: Any) -> Any:
    copies = d.table.pending_copies(g)
    return both(d.members.n[g] >= 1, d.gpu.n >= choose(grows, d.members.n[g], copies))


def _asked(d: Any, g: Any, grows: Any) -> Clauses:
    return [("helper: asked for what is needed", _rows(d, g, lambda q, n: iff(grows, d.clock - d.born[g] > d.span(n))))]


def _remaining(e: Any, g: Any, j: Any) -> tuple[Any, Any]:
    """Ghost functions of the cursor: live sequences from it on, and copies that those will make (`lemmas.py`)."""
    notes = run().notes.setdefault("grow", {})
    if id(e) not in notes:
        rows, copies = ZMap("rows_left"), ZMap("copies_left")
        total = e.table.pending_copies(g)
        assume(both(rows[0] == e.members.n[g], copies[0] == total))
        assume(forall(1, lambda j: both(rows[j] >= 0, copies[j] >= 0), lambda j: [[rows[j]], [copies[j]]]))
        notes[id(e)] = (rows, copies, e)
    rows, copies, _ = notes[id(e)]
    m = e.members
    assume(both(rows[j] == rows[j + 1] + choose(m.has_[g, j], 1, 0), copies[j] >= copies[j + 1]))
    assume(
        forall(
            1,
            lambda q: implies(both(j < q, e.table.same_tail(g, j, q)), copies[j] >= copies[j + 1] + 1),
            lambda q: [[m.has_[g, q]]],
        )
    )
    return rows, copies


def _grow_inv(d: Any, e: Any, j: Any, g: Any) -> Clauses:
    t, s = d.table, e.table
    tokens = d.clock - d.born[g]
    rows, copies = _remaining(e, g, j)
    w = run().notes.setdefault("grow_row", {}).setdefault(id(e), fresh("row"))
    assume(implies(e.members.n[g] >= 1, e.members.has_[g, w]))
    full = tokens > d.span(s.size_[g, w])

    def row(q: Any, n: Any) -> Any:
        old = s.size_[g, q]
        return either(
            both(q < j, n == choose(full, old + 1, old), d.refs.of[t.at[g, q, n - 1]] == 1),
            both(q >= j, n == old),
        )

    def entry(q: Any, i: Any) -> Any:
        untouched = either(q >= j, full, i < s.size_[g, q] - 1)
        return implies(s.live(g, q, i), either(negate(untouched), t.at[g, q, i] == s.at[g, q, i]))

    return [
        *ownership.blocks(d),
        *effects.hazards(d),
        *frame_others(d, e, g),
        *same_plan(d, e, g, ("copies", "copy_of", "copied_from")),
        *told_now(d, g),
        *others_read_same(d, e, g),
        ("helper: rows done and to do", _rows(d, g, row)),
        ("helper: entries done and to do", forall(2, entry, lambda q, i: [[t.at[g, q, i]]])),
        ("ownership_by_status: g on the GPU", on_gpu_only(d, g)),
        ("swap_preserves_view: g reads the same", _reads_same(d, e, g)),
        ("total: room for the rest", d.gpu.n >= choose(full, rows[j], copies[j])),
        ("conservation: g holds what is taken", conserved(d, e, g)),
        (
            "conservation: no more than is needed",
            d.gpu.n - choose(full, rows[j], copies[j]) >= e.gpu.n - choose(full, rows[0], copies[0]),
        ),
    ]


def conserved(d: Any, e: Any, g: Any) -> Any:
    """What the GPU pool has lost g holds."""
    return d.gpu.n + d.table.held[g] == e.gpu.n + e.table.held[g]


def _reads_same(d: Any, e: Any, g: Any) -> Any:
    t, s = d.table, e.table
    return forall(
        2,
        lambda q, i: implies(s.live(g, q, i), effects.source(d.plan, t.at[g, q, i]) == effects.source(e.plan, s.at[g, q, i])),
        lambda q, i: [[t.at[g, q, i]]],
    )


RULES["grow"] = RULES["unshare"] = Rule((*BLOCKS, "plan"), _grow_inv)

APPEND = Contract(
    module="blocks",
    function="append_slots",
    modifies=(*BLOCKS, "plan"),
    args=lambda d: (fresh("g"), fresh_bool("grows")),
    pre=lambda d, g, grows: [
        *ownership.blocks(d),
        *ownership.placement(d, only(g)),
        *effects.engine_knows(d, only(g)),
        *told_now(d, g),
        *ready(d, g, 1),
        *_asked(d, g, grows),
        ("helper: g decodes", both(d.status[g] == R, negate(d.prefilling.has_[g]))),
        ("victim_not_in_plan: g is no victim", negate(d.plan.victim[g])),
        ("total: room for the slots of g", _room(d, g, grows)),
    ],
    post=lambda d, e, g, grows: [
        *ownership.blocks(d),
        *ownership.placement(d, only(g)),
        *effects.engine_knows(d, only(g)),
        *told_now(d, g),
        *ready(d, g, 0),
        ("table_length: a block a sequence, or none", _rows(d, g, lambda q, n: n == e.table.size_[g, q] + choose(grows, 1, 0))),
        ("no_shared_write: tails of g are exclusive", _rows(d, g, lambda q, n: d.refs.of[d.table.at[g, q, n - 1]] == 1)),
        *frame_others(d, e, g),
        *same_plan(d, e, g, ("copies", "copy_of", "copied_from")),
        *others_read_same(d, e, g),
        ("swap_preserves_view: g reads the same", _reads_same(d, e, g)),
        (
            "helper: tables only grow",
            forall(1, lambda q: d.table.size_[g, q] >= e.table.size_[g, q], lambda q: [[d.table.size_[g, q]]]),
        ),
        ("conservation: g holds what is taken", conserved(d, e, g)),
        (
            "conservation: no more than is needed",
            d.gpu.n >= e.gpu.n - choose(grows, e.members.n[g], e.table.pending_copies(g)),
        ),
    ],
    lemma=_asked,
)


# --- the table of a prompt -------------------------------------------------------------------------
def _own(d: Any, g: Any) -> Any:
    """All blocks of g have one reference."""
    return forall(
        2, lambda q, i: implies(d.table.live(g, q, i), d.refs.of[d.table.at[g, q, i]] == 1), lambda q, i: [[d.table.at[g, q, i]]]
    )


def _fill_inv(d: Any, e: Any, i: Any, q: Any, g: Any) -> Clauses:
    t = d.table
    return [
        *ownership.blocks(d),
        *frame_others(d, e, g),
        *same_plan(d, e, g),
        *told_now(d, g),
        ("table_length: blocks given so far", both(t.size_[g, q] == i, d.gpu.n == e.gpu.n - i)),
        ("conservation: g holds what is taken", conserved(d, e, g)),
        ("helper: siblings own nothing", forall(1, lambda p: either(p == q, t.size_[g, p] == 0), lambda p: [[t.size_[g, p]]])),
        ("ownership_by_status: from the GPU pool", on_gpu_only(d, g)),
        ("no_shared_write: the prompt's blocks are its own", _own(d, g)),
    ]


RULES["fill"] = Rule((*BLOCKS, "plan"), _fill_inv)


def owns_nothing(d: Any, g: Any, *_: Any) -> Clauses:
    """A cut: g owns nothing, so what is in use is another's."""
    t = d.table
    others = forall(1, lambda b: implies(d.refs.of[b] >= 1, t.group_of[b] != g), lambda b: [[d.refs.of[b]], [t.group_of[b]]])
    return [("helper: cut: what is in use is another's", others)]


ALLOCATE = Contract(
    module="blocks",
    function="allocate",
    modifies=(*BLOCKS, "plan"),
    args=lambda d: (fresh("g"), fresh("n")),
    pre=lambda d, g, n: [
        *ownership.blocks(d),
        *ownership.placement(d, only(g)),
        *effects.engine_knows(d, only(g)),
        (
            "helper: g owns nothing",
            forall(
                1,
                lambda q: both(d.table.size_[g, q] == 0, d.plan.told_n[g, q] == 0),
                lambda q: [[d.table.size_[g, q]], [d.plan.told_n[g, q]]],
            ),
        ),
        ("helper: g has one sequence", d.members.n[g] == 1),
        ("total: room for the prompt", both(n >= 0, d.gpu.n >= n)),
    ],
    post=lambda d, e, g, n: [
        *ownership.blocks(d),
        *ownership.placement(d, only(g)),
        *effects.engine_knows(d, only(g)),
        *told_now(d, g),
        *frame_others(d, e, g),
        *same_plan(d, e, g),
        ("table_length: as asked", _rows(d, g, lambda q, m: m == n)),
        ("conservation: g holds what is taken", both(conserved(d, e, g), d.gpu.n == e.gpu.n - n)),
        (
            "helper: only live sequences",
            forall(1, lambda q: either(d.members.has_[g, q], d.table.size_[g, q] == 0), lambda q: [[d.table.size_[g, q]]]),
        ),
        ("ownership_by_status: g on the GPU", on_gpu_only(d, g)),
        ("no_shared_write: the prompt's blocks are its own", _own(d, g)),
    ],
    opening=owns_nothing,
)
CONTRACTS = {c.function: c for c in (RELEASE, APPEND, ALLOCATE)}
