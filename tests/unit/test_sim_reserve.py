"""The baseline that reserves to completion: nobody is preempted, first come first served, no block promised twice."""

import random
from typing import Any

import pytest

from kvproof import Config
from kvproof.core.config import ConfigError
from kvproof.sim.baselines import Reserve, blocks_for_life
from kvproof.sim.cost import Roofline
from kvproof.sim.engine import Simulation
from kvproof.sim.generate import azure_like
from kvproof.sim.hardware import DEVICES, MODELS
from kvproof.sim.metrics import Metrics
from kvproof.sim.traces import Trace
from kvproof.store.plan import Plan

COST = Roofline(MODELS["llama-3.1-8b"], DEVICES["h100"], 4)


def config_of(**fields: Any) -> Config:
    return Config(**({"num_gpu_blocks": 30, "num_cpu_blocks": 20, "block_size": 4, "max_model_len": 128} | fields))


def load(seed: int) -> Trace:
    draw = random.Random(seed)
    trace = Trace("random", "hand")
    now_s = 0.0
    for _ in range(50):
        trace.add(now_s, draw.randint(1, 50), draw.randint(1, 50))
        now_s += draw.expovariate(30)
    return trace


class Watched(Simulation):
    """Notes in which order requests begin, and looks at the promises."""

    order: list[int]

    def _pass_time(self, plan: Plan) -> bool:
        gate = self.scheduler
        assert isinstance(gate, Reserve)
        self.order.extend(self.live[g].row for g, first, _ in plan.prefills if first == 0)
        lives = [
            blocks_for_life(self.trace.prompt_tokens[r.row], r.output_tokens, self.config.block_size)
            for g, r in self.live.items()
            if g in gate._promised
        ]
        assert gate.unpromised == self.config.num_gpu_blocks - sum(lives) >= 0
        if gate._queue:  # the head does not fit, and nobody behind it is handed on
            _, prompt_tokens, output_tokens = gate._queue[0]
            assert blocks_for_life(prompt_tokens, output_tokens, self.config.block_size) > gate.unpromised
        return super()._pass_time(plan)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("watermark", [0, 2])
def test_nobody_is_preempted_and_nobody_is_skipped(seed: int, watermark: int) -> None:
    trace = load(seed)
    simulation = Watched(trace, config_of(watermark_blocks=watermark), COST, check_every=5, baseline="reserve")
    simulation.order = []
    metrics = simulation.run()
    assert not metrics.failed, metrics.violations
    assert (metrics.finished, metrics.preempted, metrics.recomputes + metrics.swaps) == (50, 0, 0)
    assert simulation.order == sorted(simulation.order) and len(simulation.order) == 50
    assert Simulation(trace, config_of(), COST, check_every=0).run().preempted > 0


def test_whole_pools_can_be_promised() -> None:
    trace = Trace("hand", "hand")
    for _ in range(3):
        trace.add(0.0, 100, 21)  # 30 blocks each
    metrics = Simulation(trace, config_of(), COST, check_every=1, baseline="reserve").run()
    assert not metrics.failed and (metrics.finished, metrics.running_max, metrics.gpu_free_min) == (3, 1, 0)


def test_no_watermark_keeps_back_what_is_promised() -> None:
    trace = Trace("hand", "hand")
    for _ in range(2):
        trace.add(0.0, 60, 1)  # 15 blocks each, at once
    metrics = Simulation(trace, config_of(watermark_blocks=2), COST, check_every=1, baseline="reserve").run()
    assert (metrics.finished, metrics.prefill_steps, metrics.gpu_free_min) == (2, 1, 0)


def test_it_admits_fewer_at_once() -> None:
    def simulate(baseline: str | None) -> Metrics:
        sizes = {"num_gpu_blocks": 1000, "block_size": 16, "max_model_len": 131_072, "max_num_batched_tokens": 131_072}
        return Simulation(azure_like(150, 9, 1), config_of(**sizes), COST, check_every=0, baseline=baseline).run()

    reserve, kvproof = simulate("reserve"), simulate(None)
    assert reserve.finished == kvproof.finished == 150 and reserve.output_tokens == kvproof.output_tokens
    assert reserve.running_max < kvproof.running_max


def test_a_preemption_would_be_a_violation() -> None:
    trace = Trace("hand", "hand")
    for _ in range(2):
        trace.add(0.0, 7, 6)
    simulation = Simulation(trace, config_of(num_gpu_blocks=4), COST, check_every=1, baseline="reserve")
    gate = simulation.scheduler
    assert isinstance(gate, Reserve)
    gate.unpromised = 99  # promises more than there is
    metrics = simulation.run()
    assert any("a baseline without preemption has preempted" in violation for violation in metrics.violations)


@pytest.mark.parametrize(
    ("fields", "mode", "baseline", "message"),
    [
        ({}, "swap", "reserve", "baseline reserve: preempts nobody"),
        ({"vllm_v0": True}, None, "reserve", "goes with the profile kvproof only"),
        ({}, None, "hope", "baseline: must be one of reserve, got 'hope'"),
    ],
)
def test_what_means_nothing_is_refused(fields: dict[str, Any], mode: str | None, baseline: str, message: str) -> None:
    fields = {"max_num_batched_tokens": 4096} | fields
    with pytest.raises(ConfigError, match=message):
        Simulation(load(0), config_of(**fields), COST, mode, baseline=baseline)
