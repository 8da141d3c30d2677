"""Hypothesis chooses what happens to a world. Rules draw small numbers and pick among what is possible, so shrinking works."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvproof.fuzz.illegal import NOBODY, possible
from kvproof.fuzz.setup import MODES, Setup, setup
from kvproof.fuzz.shrink import Failure, describe
from kvproof.fuzz.world import World

X = TypeVar("X")
LIVE_MAX = 12
"""More unfinished requests than this do not make a state more interesting."""
KEPT_MAX = 3
choices = st.integers(0, 11)
requests = st.tuples(st.integers(1, 10), st.integers(1, 20))
"""(prompt_tokens, max_tokens)"""


def pick(xs: Sequence[X], i: int) -> X:
    """One of xs, which is not empty."""
    return xs[i % len(xs)]


@st.composite
def setups(draw: Any) -> Setup:
    """Both profiles, all modes, pools from one block up, host pools from none, budgets smaller than prompts."""
    vllm_v0 = draw(st.booleans())
    max_model_len = draw(st.sampled_from((40, 40, 16, 6)))
    tokens = draw(st.sampled_from((20, 12, 8, 6, 4, 2, 1)))
    tokens = max(tokens, max_model_len) if vllm_v0 else tokens
    return setup(
        draw(st.sampled_from(MODES)),
        num_gpu_blocks=draw(st.sampled_from((6, 8, 10, 12, 16, 4, 3, 2, 1))),
        num_cpu_blocks=draw(st.sampled_from((16, 8, 4, 2, 1, 0))),
        block_size=draw(st.sampled_from((2, 4, 3, 1))),
        watermark_blocks=draw(st.sampled_from((0, 0, 1, 2))),
        max_num_seqs=min(draw(st.sampled_from((8, 6, 4, 2, 1))), tokens),
        max_num_batched_tokens=tokens,
        max_model_len=max_model_len,
        vllm_v0=vllm_v0,
    )


class Machine(RuleBasedStateMachine):
    """The rules. `fired` counts them, `events` what the passes did; `failure` is the last run that found a fault."""

    fired: ClassVar[Counter[str]] = Counter()
    events: ClassVar[Counter[str]] = Counter()
    failure: ClassVar[Failure | None] = None
    world: World

    def do(self, name: str, *arguments: Any, fires: str | None = None) -> None:
        """One operation; whatever it raises is a fault."""
        Machine.fired[fires or name] += 1
        try:
            self.world.do(name, *arguments)
        except Exception as error:
            Machine.failure = Failure(self.world.start, tuple(self.world.log), describe(error))
            raise

    @property
    def between(self) -> bool:
        """No step is in flight."""
        return not self.world.state.issued

    @initialize(start=setups(), requests=st.lists(requests, max_size=4))
    def begin(self, start: Setup, requests: list[tuple[int, int]]) -> None:
        """Choose the sizes, and who is there at once."""
        self.world = World(start)
        for prompt_tokens, max_tokens in requests:
            self.do("add", prompt_tokens, max_tokens)

    @precondition(lambda self: len(self.world.memory.live) < LIVE_MAX)
    @rule(some=st.lists(requests, min_size=1, max_size=3))
    def add(self, some: list[tuple[int, int]]) -> None:
        """Requests arrive, whether or not a step is in flight."""
        for prompt_tokens, max_tokens in some:
            self.do("add", prompt_tokens, max_tokens)

    @precondition(lambda self: self.between)
    @rule(n=st.integers(1, 6))
    def steps(self, n: int) -> None:
        """Several whole steps."""
        for _ in range(n):
            self.do("schedule", fires="steps")
            self.do("commit", fires="steps")

    @precondition(lambda self: self.between)
    @rule()
    def schedule(self) -> None:
        """A pass, executed and computed; the results are on their way."""
        self.do("schedule")

    @precondition(lambda self: not self.between)
    @rule(drop=st.lists(choices, max_size=3), extra=st.booleans(), everything=st.booleans())
    def commit(self, drop: list[int], extra: bool, everything: bool) -> None:
        """All results, or some of them missing, or some that nobody asked for."""
        state, made = self.world.state, [g for g, *_ in self.world.memory.results]
        missing = tuple(sorted({pick(made, i) for i in drop})) if made else ()
        others = (*state.waiting[1], *state.swapped[1], *state.prefilling[1]) if extra else ()
        if missing or others:
            self.do("commit", missing, (), others, fires="commit some results")
        else:
            self.do("commit", (), (), (), everything, fires="commit")

    @precondition(lambda self: not self.between and self.world.state.running[1])
    @rule(choice=choices, sequence=choices, all_of_it=st.booleans(), stray=st.booleans())
    def stop(self, choice: int, sequence: int, all_of_it: bool, stray: bool) -> None:
        """The engine ends a sequence, or a whole group, with the results of a step; perhaps some that are gone already."""
        g = pick(self.world.state.running[1], choice)
        live = self.world.memory.live[g]
        stops = [(g, q) for q in (live if all_of_it else [pick(live, sequence)])]
        if stray:
            stops += [(g, NOBODY), (NOBODY, 0), *stops]
        self.do("commit", (), tuple(stops), fires="engine stops")

    @precondition(lambda self: self.world.memory.live)
    @rule(choice=choices)
    def abort(self, choice: int) -> None:
        """Any unfinished request, at any time."""
        g = pick(sorted(self.world.memory.live), choice)
        self.do("abort", g, fires="abort" if self.between else "abort in flight")

    @precondition(lambda self: self.between and len(self.world.memory.live) < LIVE_MAX)
    @rule(prompt_tokens=st.integers(1, 6), children=st.integers(1, 3))
    def beam(self, prompt_tokens: int, children: int) -> None:
        """A request arrives and, if it is served soon, forks: tails are shared, then copied."""
        self.do("add", prompt_tokens, 20, fires="beam")
        g = max(self.world.memory.live)
        for _ in range(2):
            self.do("schedule", fires="beam")
            self.do("commit", fires="beam")
            for _ in range(children):
                if g in self.forkable():
                    self.do("fork", g, 0)

    @precondition(lambda self: self.between and self.forkable())
    @rule(choice=choices, parent=choices, children=st.integers(1, 3))
    def fork(self, choice: int, parent: int, children: int) -> None:
        """Sequences of a decoding group fork, and go on for two steps."""
        g = pick(self.forkable(), choice)
        for _ in range(children):
            if g in self.forkable():
                self.do("fork", g, pick(self.world.memory.live[g], parent))
        for _ in range(2):
            self.do("schedule", fires="steps")
            self.do("commit", fires="steps")

    def forkable(self) -> list[int]:
        """Groups that may fork now."""
        state = self.world.state
        seats = state.seqs < state.config.max_num_seqs
        return [g for g in state.running[1] if g not in state.prefilling[1]] if seats else []

    @precondition(lambda self: self.world.state.running[1])
    @rule(choice=choices, sequence=choices)
    def finish(self, choice: int, sequence: int) -> None:
        """One sequence ends outside of a commit."""
        g = pick(self.world.state.running[1], choice)
        self.do("finish", g, pick(self.world.memory.live[g], sequence))

    @rule(choice=st.integers(0, 60), sequence=choices)
    def illegal(self, choice: int, sequence: int) -> None:
        """A call that must be refused."""
        kind, g = pick(possible(self.world.state), choice)
        self.do("refused", kind, g, sequence)

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
            Machine.events.update(world.events)


RULES = (
    *("add", "beam", "steps", "schedule", "commit", "commit some results", "engine stops", "abort", "abort in flight"),
    *("fork", "finish", "refused", "keep", "back", "drain"),
)
"""What `Machine.fired` counts: each of them must happen."""
