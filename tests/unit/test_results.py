"""Results sequence by sequence."""

import pytest

from kvproof import Config, Rejected, Scheduler, Status
from kvproof.results import Result, take_back

CONFIG = Config(num_gpu_blocks=20, num_cpu_blocks=0, block_size=4, max_num_seqs=4, num_lookahead_slots=3)


def started(n: int = 1) -> tuple[Scheduler, int]:
    s = Scheduler(CONFIG, check=True)
    g = s.add_request(5, 20, n)
    s.schedule()
    return s, g


def test_a_sequence_forks_with_its_first_token():
    s, g = started(3)
    taken = take_back(s, [Result(g, forks=2)])
    assert taken.outcomes == [] and taken.children == {(g, 0): (1, 2)}
    assert s.state.members[g] == ((0, 1, 2), 3, ((0, 0), (2, 5), (1, 5)))


def test_children_for_which_there_is_no_seat_are_not_born():
    s, g = started()
    assert take_back(s, [Result(g, forks=9, same_token=True)]).children == {(g, 0): (1, 2, 3)}
    assert s.state.members[g][2] == ((0, 0), (3, 6), (2, 6), (1, 6))


def test_siblings_advance_by_what_the_least_of_them_got():
    s, g = started()
    take_back(s, [Result(g)])
    s.schedule()
    take_back(s, [Result(g, tokens=3)])
    assert s.state.clock - s.state.born[g] == 9
    s.schedule()
    with pytest.raises(Rejected, match="tokens must be an integer >= 1"):
        take_back(s, [Result(g, tokens=0)])
    take_back(s, [])
    assert s.state.clock - s.state.born[g] == 9


def test_why_a_sequence_has_ended():
    s, g = started(2)
    take_back(s, [Result(g, forks=1)])
    s.schedule()
    assert take_back(s, [Result(g, 0, ended="stop token"), Result(g, 1)]).outcomes == []
    assert s.state.members[g][0] == (1,)
    s.schedule()
    (end,) = take_back(s, [Result(g, 1, ended="stop string", forks=1)]).outcomes
    assert (end.status, end.reason, end.outputs) == (Status.FINISHED_STOPPED, "stop string", (2, 3))
    s.add_request(3, 2)
    s.schedule()
    s.commit(None, [(1, 0)])
    assert s._why == {}


def test_a_rejected_commit_leaves_no_reason_behind():
    s, g = started()
    with pytest.raises(Rejected, match="no request has the id 99"):
        take_back(s, [Result(g, ended="stop token"), Result(99)])
    s.finish(g)
    assert [end.reason for end in s.commit()] == [None]


@pytest.mark.parametrize(
    "results",
    [
        [3],
        [Result(True)],
        [Result(0, sequence=9, forks=1)],
        [Result(0, sequence=-1)],
        [Result(0, forks="2")],
        [Result(0, forks=-1)],
        [Result(0, tokens=1.0)],
        [Result(0), Result(0, forks=1)],
    ],
    ids=str,
)
def test_wrong_results_are_refused_before_the_commit(results):
    s, _ = started(3)
    before = s.state
    with pytest.raises(Rejected):
        take_back(s, results)
    assert s.state is before
