"""What an order must have and keep to, where it is found, and that its notes go back with everything else."""

import copy
from importlib import metadata
from random import Random
from types import SimpleNamespace

import pytest
from pools import config

from kvproof import ConfigError, PolicyError, Rejected, Scheduler, Status
from kvproof.contract import merge
from kvproof.fuzz.oracle import contents
from kvproof.order import BUILT_IN, GROUP
from kvproof.policies.fair import Fair
from kvproof.policies.ranking import Fcfs, Mlfq, Srpt


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


# --- random work under every order ----------------------------------------------------------------------------------------

MODES = (None, "recompute", "swap", "auto")


def tight(seed: int, name: str, check: bool) -> Scheduler:
    """A scheduler of few blocks and an order whose thresholds are met early."""
    r = Random(seed)
    orders = {
        "srpt": Srpt(granularity=r.choice((1, 4)), late=r.choice((0.3, 0.8, 2)), patience=4),
        "mlfq": Mlfq(quantum=r.choice((1, 2)), levels=3, promote_after=r.choice((3, 9)), prompt_tokens_each=4, patience=4),
        "fair": Fair(weights={"a": 2}, quantum=2, window=r.choice((1, 3)), patience=2),
    }
    sizes = config(
        *(r.randrange(3, 6), r.choice((0, 4, 8))),
        block_size=2,
        max_num_seqs=r.randrange(2, 5),
        max_num_batched_tokens=r.choice((6, 8, 30)),
        max_model_len=14,
        enable_chunked_prefill=r.random() < 0.3,
        num_lookahead_slots=r.choice((0, 0, 1)),
    )
    return Scheduler(sizes, MODES[seed % 4], orders.get(name, name), check=check)


def work(s: Scheduler, r: Random, requests: int, passes: int = 10**9) -> list:
    """Arrivals, forks, aborts and steps until all have ended, or for so many passes. What it answered."""
    answers: list = []
    while (requests or s.unfinished) and passes:
        if requests and r.random() < 0.5:
            hints = {"tenant": r.choice("abc"), "expected_tokens": r.choice((None, 2, 5))}
            answers.append(
                s.add_request(r.randrange(1, 7), r.randrange(2, 7), r.choice((1, 1, 2)), priority=r.randrange(3), **hints)
            )
            requests -= 1
        if r.random() < 0.05 and s.state.waiting[1]:
            s.abort(r.choice(s.state.waiting[1]))
        if r.random() < 0.1 and s.state.running[1]:
            try:
                s.fork(s.state.running[1][0])
            except Rejected:
                answers.append("no fork")
        answers.append((s.schedule(), tuple(s.commit())))
        passes -= 1
        assert len(answers) < 2000, "it does not come to an end"
    return answers


@pytest.mark.parametrize("name", BUILT_IN)
def test_all_work_is_done_and_every_state_is_right(name):
    """200 workloads: every request ends, no block is lost, no clause of the specification fails, no order breaks its word."""
    preempted = 0
    for seed in range(200):
        s = tight(seed, name, check=True)
        answers = work(s, Random(seed), 3)
        preempted += sum(len(plan.preempted) for plan, _ in (a for a in answers if type(a) is tuple))
        assert (s.state.gpu_free, s.state.cpu_free) == (s.config.num_gpu_blocks, s.config.num_cpu_blocks)
    assert preempted > 60


@pytest.mark.parametrize("name", BUILT_IN)
def test_after_a_restore_an_order_decides_as_it_did(name):
    """In the middle of the work, more than once; a copy and another scheduler do the same."""
    for seed in range(12):
        s = tight(seed, name, check=False)
        work(s, Random(seed), 8, passes=9)
        moment, notes = s.snapshot(), dict(s._notes.items())
        other, twin = tight(seed, name, check=False), copy.deepcopy(s)
        other.restore(moment)
        first = work(s, Random(7), 5)
        assert len(first) > 5
        s.restore(moment)
        assert dict(s._notes.items()) == notes
        for again in (s, other, twin):
            assert work(again, Random(7), 5) == first


def test_a_snapshot_copies_no_notes():
    s = tight(1, "mlfq", check=False)
    work(s, Random(1), 8, passes=9)
    data = s._notes._data
    moment = s.snapshot()
    assert s._notes._data is data and moment.small["_memory"] is s._memory
    s.restore(moment)
    assert s._notes._data is data


def test_a_bare_state_is_ranked_anew():
    s = Scheduler(config(40, 0, max_num_seqs=1), policy=Srpt(granularity=1))
    for tokens in (9, 6, 3):
        s.add_request(3, tokens)
    state = s.state
    s.schedule()
    s.restore(state)
    assert [g for g, _, _ in s.schedule().prefills] == [2]
    fresh = Scheduler(config(40, 0, max_num_seqs=1, priority=True))
    for tokens in (9, 6, 3):
        fresh.add_request(3, tokens)
    fresh.schedule()
    s = Scheduler(fresh.config, policy=Srpt(granularity=1))
    s.restore(fresh.state)
    for _ in range(2):  # the first step decodes
        s.commit()
        s.schedule()
    assert s.state.running[1] == (2,) and s.state.waiting[1] == (1, 0) and s.check() == []


def test_another_order_knows_what_the_first_was_told():
    s = Scheduler(config(40, 0, max_num_seqs=1), policy="fcfs")
    for expected in (9, 6, 3):
        s.add_request(3, 20, expected_tokens=expected)
    s.change_order(Srpt(granularity=1))
    assert s.config.priority and [g for g, _, _ in s.schedule().prefills] == [2] and s.check() == []
    with pytest.raises(ConfigError, match="policy: no policy is called 'x'"):
        s.change_order("x")


def test_nothing_is_kept_of_those_who_have_gone():
    for name in BUILT_IN:
        s = tight(3, name, check=False)
        work(s, Random(3), 6)
        for _ in range(12):
            s.schedule()
            s.commit()
        left = [key for key, _ in s._notes.items() if type(key) is tuple and type(key[1]) is int]
        assert left == [], name
