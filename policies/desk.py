"""What an order of requests is told before a pass, and where it keeps what it must remember.

An order gives each request a priority when it arrives (`arrive`), and says before each pass whose priority changes (`rank`);
small ones come first, among equal ones the earlier arrival. It is asked about changes only: who came in, was preempted or ended
since the pass before, and whose alarm rings. So a pass costs it as much as has changed, not as many requests as there are.

An order itself never changes. It keeps its notes on the desk, under keys of its own: immutable values, which are replaced. A note
under the id of a request goes with the request. What a call that fails has noted is forgotten, and a snapshot has the notes too.
"""

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from kvproof.store.draft import Draft


class Request(NamedTuple):
    """A request, as it was added."""

    group: int
    """Its id; ids grow in the order of arrival."""
    prompt_tokens: int
    max_tokens: int
    """Tokens that each of its sequences may generate."""
    tenant: str = ""
    expected_tokens: int | None = None
    """How many it will probably generate, if the caller knows better than `max_tokens`."""
    priority: int = 0
    """What `add_request` was told."""

    @property
    def expected(self) -> int:
        """Tokens that it is expected to generate: the hint, at most `max_tokens`."""
        return self.max_tokens if self.expected_tokens is None else min(self.expected_tokens, self.max_tokens)


class News(NamedTuple):
    """What has happened since the pass before."""

    entered: tuple[int, ...] = ()
    """Who came to run in it: admitted, for the first time or again, or swapped in."""
    preempted: tuple[int, ...] = ()
    """Who was preempted in it."""
    ended: tuple[tuple[int, int], ...] = ()
    """(request, tokens that each of its sequences has generated) of each that has ended."""


class Notes(Protocol):
    """A dict of immutable values that can go back."""

    def get(self, key: Hashable, default: Any = None) -> Any:
        """What is there, or `default`."""

    def keep(self, key: Hashable, value: Any) -> None:
        """`value` is there from now on."""

    def drop(self, key: Hashable) -> None:
        """Nothing is there any more."""


NOTE, REQUEST, RINGS, ALARM = range(4)
"""What the first part of a key says: note of an order; request, by id; when its alarm rings, by id; whose rings then, by pass."""
NEXT_PASS = 1


class Desk:
    """Made for one call of an order; it must not be kept.

    `now`: the number of the pass that is to come, from 1. `news`: what has happened since the one before.
    `woken`: whose alarm rings.
    """

    __slots__ = ("_d", "_notes", "news", "now", "woken")

    def __init__(self, d: "Draft", notes: Notes, news: News, woken: tuple[int, ...] = ()) -> None:
        self._d, self._notes, self.news, self.woken = d, notes, news, woken
        self.now = d.epoch + NEXT_PASS

    # What there is to know.

    def request(self, g: int) -> Request | None:
        """Request g as it was added; one that ended since the last pass is known still. None: nobody of this id is."""
        found: Request | None = self._notes.get((REQUEST, g))
        return found

    def tokens(self, g: int) -> int:
        """Tokens that each sequence of unfinished g has generated so far; 0 of one that is just arriving."""
        d = self._d
        if g not in d.prompt:
            return 0
        length = d.clock - d.born[g] if d.running.has(g) and not d.prefilling.has(g) else d.length[g]
        return length - d.prompt[g]

    def sequences(self, g: int) -> int:
        """Live sequences of unfinished g."""
        return self._d.members.count(g)

    def runs(self, g: int) -> bool:
        """Does g run (in its prefill or beyond)?"""
        return self._d.running.has(g)

    def waits(self, g: int) -> bool:
        """Does g wait for its admission or, swapped out, for its return?"""
        return self._d.waiting.has(g) or self._d.swapped.has(g)

    @property
    def tokens_a_pass(self) -> int:
        """The most tokens that one pass gives a sequence: 1, and more with lookahead slots."""
        return 1 + self._d.config.num_lookahead_slots

    # Notes.

    def get(self, key: Hashable, default: Any = None) -> Any:
        """The note under this key."""
        return self._notes.get((NOTE, key), default)

    def keep(self, key: Hashable, value: Any) -> None:
        """Keep a note: an immutable value. Under the id of a request it goes when the request has gone."""
        self._notes.keep((NOTE, key), value)

    def drop(self, key: Hashable) -> None:
        """Forget a note."""
        self._notes.drop((NOTE, key))

    # Alarms: one for each request.

    def wake(self, g: int, passes: int) -> None:
        """Be told of g (`woken`) before the pass that comes so many passes after this one; an alarm set before is off. >= 1."""
        if type(g) is not int or type(passes) is not int:
            raise ValueError(f"wake: a request and passes must be integers, got {ascii((g, passes))[:60]}")
        when, notes = self.now + max(1, passes), self._notes
        if notes.get((RINGS, g)) != when:
            notes.keep((RINGS, g), when)
            notes.keep((ALARM, when), (g, notes.get((ALARM, when))))

    def wake_at(self, g: int, tokens: int) -> None:
        """Be told of running g no later than when each of its sequences has generated so many tokens."""
        self.wake(g, -(-(tokens - self.tokens(g)) // self.tokens_a_pass))


def ringing(notes: Notes, now: int) -> tuple[int, ...]:
    """Whose alarm rings before pass `now`, smallest id first; the alarms are taken off."""
    cell = notes.get((ALARM, now))
    if cell is None:
        return ()
    notes.drop((ALARM, now))
    out = []
    while cell is not None:
        g, cell = cell
        if notes.get((RINGS, g)) == now:
            notes.drop((RINGS, g))
            out.append(g)
    return tuple(sorted(out))


def forget(notes: Notes, g: int) -> None:
    """Request g has gone, with what is kept of it."""
    for kind in (NOTE, REQUEST, RINGS):
        notes.drop((kind, g))
