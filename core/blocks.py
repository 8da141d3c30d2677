"""Ownership: the only code that takes, shares, copies or gives back a block.

    pool ----------------------> table.extend        take_block   (0 -> 1 references)
    refs.share ----------------> table.append        share_block  (k -> k + 1)
    table.pop_block -> refs.drop -> pool.push if 0   drop_block   (k -> k - 1)

Ids of GPU blocks are 0 .. num_gpu_blocks - 1, those of host blocks follow; they never cross.
The slots of a running group's next token must exist and lie in blocks of their own before the step runs:
a step that computes tokens up to length L writes slots up to L - 1, so the table holds ceil(L / block_size) blocks.
"""

from kvproof.store.draft import Draft


def take_block(d: Draft, q: int, g: int) -> None:
    """Sequence q of group g gets one more GPU block at the end of its table."""
    d.table.extend(g, q, d.gpu)


def allocate(d: Draft, g: int, blocks: int) -> None:
    """The table of the only sequence of g, which owns nothing yet, gets `blocks` GPU blocks; the pool holds that many."""
    d.times("fill", blocks, take_block, d.members.first(g), g)


def rebuild_sequence(d: Draft, q: int, g: int, origin: int, common: int, tokens: int) -> None:
    """Sequence q of g, which owns nothing yet, gets a table for `tokens` tokens.

    It shares with `origin` the blocks that their first `common` tokens fill. The last block, which it writes next, is its own.
    """
    if common >= tokens:
        common = tokens - 1
    shared = d.full_blocks(common)
    d.each_index("share_again", shared, share_block, g, origin, q)
    d.times("take_rest", d.blocks_for(tokens) - shared, take_block, q, g)


def rebuild(d: Draft, g: int, tokens: int) -> None:
    """Every sequence of g, which own nothing yet, gets a table for `tokens` tokens, in which common blocks are shared again."""
    d.each_kin("rebuild", g, rebuild_sequence, tokens)


def give_back(d: Draft, b: int) -> None:
    """One reference to b less; the last one frees it."""
    if d.refs.drop(b):
        if b < d.config.num_gpu_blocks:
            d.gpu.push(b)
        else:
            d.cpu.push(b)


def drop_block(d: Draft, g: int, q: int) -> None:
    """Sequence q gives back its last block."""
    give_back(d, d.table.pop_block(g, q))


def release_sequence(d: Draft, q: int, g: int) -> None:
    """Sequence q owns nothing any more."""
    d.times("release", d.table.size(g, q), drop_block, g, q)


def release(d: Draft, g: int) -> None:
    """No sequence of g owns anything any more."""
    d.each_member("release_all", g, release_sequence)


def share_block(d: Draft, i: int, g: int, parent: int, child: int) -> None:
    """The i-th block of the child is the i-th block of its parent."""
    b = d.table.block(g, parent, i)
    d.refs.share(b)
    d.table.append(g, child, b)


def unshare(d: Draft, q: int, g: int) -> None:
    """Copy-on-write: if the tail of q, which is about to be written, is shared, then q gets a copy of its own."""
    i = d.table.size(g, q) - 1
    source = d.table.block(g, q, i)
    if d.refs.shared(source):
        target = d.gpu.take()
        d.table.put(g, q, i, target)
        give_back(d, source)
        d.plan.copied(source, target)
        d.plan.slot(g, q, i, target)


def outgrown(d: Draft, g: int, tokens: int) -> bool:
    """Is the slot of token `tokens` beyond the tables of g?"""
    return tokens > d.capacity(g)


def blocks_needed(d: Draft, g: int, tokens: int) -> int:
    """GPU blocks that g takes when it computes token `tokens`: one each at a block boundary, else the copies of shared tails."""
    if outgrown(d, g, tokens):
        return d.members.count(g)
    return d.table.pending_copies(g)


def append_slots(d: Draft, g: int, grows: bool) -> None:
    """Every sequence of g can write its next token. `grows`: g has outgrown its tables. The pool holds what is needed."""
    if grows:
        d.each_member("grow", g, take_block)
    else:
        d.each_member("unshare", g, unshare)


def move_out(d: Draft, i: int, g: int, q: int) -> None:
    """The i-th block of q moves to the host; a block that siblings share moves once."""
    b = d.table.block(g, q, i)
    if d.twin.has(b):
        h = d.twin[b]
        d.refs.share(h)
    else:
        h = d.cpu.take()
        d.twin[b] = h
        d.plan.copied_out(b, h)
    d.table.put(g, q, i, h)
    give_back(d, b)


def move_in(d: Draft, i: int, g: int, q: int) -> None:
    """The i-th block of q moves back to the GPU; what was shared is shared again."""
    h = d.table.block(g, q, i)
    if d.twin.has(h):
        b = d.twin[h]
        d.refs.share(b)
    else:
        b = d.gpu.take()
        d.twin[h] = b
        d.plan.copied_in(h, b)
    d.table.put(g, q, i, b)
    d.plan.slot(g, q, i, b)
    give_back(d, h)


def move_sequence_out(d: Draft, q: int, g: int) -> None:
    """Every block of q moves to the host."""
    d.each_index("move_out", d.table.size(g, q), move_out, g, q)


def move_sequence_in(d: Draft, q: int, g: int) -> None:
    """Every block of q moves to the GPU."""
    d.each_index("move_in", d.table.size(g, q), move_in, g, q)


def move_group_out(d: Draft, g: int) -> None:
    """Every block of g moves to the host, shared ones once."""
    d.twin.clear()
    d.each_member("swap_out", g, move_sequence_out)


def move_group_in(d: Draft, g: int) -> None:
    """Every block of g moves back to the GPU, shared ones once."""
    d.twin.clear()
    d.each_member("swap_in", g, move_sequence_in)
