"""The predicates in which the two profiles differ. `vllm_v0` decides as vLLM's V0 scheduler did; `kvproof` without its faults."""

from kvproof.core.blocks import blocks_needed
from kvproof.store.draft import Draft


def enqueue_back(d: Draft, g: int) -> None:
    """V0's queues are in order of joining; kvproof's are in policy order always, so the key stays what it was at arrival."""
    if d.config.vllm_v0:
        d.key[g] = d.ticket
        d.ticket += 1


def enqueue_front(d: Draft, g: int) -> None:
    """V0 puts a recompute victim in front of all that wait."""
    if d.config.vllm_v0:
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
        return False
    return d.key[g] < d.key[d.swapped.first()]


def next_to_return(d: Draft, g: int) -> bool:
    """May g, head of swapped, come back before what waits?"""
    if d.config.vllm_v0 or d.waiting.empty():
        return True
    return d.key[g] < d.key[d.waiting.first()]


def over_prompt_limit(d: Draft, g: int, tokens: int) -> bool:
    """kvproof applies max_model_len once, to the prompt; V0 applies it and the token budget to prompt + generated, each time."""
    if d.config.vllm_v0:
        return tokens > d.config.max_model_len or tokens > d.config.max_num_batched_tokens
    return d.prompt[g] > d.config.max_model_len


def never_fits(d: Draft, blocks: int) -> bool:
    """Can the pool never hold `blocks`? V0 counts the watermark against it."""
    if d.config.vllm_v0:
        return d.config.num_gpu_blocks - blocks < d.config.watermark_blocks
    return blocks > d.config.num_gpu_blocks


def has_room(d: Draft, blocks: int) -> bool:
    """Are `blocks` free with the watermark kept? kvproof drops it when nothing runs (V0 can wait for ever)."""
    if d.config.vllm_v0 or not d.running.empty():
        return d.gpu.n - blocks >= d.config.watermark_blocks
    return d.gpu.n >= blocks


def fits_budget(d: Draft, g: int, tokens: int) -> bool:
    """Has the pass room for this prompt? One longer than the whole budget starts with a full budget and is cut (kvproof)."""
    if d.seqs + d.seats[g] > d.config.max_num_seqs:
        return False
    if tokens > d.config.max_num_batched_tokens:
        return d.spent == 0
    return d.spent + tokens <= d.config.max_num_batched_tokens


def outgrew_pool(d: Draft, g: int, blocks: int) -> bool:
    """Can the pool not hold g with `blocks` more? kvproof ends it before anybody is evicted for it."""
    if d.config.vllm_v0:
        return False
    return d.table.distinct(g) + blocks > d.config.num_gpu_blocks


def host_blocks(d: Draft, g: int, tokens: int) -> int:
    """Host blocks asked for to swap g out: what it holds; V0 asks for what it would hold after its next append."""
    if d.config.vllm_v0:
        return d.table.distinct(g) + blocks_needed(d, g, tokens)
    return d.table.distinct(g)
