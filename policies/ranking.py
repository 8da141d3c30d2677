"""Orders of requests: who comes first in line, who makes way for whom. docs/policies.md compares them.

An order says with `displaces` whether a head of the line may displace who runs and ranks below it (`Config.priority`), and states
what `kvproof.order` checks while it runs: `patience` and `overtakes`.

Ranks are coarse on purpose (`granularity`, levels): a rank that changes costs a few microseconds, and in none of these orders
does it change with every token. SRPT ranks a running request anew every `granularity` tokens, MLFQ once a level.
"""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import attrs

from kvproof.policies.desk import Desk, Request

Ranks = Iterable[tuple[int, int]]
"""(request, its priority from now on)."""
NOBODY: Ranks = ()
NUMBER_MAX = 2**30
LEVELS_MAX = 24


def whole(default: int, least: int = 1, most: int = NUMBER_MAX) -> Any:
    """A field of an order: a whole number in this range, or a ValueError that names it."""

    def check(instance: object, attribute: "attrs.Attribute[int]", value: object) -> None:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"{attribute.name}: must be an integer from {least} to {most}, got {value!r}")

    return attrs.field(default=default, validator=check)


@attrs.frozen(kw_only=True)
class Fcfs:
    """First come, first served: ranks never change, and nobody comes in past an earlier arrival."""

    name: ClassVar[str] = "fcfs"
    displaces: ClassVar[bool] = False
    overtakes: ClassVar[int | None] = 0
    patience: int = whole(64)

    def arrive(self, desk: Desk, request: Request) -> int:
        """All alike: the arrival decides."""
        return 0

    def rank(self, desk: Desk) -> Ranks:
        """Nothing changes."""
        return NOBODY


@attrs.frozen(kw_only=True)
class ByPriority(Fcfs):
    """The priorities that requests were added with, smaller ones first. Overtakes are not bounded: the last may starve."""

    name: ClassVar[str] = "priority"
    displaces: ClassVar[bool] = True
    overtakes: ClassVar[int | None] = None

    def arrive(self, desk: Desk, request: Request) -> int:
        """As the caller says."""
        return request.priority


LATE = -1
"""SRPT: the priority of those that are nearly done, before all others."""


@attrs.frozen(kw_only=True)
class Srpt:
    """Shortest remaining processing time first: fewest tokens to go, as far as `expected_tokens` or `max_tokens` say.

    A request that has generated `late` of its expected output ranks before all that have not, whatever is expected of them:
    nobody displaces it any more but those that are late as well and arrived before it. Who outlives what was expected is expected
    to live as long again, at most to its limit. Long requests may starve: overtakes are not bounded.
    """

    name: ClassVar[str] = "srpt"
    displaces: ClassVar[bool] = True
    overtakes: ClassVar[int | None] = None
    patience: int = whole(64)
    granularity: int = whole(64)
    """Tokens: remaining tokens that differ by less may count as equal; then the arrival decides."""
    late: float = attrs.field(default=0.8)
    """Share of its expected output after which a request is no longer displaced. 1 and above: never."""

    @late.validator
    def _share(self, attribute: "attrs.Attribute[float]", value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= NUMBER_MAX:
            raise ValueError(f"late: must be a number > 0, got {value!r}")

    def arrive(self, desk: Desk, request: Request) -> int:
        """All of its output is to come, but for what it has generated already (if the order is changed meanwhile)."""
        return -(-max(0, request.expected - desk.tokens(request.group)) // self.granularity)

    def rank(self, desk: Desk) -> Iterator[tuple[int, int]]:
        """Those that have generated another `granularity` tokens, or are late now."""
        for g in (*desk.news.entered, *desk.woken):
            request = desk.request(g)
            if request is None or desk.get(g) or not desk.runs(g):
                continue  # gone, late already, or preempted since: then nothing changes
            done, expected = desk.tokens(g), request.expected
            while done >= expected < request.max_tokens:
                expected = min(2 * expected, request.max_tokens)
            late_at = max(1, int(self.late * expected))
            if done >= late_at:
                desk.keep(g, True)
                yield g, LATE
                continue
            left = max(0, expected - done)
            level = -(-left // self.granularity)
            desk.wake_at(g, min(late_at, expected - (level - 1) * self.granularity))
            yield g, level


class Standing(NamedTuple):
    """MLFQ's note of a request."""

    level: int
    tokens: int
    """It had generated so many when it came to this level."""
    waits_since: int
    """The pass before which it began to wait, the last time."""
    promoted: bool = False
    """It has its level because it waited so long, and keeps it for longer."""


@attrs.frozen(kw_only=True)
class Mlfq:
    """Skip-join multi-level feedback queue, for outputs of unknown length: who has generated little comes first.

    Level 0 is served first. The quantum of level k is `quantum` x 2^k generated tokens; who has used it up goes one level down,
    at most to the last. A long prompt joins below, at the first level whose quantum is no less than its prompt counts. Who has
    waited `promote_after` passes at a stretch goes to level 0, and stays there for the quantum of the last level: with the short
    one of level 0 an overloaded server would do little but preempt whom it has promoted for the next one. So nobody starves: the
    earliest arrival of the line is passed in as many passes at most.
    """

    name: ClassVar[str] = "mlfq"
    displaces: ClassVar[bool] = True
    levels: int = whole(6, most=LEVELS_MAX)
    quantum: int = whole(16)
    """Generated tokens of each sequence."""
    prompt_tokens_each: int = whole(64)
    """So many prompt tokens count as one generated token: they are computed side by side."""
    promote_after: int = whole(2048)
    patience: int = whole(1024)

    @property
    def overtakes(self) -> int | None:
        """Promoted, the earliest arrival is first in line."""
        return self.promote_after + 1

    def _begin(self, request: Request) -> int:
        """The level at which a request joins."""
        prompt, level = request.prompt_tokens // self.prompt_tokens_each, 0
        while level < self.levels - 1 and self.quantum << level < prompt:
            level += 1
        return level

    def arrive(self, desk: Desk, request: Request) -> int:
        """At the level that its prompt says; it waits."""
        level = self._begin(request)
        desk.keep(request.group, Standing(level, 0, desk.now))
        desk.wake(request.group, self.promote_after)
        return level

    def rank(self, desk: Desk) -> Iterator[tuple[int, int]]:
        """Demotions and promotions."""
        for g in desk.news.preempted:
            if desk.waits(g):
                desk.keep(g, desk.get(g)._replace(waits_since=desk.now))
                desk.wake(g, self.promote_after)
        for g in (*desk.news.entered, *desk.woken):
            if desk.runs(g):
                yield from self._served(desk, g, desk.get(g))
            elif desk.waits(g) and desk.now - desk.get(g).waits_since >= self.promote_after:
                desk.keep(g, Standing(0, desk.tokens(g), desk.now, True))
                yield g, 0

    def _served(self, desk: Desk, g: int, was: Standing) -> Iterator[tuple[int, int]]:
        """g runs: has it used up its quantum, and if not, when will it have?"""
        level, since, done, last = was.level, was.tokens, desk.tokens(g), self.levels - 1
        quantum = self.quantum << (last if was.promoted else level)
        while level < last and done >= since + quantum:
            level, since = level + 1, since + quantum
            quantum = self.quantum << level
        if level != was.level:
            desk.keep(g, was._replace(level=level, tokens=since, promoted=False))
            yield g, level
        if level < last:
            desk.wake_at(g, since + quantum)
