"""Who makes way for whom when requests have priorities is exactly as `kvproof.spec.displacing` says."""

from typing import Any

import z3

from kvproof.core import displacing
from kvproof.proofs.decisions import prove, state
from kvproof.proofs.prefill_phase import before_running
from kvproof.proofs.prefill_rules import leads
from kvproof.proofs.sym import SBool, fresh, run
from kvproof.spec import displacing as spec
from kvproof.spec.logic import both, either, iff, negate
from kvproof.spec.ownership import S, W


def last_of(d: Any, g: Any) -> Any:
    """The last that runs and may make way for g, if anybody runs."""
    if d.running.n >= 1:
        return d.running.last() if d.config.vllm_v0 else d.last_below(g)
    return fresh("last")


def case_displaced() -> None:
    """One step of making way, for any group that waits or is swapped."""
    d: Any = state(before_running)
    g: Any = fresh("g")
    blocks: Any = fresh("blocks")
    run().assume(either(d.status[g] == W, d.status[g] == S))
    e = d.snap()
    last = last_of(e, g)
    went_on = displacing.displace_next(d, g, blocks)
    prove(spec.step(d, e, g, blocks, last, went_on), "displace_next")


def asked_for(g: Any, blocks: Any, when: str) -> None:
    """Whoever makes way does so for g, and as many as free so many blocks."""
    if "way" in run().notes:
        head, needed = run().notes["way"]
        run().prove(f"victim_is_last: for the head, and what it needs [{when}]", both(head == g, needed == blocks))


def case_way() -> None:
    """kvproof: for whom others make way, and how many."""
    d = state(before_running)
    run().assume(negate(d.config.vllm_v0))
    e = d.snap()
    delay: Any = SBool(z3.BoolVal(False))
    g: Any = fresh("g")
    blocks: Any = fresh("blocks")
    if both(d.running.n >= 1, either(d.waiting.n >= 1, d.swapped.n >= 1)):
        if d.waiting.n >= 1:
            delay = d.delayed()
        g = displacing.line_head(d)
        run().prove("victim_is_last: the head of the line [displace]", leads(e, g))
        kept, right = displacing.kept_back(d, g, delay), spec.kept_back(e, g, delay)
        blocks = displacing.lacking(d, g)
        run().prove("victim_is_last: who would not come in, as the text says [displace]", iff(kept, right))
        run().assume(iff(kept, right))
        run().prove("victim_is_last: what it needs, as the text says [displace]", blocks == spec.needed(e, g))
        run().assume(blocks == spec.needed(e, g))
        may, right = displacing.can_make_way(d, g, blocks), spec.makes_way(e, g, blocks)
        run().prove("victim_is_last: whether there is room without them, as the text says [displace]", iff(may, right))
        run().assume(iff(may, right))
    displacing.displace(d)
    asked_for(g, blocks, "displace")
    prove(spec.way(d, e, g, blocks, delay, last_of(d, g)), "displace")


def case_way_v0() -> None:
    """V0: whoever ranks below the head of waiting, while it lacks room."""
    d = state(before_running)
    run().assume(d.config.vllm_v0)
    e = d.snap()
    g: Any = fresh("g")
    blocks: Any = fresh("blocks")
    if d.waiting.n >= 1:
        g = e.waiting.first()
        run().assume(blocks == spec.needed_v0(e, g))
    displacing.displace_v0(d)
    asked_for(g, blocks, "displace_v0")
    prove(spec.way_v0(d, e, g, blocks, last_of(d, g)), "displace_v0")


CASES: dict[str, Any] = {
    "displaced": (case_displaced, ("evict",), "displace_next"),
    "way": (case_way, ("evict",), "displace"),
    "way_v0": (case_way_v0, ("evict",), "displace_v0"),
}
