"""Prefills: who is admitted (waiting -> running), and prompts that are computed in pieces."""

from kvproof.core.blocks import allocate, rebuild
from kvproof.core.groups import end, leave, set_alarms
from kvproof.core.profiles import enqueue_back, first_in_line, fits_budget, has_room, never_fits, over_prompt_limit
from kvproof.core.promises import keep_promise, needed
from kvproof.core.status import Status
from kvproof.store.draft import Draft


def refuse(d: Draft, g: int) -> None:
    """A waiting group can never run: ignored if it has produced nothing yet, else ended with its tokens kept."""
    if d.length[g] > d.prompt[g]:
        end(d, g, Status.FINISHED_CAPACITY)
    else:
        end(d, g, Status.FINISHED_IGNORED)


def compute(d: Draft, g: int, rest: int) -> None:
    """The next piece of the prefill of g, which has `rest` tokens to go: as much as the budget takes, at least one.

    Of several sequences what they have in common is computed once; the tokens count sequence by sequence, in the order of their
    kin. After the last one g decodes; the commit gives it its next token.
    """
    left = d.config.max_num_batched_tokens - d.spent
    tokens = rest if rest <= left else left
    start = d.computed[g]
    d.computed[g] = start + tokens
    d.spent += tokens
    d.plan.prefill(g, start, tokens)
    if tokens == rest:
        d.prefilling.remove(g)
        d.born[g] = d.clock - d.length[g]
        set_alarms(d, g)
        d.sampling.add(g)


def compute_next(d: Draft) -> bool:
    """One step of going on with unfinished prefills, first in line first: as much as the budget takes."""
    if d.prefilling.empty() or d.spent >= d.config.max_num_batched_tokens:
        return False
    g = d.prefilling.first()
    compute(d, g, d.work(g, d.length[g]) - d.computed[g])
    return True


def go_on_with_prefills(d: Draft) -> None:
    """Unfinished prefills, as far as the budget goes."""
    d.repeat("compute", compute_next)


def admit(d: Draft, g: int, tokens: int, blocks: int) -> None:
    """WAITING -> RUNNING with tables for all tokens; the prefill, of `tokens` different ones, begins."""
    if d.members.count(g) == 1:
        allocate(d, g, blocks)
    else:
        rebuild(d, g, d.length[g])
    leave(d, g)
    d.status[g] = Status.RUNNING
    enqueue_back(d, g)
    d.running.add(g)
    d.seqs += d.seats[g]
    d.charged += d.seats[g]
    d.prefilling.add(g)
    d.ungiven[g] = 1
    keep_promise(d, g)
    d.mark_admission()
    compute(d, g, tokens)


def admit_next(d: Draft) -> bool:
    """One step of admission: the head of waiting is refused, admitted, or has to wait (it is not skipped)."""
    if d.waiting.empty() or (not d.running.empty() and d.delayed()):
        return False
    g = d.waiting.first()
    if d.plan.evicted(g) or not first_in_line(d, g):
        return False
    tokens = d.work(g, d.length[g])
    blocks = d.rows(g, d.length[g])
    need = needed(d, g, blocks)
    if over_prompt_limit(d, g, tokens) or never_fits(d, need):
        refuse(d, g)
        return True
    if not fits_budget(d, g, tokens) or not has_room(d, need):
        return False
    admit(d, g, tokens, blocks)
    return True


def admit_waiting(d: Draft) -> None:
    """Admit from the head of waiting, nobody skipped."""
    d.repeat("admit", admit_next)
