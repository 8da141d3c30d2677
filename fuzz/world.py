"""One run of the whole system. Operations are called by name (`do`), so that the log of a run is a program that runs it again.

After every operation: every clause of `spec` on the state, and what the engine knows against what the scheduler says (`between`).
After every pass and commit: the clauses about those, and what a pass may decide (`passes`, `priorities`). Every token is compared
with that of the request on its own as soon as it is made (`oracle`).
"""

from collections.abc import Iterable
from typing import Any

from kvproof.core.errors import Rejected
from kvproof.fuzz import between, illegal
from kvproof.fuzz.engine import Engine
from kvproof.fuzz.faults import equal, fault
from kvproof.fuzz.memory import Memory
from kvproof.fuzz.names import group, number, renamed
from kvproof.fuzz.oracle import contents
from kvproof.fuzz.setup import Setup
from kvproof.store.state import State
from kvproof.store.versions import NAMES

Operation = tuple[str, tuple[Any, ...]]
STILL_MAX = 40
"""A run in which so many passes in a row have done nothing hangs: no delay is longer (5 times a step of 7 ticks)."""


class World(Engine):
    """A run. Only `do` changes it."""

    def __init__(self, start: Setup, spec: bool = True) -> None:
        super().__init__(start, spec)
        self.kept: list[tuple[State, dict[str, Any], Memory]] = []
        self.log: list[Operation] = []
        self.checked: State | None = None
        """The last state that was checked."""

    def do(self, name: str, *arguments: Any) -> None:
        """One operation and all checks. Raises `Fault`, or whatever the system raises, when something is wrong.

        Groups are named as in `names`.
        """
        self.log.append((name, arguments))
        getattr(self, "_" + name)(*(renamed(name, arguments, lambda n: group(self.memory.ids, n)) or ()))
        self.check()

    def number(self, g: int) -> int:
        """The name of a group."""
        return number(self.memory.ids, g)

    def check(self) -> None:
        """What holds between two calls, unless the state is still the same."""
        if self.state is not self.checked:
            between.check(self.memory, self.state, self.spec)
            self.checked = self.state

    def _refused(self, kind: str, g: int, q: int) -> None:
        """A call that is illegal now raises and changes nothing."""
        before, was = self.state, contents(self.state)
        self.events[f"refused: {kind}"] += 1
        try:
            illegal.CALLS[kind].call(self.scheduler, g, q)
        except Rejected:
            pass
        except Exception as error:
            if not illegal.CALLS[kind].malformed or isinstance(error, AssertionError):
                raise
        else:
            fault("illegal call", f"{kind} of {g}, {q} is not rejected")
        equal("the state after a rejected call is the one before", self.state is before, True)
        equal("its contents", contents(self.state), was)

    def _keep(self) -> None:
        """Remember this state, to go on from it later."""
        s = self.scheduler
        self.memory.snapshot = s.snapshot()
        self.kept.append((s.state, contents(s.state), self.memory.copy()))

    def _back(self, i: int) -> None:
        """Go on from a remembered state, which reads as it did then."""
        state, was, memory = self.kept[i]
        equal(f"contents of remembered state {i}", contents(state), was)
        self.memory = memory.copy()
        assert memory.snapshot is not None
        self.scheduler.restore(memory.snapshot)
        self.events["restored in flight" if state.issued else "restored"] += 1

    def _drain(self) -> None:
        """Run until nobody is left. kvproof must get there; V0 may hang, then what is left is aborted."""
        m, test = self.memory, self.config.artificial_preemption
        if self.state.issued:
            self._commit(everything=True)
        limits = [group.limit for group in m.groups.values()]
        denials = sum(group.deny for group in m.groups.values()) + (test.max_count if test else 0)
        bound = 20 + 4 * sum(limits) + 4 * denials * max(limits, default=0)
        still = 0
        for _ in range(bound // 4 if self.config.vllm_v0 else bound):
            if not m.groups or still > STILL_MAX:
                break
            self._schedule()
            plan = m.plan
            did = plan is None or plan.scheduled or plan.resumed or plan.preempted or plan.ended
            still = 0 if did else still + 1
            self._commit(everything=True)
            self.check()
        if m.groups and not self.config.vllm_v0:
            fault("every_request_ends", f"groups {sorted(m.groups)} do not")
        self.events["stalled"] += bool(m.groups)
        for g in sorted(m.groups):
            self._abort(g)
        self._schedule()
        self._commit()
        between.all_back(m, self.state, NAMES)


def rerun(world: World, log: Iterable[Operation]) -> None:
    """Do it all again."""
    for name, arguments in log:
        world.do(name, *arguments)
