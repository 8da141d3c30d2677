"""Prefills: who is admitted (waiting -> running), and prompts longer than the token budget, which are computed in pieces."""

from kvproof.core.blocks import allocate
from kvproof.core.groups import end, leave, set_alarms
from kvproof.core.profiles import enqueue_back, first_in_line, fits_budget, has_room, never_fits, over_prompt_limit
from kvproof.core.status import Status
from kvproof.store.draft import Draft


def refuse(d: Draft, g: int) -> None:
    """A waiting group can never run: ignored if it has produced nothing yet, else ended with its tokens kept."""
    if d.length[g] > d.prompt[g]:
        end(d, g, Status.FINISHED_CAPACITY)
    else:
        end(d, g, Status.FINISHED_IGNORED)


def compute(d: Draft, g: int, tokens: int) -> None:
    """The next piece of the prefill of g. After the last one it has one token more and decodes."""
    start = d.computed[g]
    d.computed[g] = start + tokens
    d.spent += tokens
    d.plan.prefill(g, start, tokens)
    if start + tokens == d.length[g]:
        d.prefilling.remove(g)
        d.born[g] = d.clock - d.length[g] - 1
        set_alarms(d, g)
        d.sampling.add(g)


def compute_next(d: Draft) -> bool:
    """One step of going on with unfinished prefills, first in line first: as much as the budget takes."""
    if d.prefilling.empty():
        return False
    left = d.config.max_num_batched_tokens - d.spent
    if left <= 0:
        return False
    g = d.prefilling.first()
    rest = d.length[g] - d.computed[g]
    if rest <= left:
        compute(d, g, rest)
    else:
        compute(d, g, left)
    return True


def admit(d: Draft, g: int, tokens: int, blocks: int) -> None:
    """WAITING -> RUNNING with a table for the whole prompt; the prefill begins."""
    allocate(d, g, blocks)
    leave(d, g)
    d.status[g] = Status.RUNNING
    enqueue_back(d, g)
    d.running.add(g)
    d.seqs += d.seats[g]
    d.prefilling.add(g)
    if tokens > d.config.max_num_batched_tokens:
        compute(d, g, d.config.max_num_batched_tokens)
    else:
        compute(d, g, tokens)


def admit_next(d: Draft) -> bool:
    """One step of admission: the head of waiting is refused, admitted, or has to wait (it is not skipped)."""
    if d.waiting.empty():
        return False
    g = d.waiting.first()
    if not first_in_line(d, g):
        return False
    tokens = d.length[g]
    blocks = d.blocks_for(tokens)
    if over_prompt_limit(d, g, tokens) or never_fits(d, blocks):
        refuse(d, g)
        return True
    if not fits_budget(d, g, tokens) or not has_room(d, blocks):
        return False
    admit(d, g, tokens, blocks)
    return True
