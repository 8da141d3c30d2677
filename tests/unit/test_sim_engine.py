"""The simulation loop: cases computed by hand, conservation on random loads, and faults that it must notice."""

import random
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import pytest

from kvproof import Config, Outcome, Plan
from kvproof.sim.engine import Simulation, blocks_for_life
from kvproof.sim.metrics import Metrics, percentile
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


def run(trace: Trace, mode: str | None = None, **fields: Any) -> Metrics:
    metrics = Simulation(trace, config_of(**fields), Flat(), mode, check_every=1).run()
    assert metrics.violations == []
    assert metrics.blocks_back
    assert metrics.lost == 0
    return metrics


def test_one_request() -> None:
    m = run(trace_of((0.0, 4, 3)))
    assert (list(m.ttft_s), list(m.tpot_s), list(m.e2e_s)) == ([1.0], [0.5], [2.0])
    assert (m.prefill_steps, m.decode_steps, m.idle_passes) == (1, 2, 0)
    assert (m.finished, m.output_tokens, m.prefill_tokens, m.simulated_s) == (1, 3, 4, 2.0)


@pytest.mark.parametrize("blocks", range(50, 70, 2))
def test_a_prefill_that_was_swapped_out_goes_on(blocks: int) -> None:
    trace = trace_of((0.0, 4, 40), (1.0, 40, 8))
    fields = {"block_size": 1, "num_gpu_blocks": blocks, "num_cpu_blocks": 99, "max_model_len": 50}
    m = run(trace, "swap", **fields, max_num_batched_tokens=4, max_num_seqs=4)
    assert (m.finished, m.output_tokens) == (2, 48) and m.swaps >= (52 <= blocks <= 58)


def test_one_token_has_no_tpot() -> None:
    m = run(trace_of((0.0, 4, 1)))
    assert (list(m.ttft_s), list(m.tpot_s), list(m.e2e_s)) == ([1.0], [], [1.0])


def test_the_clock_jumps_to_the_next_arrival_when_nobody_is_there() -> None:
    m = run(trace_of((5.0, 4, 2), (100.0, 4, 2)))
    assert list(m.ttft_s) == [1.0, 1.0]
    assert m.simulated_s == 101.5


def test_who_arrives_during_a_step_waits_for_its_end() -> None:
    m = run(trace_of((0.0, 4, 4), (1.25, 4, 1)))
    # 0-1 prefill, 1-1.5 decode, 1.5-2.5 prefill of the second, then two decodes
    assert list(m.ttft_s) == [1.25, 1.0]
    assert list(m.e2e_s) == [1.25, 3.5]


def test_each_arrival_has_its_own_time() -> None:
    m = run(trace_of((0.0, 4, 1), (10.0, 4, 1), (10.0, 4, 1), (30.0, 4, 1)))
    assert list(m.ttft_s) == [1.0] * 4 and m.simulated_s == 31.0
    m = run(trace_of((0.0, 4, 20), (1.75, 4, 1), (4.0, 4, 1)), num_gpu_blocks=9)
    assert list(m.ttft_s) == [1.25, 1.0, 1.0]  # they arrive while the first decodes: at the ends of steps, 2.0 and 4.0


def two_that_do_not_fit() -> Trace:
    """Both are prefilled at once (2 blocks each, the pool is full); the second decode step needs a fifth block."""
    return trace_of((0.0, 7, 6), (0.0, 7, 6))


def test_preemption_by_recompute() -> None:
    m = run(two_that_do_not_fit(), "recompute")
    # first: 1 + 5 x 0.5. second: evicted with 9 tokens (8 computed), prefilled again at 3.5, three decodes more.
    assert list(m.e2e_s) == [3.5, 6.0]
    assert list(m.ttft_s) == [1.0, 1.0]
    assert list(m.tpot_s) == [0.5, 1.0]
    assert (m.recomputes, m.swaps, m.preempted, m.preemptions_max) == (1, 0, 1, 1)
    assert (m.recomputed_tokens, m.prefill_tokens) == (8, 7 + 7 + 9)
    assert m.gpu_free_min == 0


def test_preemption_by_swap() -> None:
    m = run(two_that_do_not_fit(), "swap")
    # two blocks out in the second decode step, two in when the first has ended at 4.0
    assert list(m.e2e_s) == [4.0, 6.5]
    assert (m.recomputes, m.swaps) == (0, 1)
    assert (m.swapped_out_blocks, m.swapped_in_blocks) == (2, 2)
    assert m.recomputed_tokens == 0


def test_swap_without_host_blocks_is_recompute() -> None:
    m = run(two_that_do_not_fit(), "swap", num_cpu_blocks=0)
    assert (m.recomputes, m.swaps) == (1, 0)


@pytest.mark.parametrize("profile", [False, True])
def test_what_is_too_long_is_refused_alike_in_both_profiles(profile: bool) -> None:
    fits_context, too_long, too_large = (0.0, 30, 10), (0.0, 30, 11), (0.0, 13, 5)
    m = run(trace_of(fits_context, too_long), max_model_len=40, num_gpu_blocks=99, vllm_v0=profile)
    assert (m.finished, m.refused) == (1, 1)
    m = run(trace_of((0.0, 13, 4), too_large), vllm_v0=profile)
    assert (m.finished, m.refused) == (1, 1)


def test_a_trace_that_is_all_refused_ends() -> None:
    m = run(trace_of((0.0, 60, 10), (3.0, 60, 10)))
    assert (m.finished, m.refused, m.passes) == (0, 2, 0)


def test_blocks_for_life_leave_out_the_last_token() -> None:
    assert [blocks_for_life(7, n, 4) for n in (1, 2, 3, 5, 6)] == [2, 2, 3, 3, 3]


def load(seed: int) -> Trace:
    """80 requests of up to 100 tokens, more than a pool of 120 slots can take as they come."""
    draw = random.Random(seed)
    trace = Trace("random", "hand")
    now_s = 0.0
    for _ in range(80):
        trace.add(now_s, draw.randint(1, 50), draw.randint(1, 50))
        now_s += draw.expovariate(0.1)
    return trace


SIZES = {"num_gpu_blocks": 30, "num_cpu_blocks": 20, "block_size": 4, "max_model_len": 128, "watermark_blocks": 1}


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("profile", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_conservation(mode: str, profile: bool, seed: int) -> None:
    trace = load(seed)
    m = run(trace, mode, **SIZES, vllm_v0=profile)
    assert m.finished == len(m.ttft_s) == len(m.e2e_s) == 80
    assert m.output_tokens == sum(trace.output_tokens)
    assert m.preempted > 5
    assert (m.recomputes + m.swaps > m.preempted) == (m.preemptions_max > 1)
    assert (m.swaps > 0) == (mode == "swap")
    assert m.swapped_in_blocks == m.swapped_out_blocks
    # each recompute victim had one token that was sampled and not computed: new in its second prefill
    assert m.prefill_tokens == sum(trace.prompt_tokens) + m.recomputed_tokens + m.recomputes
    assert m.states_checked == m.passes + 1
    busy_s = m.prefill_steps + m.decode_steps / 2 + (m.swapped_out_blocks + m.swapped_in_blocks) / 4
    assert busy_s <= m.simulated_s + 1e-6 <= busy_s + trace.arrivals_s[-1]


def test_equal_inputs_give_equal_results() -> None:
    first, second, other = (run(load(seed), "recompute", **SIZES).summary(1) for seed in (7, 7, 8))
    assert first == second != other


def test_how_often_states_are_checked_changes_nothing_else() -> None:
    often = Simulation(two_that_do_not_fit(), config_of(), Flat(), check_every=1).run()
    never = Simulation(two_that_do_not_fit(), config_of(), Flat(), check_every=0).run()
    assert (often.states_checked, never.states_checked) == (often.passes + 1, 1)
    assert often.e2e_s == never.e2e_s


class Faulty(Simulation):
    """A simulation around a scheduler that is made to misbehave."""

    def __init__(self, *requests: tuple[float, int, int]) -> None:
        super().__init__(trace_of(*requests), config_of(), Flat(), check_every=1)


def test_an_outcome_told_twice_is_noticed() -> None:
    simulation = Faulty((0.0, 4, 2))
    commit = simulation.scheduler.commit
    simulation.scheduler.commit = lambda: commit() * 2  # type: ignore[method-assign, assignment, misc]
    assert any("ended twice" in v for v in simulation.run().violations)


def test_tokens_that_are_missing_are_noticed() -> None:
    simulation = Faulty((0.0, 4, 5))
    add = simulation.scheduler.add_request
    simulation.scheduler.add_request = lambda prompt, output, **more: add(prompt, output - 1, **more)  # type: ignore[method-assign]
    assert "request 0: 4 tokens instead of 5" in simulation.run().violations


def test_an_outcome_that_is_swallowed_is_a_lost_request() -> None:
    simulation = Faulty((0.0, 4, 2), (50.0, 4, 2))
    commit = simulation.scheduler.commit
    told: list[Outcome] = []

    def forgetful() -> list[Outcome]:
        told.extend(commit())
        return []

    simulation.scheduler.commit = forgetful  # type: ignore[method-assign, assignment]
    metrics = simulation.run()
    assert told and metrics.lost == 2 and metrics.failed
    assert any("0 requests unfinished, 1 expected" in v for v in metrics.violations)


def test_a_scheduler_that_does_nothing_is_stalled_not_endless() -> None:
    simulation = Faulty((0.0, 4, 2))
    nothing = Plan(0, (), (), (), (), (), (), (), (), (), True)
    simulation.scheduler.schedule = lambda: nothing  # type: ignore[method-assign]
    simulation.scheduler.commit = list  # type: ignore[method-assign, assignment, misc]
    metrics = simulation.run()
    assert (metrics.lost, metrics.failed) == (1, True)
    assert "stalled at pass 1: 1 requests wait and nothing moves" in metrics.violations


def test_a_block_that_does_not_come_back_is_noticed() -> None:
    simulation = Faulty((0.0, 4, 2))
    commit = simulation.scheduler.commit

    def leaking() -> list[Outcome]:
        outcomes = commit()
        scheduler = simulation.scheduler
        if outcomes:
            scheduler.state = attrs.evolve(scheduler.state, gpu_free=scheduler.state.gpu_free - 1)
        return outcomes

    simulation.scheduler.commit = leaking  # type: ignore[method-assign, assignment]
    metrics = simulation.run()
    assert not metrics.blocks_back and metrics.failed
    assert any("1 GPU blocks" in v for v in metrics.violations)


def test_what_the_spec_finds_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproof.sim.audit.spec_violations", lambda state: ["a block is lost"])
    metrics = Simulation(two_that_do_not_fit(), config_of(), Flat(), check_every=5).run()
    assert metrics.spec_used and metrics.failed
    assert metrics.violations[0] == "pass 5: a block is lost"


def test_percentiles_are_linear_between_ranks() -> None:
    assert percentile([1.0, 2.0, 4.0], 50) == 2.0
    assert percentile([1.0, 2.0, 4.0], 75) == 3.0
    assert percentile([1.0, 2.0], 99) == pytest.approx(1.99)
    assert percentile([5.0], 99) == 5.0
    assert percentile([], 50) is None
