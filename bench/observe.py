"""What looking at a scheduler costs: the specification, snapshots, metrics and JSON in microseconds, a kept pass in bytes.

Run as a program: `python -m kvproof.bench.observe [N ...]`. N requests run, with lengths as in the pressure case
(`kvproof.bench.cases`) and blocks for all of them most of the time; whoever ends is replaced.
"""

import argparse
import gc
import json
import statistics
import tracemalloc
from collections.abc import Callable
from time import perf_counter_ns

from kvproof.bench.cases import BLOCK_SIZE, BUDGET, SHARE, requests, under_pressure
from kvproof.core.config import Config
from kvproof.scheduler import Scheduler
from kvproof.serial import state_from_json, state_to_json

WARM = 300
"""Steps before anything is measured."""
RUNS = 40
KEPT = 500
"""Passes whose history is measured."""
ROOM = 1.2
"""Blocks, in multiples of the mean demand."""


class Load:
    """A scheduler with N requests in the system at all times."""

    def __init__(self, n: int, keep_history: int = 0) -> None:
        blocks = int(under_pressure(n) / SHARE * ROOM)
        config = Config(
            num_gpu_blocks=blocks,
            num_cpu_blocks=blocks,
            block_size=BLOCK_SIZE,
            max_num_seqs=n,
            max_num_batched_tokens=BUDGET,
            max_model_len=BUDGET,
        )
        self.n, self.scheduler, self.arrivals = n, Scheduler(config, "swap", keep_history=keep_history), requests()
        self.steps(WARM)

    def steps(self, count: int) -> None:
        """So many steps."""
        for _ in range(count):
            for _ in range(self.n - self.scheduler.unfinished):
                self.scheduler.add_request(*next(self.arrivals))
            self.scheduler.schedule()
            self.scheduler.commit()


def cost_us(call: Callable[[], object], between: Callable[[], None]) -> float:
    """The median time of a call, in microseconds; `between` is called before each and not counted."""
    took = []
    for _ in range(RUNS):
        between()
        start = perf_counter_ns()
        call()
        took.append(perf_counter_ns() - start)
    return round(statistics.median(took) / 1e3, 1)


def kept_bytes(n: int) -> int:
    """Memory of one pass in the history: what KEPT more passes add, measured by tracemalloc."""
    grown = []
    for keep in (0, KEPT):
        load = Load(n, keep)
        gc.collect()
        tracemalloc.start()
        load.steps(KEPT)
        gc.collect()
        grown.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    return round((grown[1] - grown[0]) / KEPT)


def measure(n: int) -> dict[str, object]:
    """All costs with N requests."""
    load = Load(n)
    s, written = load.scheduler, state_to_json(load.scheduler.state)

    def go_on() -> None:
        load.steps(3)

    return {
        "n": n,
        "running": len(s.state.running[1]),
        "check_us": cost_us(s.check, go_on),
        "snapshot_us": cost_us(s.snapshot, go_on),
        "metrics_us": cost_us(s.metrics, go_on),
        "to_json_us": cost_us(lambda: state_to_json(s.state), go_on),
        "from_json_us": cost_us(lambda: state_from_json(written), go_on),
        "kept_bytes": kept_bytes(n),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m kvproof.bench.observe", description=__doc__.splitlines()[0])
    parser.add_argument("n", nargs="*", type=int, default=[64, 256], help="running requests (default: 64 256)")
    for size in parser.parse_args().n:
        print(json.dumps(measure(size)))
