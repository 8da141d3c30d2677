"""What a policy may choose besides the mode: who makes way, and in what order requests rank."""

import pytest
from pools import config

from kvproof import Config, ConfigError, Rejected, Scheduler, Status


class Says:
    """Names the same group whenever it is asked, and keeps what it was told."""

    def __init__(self, name):
        self.name, self.asked = name, []

    def swaps(self, g, sequences):
        return False

    def victim(self, need):
        self.asked.append(need)
        return self.name


def pressed(policy, **fields):
    """Four requests of two blocks each in a pool of nine, all about to need a third: group 0 takes the free one, 1 lacks one, and
    who goes for it has enough for the other as well."""
    s = Scheduler(config(9, 8, block_size=2, **fields), policy=policy)
    for _ in range(4):
        s.add_request(3, 9)
    for _ in range(2):
        s.schedule()
        s.commit()
    return [g for g, _ in s.schedule().preempted], s


def test_whom_the_policy_names_makes_way():
    victims, s = pressed(Says(2))
    assert victims == [2] and s.state.status[3] == Status.RUNNING and s.check() == []
    (need,) = s.policy.asked
    assert (need.group, need.blocks, need.free, need.host_free) == (1, 1, 0, 8)
    assert [c.group for c in need.candidates] == [3, 2]
    assert {c[1:] for c in need.candidates} == {(1, 2, 5, 5, 4, True)}


@pytest.mark.parametrize("name", [0, 1, -1, 99, None, "2", 2.0, True])
def test_the_tail_goes_if_nobody_fit_is_named(name):
    """Nor does anybody who ranks above, or the group itself."""
    victims, s = pressed(Says(name))
    assert victims == [3] and s.check() == []


def test_a_policy_that_names_victims_says_so_in_the_configuration():
    assert Scheduler(config(8, 8), policy=Says(1)).config.choose_victims
    assert not Scheduler(config(8, 8)).config.choose_victims
    assert not Scheduler(config(8, 8, vllm_v0=True), policy=Says(1)).config.choose_victims
    with pytest.raises(ConfigError, match="choose_victims: must be false in profile vllm_v0"):
        Config(num_gpu_blocks=8, num_cpu_blocks=8, choose_victims=True, vllm_v0=True)


class Weighs:
    """Swaps who holds more than so many blocks."""

    def weigh(self, victim):
        return victim.blocks > 1 and victim.swappable

    def swaps(self, g, sequences):
        raise AssertionError("it is asked to weigh")


def test_a_policy_that_weighs_is_told_of_the_victim():
    assert pressed(Weighs())[0] == [3]
    _, s = pressed(Weighs())
    assert s.state.status[3] == Status.SWAPPED


def test_who_is_ranked_before_others_is_admitted_first():
    s = Scheduler(config(2, 0, max_num_seqs=1))
    a, b, c = (s.add_request(2, 4) for _ in range(3))
    s.rerank(c, -1)
    assert s.state.waiting[1] == (c, a, b)
    assert [g for g, _, _ in s.schedule().prefills] == [c]
    s.rerank(a, 1)  # in flight
    assert s.state.waiting[1] == (b, a) and s.check() == []
    s.commit()
    s.rerank(c, 5)  # it runs on: without priorities nobody makes way for who ranks before it
    assert s.schedule().running == (c,)


def test_with_priorities_it_displaces():
    s = Scheduler(config(8, 0, max_num_seqs=1, priority=True))
    a, b = s.add_request(2, 9), s.add_request(2, 9)
    s.schedule()
    s.commit()
    s.schedule()
    s.commit()
    s.rerank(b, -1)
    assert s.schedule().preempted == ((a, "recompute"),) and s.state.running[1] == (b,)


@pytest.mark.parametrize("priority", [2**40 + 1, -(2**40) - 1, 1.0, True, None])
def test_a_rank_that_is_none(priority):
    s = Scheduler(config(2, 0))
    g = s.add_request(2, 4)
    with pytest.raises(Rejected, match="priority must be an integer"):
        s.rerank(g, priority)


def test_who_has_ended_has_no_rank():
    s = Scheduler(config(2, 0))
    g = s.add_request(2, 4)
    s.abort(g)
    for who in (g, 7):
        with pytest.raises(Rejected, match="ended or is unknown"):
            s.rerank(who, 0)
