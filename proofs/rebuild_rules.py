"""Rules of the loops that give a group of several sequences its tables again, and the contract around them."""

from typing import Any

from kvproof.proofs.block_rules import CONTRACTS, conserved, on_gpu_only, owns_nothing
from kvproof.proofs.contracts import Clauses, Contract
from kvproof.proofs.frames import BLOCKS, frame_others, only, same_plan, told_now
from kvproof.proofs.rules import RULES, Rule
from kvproof.proofs.sym import forall, fresh
from kvproof.spec import effects, ownership
from kvproof.spec.invariants import kin
from kvproof.spec.logic import both, choose, either, implies


def _texts(d: Any, g: Any) -> Any:
    """Every holder of a block of g expects the same tokens up to its end."""
    t = d.table
    return forall(
        2,
        lambda q, i: implies(t.live(g, q, i), t.text[t.at[g, q, i]] == d.members.prefix[g, q, d.span(i + 1)]),
        lambda q, i: [[t.at[g, q, i]]],
    )


def _building(d: Any, e: Any, g: Any) -> Clauses:
    """What holds while the tables of g are built, since e."""
    return [
        *ownership.blocks(d),
        *frame_others(d, e, g),
        *same_plan(d, e, g),
        *told_now(d, g),
        ("ownership_by_status: from the GPU pool", on_gpu_only(d, g)),
        ("no_shared_write: who shares a block expects the same in it", _texts(d, g)),
        ("conservation: g holds what is taken", conserved(d, e, g)),
    ]


def _siblings(d: Any, e: Any, g: Any, q: Any) -> Clauses:
    """The tables of the other sequences of g are what they were, and so is what q had."""
    t, s = d.table, e.table
    return [
        (
            "helper: siblings keep theirs",
            forall(1, lambda p: either(p == q, t.size_[g, p] == s.size_[g, p]), lambda p: [[t.size_[g, p]]]),
        ),
        (
            "helper: they keep entries",
            forall(2, lambda p, k: implies(s.live(g, p, k), t.at[g, p, k] == s.at[g, p, k]), lambda p, k: [[t.at[g, p, k]]]),
        ),
    ]


def _share_inv(d: Any, e: Any, i: Any, g: Any, origin: Any, child: Any) -> Clauses:
    t, s = d.table, e.table
    later = forall(
        2,
        lambda p, k: implies(both(s.live(g, p, k), k >= i), d.refs.of[s.at[g, p, k]] == e.refs.of[s.at[g, p, k]]),
        lambda p, k: [[s.at[g, p, k]]],
    )
    return [
        *_building(d, e, g),
        *_siblings(d, e, g, child),
        ("table_length: blocks shared so far", t.size_[g, child] == i),
        ("fork_shares: no block is taken", both(d.gpu.n == e.gpu.n, d.cpu.n == e.cpu.n)),
        ("no_shared_write: later blocks keep their references", later),
    ]


def _take_inv(d: Any, e: Any, i: Any, q: Any, g: Any) -> Clauses:
    t, s = d.table, e.table
    old = forall(
        2,
        lambda p, k: implies(s.live(g, p, k), d.refs.of[s.at[g, p, k]] == e.refs.of[s.at[g, p, k]]),
        lambda p, k: [[s.at[g, p, k]]],
    )
    new = forall(
        1,
        lambda k: implies(both(t.live(g, q, k), k >= s.size_[g, q]), d.refs.of[t.at[g, q, k]] == 1),
        lambda k: [[t.at[g, q, k]]],
    )
    return [
        *_building(d, e, g),
        *_siblings(d, e, g, q),
        ("table_length: blocks given so far", both(t.size_[g, q] == s.size_[g, q] + i, d.gpu.n == e.gpu.n - i)),
        ("no_shared_write: blocks so far keep their references", old),
        ("no_shared_write: new blocks are its own", new),
    ]


RULES["share_again"] = Rule((*BLOCKS, "plan"), _share_inv)
RULES["take_rest"] = Rule((*BLOCKS, "plan"), _take_inv)


def _kin_inv(d: Any, e: Any, done: Any, left: Any, g: Any, tokens: Any) -> Clauses:
    t, m, blocks = d.table, d.members, d.blocks_of(tokens)
    last = forall(
        1,
        lambda q: implies(both(m.has_[g, q], done[q]), d.refs.of[t.at[g, q, t.size_[g, q] - 1]] == 1),
        lambda q: [[t.size_[g, q]], [m.has_[g, q]]],
    )
    sizes = forall(
        1, lambda q: t.size_[g, q] == choose(both(m.has_[g, q], done[q]), blocks, 0), lambda q: [[t.size_[g, q]], [m.has_[g, q]]]
    )
    return [
        *_building(d, e, g),
        ("table_length: tables built so far", sizes),
        ("no_shared_write: last blocks are exclusive", last),
        ("total: room for the rest", both(d.gpu.n >= left, d.gpu.n - left >= e.gpu.n - e.rows(g, tokens))),
    ]


def _weigh(d: Any, g: Any, tokens: Any) -> tuple[Any, Any]:
    """Blocks that each sequence takes, and their sum."""

    def own(q: Any) -> Any:
        common = d.members.common[g, q]
        return d.blocks_of(tokens) - d.full_of(choose(common >= tokens, tokens - 1, common))

    return d.rows(g, tokens), own


RULES["rebuild"] = Rule((*BLOCKS, "plan"), _kin_inv, laws=lambda d: [d.span_rises()], weigh=_weigh)

REBUILD = Contract(
    module="blocks",
    function="rebuild",
    modifies=(*BLOCKS, "plan"),
    args=lambda d: (fresh("g"), fresh("tokens")),
    pre=lambda d, g, tokens: [
        *ownership.blocks(d),
        *ownership.placement(d, only(g)),
        *effects.engine_knows(d, only(g)),
        *kin(d),
        (
            "helper: g owns nothing",
            forall(
                1,
                lambda q: both(d.table.size_[g, q] == 0, d.plan.told_n[g, q] == 0),
                lambda q: [[d.table.size_[g, q]], [d.plan.told_n[g, q]]],
            ),
        ),
        ("helper: somebody lives, with tokens", both(d.members.n[g] >= 1, tokens >= 1)),
        ("total: room for all tables", d.gpu.n >= d.rows(g, tokens)),
    ],
    post=lambda d, e, g, tokens: [
        *ownership.blocks(d),
        *ownership.placement(d, only(g)),
        *effects.engine_knows(d, only(g)),
        *told_now(d, g),
        *frame_others(d, e, g),
        *same_plan(d, e, g),
        ("conservation: g holds what is taken", both(conserved(d, e, g), d.gpu.n >= e.gpu.n - e.rows(g, tokens))),
        (
            "table_length: for all tokens",
            forall(
                1,
                lambda q: d.table.size_[g, q] == choose(d.members.has_[g, q], d.blocks_of(tokens), 0),
                lambda q: [[d.table.size_[g, q]], [d.members.has_[g, q]]],
            ),
        ),
        ("ownership_by_status: g on the GPU", on_gpu_only(d, g)),
        (
            "no_shared_write: each block is one sequence's own, or filled once",
            forall(
                2,
                lambda q, i: implies(d.table.live(g, q, i), ownership.filled_once(d, g, q, i)),
                lambda q, i: [[d.table.at[g, q, i]]],
            ),
        ),
    ],
    opening=owns_nothing,
    laws=lambda d: [d.span_rises()],
)
CONTRACTS["rebuild"] = REBUILD
