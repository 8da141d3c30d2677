"""An order of one's own: priorities that age. Who waits moves up one rank every so many passes, so nobody starves."""

from collections.abc import Iterator

from kvproof import Config, Scheduler
from kvproof.policies.desk import Desk, Request


class Ageing:
    """Smaller priorities first, 0 to 9; a request that waits gains 1 every `every` passes, and keeps it."""

    name = "ageing"
    displaces = False  # who runs is left alone
    patience = 10  # passes that preempt, until somebody gets a new token

    def __init__(self, every: int = 10) -> None:
        self.every = every
        self.overtakes = 11 * every  # passes: after ten gains it ranks before all that come

    def arrive(self, desk: Desk, request: Request) -> int:
        """The priority that it was added with."""
        rank = min(max(request.priority, 0), 9)
        desk.keep(request.group, rank)  # a note of its own, which goes when the request goes
        desk.wake(request.group, self.every)
        return rank

    def rank(self, desk: Desk) -> Iterator[tuple[int, int]]:
        """Before each pass: who has waited long enough for another gain?"""
        for g in desk.woken:
            if desk.get(g) >= 0:
                desk.wake(g, self.every)  # who runs may wait again
                if desk.waits(g):
                    desk.keep(g, desk.get(g) - 1)
                    yield g, desk.get(g)


def serve(policy: str | Ageing) -> int:
    """Urgent requests keep coming; before which pass does the one that is not urgent come in? -1: not within 300."""
    sizes = Config(num_gpu_blocks=8, num_cpu_blocks=0, block_size=4, max_num_seqs=1)
    scheduler = Scheduler(sizes, preemption_mode="recompute", policy=policy)
    patient = scheduler.add_request(prompt_tokens=4, max_tokens=3, priority=5)
    for now in range(300):
        scheduler.add_request(prompt_tokens=4, max_tokens=1)
        if any(g == patient for g, _, _ in scheduler.schedule().prefills):
            return now
        scheduler.commit()
    return -1


if __name__ == "__main__":
    print("by priority:", serve("priority"), "as priorities age:", serve(Ageing()))
