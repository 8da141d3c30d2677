"""What must be true between two calls: every clause of the specification, and the scheduler's state as the engine expects it."""

from kvproof.core.config import Config
from kvproof.fuzz.faults import equal, fault, nothing
from kvproof.fuzz.memory import Memory
from kvproof.spec.check import engine_violations, violations
from kvproof.store.state import State


def check(m: Memory, state: State, spec: bool = True) -> None:
    """Everything that holds between two calls. `spec`: the clauses of the specification too."""
    if spec:
        nothing("invariants", violations(state))
        nothing("announcements", engine_violations(state, m.told))
    pools(m, state)
    queues(m, state)
    groups(m, state)
    seats(m, state)


def pools(m: Memory, state: State) -> None:
    """The backend, which knows only plans and notices, counts the blocks in use."""
    config = state.config
    used = (config.num_gpu_blocks - state.gpu_free, config.num_cpu_blocks - state.cpu_free)
    equal("pools of the backend", (m.backend.gpu_used, m.backend.host_used), used)


def queues(m: Memory, state: State) -> None:
    """Who is unfinished stands in one queue, in kvproof in policy order."""
    lines = (state.waiting[1], state.running[1], state.swapped[1])
    equal("unfinished groups", sorted(g for line in lines for g in line), sorted(m.groups))
    if not state.config.vllm_v0:
        for line in lines:
            equal("policy order", list(line), sorted(line, key=m.rank))


def groups(m: Memory, state: State) -> None:
    """Sequences, tokens, questions to be answered no; nobody goes on at its limit."""
    decoding = set(state.running[1]) - set(state.prefilling[1])
    for g, group in m.groups.items():
        equal(f"live sequences of {g}", list(state.members.get(g, ((0,), 1))[0]), group.live)
        equal(f"denials to come of {g}", state.deny.get(g, 0), group.deny)
        equal(f"preemptions of {g} that count", state.preemptions.get(g, 0), group.often)
        if not state.issued:
            tokens = state.clock - state.born[g] if g in decoding else state.length[g]
            equal(f"tokens of {g}", {m.length(g, q) for q in group.live}, {tokens})
            if tokens >= group.limit:
                fault("limit", f"group {g} goes on with {tokens} tokens, it ends at {group.limit}")


def seats(m: Memory, state: State) -> None:
    """Each group has as many seats as it asked for and its forks took."""
    for g, group in m.groups.items():
        equal(f"seats of {g}", state.seats[g], group.seats)
    taken = sum(m.groups[g].seats for g in state.running[1])
    equal("seats in use", state.seqs, taken)
    limited = not (state.config.vllm_v0 and state.config.enable_chunked_prefill)
    if limited and taken > state.config.max_num_seqs:
        fault("seats", f"{taken} are in use of {state.config.max_num_seqs}")


def all_back(m: Memory, state: State, names: tuple[str, ...]) -> None:
    """Nobody is left: every block is free and nothing is known of anybody."""
    config: Config = state.config
    equal("free blocks at the end", (state.gpu_free, state.cpu_free), (config.num_gpu_blocks, config.num_cpu_blocks))
    equal("blocks that the backend holds", (m.backend.gpu_used, m.backend.host_used), (0, 0))
    nothing("what is left of maps", {name: found for name in names if (found := getattr(state, name).to_dict())})
