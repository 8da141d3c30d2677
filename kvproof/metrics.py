"""Counters and gauges of a scheduler, and their Prometheus collector with the names that vLLM's users know.

Counting costs O(what a plan holds), reading O(1). Counters say what this scheduler has done: they never fall, so a `restore` does
not take them back. Gauges are those of the present state. Both may be read from another thread.
"""

from bisect import bisect_left
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from kvproof.core.status import Status
from kvproof.store.plan import Plan
from kvproof.store.state import State

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

CAUSES = ("blocks", "priority", "blocks or priority", "event")
"""Why a request is preempted: another that ran needed its blocks; one of higher priority came in, or is to; an event said so."""
MODES = ("recompute", "swap")
ENDS = tuple(status for status in Status if status >= Status.FINISHED_STOPPED)
TIMES = (0, 1, 2, 4, 8, 16, 32, 64)
"""Upper bounds of the buckets in which ended requests are counted by their preemptions; a last bucket has no bound."""
FINISHED_REASON = {
    Status.FINISHED_STOPPED: "stop",
    Status.FINISHED_LENGTH_CAPPED: "length",
    Status.FINISHED_CAPACITY: "length",
    Status.FINISHED_ABORTED: "abort",
    Status.FINISHED_IGNORED: "length",
}
"""vLLM V0's words (`SequenceStatus.get_finished_reason`); it has no FINISHED_CAPACITY."""


@attrs.frozen
class Metrics:
    """One reading: gauges of the state, and counters of requests, tokens, blocks and passes since the scheduler was made."""

    running: int
    waiting: int
    swapped: int
    gpu_usage: float
    """Blocks in use, from 0 to 1."""
    cpu_usage: float
    """The same of host blocks; 0 if there are none."""
    passes: int
    prefill_tokens: int
    """Tokens scheduled in prefills; those that are computed again count again."""
    decode_tokens: int
    """Tokens scheduled in decodes, one per sequence."""
    accepted_tokens: int
    """Further tokens that commits took: what lookahead slots gave."""
    generation_tokens: int
    """Tokens that steps were to make: of decodes, the first of each prefill that was completed, and what lookahead gave."""
    swapped_out: int
    swapped_in: int
    copied: int
    """Blocks moved to the host, moved back, and copied on write."""
    preemptions: Mapping[tuple[str, str], int]
    """(mode, cause) -> how often. Modes: "recompute", "swap"; causes: `CAUSES`."""
    ended: Mapping[Status, int]
    """Requests by how they ended."""
    ended_by_preemptions: tuple[int, ...]
    """Ended requests by their number of preemptions: at most 0, 1, 2, 4, ... (`TIMES`), and more; not cumulative."""
    preemptions_of_ended: int
    """The sum of these numbers."""

    @property
    def preemptions_total(self) -> int:
        """In all modes, for all causes."""
        return sum(self.preemptions.values())


def causes_of(plan: Plan, forced: Container[int], priority: bool) -> tuple[str, ...]:
    """Why each of the victims of a pass went. `forced`: those that events preempt; `priority`: does priority displace?

    A step of prefills needs nobody's blocks for those that run. In one that decodes it is not known of whom priority made way.
    """
    usual = "blocks" if not priority else "blocks or priority" if plan.decode else "priority"
    return tuple("event" if g in forced else usual for g, _ in plan.preempted)


class Tally:
    """The counters of one scheduler. `passes`, and `decode_tokens` of a pass that only decodes, are counted by the scheduler."""

    __slots__ = (
        *("passes", "prefill_tokens", "decode_tokens", "accepted_tokens", "first_tokens", "swapped_out", "swapped_in", "copied"),
        *("preemptions", "ended", "times", "times_sum"),
    )

    def __init__(self) -> None:
        self.passes = self.prefill_tokens = self.decode_tokens = self.accepted_tokens = self.first_tokens = 0
        self.swapped_out = self.swapped_in = self.copied = 0
        self.preemptions = {(mode, cause): 0 for mode in MODES for cause in CAUSES}
        self.ended = dict.fromkeys(ENDS, 0)
        self.times = [0] * (len(TIMES) + 1)
        self.times_sum = 0

    def passed(self, plan: Plan, causes: Sequence[str], spent: int, sampled: int) -> None:
        """A pass that did more than decode: its plan, why each of its victims went, the tokens of its budget that it used, the
        prefills that it completed."""
        computed = sum(n for _, _, n in plan.prefills)
        if computed:
            self.prefill_tokens += computed
            self.first_tokens += sampled
        self.decode_tokens += spent - computed
        for (_, mode), cause in zip(plan.preempted, causes, strict=True):
            self.preemptions[mode, cause] += 1
        self.swapped_out += len(plan.swap_out)
        self.swapped_in += len(plan.swap_in)
        self.copied += len(plan.copy)

    def finished(self, status: Status, preemptions: int) -> None:
        """A request has ended."""
        self.ended[status] += 1
        self.times[bisect_left(TIMES, preemptions)] += 1
        self.times_sum += preemptions

    def read(self, state: State) -> Metrics:
        """The counters, and the gauges of this state."""
        config = state.config
        return Metrics(
            running=len(state.running[1]),
            waiting=len(state.waiting[1]),
            swapped=len(state.swapped[1]),
            gpu_usage=1 - state.gpu_free / config.num_gpu_blocks,
            cpu_usage=1 - state.cpu_free / config.num_cpu_blocks if config.num_cpu_blocks else 0.0,
            passes=self.passes,
            prefill_tokens=self.prefill_tokens,
            decode_tokens=self.decode_tokens,
            accepted_tokens=self.accepted_tokens,
            generation_tokens=self.decode_tokens + self.accepted_tokens + self.first_tokens,
            swapped_out=self.swapped_out,
            swapped_in=self.swapped_in,
            copied=self.copied,
            preemptions=self.preemptions.copy(),
            ended=self.ended.copy(),
            ended_by_preemptions=tuple(self.times),
            preemptions_of_ended=self.times_sum,
        )


class Measured(Protocol):
    """A scheduler."""

    def metrics(self) -> Metrics:
        """A reading."""


GAUGES = {
    "vllm:num_requests_running": ("Number of requests currently running on GPU.", "running"),
    "vllm:num_requests_waiting": ("Number of requests waiting to be processed.", "waiting"),
    "vllm:num_requests_swapped": ("Number of requests swapped to CPU.", "swapped"),
    "vllm:gpu_cache_usage_perc": ("GPU KV-cache usage. 1 means 100 percent usage.", "gpu_usage"),
    "vllm:cpu_cache_usage_perc": ("CPU KV-cache usage. 1 means 100 percent usage.", "cpu_usage"),
}
"""Name -> (help, field of Metrics). The names that begin with vllm: are those of vLLM V0, helps included."""

COUNTERS = {
    "vllm:num_preemptions": ("Cumulative number of preemption from the engine.", "preemptions_total"),
    "vllm:prompt_tokens": ("Number of prefill tokens processed.", "prefill_tokens"),
    "vllm:generation_tokens": ("Number of generation tokens processed.", "generation_tokens"),
    "kvproof:passes": ("Passes of the scheduler.", "passes"),
    "kvproof:decode_tokens": ("Tokens scheduled in decodes, one per sequence.", "decode_tokens"),
    "kvproof:accepted_tokens": ("Further tokens that lookahead slots gave.", "accepted_tokens"),
    "kvproof:copied_blocks": ("Blocks copied on write.", "copied"),
}
"""The same; an exposition adds `_total` to the names."""


class Collector:
    """A custom collector of prometheus_client: what `scheduler.metrics()` says at the moment of a scrape.

    `registry`: register there; None: the caller does. `labels`: on every sample; None: vLLM's `model_name`, "unknown". Raises
    ValueError if the registry has these names already or a label is one of ours, ImportError without prometheus_client.
    """

    def __init__(
        self, scheduler: Measured, registry: "CollectorRegistry | None" = None, labels: Mapping[str, str] | None = None
    ) -> None:
        try:
            from prometheus_client import metrics_core
        except ImportError:
            raise ImportError("kvproof.metrics.Collector needs prometheus-client: pip install 'kvproof[metrics]'") from None
        self.families, self.scheduler = metrics_core, scheduler
        self.labels = {"model_name": "unknown"} if labels is None else dict(labels)
        for name in self.labels.keys() & {"finished_reason", "mode", "cause", "status", "direction", "le"}:
            raise ValueError(f"labels: {name} is the collector's own")
        if registry is not None:
            registry.register(self)

    def describe(self) -> Iterator[Any]:
        """The families, so that a registry sees names that are taken."""
        return self.collect()

    def collect(self) -> Iterator[Any]:
        """One family after another, all from one reading."""
        m = self.scheduler.metrics()
        for name, (text, field) in GAUGES.items():
            yield self._family(self.families.GaugeMetricFamily, name, text, {(): getattr(m, field)})
        for name, (text, field) in COUNTERS.items():
            yield self._counter(name, text, {(): getattr(m, field)})
        reasons = dict.fromkeys(FINISHED_REASON.values(), 0)
        for status, n in m.ended.items():
            reasons[FINISHED_REASON[status]] += n
        by_reason = {(reason,): n for reason, n in reasons.items()}
        yield self._counter("vllm:request_success", "Count of successfully processed requests.", by_reason, "finished_reason")
        by_status = {(status.name,): n for status, n in m.ended.items()}
        yield self._counter("kvproof:requests_ended", "Requests by how they ended.", by_status, "status")
        yield self._counter("kvproof:preemptions", "Preemptions by mode and cause.", m.preemptions, "mode", "cause")
        moved = {("out",): m.swapped_out, ("in",): m.swapped_in}
        yield self._counter("kvproof:swapped_blocks", "Blocks swapped out to the host and back in.", moved, "direction")
        yield self._histogram(m)

    def _counter(self, name: str, text: str, samples: Mapping[Any, int], *more: str) -> Any:
        return self._family(self.families.CounterMetricFamily, name, text, samples, *more)

    def _family(self, kind: Any, name: str, text: str, samples: Mapping[Any, float], *more: str) -> Any:
        """A family whose samples have the labels `more`, with the values of their keys, beside those of all."""
        family = kind(name, text, labels=[*self.labels, *more])
        for values, number in samples.items():
            family.add_metric([*self.labels.values(), *values], number)
        return family

    def _histogram(self, m: Metrics) -> Any:
        text = "Preemptions per request, of those that have ended."
        family = self.families.HistogramMetricFamily("kvproof:request_preemptions", text, labels=list(self.labels))
        bounds = [*(str(float(n)) for n in TIMES), "+Inf"]
        buckets = list(zip(bounds, accumulate(m.ended_by_preemptions), strict=True))
        family.add_metric(list(self.labels.values()), buckets, m.preemptions_of_ended)
        return family
