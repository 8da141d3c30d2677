"""Requests drawn from the statistics of the Azure conversation trace of 2023, for when the trace itself is not at hand.

Lengths: the inverse of the empirical distribution, log-linear between the quantiles below, which were computed from
Azure/AzurePublicDataset `data/AzureLLMInferenceTrace_conv.csv` (CC-BY 4.0; Patel et al., "Splitwise", ISCA 2024) with
numpy.percentile. A lognormal cannot have its median, mean and p99 at once: the outputs have two humps (near 100 and 400).
Prompt and output are drawn independently (their correlation in the trace is -0.11). Arrivals: gaps from a gamma
distribution with the trace's mean rate and coefficient of variation.
"""

import math
import random
from bisect import bisect_right

from kvproof.sim.traces import Trace

NAME = "azure-like"
REQUESTS = 19_366
RATE_PER_S = 5.53
GAP_CV = 1.09

PERCENT = (0, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.9, 100)
PROMPT_TOKENS = (2, 181, 207, 387, 403, 703, 1020, 1071, 1130, 1315, 2734, 4083, 4142, 6179, 14050)
OUTPUT_TOKENS = (7, 41, 54, 77, 91, 103, 129, 177, 384, 400, 424, 451, 601, 954, 1000)


def quantile(percent: float, tokens: tuple[int, ...]) -> int:
    """The token count at `percent` (0 to 100)."""
    i = min(bisect_right(PERCENT, percent), len(PERCENT) - 1)
    low, high = math.log(tokens[i - 1]), math.log(tokens[i])
    share = (percent - PERCENT[i - 1]) / (PERCENT[i] - PERCENT[i - 1])
    return max(1, round(math.exp(low + (high - low) * share)))


def azure_like(requests: int = REQUESTS, rate_per_s: float | None = None, seed: int = 0) -> Trace:
    """`requests` requests at `rate_per_s` (the trace's if None). Equal arguments give equal requests."""
    draw = random.Random(seed)
    shape = 1 / GAP_CV**2
    scale_s = 1 / (rate_per_s or RATE_PER_S) / shape
    trace = Trace(NAME, "generated")
    now_s = 0.0
    for _ in range(requests):
        prompt_tokens = quantile(draw.uniform(0, 100), PROMPT_TOKENS)
        trace.add(now_s, prompt_tokens, quantile(draw.uniform(0, 100), OUTPUT_TOKENS))
        now_s += draw.gammavariate(shape, scale_s)
    return trace
