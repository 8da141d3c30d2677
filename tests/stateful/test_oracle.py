"""Each check of what the engine knows can fail: a true story, told wrong in one place."""

import attrs
import pytest

from kvproof.core.status import Status
from kvproof.fuzz import between, passes, priorities
from kvproof.fuzz.faults import Fault
from kvproof.fuzz.memory import Ending
from kvproof.fuzz.setup import setup
from kvproof.fuzz.world import World

SIZES = {"num_gpu_blocks": 8, "num_cpu_blocks": 8, "block_size": 2, "max_num_seqs": 4, "max_num_batched_tokens": 20}
STEP = (("schedule", ()), ("commit", ()))


def story(*log, **fields):
    world = World(setup(**{**SIZES, "max_model_len": 40, **fields}))
    for name, arguments in log:
        world.do(name, *arguments)
    return world


TWO = (("add", (3, 9)), ("add", (3, 9, 1, 2)), *STEP, *STEP)


@pytest.mark.parametrize(
    ("edit", "check"),
    [
        (lambda m: m.groups[0].live.append(1), "live sequences of 0"),
        (lambda m: setattr(m.groups[0], "deny", 1), "denials to come of 0"),
        (lambda m: m.model.sequences[0, 0].output.append(7), "tokens of 0"),
        (lambda m: setattr(m.groups[0], "limit", 5), "limit: group 0"),
        (lambda m: setattr(m.groups[1], "seats", 1), "seats of 1"),
        (lambda m: setattr(m.groups[1], "priority", -1), "policy order"),
        (lambda m: m.groups.pop(0), "unfinished groups"),
        (lambda m: m.backend.release(0), "pools of the backend"),
        (lambda m: m.told.ended(0), "announcements"),
    ],
)
def test_between_two_calls(edit, check):
    world = story(*TWO)
    between.check(world.memory, world.state)
    edit(world.memory)
    with pytest.raises(Fault, match=check):
        between.check(world.memory, world.state)


def test_seats_in_use():
    world = story(*TWO)
    with pytest.raises(Fault, match="seats in use"):
        between.seats(world.memory, attrs.evolve(world.state, seqs=1))
    with pytest.raises(Fault, match="seats: 3 are in use of 2"):
        between.seats(world.memory, attrs.evolve(world.state, config=attrs.evolve(world.config, max_num_seqs=2)))


def test_all_back():
    world = story(("add", (3, 9)))
    with pytest.raises(Fault, match="what is left of maps"):
        between.all_back(world.memory, world.state, ("status",))


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"tokens": 9}, "tokens of 0 at its end"),
        ({"outputs": (9,)}, "outputs of 0"),
        ({"prompt": 1}, "prompt of 0"),
        ({"swapped": 1}, "preemptions of 0 at its end"),
        ({"limit": 9}, "tokens of 0 at its limit"),
    ],
)
def test_an_outcome(monkeypatch, change, check):
    seen = []
    monkeypatch.setattr(World, "_check_outcome", lambda world, outcome, ending: seen.append((outcome, ending)))
    world = story(("add", (3, 1)), *STEP)
    monkeypatch.undo()
    (outcome, ending) = seen[0]
    world._check_outcome(outcome, ending)
    if change.keys() & {"tokens", "outputs"}:
        wrong = attrs.evolve(ending, **change)
    else:
        wrong = Ending(attrs.evolve(ending.group, **change), ending.tokens, ending.outputs)
    with pytest.raises(Fault, match=check):
        world._check_outcome(outcome, wrong)
    with pytest.raises(Fault, match="reason: group 0"):
        world._check_outcome(attrs.evolve(outcome, status=Status.FINISHED_CAPACITY), ending)


@pytest.fixture
def last_pass(monkeypatch):
    """last_pass(log, ...) -> the last pass of a story, as it was checked."""

    def run(*log, **fields):
        seen = []
        monkeypatch.setattr(priorities, "check", seen.append)
        story(*log, **fields)
        monkeypatch.undo()
        return seen[-1]

    return run


def replanned(p, **fields):
    """The pass with another plan."""
    return attrs.evolve(p, plan=attrs.evolve(p.plan, **fields))


def test_the_token_budget(last_pass):
    p = last_pass(("add", (9, 9)), ("schedule", ()))
    passes.budget(p, 9)
    with pytest.raises(Fault, match="token budget: 8 where 9"):
        passes.budget(p, 8)
    with pytest.raises(Fault, match="token budget: 21 tokens in a step of 20"):
        passes.budget(replanned(p, prefills=((0, 0, 21),)), 21)
    with pytest.raises(Fault, match="cut prompts"):
        passes.budget(replanned(p, prefills=((0, 0, 8),)), 8)


def test_forced(last_pass):
    p = last_pass(*TWO, ("preempt", (0, "swap")), ("preempt", (1, "recompute")), ("schedule", ()))
    policy = story().scheduler.policy
    passes.force(p, policy)
    assert p.plan.preempted == ((0, "swap"), (1, "recompute"))
    for told in (((0, "recompute"), (1, "recompute")), ((1, "recompute"), (0, "swap")), ((0, "swap"),)):
        with pytest.raises(Fault, match="forced preemption"):
            passes.force(replanned(p, preempted=told), policy)
    with pytest.raises(Fault, match=r"forced preemption: \[\(0, 'swap'\)\] where \[\(0, 'recompute'\)\] is right"):
        passes.force(attrs.evolve(p, before=attrs.evolve(p.before, cpu_free=0)), policy)


def test_what_siblings_recompute(last_pass):
    """Three sequences of 5 tokens in blocks of 2: two have all in common, the third 4 with both."""
    p = last_pass(("add", (3, 9)), *STEP, ("fork", (0, 0)), *STEP, ("fork", (0, 1)), ("schedule", ()))
    assert len(p.m.groups[0].live) == 3 and p.tokens(0) == 5
    assert (p.work(0), p.takes(0)) == (6, 5)


def test_slots_that_nobody_may_wish_for(last_pass):
    p = last_pass(("add", (3, 9)), *STEP, ("schedule", ()), num_lookahead_slots=3)
    passes.wishes(p)
    with pytest.raises(Fault, match="slots: 4 blocks of sequence 0 of group 0"):
        passes.wishes(attrs.evolve(p, before=attrs.evolve(p.before, config=attrs.evolve(p.config, num_lookahead_slots=2))))


def test_needless_victims(last_pass):
    p = last_pass(("add", (4, 9)), ("add", (4, 9)), *STEP, ("schedule", ()), num_gpu_blocks=5)
    assert p.chosen == [1] and priorities.cause(p) == "for blocks"
    passes.needless(p)
    with pytest.raises(Fault, match="needless victim: 1"):
        passes.needless(attrs.evolve(p, before=attrs.evolve(p.before, gpu_free=2)))


def test_delay(last_pass):
    log = (
        ("add", (3, 9)),
        ("schedule", (3,)),
        ("commit", ()),
        ("add", (3, 9)),
        ("schedule", (5,)),
        ("commit", ()),
        ("schedule", ()),
    )
    p = last_pass(*log, delay_factor=1)
    assert p.admitted == [1] and p.now == 8
    passes.delay(p)
    with pytest.raises(Fault, match="delay: 1 is admitted at 6, the first arrived at 3"):
        passes.delay(attrs.evolve(p, now=6))


def test_denials(last_pass):
    p = last_pass(*TWO, ("deny", (0, 1)), ("schedule", ()))
    assert p.chosen == [1] and priorities.cause(p) == "by a denial"
    passes.denials(p)
    with pytest.raises(Fault, match="denials: 2 answers were no, 1 were preempted"):
        passes.denials(attrs.evolve(p, after=attrs.evolve(p.after, denied=1)))
    with pytest.raises(Fault, match="denials to come of who was served"):
        passes.denials(attrs.evolve(p, after=attrs.evolve(p.after, maps=p.before.maps)))
    with pytest.raises(Fault, match="denials: 0 has more to come than before"):
        passes.denials(attrs.evolve(p, before=p.after, after=p.before))


@pytest.mark.parametrize("v0", [False, True])
def test_denials_of_who_is_asked_first(last_pass, v0):
    p = last_pass(*TWO, ("deny", (0, 2)), ("schedule", ()), vllm_v0=v0, max_num_batched_tokens=40)
    passes.denials(p)
    with pytest.raises(Fault, match="denials to come of who was asked first"):
        passes.denials(attrs.evolve(replanned(p, running=()), after=attrs.evolve(p.after, maps=p.before.maps)))


def test_denials_at_random(last_pass):
    p = last_pass(*TWO, ("schedule", ()), artificial_preemption={"probability": 1, "max_count": 1})
    passes.denials(p)
    for before, after in ((2, 2), (1, 0)):
        with pytest.raises(Fault, match="artificial preemption"):
            passes.denials(
                attrs.evolve(p, before=attrs.evolve(p.before, denied=before), after=attrs.evolve(p.after, denied=after))
            )


def test_who_fits_is_admitted(last_pass):
    p = last_pass(("add", (9, 9)), ("add", (9, 9)), *STEP, *STEP, ("schedule", ()))
    passes.fitting(p)
    with pytest.raises(Fault, match="who fits is admitted: group 1"):
        passes.fitting(attrs.evolve(p, after=attrs.evolve(p.after, gpu_free=5)))
    with pytest.raises(Fault, match="infeasible_refused: group 1 of 17 tokens waits"):
        passes.fitting(attrs.evolve(p, lengths={**p.lengths, (1, 0): 17}))


URGENT = (("add", (5, 9)), ("add", (5, 9)), *STEP, *STEP, ("add", (5, 3, 1, None, -1)), ("schedule", ()))


def test_who_is_displaced(last_pass):
    p = last_pass(*URGENT, priority=True)
    assert p.chosen == [1] and priorities.cause(p) == "for priority"
    priorities.check(p)
    with pytest.raises(Fault, match=r"displaced for 2, who rank above it: \[1\]"):
        p.m.groups[1].priority = -2
        priorities.check(p)
    p.m.groups[1].priority = 0
    with pytest.raises(Fault, match=r"\[1\] for 2, the last for nothing"):
        priorities.check(attrs.evolve(p, before=attrs.evolve(p.before, gpu_free=3)))
    with pytest.raises(Fault, match=r"\[1\] for 2, which has no room all the same"):
        priorities.check(attrs.evolve(p, lengths={**p.lengths, (2, 0): 14}))
    p.m.groups[0].priority = -5
    with pytest.raises(Fault, match=r"\[1\] for 0, which was preempted by force"):
        priorities.check(attrs.evolve(replanned(p, prefills=((2, 0, 5),)), forced={0: None}))
    p.m.groups[0].priority = 0
    cut = attrs.evolve(p.config, enable_chunked_prefill=True)
    with pytest.raises(Fault, match=r"\[1\] for 2, which can never come in"):
        priorities.check(attrs.evolve(replanned(p, ended=((2, 8),)), before=attrs.evolve(p.before, config=cut, gpu_free=2)))


def test_for_whom_others_make_way_comes_in(last_pass):
    p = last_pass(*URGENT, priority=True)
    keys, _ = p.after.waiting
    with pytest.raises(Fault, match=r"\[1\] for 2, which does not come in all the same"):
        priorities.check(attrs.evolve(p, after=attrs.evolve(p.after, waiting=(keys, (2, 1)))))


def test_a_group_that_the_host_cannot_take_makes_way_too(last_pass):
    log = (("add", (3, 9)), ("add", (3, 9, 2)), *STEP, *STEP, ("add", (14, 3, 1, None, -9)), ("schedule", ()))
    p = last_pass(*log, priority=True, num_cpu_blocks=0)
    assert (p.plan.preempted, p.admitted) == (((1, "recompute"), (0, "recompute")), [2])


def test_who_is_displaced_by_v0(last_pass):
    log = (("add", (5, 9)), ("add", (5, 9)), *STEP, *STEP, ("add", (14, 3, 1, None, -1)), ("schedule", ()))
    p = last_pass(*log, priority=True, vllm_v0=True, num_gpu_blocks=12, max_num_batched_tokens=40)
    assert p.chosen == [1] and priorities.cause(p) == "for priority"
    p.m.groups[1].priority = -2
    with pytest.raises(Fault, match=r"displaced for 4, who rank above it: \[1\]"):
        priorities.check(p)
