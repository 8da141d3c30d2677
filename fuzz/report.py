"""A failure as files that run again: a Python script always; a scenario for `kvproof replay` where the format can say it.

A scenario knows requests, aborts between two passes and whole steps with all results. One is written only if the replay of it
fails too.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from kvproof.formats import load_scenario
from kvproof.fuzz.shrink import Failure
from kvproof.replay import Replay
from kvproof.strictjson import ScenarioError

EXPRESSIBLE = {"add", "schedule", "commit", "abort", "drain", "keep", "refused"}


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


def scenario(failure: Failure) -> dict[str, Any] | None:
    """The same as a scenario, if the format can say it."""
    log, config = failure.log, failure.start.config
    plain = all(name in EXPRESSIBLE and (name != "commit" or arguments in ((), ((), (), (), True))) for name, arguments in log)
    if not plain or failure.start.mode == "any":
        return None
    requests: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    step, in_flight = 0, False
    for name, arguments in log:
        if name in ("add", "abort") and in_flight:
            return None
        if name == "add":
            prompt, output = arguments
            requests.append({"id": str(len(requests)), "arrival_step": step, "prompt_tokens": prompt, "output_tokens": output})
        elif name == "abort":
            events.append({"step": step, "op": "abort", "id": str(arguments[0])})
        elif name == "schedule":
            step, in_flight = step + 1, True
        elif name == "commit":
            in_flight = False
    names = ("block_size", "num_gpu_blocks", "num_cpu_blocks", "watermark_blocks", "max_num_seqs", "max_num_batched_tokens")
    fields = {name: getattr(config, name) for name in (*names, "max_model_len")}
    profile = "vllm_v0" if config.vllm_v0 else "kvproof"
    out = {"format": 1, "name": "fuzz", "config": {"profile": profile, **fields, "preemption_mode": failure.start.mode}}
    return {**out, "requests": requests, "events": events}


def replay_fails(value: dict[str, Any]) -> bool:
    """Does `kvproof replay` end with status 1 on this scenario?"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.json"
        path.write_text(json.dumps(value))
        try:
            run = Replay(load_scenario(path, {}))
        except ScenarioError:
            return False
        try:
            for _ in run.lines():
                pass
        except Exception:
            return True
    return run.failed


def write(failure: Failure, folder: Path, name: str) -> list[Path]:
    """The files of a failure; the last one written is the one to run first."""
    paths = [folder / f"{name}.py"]
    paths[0].write_text(script(failure))
    value = scenario(failure)
    if value is not None and replay_fails(value):
        paths.append(folder / f"{name}.json")
        paths[1].write_text(json.dumps(value, indent=1) + "\n")
    return paths
