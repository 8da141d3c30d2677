"""The machine of `kvproof.fuzz`: random operations on the whole system find no fault. HYPOTHESIS_PROFILE=deep looks longer."""

import os
from collections import Counter

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from kvproof.fuzz.machine import RULES, Machine
from kvproof.fuzz.profiles import register

register()


def test_the_machine_finds_no_fault_and_every_rule_fires(capsys):
    Machine.fired, Machine.events, Machine.failure = Counter(), Counter(), None
    run_state_machine_as_test(Machine, settings=settings.get_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci")))
    assert [name for name in RULES if not Machine.fired[name]] == []
    for event in ("prefills", "pieces", "copy", "swap_out", "swap_in", "preempted by recompute", "preempted by swap"):
        assert Machine.events[event] > 0, f"{event} never happened"
    for end in ("aborted", "capacity", "ignored", "length_capped", "stopped"):
        assert Machine.events[f"finished_{end}"] > 0, f"nobody ended as {end}"
