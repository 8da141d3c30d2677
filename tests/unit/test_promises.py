"""Bounded preemption: what is kept and for whom; laws about it that the proofs take for granted are true of real states."""

import random

import pytest
from pools import config

from kvproof import Config, ConfigError, Rejected, Scheduler
from kvproof.core import promises
from kvproof.proofs import walks
from kvproof.spec import promises as spec
from kvproof.spec.check import violations
from kvproof.spec.view import View
from kvproof.store.draft import Draft
from kvproof.store.policies import AlwaysRecompute
from kvproof.store.state import initial


def served(s, passes):
    for _ in range(passes):
        s.schedule()
        s.commit()


def test_who_was_preempted_comes_in_when_all_its_blocks_can_be_kept():
    s = Scheduler(config(6, block_size=2, max_preemptions_per_request=1))
    a, b = s.add_request(3, 7), s.add_request(3, 6)  # 5 blocks and 4, each less by the slot of the last token
    served(s, 5)
    assert s.state.running[1] == (a,) and s.state.preemptions.to_dict() == {b: 1}
    while a in s.state.running[1]:
        assert s.state.gpu_free < 4  # b waits, though its tokens would fit
        served(s, 1)
    served(s, 1)
    assert s.state.running[1] == (b,) and s.state.owed[b] == s.state.owing == 4 - len(s.state.table[b][0][: s.state.table[b][1]])


def test_what_is_kept_shrinks_with_what_is_taken_and_goes_with_its_owner():
    s = Scheduler(config(9, block_size=2, max_preemptions_per_request=0))
    g = s.add_request(4, 6)
    kept = []
    while s.unfinished:
        served(s, 1)
        kept.append(s.state.owing)
    assert kept == [3, 2, 2, 1, 1, 0] and s.state.owed[g] == 0


def test_others_do_not_get_what_is_kept():
    s = Scheduler(config(8, block_size=2, max_num_seqs=4, max_preemptions_per_request=0))
    a, b, c = s.add_request(4, 6), s.add_request(4, 3), s.add_request(2, 2)
    served(s, 1)
    assert s.state.running[1] == (a, b) and s.state.waiting[1] == (c,)  # 5 + 3 blocks
    assert (s.state.gpu_free, s.state.owing) == (4, 4)
    while s.unfinished:
        assert s.schedule().preempted == ()
        s.commit()


def test_a_forced_preemption_neither_counts_nor_protects():
    s = Scheduler(config(8, block_size=2, max_preemptions_per_request=1))
    g = s.add_request(4, 6)
    served(s, 1)
    for _ in range(3):
        s.preempt(g)
        served(s, 2)
        assert s.state.preemptions[g] == 0 and s.state.owing == 0
    assert s.preemptions(g) == (3, 0)


def test_several_sequences_count_together_and_the_pool_will_do():
    s = Scheduler(config(6, block_size=2, max_num_seqs=4, max_preemptions_per_request=0))
    g = s.add_request(6, 4, 2)  # two whole tables are 10 blocks, of which 3 can be shared
    served(s, 1)
    assert s.state.running[1] == (g,) and s.state.owed[g] == 6 - 3
    s.fork(g)
    with pytest.raises(Rejected, match="may not be preempted again"):
        s.fork(g)
    while s.unfinished:
        assert s.schedule().preempted == () and violations(s.state) == []
        s.commit()


def test_whose_whole_need_exceeds_the_pool_is_refused_or_ended():
    s = Scheduler(config(4, block_size=2, max_preemptions_per_request=0))
    g = s.add_request(2, 20)
    assert s.schedule().ended[0][0] == g
    (outcome,) = s.commit()
    assert outcome.reason == (
        "prompt and output of 22 tokens need 11 blocks, the pool has 4, and max_preemptions_per_request 0 forbids to preempt it"
    )


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_who_cannot_come_in_again_is_ended_with_its_tokens(mode):
    s = Scheduler(config(4, 8, block_size=2, max_preemptions_per_request=1), mode)
    s.add_request(2, 5)
    b = s.add_request(2, 20)
    ended = []
    while s.unfinished:
        s.schedule()
        ended += s.commit()
    last = next(outcome for outcome in ended if outcome.group == b)
    assert last.status.name == "FINISHED_CAPACITY" and last.tokens > 2
    assert last.reason.endswith("need 11 blocks, the pool has 4, and max_preemptions_per_request 1 forbids to preempt it")


@pytest.mark.parametrize("needs", range(2, 8))
def test_nobody_makes_way_in_vain_while_a_protected_one_stays(needs):
    """It stays, so the watermark counts, and what is kept for it does not."""
    s = Scheduler(config(10, block_size=1, watermark_blocks=2, priority=True, max_preemptions_per_request=1))
    protected = s.add_request(1, 6, priority=5)
    served(s, 1)
    s.add_request(8, 1, priority=0)
    while s.unfinished > 1:
        served(s, 1)
    below = s.add_request(1, 6, priority=6)
    while set(s.state.running[1]) != {protected, below}:
        served(s, 1)
    assert (s.state.gpu_free, s.state.owing, s.state.preemptions.to_dict()) == (6, 3, {protected: 1})
    head = s.add_request(needs, 2, priority=0)
    served(s, 1)  # a step of decodes
    plan = s.schedule()
    if needs == 2:
        assert plan.preempted == ((below, "recompute"),) and plan.prefills == ((head, 0, 2),)
    else:
        assert plan.preempted == () and plan.decodes == (protected, below)


def test_whom_a_policy_names_is_not_preempted_if_it_is_protected():
    class Last(AlwaysRecompute):
        @staticmethod
        def victim(need):
            return max(s.state.running[1])

    many = 0
    for seed in range(40):
        r = random.Random(seed)
        fields = {"block_size": r.choice((1, 2)), "max_num_seqs": 6, "max_preemptions_per_request": 1}
        s = Scheduler(config(r.randint(8, 14), **fields), policy=Last)
        for _ in range(r.randint(3, 8)):
            s.add_request(r.randint(1, 3), r.randint(2, 6))
        while s.unfinished:
            many += len(s.schedule().preempted)
            assert all(n <= 1 for n in s.state.preemptions.to_dict().values())
            s.commit()
    assert many > 40


def test_several_sequences_end_for_their_own_reason():
    """For them the pool will do, so it is no limit that ends them."""
    reasons = []
    for limit in (1, None):
        s = Scheduler(config(4, block_size=1, max_num_seqs=8, max_preemptions_per_request=limit))
        s.add_request(1, 2)
        b = s.add_request(3, 3, 2)
        while s.unfinished:
            s.schedule()
            reasons += [outcome.reason for outcome in s.commit() if outcome.group == b]
            if b in s.state.running[1] and b not in s.state.prefilling[1] and b not in s.state.members.to_dict():
                s.fork(b)
    assert reasons == ["needs 5 blocks for its next token, the pool has 4"] * 2


@pytest.mark.parametrize("value", [-1, True, 1.0, "1"])
def test_a_limit_that_is_none(value):
    with pytest.raises(ConfigError, match="max_preemptions_per_request"):
        Config(num_gpu_blocks=4, num_cpu_blocks=0, max_preemptions_per_request=value)


def test_v0_has_no_limit():
    with pytest.raises(ConfigError, match="max_preemptions_per_request: must not be set in profile vllm_v0"):
        Config(num_gpu_blocks=4, num_cpu_blocks=0, max_preemptions_per_request=1, vllm_v0=True)


# --- what the proofs take for granted ----------------------------------------------------------------------------------
def states(seed, steps=40):
    """Those of a walk with forks, forced preemptions and limits, by other random choices than the bank of the audit."""
    r = random.Random(f"promises {seed}")
    fields = walks.some_config(r) | {"num_gpu_blocks": r.choice((6, 9, 14)), "block_size": r.choice((1, 2, 3)), "max_num_seqs": 6}
    fields |= {"max_num_batched_tokens": 40, "max_model_len": 40}
    walks.limit(fields, r.choice((0, 1, 2)))
    state = initial(Config(**fields))
    for _ in range(steps):
        some = [a for a in walks.actions(state, r) if a[0] != "forward"]
        action = walks.choose(state, some + [a for a in walks.steps(state, r) if a[0] == "preempt"], r)
        state = walks.step(state, "swap", action) or state
        yield state


SEEDS = range(60)


def test_a_group_is_below_its_ceiling_before_it_takes_more():
    """`ceiling_laws`."""
    grown = copied = several = 0
    for seed in SEEDS:
        for state in states(seed):
            d = Draft(state)
            for g in state.running[1]:
                n, size = d.members.count(g), d.table.size(g, d.members.first(g))
                if any(d.table.size(g, q) != size for q in d.members.of(g)) or not size:
                    continue
                top, held, span = d.limit[g] - 1, d.table.distinct(g), d.config.block_size
                if span * size < top:
                    assert held + n <= d.ceiling(g)
                    grown += 1
                if span * (size - 1) < top:
                    assert held + d.table.pending_copies(g) <= d.ceiling(g)
                    copied += d.table.pending_copies(g) > 0
                several += n > 1
            d.abandon()
    assert grown > 500 and copied > 20 and several > 100


def test_the_draft_reads_limits_as_the_specification_does():
    found = nobody = 0
    for seed in SEEDS:
        for state in states(seed):
            d, e = Draft(state), View(state)
            for g in (*state.running[1], *state.waiting[1], *state.swapped[1]):
                assert d.may_go(g) == bool(spec.may_go(e, g)) and d.ceiling(g) == e.ceiling(g)
                assert d.last_below(g) == e.last_below(g) and d.behind(g) == e.behind(g)
                found += d.last_below(g) != g
                nobody += d.last_below(g) == g and any(state.key[h] > state.key[g] for h in state.running[1])
                d.seats[g] += 1
                assert d.ceiling(g) >= e.ceiling(g)  # not less for more seats
                d.seats[g] -= 1
            d.abandon()
    assert found > 300 and nobody > 100


def test_the_core_reckons_as_the_specification_does():
    """Two texts of the same: the arithmetic of `core/promises.py` and of `spec/promises.py`."""
    protected = 0
    for seed in SEEDS:
        for state in states(seed):
            d, e = Draft(state), View(state)
            for g in state.running[1]:
                assert promises.most(d, g) == spec.most(e, g) and promises.free(d, g) == spec.free(e, g)
                assert promises.promised(d, g) == spec.promised(e, g)
                assert [promises.needed(d, g, n) for n in (0, 3, 99)] == [spec.needed(e, g, n) for n in (0, 3, 99)]
                protected += spec.promised(e, g) > 0
            d.abandon()
    assert protected > 100
