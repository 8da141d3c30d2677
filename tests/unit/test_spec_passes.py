"""The specification on concrete passes, commits and announcements: good ones break no clause, every clause is broken by one."""

import attrs
import pytest
from broken_states import broken, put

from kvproof import Config, Scheduler, Status
from kvproof.core import groups
from kvproof.spec.check import commit_violations, engine_violations, head, lists, pass_violations
from kvproof.spec.passes import of_commit, of_pass
from kvproof.spec.readings import Default, Has
from kvproof.spec.told import Told
from kvproof.spec.view import View
from kvproof.store.draft import Draft


def passes():
    """(before, plan, after) of nine passes: 0 prefills, 1 copies, 4 swaps group 1 out, 8 ends group 0 and swaps group 1 in."""
    config = Config(num_gpu_blocks=9, num_cpu_blocks=6, block_size=2, max_num_seqs=4, max_num_batched_tokens=8, max_model_len=64)
    s = Scheduler(config, "swap")
    s.add_request(3, 9)
    s.add_request(5, 20)
    out = []
    for k in range(9):
        before = s.state
        out.append((before, s.schedule(), s.state))
        s.commit()
        if k == 0:
            s.fork(0)
        if k == 1:
            s.add_request(12, 10)
    return out


def limited():
    """(before, plan, after) of passes: 4 preempts group 1, which may be once, for group 0; 7 brings it back."""
    config = Config(num_gpu_blocks=6, num_cpu_blocks=6, block_size=2, max_num_seqs=4, max_num_batched_tokens=8)
    s = Scheduler(attrs.evolve(config, max_preemptions_per_request=1), "swap")
    s.add_request(3, 7)
    s.add_request(3, 5)
    out = []
    while s.unfinished:
        before = s.state
        out.append((before, s.schedule(), s.state))
        s.commit()
    return out


PASSES, LIMITED = passes(), limited()
PREFILL, COPY, DECODE, OUT, IN = (PASSES[k] for k in (0, 1, 3, 4, 8))
ONCE_OUT, BACK = (LIMITED[k] for k in (4, 7))


def test_the_passes_that_are_broken_below_are_what_they_say():
    assert [p.epoch for _, p, _ in PASSES] == list(range(1, 10))
    assert PREFILL[1].prefills == ((0, 0, 3), (1, 0, 5)) and COPY[1].copy == ((1, 5),)
    assert DECODE[1].decodes == (0, 1) and OUT[1].decodes == (0,) and DECODE[2].gpu_free == 0
    assert OUT[1].preempted == ((1, "swap"),) and OUT[1].swap_out == ((2, 9), (3, 10), (4, 11), (8, 12))
    assert OUT[1].slots == ((0, 0, 3, 8), (0, 1, 3, 4))
    assert IN[1].ended == ((0, Status.FINISHED_CAPACITY),) and IN[1].swap_in == ((9, 0), (10, 1), (11, 7), (12, 4))
    assert [pass_violations(b, a, p) for b, p, a in PASSES] == [[]] * 9
    assert ONCE_OUT[1].preempted == ((1, "swap"),) and ONCE_OUT[2].preemptions[1] == 1 and BACK[1].resumed == (1,)
    assert [pass_violations(b, a, p) for b, p, a in LIMITED] == [[]] * len(LIMITED)


LEGAL, NAMED = "status_graph: legal moves", "status_graph: the plan names every move"
KEPT, CONTENTS = "recompute_keeps_output: tokens are kept", "swap_preserves_view: contents are kept"
SOURCES, TARGETS = "no_hazard_ordered: copy sources stay", "no_hazard_ordered: copy targets stay"
INS, OUTS = "no_hazard_ordered: swap-in targets stay", "no_hazard_ordered: swap-out targets stay"
BOTH, NONE = "no_swap_both_ways: no plan swaps out and in", "no_swap_both_ways: none means none"
MAP_OUT, MAP_IN = "swap_map_bijective: out", "swap_map_bijective: in"
ONCE = "copy_target_exclusive: referenced once, by its writer"
FRESH, APART = "copy_target_exclusive: fresh", "no_hazard_ordered: no target is a source"
VICTIM, LAST = "victim_not_in_plan: nothing scheduled, admitted, resumed", "victim_is_last: none below keeps running"
SUM, LIMITS = "budget_exact: the sum over the plan", "budget_exact: never above the limits"
AFTERWARDS, SLOTS = "no_swap_both_ways: nothing comes in when somebody went", "table_length: every slot to be written exists"
LINE, REFUSED = "head_advances: nobody comes in past another", "infeasible_refused: only who cannot be served"
DEADLOCK, HEAD = "no_deadlock: a token or an end", "infeasible_refused: who cannot be served does not wait"
TWICE_OUT, TWICE_IN, TWICE_COPIED = (
    f"{theorem}: the targets of {name} differ"
    for theorem, name in (
        ("swap_map_bijective", "swap_out"),
        ("swap_map_bijective", "swap_in"),
        ("copy_target_exclusive", "copy"),
    )
)
COUNTS, STAYS = (
    "bounded_preemptions: each preemption counts",
    "bounded_preemptions: who was preempted as often as it may be runs on",
)
GOES_TWICE, FILLED_TWICE = "victim_not_in_plan: nobody goes twice", "budget_exact: nobody is prefilled twice"


def same(c):
    """No edit."""


def exchange(c):
    """Two blocks of one table in the wrong order."""
    put(c, 1, 1, 0, 7, 4, 2)


# (pass, changes of the plan, edit of the state after, edit of the state before, clauses that fail: the first is aimed at)
BREAKS = {
    "waits and has ended": (DECODE, {}, lambda c: c.status.update({2: 4}), same, [LEGAL, NAMED]),
    "a move that the plan does not name": (OUT, {"preempted": ()}, same, same, [NAMED, OUTS, MAP_OUT, COUNTS]),
    "a victim that runs": (DECODE, {"preempted": ((1, "swap"),)}, same, same, [NAMED, VICTIM, LAST, COUNTS]),
    "a token is lost": (OUT, {}, lambda c: c.length.update({1: 7}), same, [KEPT]),
    "a token is counted twice": (DECODE, {}, lambda c: c.born.update({1: -20}), same, [KEPT]),
    "blocks in the wrong order": (IN, {}, exchange, same, [CONTENTS, MAP_IN]),
    "a tail without its copy": (COPY, {"copy": ()}, same, same, [CONTENTS]),
    "a copy from a free block": (COPY, {"copy": ((1, 5), (8, 6))}, same, same, [SOURCES, TARGETS, ONCE]),
    "a copy into a free block": (COPY, {"copy": ((1, 5), (1, 6))}, same, same, [TARGETS, ONCE]),
    "a swap-in into a free block": (IN, {"swap_in": (*IN[1].swap_in, (13, 8))}, same, same, [INS, MAP_IN]),
    "a swap-out into a free block": (OUT, {"swap_out": (*OUT[1].swap_out, (5, 13))}, same, same, [OUTS, MAP_OUT]),
    "both ways": (OUT, {"swap_in": ((13, 5),)}, same, same, [BOTH, MAP_IN, AFTERWARDS, CONTENTS]),
    "one source for two": (OUT, {"swap_out": ((2, 9), (2, 10), (4, 11), (8, 12))}, same, same, [MAP_OUT, CONTENTS]),
    "one host source for two": (IN, {"swap_in": ((9, 0), (9, 1), (11, 7), (12, 4))}, same, same, [MAP_IN, CONTENTS]),
    "a target that was used": (OUT, {}, same, lambda c: (put(c, 2, 12), c.cpu.remove(12)), [MAP_OUT]),
    "a copy target that was used": (COPY, {}, same, lambda c: (put(c, 7, 5), c.gpu.remove(5)), [FRESH]),
    "a copy that two refer to": (COPY, {}, lambda c: c.refs.update({5: 2}), same, [ONCE]),
    "a copy target that is a source": (COPY, {"copy": ((1, 5), (5, 6))}, same, same, [APART, TARGETS, ONCE]),
    "a victim gets a slot": (OUT, {"slots": (*OUT[1].slots, (1, 0, 0, 0))}, same, same, [VICTIM]),
    "a victim that ranks ahead": (OUT, {}, same, lambda c: c.key.update({0: 1, 1: 0}), [LAST]),
    "admitted without a piece": (PREFILL, {"prefills": ((0, 0, 3),)}, same, same, [NAMED]),
    "a piece in a decode": (DECODE, {"prefills": ((0, 0, 1),)}, same, same, [SUM]),
    "more than the budget": (PREFILL, {"prefills": ((0, 0, 3), (1, 0, 6))}, same, same, [LIMITS]),
    "in when somebody went": (IN, {"preempted": ((0, "swap"),)}, same, same, [AFTERWARDS, NAMED, VICTIM, GOES_TWICE]),
    "who decodes is still due": (DECODE, {}, lambda c: c.alarm.update({1: c.clock}), same, [SLOTS]),
    "resumed past who waits": (IN, {}, same, lambda c: c.key.update({2: -1}), [LINE]),
    "ended without need": (DECODE, {"ended": ((1, Status.FINISHED_CAPACITY),)}, lambda c: c.status.pop(1), same, [REFUSED]),
    "refused without need": (OUT, {"ended": ((2, Status.FINISHED_IGNORED),)}, lambda c: c.status.pop(2), same, [REFUSED]),
    "nothing happens": (DECODE, {"running": ()}, same, same, [DEADLOCK, SUM]),
    "who never fits waits": (PREFILL, {}, lambda c: (c.waiting.append(5), c.length.update({5: 99})), same, [HEAD]),
    "one target for two": (OUT, {"swap_out": (*OUT[1].swap_out, (8, 12))}, same, same, [TWICE_OUT]),
    "one GPU target for two": (IN, {"swap_in": (*IN[1].swap_in, (12, 4))}, same, same, [TWICE_IN]),
    "one copy target for two": (COPY, {"copy": ((1, 5), (1, 5))}, same, same, [TWICE_COPIED]),
    "a preemption that does not count": (ONCE_OUT, {}, lambda c: c.preemptions.update({1: 0}), same, [COUNTS]),
    "counted without a preemption": (BACK, {}, lambda c: c.preemptions.update({1: 2}), same, [COUNTS]),
    "preempted once too often": (
        ONCE_OUT,
        {},
        lambda c: c.preemptions.update({1: 2}),
        lambda c: c.preemptions.update({1: 1}),
        [STAYS],
    ),
    "a victim twice": (OUT, {"preempted": ((1, "swap"), (1, "swap"))}, same, same, [GOES_TWICE]),
    "a piece twice": (PREFILL, {"prefills": ((0, 0, 1), (0, 1, 2), (1, 0, 5))}, same, same, [FILLED_TWICE]),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_broken_pass_breaks_its_clause_and_those_that_follow(what):
    (before, plan, after), fields, edit_after, edit_before, clauses = BREAKS[what]
    found = pass_violations(broken(before, edit_before), broken(after, edit_after), attrs.evolve(plan, **fields))
    assert set(found) == set(clauses)


def test_a_budget_that_is_not_given_back_is_seen_where_the_draft_is_known():
    before, plan, after = OUT
    assert pass_violations(before, after, plan, 2) == [] and pass_violations(before, after, plan, 3) == [SUM]


def test_every_clause_of_a_pass_is_broken_by_one_made_for_it():
    (before, plan, after), aimed_at = PREFILL, {clauses[0] for *_, clauses in BREAKS.values()}
    e = View(before)
    d = View(after, plan, before=e)
    named = {name for name, _ in (*of_pass(d, e), *lists(plan), *head(d, e))}
    assert named - aimed_at == {NONE}  # true of any list of pairs: said for the proofs, where numbers and maps are apart
    assert aimed_at - named == {HEAD}  # only said of a pass that leaves somebody waiting


# (edit of the state after the commit, groups with results): commits of the decode step in flight that are wrong
COUNTED = "recompute_keeps_output: results are counted once"
KEPT = "table_length: a lost result costs no slot"
COMMITS = {
    "nobody advances": (lambda c: setattr(c, "clock", c.clock - 1), None),
    "one advances twice": (lambda c: c.born.update({0: c.born[0] - 1}), None),
    "who has no result advances": (same, (0,)),
    "who waits turns up running": (lambda c: c.status.update({2: Status.RUNNING}), None),
}


@pytest.mark.parametrize("what", COMMITS)
def test_a_broken_commit_is_found(what):
    edit, got = COMMITS[what]
    before, after = DECODE[2], OUT[0]
    assert commit_violations(before, after, None) == []
    assert commit_violations(before, broken(after, edit), got) == [COUNTED]


def test_the_first_token_counts_only_with_its_result():
    before = PREFILL[2]
    d = Draft(before)
    d.born[1] -= 1  # what `advance` does
    after = d.close()
    assert commit_violations(before, after, (1,)) == [] and commit_violations(before, after, None) == [COUNTED]
    assert [name for name, _ in of_commit(View(after), View(before), Has(()), Default({}, 0))] == [COUNTED, KEPT]


ANNOUNCED = "plan_reports_tables: announced = owned"


def told_until(k):
    """An engine that was told of the first k passes and of the fork between the first two."""
    told = Told()
    for n, (_, plan, _) in enumerate(PASSES[:k]):
        if n == 1:
            told.forked(0, 0, 1)
        told.plan(plan)
    return told


def test_the_engine_knows_the_tables_after_every_pass():
    assert [engine_violations(after, told_until(k + 1)) for k, (_, _, after) in enumerate(PASSES)] == [[]] * 9


@pytest.mark.parametrize(
    "fault",
    [
        lambda told: told.rows[0][1].pop(),
        lambda told: told.rows[0][0].append(8),
        lambda told: told.rows[0][0].reverse(),
        lambda told: told.rows.update({1: {0: [9]}}),
        lambda told: told.rows.pop(0),
        lambda told: told.finished(0, 1),
        lambda told: told.ended(0),
    ],
)
def test_an_engine_that_was_told_something_else_is_found(fault):
    told = told_until(5)
    other = told.copy()
    fault(other)
    assert engine_violations(OUT[2], other) == [ANNOUNCED]
    assert engine_violations(OUT[2], told) == []  # the copy was a copy


def test_a_slot_that_leaves_a_hole_is_not_understood():
    told = told_until(3)
    told.plan(attrs.evolve(DECODE[1], slots=((1, 0, 7, 2),)))
    assert told.rows[1][0] == told_until(3).rows[1][0]


def test_what_aborts_and_finished_sequences_leave_is_known():
    told, before = told_until(4), DECODE[2]
    d = Draft(before)
    groups.finish_sequence(d, 0, 1)
    groups.abort(d, 1)
    after = d.close()
    told.finished(0, 1)
    assert engine_violations(after, told) == [ANNOUNCED]
    told.ended(1)
    assert engine_violations(after, told) == []
    told.finished(0, 0)
    assert told.rows == {}
