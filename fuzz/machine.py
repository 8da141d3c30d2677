"""Hypothesis chooses what happens to a world. Rules draw small numbers and pick among what is possible, so shrinking works."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvproof.fuzz.draws import acceptances, choices, gaps, modes_of_force, requests
from kvproof.fuzz.illegal import CALLS, possible
from kvproof.fuzz.names import NOBODY, renamed
from kvproof.fuzz.scenes import Log, starts
from kvproof.fuzz.setup import Setup
from kvproof.fuzz.shrink import Failure, describe
from kvproof.fuzz.world import World

X = TypeVar("X")
LIVE_MAX = 12
"""More unfinished requests than this do not make a state more interesting."""
KEPT_MAX = 3
URGENT = -9
"""A priority above all that `requests` draws."""
RULES = (
    *(
        "add",
        "beam",
        "urgent",
        "part way",
        "steps",
        "schedule",
        "commit",
        "commit some results",
        "commit accepted",
        "engine stops",
    ),
    *("abort", "fork", "finish", "preempt", "deny", "refused", "keep", "back", "drain"),
)
"""What `Machine.fired` counts: each of them must happen."""


def pick(xs: Sequence[X], i: int) -> X:
    """One of xs, which is not empty."""
    return xs[i % len(xs)]


class Machine(RuleBasedStateMachine):
    """The rules. `fired` counts them, `events` what happened, by profile and mode; `failure`: the last run that found a fault."""

    fired: ClassVar[Counter[str]] = Counter()
    events: ClassVar[dict[str, Counter[str]]] = {}
    failure: ClassVar[Failure | None] = None
    world: World

    def do(self, name: str, *arguments: Any, fires: str | None = None, named: bool = False) -> None:
        """One operation on groups by their ids, or names; whatever it raises is a fault."""
        Machine.fired[fires or name] += 1
        try:
            self.world.do(name, *(arguments if named else renamed(name, arguments, self.world.number) or ()))
        except Exception as error:
            Machine.failure = Failure(self.world.start, tuple(self.world.log), describe(error))
            raise

    @property
    def between(self) -> bool:
        """No step is in flight."""
        return not self.world.state.issued

    @property
    def crowded(self) -> bool:
        """Need nobody come?"""
        return len(self.world.memory.groups) >= LIVE_MAX

    def running(self) -> tuple[int, ...]:
        """Who runs."""
        return self.world.state.running[1]

    def several(self) -> list[int]:
        """Who runs and has several sequences."""
        return [g for g in self.running() if len(self.world.memory.groups[g].live) > 1]

    def may_fork(self) -> list[tuple[int, int]]:
        """Every (group, parent) that may fork now."""
        groups = self.world.memory.groups
        return [(g, q) for g in self.running() for q in groups[g].live if self.world.may_fork(g, q)]

    def come(self, prompt: int, output: int, n: int, width: int | None, priority: int, fires: str = "add") -> None:
        """A request, with as many sequences as there can be."""
        if not self.world.config.vllm_v0:
            seats = self.world.config.max_num_seqs
            n, width = min(n, seats), width and min(width, seats)
        self.do("add", prompt, output, n, width, priority, fires=fires)

    def step(self, gap: float = 1, tokens: int = 1) -> None:
        """A whole step; whoever has lookahead slots gets so many tokens."""
        self.do("schedule", gap, fires="steps")
        plan = self.world.memory.plan
        decodes = plan.decodes if plan is not None else ()
        self.do("commit", (), (), (), True, tuple((g, tokens) for g in decodes if tokens > 1), fires="steps")

    @initialize(start=starts, some=st.lists(requests, max_size=4))
    def begin(self, start: tuple[Setup, Log], some: list[Any]) -> None:
        """Choose the sizes, and who is there at once."""
        setup, log = start
        self.world = World(setup)
        Machine.fired["scene"] += len(log) > 0
        for name, arguments in log:
            self.do(name, *arguments, fires="operations of scenes", named=True)
        for request in some:
            self.come(*request)

    @precondition(lambda self: not self.crowded)
    @rule(some=st.lists(requests, min_size=1, max_size=3))
    def add(self, some: list[Any]) -> None:
        """Requests arrive, whether or not a step is in flight."""
        for request in some:
            self.come(*request)

    @precondition(lambda self: self.between)
    @rule(n=st.integers(1, 6), tokens=st.integers(1, 4), gap=gaps)
    def steps(self, n: int, tokens: int, gap: float) -> None:
        """Several whole steps."""
        for _ in range(n):
            self.step(gap, tokens)

    @precondition(lambda self: self.between and self.running())
    @rule(n=st.integers(2, 9))
    def go_on(self, n: int) -> None:
        """Many whole steps."""
        for _ in range(n):
            self.step()

    @precondition(lambda self: self.between)
    @rule(gap=gaps)
    def schedule(self, gap: float) -> None:
        """A pass, executed and computed; the results are on their way."""
        self.do("schedule", gap)

    @precondition(lambda self: not self.between)
    @rule(drop=st.lists(choices, max_size=3), extra=st.booleans(), everything=st.booleans())
    def commit(self, drop: list[int], extra: bool, everything: bool) -> None:
        """All results, or some of them missing, or some that nobody asked for."""
        state, made = self.world.state, [g for g, *_ in self.world.memory.results]
        missing = tuple(sorted({pick(made, i) for i in drop})) if made else ()
        others = (*state.waiting[1], *state.swapped[1], *state.prefilling[1], *state.idle[1]) if extra else ()
        gone = tuple(g for g in self.world.memory.ids if g not in self.world.memory.groups)[:2] if extra else ()
        if missing or others or gone:
            self.do("commit", missing, (), (*others, *gone), fires="commit some results")
        else:
            self.do("commit", (), (), (), everything)

    @precondition(lambda self: not self.between and self.world.state.ticket)
    @rule(some=acceptances, drop=st.booleans())
    def accept(self, some: list[tuple[int, int]], drop: bool) -> None:
        """Several tokens for some, within and beyond what is possible, also for those that do not run."""
        running, made = self.running(), [g for g, *_ in self.world.memory.results]
        everybody = (*running, *running, *self.world.memory.ids, NOBODY)
        accepted = {pick(everybody, 5 * i): tokens for i, tokens in some}
        missing = tuple(g for g in made if g not in accepted)[:1] if drop else ()
        self.do("commit", missing, (), (), False, tuple(accepted.items()), fires="commit accepted")

    @precondition(lambda self: not self.between and self.running())
    @rule(choice=choices, sequence=choices, all_of_it=st.booleans(), stray=st.booleans())
    def stop(self, choice: int, sequence: int, all_of_it: bool, stray: bool) -> None:
        """The engine ends a sequence, or a whole group, with the results of a step; perhaps some that are gone already."""
        g = pick(self.running(), choice)
        live = self.world.memory.groups[g].live
        stops = [(g, q) for q in (live if all_of_it else [pick(live, sequence)])]
        if stray:
            stops += [(g, NOBODY), (NOBODY, 0), *stops]
        self.do("commit", (), tuple(stops), fires="engine stops")

    @precondition(lambda self: self.world.memory.groups)
    @rule(choice=choices)
    def abort(self, choice: int) -> None:
        """Some unfinished request, at any time; one that is swapped or in its prefill, if there is any and the choice is odd."""
        state, some = self.world.state, sorted(self.world.memory.groups)
        rare = (*state.swapped[1], *state.prefilling[1])
        if choice % 2 and rare:
            self.do("abort", pick(rare, choice // 2))
        elif choice % 4 == 0 or len(some) > 3:
            self.do("abort", pick(some, choice // 2))

    @precondition(lambda self: self.between and not self.crowded)
    @rule(prompt=st.integers(1, 6), children=st.integers(1, 3), width=st.sampled_from((2, 3, 1)), drops=st.integers(0, 2))
    def beam(self, prompt: int, children: int, width: int, drops: int) -> None:
        """A request arrives and, if it is served soon, forks and drops: tails are shared, then copied; seats stay or go."""
        self.come(prompt, 20, 1, width, URGENT, fires="beam")
        g = max(self.world.memory.groups)
        for _ in range(5):
            if not self.may_fork_of(g):
                self.step()
        for _ in range(children):
            self.fork_one(self.may_fork_of(g), 0)
        self.step()
        for _ in range(drops):
            if g in self.running():
                self.do("finish", g, self.world.memory.groups[g].live[-1])

    def may_fork_of(self, g: int) -> list[tuple[int, int]]:
        """Every (g, parent) that may fork now."""
        return [(h, q) for h, q in self.may_fork() if h == g]

    def fork_one(self, which: list[tuple[int, int]], choice: int) -> None:
        """One of these forks, if there is any."""
        if which:
            self.do("fork", *pick(which, choice))

    @precondition(lambda self: self.between and not self.crowded and self.running())
    @rule(more=st.integers(-1, 3), seats=st.booleans(), steps=st.integers(1, 3))
    def urgent(self, more: int, seats: bool, steps: int) -> None:
        """Somebody arrives who ranks above all that run (with priorities) and needs more blocks, or seats, than are free."""
        state, c = self.world.state, self.world.config
        prompt = min(max(state.gpu_free + more, 1) * c.block_size, c.max_model_len + 1)
        n = c.max_num_seqs - state.seqs + 1 if seats else 1
        self.come(1 if seats else prompt, 4, n, None, URGENT, fires="urgent")
        for _ in range(steps):
            self.step()

    @precondition(lambda self: self.between and not self.crowded and self.running())
    @rule(mode=modes_of_force, priority=st.integers(-1, 1))
    def part_way(self, mode: str | None, priority: int) -> None:
        """A long prompt is preempted in the middle of its prefill, and comes back."""
        c = self.world.config
        prompt = min(3 * c.max_num_batched_tokens, c.max_model_len, c.num_gpu_blocks * c.block_size, 40)
        self.come(prompt, 4, 1, None, priority, fires="part way")
        for _ in range(3):
            self.step()
            if self.world.state.prefilling[1]:
                self.do("preempt", self.world.state.prefilling[1][-1], mode)
                break
        for _ in range(4):
            self.step()

    @precondition(lambda self: self.between and self.may_fork())
    @rule(choice=choices, parent=choices, children=st.integers(1, 3))
    def fork(self, choice: int, parent: int, children: int) -> None:
        """Sequences of a decoding group fork, the first time any, then the latest child; and they go on for two steps."""
        g = pick(self.may_fork(), choice)[0]
        for i in range(children):
            self.fork_one(self.may_fork_of(g), -1 if i else parent)
        self.step()
        self.step()

    @precondition(lambda self: self.running())
    @rule(choice=choices, sequence=choices)
    def finish(self, choice: int, sequence: int) -> None:
        """One sequence ends outside of a commit; one of several, if there are."""
        g = pick(self.several() or self.running(), choice)
        self.do("finish", g, pick(self.world.memory.groups[g].live, sequence))

    @precondition(lambda self: self.between and self.running())
    @rule(some=st.lists(choices, min_size=1, max_size=3), mode=modes_of_force, steps=st.integers(0, 2))
    def preempt(self, some: list[int], mode: str | None, steps: int) -> None:
        """The next pass preempts these, whatever room there is; rather those with several sequences, or in their prefill."""
        for choice in some:
            rare = (self.running(), self.several(), self.world.state.prefilling[1])[choice % 3]
            self.do("preempt", pick(rare or self.running(), choice // 3), mode)
        for _ in range(steps):
            self.step()

    @precondition(lambda self: self.world.memory.groups)
    @rule(choice=choices, count=st.sampled_from((1, 1, 2, 3)))
    def deny(self, choice: int, count: int) -> None:
        """Somebody is to be told that there is no room, though there may be."""
        self.do("deny", pick(self.running() or sorted(self.world.memory.groups), choice), count)

    @rule(some=st.lists(st.tuples(st.integers(0, len(CALLS) - 1), choices), min_size=2, max_size=6), late=st.booleans())
    def illegal(self, some: list[tuple[int, int]], late: bool) -> None:
        """Calls that must be refused, perhaps while a step is in flight."""
        if late and self.between:
            self.do("schedule")
        for kind, choice in some:
            who = possible(self.world.state, kind % 3 > 0)
            name = pick(sorted(who), kind)
            self.do("refused", name, pick(who[name], choice), choice)

    @precondition(lambda self: len(self.world.kept) < KEPT_MAX)
    @rule()
    def keep(self) -> None:
        """Remember this state."""
        self.do("keep")

    @precondition(lambda self: self.world.kept)
    @rule(choice=choices)
    def back(self, choice: int) -> None:
        """Go on from a remembered state."""
        self.do("back", choice % len(self.world.kept))

    def teardown(self) -> None:
        """Everybody ends and all blocks are back."""
        world = getattr(self, "world", None)
        if world is None:
            return
        try:
            if Machine.failure is None or Machine.failure.log != tuple(world.log):
                self.do("drain")
        finally:
            Machine.events.setdefault(world.start.column, Counter()).update(world.events)
