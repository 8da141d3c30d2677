"""The discrete-event loop: requests arrive, the scheduler decides a step, its cost passes, its results are committed.

    while requests are left:
        add what has arrived          (nothing runs: jump to the next arrival)
        plan = schedule()             now += cost of the plan
        commit()                      every sequence scheduled has one token more; who reaches its limit ends

The clock is simulated: the host's speed cannot change a result. A decode step costs O(what changes): the tokens of a running
request are not counted one by one but follow from the number of decode steps (`offset + decode_steps`), the first and the last
token are timed when they happen, and what a step's cost depends on (sequences that decode, tokens they hold) is a running sum.

Checked: every request ends exactly once and with the tokens it asked for; the simulator's own sums agree with the scheduler's
state; the invariants of `kvproof.spec` hold on states now and then and at the end; at the end all blocks are back.
"""

import math
from collections.abc import Callable

import attrs

from kvproof.core.config import Config
from kvproof.core.status import Status
from kvproof.scheduler import Outcome, Scheduler
from kvproof.sim.audit import check_end, check_state
from kvproof.sim.baselines import blocks_for_life, scheduler_of
from kvproof.sim.cost import Cost, Roofline
from kvproof.sim.glide import STEPS_MAX, glide
from kvproof.sim.meter import meter_of
from kvproof.sim.metrics import RECOMPUTE, Metrics, Slo
from kvproof.sim.traces import Trace
from kvproof.store.plan import Plan
from kvproof.store.state import State

CHECK_EVERY_DEFAULT = 1_000
CHECK_PASSES_PER_REQUEST = 5
"""A check looks at every request in the system, so the next waits this many passes for each: a long queue must not cost more."""
PROGRESS_EVERY = 2_048

WAITS, PREFILLS, DECODES, SWAPPED = range(4)


@attrs.define
class Live:
    """A request in the system."""

    row: int
    arrival_s: float
    output_tokens: int
    tokens: int
    """Prompt and generated, while it does not decode. While it decodes: less the number of decode steps so far."""
    phase: int = WAITS
    computed: int = 0
    """Tokens of its history that have been computed at least once, while it does not decode."""
    first_s: float = -1.0
    preemptions: int = 0
    cut: bool = False
    """It was last preempted in the middle of its prefill."""
    cause: str = RECOMPUTE
    """Why it computes again what it had computed, if it does."""


def no_progress(ended: int) -> None:
    """Show nothing."""


class Simulation:
    """One run of a trace. Use it once: `Simulation(...).run()`.

    `check_every`: passes between two checks of the state; 0: only the last one; None: 1,000, or more while many requests wait.
    `policy`, `baseline`: who decides, see `baselines.scheduler_of`, which raises ConfigError. `slo`: what counts as goodput.
    `tenants`: so many share the requests, in turn. `preemption_mode` "auto" begins with the costs of a `Roofline` (of another
    `Cost`: with the default ones) and is told how long each step of prefills and each transfer took.
    `fast_forward`: make decode steps in which nothing is decided in one go; the figures are the same.
    """

    def __init__(
        self,
        trace: Trace,
        config: Config,
        cost: Cost,
        preemption_mode: str | None = None,
        check_every: int | None = None,
        progress: Callable[[int], None] = no_progress,
        *,
        policy: str | None = None,
        baseline: str | None = None,
        slo: Slo | None = None,
        tenants: int = 1,
        fast_forward: bool = True,
    ) -> None:
        self.trace, self.config, self.cost = trace, config, cost
        self.check_every, self.progress = check_every, progress
        costs = cost.costs() if isinstance(cost, Roofline) else None
        self.scheduler = scheduler_of(config, preemption_mode, policy, baseline, costs)
        self.preempts, self.tenants, self.fast_forward = baseline is None, tenants, fast_forward
        self.meter = meter_of(self.scheduler, preemption_mode, config.block_size)
        self.metrics = Metrics(total=len(trace), gpu_free_min=config.num_gpu_blocks, slo=slo or Slo())
        self.live: dict[int, Live] = {}
        self.now_s = 0.0
        self.next_row = 0
        self.next_arrival_s = trace.arrivals_s[0] if len(trace) else math.inf
        self.decoding = 0
        """Requests that decode; `kv_tokens`: the tokens they hold together."""
        self.kv_tokens = 0
        self.decode_steps = 0
        self.steps_max = 20
        """A run that makes progress ends long before: 20 passes, and 20 more for each token added."""

    def run(self) -> Metrics:
        """Simulate until nobody is left, or until nothing moves any more."""
        scheduler, metrics, live, pool_use = self.scheduler, self.metrics, self.live, self.metrics.pool_use
        passes = 0
        next_check, next_progress = self._until_check(), PROGRESS_EVERY
        forward = self.fast_forward and isinstance(scheduler, Scheduler)
        while live or self.next_arrival_s < math.inf:
            if self.now_s >= self.next_arrival_s or not live:
                self._arrive()
                if not live:
                    continue
            if forward and self.decoding == len(live) and (made := glide(self, min(STEPS_MAX, next_check - passes - 1))):
                passes += made
                continue
            plan = scheduler.schedule()
            state = scheduler.state
            if state.gpu_free < metrics.gpu_free_min:
                metrics.gpu_free_min = state.gpu_free
            if self.now_s >= pool_use.next_s:
                self._sample(state)
            moved = self._pass_time(plan)
            outcomes = scheduler.commit()
            for outcome in outcomes:
                self._end(outcome)
            passes += 1
            if passes >= next_check:
                check_state(self)
                next_check = passes + self._until_check()
            if passes >= next_progress:
                self.progress(self.next_row - len(live))
                next_progress = passes + PROGRESS_EVERY
            if not (moved or outcomes) and not self._skip_to_arrival():
                metrics.violate(f"stalled at pass {passes}: {len(live)} requests wait and nothing moves")
                break
            if passes > self.steps_max:
                metrics.violate(f"stalled: {passes} passes for {len(live)} requests that do not end")
                break
        metrics.lost = metrics.total - metrics.finished - metrics.refused - metrics.capacity
        metrics.simulated_s = self.now_s
        self._sample(scheduler.state)
        check_end(self)
        self.progress(metrics.total - metrics.lost)
        return metrics

    def _until_check(self) -> float:
        """Passes to the next check of the state."""
        if self.check_every is None:
            crowd = max(CHECK_PASSES_PER_REQUEST * len(self.live), self.config.num_gpu_blocks)
            return max(CHECK_EVERY_DEFAULT, crowd)
        return self.check_every or math.inf

    def _sample(self, state: State) -> None:
        """A point of the pool's use: the state after a pass, at the beginning of its step."""
        running, swapped = len(state.running[1]), len(state.swapped[1])
        used = self.config.num_gpu_blocks - state.gpu_free
        self.metrics.pool_use.add(self.now_s, used, running, len(self.live) - running - swapped, swapped)

    def _arrive(self) -> None:
        """Add everybody who has arrived; if nobody is in the system, go to the next arrival first."""
        arrivals_s, row = self.trace.arrivals_s, self.next_row
        if self.next_arrival_s > self.now_s:
            if self.now_s >= self.metrics.pool_use.next_s:
                self._sample(self.scheduler.state)
            self.now_s = self.next_arrival_s
        while row < len(arrivals_s) and arrivals_s[row] <= self.now_s:
            self._add(row)
            row += 1
        self.next_row = row
        self.next_arrival_s = arrivals_s[row] if row < len(arrivals_s) else math.inf

    def _add(self, row: int) -> None:
        """Give request `row` to the scheduler, unless it can never be served to its end."""
        config, prompt_tokens, output_tokens = self.config, self.trace.prompt_tokens[row], self.trace.output_tokens[row]
        blocks = blocks_for_life(prompt_tokens, output_tokens, config.block_size)
        usable = config.num_gpu_blocks - config.watermark_blocks
        why = ""
        if prompt_tokens + output_tokens > config.max_model_len:
            why = f"{prompt_tokens} + {output_tokens} tokens exceed max_model_len {config.max_model_len}"
        elif blocks > usable:
            why = f"{prompt_tokens} + {output_tokens} tokens need {blocks} blocks, the pool less the watermark has {usable}"
        if why:
            self.metrics.refused += 1
            self.metrics.name(row, why)
            return
        g = self.scheduler.add_request(prompt_tokens, output_tokens, tenant=str(row % self.tenants))
        if g in self.live:
            self.metrics.violate(f"request {row}: the scheduler gave it the id {g} of another")
        self.live[g] = Live(row, self.trace.arrivals_s[row], output_tokens, prompt_tokens)
        self.steps_max += 20 * (prompt_tokens + output_tokens)

    def _skip_to_arrival(self) -> bool:
        """Nothing moved in this pass: only an arrival can change that."""
        if self.next_arrival_s == math.inf:
            return False
        self.now_s = max(self.now_s, self.next_arrival_s)
        return True

    def _pass_time(self, plan: Plan) -> bool:
        """Let the time of the step pass and follow what it does. False if it computes and moves nothing."""
        metrics = self.metrics
        if plan.preempted:
            self._preempt(plan)
        for g, _ in plan.ended:
            self._leave(self.live[g])
        if plan.resumed:
            self._resume(plan)
        swap_s = 0.0
        if plan.swap_out or plan.swap_in:
            out_s, in_s = self.cost.swap_s(plan.swap_out), self.cost.swap_s(plan.swap_in)
            swap_s = out_s + in_s
            self.meter.moved(len(plan.swap_out), out_s, "out")
            self.meter.moved(len(plan.swap_in), in_s, "in")
            metrics.swapped_out_blocks += len(plan.swap_out)
            metrics.swapped_in_blocks += len(plan.swap_in)
        if plan.prefills:
            if plan.decode:
                metrics.violate(f"pass {metrics.passes}: prefills and decodes in one step without chunked prefill")
            metrics.prefill_steps += 1
            prefill_s = self.cost.prefill_s(plan.prefills)
            self.now_s += swap_s + prefill_s
            self.meter.prefilled(plan.prefills, prefill_s)
            self._prefill(plan)
        elif plan.decode and self.decoding:
            metrics.decode_steps += 1
            self.now_s += swap_s + self.cost.decode_s(self.decoding, self.kv_tokens)
            self.decode_steps += 1
            self.kv_tokens += self.decoding
        else:
            metrics.idle_passes += 1
            self.now_s += swap_s
            return bool(swap_s or plan.preempted)
        return True

    def _prefill(self, plan: Plan) -> None:
        """Pieces of prompts were computed; who is complete has its next token now."""
        metrics = self.metrics
        for g, first, tokens in plan.prefills:
            request = self.live[g]
            end = first + tokens
            metrics.prefill_tokens += tokens
            if request.computed > first:
                again = min(end, request.computed) - first
                metrics.recomputed_tokens += again
                metrics.recomputed_by_cause[request.cause] += again
            request.computed = max(request.computed, end)
            request.phase = PREFILLS
            if end > request.tokens:
                metrics.violate(f"request {request.row}: prefill of token {end} of {request.tokens}")
            if end == request.tokens:
                self._join(request, request.tokens + 1)
                if request.first_s < 0:
                    request.first_s = self.now_s

    def _join(self, request: Live, tokens: int) -> None:
        """A request that has `tokens` tokens decodes from the next decode step on."""
        request.phase = DECODES
        request.tokens = tokens - self.decode_steps
        self.decoding += 1
        self.kv_tokens += tokens
        if self.decoding > self.metrics.running_max:
            self.metrics.running_max = self.decoding

    def _leave(self, request: Live) -> None:
        """It decodes no more. The token it has last has not been computed: its slot would be written by the next step."""
        if request.phase == DECODES:
            request.tokens += self.decode_steps
            request.computed = request.tokens - 1
            self.decoding -= 1
            self.kv_tokens -= request.tokens
        request.phase = WAITS

    def _preempt(self, plan: Plan) -> None:
        metrics = self.metrics
        if not self.preempts:
            metrics.violate(f"pass {metrics.passes}: a baseline without preemption has preempted")
        for g, mode in plan.preempted:
            request = self.live[g]
            if request.phase not in (PREFILLS, DECODES):
                metrics.violate(f"request {request.row}: preempted while it did not run")
            request.cut = request.phase == PREFILLS
            self._leave(request)
            metrics.preempted += request.preemptions == 0
            request.preemptions += 1
            metrics.preemptions_max = max(metrics.preemptions_max, request.preemptions)
            if mode == "swap":
                request.phase = SWAPPED
                metrics.swaps += 1
            else:
                metrics.recomputes += 1
                request.cause = self.meter.cause(request.computed, request.tokens)

    def _resume(self, plan: Plan) -> None:
        """Swapped in: they decode in this step, or go on with their prefill."""
        for g in plan.resumed:
            request = self.live[g]
            if request.phase != SWAPPED:
                self.metrics.violate(f"request {request.row}: swapped in while it was not swapped")
            if request.cut:
                request.phase = PREFILLS
            else:
                self._join(request, request.tokens)

    def _end(self, outcome: Outcome) -> None:
        metrics = self.metrics
        request = self.live.pop(outcome.group, None)
        if request is None:
            metrics.violate(f"group {outcome.group}: ended twice, or was never added")
            return
        self._leave(request)
        if outcome.recomputed + outcome.swapped != request.preemptions:
            metrics.violate(f"request {request.row}: preempted {request.preemptions} times, the scheduler says otherwise")
        if outcome.tokens != request.tokens:
            metrics.violate(f"request {request.row}: ended with {outcome.tokens} tokens, {request.tokens} were computed")
        if outcome.status not in (Status.FINISHED_STOPPED, Status.FINISHED_LENGTH_CAPPED):
            metrics.capacity += 1
            metrics.name(request.row, outcome.reason or outcome.status.name)
            return
        if outcome.output_tokens != request.output_tokens:
            metrics.violate(f"request {request.row}: {outcome.output_tokens} tokens instead of {request.output_tokens}")
        metrics.finish(outcome.output_tokens, request.arrival_s, request.first_s, self.now_s)
