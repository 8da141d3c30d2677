"""The embedding interface: outcomes with reasons and counts, and those kinds of the case log that are about calls, not loads."""

import copy
import random

import pytest
from pools import check_pools, config, finish, step

from kvproof import Config, ConfigError, Rejected, Scheduler, Status
from kvproof.core import blocks, groups
from kvproof.fake_engine import FakeEngine, alone
from kvproof.fuzz.oracle import contents
from kvproof.store.draft import Draft

MODES = ("recompute", "swap")


@pytest.mark.parametrize("mode", MODES)
def test_outcomes_count_preemptions_by_mode(mode):
    s = Scheduler(config(4, 4), mode)
    a, b = s.add_request(4, 8), s.add_request(4, 8)
    out = finish(s)
    assert (out[a].recomputed, out[a].swapped, out[a].reason) == (0, 0, None)
    assert (out[b].recomputed, out[b].swapped) == ((1, 0) if mode == "recompute" else (0, 1))
    assert out[b].status == Status.FINISHED_LENGTH_CAPPED and out[b].output_tokens == 8
    assert len(s._accounts) == 0  # nothing is kept of who has ended


@pytest.mark.parametrize("mode", MODES)
def test_counts_of_outcomes_add_up_to_those_of_plans(mode):
    s = Scheduler(config(4, 4), mode)
    for _ in range(4):
        s.add_request(4, 8)
    counted, planned = [], []
    while s.unfinished:
        plan, outcomes = step(s)
        planned += plan.preempted
        counted += [(o.recomputed, o.swapped) for o in outcomes]
    assert max(map(sum, counted)) > 1
    assert sum(r for r, _ in counted) == sum(m == "recompute" for _, m in planned)
    assert sum(w for _, w in counted) == sum(m == "swap" for _, m in planned)


def test_a_length_limit_is_named_only_where_it_cut():
    s = Scheduler(config(20, max_model_len=10))
    cut, whole, one = s.add_request(8, 20), s.add_request(8, 2), s.add_request(10, 5)
    out = finish(s)
    assert [out[g].reason for g in (cut, whole, one)] == ["reached max_model_len 10", None, "reached max_model_len 10"]
    assert [out[g].output_tokens for g in (cut, whole, one)] == [2, 2, 1]


def test_an_engine_that_stops_a_request_gives_no_reason():
    s = Scheduler(config(20))
    g = s.add_request(4, 20)
    _, (outcome,) = step(s, ended=[(g, 0)])
    assert (outcome.status, outcome.reason) == (Status.FINISHED_STOPPED, None)


@pytest.mark.parametrize("status", ["waiting", "running", "swapped"])
@pytest.mark.parametrize("siblings", [1, 2])
def test_abort_reaches_every_sibling_in_every_status(status, siblings):
    """C27."""
    s = Scheduler(config(4, 8), "swap")
    first = s.add_request(4, 30)
    step(s)
    g = s.add_request(4, 30)
    if status != "waiting":
        while g not in s.state.running[1]:
            step(s)
        for _ in range(siblings - 1):
            s.fork(g)
    if status == "swapped":
        while g not in s.state.swapped[1]:
            step(s)
    s.abort(g)
    check_pools(s)
    with pytest.raises(Rejected):
        s.abort(g)
    plan, outcomes = step(s)
    assert g not in dict(plan.scheduled) and g not in plan.running and not plan.swap_in
    assert [(o.group, o.reason) for o in outcomes] == [(g, f"aborted while {status}")]
    s.abort(first)
    for name in ("status", "length", "prompt", "limit", "key", "table", "refs", "members", "due", "expiry"):
        assert dict(getattr(s.state, name).items()) == {}, name


def test_a_shared_block_is_freed_once():
    """C22: two references to one block are given back in one call."""
    s = Scheduler(config(4))
    g = s.add_request(8, 8)
    step(s)
    s.fork(g)
    free = s.state.gpu_free
    s.abort(g)
    assert s.state.gpu_free == free + 2
    check_pools(s)


def test_growing_takes_the_difference():
    """C26: 4 -> 8 -> 8 tokens hold 1, 2, 2 blocks."""
    s = Scheduler(config(8))
    d = Draft(s.state)
    g = 0
    held = []
    for tokens in (4, 8, 8):
        d.times("fill", d.blocks_for(tokens) - d.table.size(g, 0), blocks.take_block, 0, g)
        held.append((d.table.size(g, 0), d.gpu.n))
    assert held == [(1, 7), (2, 6), (2, 6)]


@pytest.mark.parametrize("late", [1, 2, 3])
def test_an_end_that_is_noticed_late_frees_every_slot_once(late):
    """C24: a stop token is seen some steps after the sequence went on; the slots taken since are its own."""
    s = Scheduler(config(8, block_size=1))
    g = s.add_request(2, 20)
    for _ in range(2 + late):
        step(s)
    _, outcomes = step(s, ended=[(g, 0), (g, 0)])
    assert [o.group for o in outcomes] == [g] and s.state.gpu_free == 8
    s.schedule()
    assert s.commit(ended=[(g, 0)]) == [] and s.state.gpu_free == 8


@pytest.mark.parametrize("seed", range(20))
def test_counters_of_both_tiers_equal_their_lists(seed):
    """C30: after every call, whatever moves between the tiers."""
    pick = random.Random(seed)
    s = Scheduler(config(pick.randint(2, 8), pick.randint(0, 6), block_size=pick.choice([1, 2, 4])), pick.choice(MODES))
    live = []
    for _ in range(120):
        if pick.random() < 0.3:
            live.append(s.add_request(pick.randint(1, 9), pick.randint(1, 9)))
        if live and pick.random() < 0.1:
            g = pick.choice(live)
            if s.state.status[g] in (Status.WAITING, Status.RUNNING, Status.SWAPPED):
                s.abort(g)
        check_pools(s)
        step(s)
    finish(s)


def test_a_resumed_prefill_replays_everything():
    """C62: after a recompute the plan says all tokens again, and a whole new table from index 0."""
    s = Scheduler(config(3), "recompute")
    s.add_request(4, 8)
    g = s.add_request(4, 6)
    plans = []
    while s.unfinished:
        plans.append(step(s)[0])
    victim = next(i for i, plan in enumerate(plans) if plan.preempted)
    assert plans[victim].preempted == ((g, "recompute"),)
    again = next(plan for plan in plans[victim:] if any(p[0] == g for p in plan.prefills))
    assert [p for p in again.prefills if p[0] == g] == [(g, 0, 5)]
    assert [(q, i) for who, q, i, _ in again.slots if who == g] == [(0, 0), (0, 1)]


def test_sequences_are_counted_not_groups():
    """C51: two groups of two sequences fill max_num_seqs = 4."""
    s = Scheduler(config(20, max_num_seqs=4))
    a, b = s.add_request(4, 6), s.add_request(4, 9)
    step(s)
    s.fork(a)
    s.fork(b)
    with pytest.raises(Rejected, match="max_num_seqs"):
        s.fork(a)
    late = s.add_request(4, 2)
    while a in s.state.running[1]:
        assert late not in step(s)[0].running
    assert late in step(s)[0].running


def test_a_swapped_group_waits_for_a_seat():
    """C51: the blocks for its return are free, the sequences of another hold every seat."""
    s = Scheduler(config(8, 8, max_num_seqs=3), "swap")
    a, b, c = (s.add_request(tokens, 20) for tokens in (4, 12, 4))
    while c not in s.state.swapped[1]:
        step(s)
    s.abort(b)
    s.fork(a)
    s.fork(a)
    plan, _ = step(s)
    assert plan.running == (a,) and s.state.swapped[1] == (c,) and s.state.gpu_free == 3
    s.schedule()
    s.commit(ended=[(a, 1)])
    assert c in step(s)[0].resumed


@pytest.mark.parametrize("mode", MODES)
def test_a_group_that_the_host_cannot_take_is_recomputed(mode):
    """C17: nothing is raised, the others go on, both pools are whole; it ends only where the pool cannot hold it alone."""
    s = Scheduler(config(6, 1), mode)
    first, g = s.add_request(4, 12), s.add_request(4, 12)
    step(s)
    s.fork(g)
    out = finish(s)
    assert out[first].reason is None and out[first].output_tokens == 12
    assert out[g].status == Status.FINISHED_CAPACITY and out[g].recomputed >= 1 and out[g].output_tokens > 0
    assert out[g].reason == "needs 7 blocks for its next token, the pool has 6"


def test_a_group_that_outgrows_the_pool_says_what_it_needs():
    s = Scheduler(config(4, 9))
    g = s.add_request(4, 12)
    step(s)
    s.fork(g)
    out = finish(s)
    assert out[g].reason == "needs 5 blocks for its next token, the pool has 4"


def forked(gpu: int, cpu: int, siblings: dict[int, int], prompt_tokens: int = 4):
    """An engine whose requests fork right after their first token; returns (engine, plans, outcomes)."""
    engine = FakeEngine(config(gpu, cpu), "swap")
    for g in siblings:
        assert engine.add(str(g), prompt_tokens, 8) == g
    plans, ended, done = [], {}, set()
    while engine.scheduler.unfinished:
        made = engine.step()
        plans.append(made.plan)
        ended |= {o.group: o for o in made.outcomes}
        for g in {p[0] for p in made.plan.prefills} - done:
            done.add(g)
            for _ in range(siblings[g] - 1):
                engine.model.fork(g, 0, engine.scheduler.fork(g))
    return engine, plans, ended


@pytest.mark.parametrize("gpu", [6, 7, 20])
@pytest.mark.parametrize("prompt_tokens", [4, 5])
def test_a_group_comes_back_with_all_its_sequences(gpu, prompt_tokens):
    """C54: a swapped-in group brings one token per sequence, and its siblings share again what they shared."""
    engine, plans, ended = forked(gpu, 6, {0: 2, 1: 2}, prompt_tokens)
    assert all(o.reason is None for o in ended.values())
    assert any(plan.swap_in for plan in plans) == (gpu < 20)
    assert any(plan.copy for plan in plans) == (prompt_tokens % 4 > 0)  # a fork at a block boundary shares nothing it writes
    for g in (0, 1):
        first, second = engine.model.output(g), engine.model.output(g, 1)
        assert (tuple(first), tuple(second)) == alone(str(g), prompt_tokens, 8, 4, ((prompt_tokens + 1, 0),))
        assert first[0] == second[0] and not set(first[1:]) & set(second[1:])
    assert (engine.backend.gpu_used, engine.backend.host_used) == (0, 0)


def test_siblings_have_the_same_tokens_whatever_the_pool():
    outputs = []
    for gpu in (10, 12, 40):
        engine, _, _ = forked(gpu, 20, {0: 3, 1: 2}, 6)
        outputs.append([engine.model.output(g, q) for g, n in ((0, 3), (1, 2)) for q in range(n)])
    assert outputs[0] == outputs[1] == outputs[2]
    assert len({token for output in outputs[0] for token in output[1:]}) == 5 * 7


def test_a_result_of_a_request_that_was_never_added_is_rejected_and_changes_nothing():
    scheduler = Scheduler(Config(num_gpu_blocks=100, num_cpu_blocks=0))
    group = scheduler.add_request(10, 5)
    scheduler.schedule()
    before = scheduler.state
    for never in (999, -1):
        with pytest.raises(Rejected, match=f"no request has the id {never}"):
            scheduler.commit([(group, 1), (never, 1)])
        assert scheduler.state is before
    assert scheduler.commit([(group, 1)]) == []


class Moody:
    """A policy that raises when it is asked for the n-th time."""

    def __init__(self, n: int) -> None:
        self.left = n

    def swaps(self, g: int, sequences: int) -> bool:
        self.left -= 1
        if self.left == 0:
            raise ValueError("no mood")
        return True


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_policy_that_raises_changes_nothing(n):
    """The pass is undone, and goes on as if nothing had been when the policy answers again."""
    runs = []
    for policy in (Moody(n), Moody(0)):
        s = Scheduler(config(8, 12, max_num_seqs=4), policy=policy)
        for k in range(4):
            s.add_request(5 + k, 14)
        log = []
        while s.unfinished:
            before, was = s.state, contents(s.state)
            try:
                plan = s.schedule()
            except ValueError:
                assert s.state is before and contents(s.state) == was and policy.left == 0
                plan = s.schedule()
            log.append((plan, s.commit()))
            check_pools(s)
        assert sum(o.swapped for _, ended in log for o in ended) >= 3
        runs.append(log)
    assert runs[0] == runs[1]


def test_a_list_of_ends_that_raises_changes_nothing():
    s = Scheduler(config(8))
    g = [s.add_request(4, 4) for _ in range(3)]
    s.schedule()

    def ends():
        yield g[0], 0
        raise KeyError("gone")

    before, was = s.state, contents(s.state)
    with pytest.raises(KeyError):
        s.commit(None, ends())
    assert s.state is before and contents(s.state) == was
    assert [o.group for o in s.commit(None, [(g[1], 0)])] == [g[1]]


def test_old_states_stay_what_they_were_and_can_be_gone_on_from():
    """The facade goes on with the draft it closed last: no state kept from before may notice, nor a branch from one."""
    s = Scheduler(config(10, 6, max_num_seqs=4), "swap")
    r = random.Random(3)
    kept = []
    for i in range(120):
        if r.random() < 0.3:
            s.add_request(r.randint(1, 9), r.randint(1, 12))
        step(s)
        kept.append((s.state, contents(s.state)))
        if i % 17 == 16:
            s.state = r.choice(kept)[0]
    assert len({id(state) for state, _ in kept}) == 120
    assert [contents(state) for state, _ in kept] == [was for _, was in kept]


@pytest.mark.parametrize("call", [(4.5, 3), (4, 2.5), (4, float("inf")), (True, 3), ("4", 3), (0, 3), (4, 0), (-1, 1)])
def test_a_size_that_is_no_whole_number_is_rejected(call):
    s = Scheduler(config(8))
    with pytest.raises(Rejected, match="must be an integer >= 1"):
        s.add_request(*call)
    assert s.unfinished == 0 and s.add_request(4, 3) == 0


def test_a_call_within_a_call_is_rejected_and_loses_nothing():
    class Meddler:
        def swaps(self, g, sequences):
            s.add_request(1, 1)
            return True

    s = Scheduler(config(3, 3), policy=Meddler())
    for _ in range(2):
        s.add_request(4, 8)
    step(s)
    with pytest.raises(Rejected, match="a call is in progress"):
        s.schedule()
    assert s.unfinished == 2
    ids = []

    def results():
        ids.append(s.add_request(3, 3))
        yield 0, 1

    t = s
    s = Scheduler(config(8))
    s.add_request(4, 4)
    s.schedule()
    s.commit(results())
    assert ids == [1] and s.unfinished == 2 and s.add_request(5, 5) == 2
    assert t.unfinished == 2


def test_an_abandoned_draft_is_not_reopened():
    s = Scheduler(config(8))
    s.add_request(4, 9)
    d = Draft(s.state)
    d.close()
    again = d.reopen()
    assert again is d and again.reopen() is None
    groups.abort(again, 0)
    again.abandon()
    assert again.reopen() is None


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_goes_its_own_way(copied):
    s = Scheduler(config(5000))
    for _ in range(2):
        s.add_request(4, 8)
    step(s)
    other = copied(s)
    assert other.state is s.state and len(repr(s.state)) < 200
    other.abort(0)
    step(other)
    step(s)
    assert (other.unfinished, s.unfinished) == (1, 2)
    check_pools(other)
    check_pools(s)


@pytest.mark.parametrize("mode", ["Auto", "Swap", 5, []])
def test_a_preemption_mode_that_there_is_not(mode):
    with pytest.raises(ConfigError, match="preemption_mode: must be None"):
        Scheduler(config(8, 0), mode)
    s = Scheduler(config(8, 0))
    g = s.add_request(3, 20)
    step(s)
    with pytest.raises(Rejected, match="mode must be None"):
        s.preempt(g, mode)
    with pytest.raises(Rejected, match="count must be an integer"):
        s.deny_append(g, 1.5)


def test_a_policy_must_not_preempt():
    class Calls:
        def swaps(self, g, sequences):
            with pytest.raises(Rejected, match="a call is in progress"):
                s.preempt(g)
            return False

    s = Scheduler(config(8, 0), policy=Calls())
    g = s.add_request(3, 20)
    step(s)
    s.preempt(g)
    assert s.schedule().preempted == ((g, "recompute"),)


def test_nobody_makes_way_for_a_head_that_gets_no_token():
    """A long prompt of higher rank takes the whole budget of each step for a while: until then the one below decodes on."""
    s = Scheduler(config(500, block_size=4, max_num_seqs=2, max_num_batched_tokens=2, enable_chunked_prefill=True, priority=True))
    low = s.add_request(1, 30)
    step(s)
    s.add_request(40, 2, priority=-2)
    for _ in range(3):
        step(s)
    head = s.add_request(4, 4, priority=-1)
    for _ in range(60):
        plan = s.schedule()
        if plan.preempted:
            assert plan.preempted == ((low, "recompute"),) and head in [g for g, _, _ in plan.prefills]
            break
        s.commit()
    else:
        assert head not in s.state.waiting[1]
