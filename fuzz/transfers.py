"""Plans of random workloads on the stream simulator: what the model reads must be what the fake backend has, in any interleaving.

Each workload has its own order of operations, its own way of copying, its own limits of pinned memory, and waits for its results
at once or some readings later. Races, uses after free and buffers never freed raise; at the end every output is that of a request
alone. Every eighth is a storm of plans without a scheduler (`storms.py`).
`python -m kvproof.fuzz.transfers --plans 10000` runs it.
"""

import argparse
import random
import sys
import time
from contextlib import suppress

from kvproof.backend_cuda.mirror import simulated
from kvproof.core.config import Config
from kvproof.core.errors import Rejected
from kvproof.fake_engine import FakeEngine, alone
from kvproof.fuzz.storms import Tally, calls, storm

LONGEST = 400
"""Steps of one workload; profile vllm_v0 may hang, and what is left is aborted then."""


def some_config(r: random.Random) -> Config:
    """Pools that are always too small."""
    size, length = r.choice((1, 2, 3, 4)), r.choice((12, 20))
    chunked, v0 = r.random() < 0.3, r.random() < 0.2
    return Config(
        num_gpu_blocks=-(-length // size) + r.choice((0, 1, 2, 5)),
        num_cpu_blocks=r.choice((3, 8, 20)),
        block_size=size,
        watermark_blocks=0,
        max_num_seqs=4,
        max_num_batched_tokens=r.choice((4, 8)) if chunked else 32,
        max_model_len=length,
        enable_chunked_prefill=chunked,
        num_lookahead_slots=r.choice((0, 0, 2)),
        vllm_v0=v0,
    )


def workload(seed: int, tally: Tally) -> None:
    """One workload, to its end."""
    r = random.Random(seed)
    config = some_config(r)
    backend = simulated(config, seed)
    engine = FakeEngine(config, r.choice(("swap", "swap", "swap", "recompute", None)), backend=lambda _: backend)
    s = engine.scheduler
    sizes: dict[int, tuple[str, int, int]] = {}
    for steps in range(LONGEST):
        while r.random() < (0.3 if steps < 30 else 0):
            name, prompt, n = f"{seed}.{len(sizes)}", r.randint(1, 8), r.choice((1, 1, 2, 3))
            output = r.randint(1, min(10, config.max_model_len - prompt))
            with suppress(Rejected):
                sizes[engine.add(name, prompt, output, n)] = name, prompt, output
        if not s.unfinished and steps > 30:
            break
        if s.unfinished and r.random() < 0.05:
            engine.abort(r.choice([*s.state.waiting[1], *s.state.running[1], *s.state.swapped[1]]))
            tally.aborts += 1
        accept = {g: r.randint(1, 3) for g in s.state.running[1]} if config.num_lookahead_slots else None
        step = engine.step(steps, accept)
        tally.plans += 1
        for outcome in step.outcomes:
            name, prompt, output = sizes[outcome.group]
            if outcome.status.name == "FINISHED_LENGTH_CAPPED" and outcome.group not in engine.forks:
                made = tuple(engine.model.output(outcome.group))
                assert made == alone(name, prompt, output, config.block_size)[0], f"workload {seed}: tokens of {name} differ"
                tally.outputs += 1
    for g in (*s.state.waiting[1], *s.state.running[1], *s.state.swapped[1]):
        engine.abort(g)
    backend.close()
    tally.workloads += 1
    tally.taken += backend.cuda.copier.taken
    tally.taken["chunks registered"] += calls(backend.cuda).get("registered", 0)


def main(argv: list[str] | None = None) -> int:
    """Exit status 0: no fault; 1: one, with the seed of its workload."""
    parser = argparse.ArgumentParser(prog="python -m kvproof.fuzz.transfers", description=__doc__.partition("\n")[0])
    parser.add_argument("--plans", type=int, default=10_000, help="so many plans at least")
    parser.add_argument("--seed", type=int, default=0, help="of the first workload")
    options = parser.parse_args(argv)
    tally, seed, begin = Tally(), options.seed, time.perf_counter()
    try:
        while tally.plans < options.plans:
            (storm if seed % 8 == 0 else workload)(seed, tally)
            seed += 1
            if sys.stderr.isatty():
                print(f"\r{tally.plans:,} plans", end="", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        print(f"workload {seed}: {type(error).__name__}: {error}")
        print(f"again: python -m kvproof.fuzz.transfers --seed {seed} --plans 1")
        return 1
    moved = ", ".join(f"{n:,} {what}" for what, n in sorted(tally.taken.items()))
    print(f"{tally.workloads} workloads, {tally.aborts} aborts, {tally.outputs} outputs compared; {tally.storms} storms")
    print(f"{tally.plans:,} plans, {moved}; no race, no leak, contents equal ({time.perf_counter() - begin:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
