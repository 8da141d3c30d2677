"""What an engine tells a scheduler, read: wrong forms raise Rejected before anything has changed."""

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

from kvproof.core.errors import Rejected
from kvproof.store.draft import Draft
from kvproof.store.queues import Results
from kvproof.store.state import State

Ended = tuple[tuple[int, int], ...]
EVERYBODY = Results()
ENDED = "ended must be tuples (id, sequence) or (id, sequence, why)"
RESULTS = "results must be tuples that begin with the id of a request"
TIME_MAX = 10**15
PRIORITY_MAX = 2**40
TENANT_MAX = 256
"""Characters of the name of a tenant."""
id_in = itemgetter(0)


def ids_of(results: Iterable[Sequence[int]] | None) -> Results:
    """The groups that have a result; None: all of them."""
    try:
        return EVERYBODY if results is None else Results(map(id_in, results))
    except (TypeError, IndexError, KeyError):
        raise Rejected(RESULTS) from None


def check_ids(ids: Results, state: State) -> None:
    """Every result is that of a request that was added once. Fast if they are those that run, in their order."""
    try:
        if not ids.ids or ids.compare(state.running, state.prefilling):
            return
    except TypeError:
        raise Rejected(RESULTS) from None
    if any(type(g) is not int for g in ids.ids):
        raise Rejected(RESULTS)
    check_known((max(ids.ids), min(ids.ids)), state)


def check_known(groups: Iterable[int], state: State) -> None:
    """These requests were added, whether they have ended or not."""
    for g in groups:
        if not 0 <= g < state.ticket:
            raise Rejected(f"no request has the id {g}")


def check_sequences(ended: Iterable[tuple[int, int]], state: State) -> None:
    """Each of these sequences lives or has lived, if its request has not ended."""
    for g, q in ended:
        ever = state.members[g][1] if g in state.members else 1
        if state.status[g] and not 0 <= q < ever:
            raise Rejected(f"request {g} has no sequence {q}")


def accepted_tokens(d: Draft, before: State, more: Mapping[int, int]) -> int:
    """Tokens beyond the next ones that lookahead gave the sequences of these groups in a commit."""
    gained = {g: before.born[g] - d.born[g] for g in more if g in before.born and g in d.born}
    return sum(n * len(before.members[g][0] if g in before.members else (0,)) for g, n in gained.items() if n > 0)


def check_id(*ids: int) -> None:
    """Ids of requests and indices of sequences are ints, and nothing that equals one: a state keeps what it is given."""
    for g in ids:
        if type(g) is not int:
            raise Rejected(f"an id or a sequence must be an integer, got {ascii(g)[:40]}")


def ends_of(ended: Iterable[tuple[int, int] | tuple[int, int, str]]) -> tuple[Ended, dict[int, str]]:
    """(group, sequence) of each that has ended, and why the groups did of which that is said."""
    try:
        told = tuple(ended)
        pairs = tuple((g, q) for g, q, *_ in told)
    except (TypeError, ValueError):
        raise Rejected(ENDED) from None
    if any(type(g) is not int or type(q) is not int for g, q in pairs):
        raise Rejected(ENDED)
    if any(len(why) > 1 or type(why[0]) is not str for _, _, *why in told if why):
        raise Rejected(ENDED)
    return pairs, {g: why[0] for g, _, *why in told if why}


def more_of(accepted: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Tokens beyond the first, by group."""
    out: dict[int, int] = {}
    try:
        told = tuple((g, tokens) for g, tokens in accepted)
    except (TypeError, ValueError):
        raise Rejected("accepted must be tuples (id, tokens)") from None
    for g, tokens in told:
        if type(g) is not int:
            raise Rejected("accepted must be tuples (id, tokens)")
        if type(tokens) is not int or tokens < 1:
            raise Rejected("accepted tokens must be an integer >= 1")
        if g in out:
            raise Rejected(f"accepted tokens of request {g} are given twice")
        out[g] = tokens - 1
    return out


def check_time(now: float) -> None:
    """A number on some clock."""
    if isinstance(now, bool) or not isinstance(now, (int, float)) or not -TIME_MAX <= now <= TIME_MAX:
        raise Rejected(f"now must be a number from -{TIME_MAX:.0e} to {TIME_MAX:.0e}")


def check_priority(priority: int) -> None:
    """What requests rank by first."""
    if type(priority) is not int or abs(priority) > PRIORITY_MAX:
        raise Rejected(f"priority must be an integer from -{PRIORITY_MAX} to {PRIORITY_MAX}")


def check_hints(tenant: str | None, expected_tokens: int | None) -> None:
    """What an order may be told of a request."""
    if tenant is not None and (type(tenant) is not str or len(tenant) > TENANT_MAX):
        raise Rejected(f"tenant must be None or a string of at most {TENANT_MAX} characters, got {ascii(tenant)[:40]}")
    if expected_tokens is not None and (type(expected_tokens) is not int or expected_tokens < 1):
        raise Rejected(f"expected_tokens must be None or an integer >= 1, got {ascii(expected_tokens)[:40]}")
