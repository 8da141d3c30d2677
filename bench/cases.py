"""The work that is timed: steady decode and pressure, for our scheduler and for the peer, from the same random numbers.

Steady decode: N sequences run, prompts of 128 to 384 tokens, block size 16, plenty of blocks, nobody ends.
Pressure: N requests in the system, blocks for 60 % of their mean demand, prompts of 128 to 384 tokens and outputs of 64 to 256;
whoever ends is replaced. Timed is what an engine calls once per step (`schedule` and what takes the results back, with
whatever ends or is preempted in them); not the arrival of requests nor the engine's list of results.
"""

from collections.abc import Iterator
from itertools import count
from random import Random
from time import perf_counter_ns

from kvproof.bench.calibrate import Clock
from kvproof.bench.peer import PeerScheduler, Sequence
from kvproof.core.config import Config
from kvproof.scheduler import Scheduler

BLOCK_SIZE = 16
PROMPT = (128, 384)
OUTPUT = (64, 256)
SHARE = 0.6
BUDGET = 16_384
"""Tokens of a prefill step under pressure."""
NO_LIMIT = 2**30
NEVER = 2**20
"""An output that no sequence of the steady decode reaches."""
TOKEN = 7
SEED = 0

DECODE_STEPS = 800
PRESSURE_STEPS = 2_000
CHUNKS = 8
"""The unit is measured before each chunk of steps."""


def chunked(clock: Clock, steps: int) -> Iterator[int]:
    """0 .. steps - 1, with a calibration before each of the chunks."""
    for i in range(steps):
        if i % (steps // CHUNKS) == 0:
            clock.calibrate()
        yield i


def prompts(n: int) -> list[int]:
    """Prompt lengths of the steady decode."""
    random = Random(SEED)
    return [random.randint(*PROMPT) for _ in range(n)]


def plenty(lengths: list[int]) -> int:
    """Blocks so that nobody lacks one in the steady decode."""
    grown = DECODE_STEPS // BLOCK_SIZE + 2
    return sum(-(-length // BLOCK_SIZE) + grown for length in lengths)


def under_pressure(n: int) -> int:
    """Blocks for SHARE of the mean demand: the prompt and half of the output."""
    mean_tokens = sum(PROMPT) / 2 + sum(OUTPUT) / 4
    return int(n * mean_tokens / BLOCK_SIZE * SHARE)


def requests() -> Iterator[tuple[int, int]]:
    """(prompt, output) of one arrival after another."""
    random = Random(SEED)
    while True:
        yield random.randint(*PROMPT), random.randint(*OUTPUT)


def steady(scheduler: Scheduler, clock: Clock, case: str = "decode") -> None:
    """DECODE_STEPS steps in which everybody who runs decodes.

    Results are (id, token) pairs, but for `decode_all`: None; in `plan_view` the plan's full view is read.
    """
    for _ in chunked(clock, DECODE_STEPS):
        start = perf_counter_ns()
        plan = scheduler.schedule()
        if case == "plan_view":
            view = plan.scheduled
        took = perf_counter_ns() - start
        if case == "plan_view":
            assert len(view) == len(plan.running)
        results = None if case == "decode_all" else [(g, TOKEN) for g in plan.decodes]
        start = perf_counter_ns()
        scheduler.commit(results)
        clock.steps.append(took + perf_counter_ns() - start)


def roomy(n: int, blocks: int, budget: int = NO_LIMIT, chunked: bool = False) -> Scheduler:
    """A scheduler for n sequences with so many blocks."""
    return Scheduler(
        Config(
            num_gpu_blocks=blocks,
            num_cpu_blocks=0,
            block_size=BLOCK_SIZE,
            max_num_seqs=n,
            max_num_batched_tokens=budget,
            max_model_len=NO_LIMIT,
            enable_chunked_prefill=chunked,
        )
    )


def decode(n: int, case: str) -> dict[str, object]:
    """Ours: `decode`, `decode_all` and `plan_view` as `steady` says; `chunked`: as `decode`, with chunked prefill enabled."""
    lengths = prompts(n)
    scheduler = roomy(n, plenty(lengths), chunked=case == "chunked")
    for length in lengths:
        scheduler.add_request(length, NEVER)
    scheduler.schedule()
    scheduler.commit()
    clock = Clock()
    steady(scheduler, clock, case)
    assert len(scheduler.state.running[1]) == n, "somebody ended in the steady decode"
    return clock.row(case, n)


def peer_decode(n: int) -> dict[str, object]:
    """The peer's steady decode."""
    lengths = prompts(n)
    peer = PeerScheduler(plenty(lengths), BLOCK_SIZE, n, NO_LIMIT)
    for i, length in enumerate(lengths):
        peer.add(Sequence(i, [i] * length, NEVER, BLOCK_SIZE))  # no two share a prefix
    scheduled, _ = peer.schedule()
    peer.postprocess(scheduled, [TOKEN] * n)
    clock = Clock()
    for _ in chunked(clock, DECODE_STEPS):
        start = perf_counter_ns()
        scheduled, _ = peer.schedule()
        took = perf_counter_ns() - start
        tokens = [TOKEN] * len(scheduled)
        start = perf_counter_ns()
        peer.postprocess(scheduled, tokens)
        clock.steps.append(took + perf_counter_ns() - start)
    assert len(peer.running) == n, "somebody ended in the steady decode"
    return clock.row("peer_decode", n)


def pressure(n: int, case: str) -> dict[str, object]:
    """Ours. `pressure`: victims are recomputed; `pressure_swap`: they are swapped out, the host pool is as large as the GPU's."""
    mode = "swap" if case == "pressure_swap" else "recompute"
    blocks = under_pressure(n)
    scheduler = Scheduler(
        Config(
            num_gpu_blocks=blocks,
            num_cpu_blocks=blocks if mode == "swap" else 0,
            block_size=BLOCK_SIZE,
            max_num_seqs=n,
            max_num_batched_tokens=BUDGET,
            max_model_len=BUDGET,
        ),
        mode,
    )
    arrivals = requests()
    clock, preempting, ended = Clock(), 0, 0
    for _ in chunked(clock, PRESSURE_STEPS):
        for _ in range(n - scheduler.unfinished):
            scheduler.add_request(*next(arrivals))
        start = perf_counter_ns()
        plan = scheduler.schedule()
        took = perf_counter_ns() - start
        late = set(plan.unfinished)
        results = [(g, TOKEN) for g, _, _ in plan.prefills if g not in late] + [(g, TOKEN) for g in plan.decodes]
        start = perf_counter_ns()
        outcomes = scheduler.commit(results)
        clock.steps.append(took + perf_counter_ns() - start)
        preempting += len(plan.preempted) > 0
        ended += len(outcomes)
    return clock.row(case, n, preempting_steps=preempting, ended=ended)


def peer_pressure(n: int) -> dict[str, object]:
    """The peer under the same pressure; it can only recompute."""
    peer = PeerScheduler(under_pressure(n), BLOCK_SIZE, n, BUDGET)
    arrivals, ids = requests(), count()
    clock, preempting, ended = Clock(), 0, 0
    for _ in chunked(clock, PRESSURE_STEPS):
        for _ in range(n - len(peer.waiting) - len(peer.running)):
            prompt, output = next(arrivals)
            peer.add(Sequence(i := next(ids), [i] * prompt, output, BLOCK_SIZE))
        before = peer.preemptions
        start = perf_counter_ns()
        scheduled, _ = peer.schedule()
        took = perf_counter_ns() - start
        tokens = [TOKEN] * len(scheduled)
        start = perf_counter_ns()
        outcomes = peer.postprocess(scheduled, tokens)
        clock.steps.append(took + perf_counter_ns() - start)
        preempting += peer.preemptions > before
        ended += len(outcomes)
    return clock.row("peer_pressure", n, preempting_steps=preempting, ended=ended)
