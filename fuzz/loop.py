"""Scenes, then the machine in rounds until the time is over or a fault is found. Equal seeds give equal rounds."""

import time
from collections import Counter
from collections.abc import Callable

import attrs
from hypothesis import seed as seeded
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from kvproof.fuzz.happened import ANYWHERE, EVENTS
from kvproof.fuzz.machine import RULES, Machine
from kvproof.fuzz.profiles import ROUND
from kvproof.fuzz.scenes import Log, all_scenes
from kvproof.fuzz.setup import Setup
from kvproof.fuzz.shrink import Failure, describe, shrink
from kvproof.fuzz.world import World, rerun

SHRINK_SECONDS = 30.0


@attrs.frozen
class Report:
    """How often each rule fired and each event happened, and the shrunk failure if there is one."""

    rounds: int
    seconds: float
    fired: Counter[str]
    by: dict[str, Counter[str]]
    """Profile and mode -> event -> how often."""
    failure: Failure | None

    @property
    def events(self) -> Counter[str]:
        """Event -> how often, in all profiles and modes."""
        return sum(self.by.values(), Counter())

    @property
    def silent(self) -> list[str]:
        """Rules that never fired, and events that never happened in a profile where they must."""
        rules = [name for name in RULES if not self.fired[name]]
        seen = {(column.split()[0], event) for column, events in self.by.items() for event in +events}
        events = [f"{profile}: {name}" for name, where in EVENTS.items() for profile in where if (profile, name) not in seen]
        anywhere = {event for _, event in seen}
        return rules + events + [name for name in ANYWHERE if name not in anywhere]


def play(start: Setup, log: Log) -> Failure | None:
    """A run of these operations, and its end."""
    world = World(start)
    Machine.fired["scene"] += 1
    try:
        rerun(world, (*log, ("drain", ())))
    except Exception as error:
        return Failure(start, tuple(world.log), describe(error))
    finally:
        Machine.events.setdefault(start.column, Counter()).update(world.events)
    return None


def a_round(seed: int, one_round: settings) -> Failure | None:
    """What Hypothesis does with this seed."""
    machine = seeded(seed)(lambda: Machine())  # the seed stays on what gets it
    try:
        run_state_machine_as_test(machine, settings=one_round)  # type: ignore[arg-type]
    except Exception:
        if Machine.failure is None:
            raise
    return Machine.failure


def fuzz(
    seconds: float,
    seed: int,
    progress: Callable[[str], None] = lambda line: None,
    one_round: settings = ROUND,
    shrinking: float = SHRINK_SECONDS,
) -> Report:
    """Every scene, then rounds with the seeds seed, seed + 1, ... until the time is over.

    It may overrun by one round and the shrinking.
    """
    begin, rounds = time.monotonic(), 0
    Machine.fired, Machine.events, Machine.failure = Counter(), {}, None
    failure = next(filter(None, (play(start, log) for start, log in all_scenes())), None)
    while failure is None and (rounds == 0 or time.monotonic() - begin < seconds):
        failure = a_round(seed + rounds, one_round)
        rounds += 1
        progress(
            f"{time.monotonic() - begin:.0f} s, {rounds} round{'s' * (rounds != 1)}, {sum(Machine.fired.values())} operations"
        )
    if failure is not None:
        progress(f"found after {rounds} rounds: {failure.error}; shrinking {len(failure.log)} operations")
        failure = shrink(failure, shrinking)
    return Report(rounds, time.monotonic() - begin, Machine.fired, Machine.events, failure)
