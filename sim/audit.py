"""What a simulation checks: the scheduler's state, against the invariants of `kvproof.spec` and against its own accounts."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvproof.sim.engine import Simulation


def spec_violations(state: Any) -> list[str] | None:
    """The invariants of `kvproof.spec` that fail on `state`; None if this installation has no checker."""
    try:
        checker = importlib.import_module("kvproof.spec.check")
    except ModuleNotFoundError:
        return None
    return [str(violation) for violation in checker.violations(state)]


def check_state(run: "Simulation") -> None:
    """A state between two passes. What is wrong is added to the run's violations."""
    state, metrics = run.scheduler.state, run.metrics
    where = f"pass {metrics.passes}"
    metrics.states_checked += 1
    found = spec_violations(state)
    metrics.spec_used = found is not None
    for violation in found or ():
        metrics.violate(f"{where}: {violation}")
    if run.scheduler.unfinished != len(run.live):
        metrics.violate(f"{where}: {run.scheduler.unfinished} requests unfinished, {len(run.live)} expected")
    decodes = set(state.running[1]) - set(state.prefilling[1])
    tokens = sum(state.clock - state.born[g] for g in decodes)
    if (len(decodes), tokens) != (run.decoding, run.kv_tokens):
        expected = f"{run.decoding} with {run.kv_tokens} expected"
        metrics.violate(f"{where}: {len(decodes)} requests decode with {tokens} tokens, {expected}")


def check_end(run: "Simulation") -> None:
    """The last state: nobody is known and all blocks are back, unless the run was given up."""
    metrics, config, state = run.metrics, run.config, run.scheduler.state
    check_state(run)
    gpu_missing, cpu_missing = config.num_gpu_blocks - state.gpu_free, config.num_cpu_blocks - state.cpu_free
    metrics.blocks_back = gpu_missing == cpu_missing == len(state.table) == 0
    if not run.live and not metrics.blocks_back:
        metrics.violate(f"at the end {gpu_missing} GPU blocks and {cpu_missing} host blocks are missing")
    if not run.live and len(state.status):
        metrics.violate(f"at the end {len(state.status)} groups are still known")
    if metrics.swapped_in_blocks > metrics.swapped_out_blocks:
        metrics.violate(f"{metrics.swapped_in_blocks} blocks swapped in, {metrics.swapped_out_blocks} out")
