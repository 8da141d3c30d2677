"""What the draft says of ranks and times is what the specification reads: the proofs leave it open."""

import pytest

from kvproof.core.config import Config
from kvproof.proofs import rare, walks
from kvproof.spec.displacing import in_policy_order
from kvproof.spec.view import View
from kvproof.store.draft import Draft
from kvproof.store.state import initial


def reached(config, recipe):
    state = initial(Config(**config))
    for action in recipe:
        state = walks.step(state, "recompute", action) or state
    return state


def line_of(state):
    return [*state.waiting[1], *state.swapped[1]]


RANKED = [some for some in rare.RARE if some[0].get("priority") and not some[0]["vllm_v0"] and line_of(reached(*some))]
"""Only kvproof asks, and only of those in line."""


def test_there_are_such_states():
    assert len(RANKED) >= 5


@pytest.mark.parametrize(("config", "recipe"), RANKED)
def test_sums_over_those_that_run(config, recipe):
    state = reached(config, recipe)
    d, e = Draft(state), View(state)
    line = line_of(state)
    assert [d.behind(g) for g in line] == [e.behind(g) for g in line]
    assert [d.tokens_before(g) for g in line] == [e.tokens_before(g) for g in line]
    assert any(e.behind(g) != (0, 0) for g in line)
    if state.waiting[1]:
        assert d.delayed() == e.delay == d.delayed()


def test_queues_of_v0_sorted_anew_are_in_policy_order():
    state = reached(
        rare.SHORT,
        [("add", 2, 9, 1, 1, 1), ("add", 2, 9, 1, 1, -1), *rare.PASS, ("add", 2, 9, 1, 1, 1), ("add", 2, 9, 1, 1, 0)],
    )
    assert not in_policy_order(View(state), "running")
    d = Draft(state)
    d.sort_running()
    d.sort_waiting()
    after = View(d.close())
    assert len(after.running.ids) == len(after.waiting.ids) == 2
    assert in_policy_order(after, "running") and in_policy_order(after, "waiting")
