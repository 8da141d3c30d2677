"""Laws about the blocks that a group may come to hold, and the proof of what is kept for it."""

from typing import Any

from kvproof.proofs.block_shapes import assume
from kvproof.proofs.sym import forall, fresh
from kvproof.spec.logic import both, choose, either, implies, negate


def ceiling_laws(d: Any, g: Any) -> None:
    """A group whose n tables have one size h holds at most n * h different blocks, and fewer by one for each tail that is shared
    (`lemmas.py`, pigeonhole: each block has an entry of its own). So it is below its ceiling before it takes its next blocks."""
    t, m, row = d.table, d.members, fresh("row")
    assume(implies(m.n[g] >= 1, m.has_[g, row]))
    h, copies, top = t.size_[g, row], t.pending_copies(g), d.limit[g] - 1
    flat = forall(1, lambda q: t.size_[g, q] <= choose(m.has_[g, q], h, 0), lambda q: [[t.size_[g, q]]])
    sized = both(flat, m.n[g] >= 1, m.n[g] <= d.seats[g], h >= 1)
    grown = implies(d.span(h) < top, t.held[g] + m.n[g] <= d.ceiling(g))
    copied = implies(d.span(h - 1) < top, t.held[g] + copies <= d.ceiling(g))
    assume(either(negate(sized), both(grown, copied)))
