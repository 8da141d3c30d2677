"""A plan under the names that the clauses read on the symbolic plan (`kvproof.proofs.draft.ZPlan`)."""

from collections.abc import Iterable

from kvproof.spec.readings import Default, Has
from kvproof.spec.told import Told
from kvproof.store.plan import Plan

NOTHING = Plan(
    epoch=0,
    prefills=(),
    running=(),
    resumed=(),
    preempted=(),
    ended=(),
    swap_out=(),
    swap_in=(),
    copy=(),
    slots=(),
    decode=False,
)


def origins(pairs: Iterable[tuple[int, int]]) -> Default:
    """Target -> source; -1 for what is no target."""
    return Default({target: source for source, target in pairs}, -1)


class PlanView:
    """What the theorems say of a plan. Without a plan: that nothing was decided."""

    def __init__(self, plan: Plan | None, told: Told | None) -> None:
        p = NOTHING if plan is None else plan
        self.source = p
        self.total = sum(n for _, _, n in p.prefills)
        self.victims, self.ends, self.pieces = len(p.preempted), len(p.ended), len(p.prefills)
        self.outs, self.ins, self.copies = len(p.swap_out), len(p.swap_in), len(p.copy)
        self.victim, self.ended_ = Has(g for g, _ in p.preempted), Has(g for g, _ in p.ended)
        self.grown, self.back = Has(g for g, _, _, _ in p.slots), Has(p.resumed)
        self.piece = Default({g: n for g, _, n in p.prefills}, 0)
        self.first = Has(g for g, start, _ in p.prefills if start == 0)
        self.out_of, self.in_of, self.copy_of = origins(p.swap_out), origins(p.swap_in), origins(p.copy)
        self.out_to, self.in_to = Default(dict(p.swap_out), -1), Default(dict(p.swap_in), -1)
        self.copied_from = Has(s for s, _ in p.copy)
        self.named = {*self.victim.elements, *self.back.elements, *self.piece}
        self.blocks = {b for pairs in (p.swap_out, p.swap_in, p.copy) for pair in pairs for b in pair}
        rows = {} if told is None else told.rows
        self.told = {(g, q, i): b for g, tables in rows.items() for q, row in tables.items() for i, b in enumerate(row)}
        self.told_n = Default({(g, q): len(row) for g, tables in rows.items() for q, row in tables.items()}, 0)
