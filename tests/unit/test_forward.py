"""Several passes at once are the same as one by one."""

from random import Random

import pytest
from pools import check_pools, config

from kvproof import Rejected, Scheduler
from kvproof.fuzz.oracle import contents


def some_config(r: Random):
    return config(
        r.choice((6, 12, 40)),
        r.choice((0, 8)),
        block_size=r.choice((1, 2, 4)),
        max_num_seqs=r.choice((2, 6)),
        max_num_batched_tokens=r.choice((6, 64)),
        enable_chunked_prefill=r.random() < 0.3,
        priority=r.random() < 0.3,
    )


def singly(s: Scheduler, passes: int) -> None:
    for _ in range(passes):
        assert not s.schedule().preempted
        assert s.commit() == []


def compared(seed: int) -> int:
    """Two schedulers take the same calls, one of them several passes at once; whatever it makes the other makes one by one.

    Returns how many it made.
    """
    r = Random(seed)
    several, single = (Scheduler(c, "swap", check=seed % 4 == 0) for c in [some_config(r)] * 2)
    made = 0
    for _ in range(30):
        prompt, output, n = r.randint(1, 9), r.randint(1, 20), r.choice((1, 1, 2))
        if r.random() < 0.25:
            assert several.add_request(prompt, output, n) == single.add_request(prompt, output, n)
        k = several.forward(r.choice((1, 3, 50)))
        singly(single, k)
        made += k
        assert contents(several.state) == contents(single.state)
        assert (several.state.clock, several.state.epoch) == (single.state.clock, single.state.epoch)
        assert several.metrics() == single.metrics()
        check_pools(several)
        for s in (several, single):
            s.schedule()
        assert several.commit() == single.commit()
        state = several.state
        for g in state.running[1]:
            alone = g not in state.members or len(state.members[g][0]) == 1
            if alone and state.seats[g] == 2 and g not in state.prefilling[1]:
                assert several.fork(g) == single.fork(g)
    return made


@pytest.mark.parametrize("seed", range(0, 100, 20))
def test_as_many_single_passes_lead_to_the_same(seed):
    assert sum(map(compared, range(seed, seed + 20))) > 60


def test_it_goes_as_far_as_there_is_nothing_to_decide():
    s = Scheduler(config(8, block_size=4, max_num_seqs=4))
    assert s.forward(5) == 0  # nobody is there
    a = s.add_request(3, 12)
    assert s.forward(5) == 0  # it has to be admitted
    s.schedule()
    with pytest.raises(Rejected, match="a step is in flight"):
        s.forward(1)
    s.commit()
    assert s.forward(4) == 4 and s.state.clock - s.state.born[a] == 8
    s.add_request(2, 2)
    assert s.forward(9) == 0  # somebody waits
    s.schedule()
    s.commit()
    assert s.forward(9) == 0  # it ends in the next step
    s.schedule()
    assert [o.group for o in s.commit()] == [1]
    assert s.forward(99) == 5  # the last pass, in which it ends, is left
    s.schedule()
    assert [o.group for o in s.commit()] == [a]
    assert s.forward(0) == 0


def test_it_stops_where_blocks_lack():
    s = Scheduler(config(4, block_size=2, max_num_seqs=2))
    s.add_request(2, 9), s.add_request(2, 9)
    s.schedule()
    s.commit()
    assert s.forward(99) == 2  # each has two blocks of two tokens, and the next token of both needs a third
    assert s.schedule().preempted


@pytest.mark.parametrize(
    "options",
    [
        {"num_lookahead_slots": 2},
        {"delay_factor": 1.0},
        {"vllm_v0": True, "max_num_batched_tokens": 256},
    ],
)
def test_where_each_pass_must_be_made_on_its_own(options):
    s = Scheduler(config(8, max_num_seqs=4, **options))
    s.add_request(3, 9, now=0)
    s.schedule(1)
    with pytest.raises(Rejected, match="a step is in flight"):
        s.forward(3)
    s.commit()
    assert s.forward(3) == 0


def test_with_history_an_order_or_a_forced_preemption_there_is_none():
    for s in (Scheduler(config(8), keep_history=3), Scheduler(config(8), policy="srpt"), Scheduler(config(8))):
        g = s.add_request(3, 9)
        s.schedule()
        s.commit()
        s.preempt(g)
        assert s.forward(3) == 0


@pytest.mark.parametrize("passes", [-1, 1.0, True, None, "3"])
def test_a_number_of_passes_that_is_none(passes):
    with pytest.raises(Rejected, match="passes must be an integer >= 0"):
        Scheduler(config(8)).forward(passes)
