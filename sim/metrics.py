"""What a simulation measures: three latencies per request, counts, and what went wrong.

TTFT: arrival to the end of the step that computed the first token. TPOT: (last token - first token) / (tokens - 1), for
requests of two tokens and more. End to end: arrival to the last token. Seconds of simulated time.
"""

from array import array
from collections.abc import Iterable
from typing import Any

import attrs

VIOLATIONS_SHOWN_MAX = 20


def percentile(ordered: "array[float] | list[float]", percent: float) -> float | None:
    """Linear between the two nearest ranks (numpy's default); `ordered` ascends. None of nothing."""
    if not ordered:
        return None
    rank = (len(ordered) - 1) * percent / 100
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def spread(values: Iterable[float]) -> dict[str, float | None]:
    """Mean, p50, p99 and largest."""
    ordered = sorted(values)
    mean = sum(ordered) / len(ordered) if ordered else None
    largest = ordered[-1] if ordered else None
    return {"mean": mean, "p50": percentile(ordered, 50), "p99": percentile(ordered, 99), "max": largest}


@attrs.define
class Metrics:
    """Grows while the simulation runs. Columns have one entry per finished request, in order of their ends."""

    total: int = 0
    finished: int = 0
    refused: int = 0
    """Never run: longer than the context, or than the pool. Known before the run, alike in all profiles."""
    capacity: int = 0
    """Ended by the scheduler before their last token."""
    lost: int = 0
    """Neither finished nor refused nor ended when the simulation stopped."""
    ttft_s: "array[float]" = attrs.field(factory=lambda: array("d"))
    tpot_s: "array[float]" = attrs.field(factory=lambda: array("d"))
    e2e_s: "array[float]" = attrs.field(factory=lambda: array("d"))
    preempted: int = 0
    """Requests preempted at least once."""
    preemptions_max: int = 0
    """Most preemptions of one request."""
    recomputes: int = 0
    swaps: int = 0
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    """Prefill tokens that had been computed before: the price of preemption by recompute."""
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    output_tokens: int = 0
    prefill_steps: int = 0
    decode_steps: int = 0
    idle_passes: int = 0
    """Passes that computed and moved nothing (they only refused or ended requests, or had to wait for an arrival)."""
    running_max: int = 0
    gpu_free_min: int = 0
    simulated_s: float = 0.0
    states_checked: int = 0
    spec_used: bool = False
    """Were the invariants of `kvproof.spec` evaluated, and not only the simulator's own accounts?"""
    blocks_back: bool = False
    violations: list[str] = attrs.field(factory=list)
    violation_count: int = 0

    def violate(self, what: str) -> None:
        """Something that must not be. The first few are kept in words."""
        self.violation_count += 1
        if len(self.violations) < VIOLATIONS_SHOWN_MAX:
            self.violations.append(what)

    @property
    def passes(self) -> int:
        """Calls of `schedule`."""
        return self.prefill_steps + self.decode_steps + self.idle_passes

    @property
    def failed(self) -> bool:
        """Does the command end with status 1?"""
        return bool(self.violation_count or self.lost or not self.blocks_back)

    def summary(self, block_bytes: int) -> dict[str, Any]:
        """Plain numbers, for JSON and for the tables."""
        ran = self.total - self.refused
        return {
            "requests": {
                "total": self.total,
                "finished": self.finished,
                "refused": self.refused,
                "capacity": self.capacity,
                "lost": self.lost,
                "preempted": self.preempted,
                "preempted_share": self.preempted / ran if ran else 0.0,
                "preemptions_max": self.preemptions_max,
            },
            "latency_s": {"ttft": spread(self.ttft_s), "tpot": spread(self.tpot_s), "e2e": spread(self.e2e_s)},
            "preemptions": {"recompute": self.recomputes, "swap": self.swaps},
            "prefill_tokens": self.prefill_tokens,
            "recomputed_tokens": self.recomputed_tokens,
            "swapped_out_bytes": self.swapped_out_blocks * block_bytes,
            "swapped_in_bytes": self.swapped_in_blocks * block_bytes,
            "output_tokens": self.output_tokens,
            "steps": {
                "total": self.passes,
                "prefill": self.prefill_steps,
                "decode": self.decode_steps,
                "idle": self.idle_passes,
            },
            "running_max": self.running_max,
            "gpu_free_min": self.gpu_free_min,
            "simulated_s": self.simulated_s,
            "output_tokens_per_s": self.output_tokens / self.simulated_s if self.simulated_s else 0.0,
            "blocks_back": self.blocks_back,
            "states_checked": self.states_checked,
            "spec_used": self.spec_used,
            "violations": self.violations,
            "violation_count": self.violation_count,
        }
