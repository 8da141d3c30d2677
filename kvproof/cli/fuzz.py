"""`kvproof fuzz`: random operations on the whole system for a given time, the whole specification checked on each state."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from kvproof.cli import InputError

ENOUGH_SECONDS = 60.0
"""In a run of this length every rule fires and every event happens."""


@click.command(short_help="stateful fuzzing of the whole system")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, max=10**7),
    default=60.0,
    show_default=True,
    help="At least so long; a round is finished.",
)
@click.option("--seed", type=click.IntRange(min=0, max=2**63 - 1), default=0, show_default=True, help="Of the first round.")
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="Folder for a failure.  [default: here]"
)
@click.option("--json", "as_json", is_flag=True, help="The report as JSON on stdout.")
def command(seconds: float, seed: int, output: Path, as_json: bool) -> int:
    """Run random operations on scheduler, fake backend and fake model, and check the specification on every state.

    A fault is shrunk and written as files that run it again. Exit status: 0; 1 found a fault, or some rule never fired or some
    event never happened in a run of a minute or more; 2 bad input.
    """
    from kvproof.fuzz.loop import fuzz
    from kvproof.fuzz.report import write

    if not output.is_dir():
        raise InputError(f"--output {click.format_filename(output)}: no such folder")
    live = sys.stderr.isatty()

    def progress(line: str) -> None:
        click.echo(f"\rkvproof fuzz: {line}" if live else f"kvproof fuzz: {line}", err=True, nl=not live)

    if seconds != seconds:
        raise InputError("--seconds: must be a number, got nan")
    report = fuzz(seconds, seed, progress)
    if live:
        click.echo(err=True)
    files: list[Path] = []
    if report.failure is not None:
        try:
            files = write(report.failure, output, f"kvproof-fuzz-{seed}")
        except OSError as error:
            raise InputError(f"--output {click.format_filename(output)}: {error.strerror}") from None
    summary: dict[str, Any] = {
        "seed": seed,
        "rounds": report.rounds,
        "seconds": round(report.seconds, 1),
        "rules": dict(sorted(report.fired.items())),
        "events": dict(sorted(report.events.items())),
        "events_by": {column: dict(sorted(events.items())) for column, events in sorted(report.by.items())},
        "never_fired": report.silent,
        "fault": None if report.failure is None else report.failure.error,
        "files": [str(path) for path in files],
    }
    if as_json:
        print(json.dumps(summary))
    else:
        show(summary)
    lacking = report.silent if report.failure is None and seconds >= ENOUGH_SECONDS else []
    if lacking:
        click.echo(f"kvproof fuzz: in {report.seconds:.0f} s these never happened: {', '.join(lacking)}", err=True)
    return 1 if report.failure is not None or lacking else 0


def show(summary: dict[str, Any]) -> None:
    """The summary for people: rules, then events by profile and mode."""
    print("rules:")
    for name, count in summary["rules"].items():
        print(f"  {name:36} {count:>9,}")
    columns = list(summary["events_by"])
    print(f"{'events:':38} {'all':>9}" + "".join(f"{column.split()[1]:>10}" for column in columns))
    print(f"{'':48}" + "".join(f"{column.split()[0]:>10}" for column in columns))
    for name, count in summary["events"].items():
        cells = (summary["events_by"][column].get(name, 0) for column in columns)
        print(f"  {name:36} {count:>9,}" + "".join(f"{n:>10,}" for n in cells))
    if summary["fault"] is not None:
        print(f"FAULT: {summary['fault']}")
        for path in summary["files"]:
            print(f"  {'kvproof replay' if path.endswith('.json') else 'python'} {path}")
        return
    print(f"no fault in {summary['rounds']} round{'s' * (summary['rounds'] != 1)}, {summary['seconds']} s")
    if summary["never_fired"] and summary["seconds"] < ENOUGH_SECONDS:
        print(f"in so short a run {len(summary['never_fired'])} rules and events never happened")
