"""A failure as a scenario for `kvproof replay`, where the format can say it.

The format knows requests, events between two passes, and whole steps with all results. What it has no words for is put as near as
it can be: what happens in flight happens before the next pass, the engine's ends are `finish_seq` events, a restored state is a
run without what happened since it was kept, an order has its usual thresholds. So a scenario is kept only if its replay fails.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import attrs

from kvproof.core.config import MODES
from kvproof.formats import load_scenario
from kvproof.fuzz.orders import hints_of
from kvproof.fuzz.shrink import Failure, Log
from kvproof.order import BUILT_IN
from kvproof.replay import Replay
from kvproof.strictjson import ScenarioError

NAMES = {"vllm_v0": "profile", "priority": "policy", "choose_victims": ""}
"""Fields of a configuration that have another name in a scenario, or none."""


def scenarios(failure: Failure) -> list[dict[str, Any]]:
    """The same run as scenarios; none if the format has no words for it."""
    start = failure.start
    if (start.config.choose_victims and start.mode != "auto") or start.order not in (None, *BUILT_IN):
        return []
    story = tell(straight(failure.log), start.order is not None)
    if story is None:
        return []
    modes = MODES if start.mode == "any" else (start.mode,)
    return [{"format": 1, "name": "fuzz", "config": config(failure, mode), **story} for mode in modes]


def config(failure: Failure, mode: str | None) -> dict[str, Any]:
    """The configuration in the words of the format."""
    fields = attrs.asdict(failure.start.config)
    out = {name: value for name, value in fields.items() if name not in NAMES and value is not None}
    profile, policy = "vllm_v0" if fields["vllm_v0"] else "kvproof", "priority" if fields["priority"] else "fcfs"
    out |= {"profile": profile, "policy": failure.start.order or policy, "preemption_mode": mode}
    if failure.start.costs is not None:
        out["costs"] = attrs.asdict(failure.start.costs)
    return out


def straight(log: Log) -> Log:
    """The log without what happened between a kept state and the return to it."""
    out: Log = ()
    kept: list[Log] = []
    for name, arguments in log:
        if name == "keep":
            kept.append(out)
        elif name == "back":
            out = kept[arguments[0]]
        elif name != "refused":
            out = (*out, (name, arguments))
    return out


def tell(log: Log, hints: bool) -> dict[str, Any] | None:
    """The requests and the events of this log; None if results are missing, a beam has a width, or the engine changes a rank.

    `hints`: with what orders are told of requests besides.
    """
    requests: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    step = 0  # the next pass
    for name, arguments in log:
        if name == "add":
            prompt, output, n, width, priority = filled(arguments, (0, 0, 1, None, 0))
            if width is not None:
                return None
            sizes = {"prompt_tokens": prompt, "output_tokens": output, "n": n, "priority": priority}
            more = hints_of(len(requests), output) if hints else {}
            requests.append({"id": str(len(requests)), "arrival_step": step, **sizes, **more})
        elif name == "rerank":
            return None
        elif name == "schedule":
            step += 1
        elif name == "commit":
            drop, stops, _, _, accepted = filled(arguments, ((), (), (), False, ()))
            if drop:
                return None
            events += [event(step - 1, "accept", g, tokens=tokens) for g, tokens in accepted]
            events += [event(step, "finish_seq", g, seq=q) for g, q in stops]
        elif name in EVENTS:
            op, *fields = EVENTS[name]
            events.append(event(step, op, arguments[0], **dict(zip(fields, arguments[1:], strict=True))))
    known = {request["id"] for request in requests}
    return {"requests": requests, "events": [e for e in events if e["id"] in known]}


EVENTS = {
    "abort": ("abort",),
    "fork": ("fork", "parent"),
    "finish": ("finish_seq", "seq"),
    "preempt": ("preempt", "mode"),
    "deny": ("deny_append", "count"),
}
"""Operation -> the event that it is in a scenario, and the names of its arguments after the group."""


def filled(arguments: tuple[Any, ...], defaults: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with the defaults of those that were left out."""
    return arguments + defaults[len(arguments) :]


def event(step: int, op: str, g: int, **fields: Any) -> dict[str, Any]:
    """An event of a scenario."""
    return {"step": step, "op": op, "id": str(g), **fields}


def replay_fails(value: dict[str, Any]) -> bool:
    """Does `kvproof replay` end with status 1 on this scenario, for something that must not happen? V0 may stall."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.json"
        path.write_text(json.dumps(value))
        try:
            run = Replay(load_scenario(path, {}))
        except ScenarioError:
            return False
        try:
            *_, last = run.lines()
        except Exception:
            return True
    stalled = last.get("error") == "stalled" and value["config"]["profile"] == "vllm_v0" and "violations" not in last
    return run.failed and not stalled
