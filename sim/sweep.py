"""Many runs of one trace: variants x pool sizes x loads, the same work for each.

Load 1 is what a pool sustains. It is measured, for each pool size, by a run of the variant `REFERENCE` in which all requests are
there at once: it takes `span_s` seconds of simulated time. At load L the trace's arrivals are stretched to span_s / L seconds,
their order and the proportions of the gaps kept. So all variants see the same arrivals.

Runs are independent and a result holds no times of the machine, so it does not matter in how many processes, or in which order,
they are made: equal sweeps give equal results, byte for byte.
"""

from array import array
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from typing import Any

import attrs

from kvproof.core.config import Config
from kvproof.sim.cost import Roofline
from kvproof.sim.engine import Simulation
from kvproof.sim.metrics import Slo
from kvproof.sim.traces import Trace

LOADS = (0.5, 0.75, 1.0, 1.5, 2.0)


@attrs.frozen
class Variant:
    """What decides in a run: changes to the configuration, and arguments of `Simulation`.

    `watermark`: share of the pool that admission leaves free, if not as all others.
    """

    config: Mapping[str, Any] = attrs.field(factory=dict)
    preemption_mode: str | None = None
    policy: str | None = None
    baseline: str | None = None
    watermark: float | None = None

    def changes(self, num_gpu_blocks: int) -> dict[str, Any]:
        """Fields of the configuration with a pool of so many blocks."""
        blocks = {} if self.watermark is None else {"watermark_blocks": int(self.watermark * num_gpu_blocks)}
        return {**self.config, **blocks}


VARIANTS = {
    "vllm_v0 recompute": Variant({"vllm_v0": True}, "recompute"),
    "vllm_v0 swap": Variant({"vllm_v0": True}, "swap"),
    "kvproof recompute": Variant({}, "recompute"),
    "kvproof swap": Variant({}, "swap"),
    "kvproof null": Variant({}, None),
    "kvproof auto": Variant({}, "auto"),
    "kvproof auto, watermark": Variant({}, "auto", watermark=0.03),
    "kvproof srpt": Variant({}, "auto", "srpt"),
    "kvproof mlfq": Variant({}, "auto", "mlfq"),
    "kvproof fair": Variant({}, "auto", "fair"),
    "reserve": Variant(baseline="reserve"),
}
REFERENCE = "kvproof recompute"
"""The variant whose throughput is load 1."""


class SweepError(RuntimeError):
    """A run of a sweep has failed. One line: which, and why."""


class NobodyFitsError(SweepError):
    """A pool in which no request of the trace can run: there is nothing to measure."""


@attrs.frozen
class Key:
    """A run of a sweep. `load` None: all requests are there at once, which measures load 1."""

    variant: str
    blocks: int
    load: float | None

    def __str__(self) -> str:
        load = "all requests at once" if self.load is None else f"load {self.load:g}"
        return f"{self.variant}, {self.blocks} blocks, {load}"


@attrs.frozen(repr=False)
class Task:
    """All that a process needs to make a run. `span_s`: from the first to the last arrival, in simulated seconds."""

    key: Key
    variant: Variant
    trace: Trace
    span_s: float
    config: Config
    cost: Roofline
    slo: Slo
    check_every: int
    tenants: int = 1

    def __repr__(self) -> str:
        return str(self.key)


Made = Generator[tuple[tuple[Any, ...], Any], None, None]
Runner = Callable[[Callable[[Task], Any], Sequence[tuple[Task]]], Made]
"""Calls a function with each of the tasks, in processes or not, and yields ((task,), result) in any order."""


def stretched(trace: Trace, span_s: float) -> Trace:
    """The same requests, the last of which arrives `span_s` seconds after the first (0: all at once)."""
    last_s = trace.arrivals_s[-1]
    factor = span_s / last_s if span_s else 0.0
    return attrs.evolve(trace, arrivals_s=array("d", (at_s * factor for at_s in trace.arrivals_s)))


def make(task: Task) -> dict[str, Any]:
    """Make one run. Returns its summary, or {"error": why} if it cannot be made."""
    try:
        variant = task.variant
        metrics = Simulation(
            stretched(task.trace, task.span_s),
            task.config,
            task.cost,
            variant.preemption_mode,
            task.check_every,
            policy=variant.policy,
            baseline=variant.baseline,
            slo=task.slo,
            tenants=task.tenants,
        ).run()
        return metrics.summary(task.cost.block_bytes) | {"failed": metrics.failed}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


@attrs.frozen(kw_only=True)
class Sweep:
    """What to run. `configs`: (variant, blocks) -> its configuration, for each of them and for the reference."""

    trace: Trace
    variants: Mapping[str, Variant]
    blocks: Sequence[int]
    loads: Sequence[float]
    configs: Mapping[tuple[str, int], Config]
    cost: Roofline
    slo: Slo
    check_every: int
    tenants: int = 1

    @property
    def total(self) -> int:
        """Runs, those that measure load 1 included."""
        return len(self.blocks) * (1 + len(self.variants) * len(self.loads))

    def run(self, runner: Runner, progress: Callable[[Key], None]) -> dict[str, Any]:
        """Make all runs; `progress` hears of each that has ended. Raises SweepError."""
        at_once = [self._task(REFERENCE, VARIANTS[REFERENCE], blocks, None, 0.0) for blocks in self.blocks]
        first = self._made(at_once, runner, progress)
        for task in at_once:
            if not first[task.key]["requests"]["finished"]:
                raise NobodyFitsError(f"no request of the trace can run with {task.key.blocks} blocks")
        span_s = {task.key.blocks: float(first[task.key]["simulated_s"]) for task in at_once}
        tasks = [
            self._task(name, variant, blocks, load, span_s[blocks] / load)
            for blocks in self.blocks
            for load in self.loads
            for name, variant in self.variants.items()
        ]
        results = self._made(tasks, runner, progress)
        return {
            "reference": REFERENCE,
            "load_1": [self._sustained(task.key.blocks, first[task.key]) for task in at_once],
            "runs": [attrs.asdict(task.key) | results[task.key] for task in tasks],
        }

    def _task(self, name: str, variant: Variant, blocks: int, load: float | None, span_s: float) -> Task:
        key, config = Key(name, blocks, load), self.configs[name, blocks]
        return Task(key, variant, self.trace, span_s, config, self.cost, self.slo, self.check_every, self.tenants)

    def _made(self, tasks: Sequence[Task], runner: Runner, progress: Callable[[Key], None]) -> dict[Key, dict[str, Any]]:
        out = {}
        with closing(runner(make, [(task,) for task in tasks])) as made:
            for (task,), result in made:
                if "error" in result:
                    raise SweepError(f"{task.key}: {result['error']}")
                out[task.key] = result
                progress(task.key)
        return out

    @staticmethod
    def _sustained(blocks: int, summary: Mapping[str, Any]) -> dict[str, Any]:
        """What load 1 is for a pool of so many blocks."""
        span_s = summary["simulated_s"]
        return {
            "blocks": blocks,
            "span_s": span_s,
            "requests_per_s": summary["requests"]["finished"] / span_s,
            "output_tokens_per_s": summary["output_tokens_per_s"],
            "failed": summary["failed"],
        }


def failed(result: Mapping[str, Any]) -> list[str]:
    """The runs in which a request was lost, a block did not come back or an invariant failed."""
    bad = [f"{REFERENCE}, {entry['blocks']} blocks, all requests at once" for entry in result["load_1"] if entry["failed"]]
    return bad + [str(Key(run["variant"], run["blocks"], run["load"])) for run in result["runs"] if run["failed"]]
