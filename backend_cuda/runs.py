"""Blocks that are neighbours on both sides move in one copy."""

from collections.abc import Iterable, Iterator

Run = tuple[int, int, int]
"""(first source, first target, blocks)."""


def runs(pairs: Iterable[tuple[int, int]]) -> Iterator[Run]:
    """The pairs of a list, of which no target is a source, as runs as long as they come. The same pairs, whatever their order."""
    first, goal, n = 0, 0, 0
    for source, target in sorted(pairs):
        if n and source == first + n and target == goal + n:
            n += 1
            continue
        if n:
            yield first, goal, n
        first, goal, n = source, target, 1
    if n:
        yield first, goal, n


def cut(run: Run, size: int, side: int) -> Iterator[Run]:
    """A run in pieces that cross no multiple of `size` on this side: 0 the sources, 1 the targets."""
    source, target, n = run
    while n:
        piece = min(n, size - (source, target)[side] % size)
        yield source, target, piece
        source, target, n = source + piece, target + piece, n - piece
