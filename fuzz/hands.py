"""What a rule of the machine can do to a world, and what it must know for that."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from hypothesis.stateful import RuleBasedStateMachine

from kvproof.fuzz.names import renamed
from kvproof.fuzz.shrink import Failure, describe
from kvproof.fuzz.world import World

X = TypeVar("X")
LIVE_MAX = 12
"""More unfinished requests than this do not make a state more interesting."""
URGENT = -9
"""A priority above all that `draws.requests` has."""


def pick(xs: Sequence[X], i: int) -> X:
    """One of xs, which is not empty."""
    return xs[i % len(xs)]


class Hands(RuleBasedStateMachine):
    """`fired` counts the rules, `events` what happened, by profile and mode; `failure`: the last run that found a fault."""

    fired: ClassVar[Counter[str]] = Counter()
    events: ClassVar[dict[str, Counter[str]]] = {}
    failure: ClassVar[Failure | None] = None
    world: World
    interrupted = False

    def do(self, name: str, *arguments: Any, fires: str | None = None, named: bool = False) -> None:
        """One operation on groups by their ids, or names; whatever it raises is a fault."""
        self.fired[fires or name] += 1
        try:
            self.world.do(name, *(arguments if named else renamed(name, arguments, self.world.number) or ()))
        except Exception as error:
            type(self).failure = Failure(self.world.start, tuple(self.world.log), describe(error))
            raise
        except BaseException:  # Ctrl-C: what it has left half done is no fault
            self.interrupted = True
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
        """A whole step; whoever has lookahead slots gets so many tokens, but for one whose result is lost if they are many."""
        self.do("schedule", gap, fires="steps")
        plan = self.world.memory.plan
        decodes = plan.decodes if plan is not None else ()
        lost = decodes[:1] if tokens > 3 else ()
        self.do("commit", lost, (), (), not lost, tuple((g, tokens) for g in decodes if tokens > 1), fires="steps")

    def may_fork_of(self, g: int) -> list[tuple[int, int]]:
        """Every (g, parent) that may fork now."""
        return [(h, q) for h, q in self.may_fork() if h == g]

    def fork_one(self, which: list[tuple[int, int]], choice: int) -> None:
        """One of these forks, if there is any."""
        if which:
            self.do("fork", *pick(which, choice))

    def press(self, more: int, seats: bool) -> None:
        """Somebody comes who ranks above all, or most (with priorities), and needs more blocks, or seats, than are free.

        more: so many blocks; 5: all that those hold who run, but for the first.
        """
        state, c, m = self.world.state, self.world.config, self.world.memory
        priority = URGENT - len(m.ids) * (more % 2 == 0)
        if more == 5:
            more = sum(len(row) for g in self.running()[1:] for row in m.told.rows[g].values())
        prompt = min(max(state.gpu_free + more, 1) * c.block_size, c.max_model_len + 1)
        n = c.max_num_seqs - state.seqs + 1 if seats else 1
        self.come(1 if seats else prompt, 4, n, None, priority, fires="urgent")
