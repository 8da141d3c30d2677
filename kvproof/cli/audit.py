"""`kvproof audit`: small faults are put into the core; the proofs must notice each."""

import json
import sys
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kvproof.cli import InputError

COLOURS = {"killed": "green", "unconfirmed": "yellow", "equivalent": "cyan", "survived": "red"}


@click.command("audit")
@click.option("--only", metavar="FUNCTION", default=None, help="Mutants of this function only: name, or module.name.")
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=None, help="So many mutants only, evenly chosen.")
@click.option("--jobs", type=click.IntRange(1, 256), default=None, help="Processes; default: one per core.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output on stdout.")
def command(only: str | None, limit: int | None, jobs: int | None, as_json: bool) -> int:
    """Mutate the core and prove again. Exit status 0 if 95 % (without equivalents) are killed and survivors have reasons."""
    from kvproof.proofs import audit, mutate

    if only is not None and not mutate.is_known(only):
        raise InputError(f"--only: no function of the core is called {only!r}")
    with Progress(console=Console(stderr=True), transient=True) as bar:
        first, task = bar.add_task("the real core", total=None), bar.add_task("mutants", total=None)

        def prepared(done: int, total: int, name: str) -> None:
            bar.update(first, completed=done, total=total, description=f"the real core: {name}")

        def progress(done: int, total: int, verdict: Any) -> None:
            bar.update(task, completed=done, total=total, description=f"{verdict.where} {verdict.status}")

        report = audit.run(only, jobs, limit, progress, prepared)
    if as_json:
        click.echo(json.dumps(report.to_json()))
    else:
        show(report, details=only is not None)
    return 0 if report.good else 1


def show(report: Any, details: bool) -> None:
    """The counts, who survived, and for one function every mutant with the last counterexample in full."""
    from kvproof.proofs import audit

    console = Console(file=sys.stdout)
    some = report.verdicts if details else [v for v in report.verdicts if v.status in ("survived", "unconfirmed") or v.named]
    table = Table("where", "change", "", "failed obligation", "counterexample or reason")
    for v in some:
        why = v.reason or v.counterexample or ""
        table.add_row(v.where, v.change, f"[{COLOURS[v.status]}]{v.status}[/]", v.obligation or "", why)
    console.print(table)
    if details:
        counterexample(console, report)
    counts = ", ".join(f"{len(report.of(s))} {s}" for s in COLOURS)
    console.print(f"{len(report.verdicts)} mutants: {counts}; {report.share:.1%} killed, {report.seconds:.0f} s", markup=False)
    if report.by_limit:
        console.print(
            f"Of the killed, {report.by_limit} by an obligation that was not proved in {audit.TIMES} times the solver steps "
            "that the real core needs, while a counterexample shows that it is false.",
            markup=False,
        )


def counterexample(console: Console, report: Any) -> None:
    """One counterexample as states before and after, and a snippet that replays it."""
    from kvproof.proofs import audit, mutate, refute

    shown = next((v for v in report.verdicts if v.counterexample and not v.where.startswith("config.")), None)
    if shown is None:
        return
    mutant = mutate.find(shown.where.split(":")[0], shown.change)
    found = refute.refute(mutant, audit.trials()[0])
    if found is None or isinstance(found, str):
        return
    table = Table("", "group", "status", "tokens/limit", "tables", "", title=f"{shown.where}: {shown.change}")
    for row in refute.rows(found.situation.frozen):
        table.add_row("before", *row)
    table.add_section()
    for row in refute.rows(found.post) if found.post is not None else []:
        table.add_row("after", *row)
    console.print(table)
    console.print(f"{found.action} breaks: {found.clause}\n{found.snippet(mutant)}", markup=False)
