"""Ownership: the only code that takes, shares, copies or gives back a block.

    pool.pop --> refs.take --> table.append          take_block   (0 -> 1 references)
                 refs.share -> table.append          share_block  (k -> k + 1)
    table.pop -> refs.drop --> pool.push if 0        drop_block   (k -> k - 1)

Ids of GPU blocks are 0 .. num_gpu_blocks - 1, those of host blocks follow; they never cross.
The slots of a running group's next token must exist and lie in blocks of their own before the step runs:
a step that computes tokens up to length L writes slots up to L - 1, so the table holds ceil(L / block_size) blocks.
"""

from kvproof.store.draft import Draft


def take_block(d: Draft, g: int, q: int) -> None:
    """Sequence q of group g gets one more GPU block at the end of its table."""
    b = d.gpu.pop()
    d.refs.take(b)
    d.plan.slot(g, q, d.table.size(g, q), b)
    d.table.append(g, q, b)


def fill(d: Draft, g: int, q: int, blocks: int) -> bool:
    """One step of allocating the table of a prompt."""
    if d.table.size(g, q) == blocks:
        return False
    take_block(d, g, q)
    return True


def allocate(d: Draft, g: int, blocks: int) -> None:
    """The table of the only sequence of g, which owns nothing yet, gets `blocks` GPU blocks; the pool holds that many."""
    d.repeat("fill", fill, g, d.members.first(g), blocks)


def give_back(d: Draft, b: int) -> None:
    """One reference to b less; the last one frees it."""
    if d.refs.drop(b):
        if b < d.config.num_gpu_blocks:
            d.gpu.push(b)
        else:
            d.cpu.push(b)


def drop_block(d: Draft, g: int, q: int) -> bool:
    """One step of releasing a sequence: its last block."""
    if d.table.size(g, q) == 0:
        return False
    give_back(d, d.table.pop(g, q))
    return True


def release_sequence(d: Draft, q: int, g: int) -> None:
    """Sequence q owns nothing any more."""
    d.repeat("release", drop_block, g, q)


def release(d: Draft, g: int) -> None:
    """No sequence of g owns anything any more."""
    d.each_member("release_all", g, release_sequence)


def share_block(d: Draft, i: int, g: int, parent: int, child: int) -> None:
    """The i-th block of the child is the i-th block of its parent."""
    b = d.table.block(g, parent, i)
    d.refs.share(b)
    d.plan.slot(g, child, i, b)
    d.table.append(g, child, b)


def copy_tail(d: Draft, g: int, q: int) -> None:
    """Copy-on-write: the tail of q is shared and about to be written, so q gets a copy of its own."""
    i = d.table.size(g, q) - 1
    source = d.table.block(g, q, i)
    target = d.gpu.pop()
    d.refs.take(target)
    d.table.put(g, q, i, target)
    give_back(d, source)
    d.plan.copied(source, target)
    d.plan.slot(g, q, i, target)


def outgrown_table(d: Draft, g: int, tokens: int) -> bool:
    """Is the slot of token `tokens` beyond the table? The sequences of a group have tables of one size."""
    return tokens > d.span(d.table.size(g, d.members.first(g)))


def blocks_needed(d: Draft, g: int, tokens: int) -> int:
    """GPU blocks that g takes when it computes token `tokens`: one each at a block boundary, else the copies of shared tails."""
    if outgrown_table(d, g, tokens):
        return d.members.count(g)
    return d.table.pending_copies(g)


def grow_sequence(d: Draft, q: int, g: int) -> None:
    """The slot for the next token of q: a new block, a copy of its own, or what it has."""
    i = d.table.size(g, q)
    if d.clock - d.born[g] > d.span(i):
        take_block(d, g, q)
    elif d.refs.shared(d.table.block(g, q, i - 1)):
        copy_tail(d, g, q)


def append_slots(d: Draft, g: int) -> None:
    """Every sequence of g can write its next token; the pool holds what `blocks_needed` says."""
    d.each_member("grow", g, grow_sequence)


def move_out(d: Draft, i: int, g: int, q: int) -> None:
    """The i-th block of q moves to the host; a block that siblings share moves once."""
    b = d.table.block(g, q, i)
    if d.twin.has(b):
        h = d.twin[b]
        d.refs.share(h)
    else:
        h = d.cpu.pop()
        d.refs.take(h)
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
        b = d.gpu.pop()
        d.refs.take(b)
        d.twin[h] = b
        d.plan.copied_in(h, b)
    d.table.put(g, q, i, b)
    d.plan.slot(g, q, i, b)
    give_back(d, h)


def move_sequence_out(d: Draft, q: int, g: int) -> None:
    """Every block of q moves to the host."""
    d.times("move_out", d.table.size(g, q), move_out, g, q)


def move_sequence_in(d: Draft, q: int, g: int) -> None:
    """Every block of q moves to the GPU."""
    d.times("move_in", d.table.size(g, q), move_in, g, q)


def move_group_out(d: Draft, g: int) -> None:
    """Every block of g moves to the host, shared ones once."""
    d.twin.clear()
    d.each_member("swap_out", g, move_sequence_out)


def move_group_in(d: Draft, g: int) -> None:
    """Every block of g moves back to the GPU, shared ones once."""
    d.twin.clear()
    d.each_member("swap_in", g, move_sequence_in)
