"""Requests of several sequences: they fork after their first token, share what they have in common, and stop one by one.

The same "model" as in `embed.py`; each sequence has its own taste, so siblings go different ways. Whatever is preempted, copied
or recomputed, the tokens are those of a run in which there is room for everybody.
"""

from kvproof import Config, Plan, Result, Scheduler, take_back

Key = tuple[int, int]
"""(request, sequence)."""


class GroupEngine:
    """A KV cache, a block table and the tokens of each sequence."""

    def __init__(self, config: Config) -> None:
        self.size = config.block_size
        self.cache = [[0] * self.size for _ in range(config.num_gpu_blocks + config.num_cpu_blocks)]  # GPU blocks first
        self.tables: dict[Key, list[int]] = {}
        self.tokens: dict[Key, list[int]] = {}

    def sequences(self, g: int) -> list[int]:
        """Those of request g that have not ended."""
        return [q for h, q in self.tokens if h == g]

    def step(self, plan: Plan) -> list[Key]:
        """Execute one plan. Returns the sequences whose next token can be sampled."""
        for source, target in (*plan.swap_out, *plan.swap_in, *plan.copy):  # in this order
            self.cache[target] = list(self.cache[source])
        for g, _ in plan.preempted:
            for q in self.sequences(g):
                del self.tables[g, q]
        for g, q, i, block in plan.slots:  # the i-th block of sequence q is now this one
            self.tables.setdefault((g, q), [])[i : i + 1] = [block]
        ready = list(plan.decodes)
        for g in plan.decodes:
            for q in self.sequences(g):
                self.write(g, q, len(self.tokens[g, q]) - 1, 1)
        several = {r.group: r for r in plan.recomputes}
        for g, start, count in plan.prefills:
            if g in several:  # the siblings' tokens, what they have in common once
                for q, first, n in several[g].parts:
                    self.write(g, q, first, n)
                for _, other, first, n in several[g].shared(self.size):
                    self.write(g, other, first, n)
                complete = several[g].complete
            else:
                (q,) = self.sequences(g)
                self.write(g, q, start, count)
                complete = start + count == len(self.tokens[g, q])
            ready += [g] if complete else []
        return [(g, q) for g in ready for q in self.sequences(g)]

    def write(self, g: int, q: int, first: int, count: int) -> None:
        """Compute `count` tokens of a sequence, and store them where its table says."""
        for p in range(first, first + count):
            self.cache[self.tables[g, q][p // self.size]][p % self.size] = self.tokens[g, q][p]

    def next_token(self, g: int, q: int) -> int:
        """The model: it sees a sequence only through its block table. q: its taste."""
        table, n = self.tables[g, q], len(self.tokens[g, q])
        return sum((p + 1) * self.cache[table[p // self.size]][p % self.size] for p in range(n)) % 997 + q


def serve(config: Config, preemption_mode: str | None = None, n: int = 3) -> dict[Key, list[int]]:
    """Four requests of n sequences each to their ends; returns the tokens of each sequence."""
    scheduler, engine = Scheduler(config, preemption_mode), GroupEngine(config)
    for k in range(4):
        engine.tokens[scheduler.add_request(prompt_tokens=3 + k, max_tokens=10, n=n), 0] = list(range(100 * k, 100 * k + 3 + k))
    done: dict[Key, list[int]] = {}
    young = {g for g, _ in engine.tokens}
    while scheduler.unfinished:
        sampled = {key: engine.next_token(*key) for key in engine.step(scheduler.schedule())}
        results = []
        for (g, q), token in sampled.items():
            engine.tokens[g, q].append(token)
            stops = "stop token" if token % 11 == 0 and g not in young else None
            results.append(Result(g, q, ended=stops, forks=n - 1 if g in young else 0))
            if stops:
                done[g, q] = engine.tokens.pop((g, q))
                del engine.tables[g, q]
        taken = take_back(scheduler, results)
        for (g, q), children in taken.children.items():  # a child has its parent's tokens, but for the last: it samples its own
            young.discard(g)
            for child in children:
                engine.tables[g, child] = list(engine.tables[g, q])
                engine.tokens[g, child] = [*engine.tokens[g, q][:-1], engine.tokens[g, q][-1] + child]
        for end in taken.outcomes:
            for q in engine.sequences(end.group):
                done[end.group, q] = engine.tokens.pop((end.group, q))
                del engine.tables[end.group, q]
            print(f"request {end.group}: {end.status.name}, {end.outputs} tokens, preempted {end.recomputed + end.swapped} times")
    return done


if __name__ == "__main__":
    serve(Config(num_gpu_blocks=16, num_cpu_blocks=8, block_size=2, max_num_seqs=12))
