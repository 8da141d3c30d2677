"""Going back and looking: snapshots, history, preemptions so far, and the specification evaluated while it runs."""

import copy

import attrs
import pytest
from calls import KINDS, answers, any_config, call, calls, everything, many, modes, pressed
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof import Config, ConfigError, InvariantViolation, Plan, Rejected, Scheduler, Snapshot
from kvproof.books import Ledger
from kvproof.fuzz.oracle import contents

CONFIG = Config(num_gpu_blocks=6, num_cpu_blocks=8, block_size=4, max_model_len=20)


def asked(s: Scheduler) -> tuple:
    """All that a scheduler can be asked but for its counters."""
    unfinished = [*s.state.waiting[1], *s.state.running[1], *s.state.swapped[1]]
    return contents(s.state), {g: s.preemptions(g) for g in unfinished}, s.history(9), s.unfinished


# --- snapshots --------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(any_config, modes, calls, calls, calls)
def test_after_a_restore_every_answer_is_that_of_then(config, mode, before, first, second):
    s = Scheduler(config, mode, keep_history=4)
    answers(s, before)
    moment, was = s.snapshot(), asked(s)
    one = answers(s, first)
    s.restore(moment)
    assert asked(s) == was
    two = answers(s, second)
    s.restore(moment)
    assert asked(s) == was and answers(s, first) == one
    s.restore(moment)
    assert answers(s, second) == two


@settings(deadline=None, max_examples=60)
@given(any_config, modes, st.integers(0, 2**32), st.integers(0, 120))
def test_a_tree_of_snapshots_stays_what_it_was(config, mode, seed, count):
    """Snapshots of any branch, restored in any order, some forgotten: each says what it said."""
    s = Scheduler(config, mode, keep_history=2)
    kept = [(s.snapshot(), asked(s))]
    for kind, a, b in many(seed, count, KINDS + 3):
        if kind < KINDS:
            call(s, kind, a, b)
        elif kind == KINDS:
            kept.append((s.snapshot(), asked(s)))
        elif kind == KINDS + 1:
            moment, was = kept[a % len(kept)]
            s.restore(moment)
            assert asked(s) == was
        elif len(kept) > 1:
            del kept[a % len(kept)]
    for moment, was in reversed(kept):
        s.restore(moment)
        assert asked(s) == was
        other = Scheduler(config, mode, keep_history=2)
        other.restore(moment)
        assert asked(other) == was


def test_counts_and_reasons_of_outcomes_go_back_too():
    s = pressed()
    s.add_request(15, 30)
    moment = s.snapshot()
    first = everything(s)
    outcomes = [o for answer in first if isinstance(answer, list) for o in answer]
    assert sum(o.swapped for o in outcomes) > 3 and any(o.reason == "reached max_model_len 20" for o in outcomes)
    s.restore(moment)
    assert everything(s) == first
    assert len(s._accounts) == 0


def test_pending_outcomes_come_back():
    s = pressed()
    victim = s.state.running[1][-1]
    s.abort(victim)
    moment = s.snapshot()
    s.schedule()
    assert [o.group for o in s.commit()] == [victim]
    s.restore(moment)
    s.schedule()
    assert [o.group for o in s.commit()] == [victim]


def test_a_snapshot_costs_the_same_whatever_it_holds():
    """It is made of what is there, and shares it; no call before the first change copies anything."""
    s = pressed()
    moment = s.snapshot()
    assert s.snapshot().accounts is moment.accounts and moment.state is s.state and moment.past is s._past
    data = s._accounts._data
    s.restore(moment)
    assert s._accounts._data is data  # nothing has happened since: nothing to copy
    everything(s)
    assert set(moment.accounts.undo) <= set(range(5)) and moment.accounts.undo
    s.restore(moment)
    assert s._accounts._data is None


def test_nothing_is_written_down_for_a_snapshot_that_is_gone():
    s = pressed()
    s.snapshot()
    point = s._accounts._last
    assert point is not None and point() is None
    everything(s)
    assert s._accounts._last is None


def test_the_ledger_keeps_points_of_many_moments():
    ledger = Ledger()
    points = []
    for g in range(6):
        ledger.preempted(g % 3, "swap" if g % 2 else "recompute")
        points.append((ledger.point(), dict(ledger._read())))
    ledger.dropped(1, 4, 9)
    assert ledger.of(1).dropped == ((4, 9),)
    ledger.close(1)
    assert len(ledger) == 2
    for point, was in points:
        assert point.read() == was
    ledger.go_to(points[2][0])
    assert [ledger.of(g)[:2] for g in range(3)] == [(1, 0), (0, 1), (1, 0)]
    assert points[5][0].read() == points[5][1]


def test_a_restore_is_rejected_within_a_call_and_of_another_configuration():
    class Meddler:
        def swaps(self, *asked):
            s.restore(moment)
            return True

    s = Scheduler(CONFIG, policy=Meddler())
    for _ in range(3):
        s.add_request(8, 9)
    moment = s.snapshot()
    with pytest.raises(Rejected, match="a call is in progress"):
        for _ in range(30):
            s.schedule()
            s.commit()
    before = s.state
    other = Scheduler(attrs.evolve(CONFIG, num_gpu_blocks=7)).snapshot()
    for wrong in (other, other.state):
        with pytest.raises(Rejected, match="another configuration"):
            s.restore(wrong)
    assert s.state is before


def test_a_bare_state_can_be_restored():
    s = pressed()
    g = next(g for g in s.state.running[1] + s.state.swapped[1] if s.preemptions(g) != (0, 0))
    t = Scheduler(CONFIG, "swap")
    t.abort(t.add_request(1, 1))
    t.restore(s.state)
    assert t.preemptions(g) == (0, 0) and t.history(1) == ()
    for one, other in zip(everything(s), everything(t), strict=True):
        assert one == other if isinstance(one, Plan) else [o.group for o in one] == [o.group for o in other]


def test_a_snapshot_is_immutable():
    moment = pressed().snapshot()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        moment.state = None
    assert copy.deepcopy(moment) is moment and isinstance(moment, Snapshot)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_has_books_of_its_own(copied):
    s = pressed(keep_history=3)
    other = copied(s)
    was, counted = asked(s), s.metrics()
    answer = everything(other)
    assert asked(s) == was and s.metrics() == counted
    assert everything(s) == answer and s.metrics() == other.metrics()


# --- history and preemptions ------------------------------------------------------------------------------------------


def test_history_has_the_last_passes_oldest_first():
    s = pressed(keep_history=3)
    made = []
    for _ in range(5):
        plan = s.schedule()
        made.append((s.state, plan))
        assert s.history(2) == tuple(made[-2:]) or len(made) < 2
        s.commit()
    assert s.history(3) == s.history(99) == tuple(made[-3:]) and s.history(0) == ()
    assert pressed().history(5) == ()
    assert [plan.epoch for _, plan in s.history(3)] == [state.epoch for state, _ in s.history(3)] == [12, 13, 14]


def test_history_goes_back_with_a_restore():
    s = pressed(keep_history=3)
    moment, was = s.snapshot(), s.history(3)
    everything(s)
    later, then = s.snapshot(), s.history(3)
    s.restore(moment)
    assert s.history(3) == was != then
    s.schedule()
    assert s.history(2)[0] == was[-1]
    s.restore(later)
    assert s.history(3) == then
    shorter = Scheduler(CONFIG, keep_history=1)
    shorter.restore(later)
    assert shorter.history(3) == then[-1:]


@pytest.mark.parametrize("k", [-1, 1.0, True, "2", None])
def test_a_count_that_is_none_is_refused(k):
    with pytest.raises(Rejected, match="k must be an integer >= 0"):
        pressed().history(k)
    with pytest.raises(ConfigError, match="keep_history: must be an integer from 0 to 1000000000, got"):
        Scheduler(CONFIG, keep_history=k)


def test_options_have_the_values_that_are_named():
    with pytest.raises(ConfigError, match="keep_history: must be an integer from 0 to 1000000000, got"):
        Scheduler(CONFIG, keep_history=2**70)
    with pytest.raises(ConfigError, match="check: must be True or False, got 'no'"):
        Scheduler(CONFIG, check="no")
    s = pressed()
    before = s.state
    with pytest.raises(Rejected, match="same_token must be True or False"):
        s.fork(0, 0, same_token="no")
    assert s.state is before


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preemptions_of_an_unfinished_request(mode):
    s = pressed(mode)
    expected = {g: [0, 0] for g in range(5)}
    t = pressed(mode, keep_history=100)
    for _, plan in t.history(100):
        for g, how in plan.preempted:
            expected[g][how == "swap"] += 1
    unfinished = [*s.state.waiting[1], *s.state.running[1], *s.state.swapped[1]]
    assert {g: s.preemptions(g) for g in unfinished} == {g: tuple(expected[g]) for g in unfinished}
    assert max(map(sum, expected.values())) >= 1
    for gone in (-1, 5, *(set(range(5)) - set(unfinished))):
        with pytest.raises(Rejected, match="ended or is unknown"):
            s.preemptions(gone)


# --- the specification ------------------------------------------------------------------------------------------------


def broken(s: Scheduler) -> None:
    """A block is lost."""
    s.state = attrs.evolve(s.state, gpu=s.state.gpu[1], gpu_free=s.state.gpu_free - 1)


@settings(deadline=None, max_examples=15)
@given(any_config, modes, calls)
def test_checking_finds_nothing_in_a_sound_scheduler(config, mode, some):
    checked, silent = Scheduler(config, mode, check=True), Scheduler(config, mode)
    assert answers(checked, some) == answers(silent, some) and silent.check() == []


def test_check_names_the_clauses_that_fail():
    s = pressed()
    while not s.state.gpu_free:
        s.schedule()
        s.commit()
    assert s.check() == []
    broken(s)
    assert s.check() and any(name.startswith("conservation: ") for name in s.check())
    s.schedule()  # nobody asked for a check


@pytest.mark.parametrize("name", ["add_request", "schedule", "commit", "abort", "fork"])
def test_with_check_a_broken_state_raises_and_is_kept(name):
    s = Scheduler(Config(num_gpu_blocks=20, num_cpu_blocks=0, block_size=4), check=True)
    g = s.add_request(4, 9)
    s.schedule()
    if name != "commit":
        s.commit()
    broken(s)
    arguments = {"add_request": (3, 3), "abort": (g,), "fork": (g,)}.get(name, ())
    before = s.state
    with pytest.raises(InvariantViolation, match=f"^after {name}, pass [12]: .*conservation: ") as found:
        getattr(s, name)(*arguments)
    assert s.state is found.value.state is not before
    assert found.value.call == name and list(found.value.clauses) == s.check()


def test_the_pass_that_broke_something_is_in_the_history():
    s = Scheduler(Config(num_gpu_blocks=20, num_cpu_blocks=0, block_size=4), check=True, keep_history=1)
    s.add_request(4, 9)
    broken(s)
    with pytest.raises(InvariantViolation):
        s.schedule()
    assert s.history(1)[0][0] is s.state and s.metrics().passes == 1
