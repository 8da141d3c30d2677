"""What policies cost: a decode pass under each order, a changed rank, a choice of victims, an observation. Microseconds.

Run as a program: `python -m kvproof.bench.orders [N ...]`. N requests of four tenants decode, with blocks for all of them; their
outputs are long, so nobody ends. A pass is `schedule()` and `commit()`.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from random import Random
from time import perf_counter_ns

from kvproof.core.config import Config
from kvproof.order import BUILT_IN
from kvproof.policies.auto import Auto
from kvproof.policies.calibrated import Calibrated
from kvproof.policies.costs import pairs_of
from kvproof.scheduler import Scheduler
from kvproof.store.candidates import Candidate, Need

WARM, PASSES, RUNS = 50, 400, 200
SIZES = [64, 256]
Row = dict[str, object]


def running(n: int, policy: str | None) -> Scheduler:
    """N requests that decode."""
    length = 1024 + WARM + 4 * PASSES
    config = Config(
        num_gpu_blocks=n * (length // 16 + 1),
        num_cpu_blocks=0,
        max_num_seqs=n,
        max_num_batched_tokens=2048 + n,
        max_model_len=length,
    )
    scheduler = Scheduler(config, "recompute", policy)
    r = Random(1)
    for k in range(n):
        scheduler.add_request(r.randrange(128, 385), length - 400, tenant=str(k % 4))
    for _ in range(WARM + n):
        scheduler.schedule()
        scheduler.commit()
    return scheduler


def timed(call: Callable[[], object], runs: int) -> list[float]:
    """How long each call took, in microseconds."""
    out = []
    for _ in range(runs):
        start = perf_counter_ns()
        call()
        out.append((perf_counter_ns() - start) / 1e3)
    return out


def passes(n: int, policy: str | None) -> Row:
    """A decode pass under one order: in the middle, and on average, changed ranks included."""
    scheduler = running(n, policy)

    def step() -> None:
        scheduler.schedule()
        scheduler.commit()

    took = timed(step, PASSES)
    return {"case": policy or "no order", "n": n, "median_us": statistics.median(took), "mean_us": statistics.mean(took)}


def rerank(n: int) -> Row:
    """One changed rank."""
    scheduler = running(n, "priority")
    r = Random(2)
    took = timed(lambda: scheduler.rerank(r.randrange(n), r.randrange(-9, 9)), RUNS)
    return {"case": "rerank", "n": n, "median_us": statistics.median(took), "mean_us": statistics.mean(took)}


def victim(n: int) -> Row:
    """`auto` is asked who makes way, of n candidates of 1 to 19 blocks."""
    r, auto, took = Random(3), Auto(), []
    for _ in range(RUNS):
        some = [r.randrange(1, 20) for _ in range(n)]
        candidates = tuple(Candidate(g, 1, b, 16 * b, 16 * b, 16 * b - 1, b < 50) for g, b in enumerate(some))
        need = Need(n, r.randrange(1, 10), 0, r.randrange(100), candidates)
        took += timed(lambda need=need: auto.victim(need), 1)  # type: ignore[misc]
    return {"case": "auto victim", "n": n, "median_us": statistics.median(took), "mean_us": statistics.mean(took)}


def observation() -> Row:
    """A measured step, and the costs after it."""
    r, known, took = Random(4), Calibrated.begin(), []
    for _ in range(RUNS):
        tokens = r.randrange(100, 4000)
        known = known.observe(tokens, pairs_of(tokens), tokens * 1e-4 * r.uniform(0.9, 1.1))
        took += timed(lambda known=known: known.costs, 1)  # type: ignore[misc]
    return {"case": "observation", "n": 1, "median_us": statistics.median(took), "mean_us": statistics.mean(took)}


def measure(sizes: list[int]) -> list[Row]:
    """All rows."""
    rows = [passes(n, policy) for n in sizes for policy in (None, *BUILT_IN)]
    rows += [rerank(n) for n in sizes] + [victim(n) for n in (8, *sizes)] + [observation()]
    return [{key: round(value, 1) if isinstance(value, float) else value for key, value in row.items()} for row in rows]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m kvproof.bench.orders", description=__doc__.splitlines()[0])
    parser.add_argument("n", nargs="*", type=int, default=SIZES, help="running requests (default: 64 256)")
    for row in measure(parser.parse_args().n):
        print(json.dumps(row))
