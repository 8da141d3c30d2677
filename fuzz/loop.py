"""The machine in rounds until the time is over or a fault is found. Equal seeds give equal rounds."""

import time
from collections import Counter
from collections.abc import Callable

import attrs
from hypothesis import seed as seeded
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from kvproof.fuzz.machine import RULES, Machine
from kvproof.fuzz.profiles import ROUND
from kvproof.fuzz.shrink import Failure, shrink

SHRINK_SECONDS = 30.0


@attrs.frozen
class Report:
    """How often each rule fired, what happened to the scheduler, and the shrunk failure if there is one."""

    rounds: int
    seconds: float
    fired: Counter[str]
    events: Counter[str]
    failure: Failure | None

    @property
    def silent(self) -> list[str]:
        """Rules that never fired."""
        return [name for name in RULES if not self.fired[name]]


def fuzz(
    seconds: float,
    seed: int,
    progress: Callable[[str], None] = lambda line: None,
    one_round: settings = ROUND,
    shrinking: float = SHRINK_SECONDS,
) -> Report:
    """Rounds with the seeds seed, seed + 1, ... until the time is over; it may overrun by one round and the shrinking."""
    begin, rounds = time.monotonic(), 0
    Machine.fired, Machine.events, Machine.failure = Counter(), Counter(), None
    failure: Failure | None = None
    while failure is None and (rounds == 0 or time.monotonic() - begin < seconds):
        try:
            run_state_machine_as_test(seeded(seed + rounds)(Machine), settings=one_round)
        except Exception:
            if Machine.failure is None:
                raise
            failure = Machine.failure
        rounds += 1
        progress(f"{time.monotonic() - begin:.0f} s, {rounds} rounds, {sum(Machine.fired.values())} operations")
    if failure is not None:
        progress(f"found after {rounds} rounds: {failure.error}; shrinking {len(failure.log)} operations")
        failure = shrink(failure, shrinking)
    return Report(rounds, time.monotonic() - begin, Machine.fired, Machine.events, failure)
