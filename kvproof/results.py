"""The results of a step sequence by sequence: tokens, ends and why, forks. The same as `commit` and `fork`, said in one call."""

from collections.abc import Iterable, Mapping

import attrs

from kvproof.core.errors import Rejected
from kvproof.core.status import Status
from kvproof.inputs import check_id
from kvproof.scheduler import Outcome, Scheduler


@attrs.frozen
class Result:
    """What a step brought one sequence."""

    group: int
    sequence: int = 0
    tokens: int = 1
    """It got so many: one, or more thanks to lookahead slots. Siblings advance together, by what the least of them got."""
    ended: str | None = None
    """Why the engine ends it ("stop token", say), for the outcome of its request; None: it goes on. The token counts all the
    same, for its siblings too: they advance together."""
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
    try:
        some = list(results)
    except TypeError:
        raise Rejected(f"results must be Results, got {type(results).__name__}") from None
    _check(scheduler, some)
    tokens: dict[int, int] = {}
    for r in some:
        tokens[r.group] = min(tokens.get(r.group, r.tokens), r.tokens)
    outcomes = scheduler.commit(
        [(g,) for g in tokens],
        [(r.group, r.sequence, r.ended) for r in some if r.ended is not None],
        [(g, n) for g, n in tokens.items() if n != 1],
    )
    return Taken(outcomes, {(r.group, r.sequence): _children(scheduler, r) for r in some if r.forks})


def _check(scheduler: Scheduler, results: list[Result]) -> None:
    """What `commit` does not look at."""
    seen: set[tuple[int, int]] = set()
    state = scheduler.state
    for r in results:
        if not isinstance(r, Result):
            raise Rejected(f"results must be Results, got {type(r).__name__}")
        check_id(r.group, r.sequence)
        if type(r.tokens) is not int or r.tokens < 1 or type(r.forks) is not int or r.forks < 0:
            raise Rejected(f"request {r.group}: tokens must be an integer >= 1, forks one >= 0")
        if (r.group, r.sequence) in seen:
            raise Rejected(f"request {r.group}: sequence {r.sequence} has two results")
        seen.add((r.group, r.sequence))
        ever = state.members[r.group][1] if r.group in state.members else 1
        if not 0 <= r.sequence < ever and state.status[r.group] == Status.RUNNING:
            raise Rejected(f"request {r.group} has no sequence {r.sequence}")


def _children(scheduler: Scheduler, r: Result) -> tuple[int, ...]:
    born: list[int] = []
    try:
        while len(born) < r.forks:
            born.append(scheduler.fork(r.group, r.sequence, r.same_token))
    except Rejected:
        pass
    return tuple(born)
