"""`kvproof simulate --sweep`: many runs of one trace in parallel processes; a table, JSON and a page out."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvproof.cli import InputError
from kvproof.core.config import Config
from kvproof.proofs.workers import WorkerError, each
from kvproof.sim import sweep_page, sweep_table
from kvproof.sim.files import reason_of, write_atomically
from kvproof.sim.sweep import LOADS, REFERENCE, VARIANTS, Key, Made, NobodyFitsError, Runner, Sweep, SweepError, Task, failed
from kvproof.sim.traces import shown

BLOCKS_MAX = 2**22
LOAD_MIN, LOAD_MAX = 0.001, 1000.0
VALUES_MAX = 100
"""Values of one option; 100 x 100 runs of each variant are more than anybody wants to wait for."""
WIDTH_MIN = 170
"""Columns of the table where stdout is no terminal."""

N = TypeVar("N", int, float)


def numbers_of(option: str, text: str, convert: Callable[[str], N], least: N, most: N, example: str) -> list[N]:
    """The numbers of a list like `500,1000`, without repetitions, in their order. Raises InputError."""
    out: list[N] = []
    for part in text.split(","):
        try:
            number = convert(part.strip()[:40])
        except ValueError:
            raise InputError(f"{option}: must be numbers separated by commas, like {example}, got {shown(text)}") from None
        if not math.isfinite(number) or not least <= number <= most:
            raise InputError(f"{option}: must be from {least:g} to {most:g}, got {shown(part.strip())}")
        if number not in out:
            out.append(number)
    if len(out) > VALUES_MAX:
        raise InputError(f"{option}: at most {VALUES_MAX} numbers, got {len(out)}")
    return out


def blocks_of(text: str) -> list[int]:
    """The pool sizes of `--sweep-blocks`, in GPU blocks."""
    return numbers_of("--sweep-blocks", text, int, 1, BLOCKS_MAX, "500,1000")


def loads_of(text: str | None) -> list[float]:
    """The load factors of `--sweep-load`; 1 is what the pool sustains."""
    return list(LOADS) if text is None else numbers_of("--sweep-load", text, float, LOAD_MIN, LOAD_MAX, "0.5,1,2")


def variants_of(text: str | None) -> list[str]:
    """The names of `--sweep-variants`, in the order of the table."""
    if text is None:
        return list(VARIANTS)
    parts, names = [" ".join(part.split()) for part in text.split(",")], set()
    while parts:
        two = ", ".join(parts[:2])  # a name may have a comma
        name = two if two in VARIANTS else parts[0]
        if name not in VARIANTS:
            raise InputError(f"--sweep-variants: no variant is called {shown(name)}; there are {'; '.join(VARIANTS)}")
        names.add(name)
        parts = parts[1 + name.count(",") :]
    return [name for name in VARIANTS if name in names]


def configs_of(names: Iterable[str], blocks: Iterable[int], configure: Callable[..., Config]) -> dict[tuple[str, int], Config]:
    """The configuration of each variant and pool size; `configure(num_gpu_blocks, **changes)` makes one."""
    sizes = list(blocks)
    out = {}
    for name in dict.fromkeys((*names, REFERENCE)):
        for size in sizes:
            try:
                out[name, size] = configure(size, **VARIANTS[name].changes(size))
            except InputError as error:
                raise InputError(f"--sweep: {name}, {size} blocks: {error.message}") from None
    return out


def in_processes(jobs: int) -> Runner:
    """What makes the runs: `jobs` processes at a time. None is left when it is closed."""

    def runner(make: Callable[[Task], Any], tasks: Sequence[tuple[Task]]) -> Made:
        yield from each(make, tasks, jobs)

    return runner


def run(sweep: Sweep, title: str, record: dict[str, Any], jobs: int, report_path: Path | None, as_json: bool) -> int:
    """Make the sweep and tell of it. `record`: what ran, for the JSON. Returns the exit status."""
    try:
        plotly = sweep_page.plotly_js() if report_path is not None else ""
    except sweep_page.NoPlotlyError as error:
        raise InputError(f"--report: {error}") from None
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, transient=True, refresh_per_second=4, disable=not console.is_terminal) as bar:
            task = bar.add_task("measuring load 1", total=sweep.total)

            def show(key: Key) -> None:
                bar.update(task, advance=1, description=str(key))

            result = sweep.run(in_processes(jobs), show)
    except NobodyFitsError as error:
        raise InputError(f"--sweep-blocks: {error}") from None
    except (SweepError, WorkerError) as error:
        click.echo(f"kvproof: --sweep: {error}", err=True)
        return 1
    bad = failed(result)
    if report_path is not None:
        try:
            write_atomically(report_path, sweep_page.page(title, result, sweep_table.notes(result), plotly))
        except OSError as error:
            raise InputError(f"--report {report_path}: cannot be written: {reason_of(error)}") from None
    if as_json:
        click.echo(json.dumps(record | result))
    else:
        tell(title, result)
    for where in bad:
        click.echo(f"kvproof: --sweep: {where}: a violation or a lost request", err=True)
    return 1 if bad else 0


def tell(title: str, result: dict[str, Any]) -> None:
    """The tables, wide enough to be read where stdout is a file."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(WIDTH_MIN, console.width))
    console.print(title, markup=False, highlight=False)
    for entry in result["load_1"]:
        console.print(sweep_table.table(result, entry["blocks"]))
    for note in sweep_table.notes(result):
        console.print(note, markup=False, highlight=False)
