"""Lookahead slots are a wish: with them a pass decides what it would decide without them."""

from random import Random

import pytest

from kvproof import Config, Scheduler
from kvproof.core.errors import Rejected
from kvproof.core.status import Status
from kvproof.spec.check import pass_violations
from kvproof.store.draft import Draft


def config(r: Random) -> dict:
    """Of a pool that is too small for the requests, with a host pool that holds some of them."""
    chunked = r.random() < 0.4
    return {
        "num_gpu_blocks": r.choice((6, 8, 11)),
        "num_cpu_blocks": r.choice((0, 3, 12)),
        "block_size": r.choice((1, 2, 3)),
        "watermark_blocks": r.choice((0, 0, 1)),
        "max_num_seqs": 4,
        "max_num_batched_tokens": r.choice((5, 12)),
        "max_model_len": 16,
        "enable_chunked_prefill": chunked,
        "priority": r.random() < 0.4,
    }


def decided(scheduler: Scheduler, plan) -> tuple:
    """What the pass says, but for the ids of blocks and lookahead slots."""
    state = scheduler.state
    sizes = (len(plan.swap_out), len(plan.swap_in), len(plan.copy))
    queues = (state.waiting[1], state.running[1], state.swapped[1])
    return (plan.scheduled, plan.preempted, plan.ended, plan.resumed, plan.prefills, sizes, queues, state.cpu_free)


def events(r: Random, known: list[int]) -> list[tuple]:
    """What happens between two steps."""
    out: list[tuple] = []
    if r.random() < 0.45:
        seats = r.choice((1, 1, 1, 2))
        out.append(("add_request", r.randint(1, 7), r.randint(2, 9), {"n": seats, "priority": r.choice((0, 0, 1, -1))}))
    if known and r.random() < 0.1:
        out.append(("abort", r.choice(known), {}))
    if known and r.random() < 0.2:
        out.append(("fork", r.choice(known), {}))
    if known and r.random() < 0.1:
        out.append(("finish", r.choice(known), r.choice((0, 1)), {}))
    if known and r.random() < 0.15:
        out.append(("preempt", r.choice(known), r.choice((None, "swap", "recompute")), {}))
    return out


def call(scheduler: Scheduler, name: str, *x) -> object:
    """An event; one that is refused says why."""
    *arguments, options = x
    try:
        return getattr(scheduler, name)(*arguments, **options)
    except Rejected as error:
        return str(error)


@pytest.mark.parametrize("seed", range(150))
def test_a_pass_decides_as_it_would_without_lookahead_slots(seed):
    r = Random(seed)
    base, mode = config(r), r.choice(("recompute", "swap"))
    if not base["priority"]:
        base.pop("priority")
    plain, ahead = (Scheduler(Config(**base, num_lookahead_slots=k), mode) for k in (0, r.choice((1, 3, 6))))
    reserved = 0
    for _ in range(60):
        for name, *x in events(r, list(plain.state.status.to_dict())):
            if name == "add_request" and "priority" not in base:
                x[-1]["priority"] = 0
            assert call(plain, name, *x) == call(ahead, name, *x)
        plans = [scheduler.schedule() for scheduler in (plain, ahead)]
        assert decided(plain, plans[0]) == decided(ahead, plans[1])
        reserved += plain.state.gpu_free - ahead.state.gpu_free
        got = None if r.random() < 0.6 else [(g,) for g in plain.state.status.to_dict() if r.random() < 0.7]
        for scheduler in (plain, ahead):
            scheduler.commit(got)
    assert reserved > 0


def test_what_a_pass_takes_back_is_in_its_plan():
    """Two requests share seven blocks of one slot; the second comes in on slots that the first has reserved."""
    scheduler = Scheduler(
        Config(num_gpu_blocks=7, num_cpu_blocks=0, block_size=1, watermark_blocks=0, max_num_seqs=2, num_lookahead_slots=6)
    )
    first = scheduler.add_request(2, 9)
    for _ in range(2):
        scheduler.schedule()
        scheduler.commit()
    assert scheduler.state.gpu_free == 0
    second = scheduler.add_request(3, 2)
    plan = scheduler.schedule()
    assert plan.trimmed == ((first, 0, 3),) and [g for g, _, _ in plan.prefills] == [second] and plan.preempted == ()
    assert scheduler.state.status[first] == Status.RUNNING and scheduler.state.gpu_free == 1


@pytest.mark.parametrize(("i", "found"), [(0, True), (2, False)])
def test_only_what_is_written_must_stay_where_it_is(i, found):
    """Another block in the place of one that was written breaks the specification; in the place of a wish it does not."""
    scheduler = Scheduler(Config(num_gpu_blocks=9, num_cpu_blocks=0, block_size=2, max_num_seqs=2, num_lookahead_slots=3))
    scheduler.add_request(2, 20)
    for _ in range(2):
        scheduler.schedule()
        scheduler.commit()
    before, plan = scheduler.state, scheduler.schedule()
    d = Draft(scheduler.state)
    spare = next(b for b in range(9) if b not in d.table[0][0])
    d.table.put(0, 0, i, spare)
    contents = "swap_preserves_view: contents are kept"
    assert (contents in pass_violations(before, d.close(), plan)) == found
