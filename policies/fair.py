"""Fair shares between tenants: the virtual token counter (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024).

Each tenant has a counter of the service that it got, divided by its weight: `prompt_weight` for each token of a prompt when it is
admitted, `output_weight` for each token generated. Requests rank by their tenant's counter, those of one tenant by arrival, each
behind the prompts of those before it. What is computed again after a preemption is not the tenant's fault and not charged.
A tenant that comes (back) starts at the least counter of those that have unfinished requests, if its own is lower: who was away
has saved nothing up. When nobody has anything to do, nobody owes anybody anything: all begin anew.

Nobody who runs is displaced. Between tenants that always have requests waiting the services, divided by their weights, differ by
no more than 2 x max(prompt_weight x the tokens of a pass, output_weight x the slots of the pool) / the least weight, about.

Generated tokens are charged every `quantum` tokens of a request, when it is preempted and when it ends. In each tenant's line
only the first `window` requests have their true place; the others stand behind those of all tenants, by arrival. So a pass
changes at most `window` ranks for each tenant whose counter has moved. If a pass admits more than `window` requests of everybody,
it admits the rest by arrival; what that gives too much is charged, and evens out. Overtakes are not bounded: new tenants may come
for ever.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import attrs

from kvproof.policies.desk import Desk, Request
from kvproof.policies.ranking import whole

WEIGHT_MIN, WEIGHT_MAX = 0.01, 100.0
UNIT = 8
"""Counters that differ by less than so many tokens may rank as equal."""
SERVICE_MAX = 2**42
"""No request adds more to a counter at a time."""
PARKED = 2**39
"""The priority of who stands behind everybody's first requests."""
TENANTS, TOUCHED = "tenants", "touched"
"""Notes: the names of the tenants that are known; those whose counter or line has changed, as cells."""


class Tenant(NamedTuple):
    """Note of a tenant. `head`, `tail`: the first and the last of its line, which goes on in the notes of the requests."""

    counter: float
    unfinished: int = 0
    head: int = -1
    tail: int = -1


class Place(NamedTuple):
    """Note of a request. `charged`: its generated tokens (of all sequences) that its tenant has paid; -1: it never ran."""

    charged: int = -1
    sequences: int = 1


def _shares(weights: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """Weights as an immutable value, or a ValueError."""
    if not isinstance(weights, Mapping):
        return weights  # the validator refuses it, unless it is what this function made
    return tuple(sorted(weights.items(), key=lambda pair: str(pair[0])))


@attrs.frozen(kw_only=True)
class Fair:
    """Shares of service by tenant. `weights`: tenant -> its weight, 1 for all others."""

    name: ClassVar[str] = "fair"
    displaces: ClassVar[bool] = False
    overtakes: ClassVar[int | None] = None
    weights: tuple[tuple[str, float], ...] = attrs.field(default=(), converter=_shares)
    quantum: int = whole(32)
    window: int = whole(8)
    prompt_weight: int = whole(1, least=0)
    output_weight: int = whole(2, least=0)
    patience: int = whole(64)

    @weights.validator
    def _check(self, attribute: "attrs.Attribute[object]", value: object) -> None:
        pairs: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
        for pair in pairs:
            name, weight = pair if type(pair) is tuple and len(pair) == 2 else (None, pair)
            number = not isinstance(weight, bool) and isinstance(weight, (int, float))
            if type(name) is not str or not number or not WEIGHT_MIN <= weight <= WEIGHT_MAX:
                raise ValueError(
                    f"weights: must be numbers from {WEIGHT_MIN} to {WEIGHT_MAX:g} by tenant, got {name!r}: {weight!r}"
                )

    def weight(self, tenant: str) -> float:
        """Its share, relative to those of others."""
        return dict(self.weights).get(tenant, 1.0)

    # --- arrivals

    def arrive(self, desk: Desk, request: Request) -> int:
        """To the end of its tenant's line. O(1), or O(tenants) if the tenant had nothing to do."""
        name, g = request.tenant, request.group
        tenant = desk.get((TENANTS, name))
        if tenant is None or not tenant.unfinished:
            tenant = self._begin(desk, name, tenant)
        if tenant.tail >= 0:
            desk.keep(("next", tenant.tail), g)
        head = g if tenant.head < 0 else tenant.head
        desk.keep((TENANTS, name), Tenant(tenant.counter, tenant.unfinished + 1, head, g))
        desk.keep(g, Place())
        self._touch(desk, name)
        return PARKED

    def _begin(self, desk: Desk, name: str, was: Tenant | None) -> Tenant:
        """A tenant comes (back). Who is away and would begin at the least counter anyway is forgotten; all, if all are away."""
        known = [other for other in desk.get(TENANTS, ()) if other != name]
        tenants = {other: desk.get((TENANTS, other)) for other in known}
        active = [tenant.counter for tenant in tenants.values() if tenant.unfinished]
        least = min(active, default=0.0)
        for other, tenant in tenants.items():
            if not tenant.unfinished and (tenant.counter <= least or not active):
                desk.drop((TENANTS, other))
                known.remove(other)
        desk.keep(TENANTS, (*known, name))
        return Tenant(max(least, was.counter) if was is not None and active else least)

    @staticmethod
    def _touch(desk: Desk, name: str) -> None:
        """The ranks of this tenant's line are to be looked at before the next pass."""
        cell = desk.get(TOUCHED)
        if cell is None or cell[0] != name:
            desk.keep(TOUCHED, (name, cell))

    # --- before a pass

    def rank(self, desk: Desk) -> Iterator[tuple[int, int]]:
        """Charge what was served; then the first of the line of each tenant for whom something has changed."""
        for g in desk.news.entered:
            place, request = desk.get(g), desk.request(g)
            if place is not None and place.charged < 0 and request is not None:
                self._charge(desk, request.tenant, self.prompt_weight * request.prompt_tokens)
                desk.keep(g, Place(0))
        for g in {*desk.news.entered, *desk.news.preempted, *desk.woken}:
            if desk.runs(g) or desk.waits(g):
                self._served(desk, g, desk.tokens(g), desk.sequences(g))
                if desk.runs(g):
                    desk.wake(g, self.quantum)
        for g, tokens in desk.news.ended:
            request = desk.request(g)
            if request is not None:
                self._served(desk, g, tokens, desk.get(g, Place()).sequences)
                tenant = desk.get((TENANTS, request.tenant))
                desk.keep((TENANTS, request.tenant), tenant._replace(unfinished=tenant.unfinished - 1))
                self._touch(desk, request.tenant)
        cell = desk.get(TOUCHED)
        if cell is not None:
            desk.drop(TOUCHED)
            names = set()
            while cell is not None:
                name, cell = cell
                names.add(name)
            for name in sorted(names):
                yield from self._line(desk, name)

    def _served(self, desk: Desk, g: int, tokens: int, sequences: int) -> None:
        """Request g has generated so many tokens in each of so many sequences."""
        place, request = desk.get(g), desk.request(g)
        if place is None or place.charged < 0 or request is None:
            return
        more = (tokens - place.charged) * sequences
        if more > 0:
            self._charge(desk, request.tenant, self.output_weight * more)
        desk.keep(g, Place(tokens, sequences))

    def _share(self, name: str, service: int) -> float:
        """What so much service adds to the counter. A prompt may be of any length: SERVICE_MAX at most."""
        return min(service, SERVICE_MAX) / self.weight(name)

    def _charge(self, desk: Desk, name: str, service: int) -> None:
        tenant = desk.get((TENANTS, name))
        desk.keep((TENANTS, name), tenant._replace(counter=tenant.counter + self._share(name, service)))
        self._touch(desk, name)

    def _line(self, desk: Desk, name: str) -> Iterator[tuple[int, int]]:
        """The places of the first of this tenant's line. Who has gone or been admitted leaves it on the way."""
        tenant = desk.get((TENANTS, name))
        if tenant is None:
            return
        at, before, found = tenant.counter, -1, 0
        g = tenant.head
        while g >= 0 and found < self.window:
            after = desk.get(("next", g), -1)
            place, request = desk.get(g), desk.request(g)
            if place is not None and place.charged < 0 and request is not None and desk.waits(g):
                yield g, min(int(at) // UNIT, PARKED - 1)
                at += self._share(name, self.prompt_weight * request.prompt_tokens)
                found, before = found + 1, g
            else:
                desk.drop(("next", g))
                if before >= 0:
                    self._link(desk, before, after)
                else:
                    tenant = tenant._replace(head=after)
                if after < 0:
                    tenant = tenant._replace(tail=before)
            g = after
        desk.keep((TENANTS, name), tenant)

    @staticmethod
    def _link(desk: Desk, g: int, after: int) -> None:
        if after < 0:
            desk.drop(("next", g))
        else:
            desk.keep(("next", g), after)
