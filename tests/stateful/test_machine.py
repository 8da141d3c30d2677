"""The machine of `kvproof.fuzz`: random operations on the whole system find no fault. HYPOTHESIS_PROFILE=deep looks longer."""

import os
from collections import Counter

from hypothesis import settings

from kvproof.fuzz.happened import EVENTS
from kvproof.fuzz.loop import a_round, play
from kvproof.fuzz.machine import RULES, Machine
from kvproof.fuzz.profiles import ROUNDS, register
from kvproof.fuzz.report import script
from kvproof.fuzz.scenes import all_scenes

register()
OFTEN = (
    *("prefills", "pieces", "decodes", "mixed steps", "swapped in", "copies", "preempted by recompute", "preempted by swap"),
    *("lookahead slots", "forks", "dropped sequences", "accepted > 1", "denied", "restored"),
    *("ended: aborted", "ended: length_capped", "ended: stopped", "ended: ignored"),
)


def test_scenes_and_the_machine_find_no_fault_and_everything_happens():
    Machine.fired, Machine.events, Machine.failure = Counter(), {}, None
    assert [failure for start, log in all_scenes() if (failure := play(start, log))] == []
    profile = os.environ.get("HYPOTHESIS_PROFILE", "ci")
    for seed in range(ROUNDS[profile]):
        failure = a_round(seed, settings.get_profile(profile))
        assert failure is None, script(failure)
    assert [name for name in RULES if not Machine.fired[name]] == []
    events = sum(Machine.events.values(), Counter())
    assert [name for name in EVENTS if not events[name]] == []
