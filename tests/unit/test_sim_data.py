"""The public traces, where they are at hand: KVPROOF_DATA, or `../shared` beside the repository."""

import os
from pathlib import Path

import pytest

from kvproof import Config
from kvproof.sim.cost import Roofline
from kvproof.sim.engine import Simulation
from kvproof.sim.hardware import DEVICES, MODELS
from kvproof.sim.traces import read

DATA = Path(os.environ.get("KVPROOF_DATA") or Path(__file__).resolve().parents[3] / "shared")


def published(name: str) -> Path:
    path = DATA / "traces" / name
    if not path.is_file():
        pytest.skip(f"needs traces/{name}: set KVPROOF_DATA to the folder that holds traces/")
    return path


@pytest.mark.parametrize(
    ("name", "form", "requests", "prompt_mean", "output_mean", "span_s"),
    [
        ("AzureLLMInferenceTrace_conv.csv.gz", "azure", 19_366, 1154.7, 211.1, 3501.7),
        ("mooncake_fast25_conversation_trace.jsonl.gz", "mooncake", 12_031, 12_035.1, 342.6, 3537.0),
        ("sharegpt_8k_filtered_stats_llama2_tokenizer.csv.gz", "vidur", 30_731, 2340.0, 438.7, None),
        ("arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv.gz", "vidur", 28_257, 2588.1, 291.4, None),
    ],
)
def test_statistics_are_those_published(
    name: str, form: str, requests: int, prompt_mean: float, output_mean: float, span_s: float | None
) -> None:
    trace = read(published(name))
    assert (trace.format, len(trace)) == (form, requests)
    assert sum(trace.prompt_tokens) / requests == pytest.approx(prompt_mean, abs=0.06)
    assert sum(trace.output_tokens) / requests == pytest.approx(output_mean, abs=0.06)
    if span_s is not None:
        assert trace.arrivals_s[-1] == pytest.approx(span_s, abs=0.06)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_azure_under_pressure(mode: str) -> None:
    trace = read(published("AzureLLMInferenceTrace_conv.csv.gz"), limit=400)
    sizes = {"num_gpu_blocks": 1150, "num_cpu_blocks": 1150, "watermark_blocks": 11}
    config = Config(**sizes, max_model_len=131_072, max_num_batched_tokens=131_072)
    m = Simulation(trace, config, Roofline(MODELS["llama-3.1-8b"], DEVICES["h100"]), mode, check_every=500).run()
    assert m.violations == [] and m.blocks_back and m.finished == 400
    assert m.preempted / m.total > 0.05
