"""`kvproof demo`: the guided tour. First the proofs, then a workload in a pool that is too small, every state checked."""

import json
import random
from typing import Any

import attrs
import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kvproof.cli.doctor import cores
from kvproof.core.config import Config
from kvproof.scheduler import Outcome
from kvproof.store.collections import row
from kvproof.store.plan import Plan
from kvproof.store.state import State

REQUESTS = 40
BLOCK_SIZE = 16
GPU_BLOCKS = 48
"""About a third of what the requests need at their ends."""
LINES = 9
"""Lines about preemptions in each run: the first ones, as they happen."""


@attrs.frozen
class Workload:
    """(prompt tokens, output tokens) of each request; all are there from the start."""

    seed: int
    sizes: tuple[tuple[int, int], ...]


def workload(seed: int) -> Workload:
    """Chats of very different lengths."""
    draw = random.Random(seed)
    return Workload(seed, tuple((draw.randint(8, 96), draw.randint(8, 64)) for _ in range(REQUESTS)))


@attrs.define
class Counts:
    """What a run came to."""

    name: str
    gpu_blocks: int
    requests: int = 0
    steps: int = 0
    by_recompute: int = 0
    by_swap: int = 0
    recomputed_tokens: int = 0
    swapped_blocks: int = 0
    blocks_back: bool = False
    tokens_equal: bool = False
    states_checked: int = 0
    violations: list[str] = attrs.field(factory=list)
    error: str | None = None

    @property
    def good(self) -> bool:
        """Nothing is wrong."""
        return self.error is None and self.blocks_back and self.tokens_equal and not self.violations


class Tour:
    """One run: the scheduler that engines embed, on the fake backend, which refuses any plan that is not safe."""

    def __init__(self, name: str, load: Workload, gpu_blocks: int, mode: str, console: Console) -> None:
        from kvproof.fake_engine import FakeEngine

        self.counts = Counts(name, gpu_blocks, requests=len(load.sizes))
        self.console, self.load = console, load
        self.config = Config(num_gpu_blocks=gpu_blocks, num_cpu_blocks=gpu_blocks, block_size=BLOCK_SIZE)
        self.engine = FakeEngine(self.config, mode, self._watch)
        self.computed: dict[int, int] = {}  # the most tokens of a request that were ever computed
        self.lines_left = LINES
        self.outcomes: dict[int, Outcome] = {}
        self.groups: list[int] = []

    def _watch(self, state: State) -> None:
        from kvproof.spec.check import violations

        self.counts.states_checked += 1
        for violation in violations(state):
            if violation not in self.counts.violations:
                self.counts.violations.append(violation)

    def run(self) -> list[list[int]]:
        """Serve everybody; returns the tokens of each request."""
        from kvproof.backend_fake import BackendError

        for i, (prompt, output) in enumerate(self.load.sizes):
            self.groups.append(self.engine.add(f"{self.load.seed}/{i}", prompt, output))
        steps_max = 20 + 20 * sum(prompt + output for prompt, output in self.load.sizes)
        while self.engine.scheduler.unfinished:
            before = self.engine.scheduler.state
            try:
                step = self.engine.step()
            except BackendError as error:
                self.counts.error = f"step {self.counts.steps}: the backend refuses the plan: {error}"
                break
            self._count(before, step.plan)
            self.outcomes |= {outcome.group: outcome for outcome in step.outcomes}
            self.counts.steps += 1
            if self.counts.steps > steps_max:
                self.counts.error = f"not ended after {steps_max} steps"
                break
        state = self.engine.scheduler.state
        self.counts.blocks_back = (state.gpu_free, state.cpu_free) == (self.config.num_gpu_blocks, self.config.num_cpu_blocks)
        outcomes = self.outcomes.values()
        told = (sum(o.recomputed for o in outcomes), sum(o.swapped for o in outcomes))
        if self.counts.error is None and told != (self.counts.by_recompute, self.counts.by_swap):
            self.counts.error = "the preemptions that outcomes report are not those of the plans"
        return [self.engine.model.output(g) for g in self.groups]

    def _count(self, before: State, plan: Plan) -> None:
        counts = self.counts
        for g, mode in plan.preempted:
            recompute = mode == "recompute"
            counts.by_recompute += recompute
            counts.by_swap += not recompute
            blocks = len(row(before.table, g, 0))
            self._tell(
                f"request {g} gives its {blocks} blocks away" if recompute else f"request {g}: {blocks} blocks go to the host"
            )
        counts.swapped_blocks += len(plan.swap_out) + len(plan.swap_in)
        for g, start, tokens in plan.prefills:
            known = self.computed.get(g, 0)
            again = max(0, min(start + tokens, known) - start)
            counts.recomputed_tokens += again
            self.computed[g] = max(known, start + tokens)
            if again:
                self._tell(f"request {g} is back: {tokens} tokens computed, {again} of them again")
        for g in plan.decodes:
            self.computed[g] += 1
        for g in plan.resumed:
            self._tell(f"request {g} is back: it decodes, nothing is computed again")

    def _tell(self, line: str) -> None:
        if self.lines_left:
            self.lines_left -= 1
            self.console.print(f"  step {self.counts.steps:>4}  {line}", highlight=False)


def proved(jobs: int, console: Console) -> tuple[dict[str, Any], bool]:
    """Prove every theorem; what there is to say as JSON, and whether all are proved."""
    from kvproof.proofs import prove

    console.print("[bold]1. The theorems[/], of the functions that run, for any number of blocks and requests.")
    columns = (TextColumn("{task.description:<32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("proving", total=None)

        def show(done: int, total: int, label: str) -> None:
            bar.update(task, completed=done, total=total, description=label[:32])
            if not console.is_terminal and done % 10 == 0:
                console.print(f"  {done} of {total} parts are proved")

        report = prove.run(only=None, jobs=jobs, seeds=1, progress=show)
    table = Table("theorem", "status", "obligations", "seconds")
    for column in table.columns[2:]:
        column.justify = "right"
    for t in report.theorems:
        colour = "green" if t.status == "proved" else "red"
        table.add_row(t.name, f"[{colour}]{t.status}[/]", f"{t.obligations:,}", f"{t.seconds:.1f}")
    console.print(table)
    theorems = [{"name": t.name, "status": t.status, "obligations": t.obligations, "seconds": t.seconds} for t in report.theorems]
    good = bool(theorems) and all(t["status"] == "proved" for t in theorems)
    return {"theorems": theorems, "seconds": report.seconds}, good


def served(seed: int, console: Console) -> list[Counts]:
    """The workload in a pool that is large enough, and in one that is not, once by recompute and once by swap."""
    load = workload(seed)
    ample = sum(-(-(prompt + output) // BLOCK_SIZE) for prompt, output in load.sizes)
    console.print(f"\n[bold]2. A workload[/] of {REQUESTS} requests (seed {seed}), on blocks with real contents.")
    console.print(f"With {ample} blocks nobody is preempted: these tokens are the right ones.", highlight=False)
    calm = Tour("ample pool", load, ample, "recompute", console)
    right = calm.run()
    asked = [output for _, output in load.sizes]
    calm.counts.tokens_equal = [len(tokens) for tokens in right] == asked
    if calm.counts.by_recompute or calm.counts.by_swap:
        calm.counts.error = calm.counts.error or "somebody was preempted in a pool that holds everybody"
    runs = [calm.counts]
    for mode in ("recompute", "swap"):
        console.print(f"\nWith {GPU_BLOCKS} blocks, preempting by [bold]{mode}[/]. It begins like this:", highlight=False)
        tour = Tour(mode, load, GPU_BLOCKS, mode, console)
        tour.counts.tokens_equal = tour.run() == right
        if not (tour.counts.by_recompute if mode == "recompute" else tour.counts.by_swap):
            tour.counts.error = tour.counts.error or f"nobody was preempted by {mode}"
        runs.append(tour.counts)
    return runs


def summary(runs: list[Counts]) -> Table:
    """A column for each run."""
    table = Table("", *(counts.name for counts in runs))
    for column in table.columns[1:]:
        column.justify = "right"

    def verdict(good: bool) -> str:
        return "[green]yes[/]" if good else "[red]NO[/]"

    for label, field in (
        ("GPU blocks", "gpu_blocks"),
        ("requests", "requests"),
        ("steps", "steps"),
        ("preemptions by recompute", "by_recompute"),
        ("preemptions by swap", "by_swap"),
        ("tokens computed again", "recomputed_tokens"),
        ("blocks swapped, both ways", "swapped_blocks"),
    ):
        table.add_row(label, *(f"{getattr(counts, field):,}" for counts in runs))
    table.add_row("all blocks back at the end", *(verdict(counts.blocks_back) for counts in runs))
    table.add_row("tokens equal to the unpreempted run", *(verdict(counts.tokens_equal) for counts in runs))
    table.add_row("states checked against the invariants", *(f"{counts.states_checked:,}" for counts in runs))
    colours = ["green" if not counts.violations else "red" for counts in runs]
    table.add_row("violations", *(f"[{c}]{len(counts.violations)}[/]" for c, counts in zip(colours, runs, strict=True)))
    return table


@click.command(short_help="the guided tour")
@click.option("--prove/--no-prove", "with_proofs", default=True, show_default=True, help="Prove the theorems first.")
@click.option("--jobs", type=click.IntRange(min=1), default=None, help="Processes that prove. Default: one per core.")
@click.option("--seed", type=click.IntRange(min=0, max=2**63), default=0, show_default=True, help="Of the workload.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output on stdout.")
def command(with_proofs: bool, jobs: int | None, seed: int, as_json: bool) -> int:
    """The guided tour: the theorems, then both kinds of preemption at work, every state checked.

    Exit status: 0; 1 if a theorem is not proved or anything else is wrong.
    """
    console = Console(stderr=as_json)
    result: dict[str, Any] = {"proofs": None}
    good = True
    if with_proofs:
        result["proofs"], good = proved(jobs or cores(), console)
    runs = served(seed, console)
    good = good and all(counts.good for counts in runs)
    console.print()
    console.print(summary(runs))
    for counts in runs:
        for line in (*([counts.error] if counts.error else []), *counts.violations):
            console.print(f"[red]{counts.name}[/]: {line}", highlight=False)
    if as_json:
        result |= {"seed": seed, "runs": [attrs.asdict(counts) for counts in runs], "good": good}
        click.echo(json.dumps(result))
    return 0 if good else 1
