"""A failing log made short: whole parts are left out, then numbers become small, as long as the same check fails.

Logs are concrete (group ids, not choices), so that a candidate costs one run of a few milliseconds.
"""

import time
from collections.abc import Iterator

import attrs

from kvproof.fuzz.setup import Setup
from kvproof.fuzz.world import Operation, World, rerun

Log = tuple[Operation, ...]
NAMES_GROUP = {"abort": 0, "fork": 0, "finish": 0, "refused": 1}
"""Operation -> which argument is a group."""
SETTLE_MAX = 40
"""Rounds without end are for machines; so many are enough."""


@attrs.frozen
class Failure:
    """A run that found a fault: `error` says which."""

    start: Setup
    log: Log
    error: str

    @property
    def check(self) -> str:
        """The check that failed, without what it says about ids and numbers."""
        return self.error.split(":")[0] if self.error.startswith(("Fault", "BackendError")) else self.error.split("'")[0]


def describe(error: Exception) -> str:
    """One line: a fault speaks for itself, the type of anything else matters."""
    return f"{type(error).__name__} in {error}"


def fails(start: Setup, log: Log) -> Failure | None:
    """The failure of this log, if any. It is cut where it fails."""
    world: World | None = None
    try:
        world = World(start)
        rerun(world, log)
    except Exception as error:
        done = tuple(world.log) if world is not None else ()
        return Failure(start, done, describe(error))
    return None


def without_group(log: Log, position: int) -> Log:
    """The log without the `add` at this position; later groups move up, what was done to this one is left out."""
    gone = sum(name == "add" for name, _ in log[:position])
    out: list[Operation] = []
    for i, (name, arguments) in enumerate(log):
        at = NAMES_GROUP.get(name)
        if i == position or (at is not None and arguments[at] == gone):
            continue
        if at is not None and arguments[at] > gone:
            arguments = (*arguments[:at], arguments[at] - 1, *arguments[at + 1 :])
        elif name == "commit" and arguments:
            arguments = _renumbered(arguments, gone)
        out.append((name, arguments))
    return tuple(out)


def _renumbered(arguments: tuple[object, ...], gone: int) -> tuple[object, ...]:
    """The arguments of a commit without a group."""
    parts = []
    for x in arguments:
        if isinstance(x, tuple):
            pairs = [y if isinstance(y, tuple) else (y,) for y in x]
            kept = [(g - (g > gone), *q) for g, *q in pairs if g != gone]
            parts.append(tuple(y if len(y) > 1 else y[0] for y in kept))
        else:
            parts.append(x)  # type: ignore[arg-type]
    return tuple(parts)


def shorter(log: Log) -> Iterator[Log]:
    """Logs without some part, large parts first; then without one request."""
    size = len(log) // 2
    while size:
        for i in range(0, len(log), size):
            yield log[:i] + log[i + size :]
        size //= 2
    for i, (name, _) in enumerate(log):
        if name == "add":
            yield without_group(log, i)


def smaller(log: Log) -> Iterator[Log]:
    """Logs with one request smaller."""
    for i, (name, arguments) in enumerate(log):
        if name == "add":
            for at in (0, 1):
                for less in {1, arguments[at] // 2, arguments[at] - 1} - {0, arguments[at]}:
                    new = (*arguments[:at], less, *arguments[at + 1 :])
                    yield (*log[:i], (name, new), *log[i + 1 :])
        elif name == "commit" and arguments:
            yield (*log[:i], (name, ()), *log[i + 1 :])


def shrink(failure: Failure, seconds: float) -> Failure:
    """The shortest log found in this time that fails in the same check."""
    until, best = time.monotonic() + seconds, failure
    for _ in range(SETTLE_MAX):
        before = best
        for ways in (shorter, smaller):
            again = True
            while again:
                again = False
                for log in ways(best.log):
                    if time.monotonic() > until:
                        return best
                    found = fails(best.start, log)
                    if found is not None and found.check == best.check:
                        best, again = found, True
                        break
        if best == before:
            return best
    return best
