"""One run of the whole system. Operations are called by name (`do`), so that the log of a run is a program that runs it again.

After every operation: every clause of `spec` on the state, the announced tables against the real ones, the pools of the backend
against those of the scheduler, token counts against the model's. After every pass and commit: the clauses about those. Every
token is compared with that of the request on its own as soon as it is made.
"""

import copy
from collections import Counter
from typing import Any

import attrs
from kvproof.backend_fake import FakeBackend, FakeModel
from kvproof.backend_fake.model import request_key
from kvproof.core.errors import Rejected
from kvproof.core.groups import finish_sequence
from kvproof.core.status import Status
from kvproof.fuzz import illegal
from kvproof.fuzz.faults import equal, fault, nothing
from kvproof.fuzz.oracle import contents, next_token
from kvproof.fuzz.setup import Setup
from kvproof.scheduler import Outcome
from kvproof.spec.check import commit_violations, engine_violations, pass_violations, violations
from kvproof.spec.told import Told
from kvproof.store.draft import Draft, State
from kvproof.store.plan import Plan

Operation = tuple[str, tuple[Any, ...]]
Results = list[tuple[int, ...]]


@attrs.define
class Memory:
    """All that changes in a run but for the state, which does not."""

    backend: FakeBackend
    model: FakeModel
    told: Told = attrs.field(factory=Told)
    live: dict[int, list[int]] = attrs.field(factory=dict)
    """Unfinished groups -> their live sequences."""
    limit: dict[int, int] = attrs.field(factory=dict)
    """Group -> tokens at which it ends."""
    aborted: set[int] = attrs.field(factory=set)
    """Ended, and the outcome is still to come."""
    plan: Plan | None = None
    """In flight: executed and computed, its results not yet taken back."""
    results: Results = attrs.field(factory=list)
    accounts: Any = None
    """What the scheduler keeps beside its state."""

    def copy(self) -> "Memory":
        """A deep copy; serial numbers go on, so that no two writers ever have one."""
        numbers = self.backend._numbers
        return copy.deepcopy(self, {id(numbers): numbers})


class World:
    """A run. Only `do` changes it."""

    def __init__(self, start: Setup) -> None:
        self.start, self.config = start, start.config
        self.scheduler = start.scheduler()
        backend = FakeBackend(self.config.num_gpu_blocks, self.config.num_cpu_blocks, self.config.block_size)
        self.memory = Memory(backend, FakeModel(backend))
        self.kept: list[tuple[State, dict[str, Any], Memory]] = []
        self.log: list[Operation] = []
        self.events: Counter[str] = Counter()

    @property
    def state(self) -> State:
        """The scheduler's."""
        return self.scheduler.state

    def do(self, name: str, *arguments: Any) -> None:
        """One operation and all checks. Raises `Fault`, or whatever the system raises, when something is wrong."""
        self.log.append((name, arguments))
        getattr(self, "_" + name)(*arguments)
        self.check()

    # Checks.

    def check(self) -> None:
        """Everything that holds between two calls."""
        m, state, config = self.memory, self.state, self.config
        nothing("invariants", violations(state))
        nothing("announcements", engine_violations(state, m.told))
        used = (config.num_gpu_blocks - state.gpu_free, config.num_cpu_blocks - state.cpu_free)
        equal("pools of the backend", (m.backend.gpu_used, m.backend.host_used), used)
        queues = (*state.waiting[1], *state.running[1], *state.swapped[1])
        equal("unfinished groups", sorted(queues), sorted(m.live))
        decoding = set(state.running[1]) - set(state.prefilling[1])
        for g, live in m.live.items():
            equal(f"live sequences of {g}", list(state.members.get(g, ((0,), 1))[0]), live)
            if not state.issued:
                tokens = state.clock - state.born[g] if g in decoding else state.length[g]
                equal(f"tokens of {g}", {m.model.sequences[g, q].length for q in live}, {tokens})

    def _check_outcome(self, outcome: Outcome) -> None:
        """The tokens, the limit and the reason of an end."""
        g, m = outcome.group, self.memory
        self.events[outcome.status.name.lower()] += 1
        if outcome.status == Status.FINISHED_LENGTH_CAPPED:
            equal(f"tokens of {g} at its limit", outcome.tokens, m.limit[g])
        refused = outcome.status in (Status.FINISHED_CAPACITY, Status.FINISHED_IGNORED)
        if refused and not outcome.reason:
            fault("reason", f"group {g} ends as {outcome.status.name} without one")
        if outcome.status == Status.FINISHED_ABORTED:
            equal(f"{g} was aborted", g in m.aborted, True)
        elif g in m.live:  # else its last sequence was finished by call
            equal(f"tokens of {g}", {m.model.sequences[g, q].length for q in m.live[g]}, {outcome.tokens})

    def _end(self, g: int) -> None:
        """The engine knows that g has ended."""
        self.memory.backend.release(g)
        self.memory.told.ended(g)
        self.memory.live.pop(g, None)

    # Operations.

    def _add(self, prompt_tokens: int, max_tokens: int) -> None:
        g = self.scheduler.add_request(prompt_tokens, max_tokens)
        m = self.memory
        m.model.add(g, request_key(str(g)), prompt_tokens)
        m.live[g] = [0]
        m.limit[g] = self.state.limit[g]
        at_most = prompt_tokens + max_tokens
        equal(f"limit of {g}", m.limit[g] == at_most or (not self.config.vllm_v0 and m.limit[g] < at_most), True)

    def _schedule(self) -> None:
        m, before = self.memory, self.state
        plan = self.scheduler.schedule()
        m.backend.execute(plan)
        m.told.plan(plan)
        nothing("pass", pass_violations(before, self.state, plan))
        for g, _ in plan.ended:  # its outcome comes with the commit, and is checked then
            if g not in m.live:
                fault("ended", f"group {g} ended twice")
        ended = {g: m.live.pop(g) for g, _ in plan.ended}
        lengths = {k: s.length for k, s in m.model.sequences.items()}
        m.plan, m.results = plan, m.model.run(plan)
        self._compare_tokens(lengths)
        for g, live in ended.items():
            m.live[g] = live
        self._after = set(ended)
        for g in ended:
            del m.live[g]
        self._count(plan)

    def _compare_tokens(self, lengths: dict[tuple[int, int], int]) -> None:
        """Every new token is the one that the request gets on its own."""
        for (g, q), sequence in self.memory.model.sequences.items():
            old = lengths[g, q]
            if sequence.length > old:
                token = next_token(sequence, q, old)
                equal(f"token {old} of sequence {q} of group {g}", sequence.output[-1], token)

    def _count(self, plan: Plan) -> None:
        """What this pass did, for the report."""
        for name in ("prefills", "resumed", "swap_out", "swap_in", "copy"):
            self.events[name] += len(getattr(plan, name)) > 0
        for _, mode in plan.preempted:
            self.events[mode] += 1
