"""Bounded preemption: who was preempted `max_preemptions_per_request` times is protected (`Draft.may_go` says no).

It comes in again only when all blocks that it may ever hold can be kept for it, and is never a victim. What is kept is a number:
`owed[g]`, the blocks that running g may still take (0 for all that are not protected). `owing` is the sum: for everybody else so
many blocks fewer are free.
"""

from kvproof.store.draft import Draft


def most(d: Draft, g: int) -> int:
    """GPU blocks that g may come to hold until its output limit, or till it has outgrown the pool."""
    blocks = d.ceiling(g)
    if blocks > d.config.num_gpu_blocks:
        return d.config.num_gpu_blocks
    return blocks


def needed(d: Draft, g: int, blocks: int) -> int:
    """GPU blocks that must be free for g to come in, of which it takes `blocks` at once: all that it may come to hold, if it is
    protected. Of several sequences, which share some, that is an upper bound, for which the whole pool will do."""
    if d.may_go(g):
        return blocks
    whole = d.ceiling(g) if d.seats[g] == 1 else most(d, g)
    return whole if whole > blocks else blocks


def free(d: Draft, g: int) -> int:
    """GPU blocks that are free for g: those that are kept for nobody else. Without a limit none are."""
    return d.gpu.n - d.owing + d.owed[g]


def promised(d: Draft, g: int) -> int:
    """Blocks to be kept for running g, if it is protected: those that it may take besides what it holds."""
    if d.may_go(g) or most(d, g) <= d.table.distinct(g):
        return 0
    return most(d, g) - d.table.distinct(g)


def owe(d: Draft, g: int, blocks: int) -> None:
    """So many blocks are kept for g."""
    d.owing += blocks - d.owed[g]
    d.owed[g] = blocks


def keep_promise(d: Draft, g: int) -> None:
    """Running g has taken blocks, or given some back: what is kept for it follows."""
    owe(d, g, promised(d, g))
