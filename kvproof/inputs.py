"""What an engine tells `Scheduler.commit`, read: wrong forms raise Rejected before anything has changed."""

from collections.abc import Iterable, Sequence
from operator import itemgetter

from kvproof.core.errors import Rejected
from kvproof.store.queues import Results

EVERYBODY = Results()
first = itemgetter(0)
ENDED = "ended must be tuples (id, sequence) or (id, sequence, why)"


def ids_of(results: Iterable[Sequence[int]] | None) -> Results:
    """The groups that have a result; None: all of them."""
    try:
        return EVERYBODY if results is None else Results(map(first, results))
    except (TypeError, IndexError, KeyError):
        raise Rejected("results must be tuples that begin with the id of a request") from None


Ended = tuple[tuple[int, int], ...]


def ends_of(ended: Iterable[tuple[int, int] | tuple[int, int, str]]) -> tuple[Ended, dict[int, str]]:
    """(group, sequence) of each that has ended, and why the groups did of which that is said."""
    try:
        told = tuple(ended)
        pairs = tuple((g, q) for g, q, *_ in told)
    except (TypeError, ValueError):
        raise Rejected(ENDED) from None
    if any(type(g) is not int or type(q) is not int or g < 0 for g, q in pairs):
        raise Rejected(ENDED)
    return pairs, {g: why[0] for g, _, *why in told if why}


def more_of(accepted: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Tokens beyond the first, by group."""
    out: dict[int, int] = {}
    try:
        for g, tokens in accepted:
            if type(tokens) is not int or tokens < 1:
                raise Rejected("accepted tokens must be an integer >= 1")
            if g in out:
                raise Rejected(f"accepted tokens of request {g} are given twice")
            out[g] = tokens - 1
    except (TypeError, ValueError):
        raise Rejected("accepted must be tuples (id, tokens)") from None
    return out
