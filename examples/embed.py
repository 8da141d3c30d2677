"""An engine of one page around kvproof. Its "model" adds up what it reads, so a block out of place would change the tokens."""

from kvproof import Config, Plan, Scheduler


class ToyEngine:
    """Holds the KV cache and the block tables, and does what plans say."""

    def __init__(self, config: Config) -> None:
        self.size = config.block_size
        self.cache = [[0] * self.size for _ in range(config.num_gpu_blocks + config.num_cpu_blocks)]  # GPU blocks first
        self.tables: dict[int, list[int]] = {}
        self.tokens: dict[int, list[int]] = {}  # prompt + generated

    def step(self, plan: Plan) -> list[tuple[int, int]]:
        """Execute one plan. Returns (request, token) of everybody who got a token."""
        for source, target in (*plan.swap_out, *plan.swap_in, *plan.copy):  # in this order
            self.cache[target] = list(self.cache[source])
        for g, _ in plan.preempted:
            del self.tables[g]
        for g, _, i, block in plan.slots:  # the i-th block of g is now this one
            self.tables.setdefault(g, [])[i : i + 1] = [block]
        work = list(plan.prefills) + [(g, len(self.tokens[g]) - 1, 1) for g in plan.decodes]
        for g, start, count in work:
            for p in range(start, start + count):
                self.cache[self.tables[g][p // self.size]][p % self.size] = self.tokens[g][p]
        ready = [g for g, start, count in work if start + count == len(self.tokens[g])]  # not in mid-prefill
        results = [(g, self.next_token(g)) for g in ready]
        for g, token in results:
            self.tokens[g].append(token)
        return results

    def next_token(self, g: int) -> int:
        """The model: it sees the request only through its block table."""
        read = [self.cache[self.tables[g][p // self.size]][p % self.size] for p in range(len(self.tokens[g]))]
        return sum((p + 1) * token for p, token in enumerate(read)) % 50_000


def serve(config: Config, preemption_mode: str) -> dict[int, list[int]]:
    """Six requests to their ends; returns the tokens of each."""
    scheduler, engine = Scheduler(config, preemption_mode), ToyEngine(config)
    for k in range(6):
        g = scheduler.add_request(prompt_tokens=4 + k, max_tokens=12)
        engine.tokens[g] = list(range(100 * k, 100 * k + 4 + k))
    while scheduler.unfinished:
        results = engine.step(scheduler.schedule())
        for end in scheduler.commit(results):
            engine.tables.pop(end.group, None)
            times = end.recomputed + end.swapped
            print(f"request {end.group}: {end.status.name}, {end.output_tokens} tokens, preempted {times} times")
    return engine.tokens


if __name__ == "__main__":
    serve(Config(num_gpu_blocks=8, num_cpu_blocks=8, block_size=4), "swap")
