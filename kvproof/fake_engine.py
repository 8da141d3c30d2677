"""The loop of an engine, complete and small: a Scheduler, the fake backend and the fake model, and who tells whom what.

plan = schedule();  backend.execute(plan);  results = model.run(plan);  outcomes = commit(results);  backend.release(ended)
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import attrs

from kvproof.backend_fake import FakeBackend, FakeModel
from kvproof.backend_fake.model import request_key
from kvproof.core.config import Config
from kvproof.core.errors import Rejected
from kvproof.order import Order
from kvproof.policies.costs import Costs
from kvproof.scheduler import Outcome, Scheduler
from kvproof.store.collections import row
from kvproof.store.plan import Plan
from kvproof.store.policies import Policy
from kvproof.store.state import State


def fake_backend(config: Config) -> FakeBackend:
    """One with these pools."""
    return FakeBackend(config.num_gpu_blocks, config.num_cpu_blocks, config.block_size)


@attrs.frozen(eq=False)
class Step:
    """One step: the plan, the state that the pass left (before the results), and who ended since the last step."""

    plan: Plan
    decided: State
    outcomes: list[Outcome]


class FakeEngine:
    """Requests in, tokens out. `watch` is called on every state that the scheduler takes on."""

    def __init__(
        self,
        config: Config,
        preemption_mode: str | None = None,
        watch: Callable[[State], None] = lambda state: None,
        policy: Policy | Order | str | None = None,
        costs: Costs | None = None,
        backend: Callable[[Config], FakeBackend] | None = None,
    ) -> None:
        self.scheduler = Scheduler(config, preemption_mode, policy, costs=costs)
        self.backend = fake_backend(config) if backend is None else backend(config)
        self.model = FakeModel(self.backend)
        self.forks: dict[int, list[tuple[int, int]]] = {}  # of each group: (tokens, parent) of its children, in order
        self._to_fork: dict[int, int] = {}  # children to be forked after the first token
        self.watch = watch
        watch(self.scheduler.state)

    def add(
        self, name: str, prompt_tokens: int, max_tokens: int, n: int = 1, priority: int = 0, now: float = 0, **hints: Any
    ) -> int:
        """A new request; returns its group. After its first token it forks to n sequences, as far as there are seats.

        hints: `tenant` and `expected_tokens` of `Scheduler.add_request`.
        """
        g = self.scheduler.add_request(prompt_tokens, max_tokens, n, priority=priority, now=now, **hints)
        self.model.add(g, request_key(name), prompt_tokens)
        if n > 1:
            self._to_fork[g] = n - 1
        self.watch(self.scheduler.state)
        return g

    def abort(self, g: int) -> None:
        """End a request; its blocks may be handed out again by the next plan, so the backend hears of it at once."""
        self.scheduler.abort(g)
        self.backend.release(g)
        self.watch(self.scheduler.state)

    def fork(self, g: int, parent: int) -> int:
        """A child of a sequence; returns its index."""
        child = self.scheduler.fork(g, parent, same_token=True)
        self.forks.setdefault(g, []).append((self.model.sequences[g, parent].length, parent))
        self.model.fork(g, parent, child)
        self.watch(self.scheduler.state)
        return child

    def finish(self, g: int, q: int) -> None:
        """A sequence is dropped; its request goes with the last one."""
        self.scheduler.finish(g, q)
        if self.scheduler.state.status[g]:
            self.backend.release_sequence(g, q)
        else:
            self.backend.release(g)
        self.watch(self.scheduler.state)

    def _look_ahead(self, plan: Plan, decided: State, accept: Mapping[int, int]) -> list[tuple[int, int]]:
        """(group, tokens) of those that decode and get more than one, which the model makes in the slots that they have."""
        out = []
        size = self.scheduler.config.block_size
        for g in plan.decodes:
            first = decided.members.get(g, ((0,), 1))[0][0]
            length = self.model.sequences[g, first].length
            slots = size * len(row(decided.table, g, first))
            most = 1 + self.scheduler.config.num_lookahead_slots
            tokens = min(accept.get(g, 1), most, slots + 2 - length, decided.limit[g] - length + 1)
            for _ in range(tokens - 1):
                self.model.decode([g])
            if tokens > 1:
                out.append((g, tokens))
        return out

    def _fork_new(self) -> None:
        """Whoever has its first token forks now, unless it has ended; a child for which there is no seat is left out."""
        for g in [g for g in self._to_fork if self.model.output(g)]:
            for _ in range(self._to_fork.pop(g)):
                try:
                    self.fork(g, 0)
                except Rejected:
                    break

    def step(self, now: float = 0, accept: Mapping[int, int] | None = None) -> Step:
        """One step. `accept`: how many tokens these get, if they have lookahead slots. Raises `BackendError`: an unsafe plan."""
        plan = self.scheduler.schedule(now)
        decided = self.scheduler.state
        self.watch(decided)
        self.backend.execute(plan)
        results = self.model.run(plan)
        accepted = self._look_ahead(plan, decided, accept) if accept else ()
        outcomes = self.scheduler.commit(results, (), accepted)
        for outcome in outcomes:
            self.backend.release(outcome.group)
        self.watch(self.scheduler.state)
        self._fork_new()
        return Step(plan, decided, outcomes)


@lru_cache(maxsize=1024)
def alone(
    name: str, prompt_tokens: int, output_tokens: int, block_size: int, forks: tuple[tuple[int, int], ...] = ()
) -> tuple[tuple[int, ...], ...]:
    """`output_tokens` tokens of every sequence of a request that has a large pool for itself: what any run must give it.

    forks: (prompt + generated tokens of the parent, parent) of each child, in order.
    """
    if output_tokens == 0:
        return ((),)
    longest = output_tokens + bool(forks)  # a child may be forked with the last token: one step more, and it is there
    tokens = prompt_tokens + longest
    config = Config(
        num_gpu_blocks=-(-tokens // block_size) * (1 + len(forks)),
        num_cpu_blocks=0,
        block_size=block_size,
        max_num_seqs=1 + len(forks),
        max_num_batched_tokens=max(tokens, 1 + len(forks)),
        max_model_len=tokens,
    )
    engine = FakeEngine(config)
    g = engine.add(name, prompt_tokens, longest, 1)
    children = list(reversed(forks))
    while engine.scheduler.unfinished:
        engine.step()
        while children and children[-1][0] == engine.model.sequences[g, children[-1][1]].length < tokens:
            engine.fork(g, children.pop()[1])
    return tuple(tuple(engine.model.output(g, q)[:output_tokens]) for q in range(1 + len(forks)))
