"""What the scheduler says on the logger `kvproof.scheduler`: a line for each preemption, for each request that ends before its
time, and (DEBUG) for each pass. Blocks are counted in the state before, so nothing is kept for it and silence costs nothing.
"""

import logging
from collections.abc import Sequence

from kvproof.core.status import Status
from kvproof.reasons import blocks_of
from kvproof.store.collections import row
from kvproof.store.plan import Plan
from kvproof.store.state import State

log = logging.getLogger("kvproof.scheduler")
logging.getLogger("kvproof").addHandler(logging.NullHandler())  # a program that has not set up logging hears nothing

LEVELS = {
    Status.FINISHED_CAPACITY: logging.WARNING,
    Status.FINISHED_IGNORED: logging.WARNING,
    Status.FINISHED_ABORTED: logging.INFO,
}
"""The ends that are told, and how loud."""
MOVED = {"recompute": "freed", "swap": "moved to the host"}


def held(state: State, g: int) -> int:
    """Blocks that g holds; what its sequences share counts once."""
    live = state.members.get(g, ((0,), 1))[0]
    return len({b for q in live for b in row(state.table, g, q)})


def tell_pass(before: State, after: State, plan: Plan, causes: Sequence[str]) -> None:
    """One pass: who was preempted and why (INFO), and what was decided (DEBUG)."""
    for (g, mode), cause in zip(plan.preempted, causes, strict=True):
        log.info(
            *("pass %d: request %d preempted by %s, cause %s: %s %s", plan.epoch, g, mode, cause),
            *(blocks_of(held(before, g)), MOVED[mode]),
        )
    if log.isEnabledFor(logging.DEBUG):
        log.debug(
            "pass %d: prefill %d tokens of %d requests, decode %d requests, %d resumed, %d preempted, %d ended; "
            "blocks %d out, %d in, %d copied, free %d + %d; waiting %d, running %d, swapped %d",
            *(plan.epoch, sum(n for _, _, n in plan.prefills), len(plan.prefills)),
            *(len(plan.running) - len(plan.unfinished) if plan.decode else 0, len(plan.resumed)),
            *(len(plan.preempted), len(plan.ended), len(plan.swap_out), len(plan.swap_in), len(plan.copy)),
            *(after.gpu_free, after.cpu_free, len(after.waiting[1]), len(after.running[1]), len(after.swapped[1])),
        )


def tell_end(before: State, g: int, status: Status, tokens: int, reason: str | None) -> None:
    """g has ended in a draft over `before`. Said of those in LEVELS only."""
    level = LEVELS.get(status)
    if level is not None and log.isEnabledFor(level):
        blocks = blocks_of(held(before, g))
        log.log(level, "request %d ended as %s with %d tokens, %s freed, cause: %s", g, status.name, tokens, blocks, reason)
