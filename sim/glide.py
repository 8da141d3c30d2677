"""Fast-forward: several decode steps at once, where nothing is decided in them.

The scheduler makes the passes in one go (`Scheduler.forward`: the same passes, without a plan for each); the time of each step is
added up here as it would be one by one, so every figure of a run is the same to the last bit.
"""

from typing import TYPE_CHECKING

from kvproof.scheduler import Scheduler

if TYPE_CHECKING:
    from kvproof.sim.engine import Simulation

STEPS_MAX = 16
"""So many at once: the times of steps that are not made are computed in vain."""


def glide(sim: "Simulation", most: float) -> int:
    """At most so many steps; returns how many were made.

    None is made that begins after the next arrival, or of which the pool's use is to be recorded.
    """
    now_s, kv_tokens, decoding, decode_s = sim.now_s, sim.kv_tokens, sim.decoding, sim.cost.decode_s
    until_s = min(sim.next_arrival_s, sim.metrics.pool_use.next_s)
    ends_s: list[float] = []
    while now_s < until_s and len(ends_s) < most:
        now_s += decode_s(decoding, kv_tokens)
        kv_tokens += decoding
        ends_s.append(now_s)
    scheduler = sim.scheduler
    made = scheduler.forward(len(ends_s)) if ends_s and isinstance(scheduler, Scheduler) else 0
    if made:
        sim.now_s = ends_s[made - 1]
        sim.decode_steps += made
        sim.kv_tokens += made * decoding
        sim.metrics.decode_steps += made
        free = scheduler.state.gpu_free
        if free < sim.metrics.gpu_free_min:
            sim.metrics.gpu_free_min = free
    return made
