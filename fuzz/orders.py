"""Orders of requests under which a run may be: those of `kvproof.policies`, with thresholds that are met early, and a wild one.

`Heard` is an order that also says aloud what it answers: so the engine knows the rank of everybody without asking the scheduler.
An answer counts once the call in which it was given has succeeded.
"""

from collections.abc import Iterator
from typing import Any

import attrs

from kvproof.core import groups
from kvproof.order import Order
from kvproof.policies.desk import Desk, Request
from kvproof.policies.fair import Fair
from kvproof.policies.ranking import ByPriority, Fcfs, Mlfq, Srpt
from kvproof.store.candidates import Need
from kvproof.store.draft import Draft
from kvproof.store.policies import Policy
from kvproof.store.state import State

Said = list[tuple[int, int]]
"""(request, priority) of each answer, in order."""
TENANTS = ("a", "b", "")


@attrs.frozen
class Restless:
    """Ranks that have no reason, the same in every run: each request has another one at each of its first alarms."""

    name: str = "restless"
    displaces: bool = True
    patience: int = 10**6
    overtakes: int | None = None
    changes: int = 5
    """Then its rank stays, so that all work ends."""

    def arrive(self, desk: Desk, request: Request) -> int:
        """Some bits of its id."""
        desk.keep(request.group, self.changes)
        desk.wake(request.group, 1 + request.group % 3)
        return self._some(request.group, desk.now)

    def rank(self, desk: Desk) -> Iterator[tuple[int, int]]:
        """Whose alarm rings; and who came in or was preempted."""
        for g in {*desk.woken, *desk.news.entered, *desk.news.preempted}:
            left = desk.get(g, 0)
            if left and (desk.runs(g) or desk.waits(g)):
                desk.keep(g, left - 1)
                desk.wake(g, 1 + (g + desk.now) % 4)
                yield g, self._some(g, desk.now)

    @staticmethod
    def _some(g: int, now: int) -> int:
        return ((g + 1) * 2654435761 + now * 40503 >> 5) % 7 - 3


ORDERS: dict[str, Order] = {
    "fcfs": Fcfs(),
    "priority": ByPriority(),
    "srpt": Srpt(granularity=2, late=0.7),
    "mlfq": Mlfq(quantum=1, levels=3, promote_after=6, prompt_tokens_each=4),
    "fair": Fair(weights={"a": 2}, quantum=2, window=2),
    "restless": Restless(),
    "restless, nobody displaced": Restless(name="restless, nobody displaced", displaces=False),
}
"""By the name that a script has."""


class Heard:
    """An order, and what it answers in this call."""

    def __init__(self, order: Order, said: Said) -> None:
        self.order, self.said = order, said
        self.name, self.displaces, self.patience, self.overtakes = order.name, order.displaces, order.patience, order.overtakes

    def arrive(self, desk: Desk, request: Request) -> int:
        """As the order says."""
        answer = self.order.arrive(desk, request)
        self.said.append((request.group, answer))
        return answer

    def rank(self, desk: Desk) -> Iterator[tuple[int, int]]:
        """As the order says."""
        for answer in self.order.rank(desk):
            self.said.append(answer)
            yield answer


class HeardAndChooses(Heard):
    """It chooses modes besides."""

    def __init__(self, order: Order, said: Said, policy: Policy) -> None:
        super().__init__(order, said)
        self.policy = policy

    def swaps(self, g: int, sequences: int) -> bool:
        """As the policy says."""
        return self.policy.swaps(g, sequences)


class HeardAndNames(HeardAndChooses):
    """And it names victims."""

    def victim(self, need: Need) -> int:
        """As the policy says."""
        named: int = self.policy.victim(need)  # type: ignore[attr-defined]
        return named


def heard(name: str, said: Said, policy: Any) -> Any:
    """The order of this name, aloud. `policy`: chooses modes, and victims perhaps; None: the preemption mode does."""
    if policy is None:
        return Heard(ORDERS[name], said)
    return (HeardAndNames if callable(getattr(policy, "victim", None)) else HeardAndChooses)(ORDERS[name], said, policy)


def hints_of(i: int, output: int) -> dict[str, Any]:
    """What the engine says of its i-th request besides: its tenant, and how long its output will be, which may be wrong."""
    return {"tenant": TENANTS[i % 3] or None, "expected_tokens": (None, 1 + output // 2, 2 * output)[i // 3 % 3]}


def reranked(state: State, ranks: dict[int, int]) -> State:
    """The state with these priorities: what a pass begins with, after the order has spoken."""
    d = Draft(state)
    for g, priority in ranks.items():
        if d.priority[g] != priority:
            groups.rerank(d, g, priority)
    return d.close()
