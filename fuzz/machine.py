"""Hypothesis chooses what happens to a world. Rules draw small numbers and pick among what is possible, so shrinking works."""

from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from kvproof.fuzz.draws import acceptances, choices, gaps, modes_of_force, requests
from kvproof.fuzz.hands import URGENT, Hands, pick
from kvproof.fuzz.illegal import CALLS, possible
from kvproof.fuzz.scenes import Log, starts
from kvproof.fuzz.setup import Setup
from kvproof.fuzz.world import World

KEPT_MAX = 3
RULES = (
    *("scene", "add", "beam", "urgent", "part way", "steps", "schedule", "commit", "commit some results", "commit accepted"),
    *("engine stops", "abort", "fork", "finish", "preempt", "again", "deny", "rerank", "refused", "keep", "back", "drain"),
)
"""What `Machine.fired` counts: each of them must happen."""


class Machine(Hands):
    """The rules."""

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
    @rule(n=st.integers(2, 9), urgent=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 6)), max_size=2))
    def go_on(self, n: int, urgent: list[tuple[int, int]]) -> None:
        """Many whole steps; with priorities somebody urgent comes now and then."""
        coming = dict(urgent) if self.world.config.priority and not self.crowded else {}
        for i in range(n):
            if i in coming:
                self.press(coming[i], coming[i] == 6)
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
        if everything or not (missing or others or gone):
            self.do("commit", (), (), (), everything)
        else:
            self.do("commit", missing, (), (*others, *gone), fires="commit some results")

    @precondition(lambda self: not self.between and self.world.state.ticket)
    @rule(some=acceptances, drop=st.booleans())
    def accept(self, some: list[tuple[int, int]], drop: bool) -> None:
        """Several tokens for some, within and beyond what is possible, also for those that do not run or whose result is lost."""
        running, made = self.running(), [g for g, *_ in self.world.memory.results]
        everybody = (*running, *running, *self.world.memory.ids)
        accepted = {pick(everybody, 5 * i): tokens for i, tokens in some}
        missing = tuple([*[g for g in made if g in accepted], *made][:1]) if drop else ()
        self.do("commit", missing, (), (), False, tuple(accepted.items()), fires="commit accepted")

    @precondition(lambda self: not self.between and self.running())
    @rule(choice=choices, sequence=choices, all_of_it=st.booleans(), stray=st.booleans())
    def stop(self, choice: int, sequence: int, all_of_it: bool, stray: bool) -> None:
        """The engine ends a sequence, or a whole group, with the results of a step; perhaps it says so twice."""
        g = pick(self.running(), choice)
        live = self.world.memory.groups[g].live
        stops = [(g, q) for q in (live if all_of_it else [pick(live, sequence)])]
        if stray:
            stops += stops
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
            if g in self.running() and self.world.may_finish(g):
                self.do("finish", g, self.world.memory.groups[g].live[-1])

    @precondition(lambda self: self.between and not self.crowded and self.running())
    @rule(more=st.integers(-1, 6), seats=st.booleans(), steps=st.integers(1, 3))
    def urgent(self, more: int, seats: bool, steps: int) -> None:
        """Somebody arrives for whom there is no room."""
        self.press(more, seats)
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

    @precondition(lambda self: self.between and self.several())
    @rule(choice=choices, then=st.sampled_from(("abort", "go on", "preempt")), mode=modes_of_force)
    def again(self, choice: int, then: str, mode: str | None) -> None:
        """Several sequences are recomputed; in the middle of it, if there is one, something else happens to them."""
        g = pick(self.several(), choice)
        self.do("preempt", g, "recompute", fires="again")
        for _ in range(6):
            if g in self.world.memory.groups and g not in self.world.state.prefilling[1]:
                self.step()
        if g in self.world.state.prefilling[1]:
            if not self.world.may_finish(g):
                self.do("refused", "finish of one of several in a prefill", g, 0)
            if then == "preempt":
                self.do("preempt", g, mode)
            elif then == "abort":
                self.do("abort", g)
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
        if self.world.may_finish(g):
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
    @rule(choice=choices, count=st.sampled_from((1, 1, 2, 3)), steps=st.integers(0, 2))
    def deny(self, choice: int, count: int, steps: int) -> None:
        """Somebody, rather the first that runs, is to be told that there is no room; and, between two steps, is asked."""
        some = self.running() or sorted(self.world.memory.groups)
        self.do("deny", pick(some, choice // 2) if choice % 2 else some[0], count)
        for _ in range(steps if self.between else 0):
            self.step()

    @precondition(lambda self: self.world.memory.groups)
    @rule(some=st.lists(st.tuples(choices, st.integers(-2, 2)), min_size=1, max_size=3), steps=st.integers(0, 3))
    def rerank(self, some: list[tuple[int, int]], steps: int) -> None:
        """Some get another rank, whether or not a step is in flight; and, between two steps, they go on."""
        by_hand = self.world.start.by_hand
        for choice, priority in some:
            g = pick(sorted(self.world.memory.groups), choice)
            if by_hand:
                self.do("rerank", g, priority)
            else:
                self.do("refused", "rerank by hand", g, choice)
        for _ in range(steps if self.between else 0):
            self.step()

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
        if world is None or self.interrupted:
            return
        try:
            if Machine.failure is None or Machine.failure.log != tuple(world.log):
                self.do("drain")
        finally:
            Machine.events.setdefault(world.start.column, Counter()).update(world.events)
