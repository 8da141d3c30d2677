"""The symbolic plan of a pass: what has been decided and announced so far, as the theorems speak of it."""

from typing import Any

from kvproof.proofs.block_shapes import ZERO, Shape, assume, prove
from kvproof.proofs.shapes import ZIds
from kvproof.proofs.sym import ZMap, forall
from kvproof.spec.logic import both, choose, negate


def _everywhere(m: ZMap, value: Any) -> Any:
    """Is this true of each entry?"""
    return forall(1, lambda t: value(m[t]), lambda t: [[m[t]]])


class ZPlan(Shape):
    """What a pass has decided so far, as the theorems speak of it."""

    parts = (
        *("total", "victims", "left", "ends", "pieces", "outs", "ins", "copies"),
        *("victim", "ended_", "grown", "piece", "first", "back"),
        *("told", "told_n", "out_of", "in_of", "copy_of", "copied_from"),
    )

    victim: ZMap
    ended_: ZMap
    grown: ZMap
    first: ZMap
    back: ZMap
    out_of: ZMap
    in_of: ZMap
    copy_of: ZMap

    def __init__(self) -> None:
        self.total = self.victims = self.left = self.ends = self.pieces = self.outs = self.ins = self.copies = ZERO
        for name in ("victim", "ended_", "grown", "first", "back"):
            m = ZMap(name, 1, truth=True)
            m.fill(False)
            setattr(self, name, m)
        self.piece = ZMap("piece")
        self.piece.fill(0)
        self.told, self.told_n = ZMap("told", 3), ZMap("told_n", 2)
        for name in ("out_of", "in_of", "copy_of"):
            m = ZMap(name)
            m.fill(-1)
            setattr(self, name, m)
        self.copied_from = ZMap("copied_from", 1, truth=True)
        self.copied_from.fill(False)

    def untouched(self) -> Any:
        """Nothing is planned."""
        numbers = ("total", "victims", "left", "ends", "pieces", "outs", "ins", "copies")
        truths, maps = ("victim", "ended_", "grown", "first", "back", "copied_from"), ("out_of", "in_of", "copy_of")
        return both(
            *[getattr(self, n) == 0 for n in numbers],
            *[_everywhere(getattr(self, n), negate) for n in truths],
            *[_everywhere(getattr(self, n), lambda v: v == -1) for n in maps],
            _everywhere(self.piece, lambda v: v == 0),
        )

    def contract(self) -> None:
        """Numbers of things are not negative."""
        assume(both(*[getattr(self, p) >= 0 for p in ("victims", "left", "ends", "pieces", "outs", "ins", "copies")]))

    def nobody_preempted(self) -> Any:
        """No victim yet?"""
        return self.victims == 0

    def evictions(self) -> Any:
        """How many victims."""
        return self.victims

    def evicted(self, g: Any) -> Any:
        """Is g a victim?"""
        return self.victim[g]

    def evicted_groups(self) -> ZIds:
        """The victims."""
        victim = self.victim.snap()
        return ZIds(lambda g: victim[g])

    def moves_out(self) -> Any:
        """Has anybody been swapped out?"""
        return self.left > 0

    def prefilled(self, g: Any) -> Any:
        """Has g a piece?"""
        return self.piece[g] > 0

    def started(self, g: Any) -> Any:
        """Is it the first?"""
        return self.first[g]

    def returned(self, g: Any) -> Any:
        """Has g come back?"""
        return self.back[g]

    def trimmed(self, g: Any, q: Any, n: Any) -> None:
        """The engine cuts its table."""
        self.told_n[g, q] = n

    def slot(self, g: Any, q: Any, i: Any, b: Any) -> None:
        """Announced: the i-th block of q is b. Obligation: i is in the announced table or appends to it."""
        n = self.told_n[g, q]
        prove("plan_reports_tables: a slot replaces or appends", both(i >= 0, i <= n))
        self.told[g, q, i] = b
        self.told_n[g, q] = choose(i == n, n + 1, n)
        self.grown[g] = True

    def copied(self, source: Any, target: Any) -> None:
        """A copy-on-write pair. Obligations: any order within the list gives the same."""
        prove(
            "no_hazard_ordered: copy target is no source or target",
            both(negate(self.copied_from[target]), self.copy_of[target] == -1),
        )
        prove("no_hazard_ordered: copy source is no target", both(self.copy_of[source] == -1, source != target))
        self.copy_of[target] = source
        self.copied_from[source] = True
        self.copies = self.copies + 1

    def copied_out(self, source: Any, target: Any) -> None:
        """A swap-out pair."""
        prove("swap_map_bijective: swap-out target is new", self.out_of[target] == -1)
        self.out_of[target] = source
        self.outs = self.outs + 1

    def copied_in(self, source: Any, target: Any) -> None:
        """A swap-in pair."""
        prove("swap_map_bijective: swap-in target is new", self.in_of[target] == -1)
        self.in_of[target] = source
        self.ins = self.ins + 1

    def prefill(self, g: Any, start: Any, tokens: Any) -> None:
        """A prefill or a piece of one."""
        self.total = self.total + tokens
        self.piece[g] = tokens
        self.first[g] = start == 0
        self.pieces = self.pieces + 1

    def resumed(self, g: Any) -> None:
        """Swapped in."""
        self.back[g] = True

    def preempted(self, g: Any, mode: str) -> None:
        """A victim: the engine drops its table."""
        self.victim[g] = True
        self.victims = self.victims + 1
        if mode == "swap":
            self.left = self.left + 1
        self._drop(g)

    def ended(self, g: Any, outcome: Any) -> None:
        """Refused or ended: the engine drops its table."""
        self.ended_[g] = True
        self.ends = self.ends + 1
        self._drop(g)

    def dropped(self, g: Any, q: Any) -> None:
        """One sequence has ended: the engine drops its table."""
        self.told_n[g, q] = 0

    def _drop(self, g: Any) -> None:
        self.told_n.update(lambda old, t, q: choose(t == g, 0, old))
