"""The loop of an engine, complete and small: a Scheduler, the fake backend and the fake model, and who tells whom what.

plan = schedule();  backend.execute(plan);  results = model.run(plan);  outcomes = commit(results);  backend.release(ended)
"""

from collections.abc import Callable
from functools import lru_cache

import attrs

from kvproof.backend_fake import FakeBackend, FakeModel
from kvproof.backend_fake.model import request_key
from kvproof.core.config import Config
from kvproof.scheduler import Outcome, Scheduler
from kvproof.store.draft import State
from kvproof.store.plan import Plan


@attrs.frozen(eq=False)
class Step:
    """One step: the plan, the state that the pass left (before the results), and who ended since the last step."""

    plan: Plan
    decided: State
    outcomes: list[Outcome]


class FakeEngine:
    """Requests in, tokens out. `watch` is called on every state that the scheduler takes on."""

    def __init__(
        self, config: Config, preemption_mode: str | None = None, watch: Callable[[State], None] = lambda state: None
    ) -> None:
        self.scheduler = Scheduler(config, preemption_mode)
        self.backend = FakeBackend(config.num_gpu_blocks, config.num_cpu_blocks, config.block_size)
        self.model = FakeModel(self.backend)
        self.watch = watch
        watch(self.scheduler.state)

    def add(self, name: str, prompt_tokens: int, max_tokens: int) -> int:
        """A new request; returns its group."""
        g = self.scheduler.add_request(prompt_tokens, max_tokens)
        self.model.add(g, request_key(name), prompt_tokens)
        self.watch(self.scheduler.state)
        return g

    def abort(self, g: int) -> None:
        """End a request; its blocks may be handed out again by the next plan, so the backend hears of it at once."""
        self.scheduler.abort(g)
        self.backend.release(g)
        self.watch(self.scheduler.state)

    def step(self) -> Step:
        """One step. Raises `BackendError` if the plan is not safe."""
        plan = self.scheduler.schedule()
        decided = self.scheduler.state
        self.watch(decided)
        self.backend.execute(plan)
        outcomes = self.scheduler.commit(self.model.run(plan))
        for outcome in outcomes:
            self.backend.release(outcome.group)
        self.watch(self.scheduler.state)
        return Step(plan, decided, outcomes)


@lru_cache(maxsize=1024)
def alone(name: str, prompt_tokens: int, output_tokens: int, block_size: int) -> tuple[int, ...]:
    """The first `output_tokens` tokens of a request that has a large pool for itself: what any run must give it."""
    if output_tokens == 0:
        return ()
    tokens = prompt_tokens + output_tokens
    config = Config(
        num_gpu_blocks=-(-tokens // block_size),
        num_cpu_blocks=0,
        block_size=block_size,
        max_num_seqs=1,
        max_num_batched_tokens=tokens,
        max_model_len=tokens,
    )
    engine = FakeEngine(config)
    g = engine.add(name, prompt_tokens, output_tokens)
    while engine.scheduler.unfinished:
        engine.step()
    return tuple(engine.model.output(g))
