"""The further examples: several sequences, and lookahead slots. Whatever is preempted, the tokens are the same. And an order."""

import importlib
import sys
from pathlib import Path
from random import Random

import pytest

from kvproof import Config, Scheduler

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    return importlib.import_module


@pytest.fixture(autouse=True)
def forget():
    yield
    for name in ("ageing", "embed", "groups", "lookahead", "urgency"):
        sys.modules.pop(name, None)


ROOMY = {"num_gpu_blocks": 200, "num_cpu_blocks": 0, "block_size": 2, "max_num_seqs": 12}


@pytest.mark.parametrize("mode", [None, "recompute", "swap"])
@pytest.mark.parametrize("sizes", [(16, 8), (20, 40), (16, 0), (24, 12)])
def test_siblings_have_the_same_tokens_in_any_pool(mode, sizes, example, capsys):
    groups = example("groups")
    right = groups.serve(Config(**ROOMY))
    calm = capsys.readouterr().out
    assert calm.count("preempted 0 times") == 4 and len(right) == 12 and len({tuple(t) for t in right.values()}) == 12
    gpu, host = sizes
    assert groups.serve(Config(**ROOMY | {"num_gpu_blocks": gpu, "num_cpu_blocks": host}), mode) == right
    assert capsys.readouterr().out != calm


def test_siblings_are_recomputed_in_pieces(example, capsys):
    groups = example("groups")
    right = groups.serve(Config(**ROOMY))
    cut = Config(**ROOMY | {"num_gpu_blocks": 16, "max_num_batched_tokens": 12, "enable_chunked_prefill": True})
    assert groups.serve(cut, "recompute") == right


@pytest.mark.parametrize("slots", [1, 3, 9])
@pytest.mark.parametrize("blocks", [7, 12, 40])
def test_guesses_save_steps_and_change_no_token(slots, blocks, example, capsys):
    lookahead = example("lookahead")
    sizes = {"num_gpu_blocks": blocks, "num_cpu_blocks": 0, "block_size": 4}
    right, steps = lookahead.serve(Config(**sizes))
    tokens, fewer = lookahead.serve(Config(**sizes, num_lookahead_slots=slots))
    assert tokens == right and [len(t) for t in right.values()] == [24, 25, 26]
    assert fewer < steps


def test_priorities_that_age_let_everybody_come_in(example):
    ageing = example("ageing")
    assert ageing.serve("priority") == -1
    assert 40 < ageing.serve(ageing.Ageing()) <= 60 and 20 < ageing.serve(ageing.Ageing(every=5)) <= 30


def test_a_package_may_offer_it(example, monkeypatch):
    """By name, through the entry point of the page about policies."""
    from importlib import metadata

    ageing = example("ageing")
    point = metadata.EntryPoint(name="ageing", group="kvproof.policies", value="ageing:Ageing")
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point] if group == point.group else [])
    assert 40 < ageing.serve("ageing") <= 60


@pytest.mark.parametrize(("module", "order", "patient", "urgent"), [("ageing", "Ageing", 9, 0), ("urgency", "Urgency", 30, 1)])
def test_who_is_preempted_ages_again(module, order, patient, urgent, example):
    """It came in early, and its alarm rang while it ran."""
    sizes = Config(num_gpu_blocks=8, num_cpu_blocks=0, block_size=4, max_num_seqs=1)
    s = Scheduler(sizes, "recompute", getattr(example(module), order)(3), check=True)
    first = s.add_request(prompt_tokens=4, max_tokens=20, priority=patient)
    for _ in range(8):
        s.schedule()
        s.commit()
    s.preempt(first)
    for _ in range(60):
        s.add_request(prompt_tokens=4, max_tokens=1, priority=urgent)
        s.schedule()
        s.commit()
    assert first not in (*s.state.waiting[1], *s.state.running[1])


def test_it_keeps_its_word(example):
    """Urgent ones come without end, and the specification is evaluated after every call."""
    ageing = example("ageing")
    scheduler = Scheduler(
        Config(num_gpu_blocks=6, num_cpu_blocks=0, block_size=4, max_num_seqs=2), policy=ageing.Ageing(3), check=True
    )
    for k in range(120):
        scheduler.add_request(prompt_tokens=1 + k % 7, max_tokens=1 + k % 5, priority=9 * (k % 9 == 0))
        scheduler.schedule()
        scheduler.commit()
    while scheduler.unfinished:
        scheduler.schedule()
        scheduler.commit()


def test_who_is_late_comes_in_and_the_urgent_ones_are_in_time(example):
    urgency = example("urgency")
    assert urgency.serve("priority") == (-1, 0)
    assert urgency.serve(urgency.Urgency()) == (27, 0)


@pytest.mark.parametrize("seed", range(20))
def test_every_request_ends_within_the_farthest_target_and_a_bound(seed, example):
    """W09: after the farthest target all earlier arrivals are late too: nobody is ranked before it any more, the bound holds."""
    r, farthest = Random(seed), 12
    sizes = Config(num_gpu_blocks=r.randrange(3, 7), num_cpu_blocks=4, block_size=2, max_num_seqs=3, max_model_len=12)
    s = Scheduler(sizes, (None, "recompute", "swap", "auto")[seed % 4], example("urgency").Urgency(farthest), check=True)
    settled: dict[int, int] = {}
    due: dict[int, int] = {}
    now = preempted = 0
    while now < 60 or s.unfinished:
        for _ in range(r.randrange(3) if now < 60 else 0):
            target = r.choice((1, 3, farthest))
            settled[s.add_request(r.randrange(1, 7), r.randrange(1, 6), priority=target)] = now + farthest
        preempted += len(s.schedule().preempted)
        s.commit()
        now += 1
        unfinished = {*s.state.waiting[1], *s.state.running[1], *s.state.swapped[1]}
        due |= {g: now + s.ends_within(g) for g in unfinished if settled[g] == now - 1}
        assert [g for g in unfinished if due.get(g, now) < now] == []
    assert len(due) > 10 and (preempted or seed % 4 == 3)
