"""Why a request ended, in one sentence that names the limit it met. Read only when a group ends, so it costs nothing else."""

from kvproof.core.status import Status
from kvproof.store.collections import row
from kvproof.store.draft import Draft
from kvproof.store.state import State


def blocks_of(count: int) -> str:
    """ "1 block", "2 blocks"."""
    return f"{count} block" if count == 1 else f"{count} blocks"


def pool(d: Draft) -> str:
    """How much of the GPU pool a request may ever have; V0 never gives the watermark away."""
    config = d.config
    if config.vllm_v0 and config.watermark_blocks:
        return f"the pool has {config.num_gpu_blocks}, of which {config.watermark_blocks} are kept as watermark"
    return f"the pool has {config.num_gpu_blocks}"


def refused(d: Draft, g: int) -> str:
    """It was refused before it produced a token: which limit its prompt exceeds."""
    tokens = d.prompt[g]
    if tokens > d.config.max_model_len:
        return f"prompt of {tokens} tokens exceeds max_model_len {d.config.max_model_len}"
    if d.config.vllm_v0 and not d.config.enable_chunked_prefill and tokens > d.config.max_num_batched_tokens:
        return f"prompt of {tokens} tokens exceeds max_num_batched_tokens {d.config.max_num_batched_tokens}"
    if d.blocks_for(tokens) <= d.config.num_gpu_blocks and not d.may_go(g):
        return unkept(d, g)
    return f"prompt of {tokens} tokens needs {blocks_of(d.blocks_for(tokens))}, {pool(d)}"


def unkept(d: Draft, g: int) -> str:
    """It may not be preempted, and the pool is too small for all that it may come to hold."""
    most = f"max_preemptions_per_request {d.config.max_preemptions_per_request}"
    return f"prompt and output of {d.limit[g]} tokens need {blocks_of(d.ceiling(g))}, {pool(d)}, and {most} forbids to preempt it"


def out_of_capacity(before: State, d: Draft, g: int) -> str:
    """It was ended with its tokens kept: what it would have needed. Only the state before still has its tables."""
    tokens = d.length[g]
    if d.config.vllm_v0 and before.status[g] == Status.WAITING and tokens > d.config.max_model_len:
        return f"prompt and output of {tokens} tokens exceed max_model_len {d.config.max_model_len} after a recompute"
    tables = [row(before.table, g, q) for q in d.members.of(g)]
    held = len({b for table in tables for b in table})
    work, budget = d.work(g, tokens), d.config.max_num_batched_tokens
    if not held and d.config.vllm_v0 and not d.config.enable_chunked_prefill and work > budget:
        return f"its sequences have {work} different tokens, max_num_batched_tokens is {budget}, after a recompute"
    if before.status[g] != Status.RUNNING and d.seats[g] == 1 and not d.may_go(g) and d.ceiling(g) > d.config.num_gpu_blocks:
        return unkept(d, g)
    if not held:
        needed = d.rows(g, tokens)
    elif d.blocks_for(tokens) > len(tables[0]):
        needed = held + len(tables)
    else:
        needed = held + len(tables) - len({table[-1] for table in tables})
    return f"needs {blocks_of(needed)} for its next token, {pool(d)}"


def reason(before: State, d: Draft, g: int, status: Status, capped: bool) -> str | None:
    """Why g ended in this draft over `before`; None: it simply got its output. `capped`: max_model_len cut its output."""
    if status == Status.FINISHED_IGNORED:
        return refused(d, g)
    if status == Status.FINISHED_CAPACITY:
        return out_of_capacity(before, d, g)
    if status == Status.FINISHED_ABORTED:
        return f"aborted while {Status(before.status[g]).name.lower()}"
    if status == Status.FINISHED_LENGTH_CAPPED and capped:
        return f"reached max_model_len {d.config.max_model_len}"
    return None
