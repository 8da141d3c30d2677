"""Calls that must be refused, with the states in which they are illegal. A call that raises has changed nothing."""

from collections.abc import Callable, Iterable
from typing import Any

import attrs

from kvproof.scheduler import Scheduler
from kvproof.store.draft import State

NOBODY = 10**6
"""A group that was never added, and a sequence that does not live."""


@attrs.frozen
class Call:
    """`who(state)`: the groups of which the call is illegal now; it is then made as call(scheduler, g, q)."""

    call: Callable[[Scheduler, int, int], Any]
    who: Callable[[State], Iterable[int]]
    malformed: bool = False
    """Arguments of a wrong shape: any exception will do."""


def always(state: State) -> Iterable[int]:
    """In every state, of nobody in particular."""
    return (NOBODY,)


def in_flight(state: State) -> Iterable[int]:
    """While a step is in flight."""
    return (NOBODY,) if state.issued else ()


def between(state: State) -> Iterable[int]:
    """Between a commit and the next pass."""
    return () if state.issued else (NOBODY,)


def running(state: State) -> Iterable[int]:
    """Of every group that runs."""
    return state.running[1]


def running_in_flight(state: State) -> Iterable[int]:
    """Of every group that runs, while a step is in flight."""
    return state.running[1] if state.issued else ()


def not_running(state: State) -> Iterable[int]:
    """Of every group that waits or is swapped, and of one that is not known."""
    return (*state.waiting[1], *state.swapped[1], NOBODY)


def seatless(state: State) -> Iterable[int]:
    """Of every group that runs, when all seats are taken."""
    return state.running[1] if state.seqs == state.config.max_num_seqs else ()


def ended(state: State) -> Iterable[int]:
    """Of every group that has been and is no more."""
    return (g for g in range(state.ticket) if g not in state.status)


CALLS = {
    "schedule in flight": Call(lambda s, g, q: s.schedule(), in_flight),
    "commit of nothing": Call(lambda s, g, q: s.commit(), between),
    "fork in flight": Call(lambda s, g, q: s.fork(g), running_in_flight),
    "fork of who does not run": Call(lambda s, g, q: s.fork(g), not_running),
    "fork in a prefill": Call(lambda s, g, q: s.fork(g), lambda state: state.prefilling[1]),
    "fork of no such sequence": Call(lambda s, g, q: s.fork(g, NOBODY), running),
    "fork without a seat": Call(lambda s, g, q: s.fork(g), seatless),
    "abort of nobody": Call(lambda s, g, q: s.abort(g), always),
    "abort of who has ended": Call(lambda s, g, q: s.abort(g), ended),
    "no prompt": Call(lambda s, g, q: s.add_request(0, 1 + q), always),
    "no output": Call(lambda s, g, q: s.add_request(1 + q, 0), always),
    "results of a wrong shape": Call(lambda s, g, q: s.commit([g]), in_flight, malformed=True),  # type: ignore[list-item]
    "ends of a wrong shape": Call(lambda s, g, q: s.commit(None, [(g,)]), in_flight, malformed=True),  # type: ignore[list-item]
}


def possible(state: State) -> list[tuple[str, int]]:
    """Every (kind, group) that is illegal now."""
    return [(kind, g) for kind, call in CALLS.items() for g in call.who(state)]
