"""Schedulers of a few blocks, driven step by step; after every call each block is in exactly one place."""

from kvproof import Config, Scheduler
from kvproof.store.collections import row


def config(gpu: int, cpu: int = 0, **fields) -> Config:
    return Config(num_gpu_blocks=gpu, num_cpu_blocks=cpu, **{"block_size": 4, "max_model_len": 64, **fields})


def check_pools(s: Scheduler) -> None:
    """Counters equal list lengths, no block is free twice, none is both free and held, none is lost."""
    state = s.state
    held = set()
    for g in (*state.running[1], *state.swapped[1]):
        for q in state.members.get(g, ((0,), 1))[0]:
            held |= set(row(state.table, g, q))
    gpu, cpu = state.free_blocks()
    assert (len(gpu), len(cpu)) == (state.gpu_free, state.cpu_free)
    n, m = s.config.num_gpu_blocks, s.config.num_cpu_blocks
    assert sorted([*gpu, *cpu, *held]) == list(range(n + m))
    assert all(b < n for b in gpu) and all(b >= n for b in cpu)


def step(s: Scheduler, *arguments, **more):
    plan = s.schedule()
    check_pools(s)
    outcomes = s.commit(*arguments, **more)
    check_pools(s)
    return plan, outcomes


def finish(s: Scheduler):
    """Run to the end; returns all outcomes by group."""
    out = {}
    while s.unfinished:
        out |= {o.group: o for o in step(s)[1]}
    assert (s.state.gpu_free, s.state.cpu_free) == (s.config.num_gpu_blocks, s.config.num_cpu_blocks)
    return out
