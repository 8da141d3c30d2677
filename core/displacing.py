"""Priority: a head of the line that lacks blocks or seats displaces those that run and rank below it, as few as it needs."""

from kvproof.core.profiles import has_room, has_seats, over_prompt_limit
from kvproof.core.promises import needed
from kvproof.core.running import evict
from kvproof.core.status import Status
from kvproof.core.swapping import returning
from kvproof.store.draft import Draft


def displace_next(d: Draft, g: int, blocks: int) -> bool:
    """One step: while g lacks blocks or a seat, the last of those that run and may go does, if it ranks below g."""
    if d.running.empty() or (has_room(d, blocks) and has_seats(d, g)):
        return False
    victim = d.running.last() if d.config.vllm_v0 else d.last_below(g)
    if d.rank(victim) <= d.rank(g):
        return False
    evict(d, victim, d.swaps(victim))
    d.preemptions[victim] += 1
    return True


def line_head(d: Draft) -> int:
    """Who is first of all that wait or are swapped; somebody is."""
    if d.waiting.empty():
        return d.swapped.first()
    if d.swapped.empty() or d.key[d.waiting.first()] < d.key[d.swapped.first()]:
        return d.waiting.first()
    return d.swapped.first()


def lacking(d: Draft, g: int) -> int:
    """GPU blocks that must be free for g, which waits or is swapped, to go on."""
    if d.status[g] == Status.WAITING:
        return needed(d, g, d.rows(g, d.length[g]))
    return needed(d, g, returning(d, g))


def kept_back(d: Draft, g: int, delayed: bool) -> bool:
    """Would g, first of the line, not come in whoever makes way? `delayed`: have those that wait not waited long enough?"""
    if d.plan.evicted(g):
        return True
    return d.status[g] == Status.WAITING and (delayed or over_prompt_limit(d, g, d.length[g]))


def can_make_way(d: Draft, g: int, blocks: int) -> bool:
    """Has g, which needs so many blocks, room without all that rank below it and may go? The watermark is kept if others run.

    In a step of decodes and prompts those that rank above g must leave it a token.
    """
    if d.config.enable_chunked_prefill and d.tokens_before(g) >= d.config.max_num_batched_tokens:
        return False
    freed, seats = d.behind(g)
    if d.seqs > seats:
        freed -= d.config.watermark_blocks
    return blocks <= d.gpu.n - d.owing + freed and d.seqs - seats + d.seats[g] <= d.config.max_num_seqs


def displace(d: Draft) -> None:
    """kvproof: nobody goes unless all that rank below the head together make room for it, and it comes in then."""
    if d.running.empty() or (d.waiting.empty() and d.swapped.empty()):
        return
    g = line_head(d)
    if kept_back(d, g, not d.waiting.empty() and d.delayed()):
        return
    blocks = lacking(d, g)
    if can_make_way(d, g, blocks):
        d.repeat("displace", displace_next, g, blocks)


def displace_v0(d: Draft) -> None:
    """V0 sorts what runs, then evicts for the head of waiting as it stands whoever ranks below it, then sorts what waits."""
    d.sort_running()
    if not d.waiting.empty():
        g = d.waiting.first()
        if d.work(g, d.length[g]) > d.config.max_num_batched_tokens:
            d.repeat("displace", displace_next, g, d.config.num_gpu_blocks + 1)
        else:
            d.repeat("displace", displace_next, g, d.rows(g, d.length[g]))
        d.sort_waiting()
