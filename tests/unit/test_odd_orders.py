"""Orders and requests that nobody should write: what is said of them, and that nothing has changed."""

import copy
import sys
from pathlib import Path
from random import Random

import pytest
from pools import config

from kvproof import ConfigError, Scheduler
from kvproof.order import BUILT_IN, PolicyError
from kvproof.policies.calibrated import SHARE_MIN, Calibrated
from kvproof.policies.costs import Costs
from kvproof.policies.fair import Fair

EXAMPLES = str(Path(__file__).resolve().parents[2] / "examples")


class Plain:
    """An order that does nothing."""

    name, displaces, patience, overtakes = "plain", False, 5, None

    def arrive(self, desk, request):
        return 0

    def rank(self, desk):
        return ()


def order(**parts):
    """One with other parts."""
    return type("Odd", (Plain,), parts)()


def loaded(policy, mode=None) -> Scheduler:
    s = Scheduler(config(8, 4, block_size=2, max_num_seqs=2, max_model_len=16), mode, policy, check=True)
    for _ in range(3):
        s.add_request(3, 5)
    return s


@pytest.mark.parametrize("policy", [*BUILT_IN, Fair(prompt_weight=2**30), Fair(weights={"": 0.01})], ids=str)
@pytest.mark.parametrize("prompt", [10**20, 10**308, 10**400])
def test_a_prompt_beyond_all_measure_is_refused_and_the_others_go_on(policy, prompt):
    s = loaded(policy)
    big, last = s.add_request(prompt, 4), s.add_request(2, 2)
    ends = []
    while s.unfinished:
        s.schedule()
        ends += [(o.group, o.status.name) for o in s.commit()]
    assert dict(ends)[big] == "FINISHED_IGNORED" and dict(ends)[last] == "FINISHED_LENGTH_CAPPED" and len(ends) == 5


def test_an_order_that_never_stops_answering_is_stopped():
    def rank(self, desk):
        while True:
            yield 0, desk.now

    s = loaded(order(rank=rank))
    before = s.state
    with pytest.raises(PolicyError, match=r"rank gave more than 10.. pairs before one pass") as error:
        s.schedule()
    assert s.state is before and error.value.allowed > 1000
    s.change_order("fcfs")
    assert s.schedule().prefills


@pytest.mark.parametrize("passes", [1.5, float("nan"), "x", None])
def test_an_alarm_that_could_never_ring_is_refused(passes):
    s = loaded(order(rank=lambda self, desk: desk.wake(0, passes) or ()))
    before = s.state
    with pytest.raises(ValueError, match="wake: a request and passes must be integers"):
        s.schedule()
    assert s.state is before


def raising(self):
    raise ValueError("two\nlines")


@pytest.mark.parametrize("name", ["name", "displaces", "patience", "overtakes", "arrive", "swaps", "victim"])
def test_an_order_that_cannot_be_read_is_one_line(name):
    with pytest.raises(ConfigError, match="cannot be read: ValueError: two lines") as error:
        loaded(order(**{"swaps": lambda self, g, n: False, name: property(raising)}))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("policy", [Plain, Fair, type("Chooses", (Plain,), {"swaps": lambda self, g, n: True})])
def test_a_class_is_called(policy):
    s = loaded(policy)
    assert isinstance(s.order, policy)
    s.change_order(Plain)
    assert type(s.order) is Plain
    with pytest.raises(ConfigError, match=r"the order cannot be read: TypeError"):
        loaded(type("Wants", (Plain,), {"__init__": lambda self, x: None}))


@pytest.mark.parametrize("seed", range(5))
def test_a_copy_remembers_what_an_order_of_no_equals_has_noted(seed, monkeypatch):
    monkeypatch.setattr(sys, "path", [EXAMPLES, *sys.path])
    from urgency import Urgency

    r, s = Random(seed), Scheduler(config(8, 4, max_num_seqs=1), policy=Urgency(9))
    for _ in range(8):
        s.add_request(2, 3, priority=r.choice((1, 3, 9)))
    for _ in range(7):
        s.schedule()
        s.commit()
    twin = copy.deepcopy(s)
    assert twin.order is s.order
    while s.unfinished:
        assert (s.schedule(), s.commit()) == (twin.schedule(), twin.commit())


@pytest.mark.parametrize("weights", [{1: 2, "a": 1}, (("a",),), [("a", 1)], {"a": float("nan")}, {"a": 10**400}, 5])
def test_odd_weights_are_named(weights):
    with pytest.raises(ValueError, match="weights: must be numbers from"):
        Fair(weights=weights)


def test_costs_stay_numbers_whatever_is_observed():
    r, tiny = Random(0), 5e-324
    for _ in range(300):
        seconds = [r.choice((0, tiny, 1e-300, 1e-9, 1, 1e6)) for _ in range(6)]
        names = ("s_per_token", "s_per_pair", "recompute_overhead_s", "out_s_per_block", "in_s_per_block", "transfer_overhead_s")
        start = Calibrated.begin(Costs(**dict(zip(names, seconds, strict=True))), r.choice((1, SHARE_MIN)))
        s = Scheduler(config(8, 4), "auto", costs=start)
        for _ in range(r.randrange(1, 9)):
            s.observe_step(r.choice((1, 7, 2**40)), r.choice((1, 100, 2**40)), r.choice((tiny, 1e-9, 1, 1e6)))
            s.observe_transfer(r.choice((1, 3, 2**40)), r.choice((tiny, 1e-9, 1, 1e6)), r.choice(("in", "out")))
        assert s.costs is not None and s.costs.swap_s(3) >= 0
    with pytest.raises(ValueError, match="overhead_share"):
        Calibrated.begin(None, tiny)


def test_tenants_that_come_once_are_forgotten():
    """Thousands of names, one request each: what is kept of them does not grow."""
    s = Scheduler(config(16, 0, max_num_seqs=2), policy="fair")
    kept = []
    for k in range(300):
        s.add_request(3, 2, tenant=f"t{k}")
        for _ in range(3):
            s.schedule()
            s.commit()
        kept.append(len(s._notes))
    assert max(kept[150:]) <= max(kept[:20])
