"""The pass, and the call that takes its results back.

    schedule:  prefills if it is their turn and anybody can be prefilled,
               else one token for everybody who decodes (evicting from the tail of the queue if blocks run out),
               and swap-ins if nobody was preempted.
    commit:    everybody scheduled has one token more, but for those that the engine says have not; who has ended, ends.

A pass costs what changes, not what runs: a decode step looks at the groups whose alarm rings.
"""

from kvproof.core.admission import admit_next, compute_next
from kvproof.core.errors import require
from kvproof.core.groups import end, finish_sequence
from kvproof.core.profiles import prefill_turn
from kvproof.core.running import schedule_running
from kvproof.core.status import Status
from kvproof.core.swapping import swap_in_next
from kvproof.store.draft import Draft, Ended
from kvproof.store.queues import Results


def schedule_prefills(d: Draft) -> None:
    """Unfinished prefills first, then who waits."""
    d.repeat("compute", compute_next)
    d.repeat("admit", admit_next)


def schedule_swapped(d: Draft) -> None:
    """Bring back who is swapped, in order, while there is room."""
    d.repeat("swap_in_next", swap_in_next)


def schedule(d: Draft) -> None:
    """One pass: decides and allocates everything of one step. The plan is in `d.plan`."""
    require(not d.issued, "the step before is not committed")
    d.epoch += 1
    d.spent = 0
    if prefill_turn(d):
        schedule_prefills(d)
    d.prefilled = d.spent > 0
    if not d.prefilled:
        schedule_running(d)
        if d.plan.nobody_preempted():
            schedule_swapped(d)
        if d.spent == 0:
            d.repeat("go_on", compute_next)
            d.prefilled = d.spent > 0
    d.issued = True


def hold(d: Draft, g: int) -> None:
    """g was scheduled for a token and has no result: it does not advance."""
    if not d.prefilling.has(g):
        d.born[g] += 1


def finish_one(d: Draft, g: int, q: int) -> None:
    """The engine says that q has ended. If it is gone already (aborted meanwhile, say) there is nothing left to do."""
    if d.status[g] == Status.RUNNING and d.members.has(g, q):
        finish_sequence(d, g, q)


def expire(d: Draft, g: int) -> None:
    """The calendar says that g may have reached its limit."""
    if d.clock - d.born[g] >= d.limit[g]:
        end(d, g, Status.FINISHED_LENGTH_CAPPED)
    else:
        d.expiry.move(g, d.born[g] + d.limit[g])


def commit(d: Draft, results: Results, ended: Ended) -> None:
    """Take back the results of the step: who was scheduled for a token and has a result advances; sequences in `ended` end.

    A result for a group that was not scheduled, or that was aborted meanwhile, has no effect.
    """
    require(d.issued, "no step is in flight")
    if d.prefilled:
        d.each("hold", d.sampling.minus(results), hold)
    else:
        d.each("hold", d.running.minus(results), hold)
        d.clock += 1
    d.sampling.clear()
    d.each_pair("ended", ended, finish_one)
    d.each_expiring("expire", expire)
    d.issued = False
