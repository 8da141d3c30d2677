"""A failure as files that run again: a Python script always; a scenario for `kvproof replay` where the format can say it."""

import json
from pathlib import Path

from kvproof.fuzz.scenario import replay_fails, scenarios
from kvproof.fuzz.shrink import Failure


def script(failure: Failure) -> str:
    """A program that fails as the run did."""
    fields = ", ".join(f"{name}={value!r}" for name, value in failure.start.fields.items())
    lines = [
        f'"""{failure.error}"""'.replace("\\", "/"),
        "",
        "from kvproof.fuzz.setup import setup",
        "from kvproof.fuzz.world import World",
        "",
        f"world = World(setup({fields}))",
    ]
    for name, arguments in failure.log:
        lines.append(f"world.do({', '.join(map(repr, (name, *arguments)))})")
    return "\n".join(lines) + "\n"


def write(failure: Failure, folder: Path, name: str) -> list[Path]:
    """The files of a failure; the last one written is the one to run first."""
    paths = [folder / f"{name}.py"]
    paths[0].write_text(script(failure))
    for value in scenarios(failure):
        if replay_fails(value):
            paths.append(folder / f"{name}.json")
            paths[1].write_text(json.dumps(value, indent=1) + "\n")
            break
    return paths
