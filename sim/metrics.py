"""What a simulation measures: four latencies per request, goodput, counts, the use of the pool, and what went wrong.

TTFT: arrival to the end of the step that computed the first token, for the first time. TPOT: (last token - first token) /
(tokens - 1), for requests of two tokens and more. End to end: arrival to the last token. Normalized: end to end / tokens.
Seconds of simulated time. What a preemption takes is in all of them: none begins anew.
"""

from array import array
from collections.abc import Iterable
from typing import Any

import attrs

from kvproof.sim.series import Series

VIOLATIONS_SHOWN_MAX = 20
NAMED_MAX = 20
"""Of the requests that cannot run so many are named."""
SLO_TTFT_S = 2.0
SLO_TPOT_S = 0.1

RECOMPUTE, SWAP_IMPOSSIBLE = "recompute", "swap_impossible"
"""Why tokens are computed again: the policy wished for recompute; it wished for swap, and the host had no room."""


@attrs.frozen
class Slo:
    """What a request must meet to count as good. Defaults: a reader waits 2 s, and reads less than ten tokens a second."""

    ttft_s: float = SLO_TTFT_S
    tpot_s: float = SLO_TPOT_S


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
    normalized_s: "array[float]" = attrs.field(factory=lambda: array("d"))
    """Seconds per output token."""
    slo: Slo = attrs.field(factory=Slo)
    good: int = 0
    """Finished requests that met both limits of `slo`; a request of one token has no TPOT to miss."""
    infeasible: list[tuple[int, str]] = attrs.field(factory=list)
    """(request, why) of the first few that cannot run; requests are counted from 0 in order of arrival."""
    pool_use: Series = attrs.field(factory=Series)
    preempted: int = 0
    """Requests preempted at least once."""
    preemptions_max: int = 0
    """Most preemptions of one request."""
    recomputes: int = 0
    swaps: int = 0
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    """Prefill tokens that had been computed before: the price of preemption by recompute."""
    recomputed_by_cause: dict[str, int] = attrs.field(factory=lambda: {RECOMPUTE: 0, SWAP_IMPOSSIBLE: 0})
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

    def name(self, request: int, why: str) -> None:
        """Request number `request` cannot run to its end. The first few are kept in words."""
        if len(self.infeasible) < NAMED_MAX:
            self.infeasible.append((request, why))

    def finish(self, tokens: int, arrival_s: float, first_s: float, last_s: float) -> None:
        """A request has all its `tokens` output tokens, the first at `first_s`."""
        ttft_s, e2e_s = first_s - arrival_s, last_s - arrival_s
        tpot_s = 0.0
        self.finished += 1
        self.output_tokens += tokens
        self.ttft_s.append(ttft_s)
        self.e2e_s.append(e2e_s)
        self.normalized_s.append(e2e_s / tokens)
        if tokens > 1:
            tpot_s = (last_s - first_s) / (tokens - 1)
            self.tpot_s.append(tpot_s)
        self.good += ttft_s <= self.slo.ttft_s and tpot_s <= self.slo.tpot_s

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
            "infeasible": [{"request": request, "why": why} for request, why in self.infeasible],
            "latency_s": {
                "ttft": spread(self.ttft_s),
                "tpot": spread(self.tpot_s),
                "e2e": spread(self.e2e_s),
                "normalized": spread(self.normalized_s),
            },
            "goodput": {
                "slo_ttft_s": self.slo.ttft_s,
                "slo_tpot_s": self.slo.tpot_s,
                "requests": self.good,
                "share": self.good / ran if ran else 0.0,
                "requests_per_s": self.good / self.simulated_s if self.simulated_s else 0.0,
            },
            "preemptions": {"recompute": self.recomputes, "swap": self.swaps},
            "prefill_tokens": self.prefill_tokens,
            "recomputed_tokens": self.recomputed_tokens,
            "recomputed_by_cause": dict(self.recomputed_by_cause),
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
            "pool_use": self.pool_use.summary(),
            "simulated_s": self.simulated_s,
            "output_tokens_per_s": self.output_tokens / self.simulated_s if self.simulated_s else 0.0,
            "blocks_back": self.blocks_back,
            "states_checked": self.states_checked,
            "spec_used": self.spec_used,
            "violations": self.violations,
            "violation_count": self.violation_count,
        }
