"""The results of a step sequence by sequence: tokens, ends and why, forks. The same as `commit` and `fork`, said in one call."""

from collections.abc import Iterable, Mapping

import attrs

from kvproof.core.errors import Rejected
from kvproof.scheduler import Outcome, Scheduler


@attrs.frozen
class Result:
    """What a step brought one sequence."""

    group: int
    sequence: int = 0
    tokens: int = 1
    """It got so many: one, or more thanks to lookahead slots. Siblings advance together, by what the least of them got."""
    ended: str | None = None
    """Why the engine ends it ("stop token", say), for the outcome of its request; None: it goes on."""
    forks: int = 0
    """So many children it is to have."""
    same_token: bool = False
    """Have they its last token too? (`Scheduler.fork`)"""


@attrs.frozen
class Taken:
    """What became of the results."""

    outcomes: list[Outcome]
    """Everybody who ended since the last commit."""
    children: Mapping[tuple[int, int], tuple[int, ...]]
    """(group, sequence) -> the indices of its children: fewer than asked for if it has ended, or no seat was left."""


def take_back(scheduler: Scheduler, results: Iterable[Result]) -> Taken:
    """Commit a step. Groups of which no sequence has a result do not advance. Raises Rejected, as `commit` does, before anything
    has changed."""
    some = list(results)
    tokens: dict[int, int] = {}
    for r in some:
        tokens[r.group] = min(tokens.get(r.group, r.tokens), r.tokens)
    outcomes = scheduler.commit(
        [(g,) for g in tokens],
        [(r.group, r.sequence, r.ended) for r in some if r.ended is not None],
        [(g, n) for g, n in tokens.items() if n != 1],
    )
    return Taken(outcomes, {(r.group, r.sequence): _children(scheduler, r) for r in some if r.forks})


def _children(scheduler: Scheduler, r: Result) -> tuple[int, ...]:
    born: list[int] = []
    try:
        while len(born) < r.forks:
            born.append(scheduler.fork(r.group, r.sequence, r.same_token))
    except Rejected:
        pass
    return tuple(born)
