"""A scheduler's order of requests and its costs: who tells them what, and how they go back with everything else.

Ranks change inside the draft of the pass, before it: a pass with its changes of rank is one call, which happens or does not.
What an order has noted, what it is to be told next and what is checked of it are in one book of notes, of which a snapshot is
O(1); going back copies it at the first use, O(what is noted).
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any, ClassVar

import attrs

from kvproof.books import Notes, Point, Snapshot
from kvproof.choosing import Chosen, ranked
from kvproof.contract import arrived, check_pass
from kvproof.core import groups
from kvproof.core.errors import Rejected
from kvproof.inputs import PRIORITY_MAX
from kvproof.observed import Observed
from kvproof.order import Order, PolicyError, check_order, load
from kvproof.policies.auto import Auto
from kvproof.policies.calibrated import Calibrated
from kvproof.policies.costs import Costs
from kvproof.policies.desk import REQUEST, Desk, News, Request, forget, ringing
from kvproof.store.draft import Draft
from kvproof.store.policies import Policy
from kvproof.store.state import State

ORDER, NEWS, GONE = "order", "news", "gone"
"""Keys of the notes: whose they are; who entered and was preempted in the last pass; who has ended since, as cells."""
NO_NEWS = News()
ANSWERS_MIN, ANSWERS_EACH = 1000, 10
"""So many answers of `rank` at least, and so many more for each note, are taken for a pass; whoever gives more may never end."""


class Ordered(Observed):
    """With an order, or without one (None): then no call does anything here."""

    SMALL: ClassVar = {**Observed.SMALL, "_memory": None, "_costs": None}

    def __init__(self, chosen: Chosen, keep_history: int, check: bool) -> None:
        super().__init__(chosen.config, keep_history, check)
        self._order: Order | None = chosen.order
        self._notes = Notes()
        self._moment: Point | None = None  # the notes as they were before the call in progress
        self.policy: Policy = chosen.policy
        self._begun_with = chosen.costs
        self._costs: Calibrated | None = None  # once something was observed
        self._price()

    def __getstate__(self) -> dict[str, Any]:
        """A copy goes its own way, with notes and a policy of its own."""
        own = {**super().__getstate__(), "_notes": Notes(self._notes.point())}
        if isinstance(self.policy, Auto):
            own["policy"] = attrs.evolve(self.policy, times=own["_accounts"].times)
        return own

    def __deepcopy__(self, memo: Any) -> "Ordered":
        """The order is the same: it never changes, and the notes are its own."""
        memo[id(self._order)] = self._order
        new = super().__deepcopy__(memo)
        assert isinstance(new, Ordered)
        return new

    def restore(self, moment: Snapshot | State) -> None:
        """Go on from there: every answer is that of then, but for the counters of `metrics`, which never fall.

        O(1) now; unless nothing has happened since, the next call copies the state. A bare state has no preemptions counted, no
        outcomes to come and nothing noted by an order, which then ranks all requests anew. Raises Rejected while a call is in
        progress, and if the configuration is another.
        """
        super().restore(moment)
        self._price()

    # --- costs

    def _price(self) -> None:
        """The policy reckons with what was observed so far."""
        if isinstance(self.policy, Auto):
            known = self._costs or self._begun_with
            self.policy = attrs.evolve(self.policy, known=known or self.policy.known, times=self._accounts.times)

    @property
    def costs(self) -> Costs | None:
        """What `preemption_mode="auto"` reckons with now; None in other modes."""
        return self.policy.costs if isinstance(self.policy, Auto) else None

    def _observe(self, how: str, *seen: Any) -> None:
        if self._busy:
            raise Rejected("a call is in progress")
        known = self._costs or self._begun_with
        if known is None:
            raise Rejected('costs are observed with preemption_mode "auto" only')
        try:
            self._costs = getattr(known, how)(*seen)
        except ValueError as error:
            raise Rejected(str(error)) from None
        self._price()

    def observe_step(self, prefill_tokens: int, attended_pairs: int, seconds: float) -> None:
        """A step of prefills took so long: `Calibrated.observe`. The next preemptions reckon with it."""
        self._observe("observe", prefill_tokens, attended_pairs, seconds)

    def observe_transfer(self, blocks: int, seconds: float, direction: str) -> None:
        """Moving so many blocks "out" to the host, or "in", took so long: `Calibrated.observe_transfer`."""
        self._observe("observe_transfer", blocks, seconds, direction)

    # --- the order

    @property
    def order(self) -> Order | None:
        """The order of requests; None: by arrival, or by (priority, arrival) with `Config.priority`."""
        return self._order

    @property
    def _memory(self) -> Point | None:
        """What an order has noted, for a snapshot."""
        return None if self._order is None else self._notes.point()

    @_memory.setter
    def _memory(self, point: Point | None) -> None:
        if point is None:
            self._notes = Notes()
        else:
            self._notes.go_to(point)

    def change_order(self, policy: str | Order) -> None:
        """Another order from now on; the next pass or arrival ranks all unfinished requests anew, O(requests) once.

        Legal at any time, also after a PolicyError. A snapshot of before can be restored only if both orders displace, or neither
        does. Raises ConfigError for what is no order, Rejected while a call is in progress.
        """
        if self._busy:
            raise Rejected("a call is in progress")
        order = check_order(load(policy) if type(policy) is str else policy)
        config = ranked(self.config, order)
        if config is not self.config:
            self.config, self.state = config, attrs.evolve(self.state, config=config)
        self._order = order
        before, self._notes = self._notes, Notes()
        for key, value in before.items():
            if type(key) is tuple and key[0] == REQUEST:
                self._notes.keep(key, value)

    def _recall(self, order: Order, d: Draft) -> None:
        """If the notes are not of this order, it sees all unfinished requests as if they arrived now."""
        notes = self._notes
        whose = notes.get(ORDER)
        if whose is order or whose == order:
            return
        kept = {key: value for key, value in notes.items() if type(key) is tuple and key[0] == REQUEST}
        notes = self._notes = Notes()
        notes.keep(ORDER, order)
        for g in sorted((*d.waiting.ids, *d.running.ids, *d.swapped.ids)):
            prompt = d.prompt[g]
            request = kept.get((REQUEST, g)) or Request(g, prompt, d.limit[g] - prompt, priority=d.priority[g])
            self._rank(order, d, g, self._welcome(order, d, request))
        notes.keep(NEWS, News(tuple(d.running.ids)))

    def _welcome(self, order: Order, d: Draft, request: Request) -> int:
        """The priority that a request arrives with."""
        priority = order.arrive(Desk(d, self._notes, NO_NEWS), request)
        self._notes.keep((REQUEST, request.group), request)
        arrived(order, self._notes, request.group)
        return self._checked(order, request.group, priority)

    @staticmethod
    def _checked(order: Order, g: int, priority: int) -> int:
        if type(priority) is not int or abs(priority) > PRIORITY_MAX:
            must = f"an integer from -{PRIORITY_MAX} to {PRIORITY_MAX}"
            raise PolicyError(order.name, f"the priority of request {g} must be {must}, got {ascii(priority)[:40]}", g)
        return priority

    def _rank(self, order: Order, d: Draft, g: int, priority: int) -> None:
        """g has this priority, if it is unfinished."""
        priority = self._checked(order, g, priority)
        if d.priority[g] != priority and groups.unfinished(d, g):
            groups.rerank(d, g, priority)

    def _arrive(self, order: Order, d: Draft, request: Request) -> int:
        """The priority of a request that is about to be added."""
        self._moment = self._notes.point()
        self._recall(order, d)
        return self._welcome(order, d, request)

    def _before_pass(self, order: Order, d: Draft) -> None:
        """The order hears what has happened, and ranks change."""
        self._moment = self._notes.point()
        self._recall(order, d)
        notes = self._notes
        news, gone, ended = notes.get(NEWS, NO_NEWS), notes.get(GONE), []
        if news is not NO_NEWS:
            notes.drop(NEWS)
        if gone is not None:
            notes.drop(GONE)
            while gone is not None:
                end, gone = gone
                ended.append(end)
            news = news._replace(ended=tuple(reversed(ended)))
        changes = order.rank(Desk(d, notes, news, ringing(notes, d.epoch + 1)))
        if not isinstance(changes, Iterable):
            raise PolicyError(order.name, f"rank must give pairs (request, priority), got {ascii(changes)[:40]}")
        most = ANSWERS_MIN + ANSWERS_EACH * len(notes)
        told = tuple(islice(changes, most + 1))
        if len(told) > most:
            raise PolicyError(order.name, f"rank gave more than {most} pairs before one pass", allowed=most)
        for change in told:
            if type(change) is not tuple or len(change) != 2 or type(change[0]) is not int:
                raise PolicyError(order.name, f"rank must give pairs (request, priority), got {ascii(change)[:40]}")
            self._rank(order, d, *change)
        for g, _ in ended:
            forget(notes, g)

    def _after_pass(self, order: Order, d: Draft, forced: bool) -> None:
        """Note what the order is to be told before the next pass, and hold it to its word."""
        plan = d.plan
        entered: tuple[int, ...] = ()
        preempted: tuple[int, ...] = ()
        if plan.pieces or plan.victims or plan.resumes:
            entered = (*(g for g, start, _ in plan.pieces if start == 0), *plan.resumes)
            preempted = tuple(g for g, _ in plan.victims)
            if entered or preempted:
                self._notes.keep(NEWS, News(entered, preempted))
        check_pass(order, self._notes, d, entered, preempted, forced or d.testing)

    def _left(self, g: int, tokens: int) -> None:
        """g has ended with so many generated tokens: the order hears of it before the next pass."""
        self._notes.keep(GONE, ((g, tokens), self._notes.get(GONE)))
