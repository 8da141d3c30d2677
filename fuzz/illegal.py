"""Calls that must be refused, with the states in which they are illegal. A call that raises has changed nothing."""

from collections.abc import Callable, Iterable
from typing import Any

import attrs

from kvproof.core.config import Config
from kvproof.fuzz.names import NOBODY
from kvproof.scheduler import PRIORITY_MAX, Scheduler
from kvproof.store.state import State, initial


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


def nobody(state: State) -> Iterable[int]:
    """It depends on the order, not on the state: who makes the call knows."""
    return ()


def kvproof(state: State) -> Iterable[int]:
    """Always; V0 counts the sequences that live, so that nobody asks for too many."""
    return () if state.config.vllm_v0 else (NOBODY,)


def in_flight(state: State) -> Iterable[int]:
    """While a step is in flight."""
    return (NOBODY,) if state.issued else ()


def between(state: State) -> Iterable[int]:
    """Between a commit and the next pass."""
    return () if state.issued else (NOBODY,)


def unfinished(state: State) -> Iterable[int]:
    """Of everybody who has not ended."""
    return (*state.waiting[1], *state.running[1], *state.swapped[1])


def running(state: State) -> Iterable[int]:
    """Of every group that runs."""
    return state.running[1]


def running_in_flight(state: State) -> Iterable[int]:
    """Of every group that runs, while a step is in flight."""
    return state.running[1] if state.issued else ()


def running_between(state: State) -> Iterable[int]:
    """Of every group that runs, between a commit and the next pass."""
    return () if state.issued else state.running[1]


def not_running(state: State) -> Iterable[int]:
    """Of every group that waits or is swapped, and of one that is not known."""
    return (*state.waiting[1], *state.swapped[1], NOBODY)


def seatless(state: State) -> Iterable[int]:
    """Of every group that has a sequence on each of its seats, when all are taken."""
    if state.seqs < state.config.max_num_seqs:
        return ()
    return (g for g in state.running[1] if len(state.members.get(g, ((0,), 1))[0]) == state.seats[g])


def protected(state: State) -> Iterable[int]:
    """Of every group that may not be preempted again and has a sequence on each of its seats."""
    most = state.config.max_preemptions_per_request
    some = () if most is None else state.running[1]
    return (g for g in some if state.preemptions.get(g, 0) >= most and len(state.members.get(g, ((0,), 1))[0]) == state.seats[g])


def siblings(state: State) -> Iterable[int]:
    """Of every group of several sequences in the middle of its prefill."""
    return (g for g in state.prefilling[1] if len(state.members.get(g, ((0,),))[0]) > 1)


def ended(state: State) -> Iterable[int]:
    """Of every group that has been and is no more."""
    return (g for g in range(state.ticket) if not state.status[g])


def elsewhere(config: Config) -> State:
    """A state of another configuration."""
    return initial(attrs.evolve(config, num_gpu_blocks=config.num_gpu_blocks + 1))


# fmt: off
CALLS = {
    "schedule in flight": Call(lambda s, g, q: s.schedule(), in_flight),
    "commit of nothing": Call(lambda s, g, q: s.commit(), between),
    "fork in flight": Call(lambda s, g, q: s.fork(g), running_in_flight),
    "fork of who does not run": Call(lambda s, g, q: s.fork(g), not_running),
    "fork of who has ended": Call(lambda s, g, q: s.fork(g), ended),
    "fork in a prefill": Call(lambda s, g, q: s.fork(g), lambda state: state.prefilling[1]),
    "fork of no such sequence": Call(lambda s, g, q: s.fork(g, NOBODY), running),
    "fork without a seat": Call(lambda s, g, q: s.fork(g), seatless),
    "fork of who is protected": Call(lambda s, g, q: s.fork(g), protected),
    "abort of nobody": Call(lambda s, g, q: s.abort(g), always),
    "abort of who has ended": Call(lambda s, g, q: s.abort(g), ended),
    "finish of who does not run": Call(lambda s, g, q: s.finish(g, q), not_running),
    "finish of who has ended": Call(lambda s, g, q: s.finish(g, q), ended),
    "finish of one of several in a prefill": Call(lambda s, g, q: s.finish(g, s.state.members[g][0][0]), siblings),
    "finish of no such sequence": Call(lambda s, g, q: s.finish(g, NOBODY), running),
    "preempt in flight": Call(lambda s, g, q: s.preempt(g), running_in_flight),
    "preempt of who does not run": Call(lambda s, g, q: s.preempt(g, "swap"), not_running),
    "preempt of who has ended": Call(lambda s, g, q: s.preempt(g, "recompute"), ended),
    "preempt in no such mode": Call(lambda s, g, q: s.preempt(g, "auto"), running_between, malformed=True),
    "deny of nobody": Call(lambda s, g, q: s.deny_append(g), always),
    "deny of who has ended": Call(lambda s, g, q: s.deny_append(g, 1 + q), ended),
    "rerank of nobody": Call(lambda s, g, q: s.rerank(g, q), always),
    "rerank of who has ended": Call(lambda s, g, q: s.rerank(g, q), ended),
    "rerank too low": Call(lambda s, g, q: s.rerank(g, PRIORITY_MAX + 1 + q), unfinished),
    "rerank by hand": Call(lambda s, g, q: s.rerank(g, q), nobody),
    "deny no times": Call(lambda s, g, q: s.deny_append(g, -q), unfinished),
    "preemptions of who has ended": Call(lambda s, g, q: s.preemptions(g), ended),
    "no prompt": Call(lambda s, g, q: s.add_request(0, 1 + q), always),
    "no output": Call(lambda s, g, q: s.add_request(1 + q, 0), always),
    "no sequences": Call(lambda s, g, q: s.add_request(1 + q, 1, n=0), always),
    "no beam": Call(lambda s, g, q: s.add_request(1, 1 + q, beam_width=0), always),
    "no whole number": Call(lambda s, g, q: s.add_request(1, 1 + q, n=1.0), always),  # type: ignore[arg-type]
    "too many sequences": Call(lambda s, g, q: s.add_request(1, 1, n=s.config.max_num_seqs + 1 + q), kvproof),
    "too wide a beam": Call(lambda s, g, q: s.add_request(1, 1, beam_width=s.config.max_num_seqs + 1 + q), kvproof),
    "too low a priority": Call(lambda s, g, q: s.add_request(1, 1, priority=PRIORITY_MAX + 1 + q), always),
    "results of a wrong shape": Call(lambda s, g, q: s.commit([g]), in_flight, malformed=True),  # type: ignore[list-item]
    "results of who never came": Call(lambda s, g, q: s.commit([(g,)]), in_flight),
    "results of a wrong id": Call(lambda s, g, q: s.commit([(-1 - q,)]), in_flight),
    "ends of who never came": Call(lambda s, g, q: s.commit(None, [(g, q)]), in_flight),
    "ends of no such sequence": Call(lambda s, g, q: s.commit(None, [(g, NOBODY)]), running_in_flight),
    "accepted of who never came": Call(lambda s, g, q: s.commit(None, (), [(g, 1 + q)]), in_flight),
    "ends of a wrong shape": Call(lambda s, g, q: s.commit(None, [(g,)]), in_flight, malformed=True),  # type: ignore[list-item]
    "accepted of a wrong shape": Call(lambda s, g, q: s.commit(None, (), [g]), in_flight, malformed=True),  # type: ignore[list-item]
    "restore of another configuration": Call(lambda s, g, q: s.restore(elsewhere(s.config)), always),
}
# fmt: on


def possible(state: State, rare: bool) -> dict[str, list[int]]:
    """Kind -> of whom it is illegal now, if of anybody. `rare`: without those that always are, if there are others."""
    found = {kind: who for kind, call in CALLS.items() if (who := list(call.who(state)))}
    seldom = {kind: who for kind, who in found.items() if CALLS[kind].who not in (always, kvproof)}
    return seldom if rare and seldom else found
