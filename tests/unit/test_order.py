"""What an order must have and keep to, what becomes of one that does not, and where orders are found."""

from importlib import metadata
from random import Random
from types import SimpleNamespace

import pytest
from pools import config

from kvproof import ConfigError, PolicyError, Rejected, Scheduler, Status
from kvproof.contract import merge
from kvproof.fuzz.oracle import contents
from kvproof.order import GROUP
from kvproof.policies.ranking import Fcfs, Srpt


class Ours:
    """An order to begin with: as Fcfs."""

    name, displaces, patience, overtakes = "ours", False, 5, None

    def arrive(self, desk, request):
        return 0

    def rank(self, desk):
        return ()


# --- the contract -------------------------------------------------------------------------------------------------------


class Quarrel(Ours):
    """Who waits always ranks before who runs, and displaces it."""

    name, displaces = "quarrel", True

    def rank(self, desk):
        return [(g, 0 if desk.waits(g) else 1) for g in (0, 1) if desk.waits(g) or desk.runs(g)]


def quarrel(order=None) -> Scheduler:
    """Two prompts that take several passes each, in a pool for one of them. (Unless a step may decode too nobody is displaced in
    its prefill.)"""
    sizes = config(6, 0, max_num_seqs=4, max_num_batched_tokens=4, enable_chunked_prefill=True)
    s = Scheduler(sizes, policy=order or Quarrel(), check=True)
    for _ in range(2):
        s.add_request(18, 6)
    return s


def test_two_that_displace_each_other_for_ever_are_told_of():
    s = quarrel()
    with pytest.raises(PolicyError) as caught:
        for _ in range(40):
            s.schedule()
            s.commit()
    error = caught.value
    assert (error.policy, error.found, error.allowed) == ("quarrel", 6, 5) and error.request in (0, 1)
    assert str(error).startswith(
        'policy "quarrel": nobody got a new token or ended in 6 passes that preempted, its patience is 5'
    )
    assert str(error).endswith(f"the last of them preempted request {error.request}") and "\n" not in str(error)
    was, state = contents(s.state), s.state
    with pytest.raises(PolicyError):
        s.schedule()
    assert contents(s.state) == was and s.state is state and s.check() == []
    s.change_order("fcfs")
    ended = []
    while s.unfinished:
        s.schedule()
        ended += [o.group for o in s.commit()]
    assert sorted(ended) == [0, 1] and s.state.gpu_free == 6


def test_patience_begins_anew_with_an_arrival_and_a_token():
    s = quarrel()
    for _ in range(5):
        for _ in range(4):
            s.schedule()
            s.commit()
        s.abort(s.add_request(1, 1))
    with pytest.raises(PolicyError):
        for _ in range(9):
            s.schedule()
            s.commit()


class Sulk(Quarrel):
    """They quarrel, and then let each other be for a while."""

    def rank(self, desk):
        return super().rank(desk) if desk.now % 12 < 4 else ()


def test_who_gets_on_now_and_then_keeps_its_word():
    s = quarrel(Sulk())
    in_vain = 0
    while s.unfinished:
        plan = s.schedule()
        in_vain += bool(plan.preempted) and not plan.decodes
        s.commit()
    assert in_vain > Sulk.patience


def test_a_request_has_one_alarm():
    rung = []

    class Alarms(Ours):
        def rank(self, desk):
            rung.append((desk.now, desk.woken))
            if desk.now == 1:
                desk.wake(1, 9)
                desk.wake(0, 2)
                desk.wake(0, 5)
                desk.wake(1, 3)
            return ()

    s = Scheduler(config(8, 8), policy=Alarms())
    for _ in range(2):
        s.add_request(3, 20)
    for _ in range(14):
        s.schedule()
        s.commit()
    assert [(now, who) for now, who in rung if who] == [(4, (1,)), (6, (0,))]


def test_an_order_does_not_answer_for_forced_preemptions():
    s = Scheduler(config(8, 0, max_num_batched_tokens=4, max_num_seqs=4), policy=Ours())
    g = s.add_request(20, 3)
    for _ in range(20):
        s.schedule()
        s.commit()
        s.preempt(g)
        assert s.schedule().preempted == ((g, "recompute"),)
        s.commit()


class Newest(Ours):
    """The last that came is the first."""

    name, overtakes = "newest", 3

    def arrive(self, desk, request):
        return -request.group


def test_who_starves_is_told_of():
    s = Scheduler(config(40, 0, max_num_seqs=1), policy=Newest(), check=True)
    s.add_request(3, 2)
    s.schedule()
    s.commit()
    with pytest.raises(PolicyError) as caught:
        for _ in range(40):
            s.add_request(3, 1)
            s.add_request(3, 1)
            s.schedule()
            s.commit()
    error = caught.value
    assert (error.policy, error.request, error.found, error.allowed) == ("newest", 1, 4, 3)
    assert str(error).startswith('policy "newest": request 1 waits, and later arrivals came in past it in 4 passes, the last of ')
    assert s.check() == []
    s.change_order(Fcfs())
    s.schedule()
    assert s.state.running[1] == (1,)


def test_passes_are_counted_for_one_wait():
    """Who has come in and waits again is passed anew."""

    class Turns(Ours):
        overtakes = 2

        def rank(self, desk):
            return [(0, 1 if desk.now % 3 else -1)] if desk.waits(0) else ()

    s = Scheduler(config(40, 0, max_num_seqs=1), policy=Turns())
    s.add_request(3, 40)
    for _ in range(30):
        s.add_request(3, 1)
        s.schedule()
        s.commit()
        if s.state.status[0] == Status.RUNNING:
            s.preempt(0)
    assert s.preemptions(0)[0] > 5


def test_heaps_are_sorted():
    r = Random(1)
    ids = [r.randrange(99) for _ in range(60)]
    heap = None
    for g in ids:
        heap = merge((1, g, None, None), heap)
    out = []
    while heap is not None:
        out.append(heap[1])
        heap = merge(heap[2], heap[3])
    assert out == sorted(ids)


# --- wrong answers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, r"rank must give pairs \(request, priority\), got None"),
        ([3], r"rank must give pairs \(request, priority\), got 3"),
        ([(0, 1, 2)], "rank must give pairs"),
        ([("0", 1)], "rank must give pairs"),
        ([(0, 1.5)], r"the priority of request 0 must be an integer from -1099511627776 to 1099511627776, got 1\.5"),
        ([(0, 2**41)], "the priority of request 0 must be an integer"),
    ],
)
def test_an_answer_that_is_none(answer, message):
    s = Scheduler(
        config(8, 8), policy=SimpleNamespace(**{**vars(Ours), "arrive": lambda desk, request: 0, "rank": lambda d: answer})
    )
    s.add_request(3, 4)
    state = s.state
    with pytest.raises(PolicyError, match=message):
        s.schedule()
    assert s.state is state and s.check() == []


def test_who_has_ended_or_never_was_is_passed_over():
    class Late(Ours):
        def rank(self, desk):
            return [(g, 7) for g in (-1, 0, 1, 99)]

    s = Scheduler(config(8, 8), policy=Late())
    s.add_request(3, 1)
    s.add_request(3, 5)
    s.abort(0)
    s.schedule()
    assert s.state.priority[1] == 7 and s.check() == []


class Fails(Ours):
    """Raises when told to, after it has changed ranks and noted something."""

    def __init__(self):
        self.fails = False

    def arrive(self, desk, request):
        desk.keep("count", desk.get("count", 0) + 1)
        if self.fails:
            raise KeyError("arrive")
        return 0

    def rank(self, desk):
        desk.keep("passes", desk.get("passes", 0) + 1)
        yield (1, -1)
        if self.fails:
            raise KeyError("rank")


def test_a_call_that_raises_has_changed_nothing():
    order = Fails()
    s = Scheduler(config(8, 8, max_num_seqs=1), policy=order)
    for _ in range(2):
        s.add_request(3, 5)
    s.schedule()
    s.commit()
    state, notes = s.state, dict(s._notes.items())
    order.fails = True
    for call in (s.schedule, lambda: s.add_request(3, 5)):
        with pytest.raises(KeyError):
            call()
        assert s.state is state and dict(s._notes.items()) == notes and s.check() == []
    order.fails = False
    s.abort(0)
    with pytest.raises(Rejected):
        s.abort(0)
    assert s._notes.get((0, "count")) == 2 and s._notes.get((0, "passes")) == 1
    s.schedule()
    assert s.state.running[1] == (1,) and s._notes.get((0, "passes")) == 2


def test_who_bounds_overtakes_ranks_alone():
    for name in ("fcfs", "mlfq"):
        s = Scheduler(config(8, 8), policy=name)
        with pytest.raises(Rejected, match=f'the order "{name}" bounds overtakes and must rank alone'):
            s.rerank(s.add_request(3, 4), 1)
    s = Scheduler(config(8, 8, max_num_seqs=1), policy="priority")
    for _ in range(2):
        s.add_request(3, 4)
    s.rerank(1, -1)
    assert s.schedule().running == (1,)


# --- where orders are found -----------------------------------------------------------------------------------------------


def installed(monkeypatch, **points):
    """Packages that offer these: a name -> what its entry point loads, or an exception that it raises."""

    def point(name, value):
        def load():
            if isinstance(value, Exception):
                raise value
            return value

        return SimpleNamespace(name=name, value=f"package:{name}", load=load)

    made = [point(name, value) for name, values in points.items() for value in (values if isinstance(values, list) else [values])]
    monkeypatch.setattr(metadata, "entry_points", lambda group: made if group == GROUP else [])


def test_an_installed_order_is_found_by_its_name(monkeypatch):
    installed(monkeypatch, ours=Ours, made=Newest())
    assert isinstance(Scheduler(config(8, 8), policy="ours").order, Ours)
    assert Scheduler(config(8, 8), "swap", "made").order.name == "newest"
    assert Scheduler(config(8, 8), policy="srpt").order == Srpt()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "lottery",
            "policy: no policy is called 'lottery', known are fcfs, priority, srpt, mlfq, fair, broken, double, half, no",
        ),
        ("broken", "policy: broken (package:broken) cannot be loaded: ImportError: no module named torch of course"),
        ("double", "policy: double is the name of several: package:double, package:double"),
        ("half", "policy: the order 'half' lacks rank, patience, overtakes"),
        ("nothing", "policy: must have a method swaps(group, sequences), or those of an order, arrive and rank, got 3"),
    ],
)
def test_an_order_that_is_not_to_be_had(monkeypatch, name, message):
    half = SimpleNamespace(name="half", displaces=True, arrive=lambda desk, request: 0)
    broken = ImportError("no module named torch\nof course")
    installed(monkeypatch, broken=broken, double=[Ours, Ours], half=half, nothing=3)
    with pytest.raises(ConfigError) as caught:
        Scheduler(config(8, 8), policy=name)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", 3, "policy: an order must have a name, a string, got 3"),
        ("displaces", 1, "policy: displaces of the order 'ours' must be True or False, got 1"),
        ("patience", 0, "policy: patience of the order 'ours' must be an integer >= 1, got 0"),
        ("overtakes", -1, "policy: overtakes of the order 'ours' must be None or an integer >= 0, got -1"),
    ],
)
def test_what_an_order_says_of_itself(field, value, message):
    order = type("Order", (Ours,), {field: value})()
    with pytest.raises(ConfigError) as caught:
        Scheduler(config(8, 8), policy=order)
    assert str(caught.value) == message


def test_an_order_may_choose_victims_too():
    class Both(Ours):
        def swaps(self, g, sequences):
            return True

        def victim(self, need):
            return -1

    s = Scheduler(config(8, 8), policy=Both())
    assert s.order is s.policy and s.config.choose_victims
    with pytest.raises(ConfigError, match="preemption_mode: must be None beside a policy"):
        Scheduler(config(8, 8), "swap", Both())


@pytest.mark.parametrize(
    ("field", "value"), [("tenant", 3), ("tenant", "x" * 300), ("expected_tokens", 0), ("expected_tokens", 2.0)]
)
def test_hints_that_are_none(field, value):
    for order in (None, "fair"):
        with pytest.raises(Rejected, match=f"{field} must be None or"):
            Scheduler(config(8, 8), policy=order).add_request(3, 4, **{field: value})
