"""Does an order keep its word? Checked at the end of each pass, before the pass counts (`kvproof.order` says what the word is).

What is kept: how many passes have preempted since anybody last got on; the ids of all in line, in a heap; who of them arrived
first and in how many passes it was passed by. All of it is immutable, among the notes, so snapshots have it.
A pass costs O(log n) for each request that comes into the line, and nothing where nobody moves.
"""

from typing import Any, NamedTuple

from kvproof.books import Notes
from kvproof.order import Order, PolicyError
from kvproof.store.draft import Draft

Heap = tuple[int, int, Any, Any] | None
"""A leftist heap of ids: (length of its right spine, least id, left, right)."""
WATCH, LINE = "watch", "line"
"""Keys of the notes."""


class Watch(NamedTuple):
    """What has been seen so far."""

    still: int = 0
    """Passes that preempted, since anybody got a new token, ended or arrived."""
    oldest: int = -1
    """The earliest arrival of those in line when somebody last came in past it."""
    passed: int = 0
    """In so many passes."""


START = Watch()


def merge(a: Heap, b: Heap) -> Heap:
    """One heap of two. O(log n)."""
    if a is None or b is None:
        return b if a is None else a
    if b[1] < a[1]:
        a, b = b, a
    _, least, left, right = a
    right = merge(right, b)
    long, short = left[0] if left else 0, right[0] if right else 0
    return (short + 1, least, left, right) if long >= short else (long + 1, least, right, left)


def arrived(order: Order, notes: Notes, g: int) -> None:
    """Request g is in line; nobody can be expected to have got on before it came."""
    watch: Watch = notes.get(WATCH, START)
    if watch.still:
        notes.keep(WATCH, watch._replace(still=0))
    if order.overtakes is not None:
        notes.keep(LINE, merge(notes.get(LINE), (1, g, None, None)))


def _oldest(notes: Notes, d: Draft) -> int:
    """The earliest arrival of those who were in line before the pass and are so after it; -1: nobody."""
    heap: Heap = notes.get(LINE)
    if heap is None:
        return -1
    first = heap
    while heap is not None and not (d.waiting.has(heap[1]) or d.swapped.has(heap[1])):
        heap = merge(heap[2], heap[3])
    if heap is not first:
        notes.keep(LINE, heap)
    return -1 if heap is None else heap[1]


def got_on(d: Draft) -> bool:
    """Does this pass give anybody a token that it never had, or end anybody?"""
    return bool(d.plan.ends) or not d.sampling.empty() or (not d.prefilled and d.decoders > 0)


def check_pass(
    order: Order, notes: Notes, d: Draft, entered: tuple[int, ...], preempted: tuple[int, ...], disturbed: bool
) -> None:
    """Raises PolicyError if this pass breaks it. `disturbed`: events or tests of an engine strike, which no order answers for."""
    watch: Watch = notes.get(WATCH, START)
    now = watch
    if got_on(d):
        now = now._replace(still=0) if now.still else now
    elif preempted and not disturbed:
        now = now._replace(still=now.still + 1)
        if now.still > order.patience:
            g = preempted[0]
            raise PolicyError(
                order.name,
                f"nobody got a new token or ended in {now.still} passes that preempted, its patience is {order.patience}; "
                f"the last of them preempted request {g}",
                *(g, now.still, order.patience),
            )
    if order.overtakes is not None and (entered or preempted):
        if entered:
            if now.oldest in entered:  # its wait is over; another one counts anew
                now = now._replace(oldest=-1, passed=0)
            now = _passed(order, now, _oldest(notes, d), max(entered))
        line: Heap = notes.get(LINE)
        for g in preempted:
            line = merge(line, (1, g, None, None))
        if preempted:
            notes.keep(LINE, line)
    if now is not watch:
        notes.keep(WATCH, now)


def _passed(order: Order, watch: Watch, oldest: int, last: int) -> Watch:
    """`last` is the latest arrival of those who came in while `oldest` stayed in line."""
    if oldest < 0 or last < oldest:
        return watch
    passed = 1 + (watch.passed if watch.oldest == oldest else 0)
    if order.overtakes is not None and passed > order.overtakes:
        raise PolicyError(
            order.name,
            f"request {oldest} waits, and later arrivals came in past it in {passed} passes, the last of them request {last}; "
            f"its overtakes are {order.overtakes}",
            *(oldest, passed, order.overtakes),
        )
    return watch._replace(oldest=oldest, passed=passed)
