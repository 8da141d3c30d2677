"""Progress under adversarial workloads: tight pools, bursts, priorities, aborts, any choice of victims, and that of `auto`.

Every request must end within the bound that `kvproof.bounds` gives when it arrives, and whenever somebody has arrived that ranks
before it; and in between each pass must bring the bounds of all nearer: that is what the theorem `every_request_ends` says.
With a limit nobody may be preempted more often (`bounded_preemptions`).
`python -m kvproof.fuzz.progress --workloads 1000` runs it.
"""

import argparse
import random
import sys
from collections import Counter

import attrs

from kvproof.bounds import bounds
from kvproof.core.config import Config
from kvproof.fuzz.setup import AnyPolicy, Names
from kvproof.policies.costs import Costs
from kvproof.scheduler import Scheduler


@attrs.define
class Tally:
    """What has happened so far."""

    requests: int = 0
    passes: int = 0
    preemptions: int = 0
    by_auto: int = 0
    """Of them, those by estimated cost."""
    closest: float = 0.0
    """The largest share of its bound that a request has used up."""


OUTPUT_MAX = 20
Sizes = tuple[int, int, int, int]
"""Least and most prompt tokens, least and most output tokens."""


def some_config(r: random.Random, crowded: bool) -> Config:
    """Small, tight, and of every kind. `crowded`: everybody is admitted at once and grows; the pool holds one of them, or two."""
    tokens = r.choice((8, 32)) if crowded else r.choice((2, 4, 8, 32))
    size, length = r.choice((1, 2, 3, 4)), r.choice((12, 24))
    most = -(-min(length, OUTPUT_MAX + 3) // size)
    return Config(
        num_gpu_blocks=most + r.randint(0, most) if crowded else r.choice((3, 4, 5, 6, 8, 12)),
        num_cpu_blocks=r.choice((0, 2, 6, 64)),
        block_size=size,
        watermark_blocks=0 if crowded else r.choice((0, 0, 1)),
        max_num_seqs=r.randint(4, 8) if crowded else r.randint(1, min(tokens, 6)),
        max_num_batched_tokens=tokens,
        max_model_len=length,
        enable_chunked_prefill=r.random() < 0.4,
        num_lookahead_slots=r.choice((0, 0, 0, 3)),
        priority=r.random() < 0.5,
        choose_victims=r.random() < 0.4,
        delay_factor=r.choice((0, 0, 0, 2)),
        max_preemptions_per_request=r.choice((None, None, 0, 1, 2)),
    )


def some_costs(r: random.Random) -> Costs:
    """Now it is cheaper to compute again, now to swap, now it depends on the victim."""
    return Costs(
        s_per_token=r.choice((0, 1, 1)),
        s_per_pair=r.choice((0, 0.1)),
        recompute_overhead_s=r.choice((0, 3)),
        out_s_per_block=r.choice((0, 1, 4)),
        transfer_overhead_s=r.choice((0, 2)),
    )


class Run:
    """One workload, to its end."""

    def __init__(self, seed: int, tally: Tally) -> None:
        self.r, self.tally, self.seed = random.Random(seed), tally, seed
        crowded = self.r.random() < 0.6
        config = some_config(self.r, crowded)
        self.sizes: Sizes = (1, 3, OUTPUT_MAX // 2, OUTPUT_MAX) if crowded else (1, 12, 1, 10)
        if self.r.random() < 0.4:
            self.scheduler = Scheduler(config, "auto", costs=some_costs(self.r))
        else:
            self.scheduler = Scheduler(config, policy=Names(AnyPolicy()) if config.choose_victims else AnyPolicy())
        self.now = 0.0
        self.due: dict[int, tuple[int, int]] = {}
        """Request -> the pass after which it must have ended, and the bound that said so."""
        self.preempted: Counter[int] = Counter()
        """How often each request was preempted."""

    def go(self) -> None:
        """Bursts of arrivals and aborts, then everybody ends. Raises AssertionError if anybody is late."""
        s, r = self.scheduler, self.r
        for _ in range(r.randint(2, 6)):
            for _ in range(r.randint(1, 5)):
                self.arrive()
            for _ in range(r.choice((1, 3, 10))):
                self.step()
            if r.random() < 0.5 and s.unfinished:
                self.abort()
        while s.unfinished:
            self.step()
        assert s.state.gpu_free == s.config.num_gpu_blocks, f"workload {self.seed}: blocks are missing"

    def arrive(self) -> None:
        """A request. The bounds of those that rank behind it begin anew."""
        s, r = self.scheduler, self.r
        n = r.choice((1, 1, 1, 2))
        if n > s.config.max_num_seqs:
            n = 1
        prompt, output = r.randint(*self.sizes[:2]), r.randint(*self.sizes[2:])
        g = s.add_request(prompt, output, n, priority=r.randint(-1, 1), now=self.now)
        self.tally.requests += 1
        self.begin(g)

    def begin(self, g: int) -> None:
        """Bounds from the present state, of g and those behind it."""
        now = self.tally.passes
        for h, bound in bounds(self.scheduler.state).items():
            if self.scheduler.state.key[h] >= self.scheduler.state.key[g]:
                self.due[h] = now + bound, bound

    def abort(self) -> None:
        """Somebody leaves."""
        state = self.scheduler.state
        self.scheduler.abort(self.r.choice([*state.waiting[1], *state.running[1], *state.swapped[1]]))

    def step(self) -> None:
        """A pass and all its results; groups of several fork when they have a token."""
        s, tally = self.scheduler, self.tally
        before = bounds(s.state)
        plan = s.schedule(self.now)
        self.now += self.r.choice((1, 1, 5))
        tally.preemptions += len(plan.preempted)
        self.preempted.update(g for g, _ in plan.preempted)
        limit = s.config.max_preemptions_per_request
        often = [g for g, _ in plan.preempted if limit is not None and self.preempted[g] > limit]
        assert not often, f"workload {self.seed}, pass {s.state.epoch}: {often} were preempted more often than {limit} times"
        tally.by_auto += len(plan.preempted) * (s.costs is not None)
        s.commit(accepted=[(g, self.r.randint(1, 4)) for g in plan.decodes] if s.config.num_lookahead_slots else ())
        tally.passes += 1
        after = bounds(s.state)
        for g, bound in after.items():
            assert bound < before[g], f"workload {self.seed}, pass {s.state.epoch}: bound of {g} is {bound} after {before[g]}"
            at, whole = self.due[g]
            left = at - tally.passes
            assert left >= 1, f"workload {self.seed}, pass {s.state.epoch}: {g} has not ended within {whole} passes"
            tally.closest = max(tally.closest, 1 - left / whole)
        self.fork()

    def fork(self) -> None:
        """Groups that are to have several sequences fork."""
        s = self.scheduler
        for g in s.state.running[1]:
            alone = g not in s.state.members or len(s.state.members[g][0]) == 1
            if alone and s.state.seats[g] == 2 and g not in s.state.prefilling[1] and self.r.random() < 0.5:
                s.fork(g)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m kvproof.fuzz.progress", description=__doc__)
    parser.add_argument("--workloads", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    tally = Tally()
    for seed in range(options.seed, options.seed + options.workloads):
        try:
            Run(seed, tally).go()
        except AssertionError as error:
            print(error)
            return 1
        if seed % 100 == 99 and sys.stderr.isatty():
            print(f"{seed + 1} workloads", file=sys.stderr)
    done = f"{options.workloads} workloads, {tally.requests} requests, {tally.passes} passes"
    done += f", {tally.preemptions} preemptions ({tally.by_auto} by cost)"
    print(f"{done}: every request ended within its bound; the closest used {tally.closest:.0%} of it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
