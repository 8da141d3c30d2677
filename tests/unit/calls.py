"""Random calls of a scheduler, as plain numbers: what a call is about depends on the state only.

So two schedulers on equal states answer the same calls in the same way, or one of them is wrong.
"""

from random import Random

from hypothesis import strategies as st

from kvproof import Config, Rejected, Scheduler
from kvproof.core.config import ArtificialPreemption

KINDS = 16


def many(seed: int, count: int, kinds: int = KINDS) -> list[tuple[int, int, int]]:
    """So many calls."""
    random = Random(seed)
    return [(random.randrange(kinds), random.randrange(8), random.randrange(8)) for _ in range(count)]


calls = st.builds(many, st.integers(0, 2**32), st.integers(0, 100))
"""From a seed: lists that Hypothesis draws itself are mostly too short for a preemption."""
kvproof_configs = st.builds(
    Config,
    num_gpu_blocks=st.integers(2, 9),
    num_cpu_blocks=st.integers(0, 9),
    block_size=st.sampled_from([1, 2, 4]),
    watermark_blocks=st.integers(0, 1),
    max_num_seqs=st.integers(2, 6),
    max_num_batched_tokens=st.integers(6, 30).map(lambda n: max(n, 6)),
    max_model_len=st.integers(4, 6) | st.just(20),
    enable_chunked_prefill=st.booleans(),
    num_lookahead_slots=st.sampled_from([0, 0, 1]),
    priority=st.booleans(),
    artificial_preemption=st.none() | st.builds(ArtificialPreemption, seed=st.integers(0, 9), probability=st.just(0.2)),
)
v0_configs = st.builds(
    Config,
    num_gpu_blocks=st.integers(2, 9),
    num_cpu_blocks=st.integers(0, 9),
    block_size=st.sampled_from([1, 4]),
    max_num_seqs=st.integers(2, 6),
    max_num_batched_tokens=st.just(24),
    max_model_len=st.integers(6, 24),
    vllm_v0=st.just(True),
)
any_config = kvproof_configs | v0_configs
modes = st.sampled_from(["recompute", "swap", None])


def call(s: Scheduler, kind: int, a: int, b: int):
    """One call; returns what it answers, or why it is rejected."""
    state = s.state
    unfinished = [*state.running[1], *state.waiting[1], *state.swapped[1]]
    try:
        if kind < 3:
            return s.add_request(1 + a, 1 + b, n=1 + kind // 2, priority=a % 3)
        if kind == 3 and unfinished:
            return s.abort(unfinished[a % len(unfinished)])
        if kind == 4 and state.running[1]:
            return s.fork(state.running[1][a % len(state.running[1])], b % 2, a % 2 == 1)
        running = state.running[1]
        if kind == 7 and running:
            return s.finish(running[a % len(running)], b % 2)
        if kind == 8 and running:
            return s.preempt(running[a % len(running)], (None, "recompute", "swap")[b % 3])
        if kind == 15 and unfinished:
            return s.rerank(unfinished[a % len(unfinished)], b % 3 - 1)
        if not state.issued:
            return s.schedule()
        if kind == 5 and running:
            return s.commit([(g, 1) for g in running if g != running[a % len(running)]])  # one has no result
        if kind == 6 and running:
            return s.commit(ended=[(running[a % len(running)], b % 2)])
        return s.commit()
    except Rejected as error:
        return str(error)


def answers(s: Scheduler, some) -> list:
    """What a list of calls answers."""
    return [call(s, *one) for one in some]


def pressed(mode: str | None = "swap", **options) -> Scheduler:
    """A scheduler of five requests in a pool for two, in the middle of its work: preemptions have been, and more are to come."""
    s = Scheduler(Config(num_gpu_blocks=6, num_cpu_blocks=8, block_size=4, max_model_len=20), mode, **options)
    for k in range(5):
        s.add_request(4 + k, 12)
    for _ in range(9):
        s.schedule()
        s.commit()
    return s


def everything(s: Scheduler) -> list:
    """All plans and outcomes to the end."""
    out = []
    while s.unfinished:
        if not s.state.issued:
            out.append(s.schedule())
        out.append(s.commit())
    return out
