"""`kvproof prove`: the theorems, on the functions that run."""

import json
import sys
from typing import Any

import attrs
import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kvproof.cli import InputError


@click.command("prove")
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help="Report this theorem only (may be repeated). All cases run: each theorem rests on the invariants.",
)
@click.option("--jobs", type=click.IntRange(1, 256), default=None, help="Processes; default: one per core.")
@click.option("--seeds", type=click.IntRange(1, 100), default=1, show_default=True, help="Prove with this many solver seeds.")
@click.option("--no-cache", is_flag=True, help="Prove again what was proved of the same sources before.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output on stdout.")
def command(only: tuple[str, ...], jobs: int | None, seeds: int, no_cache: bool, as_json: bool) -> int:
    """Prove the theorems for any number of blocks, sequences, groups and tokens. Exit status 0 if all are proved, else 1."""
    from kvproof.proofs import prove

    for name in only:
        if name not in prove.THEOREMS:
            raise InputError(f"--only: no theorem is called {name!r}; there are: {', '.join(prove.THEOREMS)}")
    console = Console(stderr=True)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("proving", total=None)

        def progress(done: int, total: int, label: str) -> None:
            bar.update(task, completed=done, total=total, description=f"proving: {label}")

        report = prove.run(list(only) or None, jobs, seeds, progress, cache=not no_cache)
    if as_json:
        body: dict[str, Any] = {"theorems": [attrs.asdict(t) for t in report.theorems], "seconds": report.seconds}
        if report.failures:
            body["failures"] = [attrs.asdict(f) for f in report.failures]
        click.echo(json.dumps(body))
    else:
        show(report)
    return 0 if report.proved else 1


def show(report: Any) -> None:
    """The table, and what failed."""
    from kvproof.proofs import prove

    table = Table("theorem", "status", "obligations", "seconds", "what it says")
    colours = {"proved": "green", "refuted": "red", "unknown": "yellow"}
    for t in report.theorems:
        colour = colours[t.status]
        table.add_row(t.name, f"[{colour}]{t.status}[/]", str(t.obligations), f"{t.seconds:.1f}", prove.THEOREMS[t.name])
    console = Console(file=sys.stdout)
    console.print(table)
    for f in report.failures:
        console.print(f"not proved ({f.verdict}): {f.case}: {f.label}, path {f.path or '-'}", markup=False)
    total = sum(t.obligations for t in report.theorems)
    kept = f"; {report.kept} of {report.cases} cases kept from an earlier run (see --no-cache)" if report.kept else ""
    console.print(f"{total:,} obligations, {len(report.failures)} not proved, {report.seconds:.1f} s{kept}", markup=False)
