"""Random work under every order: all of it is done, every state is right, and an order's notes go back with everything else."""

import copy
from random import Random

import pytest
from pools import config

from kvproof import ConfigError, Rejected, Scheduler
from kvproof.order import BUILT_IN
from kvproof.policies.fair import Fair
from kvproof.policies.ranking import Mlfq, Srpt

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
