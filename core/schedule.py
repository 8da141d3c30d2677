"""The pass, and the call that takes its results back.

    schedule:  prefills if it is their turn and anybody can be prefilled,
               else one token for everybody who decodes (evicting from the tail of the queue if blocks run out),
               and swap-ins if nobody was preempted.
               With chunked prefill: decodes, then parts of prompts with what is left of the token budget, in one step.
    commit:    everybody scheduled has one token more (or several, if it had lookahead slots), but for those that the engine
               says have not; who has ended, ends.

A pass costs what changes, not what runs: a decode step looks at the groups whose alarm rings.
"""

from collections.abc import Mapping

from kvproof.core.admission import admit_waiting, compute_next, go_on_with_prefills
from kvproof.core.displacing import displace, displace_v0
from kvproof.core.errors import require
from kvproof.core.groups import end, finish_sequence, grown_until, trim
from kvproof.core.profiles import prefill_turn, standing
from kvproof.core.running import force, look_ahead, schedule_running
from kvproof.core.status import Status
from kvproof.core.swapping import swap_in_next
from kvproof.store.draft import Draft
from kvproof.store.loops import Pairs
from kvproof.store.queues import Results

NOBODY: Pairs = ()
NOTHING: Mapping[int, int] = {}


# --- the pass ----------------------------------------------------------------------------------------------------------
def schedule_prefills(d: Draft) -> None:
    """Unfinished prefills first, then who waits."""
    go_on_with_prefills(d)
    admit_waiting(d)


def schedule_swapped(d: Draft) -> None:
    """Bring back who is swapped, in order, while there is room."""
    d.repeat("swap_in_next", swap_in_next)


def decode(d: Draft) -> None:
    """The running phase, and swap-ins if nobody was preempted (V0: in this phase)."""
    before = d.plan.evictions()
    schedule_running(d)
    if d.plan.nobody_preempted() or (d.config.vllm_v0 and d.plan.evictions() == before and not d.plan.moves_out()):
        schedule_swapped(d)


def step_of_prefills(d: Draft) -> None:
    """Prefills, if it is their turn. If there was none, a head of higher rank displaces who runs (kvproof: and comes in then)."""
    if prefill_turn(d):
        schedule_prefills(d)
        if d.spent == 0 and d.config.priority:
            if d.config.vllm_v0:
                displace_v0(d)
            else:
                displace(d)
                admit_waiting(d)
    d.prefilled = d.spent > 0


def schedule_either(d: Draft) -> None:
    """A step of prefills or one of decodes."""
    step_of_prefills(d)
    if not d.prefilled:
        decode(d)
        if d.spent == 0:
            d.repeat("go_on", compute_next)
            d.prefilled = d.spent > 0


def to_front(d: Draft, g: int) -> None:
    """V0 puts g, which was preempted by recompute, in front of all that wait."""
    if d.status[g] == Status.WAITING:
        d.waiting.remove(g)
        d.key[g] = -d.ticket
        d.ticket += 1
        d.waiting.add(g)


def schedule_mixed(d: Draft) -> None:
    """A step of decodes and of parts of prompts."""
    if d.config.vllm_v0:
        decode(d)
        admit_waiting(d)
        d.each("to_front", d.plan.evicted_groups(), to_front)
        d.arrange_running(standing)
    else:
        if d.config.priority:
            displace(d)
        schedule_running(d)
        go_on_with_prefills(d)
        if d.plan.nobody_preempted():
            schedule_swapped(d)
        admit_waiting(d)


def schedule(d: Draft, forced: Pairs = NOBODY) -> None:
    """One pass: decides and allocates everything of one step. The plan is in `d.plan`.

    Lookahead slots are a wish in kvproof: those that have not become tokens are free for whatever the pass decides, and reserved
    again with what is left. So it decides as it would without them.

    forced: (group, mode) that events preempt before it; mode 0 as the policy wishes, 1 recompute, 2 swap.
    """
    require(not d.issued, "the step before is not committed")
    d.epoch += 1
    d.spent = 0
    d.charged = 0
    ahead = d.config.num_lookahead_slots > 0 and not d.config.vllm_v0
    if ahead:
        d.each_running("trim_all", trim)
    d.each_pair("force", forced, force)
    if d.config.enable_chunked_prefill:
        d.prefilled = False
        schedule_mixed(d)
    else:
        schedule_either(d)
    if ahead and not d.prefilled:
        d.each_running("look_ahead_all", look_ahead)
    d.issued = True


# --- commit ------------------------------------------------------------------------------------------------------------
def hold(d: Draft, g: int) -> None:
    """g runs and has no result: it does not advance with the clock."""
    if not d.prefilling.has(g):
        d.born[g] += 1
        if d.config.num_lookahead_slots > 0 and not d.config.vllm_v0:
            d.due.move(g, d.alarm[g] + 1)


def advance(d: Draft, g: int) -> None:
    """The prefill of g ended in a step of prefills and gave it its next token; the clock does not move."""
    d.born[g] -= 1
    d.due.move(g, grown_until(d, g))
    d.expiry.move(g, d.born[g] + d.limit[g])


def decoded(d: Draft, g: int) -> bool:
    """Did the step compute a token of g that follows another? The tokens of who has just been prefilled do not count."""
    return d.status[g] == Status.RUNNING and not d.prefilling.has(g) and not d.sampling.has(g) and not d.idle.has(g)


def accept(d: Draft, g: int, more: int, results: Results) -> None:
    """Lookahead: g, if it decoded and has a result, got `more` tokens beyond the next, as far as its lookahead slots and its
    limit go."""
    if decoded(d, g) and results.has(g):
        tokens = d.clock - d.born[g]
        room = d.capacity(g) - tokens
        if room > d.config.num_lookahead_slots:
            room = d.config.num_lookahead_slots
        if room > d.limit[g] - tokens - 1:
            room = d.limit[g] - tokens - 1
        if more > room:
            more = room
        if more > 0:
            d.born[g] -= more
            d.ungiven[g] = more + 1
            d.due.move(g, d.born[g] + d.slots_for(tokens + more) + 1)
            d.expiry.move(g, d.born[g] + d.limit[g])


def finish_one(d: Draft, g: int, q: int) -> None:
    """The engine says that q has ended. If it is gone already (aborted meanwhile, say) there is nothing left to do; nor can it
    leave siblings while they are being recomputed."""
    if d.status[g] == Status.RUNNING and d.members.has(g, q) and (d.members.count(g) == 1 or not d.prefilling.has(g)):
        finish_sequence(d, g, q)


def expire(d: Draft, g: int) -> None:
    """The calendar says that g may have reached its limit."""
    if d.clock - d.born[g] >= d.limit[g]:
        end(d, g, Status.FINISHED_LENGTH_CAPPED)
    else:
        d.expiry.move(g, d.born[g] + d.limit[g])


def commit(d: Draft, results: Results, ended: Pairs, more: Mapping[int, int] = NOTHING) -> None:
    """Take back the results of the step: who was scheduled for a token and has a result advances; sequences in `ended` end.

    more: the tokens of groups that lookahead gave besides. A result for a group that was not scheduled, or that was aborted
    meanwhile, has no effect.
    """
    require(d.issued, "no step is in flight")
    if d.prefilled:
        d.each("advance", d.sampling.meet(results), advance)
    else:
        d.each_item("accept", more, accept, results)
        d.each("hold", d.running.minus(results, d.idle), hold)
        d.clock += 1
    d.sampling.clear()
    d.idle.clear()
    d.each_pair("ended", ended, finish_one)
    d.each_expiring("expire", expire)
    d.issued = False


# --- several at once ---------------------------------------------------------------------------------------------------
def quiet(d: Draft) -> bool:
    """Is there nothing to decide in the next pass? Who runs decodes, nobody has siblings or is in line; there are blocks
    for all that need one; nobody is at its limit then; no test of an engine may answer no."""
    if d.config.vllm_v0 or d.config.num_lookahead_slots > 0 or d.testing or d.running.empty():
        return False
    if not d.waiting.empty() or not d.swapped.empty() or not d.prefilling.empty():
        return False
    return not d.siblings() and d.due_count() <= d.gpu.n - d.owing and not d.expiring(d.clock + 1)


def forward_next(d: Draft, last: int, results: Results) -> bool:
    """One more pass and the commit of its results, if there is nothing to decide in it; or as many as nobody needs a block in."""
    if d.epoch >= last or not quiet(d):
        return False
    idle = d.idle_steps(last - d.epoch)
    if idle > 0:
        d.clock += idle
        d.epoch += idle
        d.prefilled = False
    else:
        schedule(d)
        d.next_plan()
        commit(d, results, NOBODY)
        d.next_plan()
    return True


def forward(d: Draft, passes: int, results: Results) -> None:
    """At most so many passes, each with the commit of its results, as long as there is nothing to decide in them.

    For simulations: it is the same as one by one, but nobody is told of the blocks that are given on the way.
    """
    require(not d.issued, "a step is in flight")
    require(passes >= 1, "passes must be >= 1")
    d.repeat("forward", forward_next, d.epoch + passes, results)
