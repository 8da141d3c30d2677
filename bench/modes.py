"""The steady decode with what costs more than the plain case: prompts computed in pieces, and groups of two sequences.

Pieces: N requests in the system, of which one is in the middle of its prefill in every step and the others decode. The budget
leaves PIECE tokens for the prompt. When a prompt is done the engine ends the request that came first, and a new one arrives.
Pairs: groups of two sequences that have forked after their prefill. They share the blocks of the prompt, but for the tail,
which the first step copies before anything is timed; then both grow.
"""

from random import Random
from time import perf_counter_ns

from kvproof.bench.calibrate import Clock
from kvproof.bench.cases import BLOCK_SIZE, DECODE_STEPS, NEVER, PROMPT, SEED, TOKEN, chunked, plenty, prompts, roomy, steady

PIECE = 64
"""Tokens of a prompt in a step, at most."""
LONGEST = 2_048
"""Tokens of a sequence for which there are blocks, on average."""


def chunked_arrivals(n: int) -> dict[str, object]:
    """Chunked prefill, with a piece of a prompt in every step."""
    scheduler = roomy(n, n * (LONGEST // BLOCK_SIZE), n + PIECE, chunked=True)
    random = Random(SEED)

    def arrive() -> None:
        scheduler.add_request(random.randint(*PROMPT), NEVER)

    for _ in range(n):
        arrive()
    while scheduler.state.decoders < n - 1 or scheduler.state.waiting[1]:
        scheduler.schedule()
        scheduler.commit()
    clock, ended, pieces, evicted = Clock(), 0, 0, 0
    for _ in chunked(clock, DECODE_STEPS):
        for _ in range(n - scheduler.unfinished):
            arrive()
        start = perf_counter_ns()
        plan = scheduler.schedule()
        took = perf_counter_ns() - start
        late = set(plan.unfinished)
        results = [(g, TOKEN) for g, _, _ in plan.prefills if g not in late] + [(g, TOKEN) for g in plan.decodes]
        stopped = () if late else ((plan.running[0], 0),)
        start = perf_counter_ns()
        ended += len(scheduler.commit(results, stopped))
        clock.steps.append(took + perf_counter_ns() - start)
        pieces += len(plan.prefills)
        evicted += len(plan.preempted)
    assert not evicted, "blocks ran out in the steady decode"
    return clock.row("chunked_arrivals", n, pieces=pieces, ended=ended)


def pairs(n: int, case: str) -> dict[str, object]:
    """Groups of two. `pairs`: N sequences (if N is odd, one is alone); `twice_pairs`: N groups, so twice as many sequences."""
    sequences = n if case == "pairs" else 2 * n
    lengths = prompts(-(-sequences // 2))
    scheduler = roomy(sequences, 2 * plenty(lengths))
    two = [scheduler.add_request(length, NEVER, 2) for length in lengths[: sequences // 2]]
    for length in lengths[len(two) :]:
        scheduler.add_request(length, NEVER)
    scheduler.schedule()
    scheduler.commit()
    for g in two:
        scheduler.fork(g)
    scheduler.schedule()
    scheduler.commit()
    clock = Clock()
    steady(scheduler, clock)
    assert scheduler.state.decoders == sequences, "somebody ended in the steady decode"
    return clock.row(case, n, sequences)
