"""The unit of the tables: one empty Python function call on this machine, now.

Machines drift and differ; a step's time divided by (N x this) is comparable between them, roughly.
"""

import statistics
from time import perf_counter_ns

CALLS = 100_000
TRIES = 5


def empty_call_ns() -> float:
    """Nanoseconds of one call of an empty function, the bare loop included: 100,000 calls, best of 5."""

    def f() -> None:
        pass

    best = 0
    for _ in range(TRIES):
        start = perf_counter_ns()
        for _ in range(CALLS):
            f()
        took = perf_counter_ns() - start
        best = min(best or took, took)
    return best / CALLS


class Clock:
    """The times of the steps of one case, in nanoseconds, and calibrations taken between chunks of them."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.units: list[float] = []

    def calibrate(self) -> None:
        """Measure the unit once more."""
        self.units.append(empty_call_ns())

    def row(self, case: str, n: int, sequences: int = 0, **more: object) -> dict[str, object]:
        """One result row; `calls_per_sequence` = median step / (sequences x median unit). `sequences`: n, if it is 0."""
        steps = sorted(self.steps)
        median, unit = statistics.median(steps), statistics.median(self.units)
        return {
            "case": case,
            "n": n,
            "sequences": sequences or n,
            "median_us": round(median / 1e3, 2),
            "p99_us": round(steps[min(len(steps) - 1, len(steps) * 99 // 100)] / 1e3, 2),
            "calls_per_sequence": round(median / ((sequences or n) * unit), 2),
            "call_ns": round(unit, 1),
            "runs": len(steps),
            "mean_us": round(statistics.fmean(steps) / 1e3, 2),
            "call_ns_range": [round(min(self.units), 1), round(max(self.units), 1)],
            **more,
        }
