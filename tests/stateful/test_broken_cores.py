"""Each broken core is caught by the machine within 20 seconds, and for the right reason."""

import time

import pytest
from broken_cores import BROKEN, switch_in

from kvproof.fuzz.loop import fuzz

SECONDS_MAX = 20
"""Of computing, whatever else the machine does."""


@pytest.mark.parametrize("broken", BROKEN, ids=lambda f: f.__name__)
def test_a_broken_core_is_caught(monkeypatch, broken):
    switch_in(monkeypatch, broken)
    begin = time.process_time()
    report = fuzz(60, 1, shrinking=0.0)
    assert report.failure is not None
    assert any(word in report.failure.error for word in BROKEN[broken][1]), report.failure.error
    assert time.process_time() - begin < SECONDS_MAX
