"""Requests by the order in which they came: the names that a log uses. The scheduler's ids depend on what else has happened."""

from collections.abc import Callable, Sequence
from typing import Any

NOBODY = 10**6
"""A group that was never added, and a sequence that does not live."""
PLACE = {"abort": 0, "fork": 0, "finish": 0, "preempt": 0, "deny": 0, "rerank": 0, "refused": 1}
"""Operation -> which of its arguments is a group. A `commit` has lists of them."""

Arguments = tuple[Any, ...]


def renamed(name: str, arguments: Arguments, new: Callable[[int], int | None]) -> Arguments | None:
    """The arguments of an operation with other names for the groups; None as a name leaves out what is said of that group.

    None: then there is nothing left of the operation.
    """
    if name == "commit":
        return tuple(_listed(part, new) if isinstance(part, tuple) else part for part in arguments)
    if name not in PLACE:
        return arguments
    at = PLACE[name]
    group = new(arguments[at])
    return None if group is None else (*arguments[:at], group, *arguments[at + 1 :])


def _listed(part: Arguments, new: Callable[[int], int | None]) -> Arguments:
    """The same of a list of groups, or of (group, ...)."""
    out: list[Any] = []
    for x in part:
        g, *rest = x if isinstance(x, tuple) else (x,)
        group = new(g)
        if group is not None:
            out.append((group, *rest) if isinstance(x, tuple) else group)
    return tuple(out)


def number(ids: Sequence[int], g: int) -> int:
    """The name of group g; NOBODY and more for one that has never come."""
    return ids.index(g) if g in ids else NOBODY + g


def group(ids: Sequence[int], n: int) -> int:
    """The group of this name; one that does not exist, if nobody has it."""
    if n < len(ids):
        return ids[n]
    return n - NOBODY if n >= NOBODY else NOBODY
