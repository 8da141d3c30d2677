"""Fast-forward in the simulator: the same figures, to the last bit, with fewer passes made one by one."""

import json

import pytest

from kvproof.core.config import Config
from kvproof.scheduler import Scheduler
from kvproof.sim.cost import Roofline
from kvproof.sim.engine import Simulation
from kvproof.sim.generate import azure_like
from kvproof.sim.hardware import DEVICES, MODELS


def figures(blocks: int, fast_forward: bool, mode: str = "swap", **options) -> str:
    config = Config(
        num_gpu_blocks=blocks, num_cpu_blocks=blocks, max_num_seqs=64, max_num_batched_tokens=16384, max_model_len=16384
    )
    cost = Roofline(MODELS["llama-3.1-8b"], DEVICES["h100"], 16)
    run = Simulation(azure_like(50, 4.0), config, cost, mode, fast_forward=fast_forward, **options).run()
    assert not run.failed
    return json.dumps(run.summary(cost.block_bytes))


@pytest.mark.parametrize("blocks", [900, 20_000])
@pytest.mark.parametrize(
    "options", [{}, {"check_every": 150}, {"policy": "srpt"}, {"mode": "auto"}, {"mode": None, "baseline": "reserve"}]
)
def test_the_figures_are_the_same(blocks, options):
    assert figures(blocks, True, **options) == figures(blocks, False, **options)


def test_most_passes_are_made_several_at_once(monkeypatch):
    single = []
    real = Scheduler.schedule
    monkeypatch.setattr(Scheduler, "schedule", lambda self, now=0: single.append(1) or real(self, now))
    slow = json.loads(figures(20_000, False))
    one_by_one = len(single)
    single.clear()
    assert json.loads(figures(20_000, True)) == slow
    assert one_by_one == slow["steps"]["total"] and len(single) < one_by_one / 2
