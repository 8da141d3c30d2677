"""`preemption_mode="auto"`: the cheaper mode, the cheapest set of victims, and what was measured meanwhile."""

import copy
from itertools import combinations
from random import Random

import attrs
import pytest
from pools import config, finish

from kvproof import Calibrated, ConfigError, Costs, Rejected, Scheduler
from kvproof.policies.auto import EXACT_MAX, Auto, cost_of, pairs
from kvproof.policies.costs import pairs_of
from kvproof.store.candidates import Candidate, Need

DEAR_SWAP = Costs(out_s_per_block=1)
DEAR_TOKENS = Costs(s_per_token=1)
FREE = Costs(**dict.fromkeys(attrs.fields_dict(Costs), 0))


def some(group: int, blocks: int, tokens: int | None = None, swappable: bool = True) -> Candidate:
    """One sequence."""
    length = 16 * blocks if tokens is None else tokens
    return Candidate(group, 1, blocks, length, length, length - 1, swappable)


def test_the_cheaper_mode_is_taken():
    assert not Auto(DEAR_SWAP).weigh(some(1, 2))
    assert Auto(DEAR_TOKENS).weigh(some(1, 2))
    assert not Auto(DEAR_TOKENS).weigh(some(1, 2, swappable=False))
    assert not Auto(FREE).weigh(some(1, 2)), "where both cost the same"


def test_a_long_context_is_swapped_and_a_short_one_computed_again():
    """The term quadratic in the context decides."""
    costs = Costs(s_per_token=1e-5, s_per_pair=1e-8, out_s_per_block=4e-4, in_s_per_block=4e-4)
    modes = [Auto(costs).weigh(some(1, blocks)) for blocks in (1, 10, 100, 1000)]
    assert modes == [False, False, False, True]


def test_what_was_not_computed_yet_costs_nothing():
    half = Candidate(1, 1, 10, 160, 160, 3, True)  # in the middle of its prefill
    assert Auto().prices(half)[0] == Costs().recompute_s(3) < Auto().prices(some(1, 10))[0]


def test_siblings_compute_their_common_beginning_once():
    assert pairs(some(1, 2, 20)) == pairs_of(19)
    family = Candidate(1, 3, 9, 10 + 3 * 5, 15, 25, True)
    assert pairs(family) == pairs_of(10) + 3 * pairs_of(5, 10)


def pressed(mode, **more):
    """Who is preempted, and how, where four requests of a few blocks each lack one."""
    s = Scheduler(config(9, 8, block_size=2), mode, **more)
    for _ in range(4):
        s.add_request(3, 9)
    for _ in range(2):
        s.schedule()
        s.commit()
    return s.schedule().preempted, s


def test_the_scheduler_asks_for_it():
    assert pressed("auto", costs=DEAR_SWAP)[0] == ((3, "recompute"),)
    plan, s = pressed("auto", costs=DEAR_TOKENS)
    assert plan == ((3, "swap"),) and s.config.choose_victims and s.costs == DEAR_TOKENS
    assert finish_from(s) and s.check() == []
    assert pressed("swap")[1].costs is None


def finish_from(s):
    s.commit()
    return finish(s)


# --- the set ------------------------------------------------------------------------------------------------------------


def need(r: Random, n: int) -> Need:
    blocks = [r.randrange(1, 6) for _ in range(n)]
    host = r.choice((0, 3, 8, 100))
    candidates = tuple(some(9 - i, b, r.randrange(1, 16 * b + 1), b <= host) for i, b in enumerate(blocks))
    free = r.randrange(3)
    return Need(0, free + r.randrange(1, max(2, sum(blocks))), free, host, candidates)


def prices(auto: Auto, n: Need):
    return [(*auto.prices(c), c.blocks) for c in n.candidates]


def brute(auto: Auto, n: Need) -> float:
    """What the cheapest set costs that frees enough: all of them are tried."""
    offers, lacking = prices(auto, n), n.blocks - n.free
    sets = [s for k in range(1, len(offers) + 1) for s in combinations(range(len(offers)), k)]
    return min(cost_of(offers, s, n.host_free) for s in sets if sum(offers[i][2] for i in s) >= lacking)


COSTS = [Costs(), Costs(s_per_token=5e-6, s_per_pair=1e-6), DEAR_SWAP, DEAR_TOKENS, Costs(s_per_token=3e-5)]


@pytest.mark.parametrize("costs", COSTS, ids=range(len(COSTS)))
def test_the_set_is_the_cheapest(costs):
    r, auto = Random(1), Auto(costs)
    for _ in range(150):
        n = need(r, r.randrange(1, EXACT_MAX + 1))
        chosen = auto.cheapest(n)
        assert sum(n.candidates[i].blocks for i in chosen) >= n.blocks - n.free
        assert cost_of(prices(auto, n), chosen, n.host_free) == pytest.approx(brute(auto, n))
        assert auto.victim(n) == n.candidates[chosen[0]].group


@pytest.mark.parametrize("costs", COSTS, ids=range(len(COSTS)))
def test_of_many_it_is_nearly_so(costs, monkeypatch):
    """The same questions answered by the rule for many: enough, nobody superfluous, a tenth dearer on average at most."""
    r, auto = Random(2), Auto(costs)
    monkeypatch.setattr("kvproof.policies.auto.EXACT_MAX", 0)
    ratios = []
    for _ in range(150):
        n = need(r, r.randrange(1, 9))
        chosen, lacking = auto.cheapest(n), n.blocks - n.free
        freed = sum(n.candidates[i].blocks for i in chosen)
        assert freed >= lacking and all(freed - n.candidates[i].blocks < lacking for i in chosen)
        ratios.append(cost_of(prices(auto, n), chosen, n.host_free) / brute(auto, n))
        assert min(ratios) > 0.999
    assert sum(ratios) / len(ratios) < 1.1 and max(ratios) < 5


def test_of_many_the_best_single_one_goes_if_it_is_cheaper(monkeypatch):
    """Two that are cheaper by the block free more than is lacking."""
    monkeypatch.setattr("kvproof.policies.auto.EXACT_MAX", 0)
    auto = Auto(attrs.evolve(FREE, s_per_token=1))
    candidates = (some(3, 2, 21), some(2, 2, 23), some(1, 3, 37))
    assert auto.cheapest(Need(0, 3, 0, 0, candidates)) == (2,)
    assert auto.cheapest(Need(0, 4, 0, 0, candidates)) == (0, 1)


def test_the_host_has_room_for_some_only():
    """Each of two is cheaper swapped, but the host takes one: the pair costs more than the third alone."""
    costs = attrs.evolve(FREE, s_per_token=1, out_s_per_block=0.5)
    candidates = (some(3, 2, 33), some(2, 2, 33), some(1, 4, 21, swappable=False))
    auto = Auto(costs)
    assert auto.cheapest(Need(0, 4, 0, 4, candidates)) == (0, 1)
    assert auto.cheapest(Need(0, 4, 0, 2, candidates)) == (2,)


def test_ties_go_to_the_lowest_rank_and_questions_have_one_answer():
    alike = tuple(some(9 - i, 2) for i in range(4))
    assert Auto().victim(Need(0, 2, 0, 9, alike)) == 9
    assert Auto().cheapest(Need(0, 3, 0, 9, alike)) == (0, 1)
    many = tuple(some(99 - i, 2) for i in range(40))
    assert Auto().cheapest(Need(0, 3, 0, 9, many)) == (0, 1)
    assert Auto().victim(Need(0, 99, 0, 9, alike)) == 9, "though all together do not suffice"
    assert Auto().victim(Need(0, 1, 0, 9, ())) == -1


def test_who_was_preempted_before_is_dearer():
    candidates = (some(3, 2, 20), some(2, 2, 30))
    assert Auto().victim(Need(0, 1, 0, 0, candidates)) == 3
    assert Auto(times=lambda g: 4 if g == 3 else 0).victim(Need(0, 1, 0, 0, candidates)) == 2
    _, s = pressed("auto", costs=DEAR_SWAP)
    assert s.policy.times(3) == 1 and s.policy.times(1) == 0


# --- measured while it runs -----------------------------------------------------------------------------------------------


def test_what_was_observed_counts_and_goes_back():
    s = Scheduler(config(9, 8, block_size=2), "auto")
    moment, before = s.snapshot(), s.costs
    for _ in range(20):
        s.observe_step(100, pairs_of(100), 5.0)
        s.observe_transfer(3, 2.0, "out")
    slow = s.costs
    assert slow.s_per_token > before.s_per_token and slow.out_s_per_block > before.out_s_per_block
    later, other = s.snapshot(), copy.copy(s)
    s.restore(moment)
    assert s.costs == before == s.policy.costs and other.costs == slow
    s.restore(later)
    assert s.costs == slow == s.policy.costs
    assert Scheduler(config(9, 8), "auto", costs=Calibrated.begin(DEAR_SWAP)).costs == DEAR_SWAP


def test_a_copy_counts_its_own_preemptions():
    _, s = pressed("auto", costs=DEAR_SWAP)
    for other in (copy.copy(s), copy.deepcopy(s)):
        assert other.policy.times(3) == 1
        s_before = s.policy.times(3)
        other._accounts.preempted(3, "swap")
        assert other.policy.times(3) == 2 and s.policy.times(3) == s_before


def test_where_there_are_no_costs_none_are_observed():
    with pytest.raises(Rejected, match='with preemption_mode "auto" only'):
        Scheduler(config(9, 8), "swap").observe_step(1, 1, 1.0)
    with pytest.raises(Rejected, match="blocks: must be an integer from 1"):
        Scheduler(config(9, 8), "auto").observe_transfer(0, 1.0, "in")
    with pytest.raises(ConfigError, match="preemption_mode: must be None beside a policy"):
        Scheduler(config(9, 8), "auto", Auto())
    assert Scheduler(config(9, 8), policy=Auto(DEAR_SWAP)).costs == DEAR_SWAP


def test_who_frees_little_makes_way_only_if_nobody_frees_more():
    auto, small, large, larger = Auto(), some(1, 3), some(2, 12), some(3, 20)
    assert auto.prices(small) < auto.prices(large) < auto.prices(larger)
    assert auto.cheapest(Need(0, 1, 0, 99, (small, large, larger))) == (1,), "12 blocks: 3 for each of 4"
    assert auto.cheapest(Need(0, 1, 0, 99, (small, larger))) == (1,)
    assert auto.cheapest(Need(0, 1, 0, 99, (small, some(2, 8)))) == (0,), "none of 9 blocks"
    assert auto.cheapest(Need(0, 13, 0, 99, (small, large, larger))) == (2,), "what is lacking counts first"
    assert attrs.evolve(auto, ahead=0).cheapest(Need(0, 1, 0, 99, (small, large, larger))) == (0,)
