"""`kvproof replay SCENARIO`: decision records as JSON lines on stdout; what differs goes to stderr."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvproof.cli import InputError
from kvproof.compare import MAPS, Comparison
from kvproof.formats import Scenario, load_scenario, parse_override
from kvproof.strictjson import ScenarioError

if TYPE_CHECKING:
    from kvproof.backend_fake import FakeBackend
    from kvproof.core.config import Config


def load(path: Path, settings: tuple[str, ...]) -> Scenario:
    """The scenario with the overrides of --set; whatever is wrong with either is one line."""
    try:
        overrides = dict(parse_override(text) for text in settings)
    except ScenarioError as error:
        raise InputError(str(error)) from None
    try:
        return load_scenario(path, overrides)
    except ScenarioError as error:
        raise InputError(f"{click.format_filename(path)}: {error}".replace("\n", " ")) from None


def mirrored(seed: int) -> "Callable[[Config], FakeBackend]":
    """Makes the CUDA backend on the stream simulator, which runs things in the order that the seed says."""
    from kvproof.backend_cuda.mirror import simulated

    return lambda config: simulated(config, seed)


@click.command(short_help="run a scenario and print its decision records")
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option(
    "--backend", type=click.Choice(["fake", "cuda"]), default="fake", show_default=True, help="What executes the plans."
)
@click.option("--interleaving", type=int, help="With --backend cuda: seed of how and in which order copies run.  [default: 0]")
@click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="Override a config field (JSON, else a string).")
@click.option("--maps", is_flag=True, help="Add block maps and tables to every record.")
@click.option("--bounds", is_flag=True, help="Add to every record within how many more passes each request ends.")
@click.option("--check", is_flag=True, help="Compare with `expected` and show the first difference.")
@click.option("--json", "as_json", is_flag=True, help="The output is JSON lines in any case.")
def command(
    scenario: Path,
    backend: str,
    interleaving: int | None,
    settings: tuple[str, ...],
    maps: bool,
    bounds: bool,
    check: bool,
    as_json: bool,
) -> int:
    """Run SCENARIO (JSON) and print one decision record per step and an end record.

    --backend cuda runs the code of the CUDA backend on a simulator of streams, beside the fake backend, and compares contents.

    Exit status: 0; 1 a difference, a violation, wrong tokens, or a run that stalls; 2 bad input.
    """
    if interleaving is not None and backend != "cuda":
        raise InputError("--interleaving: only with --backend cuda")
    checked = load(scenario, settings)
    if check and checked.expected is None:
        raise InputError(f"{click.format_filename(scenario)}: expected: is required for --check")
    from kvproof.replay import Replay  # numpy takes a while to load; bad input need not wait for it

    expected = checked.expected or ()
    wide = maps or (check and any(name in MAPS for record in expected for name in record))
    if bounds and checked.config.vllm_v0:
        raise InputError("--bounds: profile vllm_v0 may hang: no request is sure to end")
    run = Replay(checked, maps=wide, within=bounds, backend=mirrored(interleaving or 0) if backend == "cuda" else None)
    comparison = Comparison(expected)
    for record in run.lines():
        if check and "queues" in record:
            comparison.feed(record)
        print(json.dumps(record if maps else {key: value for key, value in record.items() if key not in MAPS}))
    sys.stdout.flush()
    difference = comparison.end() if check else None
    if difference is not None:
        click.echo("\n".join(difference.lines()), err=True)
    elif check and sys.stderr.isatty():
        click.echo(f"{len(expected)} records as expected", err=True)
    return 1 if run.failed or difference is not None else 0
