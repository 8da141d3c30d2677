"""Forced low capacity: a random workload in every pool from the smallest that can run its largest request to the peak need.

Every request must end, finished, with the tokens that it gets in a pool without limits: preemption may cost time, never output.
`python -m kvproof.fuzz.capacity --workloads 200` runs it.
"""

import argparse
import random
import sys
from typing import Any

import attrs

from kvproof.core.config import Config
from kvproof.core.status import Status
from kvproof.fake_engine import FakeEngine

FINISHED = (Status.FINISHED_STOPPED, Status.FINISHED_LENGTH_CAPPED)
PLENTY = 4096
"""Blocks of the free run."""


@attrs.frozen
class Workload:
    """Requests (arrival step, prompt tokens, output tokens, priority), and how they are served."""

    seed: int
    requests: tuple[tuple[int, int, int, int], ...]
    config: dict[str, Any]
    mode: str | None
    accept: int


def workload(seed: int) -> Workload:
    """Random, small, and of every kind: chunked or not, by priority or not, with lookahead or not, each mode."""
    r = random.Random(seed)
    requests = tuple((r.randint(0, 12), r.randint(1, 14), r.randint(1, 14), r.randint(-1, 1)) for _ in range(r.randint(2, 7)))
    tokens = r.choice((4, 8, 32))
    config = {
        "num_cpu_blocks": r.choice((0, 3, 64)),
        "block_size": r.choice((1, 2, 3, 4)),
        "max_num_seqs": r.randint(1, tokens),
        "max_num_batched_tokens": tokens,
        "max_model_len": 64,
        "enable_chunked_prefill": r.random() < 0.4,
        "num_lookahead_slots": r.choice((0, 0, 2, 4)),
        "priority": r.random() < 0.4,
        "max_preemptions_per_request": r.choice((None, None, 0, 1, 2)),
    }
    return Workload(seed, requests, config, r.choice((None, "recompute", "swap")), r.randint(1, 5))


def smallest(w: Workload) -> int:
    """Blocks of the largest request when it computes its last token: the one sampled last needs no slot."""
    size: int = w.config["block_size"]
    return max(-(-(prompt + output - 1) // size) for _, prompt, output, _ in w.requests)


def serve(w: Workload, blocks: int) -> tuple[list[tuple[int, ...]], int, int]:
    """(tokens of each request, the most GPU blocks in use, preemptions). Raises AssertionError if anybody does not finish."""
    engine = FakeEngine(Config(num_gpu_blocks=blocks, **w.config), w.mode)
    todo = sorted(range(len(w.requests)), key=lambda i: w.requests[i][0])
    group: dict[int, int] = {}
    peak = preemptions = steps = 0
    limit = 100 + 40 * sum(prompt + output for _, prompt, output, _ in w.requests)
    while todo or engine.scheduler.unfinished:
        while todo and w.requests[todo[0]][0] <= steps:
            i = todo.pop(0)
            _, prompt, output, priority = w.requests[i]
            group[engine.add(f"{w.seed}/{i}", prompt, output, 1, priority)] = i
        accept = dict.fromkeys(engine.scheduler.state.running[1], w.accept) if w.config["num_lookahead_slots"] else None
        step = engine.step(steps, accept)
        peak = max(peak, blocks - step.decided.gpu_free)
        preemptions += len(step.plan.preempted)
        for outcome in step.outcomes:
            assert outcome.status in FINISHED, f"request {group[outcome.group]} ends as {outcome.status.name}: {outcome.reason}"
        steps += 1
        assert steps <= limit, f"not ended after {limit} steps"
    made = {i: tuple(engine.model.output(g)) for g, i in group.items()}
    assert engine.scheduler.state.gpu_free == blocks, "blocks are missing"
    return [made[i] for i in range(len(w.requests))], peak, preemptions


def squeeze(w: Workload) -> tuple[int, int]:
    """(pools tried, preemptions in them). Raises AssertionError, with the workload and the pool, if an output differs."""
    free, peak, _ = serve(w, PLENTY)
    pools, preemptions = range(smallest(w), peak + 1), 0
    for blocks in pools:
        try:
            outputs, _, count = serve(w, blocks)
            assert outputs == free, "outputs differ from those of the free run"
        except AssertionError as error:
            raise AssertionError(f"workload {w.seed} in a pool of {blocks} blocks: {error}") from None
        preemptions += count
    return len(pools), preemptions


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1 at the first workload that fails."""
    parser = argparse.ArgumentParser(prog="python -m kvproof.fuzz.capacity", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workloads", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    pools = preemptions = 0
    for seed in range(options.seed, options.seed + options.workloads):
        try:
            tried, count = squeeze(workload(seed))
        except AssertionError as error:
            print(error, file=sys.stderr)
            return 1
        pools, preemptions = pools + tried, preemptions + count
    print(f"{options.workloads} workloads, {pools} pools, {preemptions} preemptions: every output is that of the free run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
