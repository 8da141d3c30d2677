"""`kvproof bench`: what a scheduling pass costs on this machine."""

import json

import click

from kvproof.bench import sched as measured
from kvproof.cli import InputError

N_MAX = 1_000_000


def sizes_of(text: str) -> list[int]:
    """The numbers of `--n 64,256,1024`. Raises InputError for anything else."""
    sizes = []
    for part in text.split(","):
        if not (part.strip().isascii() and part.strip().isdigit()):
            raise InputError(f"--n: must be numbers of sequences separated by commas, like 64,256,1024, got {text[:80]!r}")
        n = int(part.strip()[:20])
        if not 1 <= n <= N_MAX:
            raise InputError(f"--n: must be between 1 and {N_MAX}, got {part.strip()[:20]}")
        sizes.append(n)
    return sizes


@click.group()
def command() -> None:
    """Measure costs, in microseconds and in calls of an empty function per sequence."""


@command.command()
@click.option("--n", "n", default="64,256,1024", show_default=True, help="Numbers of sequences, separated by commas.")
@click.option(
    "--only", multiple=True, metavar="CASE", type=click.Choice([*measured.CASES, measured.HISTORY]), help="Only this case."
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output on stdout.")
def sched(n: str, only: tuple[str, ...], as_json: bool) -> None:
    """Cost of a pass: steady decode, under pressure, and of keeping every state; with a peer in the same run."""
    rows = []
    for row in measured.run(sizes_of(n), only, lambda line: click.echo(line, err=True)):
        rows.append(row)
        if not as_json:
            line = f"{row['case']:<16} N={row['n']:<6} median {row['median_us']:>10} us   p99 {row['p99_us']:>10} us   "
            line += f"{row['calls_per_sequence']:>6} calls per sequence   ({row['runs']} steps, empty call {row['call_ns']} ns)"
            if "memory_mb" in row:
                line += f"   {row['memory_mb']} MB"
            click.echo(line)
    if as_json:
        click.echo(json.dumps({"results": rows}))
