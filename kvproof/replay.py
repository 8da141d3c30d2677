"""Replay of a scenario: decision records, one per step, and a last line that says how every request ended.

At step k: arrivals in order, then the events of step k, then one pass; its plan is executed by the fake backend and every
sequence that is scheduled for a token gets one. `queues` and `free_*` are read after the pass, before the results are applied.
The words of the records are those of the format, so they never change; their order is that of the dicts built here.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from kvproof.backend_fake import BackendError, FakeBackend
from kvproof.bounds import bounds
from kvproof.core.config import Config
from kvproof.core.errors import Rejected
from kvproof.core.status import Status
from kvproof.fake_engine import FakeEngine, Step, alone
from kvproof.formats import OF_CONFIG, Event, Request, Scenario, reach
from kvproof.order import PolicyError
from kvproof.scheduler import Outcome
from kvproof.stall import blocking
from kvproof.store.collections import row
from kvproof.store.plan import Plan
from kvproof.store.state import State

OUTCOMES = {
    Status.FINISHED_STOPPED: "finished",
    Status.FINISHED_LENGTH_CAPPED: "finished",
    Status.FINISHED_CAPACITY: "capacity",
    Status.FINISHED_ABORTED: "aborted",
    Status.FINISHED_IGNORED: "ignored",
}

Record = dict[str, Any]


def spec_violations(state: State) -> list[str]:
    """The invariants of the specification that fail on this state."""
    from kvproof.spec.check import violations

    return violations(state)


def _step_limit(scenario: Scenario) -> int:
    """Steps after which a run is called stalled: 20 + 20 for each token, on top of those until the last arrival or event."""
    last = max([r.arrival_step for r in scenario.requests] + [e.step for e in scenario.events], default=0)
    return last + 20 + 20 * sum(reach(scenario.config, request) * request.n for request in scenario.requests)


class Replay:
    """One run of a scenario. Iterate over `lines()`; the attributes say afterwards how it went."""

    def __init__(
        self,
        scenario: Scenario,
        maps: bool = False,
        check: Callable[[State], list[str]] = spec_violations,
        within: bool = False,
        backend: Callable[[Config], FakeBackend] | None = None,
    ) -> None:
        self.scenario, self.maps, self.check, self.within = scenario, maps, check, within
        self.violations: dict[str, None] = {}  # a set in order of discovery
        order = None if scenario.policy in OF_CONFIG else scenario.policy
        self.engine = FakeEngine(scenario.config, scenario.preemption_mode, self._watch, order, scenario.costs, backend)
        self.arrivals = deque(sorted(scenario.requests, key=lambda request: request.arrival_step))
        self.events = deque(sorted(enumerate(scenario.events), key=lambda pair: pair[1].step))
        self.group: dict[str, int] = {}
        self.name: dict[int, str] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.accept: dict[int, int] = {}  # tokens that groups are to get in this step, and the events that say so
        self.accept_event: dict[int, int] = {}
        self.refused: dict[str, str] = {}  # at arrival, with the reason
        self.steps = 0
        self.step_limit = _step_limit(scenario)
        self.failed = False

    def _watch(self, state: State) -> None:
        for violation in self.check(state):
            self.violations[violation] = None

    def lines(self) -> Iterator[Record]:
        """The decision record of every step, then the end record or the error record that takes its place."""
        while self.arrivals or self.engine.scheduler.unfinished:
            refused = self._arrive()
            skipped = self._happen()
            try:
                step = self.engine.step(self.steps, self.accept)
            except BackendError as error:
                yield self._unsafe(error)
                return
            except PolicyError as error:
                yield self._error("policy", self.steps, detail=str(error))
                return
            if self.accept:
                decoded = set(step.plan.decodes)
                skipped = sorted(skipped + [index for g, index in self.accept_event.items() if g not in decoded])
            for outcome in step.outcomes:
                self.outcomes[self.name[outcome.group]] = outcome
            self._compare_pools()
            yield self._record(step, refused, skipped)
            self.steps += 1
            lacks = self._stalled(step)
            if lacks is not None:
                yield self._error("stalled", self.steps - 1, blocking=self.name[lacks[0]], lacks=lacks[1])
                return
        try:
            self.engine.backend.close()
        except BackendError as error:
            yield self._unsafe(error)
            return
        yield self._end()

    def _arrive(self) -> list[str]:
        """Add the requests of this step; returns the ids of those that are refused at once."""
        known = len(self.refused)
        while self.arrivals and self.arrivals[0].arrival_step <= self.steps:
            request = self.arrivals.popleft()
            try:
                g = self.engine.add(
                    request.id,
                    *(request.prompt_tokens, request.output_tokens, request.n, request.priority, self.steps),
                    tenant=request.tenant,
                    expected_tokens=request.expected_tokens,
                )
            except Rejected as error:
                self.refused[request.id] = str(error)
                continue
            self.group[request.id], self.name[g] = g, request.id
        return list(self.refused)[known:]

    def _happen(self) -> list[int]:
        """Apply the events of this step; returns the indices of those that their request could not take."""
        skipped = []
        self.accept.clear()
        self.accept_event.clear()
        while self.events and self.events[0][1].step <= self.steps:
            index, event = self.events.popleft()
            try:
                if event.id not in self.group:
                    raise Rejected("the request has not arrived")
                self._apply(index, event, self.group[event.id])
            except Rejected:
                skipped.append(index)
        return skipped

    def _apply(self, index: int, event: Event, g: int) -> None:
        """Raises `Rejected` where the request cannot take it."""
        if event.op == "abort":
            self.engine.abort(g)
        elif event.op == "fork":
            self.engine.fork(g, event.parent)
        elif event.op == "finish_seq":
            self.engine.finish(g, event.seq)
        elif event.op == "preempt":
            self.engine.scheduler.preempt(g, event.mode)
        elif event.op == "deny_append":
            self.engine.scheduler.deny_append(g, event.count)
        elif not self.scenario.config.num_lookahead_slots:
            raise Rejected("there are no lookahead slots")
        elif g in self.accept:
            raise Rejected("said twice of this step")
        else:
            self.accept[g], self.accept_event[g] = event.tokens, index

    def _record(self, step: Step, refused: list[str], skipped: list[int]) -> Record:
        plan, state = step.plan, step.decided
        ended = {o.group for o in step.outcomes if OUTCOMES[o.status] == "finished"}
        record: Record = {
            "step": self.steps,
            "scheduled": [[self.name[g], tokens] for g, tokens in plan.scheduled],
            "num_prefills": len(plan.prefills),
            "preempted": [[self.name[g], mode] for g, mode in plan.preempted],
            "swap_out": len(plan.swap_out),
            "swap_in": len(plan.swap_in),
            "copy": len(plan.copy),
            "ignored": refused + [self.name[g] for g, _ in plan.ended],
            "finished": [self.name[g] for g in plan.running if g in ended],
            "queues": {
                "waiting": [self.name[g] for g in state.waiting[1]],
                "running": [self.name[g] for g in state.running[1]],
                "swapped": [self.name[g] for g in state.swapped[1]],
            },
            "free_gpu": state.gpu_free,
            "free_cpu": state.cpu_free,
        }
        if skipped:
            record["skipped_events"] = skipped
        if self.within and not state.config.vllm_v0:
            record["ends_within"] = {self.name[g]: passes for g, passes in bounds(state).items()}
        if self.maps:
            record |= self._maps(plan, state)
        return record

    def _maps(self, plan: Plan, state: State) -> Record:
        """The fields of `--maps`. Ids count from 0 on each device."""
        n = self.scenario.config.num_gpu_blocks
        tables: dict[str, list[list[int]]] = {}
        for base, groups in ((0, state.running[1]), (n, state.swapped[1])):
            for g in groups:
                rows = [row(state.table, g, q) for q in state.members.get(g, ((0,), 1))[0]]
                tables[self.name[g]] = [[b - base for b in blocks] for blocks in rows]
        deltas = {
            self.name[g]: [[b for _, b in sequences[q]] if q in sequences else [] for q in range(max(sequences) + 1)]
            for g, sequences in plan.new_blocks.items()
        }
        return {
            "swap_out_map": [[source, target - n] for source, target in plan.swap_out],
            "swap_in_map": [[source - n, target] for source, target in plan.swap_in],
            "copy_map": [[source, target] for source, target in plan.copy],
            "tables": tables,
            "new_blocks": deltas,
            "trimmed": [[self.name[g], q, n] for g, q, n in plan.trimmed],
        }

    def _compare_pools(self) -> None:
        """The backend, which knows only plans and notices, must count as many used blocks as the scheduler."""
        state, config, backend = self.engine.scheduler.state, self.scenario.config, self.engine.backend
        for pool, used, total, free in (
            ("GPU", backend.gpu_used, config.num_gpu_blocks, state.gpu_free),
            ("host", backend.host_used, config.num_cpu_blocks, state.cpu_free),
        ):
            if used != total - free:
                self.violations[
                    f"step {self.steps}: the backend has {used} {pool} blocks in use, the scheduler {total - free}"
                ] = None

    def _stalled(self, step: Step) -> tuple[int, str] | None:
        """Who blocks and what it lacks, if the run will never end."""
        scheduler = self.engine.scheduler
        if not scheduler.unfinished:
            return None
        if self.steps >= self.step_limit:
            return blocking(scheduler.state)[0], f"has not ended after {self.steps} steps, the limit for this scenario"
        plan = step.plan
        idle = not (plan.scheduled or plan.preempted or plan.ended or plan.swap_in or plan.slots)
        if idle and not self.arrivals and not self.events:
            return blocking(scheduler.state)
        return None

    def _unsafe(self, error: BackendError) -> Record:
        return self._error("backend", self.steps, kind=error.kind.name.lower(), detail=str(error))

    def _error(self, error: str, step: int, **what: str) -> Record:
        """The line that takes the place of the end record."""
        self.failed = True
        found = {"violations": list(self.violations)} if self.violations else {}
        return {"error": error, "step": step, **what, **found}

    def _end(self) -> Record:
        state = self.engine.scheduler.state
        record: Record = {
            "end": True,
            "steps": self.steps,
            "requests": {request.id: self._request(request) for request in self.scenario.requests},
            "free_gpu": state.gpu_free,
            "free_cpu": state.cpu_free,
            "tokens_match": self._tokens_match(),
            "violations": list(self.violations),
        }
        if self.events:  # of steps that the run did not reach
            record["skipped_events"] = [index for index, _ in self.events]
        self.failed = bool(self.violations) or not record["tokens_match"]
        return record

    def _request(self, request: Request) -> Record:
        if request.id in self.refused:
            none = {"recompute": 0, "swap": 0}
            return {"outcome": "ignored", "reason": self.refused[request.id], "output_tokens": [0], "preemptions": none}
        outcome = self.outcomes[request.id]
        return {
            "outcome": OUTCOMES[outcome.status],
            "reason": outcome.reason,
            "output_tokens": list(outcome.outputs),
            "preemptions": {"recompute": outcome.recomputed, "swap": outcome.swapped},
        }

    def _tokens_match(self) -> bool:
        """Has every sequence the tokens, as many as the scheduler says, that its request gets alone in a large pool?"""
        for request in self.scenario.requests:
            if request.id in self.refused:
                continue
            outcome = self.outcomes[request.id]
            g, forks = outcome.group, tuple(self.engine.forks.get(outcome.group, ()))
            made = [tuple(self.engine.model.output(g, q)) for q in range(1 + len(forks))]
            if tuple(map(len, made)) != outcome.outputs:
                return False
            whole = alone(request.id, request.prompt_tokens, max(outcome.outputs), self.scenario.config.block_size, forks)
            if any(part != full[: len(part)] for part, full in zip(made, whole, strict=True)):
                return False
        return True
