"""An order by urgency: requests say within how many passes they want their first token, and who is late ranks before all others.

So those with near targets come first, and one with a far target is only passed until its own is over.
"""

from collections.abc import Iterator

from kvproof import Config, Scheduler
from kvproof.policies.desk import Desk, Request

LATE = 0


class Urgency:
    """The earliest deadline first. The `priority` of a request is its target: passes until its first token."""

    name = "urgency"
    displaces = False  # who runs is left alone
    patience = 10  # passes that preempt, until somebody gets a new token

    def __init__(self, farthest: int = 50) -> None:
        self.farthest = farthest
        self.overtakes = farthest + 1  # passes: late by then, it ranks before all but earlier arrivals

    def arrive(self, desk: Desk, request: Request) -> int:
        """The pass by which it should have its first token."""
        target = min(max(request.priority, 1), self.farthest)
        desk.wake(request.group, target)
        return desk.now + target

    def rank(self, desk: Desk) -> Iterator[tuple[int, int]]:
        """Before each pass: whose deadline is now? If it runs, it is the first to come back should it be preempted."""
        for g in desk.woken:
            yield g, LATE


def serve(policy: str | Urgency) -> tuple[int, int]:
    """Urgent requests keep coming, as many as can be served. Before which pass does the patient one start; how many are late?

    -1: not within 300 passes.
    """
    sizes = Config(num_gpu_blocks=16, num_cpu_blocks=0, block_size=4, max_num_seqs=1)
    scheduler = Scheduler(sizes, preemption_mode="recompute", policy=policy)
    due = {scheduler.add_request(prompt_tokens=4, max_tokens=1, priority=5): 5 for _ in range(2)}
    patient, late, started = scheduler.add_request(prompt_tokens=40, max_tokens=1, priority=30), 0, -1
    for now in range(300):
        due[scheduler.add_request(prompt_tokens=4, max_tokens=1, priority=5)] = now + 5
        for g, _, _ in scheduler.schedule().prefills:
            started = now if g == patient else started
            late += g != patient and now > due[g]
        scheduler.commit()
    return started, late


if __name__ == "__main__":
    print("(pass, late ones) by target:", serve("priority"), "by urgency:", serve(Urgency()))
