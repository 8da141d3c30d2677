"""What an engine tells: tokens of lookahead, ends, results and times count, or are refused before anything changes."""

import copy
import pickle

import pytest
from pools import config, finish, step

from kvproof import ConfigError, Rejected, Scheduler
from kvproof.core.config import ArtificialPreemption
from kvproof.policies.costs import Costs
from kvproof.spec.check import commit_violations
from kvproof.store.policies import AlwaysSwap


def test_what_lookahead_gave_counts_only_for_who_decoded_and_has_a_result():
    s = Scheduler(config(8, 0, num_lookahead_slots=4))
    a, b = s.add_request(3, 20), s.add_request(3, 20)
    step(s)
    s.schedule()
    s.commit([(a,)], (), [(a, 3), (b, 3)])
    assert [s.state.clock - s.state.born[g] for g in (a, b)] == [7, 4]
    s.schedule()
    s.commit(None, (), [(a, 9)])  # one token, and as many as there are lookahead slots
    assert s.state.clock - s.state.born[a] == 12


def test_the_specification_counts_what_lookahead_gave():
    s = Scheduler(config(8, 0, num_lookahead_slots=4))
    g = s.add_request(3, 20)
    step(s)
    s.schedule()
    before = s.state
    s.commit(None, (), [(g, 3)])
    assert commit_violations(before, s.state, None, [(g, 3)]) == []
    counted, kept = "recompute_keeps_output: results are counted once", "table_length: a lost result costs no slot"
    for told, got, broken in (((g, 2), None, [counted]), ((g, 4), None, [counted]), ((g, 3), (), [counted, kept])):
        assert commit_violations(before, s.state, got, [told]) == broken


def test_without_lookahead_slots_nobody_gets_more_than_a_token():
    s = Scheduler(config(8, 0))
    g = s.add_request(3, 20)
    step(s)
    s.schedule()
    s.commit(None, (), [(g, 3)])
    assert s.state.clock - s.state.born[g] == 5


@pytest.mark.parametrize("tokens", [1.5, 0, -1, True, "2", None])
def test_accepted_tokens_are_a_whole_number(tokens):
    s = Scheduler(config(8, 0, num_lookahead_slots=4))
    g = s.add_request(3, 20)
    s.schedule()
    before = s.state
    with pytest.raises(Rejected, match="accepted tokens must be an integer >= 1"):
        s.commit(None, (), [(g, tokens)])
    assert s.state is before


@pytest.mark.parametrize("accepted", [[(0, 2), (0, 3)], [0], [(0,)], [(0, 2, 3)], 5, [("0", 2)], [([], 2)], [(0.0, 2)]])
def test_what_lookahead_gave_is_said_once_of_a_request(accepted):
    s = Scheduler(config(8, 0, num_lookahead_slots=4))
    s.add_request(3, 20)
    s.schedule()
    before = s.state
    with pytest.raises(Rejected, match="accepted"):
        s.commit(None, (), accepted)
    assert s.state is before


@pytest.mark.parametrize("ended", [[0], [(0,)], [(0, "0")], [(0.0, 0)], [(True, 0)], [(None, 0)], 5])
def test_ended_sequences_are_tuples(ended):
    s = Scheduler(config(8, 0))
    s.add_request(3, 20)
    s.schedule()
    before = s.state
    with pytest.raises(Rejected, match="ended must be tuples"):
        s.commit(None, ended)
    assert s.state is before


@pytest.mark.parametrize("now", ["1", None, True, float("nan"), float("inf"), 1e300, -(10**20)])
def test_times_are_numbers(now):
    s = Scheduler(config(8, 0, delay_factor=1.0))
    s.add_request(3, 20, now=1)
    before = s.state
    with pytest.raises(Rejected, match="now must be a number from"):
        s.schedule(now)
    with pytest.raises(Rejected, match="now must be a number from"):
        s.add_request(3, 20, now=now)
    assert s.state is before
    assert s.schedule(2).prefills


def test_results_are_tuples_that_begin_with_an_id():
    s = Scheduler(config(8, 0))
    s.add_request(3, 20)
    s.schedule()
    for results in ([0], 5, [()], "ab", [(None,)], [([],)], [(1.5,)], [(0,), ("0",)], [(0,), (0.5,)]):
        with pytest.raises(Rejected, match="results must be tuples that begin with the id of a request"):
            s.commit(results)
    assert s.state.issued


@pytest.mark.parametrize("g", [True, 1.0, "1", None, [], 1 + 0j])
def test_ids_are_integers_and_nothing_that_equals_one(g):
    s = Scheduler(config(8, 8))
    for _ in range(3):
        s.add_request(3, 20)
    step(s)
    before = s.state
    calls = (s.abort, s.fork, s.preempt, s.deny_append, s.finish, s.preemptions)
    for call in (*calls, lambda q: s.fork(1, q), lambda q: s.finish(1, q)):
        with pytest.raises(Rejected, match="an id or a sequence must be an integer"):
            call(g)
    assert s.state is before and not s._forced


@pytest.mark.parametrize("why", [(3,), ("a", "b"), (None,)])
def test_why_a_sequence_has_ended_is_one_text(why):
    s = Scheduler(config(8, 8))
    s.add_request(3, 20)
    s.schedule()
    with pytest.raises(Rejected, match="ended must be tuples"):
        s.commit(None, [(0, 0, *why)])
    assert s.state.issued


def test_a_call_in_the_wrong_moment_says_which():
    s = Scheduler(config(8, 8))
    s.add_request(3, 20)
    with pytest.raises(Rejected, match="the request is not running"):
        s.preempt(0)
    s.schedule()
    with pytest.raises(Rejected, match="a step is in flight"):
        s.preempt(0)


@pytest.mark.parametrize(
    ("arguments", "more", "message"),
    [
        ((None,), {}, "config: must be a Config"),
        ((config(8, 8),), {"policy": object()}, "policy: must have a method swaps"),
        ((config(8, 8),), {"policy": "x"}, "policy: no policy is called 'x', known are fcfs, priority, srpt, mlfq, fair"),
        ((config(8, 8),), {"costs": Costs()}, 'costs: are for preemption_mode "auto" only'),
        ((config(8, 8), "auto"), {"costs": 3}, "costs: must be Costs or Calibrated, got 3"),
        ((config(8, 8, vllm_v0=True), "auto"), {}, 'preemption_mode: "auto" needs the profile kvproof'),
        ((config(8, 8, vllm_v0=True),), {"policy": "srpt"}, 'policy: "srpt" needs the profile kvproof'),
        ((config(8, 8), "swap"), {"policy": AlwaysSwap}, "preemption_mode: must be None beside a policy"),
    ],
)
def test_what_a_scheduler_is_made_of(arguments, more, message):
    with pytest.raises(ConfigError, match=message):
        Scheduler(*arguments, **more)


def test_only_moments_are_gone_back_to():
    s = Scheduler(config(8, 8))
    for moment in (None, 5, {}, s):
        with pytest.raises(Rejected, match="moment must be a Snapshot or a State"):
            s.restore(moment)


def test_pickling_is_refused_and_copying_is_not():
    s = Scheduler(config(8, 8))
    s.add_request(3, 20)
    step(s)
    for thing in (s, s.state, s.snapshot()):
        with pytest.raises(TypeError, match=r"kvproof\.serial writes"):
            pickle.dumps(thing)
    for same in (copy.copy(s), copy.deepcopy(s)):
        assert same.state is s.state
        step(same)
        assert same.state.epoch == s.state.epoch + 1
    assert copy.copy(s.state) is copy.deepcopy(s.state) is s.state


def test_a_variable_switches_artificial_preemption_on(monkeypatch):
    monkeypatch.setenv("KVPROOF_TEST_ENABLE_ARTIFICIAL_PREEMPT", "1")
    s = Scheduler(config(40, 40))
    assert s.config.artificial_preemption == ArtificialPreemption(seed=0, probability=0.5, max_count=500)
    for _ in range(4):
        s.add_request(3, 20)
    outcomes = finish(s)
    assert sum(o.recomputed + o.swapped for o in outcomes.values()) > 3
    own = config(8, 8, artificial_preemption=ArtificialPreemption(seed=7))
    assert Scheduler(own).config is own
    monkeypatch.setenv("KVPROOF_TEST_ENABLE_ARTIFICIAL_PREEMPT", "0")
    assert Scheduler(config(8, 8)).config.artificial_preemption is None


STRANGERS = [
    {"ended": [(1, 0)]},
    {"accepted": [(1, 2)]},
    {"results": [(1,)]},
    {"ended": [(0, 0), (10**6, 0)]},
    {"ended": [(-1, 0)]},
]


@pytest.mark.parametrize("said", STRANGERS)
def test_nothing_is_said_of_a_request_that_never_came(said):
    s = Scheduler(config(8, 0, num_lookahead_slots=4))
    s.add_request(3, 20)
    s.schedule()
    before = s.state
    with pytest.raises(Rejected, match=r"no request has the id (1|-1)"):
        s.commit(**said)
    assert s.state is before


def test_what_is_said_of_a_request_that_has_ended_is_dropped():
    s = Scheduler(config(8, 0, num_lookahead_slots=4))
    a, b = s.add_request(3, 20), s.add_request(3, 20)
    s.schedule()
    s.abort(a)
    s.commit([(a,), (b,)], [(a, 0)], [(a, 3)])
    assert s.state.running[1] == (b,)


@pytest.mark.parametrize("sequence", [1, 7, -1])
def test_a_sequence_that_never_lived_does_not_end(sequence):
    s = Scheduler(config(8, 0))
    g = s.add_request(3, 20)
    s.schedule()
    before = s.state
    with pytest.raises(Rejected, match=f"request {g} has no sequence {sequence}"):
        s.commit(None, [(g, sequence, "eos")])
    assert s.state is before


def test_a_reason_is_of_a_request_that_the_engine_has_stopped():
    s = Scheduler(config(8, 0))
    g = s.add_request(3, 2, n=2)
    s.schedule()
    s.commit()
    s.fork(g)
    s.schedule()
    (end,) = s.commit(None, [(g, 0, "stop token")])  # the other one reaches its limit in this step
    assert end.status.name == "FINISHED_LENGTH_CAPPED" and end.reason is None


@pytest.mark.parametrize("state", [None, 5, Scheduler(config(9, 0)).state])
def test_a_state_that_is_none_is_refused_and_nothing_is_lost(state):
    s = Scheduler(config(8, 0))
    s.add_request(3, 20)
    good, s.state = s.state, state
    for call in (s.schedule, lambda: s.add_request(1, 1), lambda: s.abort(0)):
        with pytest.raises(Rejected, match="state: must be a State of the same configuration"):
            call()
    s.state = good
    assert s.schedule().prefills == ((0, 0, 3),)


def test_tokens_that_lookahead_gave_are_counted():
    s = Scheduler(config(8, 0, num_lookahead_slots=4))
    g = s.add_request(5, 20)
    for accepted in ((), [(g, 3)]):
        s.schedule()
        s.commit(None, (), accepted)
    m = s.metrics()
    assert (m.decode_tokens, m.accepted_tokens, m.generation_tokens) == (1, 2, 4)
