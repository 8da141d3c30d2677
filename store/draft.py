"""The Draft of a State that one transition edits."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kvproof.store.candidates import candidate, need
from kvproof.store.collections import Members, Refs, Stack, Table
from kvproof.store.maps import Logged, Map
from kvproof.store.plan import PlanDraft
from kvproof.store.policies import AlwaysRecompute, Policy
from kvproof.store.queues import Calendar, Queue, Twin
from kvproof.store.state import QUEUES, State
from kvproof.store.versions import NAMES, NUMBER, Version

if TYPE_CHECKING:
    from kvproof.core.config import Config

Ids = Iterable[int]
Ended = Iterable[tuple[int, int]]
FORGOTTEN = NUMBER["members"] + 1
"""So many maps, the first, are by group."""
RANKS = 2**62
"""More than any id: a group ranks by priority, then by id."""


def chance(*numbers: int) -> float:
    """A number in [0, 1) that depends on these alone (the finaliser of splitmix64, over and over)."""
    z = 0
    for n in numbers:
        z = (z + n + 1) * 0x9E3779B97F4A7C15 % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        z ^= z >> 31
    return z / 2**64


class Draft:
    """A state opened for editing. `close` gives the next state; `abandon` gives the old one its data back."""

    __slots__ = (
        *("config", "clock", "ticket", "seqs", "decoders", "issued", "prefilled", "epoch", "denied", "timing"),
        *("owing", "bounded"),
        *NAMES,
        *("gpu", "cpu", *QUEUES),
        *("spent", "charged", "granted", "stopped", "testing", "asked", "plan", "policy", "twin", "base", "_version", "_closed"),
    )
    status: Map[int]
    key: Map[int]
    prompt: Map[int]
    length: Map[int]
    computed: Map[int]
    limit: Map[int]
    born: Map[int]
    seats: Map[int]
    reserve: Map[int]
    priority: Map[int]
    ungiven: Map[int]
    preemptions: Map[int]
    owed: Map[int]
    arrival: Map[float]
    deny: Map[int]
    alarm: Logged[int]
    expires: Logged[int]
    members: Members
    table: Table
    refs: Refs
    due: Calendar
    expiry: Calendar

    def __init__(self, state: State, policy: Policy = AlwaysRecompute) -> None:
        self.base = state
        self.config: Config = state.config
        self.clock, self.ticket = state.clock, state.ticket
        self.seqs, self.decoders = state.seqs, state.decoders
        self.issued, self.prefilled, self.epoch = state.issued, state.prefilled, state.epoch
        self.denied, self.timing, self.owing = state.denied, state.timing, state.owing
        self.bounded = state.config.max_preemptions_per_request is not None
        version: Version = state.maps.open()
        self._version: Version | None = version
        assert version.maps is not None
        (
            self.status,
            self.key,
            self.prompt,
            self.length,
            self.computed,
            self.limit,
            self.born,
            self.seats,
            self.reserve,
            self.priority,
            self.ungiven,
            self.preemptions,
            self.owed,
            self.arrival,
            self.deny,
            self.alarm,
            self.expires,
            self.members,
            self.table,
            self.refs,
            self.due,
            self.expiry,
        ) = version.maps
        self.gpu, self.cpu = Stack(state.gpu, state.gpu_free), Stack(state.cpu, state.cpu_free)
        key = self.key
        self.waiting, self.running, self.swapped = Queue(state.waiting, key), Queue(state.running, key), Queue(state.swapped, key)
        self.prefilling, self.sampling = Queue(state.prefilling, key), Queue(state.sampling, key)
        self.idle = Queue(state.idle, key)
        self.spent = self.charged = self.asked = 0
        self.granted = self.stopped = False
        self.testing = bool(self.deny) or state.config.artificial_preemption is not None  # may `denies` say yes?
        self.plan = PlanDraft()
        self.table.slots = self.plan.slots
        self.policy = policy
        self.twin = Twin()
        self._closed = False

    def reopen(self) -> "Draft | None":
        """Edit on from the state that this draft was closed to, cheaper than a new one.

        None if it was not closed but abandoned, or if somebody has opened that state since.
        """
        version = self.base.maps
        maps = version.maps
        if not self._closed or maps is None or maps[0] is not self.status or maps[0].journal.undo is not None:
            return None
        maps[0].journal.undo = {}  # as version.open() does
        self._version, self._closed = version, False
        if self.testing or self.deny:
            self.testing = bool(self.deny) or self.config.artificial_preemption is not None
        self.spent = self.charged = self.asked = 0
        plan = self.plan = self.plan.reopen()
        self.table.slots = plan.slots
        return self

    def capacity(self, g: int) -> int:
        """Slots in the tables of g, which have one size: block_size * blocks."""
        table, members = self.table, self.members
        if members and g in members:
            return self.config.block_size * table.height(g)
        return self.config.block_size * table[g][1] if g in table else 0

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens, rounded up."""
        return -(-tokens // self.config.block_size)

    def slots_for(self, tokens: int) -> int:
        """Slots of the blocks that hold `tokens` tokens."""
        return self.config.block_size * self.blocks_for(tokens)

    def full_blocks(self, tokens: int) -> int:
        """Blocks that `tokens` tokens fill."""
        return tokens // self.config.block_size

    def per_sequence(self, g: int, blocks: int) -> int:
        """`blocks` for each live sequence of g."""
        return self.members.count(g) * blocks

    def work(self, g: int, tokens: int) -> int:
        """Tokens that a prefill of g computes: `tokens` of each live sequence, what they have in common once."""
        if g not in self.members:
            return tokens
        return sum(tokens - min(common, tokens) for _, common in self.members.kin(g))

    def ceiling(self, g: int) -> int:
        """Blocks of the tables of all sequences that g may have, when each has a token less than its limit: the last one needs no
        slot."""
        return self.seats[g] * self.blocks_for(self.limit[g] - 1)

    def rows(self, g: int, tokens: int) -> int:
        """Blocks of the tables of g for so many tokens of each sequence: those that common tokens fill once, but for the last."""
        n = self.blocks_for(tokens)
        if g not in self.members:
            return n
        return sum(n - min(common, tokens - 1) // self.config.block_size for _, common in self.members.kin(g))

    # Priorities.

    ranks = RANKS

    def rank(self, g: int) -> int:
        """The place of g in policy order: by priority, then by arrival."""
        return self.priority.get(g, 0) * RANKS + g

    def behind(self, g: int) -> tuple[int, int]:
        """(blocks, seats) of the running groups that rank below g and may be preempted."""
        rank, blocks, seats = self.rank(g), 0, 0
        for h in reversed(self.running.ids):
            if self.rank(h) < rank:
                break
            if self.may_go(h):
                blocks += self.table.distinct(h)
                seats += self.seats.get(h, 1)
        return blocks, seats

    def may_go(self, g: int) -> bool:
        """May g be preempted? Not if it was so often already as it may be; what events force is not counted."""
        most = self.config.max_preemptions_per_request
        return most is None or self.preemptions[g] < most

    def last_below(self, g: int) -> int:
        """The last of the running groups with larger keys than g that may be preempted; g if there is none."""
        h: int
        key, mine = self.key, self.key[g]
        for h in reversed(self.running.ids):
            if key[h] <= mine:
                break
            if self.may_go(h):
                return h
        return g

    def tokens_before(self, g: int) -> int:
        """Tokens that the running groups which rank above g ask of a step: those of their decodes, and of their prompts to go."""
        rank, tokens = self.rank(g), 0
        for h in self.running.ids:
            if self.rank(h) > rank:
                break
            tokens += self.work(h, self.length[h]) - self.computed[h] if self.prefilling.has(h) else self.members.count(h)
        return tokens

    def rekey(self, g: int, key: int) -> None:
        """Unfinished g has another key, and another place in the queues that it is in."""
        queues = [queue for name in QUEUES if (queue := getattr(self, name)).has(g)]
        for queue in queues:
            queue.remove(g)
        self.key[g] = key
        for queue in queues:
            queue.add(g)

    # What the policy says. It may say anything.

    def swaps(self, g: int) -> bool:
        """Should victim g be swapped out rather than recomputed?"""
        weigh = getattr(self.policy, "weigh", None)
        return bool(self.policy.swaps(g, self.members.count(g)) if weigh is None else weigh(candidate(self, g)))

    def named(self, g: int, blocks: int) -> int:
        """Who should make way for running g, which lacks `blocks`; -1: nobody in particular."""
        choose = getattr(self.policy, "victim", None)
        answer = -1 if choose is None else choose(need(self, g, blocks))
        return answer if type(answer) is int else -1

    def sort_running(self) -> None:
        """V0: what runs, in policy order."""
        self._arrange(self.running, self.rank)

    def sort_waiting(self) -> None:
        """V0: what waits, in policy order."""
        self._arrange(self.waiting, self.rank)

    def arrange_running(self, standing: Callable[["Draft", int], int]) -> None:
        """V0: what runs, by its standing, and by its place so far among those of one standing."""
        self._arrange(self.running, lambda g: (standing(self, g), self.key[g]))

    def _arrange(self, queue: Queue, order: Callable[[int], Any]) -> None:
        """New keys, behind all others, for those in the queue; the queues that they are in follow."""
        ids = sorted(queue.ids, key=order)
        if ids == list(queue.ids):
            return
        for g in ids:
            self.key[g] = self.ticket
            self.ticket += 1
        for name in QUEUES:
            getattr(self, name).settle()

    # Several passes in one draft.

    def siblings(self) -> bool:
        """Is there any group that has been forked?"""
        return bool(self.members)

    def due_count(self) -> int:
        """Groups whose alarm rings now."""
        return len(self.due.get(self.clock, ()))

    def expiring(self, t: int) -> bool:
        """Is there anybody to be looked at for its limit at clock t?"""
        return bool(self.expiry.get(t))

    def idle_steps(self, most: int) -> int:
        """Steps from now on, `most` at most, in which nobody is looked at: no alarm rings, no limit is near. O(the answer)."""
        due, expiry, clock = self.due, self.expiry, self.clock
        for n in range(most):
            if due.get(clock + n) or expiry.get(clock + n + 1):
                return n
        return most

    def next_plan(self) -> None:
        """As in a new draft: nothing is planned."""
        plan = self.plan = self.plan.reopen()
        self.table.slots = plan.slots
        self.spent = self.charged = self.asked = 0

    # Delay, and tests of engines.

    def delayed(self) -> bool:
        """Has the one that waits longest not waited long enough? Somebody waits. `delay_factor` 0: never."""
        factor = self.config.delay_factor
        if not factor:
            return False
        now, _, took = self.timing
        return all(now - self.arrival[g] <= factor * took for g in self.waiting.ids)

    def begin(self, now: float) -> None:
        """A pass begins at this time."""
        _, admitted, took = self.timing
        self.timing = (now, None, took if admitted is None else now - admitted)

    def mark_admission(self) -> None:
        """The pass has admitted somebody: its step counts for the delay."""
        now, _, took = self.timing
        self.timing = (now, now, took)

    def refuse_appends(self, g: int, count: int) -> None:
        """The next `count` questions whether g can append are answered no."""
        self.deny[g] = self.deny.get(g, 0) + count

    def denies(self, g: int) -> bool:
        """Is the answer to this question of g no, by an event or by chance, though there may be room?"""
        n = self.deny.get(g, 0)
        if n == 1:
            self.deny.discard(g)
        elif n > 1:
            self.deny[g] = n - 1
        if n:
            return True
        test = self.config.artificial_preemption
        if test is None or self.denied >= test.max_count:
            return False
        self.asked += 1
        if chance(test.seed, self.epoch, self.asked) >= test.probability:
            return False
        self.denied += 1
        return True

    def drop_group(self, g: int) -> None:
        """Every map forgets g."""
        assert self._version is not None and self._version.maps is not None
        for group_map in self._version.maps[:FORGOTTEN]:
            if g in group_map:
                group_map.discard(g)

    # Loops, by name: proofs give each name an invariant and a measure (kvproof.proofs.rules).
    def repeat(self, name: str, step: Callable[..., bool], *args: Any) -> None:
        """while step(self, *args): pass"""
        while step(self, *args):
            pass

    def times(self, name: str, n: int, body: Callable[["Draft", int, int], None], x: int, y: int) -> None:
        """n times body(self, x, y)"""
        for _ in range(n):
            body(self, x, y)

    def each_index(self, name: str, n: int, body: Callable[..., None], *args: Any) -> None:
        """for i in range(n): body(self, i, *args)"""
        for i in range(n):
            body(self, i, *args)

    def each_member(self, name: str, g: int, body: Callable[..., None]) -> None:
        """body(self, q, g) for every live sequence q of g, ascending."""
        members = self.members
        if members and g in members:
            for q in members[g][0]:
                body(self, q, g)
        else:
            body(self, 0, g)

    def each_kin(self, name: str, g: int, body: Callable[..., None], *args: Any) -> None:
        """body(self, q, g, origin, common, *args) for every live sequence q of g, each after the one, `origin`, with which it has
        its first `common` tokens in common. The first has no origin: -1, 0."""
        origin = -1
        for q, common in self.members.kin(g):
            body(self, q, g, origin, common, *args)
            origin = q

    def each_due(self, name: str, body: Callable[["Draft", int], None]) -> None:
        """body(self, g) for every group whose alarm rings now, smallest key first; who has left meanwhile is skipped."""
        ids = self.due.ordered(self.clock)
        if ids:
            bucket = self.due.bucket(self.clock)
            for g in ids:
                if g in bucket:
                    body(self, g)

    def each_running(self, name: str, body: Callable[["Draft", int], None]) -> None:
        """body(self, g) for every running group, smallest key first; who has left meanwhile is skipped."""
        for g in tuple(self.running.ids):
            if self.running.has(g):
                body(self, g)

    def each_expiring(self, name: str, body: Callable[["Draft", int], None]) -> None:
        """body(self, g) for every group in the expiry bucket of now; who has left meanwhile is skipped."""
        clock, expiry = self.clock, self.expiry
        for g in expiry.ordered(clock):
            if expiry.has(clock, g):
                body(self, g)

    def each(self, name: str, ids: Ids, body: Callable[["Draft", int], None]) -> None:
        """body(self, g) for every g in ids."""
        for g in ids:
            body(self, g)

    def each_pair(self, name: str, pairs: Ended, body: Callable[["Draft", int, int], None]) -> None:
        """body(self, g, q) for every pair."""
        for g, q in pairs:
            body(self, g, q)

    def each_item(self, name: str, items: Mapping[int, int], body: Callable[..., None], *args: Any) -> None:
        """body(self, g, n, *args) for every group and its number."""
        for g, n in items.items():
            body(self, g, n, *args)

    def close(self) -> State:
        """The next state. The draft must not be used again, except by `reopen`."""
        version, self._version = self._version, None
        assert version is not None, "the draft is closed"
        self._closed = True
        state = self.base = State(
            self.config,
            self.clock,
            self.ticket,
            self.seqs,
            self.decoders,
            self.issued,
            self.prefilled,
            self.epoch,
            self.denied,
            self.timing,
            self.owing,
            version.close(),
            self.gpu.cell,
            self.gpu.n,
            self.cpu.cell,
            self.cpu.n,
            self.waiting.pair or self.waiting.close(),
            self.running.pair or self.running.close(),
            self.swapped.pair or self.swapped.close(),
            self.prefilling.pair or self.prefilling.close(),
            self.sampling.pair or self.sampling.close(),
            self.idle.pair or self.idle.close(),
        )
        return state

    def abandon(self) -> None:
        """Undo: the state that the draft was opened on has its data back."""
        version, self._version = self._version, None
        assert version is not None, "the draft is closed"
        version.abandon(self.base.maps)
