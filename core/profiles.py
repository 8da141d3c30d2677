"""The predicates in which the two profiles differ. `vllm_v0` decides as vLLM's V0 scheduler did; `kvproof` without its faults."""

from kvproof.core.blocks import blocks_needed, outgrown
from kvproof.store.draft import Draft


# --- queues and turns --------------------------------------------------------------------------------------------------
def enqueue_back(d: Draft, g: int) -> None:
    """V0's queues are in order of joining; kvproof's are in policy order always, so the key stays what it was at arrival."""
    if d.config.vllm_v0:
        d.key[g] = d.ticket
        d.ticket += 1


def enqueue_victim(d: Draft, g: int) -> None:
    """V0 puts a recompute victim in front of all that wait; with chunked prefill only after the pass, until then behind them."""
    if d.config.vllm_v0:
        if d.config.enable_chunked_prefill:
            d.key[g] = d.ticket
        else:
            d.key[g] = -d.ticket
        d.ticket += 1


def decoding(d: Draft) -> bool:
    """Does any running group decode (that is, is any past its prefill)?"""
    return d.running.count() != d.prefilling.count()


def prefill_turn(d: Draft) -> bool:
    """May this pass prefill? kvproof: after a prefill step the next step decodes if anything can (V0's decodes can starve)."""
    if d.config.vllm_v0:
        return True
    return not d.prefilled or not decoding(d)


def first_in_line(d: Draft, g: int) -> bool:
    """May g, head of waiting, be admitted before what is swapped? In kvproof waiting and swapped are one line in policy order."""
    if d.swapped.empty():
        return True
    if d.config.vllm_v0:
        return d.config.enable_chunked_prefill
    return d.key[g] < d.key[d.swapped.first()]


def next_to_return(d: Draft, g: int) -> bool:
    """May g, head of swapped, come back before what waits?"""
    if d.config.vllm_v0 or d.waiting.empty():
        return True
    return d.key[g] < d.key[d.waiting.first()]


# --- limits ------------------------------------------------------------------------------------------------------------
def over_prompt_limit(d: Draft, g: int, tokens: int) -> bool:
    """kvproof applies max_model_len once, to the prompt; V0 applies it and, unless prompts are cut, the token budget to
    prompt + generated, each time."""
    if d.config.vllm_v0:
        long = tokens > d.config.max_num_batched_tokens and not d.config.enable_chunked_prefill
        return d.length[g] > d.config.max_model_len or long
    return d.prompt[g] > d.config.max_model_len


def never_fits(d: Draft, blocks: int) -> bool:
    """Can the pool never hold `blocks`? V0 counts the watermark against it."""
    if d.config.vllm_v0:
        return d.config.num_gpu_blocks - blocks < d.config.watermark_blocks
    return blocks > d.config.num_gpu_blocks


def has_room(d: Draft, blocks: int) -> bool:
    """Are `blocks` free, and kept for nobody, above the watermark? kvproof drops it when nothing runs (V0 can wait for ever)."""
    if d.config.vllm_v0 or not d.running.empty():
        return d.gpu.n - d.owing - blocks >= d.config.watermark_blocks
    return d.gpu.n - d.owing >= blocks


def has_seats(d: Draft, g: int) -> bool:
    """Are there seats for g? With chunked prefill V0 counts only those that it has scheduled in this pass."""
    if d.config.vllm_v0 and d.config.enable_chunked_prefill:
        return d.charged + d.seats[g] <= d.config.max_num_seqs
    return d.seqs + d.seats[g] <= d.config.max_num_seqs


def fits_budget(d: Draft, g: int, tokens: int) -> bool:
    """Has the pass room for this prompt? If prompts are cut, for a part of it; else one longer than the whole budget starts with
    a full budget and is cut all the same (kvproof)."""
    if not has_seats(d, g):
        return False
    if d.config.enable_chunked_prefill:
        return d.spent < d.config.max_num_batched_tokens
    if tokens > d.config.max_num_batched_tokens:
        return d.spent == 0
    return d.spent + tokens <= d.config.max_num_batched_tokens


def outgrew_pool(d: Draft, g: int, blocks: int) -> bool:
    """Can the pool not hold g with `blocks` more? kvproof ends it before anybody is evicted for it."""
    if d.config.vllm_v0:
        return False
    return d.table.distinct(g) + blocks > d.config.num_gpu_blocks


# --- blocks ------------------------------------------------------------------------------------------------------------
def to_return(d: Draft, g: int, tokens: int) -> int:
    """Blocks that g, which has computed its prompt, is to have besides those it holds, to compute token `tokens` (V0: and
    lookahead slots)."""
    needed = blocks_needed(d, g, tokens)
    if d.config.vllm_v0 and d.config.num_lookahead_slots > 0:
        more = d.blocks_for(tokens + d.config.num_lookahead_slots) - d.table.height(g)
        if outgrown(d, g, tokens):
            more -= 1
        if more > 0:
            return needed + d.per_sequence(g, more)
    return needed


def touched(d: Draft, g: int, tokens: int) -> int:
    """Blocks that V0 asks for to append token `tokens` and lookahead slots: those that they lie in, whether new or not."""
    given = d.full_blocks(tokens - d.ungiven[g])
    return d.per_sequence(g, d.blocks_for(tokens + d.config.num_lookahead_slots) - given)


def host_blocks(d: Draft, g: int) -> int:
    """Host blocks asked for to swap running g out: what it holds; V0 asks for what it would hold after its next append."""
    if d.config.vllm_v0 and not d.prefilling.has(g):
        return d.table.distinct(g) + blocks_needed(d, g, d.clock - d.born[g])
    return d.table.distinct(g)


# --- the order of V0's running queue after a pass with chunked prefill ---------------------------------------------------
def standing(d: Draft, g: int) -> int:
    """Not reached, back from the host (decodes, then prefills), decodes, prefills (those that have ended first), new prefills."""
    if d.idle.has(g):
        return 0
    piece = d.plan.prefilled(g)
    if d.plan.returned(g):
        return 2 if piece else 1
    if not piece:
        return 0 if d.prefilling.has(g) else 3
    if d.plan.started(g):
        return 6
    return 5 if d.prefilling.has(g) else 4
