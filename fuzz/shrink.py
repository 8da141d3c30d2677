"""A failing run made short: parts are left out, features switched off, numbers made small, as long as the same check fails.

Logs are concrete (who, not choices), so that a candidate costs one run of a few milliseconds.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import attrs

from kvproof.core.config import ConfigError
from kvproof.fuzz.names import NOBODY, renamed
from kvproof.fuzz.setup import Setup
from kvproof.fuzz.world import Operation, World, rerun

Log = tuple[Operation, ...]
SPEC = ("invariants", "announcements", "pass", "commit")
"""Checks that evaluate the specification."""


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


def fails(start: Setup, log: Log, spec: bool = True) -> Failure | None:
    """The failure of this log, if any. It is cut where it fails. `spec`: as in `Engine`."""
    world: World | None = None
    try:
        world = World(start, spec)
        rerun(world, log)
    except Exception as error:
        done = tuple(world.log) if world is not None else ()
        return Failure(start, done, describe(error))
    return None


def without_group(log: Log, position: int) -> Log:
    """The log without the `add` at this position; later groups move up, what was done to this one is left out."""
    gone = sum(name == "add" for name, _ in log[:position])

    def new(n: int) -> int | None:
        return None if n == gone else n - (gone < n < NOBODY)

    out = [(name, renamed(name, arguments, new)) for i, (name, arguments) in enumerate(log) if i != position]
    return tuple((name, arguments) for name, arguments in out if arguments is not None)


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
    """Logs with one operation plainer: a request smaller, a commit of everything, a step of one tick."""
    for i, (name, arguments) in enumerate(log):
        for plain in plainer(name, arguments):
            yield (*log[:i], (name, plain), *log[i + 1 :])


def plainer(name: str, arguments: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Arguments of this operation that say less."""
    if name in ("schedule", "commit") and arguments:
        yield ()
    if name == "commit":
        for at, value in enumerate(arguments):
            if value:
                yield (*arguments[:at], type(value)(), *arguments[at + 1 :])
            if isinstance(value, tuple) and len(value) > 1:
                for i in range(len(value)):
                    yield (*arguments[:at], value[:i] + value[i + 1 :], *arguments[at + 1 :])
    elif name == "add":
        prompt, output, *more = arguments
        if more:
            yield prompt, output
        for at, plain in enumerate((1, None, 0)):
            if len(more) == 3 and more[at] != plain:
                yield prompt, output, *more[:at], plain, *more[at + 1 :]
        for less in sorted({1, prompt // 2, prompt - 1} - {0, prompt}):
            yield less, output, *more
        for less in sorted({1, output // 2, output - 1} - {0, output}):
            yield prompt, less, *more
    elif name == "deny" and arguments[1] > 1:
        yield arguments[0], 1


PLAIN: dict[str, Any] = {
    "artificial_preemption": None,
    "delay_factor": 0.0,
    "max_preemptions_per_request": None,
    "num_lookahead_slots": 0,
    "priority": False,
    "enable_chunked_prefill": False,
    "watermark_blocks": 0,
    "num_cpu_blocks": 0,
    "vllm_v0": False,
}
"""The fields of a configuration that can be off."""


def simpler(start: Setup) -> Iterator[Setup]:
    """Starts with one feature off, or another mode."""
    for name, off in PLAIN.items():
        if getattr(start.config, name) != off and (name != "priority" or start.order is None):
            with suppress(ConfigError):
                yield attrs.evolve(start, config=attrs.evolve(start.config, **{name: off}))
    if start.order is not None:
        yield attrs.evolve(start, order=None)
        if start.order != "fcfs" and not start.config.priority:
            yield attrs.evolve(start, order="fcfs")
    if start.mode in ("any", "auto"):
        for mode in (None, "recompute", "swap"):
            yield attrs.evolve(start, mode=mode, costs=None)


def candidates(best: Failure) -> Iterator[tuple[Setup, Log]]:
    """Runs that are shorter or plainer than this one."""
    for log in shorter(best.log):
        yield best.start, log
    for start in simpler(best.start):
        yield start, best.log
    for log in smaller(best.log):
        yield best.start, log


def shrink(failure: Failure, seconds: float) -> Failure:
    """The shortest run found in this time that fails in the same check."""
    spec = failure.check.removeprefix("Fault in ") in SPEC
    best = shrunk(failure, time.monotonic() + seconds, spec)
    return fails(best.start, best.log) or failure


def shrunk(best: Failure, until: float, spec: bool) -> Failure:
    """The same by this time; the specification is evaluated only if it is what fails."""
    again = True
    while again:
        again = False
        for start, log in candidates(best):
            if time.monotonic() > until:
                return best
            found = fails(start, log, spec)
            if found is not None and found.check == best.check:
                best, again = found, True
                break
    return best
