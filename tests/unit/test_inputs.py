"""What an engine tells: tokens of lookahead, ends, results and times count, or are refused before anything changes."""

import pytest
from pools import config, step

from kvproof import Rejected, Scheduler
from kvproof.spec.check import commit_violations


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
    for told, got in (((g, 2), None), ((g, 4), None), ((g, 3), ())):
        assert commit_violations(before, s.state, got, [told]) == ["recompute_keeps_output: results are counted once"]


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


@pytest.mark.parametrize("ended", [[0], [(0,)], [(0, "0")], [(0.0, 0)], [(True, 0)], [(None, 0)], [(-1, 0)], 5])
def test_ended_sequences_are_tuples(ended):
    s = Scheduler(config(8, 0))
    s.add_request(3, 20)
    s.schedule()
    before = s.state
    with pytest.raises(Rejected, match="ended must be tuples"):
        s.commit(None, ended)
    assert s.state is before


@pytest.mark.parametrize("now", ["1", None, True, float("nan"), float("inf")])
def test_times_are_numbers(now):
    s = Scheduler(config(8, 0, delay_factor=1.0))
    s.add_request(3, 20, now=1)
    before = s.state
    with pytest.raises(Rejected, match="now must be a finite number"):
        s.schedule(now)
    with pytest.raises(Rejected, match="now must be a finite number"):
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
