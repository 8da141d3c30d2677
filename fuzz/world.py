"""One run of the whole system. Operations are called by name (`do`), so that the log of a run is a program that runs it again.

After every operation: every clause of `spec` on the state, the announced tables against the real ones, the pools of the backend
against those of the scheduler, token counts against the model's. After every pass and commit: the clauses about those. Every
token is compared with that of the request on its own as soon as it is made (`oracle`).
"""

import copy
from collections import Counter
from collections.abc import Iterable
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
from kvproof.store.versions import NAMES

Operation = tuple[str, tuple[Any, ...]]
Results = list[tuple[int, ...]]
Groups = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]


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
    ending: dict[int, set[int]] = attrs.field(factory=dict)
    """Ended, and the outcome is still to come: the token counts that it may say."""
    plan: Plan | None = None
    """In flight: executed and computed, its results not yet taken back."""
    results: Results = attrs.field(factory=list)
    made: list[tuple[int, int]] = attrs.field(factory=list)
    """The sequences that got a token in this step."""
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
        right = m.ending.pop(g, None) or {m.model.sequences[g, q].length for q in m.live[g]}
        equal(f"tokens of {g} at its end", outcome.tokens in right or (outcome.tokens, right), True)
        if outcome.status == Status.FINISHED_LENGTH_CAPPED:
            equal(f"tokens of {g} at its limit", outcome.tokens, m.limit[g])
        refused = outcome.status in (Status.FINISHED_CAPACITY, Status.FINISHED_IGNORED)
        if refused and not outcome.reason:
            fault("reason", f"group {g} ends as {outcome.status.name} without one")

    def _compare_tokens(self, lengths: dict[tuple[int, int], int]) -> None:
        """Every new token is the one that the request gets on its own; returns who got one."""
        m = self.memory
        m.made = [k for k, old in lengths.items() if m.model.sequences[k].length > old]
        for g, q in m.made:
            sequence, old = m.model.sequences[g, q], lengths[g, q]
            equal(f"token {old} of sequence {q} of group {g}", sequence.output[-1], next_token(sequence, q, old))
        whole = {g for g, start, n in m.plan.prefills if start + n == self.state.length[g]} if m.plan is not None else set()
        decodes = m.plan.decodes if m.plan is not None else ()
        wanted = sorted((g, q) for g in {*whole, *decodes} for q in m.live[g])
        equal("sequences that get a token", sorted(m.made), wanted)

    def _count(self, plan: Plan) -> None:
        """What this pass did, for the report."""
        for name in ("prefills", "resumed", "swap_out", "swap_in", "copy"):
            self.events[name] += len(getattr(plan, name)) > 0
        self.events["pieces"] += any(start > 0 for _, start, _ in plan.prefills)
        for _, mode in plan.preempted:
            self.events[f"preempted by {mode}"] += 1

    # Operations.

    def _add(self, prompt_tokens: int, max_tokens: int) -> None:
        g = self.scheduler.add_request(prompt_tokens, max_tokens)
        m = self.memory
        m.model.add(g, request_key(str(g)), prompt_tokens)
        m.live[g], m.limit[g] = [0], self.state.limit[g]
        wish = prompt_tokens + max_tokens
        if not self.config.vllm_v0:
            wish = max(prompt_tokens + 1, min(wish, self.config.max_model_len))
        equal(f"limit of {g}", m.limit[g], wish)

    def _schedule(self) -> None:
        m, before = self.memory, self.state
        plan = m.plan = self.scheduler.schedule()
        m.backend.execute(plan)
        m.told.plan(plan)
        nothing("pass", pass_violations(before, self.state, plan, self.scheduler.spent))
        for g, _ in plan.ended:
            m.ending[g] = {m.model.sequences[g, q].length for q in m.live.pop(g)}
        lengths = {(g, q): m.model.sequences[g, q].length for g, live in m.live.items() for q in live}
        m.results = m.model.run(plan)
        self._compare_tokens(lengths)
        self._count(plan)

    def _commit(self, drop: Groups = (), stops: Pairs = (), extra: Groups = (), everything: bool = False) -> None:
        """Results of all but `drop`, some more of `extra`, who were not scheduled; the sequences `stops` end."""
        m, before = self.memory, self.state
        self._take_back({g for g in drop if g in m.live})
        got = [*((g,) for g in extra), *(r for r in reversed(m.results) if r[0] not in drop)]
        outcomes = self.scheduler.commit(None if everything else got, stops)
        nothing("commit", commit_violations(before, self.state, None if everything else [g for g, *_ in got]))
        m.plan, m.results, m.made = None, [], []
        for g, q in dict.fromkeys(stops):
            if q in m.live.get(g, ()) and len(m.live[g]) > 1:
                self._end_sequence(g, q)
        for outcome in outcomes:
            self._check_outcome(outcome)
            self._end(outcome.group)
        nothing("outcomes that did not come", m.ending)

    def _take_back(self, groups: set[int]) -> None:
        """The results of these are lost: the model forgets their last tokens."""
        m = self.memory
        for g, q in m.made:
            if g in groups:
                m.model.sequences[g, q].output.pop()
        m.made = [(g, q) for g, q in m.made if g not in groups]

    def _end(self, g: int) -> None:
        """The engine knows that g has ended."""
        m = self.memory
        m.backend.release(g)
        m.told.ended(g)
        m.live.pop(g, None)

    def _end_sequence(self, g: int, q: int) -> None:
        """The engine knows that q has ended and others of g go on."""
        m = self.memory
        m.backend.release_sequence(g, q)
        m.told.finished(g, q)
        m.live[g].remove(q)

    def _end_by_call(self, g: int) -> None:
        """g ended between two commits; a token that a step in flight is making does not count."""
        m = self.memory
        self._take_back({g})
        m.ending[g] = {m.model.sequences[g, q].length for q in m.live[g]}
        self._end(g)

    def _abort(self, g: int) -> None:
        self.scheduler.abort(g)
        self._end_by_call(g)

    def _finish(self, g: int, q: int) -> None:
        """One sequence ends outside of a commit: a beam is dropped."""
        d = Draft(self.state)
        finish_sequence(d, g, q)
        self.scheduler._close(d)
        if len(self.memory.live[g]) > 1:
            self._end_sequence(g, q)
        else:
            self._end_by_call(g)

    def _fork(self, g: int, parent: int) -> None:
        m, before = self.memory, self.state
        child = self.scheduler.fork(g, parent)
        equal("free blocks after a fork", (self.state.gpu_free, self.state.cpu_free), (before.gpu_free, before.cpu_free))
        m.model.fork(g, parent, child)
        m.told.forked(g, parent, child)
        m.live[g].append(child)

    def _refused(self, kind: str, g: int, q: int) -> None:
        """A call that is illegal now raises and changes nothing."""
        before, was = self.state, contents(self.state)
        try:
            illegal.CALLS[kind].call(self.scheduler, g, q)
        except Rejected:
            pass
        except Exception as error:
            if not illegal.CALLS[kind].malformed:
                raise
            if isinstance(error, AssertionError):
                raise
        else:
            fault("illegal call", f"{kind} of {g}, {q} is not rejected")
        equal("the state after a rejected call is the one before", self.state is before, True)
        equal("its contents", contents(self.state), was)

    # Old states.

    def _keep(self) -> None:
        """Remember this state, to go on from it later."""
        s = self.scheduler
        self.memory.accounts = (list(s._outcomes), copy.deepcopy(s._preemptions), set(s._capped))
        self.kept.append((s.state, contents(s.state), self.memory.copy()))

    def _back(self, i: int) -> None:
        """Go on from a remembered state, which reads as it did then."""
        state, was, memory = self.kept[i]
        equal(f"contents of remembered state {i}", contents(state), was)
        self.memory, s = memory.copy(), self.scheduler
        s.state = state
        s._outcomes, s._preemptions, s._capped = copy.deepcopy(self.memory.accounts)

    # The end.

    def _drain(self) -> None:
        """Run until nobody is left. kvproof must get there; V0 may hang, then what is left is aborted."""
        if self.state.issued:
            self._commit(everything=True)
        for _ in range(20 + 4 * sum(self.memory.limit[g] for g in self.memory.live)):
            if not self.memory.live:
                break
            self._schedule()
            self.check()
            self._commit(everything=True)
            self.check()
        if self.memory.live and not self.config.vllm_v0:
            fault("every_request_ends", f"groups {sorted(self.memory.live)} do not")
        for g in sorted(self.memory.live):
            self._abort(g)
        self._schedule()
        self._commit()
        self._all_back()

    def _all_back(self) -> None:
        """Every block is free and nothing is known of anybody."""
        state, m = self.state, self.memory
        equal(
            "free blocks at the end", (state.gpu_free, state.cpu_free), (self.config.num_gpu_blocks, self.config.num_cpu_blocks)
        )
        equal("blocks that the backend holds", (m.backend.gpu_used, m.backend.host_used), (0, 0))
        nothing("what is left of maps", {name: found for name in NAMES if (found := getattr(state, name).to_dict())})


def rerun(world: World, log: Iterable[Operation]) -> None:
    """Do it all again."""
    for name, arguments in log:
        world.do(name, *arguments)
