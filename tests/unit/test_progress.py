"""Bounds: who ends within how many passes. The clauses they rest on can fail."""

import json
import re

import pytest
from pools import config

from kvproof import Rejected, Scheduler
from kvproof.bounds import bounds
from kvproof.fuzz import progress as adversary
from kvproof.spec import progress
from kvproof.spec.view import View


def test_the_first_that_runs_needs_a_pass_for_each_token_and_one_between():
    s = Scheduler(config(8, block_size=2))
    g = s.add_request(3, 4)
    assert s.ends_within(g) == 2 * 7 + 2  # whole life: prompt and output, and coming in
    s.schedule()
    s.commit()
    assert s.ends_within(g) == 2 * 3 - 1  # three tokens to go, and the next step is one of decodes
    passes = 0
    while s.unfinished:
        s.schedule()
        s.commit()
        passes += 1
    assert passes == 3


def test_the_bounds_of_those_behind_add_up_in_policy_order():
    s = Scheduler(config(8, block_size=2))
    a, b, c = (s.add_request(3, 4) for _ in range(3))
    assert bounds(s.state) == {a: 16, b: 32, c: 48}
    s.rerank(c, -1)
    assert bounds(s.state) == {c: 16, a: 32, b: 48}
    assert s.ends_within(a) == 32


def test_policies_that_name_victims_have_wider_bounds():
    s = Scheduler(config(8, block_size=2, max_num_seqs=3, choose_victims=True))
    a, b = s.add_request(3, 4), s.add_request(3, 4)
    assert bounds(s.state) == {a: 16, b: 32 + 2 * 3 * 65}


def test_a_limit_gives_everybody_as_many_lives_as_it_may_be_preempted_again():
    s = Scheduler(config(5, block_size=2, max_num_seqs=3, max_preemptions_per_request=1))
    a, b = s.add_request(3, 4), s.add_request(3, 7)
    life, others = {a: 16, b: 22}, 2 * 3 * 65
    assert bounds(s.state) == {a: 2 * life[a] + others, b: 2 * life[a] + others + 2 * (life[b] + others)}
    while s.state.running[1] != (a,):
        s.schedule()
        s.commit()
    assert s.state.preemptions[b] == 1  # one life is left
    assert s.ends_within(b) - s.ends_within(a) == life[b] + others
    s = Scheduler(config(5, block_size=2, max_num_seqs=3, max_preemptions_per_request=0))
    a = s.add_request(3, 4)
    assert s.ends_within(a) == 16


def test_who_runs_before_its_turn_counts():
    """It was preempted by force while another ran on: that one first has to end, or make way."""
    s = Scheduler(config(8, block_size=2, max_num_seqs=2))
    a, b = s.add_request(3, 4), s.add_request(3, 4)
    s.schedule()
    s.commit()
    s.preempt(a, "recompute")
    s.schedule()
    s.commit()
    assert s.state.running[1] == (b,) and s.state.waiting[1] == (a,)
    assert bounds(s.state) == {a: (2 * 2 - 0) + 16, b: (2 * 2 - 0) + 16 + 16}


def test_of_whom_there_is_no_bound():
    s = Scheduler(config(8))
    g = s.add_request(3, 4)
    s.abort(g)
    for who in (g, 5, -1):
        with pytest.raises(Rejected):
            s.ends_within(who)
    v0 = Scheduler(config(8, vllm_v0=True, max_num_seqs=4, max_num_batched_tokens=64))
    with pytest.raises(Rejected, match="vllm_v0 may hang"):
        v0.ends_within(v0.add_request(3, 4))


def test_every_request_of_adversarial_workloads_ends_within_its_bound(capsys):
    assert adversary.main(["--workloads", "60"]) == 0
    said = capsys.readouterr().out
    assert "every request ended within its bound" in said
    _, requests, _, preemptions, by_cost = map(int, re.findall(r"\d+", said.split(":")[0]))
    assert 3 * preemptions > requests and by_cost > 50


@pytest.mark.parametrize("fault", ["passes for the output alone", "nobody runs before its turn"])
def test_a_bound_that_is_too_small_is_noticed(monkeypatch, capsys, fault):
    real = adversary.bounds

    def short(state):
        if fault == "nobody runs before its turn":
            line = state.waiting[1] + state.swapped[1]
            ahead = [g for g in state.running[1] if line and state.key[g] > min(state.key[h] for h in line)]
            return {g: n - 2 * sum(state.limit[h] for h in ahead) for g, n in real(state).items()}
        return {g: n // 8 for g, n in real(state).items()}

    monkeypatch.setattr(adversary, "bounds", short)
    assert adversary.main(["--workloads", "60"]) == 1
    said = capsys.readouterr().out
    assert "bound of" in said or "has not ended" in said


def rounds():
    """(before, plan, in flight, after) of the passes of a run under pressure, with prompts that are cut."""
    s = Scheduler(config(8, 6, block_size=2, max_num_seqs=4, max_num_batched_tokens=6))
    for prompt in (3, 9, 2, 7, 4):
        s.add_request(prompt, 7)
    out = []
    while s.unfinished:
        e = s.state
        plan = s.schedule()
        m = s.state
        s.commit()
        out.append((e, plan, m, s.state))
    return out


def head(state):
    return state.running[1][0] if state.running[1] else -1


def test_the_first_that_runs_comes_nearer_to_its_end_in_each_pass():
    seen = 0
    for e, _, m, d in rounds():
        before = View(e)
        flight, after = View(m, before=before), View(d, before=before)
        seen += bool(progress.first_running(before, head(e)))
        assert progress.head_falls(after, flight, before, head(e))[1]
        assert progress.nobody_falls_back(after, before)[1]
        same = View(e, before=before)
        if progress.first_running(before, head(e)) and progress.first_running(flight, head(e)):
            assert not progress.head_falls(same, flight, before, head(e))[1]  # it stands still
    assert seen > 20


# (what is wrong in the state after a pass, the clause that says so)
WRONG = {
    "the first is preempted": "the first that runs is not preempted",
    "what was computed is lost": "who runs on keeps",
    "somebody is passed in line": "nobody comes in past another",
    "the first in line stays": "if nothing runs the first in line comes in",
    "the first prefill stands still": "the first prefill goes on",
    "prefills twice": "steps take turns",
}


def wrong(what, e, plan, d):
    """The pass, told wrongly: (view before, view after, first that runs, first in line)."""
    h, line = head(e), min((*e.waiting[1][:1], *e.swapped[1][:1]), key=lambda g: e.key[g], default=-1)
    before, after = View(e), View(d, plan, before=View(e))
    if what == "the first is preempted" and len(d.running[1]) > 1 and h == d.running[1][0]:
        after.status[h] = 1
        return before, after, h, line
    if what == "what was computed is lost" and h in d.running[1] and e.computed[h] > 0:
        after.computed[h] = 0
        return before, after, h, line
    come = [g for g in d.running[1] if g in e.waiting[1]]
    stays = [g for g in d.waiting[1] if g in e.waiting[1]]
    if what == "somebody is passed in line" and come and stays:
        before.key[stays[0]] = before.key[come[0]] - 1
        return before, after, h, line
    if what == "the first in line stays" and not e.running[1] and line in d.running[1]:
        after.status[line] = e.status[line]
        return before, after, h, line
    if what == "the first prefill stands still" and h in e.prefilling[1] and d.prefilled and h in d.running[1]:
        after.computed[h] = e.computed[h]
        return before, after, h, line
    if what == "prefills twice" and h in d.running[1] and h not in e.prefilling[1] and d.prefilled:
        before.prefilled = True
        return before, after, h, line
    return None


@pytest.mark.parametrize("what", WRONG)
def test_a_pass_that_makes_no_progress_is_noticed(what):
    seen = 0
    for e, plan, d, _ in rounds():
        right = progress.of_pass(View(d, plan, before=View(e)), View(e), head(e), -1)
        assert all(true for _, true in right)
        told = wrong(what, e, plan, d)
        if told is not None:
            before, after, h, line = told
            failed = [name for name, true in progress.of_pass(after, before, h, line) if not true]
            assert any(WRONG[what] in name for name in failed), failed
            seen += 1
    assert seen


def test_replay_prints_bounds(scenario, write, program):
    status, out, _ = program("replay", write(scenario), "--bounds")
    assert status == 0 and json.loads(out.splitlines()[0])["ends_within"] == {"a": 16, "b": 42}
    scenario["config"]["profile"] = "vllm_v0"
    status, _, err = program("replay", write(scenario), "--bounds")
    assert status == 2 and "--bounds: profile vllm_v0 may hang" in err
