"""Who decides in a simulation: the scheduler itself, or a gate before it that makes a simpler one of it.

`reserve`: reserve to completion. First come first served, a request is handed on to the scheduler when the blocks of its whole
life (prompt and output, known in advance) are not promised to anybody. So nobody is ever preempted: what an engine without
preemption must do, told the output lengths. The gate only delays; which blocks a request gets the scheduler decides.
"""

from collections import deque

import attrs

from kvproof.core.config import Config, ConfigError
from kvproof.policies.costs import Costs
from kvproof.scheduler import Outcome, Scheduler
from kvproof.store.plan import Plan
from kvproof.store.state import State

BASELINES = ("reserve",)


def blocks_for_life(prompt_tokens: int, output_tokens: int, block_size: int) -> int:
    """Blocks that a request needs in its last step; the token sampled last needs no slot."""
    return -(-(prompt_tokens + output_tokens - 1) // block_size)


class Reserve:
    """The calls of `Scheduler` that the simulation loop uses, with the gate before them.

    Every request must fit the pool by itself. No watermark: it would only keep blocks free that are promised already.
    """

    def __init__(self, config: Config) -> None:
        self.scheduler = Scheduler(attrs.evolve(config, watermark_blocks=0))
        self.unpromised = config.num_gpu_blocks
        """GPU blocks that are not promised to anybody who has been handed on."""
        self._block_size = config.block_size
        self._queue: deque[tuple[int, int, int]] = deque()  # (id, prompt, output tokens) of those who wait before the gate
        self._promised: dict[int, int] = {}
        self._next_id = 0

    @property
    def state(self) -> State:
        """The scheduler's state. Who waits before the gate is not in it."""
        return self.scheduler.state

    @property
    def unfinished(self) -> int:
        """Requests that have not ended, before the gate and behind it."""
        return len(self._queue) + self.scheduler.unfinished

    def add_request(self, prompt_tokens: int, max_tokens: int, *, tenant: str | None = None) -> int:
        """A new request, which waits before the gate; returns the id that it will have. All tenants are alike."""
        g = self._next_id
        self._next_id += 1
        self._queue.append((g, prompt_tokens, max_tokens))
        return g

    def schedule(self) -> Plan:
        """Hand on whose life fits, nobody skipped; then decide a step."""
        queue = self._queue
        while queue:
            g, prompt_tokens, max_tokens = queue[0]
            blocks = blocks_for_life(prompt_tokens, max_tokens, self._block_size)
            if blocks > self.unpromised:
                break
            queue.popleft()
            given = self.scheduler.add_request(prompt_tokens, max_tokens)
            if given != g:
                raise RuntimeError(f"the scheduler gave the id {given} to its request number {g}: ids must be 0, 1, 2, ...")
            self._promised[g] = blocks
            self.unpromised -= blocks
        return self.scheduler.schedule()

    def commit(self) -> list[Outcome]:
        """The step is done; what was promised to those who have ended is free again."""
        outcomes = self.scheduler.commit()
        for outcome in outcomes:
            self.unpromised += self._promised.pop(outcome.group, 0)
        return outcomes


def scheduler_of(
    config: Config, preemption_mode: str | None, policy: str | None, baseline: str | None, costs: Costs | None = None
) -> Scheduler | Reserve:
    """Who decides; `policy` is the name of one, `costs` are for the mode "auto". Raises ConfigError for what means nothing."""
    if baseline is not None:
        if baseline not in BASELINES:
            raise ConfigError(f"baseline: must be one of {', '.join(BASELINES)}, got {baseline!r}")
        if preemption_mode is not None or policy is not None:
            raise ConfigError(f"baseline {baseline}: preempts nobody: leave preemption mode and policy out")
        if config.vllm_v0:
            raise ConfigError(f"baseline {baseline}: goes with the profile kvproof only, got vllm_v0")
        return Reserve(config)
    return Scheduler(config, preemption_mode, policy, costs=costs if preemption_mode == "auto" else None)
