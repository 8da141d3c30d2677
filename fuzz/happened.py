"""What happened in a run: the events that the report counts, and the profiles in which each of them must happen."""

from collections import Counter

from kvproof.core.status import Status
from kvproof.fuzz.illegal import CALLS
from kvproof.fuzz.passes import Pass
from kvproof.fuzz.priorities import cause

BOTH = ("kvproof", "vllm_v0")
ENDS = ("stopped", "length_capped", "capacity", "aborted", "ignored")
WHERE = ("waiting", "running", "in a prefill", "swapped")
MODES = ("recompute", "swap")

MUST = (
    *("prefills", "pieces", "decodes", "mixed steps", "swapped in", "copies"),
    *(f"preempted by {mode}" for mode in MODES),
    *("preempted for blocks", "preempted for priority"),
    *(f"forced by {mode}" for mode in MODES),
    *(
        "siblings recomputed",
        "siblings cut",
        "siblings aborted in a prefill",
        "delayed",
        "denied",
        "denied at random",
        "lookahead slots",
        "slots given back by a fork",
    ),
    *("forks", "forks of a child", "forks to n", "forks not reached", "dropped sequences", "seat kept for a beam"),
    *("accepted > 1", "accepted too many", "accepted of strangers", "results missing", "results of strangers"),
    *(f"aborted {where}" for where in WHERE),
    *("aborted in flight", "finished in flight", *(f"ended: {end}" for end in ENDS), "restored", "restored in flight"),
)
EVENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(MUST, BOTH),
    "seat kept for a beam": ("kvproof",),  # V0 keeps no seats: one for each sequence that lives
    "forks not reached": ("vllm_v0",),
    "slots given back by a pass": ("kvproof",),
    "preempted by a denial": ("kvproof",),  # V0 asks for blocks that it does not need: it cannot be told
    "idle": ("vllm_v0",),
    "preempted, though not the last": ("kvproof",),
    "overtaken by a rank": ("kvproof",),
    "ranks changed by an order": ("kvproof",),
    "victims named by auto": ("kvproof",),
    "protected ones run": ("kvproof",),
    "protected ones come in": ("kvproof",),
    "blocks are kept": ("kvproof",),
    "reranked in flight": BOTH,
}
"""Event -> the profiles in which it must happen in a run of a minute."""
ANYWHERE = tuple(f"refused: {kind}" for kind in CALLS)
"""Events that must happen in either."""


def of_pass(p: Pass) -> Counter[str]:
    """What this pass did."""
    plan = p.plan
    out: Counter[str] = Counter()
    out["prefills"] = sum(start == 0 for _, start, _ in plan.prefills)
    out["pieces"] = sum(start > 0 for _, start, _ in plan.prefills)
    out["decodes"] = len(plan.decodes)
    out["mixed steps"] = bool(plan.decodes and plan.prefills)
    out["nothing scheduled"] = not plan.scheduled and not plan.ended and bool(p.m.groups)
    out["swapped in"] = len(plan.resumed)
    out["copies"] = len(plan.copy)
    out["idle"] = len(plan.idle)
    for g, mode in plan.preempted:
        out[f"forced by {mode}" if g in p.forced else f"preempted by {mode}"] += 1
    out["siblings recomputed"] = sum(r.start == 0 for r in plan.recomputes)
    out["siblings cut"] = sum(r.start > 0 for r in plan.recomputes)
    if p.chosen:
        stay = {*p.before.running[1]}.intersection(p.after.running[1])
        out["preempted, though not the last"] = sum(any(p.m.rank(g) < p.m.rank(h) for h in stay) for g in p.chosen)
        out["victims named by auto"] = p.auto and out["preempted, though not the last"]
        out[f"preempted {cause(p)}"] += len(p.chosen)
    out["denied"] = sum(n - p.after.deny.get(g, 0) for g, n in p.before.deny.to_dict().items() if g not in dict(plan.ended))
    out["denied at random"] = p.after.denied - p.before.denied
    out["lookahead slots"] = sum(len(rows) > p.blocks(p.tokens(g)) for g in plan.decodes for rows in p.m.told.rows[g].values())
    out["slots given back by a pass"] = len(plan.trimmed)
    out["delayed"] = delayed(p)
    out["protected ones run"] = sum(p.protected(g) for g in p.before.running[1])
    out["protected ones come in"] = sum(p.protected(g) for g in (*p.admitted, *plan.resumed))
    out["blocks are kept"] = p.kept_after() > 0
    return +out


def delayed(p: Pass) -> bool:
    """Is it the delay, among other things, that kept the first of those that wait?"""
    waiting = p.before.waiting[1]
    if p.admitted or not waiting or not p.before.running[1] or p.waited(waiting):
        return False
    need = p.entry(waiting[0], p.takes(waiting[0]))
    return p.free - p.kept_before(p.before.running[1]) - need >= p.config.watermark_blocks


def name(status: int) -> str:
    """ "length_capped", ..."""
    return Status(status).name.lower().removeprefix("finished_")
