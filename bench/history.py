"""What it costs to keep every state: 10,000 steps of 256 sequences with lengths like those of Azure's conversation trace.

Run as a program (`python -m kvproof.bench.history`): memory is the growth of the process, so the process must be fresh.
Kept is the state after each `commit`. Prompts and outputs are gamma-distributed with the means and spreads of the trace
(AzureLLMInferenceTrace_conv: 1155 +- 1109 and 211 +- 163 tokens); whoever ends is replaced.
"""

import gc
import json
import os
import resource
import sys
from pathlib import Path
from random import Random
from time import perf_counter_ns

from kvproof.bench.calibrate import Clock
from kvproof.core.config import Config
from kvproof.scheduler import Scheduler

SEQUENCES = 256
STATES = 10_000
CHUNKS = 5
PROMPT = (1155, 1109)
OUTPUT = (211, 163)
LONGEST = 14_050
BLOCKS = 40_000


def resident_bytes() -> int:
    """Memory of this process now (Linux), or its largest so far (elsewhere)."""
    statm = Path("/proc/self/statm")
    if statm.is_file():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def tokens(random: Random, mean: float, spread: float) -> int:
    """A length, gamma-distributed."""
    shape = (mean / spread) ** 2
    return min(LONGEST, max(1, round(random.gammavariate(shape, mean / shape))))


def measure(states: int = STATES, n: int = SEQUENCES) -> dict[str, object]:
    """The result row; `memory_mb` is what `states` states take beyond the first."""
    random = Random(0)
    config = Config(num_gpu_blocks=BLOCKS, num_cpu_blocks=0, max_num_seqs=n, max_num_batched_tokens=2**20, max_model_len=2**20)
    scheduler = Scheduler(config)

    def arrive() -> None:
        for _ in range(n - scheduler.unfinished):
            scheduler.add_request(tokens(random, *PROMPT), tokens(random, *OUTPUT))

    clock, ended = Clock(), 0
    clock.calibrate()
    arrive()
    scheduler.schedule()
    scheduler.commit()
    kept = [scheduler.state]
    gc.collect()
    before = resident_bytes()
    for i in range(states):
        if (i + 1) % (states // CHUNKS) == 0:
            clock.calibrate()
        arrive()
        start = perf_counter_ns()
        scheduler.schedule()
        ended += len(scheduler.commit())
        clock.steps.append(perf_counter_ns() - start)
        kept.append(scheduler.state)
    grown = resident_bytes() - before
    assert len({id(state) for state in kept}) == states + 1
    return clock.row("history", n, memory_mb=round(grown / 1e6, 1), states=states, ended=ended)


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:]))))
