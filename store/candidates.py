"""What a policy is told of the groups that may be preempted, and of what is needed."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kvproof.store.draft import Draft


class Candidate(NamedTuple):
    """A running group that a pass may preempt."""

    group: int
    sequences: int
    """Live ones."""
    blocks: int
    """Different GPU blocks that it holds: as many become free when it goes."""
    work: int
    """Different tokens (prompt + generated) that a recompute of it computes, each once."""
    length: int
    """Tokens of each of its sequences."""
    computed: int
    """Different tokens whose keys and values it holds: what a recompute computes for a second time."""
    swappable: bool
    """Has the host room for it now, and may it be swapped at all?"""


class Need(NamedTuple):
    """What a pass lacks."""

    group: int
    """The running group that cannot append."""
    blocks: int
    """It needs so many GPU blocks."""
    free: int
    """So many are free."""
    host_free: int
    """Free host blocks."""
    candidates: tuple[Candidate, ...]
    """Those that may make way: they run, rank below the group, and may be preempted again. The lowest in rank comes first."""


def candidate(d: "Draft", g: int) -> Candidate:
    """What there is to say of running group g. Costs O(blocks of its siblings)."""
    n, blocks = d.members.count(g), d.table.distinct(g)
    if d.prefilling.has(g):
        length, done = d.length[g], d.computed[g]
    else:
        length = d.clock - d.born[g]
        done = d.work(g, length) - n  # the last token of each has not been computed
    movable = blocks <= d.cpu.n and not (n > 1 and d.prefilling.has(g))
    return Candidate(g, n, blocks, d.work(g, length), length, done, movable)


def need(d: "Draft", g: int, blocks: int) -> Need:
    """What running group g lacks. Costs O(those that rank below it)."""
    key, some = d.key[g], []
    for h in reversed(d.running.ids):
        if d.key[h] <= key:
            break
        if d.may_go(h):
            some.append(candidate(d, h))
    return Need(g, blocks, d.gpu.n, d.cpu.n, tuple(some))
