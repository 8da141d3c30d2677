"""Lookahead slots: a step computes guessed tokens too, and keeps those that were right. The tokens are those of `embed.py`.

The guesses are right two times out of three here. Slots for them are a wish: in a tight pool there are fewer, and nobody is
preempted for them.
"""

from embed import ToyEngine

from kvproof import Config, Scheduler


class GuessingEngine(ToyEngine):
    """Computes as many guesses as there are slots for."""

    def guesses(self, g: int, most: int) -> list[int]:
        """Further tokens of g: each is computed into the next slot of its table, and kept if it is what the model says."""
        right: list[int] = []
        while len(right) < most and len(self.tokens[g]) <= len(self.tables[g]) * self.size and len(self.tokens[g]) % 3:
            p = len(self.tokens[g]) - 1
            self.cache[self.tables[g][p // self.size]][p % self.size] = self.tokens[g][p]
            right.append(self.next_token(g))
            self.tokens[g].append(right[-1])
        return right


def serve(config: Config) -> tuple[dict[int, list[int]], int]:
    """Three requests to their ends; returns the tokens of each, and the number of steps."""
    scheduler, engine, steps = Scheduler(config), GuessingEngine(config), 0
    for k in range(3):
        g = scheduler.add_request(prompt_tokens=4 + k, max_tokens=20)
        engine.tokens[g] = list(range(100 * k, 100 * k + 4 + k))
    while scheduler.unfinished:
        plan = scheduler.schedule()
        for g, q, n in plan.trimmed:  # first of all: slots that nobody has written are given back
            assert q == 0
            del engine.tables[g][n:]
        results, steps = engine.step(plan), steps + 1
        decoded = {*plan.decodes}
        accepted = [(g, 1 + len(engine.guesses(g, config.num_lookahead_slots))) for g, _ in results if g in decoded]
        for end in scheduler.commit(results, accepted=accepted):
            engine.tables.pop(end.group, None)
            del engine.tokens[end.group][end.tokens :]  # what was guessed beyond its limit does not count
            print(f"request {end.group}: {end.status.name}, {end.output_tokens} tokens, step {steps}")
    return engine.tokens, steps


if __name__ == "__main__":
    for slots in (0, 3):
        _, number = serve(Config(num_gpu_blocks=12, num_cpu_blocks=0, num_lookahead_slots=slots, block_size=4))
        print(f"{slots} lookahead slots: {number} steps")
