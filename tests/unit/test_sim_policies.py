"""Every policy under simulation: orders by name, tenants, and `auto` with costs of the model that the run corrects."""

import random
from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from kvproof import Config
from kvproof.core.config import ConfigError
from kvproof.order import BUILT_IN, PolicyError
from kvproof.policies import costs
from kvproof.policies.auto import Auto
from kvproof.policies.costs import Costs, pairs_of
from kvproof.policies.ranking import Fcfs
from kvproof.scheduler import Scheduler
from kvproof.sim import cost
from kvproof.sim.cost import Piece, Roofline
from kvproof.sim.engine import Simulation
from kvproof.sim.generate import azure_like
from kvproof.sim.hardware import DEVICES, MODELS
from kvproof.sim.meter import meter_of
from kvproof.sim.metrics import Metrics
from kvproof.sim.sweep import VARIANTS
from kvproof.sim.traces import Trace

H100 = Roofline(MODELS["llama-3.1-8b"], DEVICES["h100"])
A100 = Roofline(MODELS["llama-2-13b"], DEVICES["a100"])


@attrs.frozen
class Timed:
    """A step takes `step_s`, to move a block `block_s`."""

    step_s: float
    block_s: float

    def prefill_s(self, pieces: Sequence[Piece]) -> float:
        return self.step_s

    def decode_s(self, sequences: int, kv_tokens: int) -> float:
        return self.step_s

    def swap_s(self, pairs: Sequence[tuple[int, int]]) -> float:
        return self.block_s * len(pairs)


def trace_of(*requests: tuple[float, int, int]) -> Trace:
    trace = Trace("hand", "hand")
    for request in requests:
        trace.add(*request)
    return trace


def config_of(**fields: Any) -> Config:
    return Config(**({"num_gpu_blocks": 4, "num_cpu_blocks": 4, "block_size": 4, "max_model_len": 64} | fields))


SMALL = {"num_gpu_blocks": 30, "num_cpu_blocks": 20, "max_model_len": 128, "watermark_blocks": 1}


def load(seed: int) -> Trace:
    """80 requests of up to 100 tokens, more than a pool of 120 slots can take as they come."""
    draw = random.Random(seed)
    trace = Trace("random", "hand")
    now_s = 0.0
    for _ in range(80):
        trace.add(now_s, draw.randint(1, 50), draw.randint(1, 50))
        now_s += draw.expovariate(100)
    return trace


# --- costs


@pytest.mark.parametrize("roofline", [H100, A100, attrs.evolve(H100, block_size=32, flop_efficiency=0.3)])
def test_costs_are_those_that_the_simulator_charges(roofline: Roofline) -> None:
    known = roofline.costs()
    pair = [(0, 7)]
    assert known.out_s_per_block == known.in_s_per_block == pytest.approx(roofline.swap_s(pair), rel=1e-12)
    long = 100_000  # tokens: the computation decides, not the weights that are read
    head_s = roofline.sample_flop_per_token / roofline.flop_per_s
    charged = roofline.prefill_s([(0, 0, long)]) - roofline.step_overhead_s - head_s
    assert known.recompute_s(long) - known.recompute_overhead_s == pytest.approx(charged, rel=1e-9)
    assert known.recompute_overhead_s == costs.OVERHEAD_SHARE * roofline.step_overhead_s


def test_assumptions_are_shared() -> None:
    for name in ("FLOP_EFFICIENCY", "PCIE_EFFICIENCY", "FRAGMENT_OVERHEAD_S", "STEP_OVERHEAD_S"):
        assert getattr(cost, name) is getattr(costs, name)


def test_auto_begins_with_the_costs_of_the_model() -> None:
    config = config_of(block_size=16)

    def begun(mode: str | None, charged: Any = A100) -> Any:
        return Simulation(trace_of((0.0, 4, 2)), config, charged, mode).scheduler

    assert begun("auto").costs == A100.costs() != Costs()
    assert begun("auto", Timed(1.0, 1.0)).costs == Costs()
    assert begun("swap").costs is None


@pytest.mark.parametrize(("block_s", "mode"), [(1e-3, "swap"), (10.0, "recompute")])
def test_auto_learns_what_steps_and_transfers_take(block_s: float, mode: str) -> None:
    """Its defaults would recompute these short requests or swap them whatever they really cost."""
    trace = trace_of(*((30.0 * k, 7, 6) for k in range(40) for _ in range(2)))
    simulation = Simulation(trace, config_of(), Timed(1.0, block_s), "auto", check_every=1)
    metrics = simulation.run()
    assert not metrics.failed, metrics.violations
    modes = {"swap": metrics.swaps, "recompute": metrics.recomputes}
    assert modes[mode] >= 39 and sum(modes.values()) == 40
    learned = simulation.scheduler.costs  # type: ignore[union-attr]
    assert learned is not None
    assert learned.recompute_s(8) == pytest.approx(1.0 * costs.OVERHEAD_SHARE, rel=0.9)
    assert Costs().recompute_s(8) < 0.01 * learned.recompute_s(8)
    if mode == "swap":
        assert learned.out_s_per_block == pytest.approx(block_s, rel=0.3)


def test_what_is_observed_is_what_was_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Scheduler, "observe_step", lambda self, *seen: told.append(seen))
    monkeypatch.setattr(Scheduler, "observe_transfer", lambda self, *seen: told.append(seen))
    monkeypatch.setattr(Auto, "weigh", lambda self, victim: victim.swappable)
    Simulation(trace_of((0.0, 7, 6), (0.0, 7, 6)), config_of(), Timed(1.0, 0.25), "auto").run()
    assert told == [(14, 2 * pairs_of(7), 1.0), (2, 0.5, "out"), (2, 0.5, "in")]
    told.clear()
    Simulation(trace_of((0.0, 7, 6), (0.0, 7, 6)), config_of(), Timed(0.0, 0.0), "auto").run()
    Simulation(trace_of((0.0, 7, 6), (0.0, 7, 6)), config_of(), Timed(1.0, 0.25), "swap").run()
    assert told == [], "no time, or a mode that does not reckon"


def test_the_same_run_gives_the_same_figures() -> None:
    def summary() -> dict[str, Any]:
        fields = {"num_gpu_blocks": 400, "num_cpu_blocks": 40, "block_size": 16, "max_model_len": 6_400}
        config = config_of(**fields, max_num_batched_tokens=8_192)
        metrics = Simulation(azure_like(150, 9, 1), config, H100, "auto", 0, policy="mlfq", tenants=3).run()
        assert metrics.preempted > 5 and not metrics.failed
        return metrics.summary(1)

    assert summary() == summary()


# --- causes


@pytest.mark.parametrize(("host", "cause"), [(0, "swap_impossible"), (4, "recompute")])
def test_what_auto_could_not_swap_is_told(host: int, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dear = Costs(s_per_token=1.0) if host == 0 else Costs(s_per_token=0.0, s_per_pair=0.0, recompute_overhead_s=0.0)
    monkeypatch.setattr(Roofline, "costs", lambda self: dear)
    charged = attrs.evolve(H100, block_size=4)
    monkeypatch.setattr(Scheduler, "observe_step", lambda self, *seen: None)
    m = Simulation(trace_of((0.0, 7, 6), (0.0, 7, 6)), config_of(num_cpu_blocks=host), charged, "auto", 1).run()
    assert (m.recomputes, m.swaps, m.violations) == (1, 0, [])
    assert m.recomputed_by_cause == {"recompute": 0, "swap_impossible": 0} | {cause: 8}


def test_a_cause_looks_at_the_blocks_that_are_held() -> None:
    """Two blocks to swap cost 4 s, three 6 s; to compute again 5 s."""
    costs = Costs(
        s_per_token=0.0,
        s_per_pair=0.0,
        recompute_overhead_s=5.0,
        out_s_per_block=1.0,
        in_s_per_block=1.0,
        transfer_overhead_s=0.0,
    )
    meter = meter_of(Scheduler(config_of(), "auto", costs=costs), "auto", 4)
    assert meter.cause(8, 9) == "swap_impossible", "the ninth has no slot yet"
    assert meter.cause(8, 12) == meter.cause(9, 10) == "recompute", "in pieces; three blocks"


@pytest.mark.parametrize("seed", range(3))
def test_causes_are_those_of_the_scheduler(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`weigh` is asked of every victim; what it would have answered with room on the host is the cause."""
    wished: dict[int, bool] = {}
    weigh = Auto.weigh

    def watched(self: Auto, victim: Any) -> bool:
        wished[victim.group] = weigh(self, victim._replace(swappable=True))
        return weigh(self, victim)

    monkeypatch.setattr(Auto, "weigh", watched)

    class Watching(Simulation):
        told = 0

        def _preempt(self, plan: Any) -> None:
            super()._preempt(plan)
            for g, mode in plan.preempted:
                if mode == "recompute":
                    assert self.live[g].cause == ("swap_impossible" if wished[g] else "recompute")
                    self.told += wished[g]

    # Whoever has more than about 40 tokens is cheaper to swap: what it holds decides.
    near = Costs(s_per_token=0.0, s_per_pair=1.0, recompute_overhead_s=0.0, out_s_per_block=40.0, in_s_per_block=40.0)
    monkeypatch.setattr(Roofline, "costs", lambda self: near)
    monkeypatch.setattr(Scheduler, "observe_step", lambda self, *seen: None)
    monkeypatch.setattr(Scheduler, "observe_transfer", lambda self, *seen: None)
    simulation = Watching(load(seed), config_of(**SMALL | {"num_cpu_blocks": 12}), attrs.evolve(H100, block_size=4), "auto", 50)
    m = simulation.run()
    assert not m.failed, m.violations
    assert simulation.told > 0 < m.swaps and m.recomputes > simulation.told
    assert sum(m.recomputed_by_cause.values()) == m.recomputed_tokens and 0 not in m.recomputed_by_cause.values()


# --- orders


@pytest.mark.parametrize("policy", list(BUILT_IN))
@pytest.mark.parametrize("mode", ["recompute", "swap", "auto"])
def test_every_order_conserves(policy: str, mode: str) -> None:
    trace = load(1)
    m = Simulation(trace, config_of(**SMALL), attrs.evolve(H100, block_size=4), mode, 50, policy=policy, tenants=3).run()
    assert not m.failed, m.violations
    assert m.finished == 80 and m.output_tokens == sum(trace.output_tokens) and m.recomputes + m.swaps > 5


def test_srpt_serves_the_short_ones_first() -> None:
    trace = trace_of((0.0, 4, 400), (0.0, 4, 130), (0.0, 4, 2))

    def ends(policy: str | None) -> Metrics:
        sizes = {"num_gpu_blocks": 120, "max_model_len": 512, "max_num_seqs": 1}
        return Simulation(trace, config_of(**sizes), Timed(1.0, 1.0), policy=policy, check_every=0).run()

    assert list(ends(None).e2e_s) == [400.0, 530.0, 532.0]
    assert list(ends("srpt").e2e_s) == [2.0, 132.0, 532.0]


def test_tenants_share_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    arrive = Fcfs.arrive

    def watched(self: Any, desk: Any, request: Any) -> int:
        seen.append(request.tenant)
        return arrive(self, desk, request)

    monkeypatch.setattr(Fcfs, "arrive", watched)
    requests = [(0.0, 4, 2)] * 5
    Simulation(trace_of(*requests), config_of(), Timed(1.0, 1.0), policy="fcfs", tenants=3).run()
    Simulation(trace_of(*requests), config_of(), Timed(1.0, 1.0), policy="fcfs").run()
    assert seen == ["0", "1", "2", "0", "1"] + ["0"] * 5


def test_a_policy_has_a_name() -> None:
    with pytest.raises(ConfigError, match="policy: no policy is called 'home', known are fcfs, priority, srpt, mlfq, fair"):
        Simulation(trace_of((0.0, 4, 2)), config_of(), H100, policy="home")
    with pytest.raises(ConfigError, match='"auto" needs the profile kvproof'):
        Simulation(trace_of((0.0, 4, 2)), config_of(vllm_v0=True), H100, "auto")


def test_an_order_that_breaks_its_word_ends_the_run() -> None:
    with pytest.raises(PolicyError, match="fcfs"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fcfs, "arrive", lambda self, desk, request: "first")
        Simulation(trace_of((0.0, 4, 2)), config_of(), H100, policy="fcfs").run()


def test_a_watermark_of_its_own() -> None:
    assert VARIANTS["kvproof auto, watermark"].changes(1000) == {"watermark_blocks": 30}
    assert VARIANTS["kvproof auto"].changes(1000) == {} and VARIANTS["vllm_v0 swap"].changes(9) == {"vllm_v0": True}
