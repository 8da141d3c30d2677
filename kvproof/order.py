"""Orders of requests: what one must have, how one is found by name, and what happens to one that breaks its word.

Built-in orders are in `kvproof.policies`. Others are objects that are given to a `Scheduler`, or entry points of installed
packages: in the group GROUP, named as users name the policy, an object, or a class or function that gives one when it is called.

**The progress contract.** Safety is proved for every order; that anything comes of it is the order's to say:

- `patience`: within so many passes, while requests are unfinished and nobody arrives, somebody gets a token that it never had, or
  ends. Passes that preempt nobody are not counted: they decode, or they compute parts of prompts, which nobody computes again.
- `overtakes`: while the earliest arrival of those in line (waiting or swapped) stays there, requests that arrived later come in
  past it in at most so many passes. None: not bounded.

`kvproof.contract` checks both in every pass, at a cost that depends on what has changed. A pass that breaks them is undone and
raises `PolicyError`; `Scheduler.change_order` gives the scheduler another order.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from kvproof.core.config import ConfigError
from kvproof.policies.desk import Desk, Request
from kvproof.policies.fair import Fair
from kvproof.policies.ranking import ByPriority, Fcfs, Mlfq, Srpt

GROUP = "kvproof.policies"
BUILT_IN: dict[str, Callable[[], "Order"]] = {"fcfs": Fcfs, "priority": ByPriority, "srpt": Srpt, "mlfq": Mlfq, "fair": Fair}


class Order(Protocol):
    """Who comes before whom. It never changes: what it must remember it notes on the desk (`kvproof.policies.desk`)."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def displaces(self) -> bool:
        """May a head of the line displace who runs and ranks below it? (`Config.priority` is set to it.)"""

    @property
    def patience(self) -> int:
        """Passes, >= 1 (above)."""

    @property
    def overtakes(self) -> int | None:
        """Passes, >= 0, or None (above)."""

    def arrive(self, desk: Desk, request: Request) -> int:
        """The priority of a request that arrives: smaller ones first, among equal ones the earlier arrival."""

    def rank(self, desk: Desk) -> Iterable[tuple[int, int]]:
        """(request, its priority from now on) of those whose rank changes before this pass. Who has ended is passed over."""


class PolicyError(RuntimeError):
    """An order that breaks its contract or gives an answer that is none. The call has changed nothing.

    `policy`: its name; `request`: whom it is about, or None; `found`, `allowed`: the number that was found, and the order's own.
    """

    def __init__(
        self, policy: str, what: str, request: int | None = None, found: int | None = None, allowed: int | None = None
    ) -> None:
        super().__init__(f'policy "{policy}": {what}')
        self.policy, self.request, self.found, self.allowed = policy, request, found, allowed


def has(policy: object, method: str) -> bool:
    """Has it this method? Raises ConfigError if it cannot be asked."""
    try:
        return callable(getattr(policy, method, None))
    except Exception as error:
        raise ConfigError(f"policy: {method} cannot be read: {_told(error)}") from error


def _told(error: Exception) -> str:
    """An error of somebody else, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def is_order(policy: object) -> bool:
    """Does it mean to be an order? (Whether it is one `check_order` says.)"""
    return has(policy, "arrive") or has(policy, "rank")


def check_order(policy: Any) -> Order:
    """The order, if it has all that it needs; of a class, what it gives when it is called. Raises ConfigError."""
    try:
        return _checked(policy() if isinstance(policy, type) else policy)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"policy: the order cannot be read: {_told(error)}") from error


def _checked(policy: Any) -> Order:
    shown = ascii(getattr(policy, "name", policy))[:60]
    if type(getattr(policy, "name", None)) is not str:
        raise ConfigError(f"policy: an order must have a name, a string, got {shown}")
    lacks = [method for method in ("arrive", "rank") if not callable(getattr(policy, method, None))]
    lacks += [field for field in ("displaces", "patience", "overtakes") if not hasattr(policy, field)]
    if lacks:
        raise ConfigError(f"policy: the order {shown} lacks {', '.join(lacks)}")
    if type(policy.displaces) is not bool:
        raise ConfigError(f"policy: displaces of the order {shown} must be True or False, got {ascii(policy.displaces)[:40]}")
    if type(policy.patience) is not int or policy.patience < 1:
        raise ConfigError(f"policy: patience of the order {shown} must be an integer >= 1, got {ascii(policy.patience)[:40]}")
    least = policy.overtakes
    if least is not None and (type(least) is not int or least < 0):
        raise ConfigError(f"policy: overtakes of the order {shown} must be None or an integer >= 0, got {ascii(least)[:40]}")
    return policy  # type: ignore[no-any-return]


def load(name: str) -> object:
    """The policy of this name: built in, or of an installed package. Raises ConfigError: unknown, or not to be loaded."""
    if name in BUILT_IN:
        return BUILT_IN[name]()
    from importlib import metadata  # 30 ms, which nobody else pays

    points = metadata.entry_points(group=GROUP)
    found = [point for point in points if point.name == name]
    if not found:
        known = ", ".join((*BUILT_IN, *sorted({point.name for point in points} - set(BUILT_IN))))
        raise ConfigError(f"policy: no policy is called {ascii(name)[:60]}, known are {known}")
    if len(found) > 1:
        raise ConfigError(f"policy: {name} is the name of several: {', '.join(sorted(point.value for point in found))}")
    try:
        policy = found[0].load()
        return policy() if callable(policy) else policy
    except Exception as error:
        raise ConfigError(f"policy: {name} ({found[0].value}) cannot be loaded: {_told(error)}") from error
