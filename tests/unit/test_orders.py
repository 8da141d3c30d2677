"""Orders of requests: who comes first, who displaces whom, and when that changes."""

import pytest
from pools import config

from kvproof import ConfigError, Scheduler, Status
from kvproof.policies.desk import ALARM
from kvproof.policies.fair import UNIT, Fair
from kvproof.policies.ranking import LATE, ByPriority, Fcfs, Mlfq, Srpt


def steps(s: Scheduler, n: int = 1) -> list:
    """So many steps; their plans."""
    plans = []
    for _ in range(n):
        plans.append(s.schedule())
        s.commit()
    return plans


def alone(order, **fields) -> Scheduler:
    """One runs at a time."""
    return Scheduler(config(40, 40, block_size=4, max_num_seqs=1, **fields), policy=order)


def ends(s: Scheduler) -> list[int]:
    """The order in which all end."""
    out = []
    while s.unfinished:
        s.schedule()
        out += [o.group for o in s.commit()]
    return out


def test_an_order_says_whether_it_displaces():
    for order, displaces in ((Fcfs(), False), (ByPriority(), True), (Srpt(), True), (Mlfq(), True), (Fair(), False)):
        for given in (order, order.name):
            s = Scheduler(config(8, 8, priority=not displaces), "swap", given)
            assert s.config.priority == displaces and s.order == order


def test_first_come_first_served():
    s = alone("fcfs")
    for priority, tokens in ((5, 9), (1, 3), (0, 6)):
        s.add_request(3, tokens, priority=priority)
    assert ends(s) == [0, 1, 2]


def test_by_priority_as_without_an_order():
    with_order, without = alone("priority"), Scheduler(config(40, 40, block_size=4, max_num_seqs=1, priority=True))
    for s in (with_order, without):
        for priority, tokens in ((5, 9), (1, 3), (0, 6)):
            s.add_request(3, tokens, priority=priority)
            steps(s, 2)
    assert ends(with_order) == ends(without) == [2, 1, 0]


# --- shortest remaining first ---------------------------------------------------------------------------------------------


def test_fewest_tokens_to_go_first_as_far_as_is_known():
    s = alone(Srpt(granularity=1))
    for tokens, expected in ((20, None), (12, None), (30, 5), (9, 40)):
        s.add_request(3, tokens, expected_tokens=expected)
    assert s.state.waiting[1] == (2, 3, 1, 0)
    assert [s.state.priority[g] for g in range(4)] == [20, 12, 5, 9]


def test_what_was_generated_counts():
    """It has 9 of 20 tokens to go when one of 10 comes, and is not displaced; 8 displace."""
    for tokens, displaced in ((10, False), (8, True)):
        s = alone(Srpt(granularity=1, late=1))
        a = s.add_request(3, 20)
        steps(s, 11)
        b = s.add_request(3, tokens)
        (plan,) = steps(s)
        assert [g for g, _ in plan.preempted] == ([a] if displaced else []), tokens
        assert (s.state.status[b] == Status.RUNNING) == displaced


def test_it_is_not_displaced_when_it_is_late():
    """It has 4 of 20 tokens to go, and one of 2 comes."""
    for late, displaced in ((0.8, False), (0.9, True)):
        s = alone(Srpt(granularity=1, late=late))
        a = s.add_request(3, 20)
        steps(s, 16)
        s.add_request(3, 2)
        (plan,) = steps(s)
        assert [g for g, _ in plan.preempted] == ([a] if displaced else []), late
        assert (s.state.priority[a] == LATE) == (not displaced)


def test_ranks_change_once_in_a_granule():
    s = alone(Srpt(granularity=8, late=2))
    a = s.add_request(3, 40)
    ranks = []
    while s.unfinished:
        ranks.append(s.state.priority[a])
        steps(s)
    assert sorted(set(ranks), reverse=True) == [5, 4, 3, 2, 1]
    assert all(ranks.count(k) in (7, 8, 9) for k in range(1, 6))


def test_who_outlives_what_was_expected_goes_on():
    s = alone(Srpt(granularity=1, late=2))
    a = s.add_request(3, 40, expected_tokens=4)
    steps(s, 6)
    assert s.state.priority[a] == 3, "5 of 8 tokens by now"
    assert ends(s) == [a]


# --- feedback queues ------------------------------------------------------------------------------------------------------


def test_quanta_double_and_who_has_used_one_up_goes_down():
    s = alone(Mlfq(quantum=2, levels=4))
    a = s.add_request(3, 40)
    levels = []
    while s.unfinished:
        s.schedule()
        levels.append(s.state.priority[a])  # of the pass that makes token len(levels)
        s.commit()
    assert levels == [0] * 2 + [1] * 4 + [2] * 8 + [3] * 26


def test_a_long_prompt_joins_below():
    s = alone(Mlfq(quantum=2, prompt_tokens_each=4, levels=3))
    for prompt in (8, 9, 16, 20, 60):
        s.add_request(prompt, 3)
    assert [s.state.priority[g] for g in range(5)] == [0, 0, 1, 2, 2]


def test_a_new_one_displaces_who_has_been_served():
    s = alone(Mlfq(quantum=4))
    a = s.add_request(3, 30)
    steps(s, 4)
    b = s.add_request(3, 3)
    (plan,) = steps(s)
    assert [g for g, _ in plan.preempted] == [a] and s.state.running[1] == (b,)
    assert ends(s) == [b, a]


def test_who_waits_long_is_promoted():
    s = alone(Mlfq(quantum=2, levels=3, promote_after=9))
    a = s.add_request(3, 30)
    steps(s, 8)
    assert s.state.priority[a] == 2
    waited = 0
    s.add_request(3, 1)
    steps(s)
    while s.state.status[a] != Status.RUNNING:
        s.add_request(3, 1)
        s.add_request(3, 1)
        steps(s)
        waited += 1
    assert 8 <= waited <= 10 and s.state.priority[a] == 0
    generated = len(steps(s, 7))
    assert s.state.priority[a] == 0, "with the quantum of the last level, lest the next one that is promoted displaces it at once"
    while s.state.priority[a] == 0:
        generated += len(steps(s))
    assert generated in (2 << 2, (2 << 2) + 1) and s.state.priority[a] == 1


def test_who_is_displaced_when_its_quantum_ends_has_not_waited_long():
    """Whenever it is."""
    for k in range(1, 12):
        s = alone(Mlfq(quantum=2, levels=3, promote_after=50))
        a = s.add_request(3, 30)
        steps(s, k)
        level = s.state.priority[a]
        for _ in range(5):
            s.add_request(3, 1)
            steps(s)
            assert s.state.priority[a] >= level


# --- fair shares ------------------------------------------------------------------------------------------------------------


def backlog(order: Fair, sizes, steps_made: int, **fields):
    """Generated and prompt tokens that the requests of each tenant got, if all always have some that wait."""
    fields = {"max_num_seqs": 4, "block_size": 4, **fields}
    s = Scheduler(config(24, 24, **fields), "recompute", order)
    tenant, got = {}, dict.fromkeys(sizes, 0)
    waiting = dict.fromkeys(sizes, 0)
    done: dict[int, int] = {}
    for _ in range(steps_made):
        for name, (prompt, tokens) in sizes.items():
            waiting[name] = sum(tenant[g] == name for g in s.state.waiting[1])
            for _ in range(3 - waiting[name]):
                tenant[s.add_request(prompt, tokens, tenant=name)] = name
        plan = s.schedule()
        for g, start, n in plan.prefills:
            if start == 0 and g not in done:
                got[tenant[g]] += order.prompt_weight * sizes[tenant[g]][0]
            if start + n >= sizes[tenant[g]][0] + done.get(g, 0):
                done[g] = done.get(g, 0) + 1
                got[tenant[g]] += order.output_weight
        for g in plan.decodes:
            done[g] += 1
            got[tenant[g]] += order.output_weight
        s.commit()
    return got, s


@pytest.mark.parametrize("weights", [{}, {"a": 2.0}, {"a": 1.0, "b": 3.0}])
@pytest.mark.parametrize("sizes", [{"a": (8, 12), "b": (8, 12)}, {"a": (4, 24), "b": (24, 4)}])
def test_shares_are_as_the_weights_say(weights, sizes):
    """Within the bound of the virtual token counter: no matter how long it runs, and who came first."""
    order = Fair(weights=weights, quantum=4)
    bound = 2 * max(24, order.output_weight * 24 * 4) / min(1.0, *weights.values(), 1.0)
    for made in (100, 600):
        got, s = backlog(order, sizes, made)
        gap = got["a"] / order.weight("a") - got["b"] / order.weight("b")
        assert abs(gap) <= bound, (made, got)
        assert sum(got.values()) > 3 * made, "and the machine is used"
        assert s.check() == []


def test_each_stands_behind_the_prompts_of_those_before_it():
    s = alone(Fair(quantum=1, weights={"b": 2}))
    for _ in range(3):
        for tenant in "ab":
            s.add_request(16, 3, tenant=tenant)
    s.schedule()
    s.commit()
    s.schedule()  # the first of a was charged its prompt and a token, weight 2
    assert [s.state.priority[g] for g in (2, 4, 1, 3, 5)] == [18 // UNIT, 34 // UNIT, 0, 8 // UNIT, 16 // UNIT]


def test_many_requests_are_no_claim():
    """100 requests of one tenant wait when another brings two: they come next."""
    s = Scheduler(config(40, 40, block_size=4, max_num_seqs=2), policy=Fair(quantum=1))
    for _ in range(100):
        s.add_request(4, 6, tenant="many")
    steps(s, 3)
    two = [s.add_request(4, 6, tenant="few") for _ in range(2)]
    order = ends(s)
    assert set(order[2:4]) == set(two)


def test_who_was_away_has_saved_nothing_up():
    s = alone(Fair(quantum=1))
    s.add_request(4, 6, tenant="a")
    steps(s, 8)
    for _ in range(3):
        s.add_request(4, 20, tenant="b")
    steps(s, 30)
    s.add_request(4, 6, tenant="a")
    b, a = (s._notes.get((0, ("tenants", name))).counter for name in "ba")
    assert a == b > 60


def test_who_has_had_more_does_not_begin_anew_by_leaving():
    s = Scheduler(config(40, 40, block_size=4, max_num_seqs=2), policy=Fair(quantum=1))
    s.add_request(4, 30, tenant="greedy")
    s.add_request(4, 60, tenant="slow")
    while s.state.status[0]:
        steps(s)
    s.add_request(4, 30, tenant="third")
    steps(s, 1)
    greedy, slow = (s._notes.get((0, ("tenants", name))).counter for name in ("greedy", "slow"))
    s.add_request(4, 30, tenant="greedy")
    assert s._notes.get((0, ("tenants", "greedy"))).counter == greedy >= slow - 8


def test_lines_lose_those_who_go(n=12):
    """Aborted, admitted or ended: nothing is kept of them."""
    s = Scheduler(config(40, 40, block_size=4, max_num_seqs=2), policy=Fair(window=3))
    ids = [s.add_request(4, 3, tenant="ab"[k % 2]) for k in range(n)]
    for g in ids[3:9]:
        s.abort(g)
    order = ends(s)
    ids += [s.add_request(4, 3, tenant="a") for _ in range(3)]
    order += ends(s)
    assert sorted(order) == ids
    steps(s)
    kept = [key for key, _ in s._notes.items() if type(key) is tuple and key[0] != ALARM]  # those go when they ring
    assert {key[1] for key in kept} <= {"tenants", ("tenants", "a"), ("tenants", "b")}


def test_alike_in_a_line_by_arrival():
    s = alone(Fair())
    for k in range(20):
        s.add_request(4, 3, tenant="one" if k % 3 else None)
    order = ends(s)
    for rest in (0, 1):
        mine = [g for g in order if bool(g % 3) == bool(rest)]
        assert mine == sorted(mine)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Srpt(granularity=0), "granularity: must be an integer from 1"),
        (lambda: Srpt(late=0), "late: must be a number > 0"),
        (lambda: Srpt(late=float("nan")), "late: must be a number > 0"),
        (lambda: Mlfq(levels=99), "levels: must be an integer from 1 to 24"),
        (lambda: Mlfq(promote_after=True), "promote_after: must be an integer"),
        (lambda: Fair(weights={"a": 0}), "weights: must be numbers from 0.01 to 100 by tenant, got 'a': 0"),
        (lambda: Fair(weights={3: 1}), "weights: must be numbers"),
        (lambda: Fair(weights=[1]), "weights: must be numbers"),
        (lambda: Fcfs(patience=0), "patience: must be an integer from 1"),
    ],
)
def test_an_order_that_cannot_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_v0_has_its_own_orders_only():
    fields = {"vllm_v0": True, "max_num_batched_tokens": 64, "max_num_seqs": 4}
    s = Scheduler(config(8, 8, **fields), policy="priority")
    assert s.order is None and s.config.priority
    assert not Scheduler(config(8, 8, priority=True, **fields), policy="fcfs").config.priority
    with pytest.raises(ConfigError, match='policy: "fair" needs the profile kvproof'):
        Scheduler(config(8, 8, **fields), policy="fair")
