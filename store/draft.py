"""The Draft of a State that one transition edits."""

from collections.abc import Callable
from typing import Any

from kvproof.store.candidates import candidate, need
from kvproof.store.collections import Pool
from kvproof.store.loops import Loops
from kvproof.store.measures import Measures
from kvproof.store.plan import PlanDraft
from kvproof.store.policies import AlwaysRecompute, Policy
from kvproof.store.queues import Queue, Twin
from kvproof.store.state import QUEUES, State
from kvproof.store.versions import NUMBER

FORGOTTEN = NUMBER["members"] + 1
"""So many maps, the first, are by group."""


def chance(*numbers: int) -> float:
    """A number in [0, 1) that depends on these alone (the finaliser of splitmix64, over and over)."""
    z = 0
    for n in numbers:
        z = (z + n + 1) * 0x9E3779B97F4A7C15 % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        z ^= z >> 31
    return z / 2**64


class Draft(Measures, Loops):
    """A state opened for editing. `close` gives the next state; `abandon` gives the old one its data back."""

    __slots__ = ()

    def __init__(self, state: State, policy: Policy = AlwaysRecompute) -> None:
        self.base = state
        self.config = state.config
        self.clock, self.ticket = state.clock, state.ticket
        self.seqs, self.decoders = state.seqs, state.decoders
        self.issued, self.prefilled, self.epoch = state.issued, state.prefilled, state.epoch
        self.denied, self.timing, self.owing = state.denied, state.timing, state.owing
        self.bounded = state.config.max_preemptions_per_request is not None
        version = state.maps.open()
        self._version = version
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
            self.free,
        ) = version.maps
        end = self.config.num_gpu_blocks
        self.gpu = Pool(state.gpu, state.gpu_free, self.free, end)
        self.cpu = Pool(state.cpu, state.cpu_free, self.free, end + self.config.num_cpu_blocks)
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
        self.gpu.last = self.cpu.last = -2
        plan = self.plan = self.plan.reopen()
        self.table.slots = plan.slots
        return self

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
