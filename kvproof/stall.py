"""Who blocks a scheduler that cannot go on, and what it lacks. Only profile vllm_v0 gets there, where V0 hangs."""

from kvproof.core.blocks import blocks_needed
from kvproof.reasons import blocks_of
from kvproof.store.draft import Draft
from kvproof.store.state import State


def head(d: Draft) -> int:
    """The group that the others wait for: the first that runs, else the first in line."""
    if not d.running.empty():
        return d.running.first()
    if d.swapped.empty() or d.waiting.empty():
        return d.waiting.first() if d.swapped.empty() else d.swapped.first()
    if d.config.vllm_v0 or d.key[d.swapped.first()] < d.key[d.waiting.first()]:
        return d.swapped.first()
    return d.waiting.first()


def wanted(d: Draft, g: int) -> int:
    """GPU blocks that must be free for g to go on."""
    if d.running.has(g) and not d.prefilling.has(g):
        return blocks_needed(d, g, d.clock - d.born[g])
    if d.swapped.has(g):
        return d.table.distinct(g) + blocks_needed(d, g, d.length[g])
    return d.blocks_for(d.length[g])


def blocking(state: State) -> tuple[int, str]:
    """(group, what it lacks) of the head of the line that does not move. Somebody must be unfinished."""
    d = Draft(state)
    try:
        g = head(d)
        kept = f", of which {state.config.watermark_blocks} are kept as watermark" if state.config.watermark_blocks else ""
        free = f"{state.gpu_free} of {state.config.num_gpu_blocks} are free"
        return g, f"needs {blocks_of(wanted(d, g))} of the GPU pool, {free}{kept}"
    finally:
        d.abandon()
