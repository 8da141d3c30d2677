"""What a run measures: goodput, normalized latency, the pool's use, who cannot run, why tokens are computed again."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from kvproof import Config, Outcome
from kvproof.core.status import Status
from kvproof.sim.engine import CHECK_EVERY_DEFAULT, Simulation
from kvproof.sim.metrics import NAMED_MAX, Metrics, Slo
from kvproof.sim.series import Series
from kvproof.sim.traces import Trace


class Flat:
    """1 s a prefill step, 0.5 s a decode step, 0.25 s a block moved."""

    def prefill_s(self, pieces: Iterable[tuple[int, int, int]]) -> float:
        return 1.0

    def decode_s(self, sequences: int, kv_tokens: int) -> float:
        return 0.5

    def swap_s(self, pairs: Sequence[tuple[int, int]]) -> float:
        return 0.25 * len(pairs)


def trace_of(*requests: tuple[float, int, int]) -> Trace:
    trace = Trace("hand", "hand")
    for request in requests:
        trace.add(*request)
    return trace


def config_of(**fields: Any) -> Config:
    return Config(**({"num_gpu_blocks": 4, "num_cpu_blocks": 4, "block_size": 4, "max_model_len": 64} | fields))


def run(trace: Trace, mode: str | None = None, slo: Slo | None = None, **fields: Any) -> Metrics:
    metrics = Simulation(trace, config_of(**fields), Flat(), mode, check_every=1, slo=slo).run()
    assert not metrics.failed, metrics.violations
    return metrics


TWO = ((0.0, 7, 6), (0.0, 7, 6))
"""Two that do not fit together: the second is preempted in the second decode step. See test_sim_engine.py for the times."""


def test_per_token_metrics_span_a_restart() -> None:
    m = run(trace_of(*TWO), "recompute")
    assert list(m.ttft_s) == [1.0, 1.0]  # the second has its first token once, however often it is computed
    assert list(m.tpot_s) == [(3.5 - 1.0) / 5, (6.0 - 1.0) / 5]
    assert list(m.normalized_s) == [3.5 / 6, 6.0 / 6]
    m = run(trace_of(*TWO), "swap")
    assert list(m.normalized_s) == [4.0 / 6, 6.5 / 6] and list(m.tpot_s) == [3.0 / 5, 5.5 / 5]


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (Slo(1.0, 1.0), 2),
        (Slo(1.0, 0.99), 1),
        (Slo(1.0, 0.5), 1),
        (Slo(1.0, 0.49), 0),
        (Slo(0.99, 1.0), 0),
    ],
)
def test_goodput_counts_who_meets_both_limits(slo: Slo, good: int) -> None:
    m = run(trace_of(*TWO), "recompute", slo)
    told = m.summary(1)["goodput"]
    assert (m.good, told["requests"], told["share"], told["requests_per_s"]) == (good, good, good / 2, good / 6.0)
    assert (told["slo_ttft_s"], told["slo_tpot_s"]) == (slo.ttft_s, slo.tpot_s)


def test_one_token_has_no_tpot_to_miss_and_the_refused_do_not_count() -> None:
    m = run(trace_of((0.0, 4, 1), (0.0, 60, 10)), slo=Slo(1.0, 1e-9))
    assert m.good == 1 and m.summary(1)["goodput"]["share"] == 1.0
    assert list(m.normalized_s) == [1.0]


def test_who_cannot_run_is_named() -> None:
    m = run(trace_of((0.0, 4, 1), (1.0, 30, 35), (2.0, 13, 5)))
    assert m.refused == 2
    assert m.infeasible == [
        (1, "30 + 35 tokens exceed max_model_len 64"),
        (2, "13 + 5 tokens need 5 blocks, the pool less the watermark has 4"),
    ]
    assert m.summary(1)["infeasible"][1] == {"request": 2, "why": m.infeasible[1][1]}


def test_so_many_are_named_and_all_are_counted() -> None:
    m = run(trace_of(*((float(i), 60, 10) for i in range(100))))
    assert (m.refused, len(m.infeasible)) == (100, NAMED_MAX)
    assert [request for request, _ in m.infeasible] == list(range(NAMED_MAX))


def test_whom_the_scheduler_ends_for_capacity_is_named() -> None:
    simulation = Simulation(trace_of((0.0, 4, 8)), config_of(), Flat(), check_every=0)
    scheduler = simulation.scheduler
    commit = scheduler.commit

    def early() -> list[Outcome]:
        if scheduler.state.epoch == 3:
            return [Outcome(0, Status.FINISHED_CAPACITY, 4, 7, "it is too large")]
        return commit()

    scheduler.commit = early  # type: ignore[method-assign, assignment]
    m = simulation.run()
    assert (m.capacity, m.finished, m.infeasible) == (1, 0, [(0, "it is too large")])


def test_recomputed_tokens_by_cause() -> None:
    assert run(trace_of(*TWO), "recompute").recomputed_by_cause == {"recompute": 8, "swap_impossible": 0}
    assert run(trace_of(*TWO)).recomputed_by_cause == {"recompute": 8, "swap_impossible": 0}
    assert run(trace_of(*TWO), "swap", num_cpu_blocks=0).recomputed_by_cause == {"recompute": 0, "swap_impossible": 8}
    assert run(trace_of(*TWO), "swap").recomputed_by_cause == {"recompute": 0, "swap_impossible": 0}


def test_the_use_of_the_pool_is_that_of_each_step() -> None:
    m = run(trace_of(*TWO), "swap")
    assert m.pool_use.points[:4] == [
        (0.0, 4, 2, 0, 0),  # both in their prefill
        (1.0, 4, 2, 0, 0),
        (1.5, 3, 1, 0, 1),  # the second has gone to the host
        (2.5, 3, 1, 0, 1),  # two blocks took 0.5 s, the step 0.5 s
    ]
    assert m.pool_use.points[-1] == (6.5, 0, 0, 0, 0)
    waits = run(trace_of((0.0, 8, 4), (0.0, 8, 4)), num_gpu_blocks=3).pool_use.points
    assert waits[0] == (0.0, 2, 1, 1, 0)


def test_an_idle_gap_is_seen() -> None:
    m = run(trace_of((0.0, 4, 2), (100.0, 4, 2)))
    assert (1.5, 0, 0, 0, 0) in m.pool_use.points and m.pool_use.points[-1][0] == 101.5


def test_a_series_is_bounded_even_and_the_same_again() -> None:
    def grown(count: int) -> Series:
        series = Series(64)
        for i in range(count):
            if i / 10 >= series.next_s:
                series.add(i / 10, i, 0, 0, 0)
        return series

    for count in (10, 63, 64, 65, 1_000, 100_000):
        series = grown(count)
        points = series.points
        assert len(points) < 64 and points == grown(count).points
        assert points[0][0] == 0.0
        gaps = [b[0] - a[0] for a, b in pairwise(points)]
        assert max(gaps) <= 4 * min(gaps)
        assert count < 64 or len(points) >= 16
        assert points[-1][0] >= (count - 1) / 10 - 2 * max(series.interval_s, 0.1)
    assert list(grown(10).summary()) == ["time_s", "blocks_used", "running", "waiting", "swapped"]
    assert Series().summary()["time_s"] == []


def test_a_long_run_keeps_a_bounded_series() -> None:
    trace = trace_of(*((i * 0.3, 4, 8) for i in range(600)))
    m = Simulation(trace, config_of(), Flat(), check_every=0).run()
    assert m.passes > 2_000 and 100 < len(m.pool_use.points) <= m.pool_use.points_max


def test_checks_wait_for_a_crowd_only() -> None:
    trace = trace_of((0.0, 4, 1))
    seldom = Simulation(trace, config_of(), Flat())
    assert seldom._until_check() == CHECK_EVERY_DEFAULT
    seldom.live = dict.fromkeys(range(1_000))  # type: ignore[assignment]
    assert seldom._until_check() == 5_000
    exact = Simulation(trace, config_of(), Flat(), check_every=7)
    exact.live = dict.fromkeys(range(1_000))  # type: ignore[assignment]
    assert exact._until_check() == 7
    assert Simulation(trace, config_of(), Flat(), check_every=0)._until_check() == math.inf
