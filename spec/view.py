"""A concrete state under the names that the clauses read on the symbolic draft (`kvproof.proofs.draft`).

Nothing here is taken on trust from the state but what it stores: the ghosts (`rank`, `owner_*`, `group_of`, `held`, who is
free) are rebuilt from the tables and lists themselves, so that a wrong count, a leak or a block in two places makes a
clause false. Only reference counts above 1 are stored; a block of some table without a stored count has one reference.

What a clause reads of a group or block that is not there has a default that makes no guard true; `forall` takes a clause that
reads an entry which does not exist for false. Building a view costs about O(state).
"""

from collections.abc import Callable, Iterable
from typing import Any

from kvproof.spec.containers import CalendarView, MembersView, PoolView, QueueView, RefsView, TableView
from kvproof.spec.logic import Truth
from kvproof.spec.planview import PlanView
from kvproof.spec.promises import may_go
from kvproof.spec.readings import Default
from kvproof.spec.told import Told
from kvproof.store.measures import RANKS
from kvproof.store.plan import Plan
from kvproof.store.state import QUEUES, State

Tuples = Iterable[tuple[int, ...]]
NEVER = 2**200
"""Of a group that has no such number: larger than any clock or key."""
DEFAULTS = {
    "status": 0,
    "key": -NEVER,
    "prompt": 0,
    "length": 0,
    "computed": -1,
    "limit": 0,
    "born": NEVER,
    "seats": 1,
    "reserve": 1,
    "priority": 0,
    "ungiven": 1,
    "preemptions": 0,
    "owed": 0,
    "alarm": 0,
    "expires": 0,
}


class View:
    """The state `state`, after what `plan` decided, with an engine that was told `told`.

    `before`: the view of the state that the plan started from. The quantifiers then range over the groups and table entries of
    both. A group that the plan ended shows its outcome even if it has been forgotten since.
    """

    status: Default
    key: Default
    prompt: Default
    length: Default
    computed: Default
    limit: Default
    born: Default
    seats: Default
    reserve: Default
    priority: Default
    ungiven: Default
    preemptions: Default
    owed: Default
    alarm: Default
    expires: Default
    waiting: QueueView
    running: QueueView
    swapped: QueueView
    prefilling: QueueView
    sampling: QueueView
    idle: QueueView

    def __init__(self, state: State, plan: Plan | None = None, told: Told | None = None, before: "View | None" = None) -> None:
        self.state, self.config = state, state.config
        self.clock, self.ticket = state.clock, state.ticket
        self.seqs, self.decoders, self.owing = state.seqs, state.decoders, state.owing
        self.issued, self.prefilled, self.epoch = state.issued, state.prefilled, state.epoch
        for name, default in DEFAULTS.items():
            setattr(self, name, Default(getattr(state, name).to_dict(), default))
        most = self.config.max_preemptions_per_request
        self.bounded, self.most_preemptions = most is not None, most or 0
        self.owed.total = sum(self.owed.values())
        for g, outcome in plan.ended if plan is not None else ():
            self.status.setdefault(g, outcome)
        self.members = MembersView(state.members.to_dict())
        self.table = TableView(state.table.to_dict(), self.members, self.config.block_size)
        self.refs = RefsView(state.refs.to_dict(), self.table.entries, self.config.num_gpu_blocks)
        self.due, self.expiry = CalendarView(state.due.to_dict()), CalendarView(state.expiry.to_dict())
        gpu, cpu = state.free_blocks()
        self.gpu, self.cpu = PoolView(gpu, state.gpu_free), PoolView(cpu, state.cpu_free)
        for name in QUEUES:
            setattr(self, name, QueueView(getattr(state, name)[1], self.members, self.seats))
        self.plan = PlanView(plan, told)
        self.spent = self.plan.total + sum(self.members.n[g] for g in plan.decodes) if plan is not None else 0
        self.charged, self.stopped, self.granted = 0, False, False  # as a pass begins
        self.testing = self.config.artificial_preemption is not None or len(state.deny) > 0
        self.before = before
        self.failures: list[tuple[str, tuple[int, ...]]] = []
        """Which clause body was false of what, in the order of evaluation."""
        self._domains: dict[str, list[tuple[int, ...]]] = {}

    def span(self, blocks: int) -> int:
        """Slots of `blocks` blocks."""
        return self.config.block_size * blocks

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.config.block_size)

    def full_blocks(self, tokens: int) -> int:
        """Blocks that so many tokens fill."""
        return tokens // self.config.block_size

    blocks_of, full_of = blocks_for, full_blocks

    def per_sequence(self, g: int, blocks: int) -> int:
        """So many for each live sequence of g."""
        return int(self.members.n[g]) * blocks

    def work(self, g: int, tokens: int) -> int:
        """Different tokens of the live sequences of g, which have so many each."""
        return sum(tokens - min(common, tokens) for _, common in self.members.kin[g])

    def rows(self, g: int, tokens: int) -> int:
        """Blocks of tables for them, in which blocks of common tokens are shared."""
        return sum(
            self.blocks_for(tokens) - min(common, tokens - 1) // self.config.block_size for _, common in self.members.kin[g]
        )

    ranks = RANKS

    def rank(self, g: int) -> int:
        """The place of g in policy order."""
        return int(self.priority[g]) * RANKS + g

    def behind(self, g: int) -> tuple[int, int]:
        """Blocks and seats of the running groups that rank below g and may be preempted."""
        below = [h for h in self.running.ids if self.rank(h) >= self.rank(g) and may_go(self, h)]
        return sum(self.table.held[h] for h in below), sum(self.seats[h] for h in below)

    def last_below(self, g: int) -> int:
        """The last that runs, ranks below g and may be preempted; g if there is none."""
        below = [h for h in self.running.ids if self.key[h] > self.key[g] and may_go(self, h)]
        return max(below, key=lambda h: int(self.key[h]), default=g)

    def ceiling(self, g: int) -> int:
        """Blocks of whole tables for all sequences that g may have."""
        return int(self.seats[g]) * self.blocks_for(int(self.limit[g]) - 1)

    def tokens_before(self, g: int) -> int:
        """Tokens that the running groups which rank above g ask of a step."""
        above = [h for h in self.running.ids if self.rank(h) < self.rank(g)]
        rest = [h for h in above if self.prefilling.has_[h]]
        decodes = [h for h in above if not self.prefilling.has_[h]]
        tokens = [self.work(h, self.length[h]) - self.computed[h] for h in rest] + [self.members.n[h] for h in decodes]
        return int(sum(tokens))

    @property
    def delay(self) -> bool:
        """Has the one that waits longest not waited long enough?"""
        now, _, took = self.state.timing
        factor, waiting = self.config.delay_factor, self.waiting.ids
        return bool(factor and waiting) and now - min(self.state.arrival[g] for g in waiting) <= factor * took

    @property
    def marked(self) -> bool:
        """Has the pass, or the last one, admitted somebody?"""
        return self.state.timing[1] is not None

    # Quantifiers.

    def domain(self, name: str) -> list[tuple[int, ...]]:
        """The finite part of a domain of `kvproof.spec.domains` that matters here."""
        if name not in self._domains:
            self._domains[name] = list(dict.fromkeys(getattr(self, "_" + name)()))
        return self._domains[name]

    def forall(self, domain: str, body: Callable[..., Truth], patterns: Any = None) -> bool:
        """Is the clause true of all tuples? One that cannot even be read is false."""
        for x in self.domain(domain):
            try:
                true = body(*x)
            except (KeyError, IndexError):
                true = False
            if not true:
                self.failures.append((body.__qualname__, x))
                return False
        return True

    def uniform(self, condition: Callable[..., Truth], value: Callable[..., Any], patterns: Any = None) -> bool:
        """Have the sequences of each group that satisfy the condition one value?"""
        common: dict[int, Any] = {}
        for g, q in self.domain("sequence"):
            if condition(g, q) and common.setdefault(g, value(g, q)) != value(g, q):
                self.failures.append((value.__qualname__, (g, q)))
                return False
        return True

    def _with_before(self, name: str) -> Tuples:
        return self.before.domain(name) if self.before is not None else ()

    def _group(self) -> Tuples:
        """Every group that any part of the state mentions, and one that none does."""
        known = {*self.status, *self.members.has_.stored, *(g for g, _ in self.table.size_)}
        known.update(g for calendar in (self.due, self.expiry) for _, g in calendar.pairs)
        known.update(g for name in QUEUES for g in getattr(self, name).ids)
        yield from ((g,) for g in (*sorted(known), max(known, default=-1) + 1))
        yield from self._with_before("group")

    def _neighbours(self) -> Tuples:
        """Those that follow each other in a queue: enough for its order."""
        for queue in (self.running, self.waiting):
            yield from zip(queue.ids, queue.ids[1:], strict=False)

    def _groups(self) -> Tuples:
        """The pairs of which clauses speak: with one key, or the first named by the plan. All pairs would be too many."""
        groups = [g for (g,) in self.domain("group")]
        same: dict[int, list[int]] = {}
        for g in groups:
            same.setdefault(self.key[g], []).append(g)
        yield from ((g, h) for some in same.values() for g in some for h in some)
        yield from ((v, g) for v in self.plan.named for g in groups)

    def _sequence(self) -> Tuples:
        """Live sequences, those that have a table all the same, and a dead one of every group."""
        for (g,) in self.domain("group"):
            yield from ((g, q) for q in self.members.has_.of(g))
            yield g, self.members.bound[g]
        yield from self.table.size_
        yield from self.plan.told_n
        yield from self._with_before("sequence")

    def _siblings(self) -> Tuples:
        rows: dict[int, list[int]] = {}
        for g, q in self.domain("sequence"):
            rows.setdefault(g, []).append(q)
        return ((g, p, q) for g, some in rows.items() for p in some for q in some)

    def _slot(self) -> Tuples:
        yield from ((g, q, i) for (g, q), n in self.table.size_.items() for i in range(n))
        yield from self._with_before("slot")

    def _block(self) -> Tuples:
        """Every id that exists, one beyond each end, whatever else is mentioned; of the plain ones, one of each kind.

        Plain: in the free list of its device and nowhere else; or in one table and nowhere else, with one reference. Such a
        block differs in nothing that a clause can read of a block from any other of its kind and device.
        """
        gpu, total = self.config.num_gpu_blocks, self.config.num_gpu_blocks + self.config.num_cpu_blocks
        on_gpu, on_host, used = self.gpu.free(), self.cpu.free(), set(self.refs.of)
        single = {b for b, n in self.refs.of.items() if n == 1} - on_gpu - on_host
        kinds = (on_gpu - on_host - used, on_host - on_gpu - used, single, single)
        sides = (range(gpu), range(gpu, total)) * 2
        plain = [{b for b in kind if b in side} - self.plan.blocks for kind, side in zip(kinds, sides, strict=True)]
        ids = {*range(-1, total + 1), *used, *self.plan.blocks, *on_gpu, *on_host}.difference(*plain)
        return ((b,) for b in (*sorted(ids), *(min(some) for some in plain if some)))

    def _reference(self) -> Tuples:
        return ((b, k) for b, n in self.refs.of.items() for k in range(n))

    def _due(self) -> Tuples:
        yield from self.due.pairs
        yield from self.expiry.pairs
