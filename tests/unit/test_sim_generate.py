"""The generator has the statistics that the Azure trace is published with, and a seed."""

import statistics

import pytest

from kvproof.sim.generate import GAP_CV, OUTPUT_TOKENS, PERCENT, PROMPT_TOKENS, RATE_PER_S, azure_like, quantile
from kvproof.sim.metrics import percentile
from kvproof.sim.traces import Trace


@pytest.fixture(scope="module")
def drawn() -> Trace:
    return azure_like(seed=3)


def test_lengths(drawn: Trace) -> None:
    prompts, outputs = sorted(drawn.prompt_tokens), sorted(drawn.output_tokens)
    assert len(drawn) == 19_366
    assert statistics.mean(prompts) == pytest.approx(1154.7, rel=0.03)
    assert statistics.mean(outputs) == pytest.approx(211.1, rel=0.03)
    assert percentile(prompts, 50) == pytest.approx(1020, rel=0.03)
    assert percentile(outputs, 50) == pytest.approx(129, rel=0.05)
    assert percentile(prompts, 99) == pytest.approx(4142, rel=0.03)
    assert percentile(outputs, 99) == pytest.approx(601, rel=0.05)
    assert prompts[0] >= 2 and prompts[-1] <= 14_050 and outputs[0] >= 7 and outputs[-1] <= 1_000


def test_arrivals(drawn: Trace) -> None:
    gaps = [b - a for a, b in zip(drawn.arrivals_s[:-1], drawn.arrivals_s[1:], strict=True)]
    assert drawn.arrivals_s[0] == 0 and min(gaps) >= 0
    assert 1 / statistics.mean(gaps) == pytest.approx(RATE_PER_S, rel=0.03)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(GAP_CV, rel=0.03)


def test_the_seed_and_the_rate_decide(drawn: Trace) -> None:
    assert azure_like(100, seed=3).prompt_tokens == drawn.prompt_tokens[:100]
    assert azure_like(100, seed=4).prompt_tokens != drawn.prompt_tokens[:100]
    assert azure_like(100, 55.3, seed=3).arrivals_s[-1] == pytest.approx(azure_like(100, seed=3).arrivals_s[-1] / 10)


def test_quantiles_meet_their_table() -> None:
    for table in (PROMPT_TOKENS, OUTPUT_TOKENS):
        assert tuple(quantile(percent, table) for percent in PERCENT) == table
