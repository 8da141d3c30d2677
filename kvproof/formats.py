"""The scenario format: what `kvproof replay` reads. Strict: whatever is not said to be right is refused, by its path.

The tables below are the format; what they cannot say (defaults that depend on other fields, duplicate ids, events on nobody,
limits on the total work) follows in functions. What later releases add is known here already and refused as not supported yet.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from kvproof.core.config import ArtificialPreemption, Config, ConfigError
from kvproof.fields import Field, array, boolean, choice, integer, later, name, number, optional, record, text, wrong
from kvproof.order import BUILT_IN
from kvproof.policies.costs import SECONDS_MAX, Costs
from kvproof.strictjson import ScenarioError, parse, read, show

SLOTS_MAX = 2**26
"""Slots of both pools together: the fake backend holds about 28 bytes for each that is touched."""
BLOCKS_MAX = 2**22
"""Blocks of one pool: the free list holds about 80 bytes for each."""
STEP_MAX = 2**20
"""Latest arrival or event: a record is written for every step until then."""
TOKENS_MAX = 2**22
"""Tokens of all requests as far as they can get: about the number of steps and of results."""
SEQUENCES_MAX = 2**10
"""Sequences of one request."""
READS_MAX = 2**30
"""Slots read: every new token reads its whole history."""

OPS: dict[str, dict[str, Field]] = {
    "abort": {},
    "fork": {"parent": Field(integer(0))},
    "finish_seq": {"seq": Field(integer(0))},
    "accept": {"tokens": Field(integer(1))},
    "preempt": {"mode": Field(choice(None, "recompute", "swap"), None)},
    "deny_append": {"count": Field(integer(1))},
}
"""Operations of events, and the fields that they have beside step, op and id."""

ARTIFICIAL = {
    "seed": Field(integer(0), 0),
    "probability": Field(number(0, 1), 0.5),
    "max_count": Field(integer(0), 500),
}


OF_CONFIG = ("fcfs", "priority")
"""Policies that need no order: `Config.priority` says which."""
COSTS = {field.name: Field(number(0, SECONDS_MAX), field.default) for field in attrs.fields(Costs)}
"""What `auto` reckons with, in seconds."""


def _artificial(value: Any, path: str) -> Any:
    return record(value, path, ARTIFICIAL)


def _costs(value: Any, path: str) -> Any:
    return Costs(**record(value, path, COSTS))


CONFIG = {
    "profile": Field(choice("kvproof", "vllm_v0"), "kvproof"),
    "block_size": Field(integer(1), 16),
    "num_gpu_blocks": Field(integer(1, BLOCKS_MAX)),
    "num_cpu_blocks": Field(integer(0, BLOCKS_MAX), None),
    "watermark": Field(number(0, 1), 0.01),
    "watermark_blocks": Field(integer(0), None),
    "max_num_seqs": Field(integer(1), None),
    "max_num_batched_tokens": Field(integer(1), None),
    "max_model_len": Field(integer(1), 2048),
    "enable_chunked_prefill": Field(boolean, False),
    "policy": Field(choice(*BUILT_IN), "fcfs"),
    "preemption_mode": Field(choice(None, "recompute", "swap", "auto"), None),
    "costs": Field(optional(_costs), None),
    "num_lookahead_slots": Field(integer(0, 2**10), 0),
    "delay_factor": Field(number(0, 1e9), 0.0),
    "max_preemptions_per_request": Field(optional(integer(0)), None),
    "artificial_preemption": Field(optional(_artificial), None),
    "transfers": Field(later(choice("ordered", "fenced"), "ordered"), "ordered"),
    "transfer_latency_steps": Field(later(integer(0), 0), 0),
    "transfer_order_seed": Field(later(optional(integer(0)), None), None),
}

REQUEST = {
    "id": Field(name),
    "arrival_step": Field(integer(0, STEP_MAX), 0),
    "prompt_tokens": Field(integer(1)),
    "output_tokens": Field(integer(1)),
    "n": Field(integer(1, SEQUENCES_MAX), 1),
    "priority": Field(integer(-(2**40)), 0),
    "tenant": Field(optional(text), None),
    "expected_tokens": Field(optional(integer(1)), None),
}

EVENT = {"step": Field(integer(0, STEP_MAX)), "op": Field(choice(*OPS)), "id": Field(name)}

RECORD_FIELDS = (
    *("step", "scheduled", "num_prefills", "preempted", "swap_out", "swap_in", "copy", "ignored", "finished"),
    *("queues", "free_gpu", "free_cpu", "skipped_events"),
    *("swap_out_map", "swap_in_map", "copy_map", "tables", "new_blocks", "trimmed"),
)

SCENARIO = {
    "format": Field(integer(1, 1)),
    "name": Field(text, None),
    "recorded_from": Field(text, None),
    "config": Field(lambda value, path: value),
    "requests": Field(array),
    "events": Field(array, ()),
    "expected": Field(array, None),
}


@attrs.frozen
class Request:
    """One request of a scenario."""

    id: str
    arrival_step: int
    prompt_tokens: int
    output_tokens: int
    n: int = 1
    priority: int = 0
    tenant: str | None = None
    expected_tokens: int | None = None


@attrs.frozen
class Event:
    """What happens to a request from outside, before the pass of a step."""

    step: int
    op: str
    id: str
    parent: int = 0
    seq: int = 0
    tokens: int = 1
    mode: str | None = None
    count: int = 1


@attrs.frozen
class Scenario:
    """A checked scenario. `expected`: decision records to compare with, if any. `costs`: for the preemption mode "auto"."""

    name: str
    config: Config
    preemption_mode: str | None
    requests: tuple[Request, ...]
    events: tuple[Event, ...] = ()
    expected: tuple[dict[str, Any], ...] | None = None
    policy: str = "fcfs"
    costs: Costs | None = None


def _check_policy(c: Mapping[str, Any], path: str) -> None:
    """What needs the profile kvproof, or another field."""
    if c["profile"] == "vllm_v0":
        for field, known in (("policy", OF_CONFIG), ("preemption_mode", (None, "recompute", "swap"))):
            if c[field] not in known:
                only = " or ".join(show(x) for x in known)
                raise ScenarioError(f"{path}.{field}: {show(c[field])} needs the profile kvproof, vllm_v0 has only {only}")
    if c["costs"] is not None and c["preemption_mode"] != "auto":
        raise ScenarioError(f'{path}.costs: are for the preemption_mode "auto" only')


def parse_config(value: Any, path: str = "config") -> tuple[Config, dict[str, Any]]:
    """The core's configuration, and `preemption_mode`, `policy` and `costs`."""
    c = record(value, path, CONFIG)
    _check_policy(c, path)
    if c["num_cpu_blocks"] is None:
        c["num_cpu_blocks"] = c["num_gpu_blocks"]
    if c["max_num_batched_tokens"] is None:
        c["max_num_batched_tokens"] = max(2048, c["max_model_len"])
    if c["max_num_seqs"] is None:
        c["max_num_seqs"] = min(256, c["max_num_batched_tokens"])
    if c["watermark_blocks"] is None:
        c["watermark_blocks"] = int(c["watermark"] * c["num_gpu_blocks"])
    slots = (c["num_gpu_blocks"] + c["num_cpu_blocks"]) * c["block_size"]
    if slots > SLOTS_MAX:
        raise ScenarioError(f"{path}: (num_gpu_blocks + num_cpu_blocks) x block_size must be <= {SLOTS_MAX} slots, got {slots}")
    try:
        config = Config(
            num_gpu_blocks=c["num_gpu_blocks"],
            num_cpu_blocks=c["num_cpu_blocks"],
            block_size=c["block_size"],
            watermark_blocks=c["watermark_blocks"],
            max_num_seqs=c["max_num_seqs"],
            max_num_batched_tokens=c["max_num_batched_tokens"],
            max_model_len=c["max_model_len"],
            enable_chunked_prefill=c["enable_chunked_prefill"],
            num_lookahead_slots=c["num_lookahead_slots"],
            delay_factor=c["delay_factor"],
            max_preemptions_per_request=c["max_preemptions_per_request"],
            priority=c["policy"] == "priority",
            artificial_preemption=c["artificial_preemption"] and ArtificialPreemption(**c["artificial_preemption"]),
            vllm_v0=c["profile"] == "vllm_v0",
        )
    except ConfigError as error:
        raise ScenarioError(f"{path}.{error}") from None
    return config, {name: c[name] for name in ("preemption_mode", "policy", "costs")}


def reach(config: Config, request: Request) -> int:
    """The most tokens (prompt + generated) that a request can get to: its limit, or one more than the pool holds."""
    tokens = request.prompt_tokens + request.output_tokens
    if not config.vllm_v0:
        tokens = max(request.prompt_tokens + 1, min(tokens, config.max_model_len))
    return min(tokens, config.num_gpu_blocks * config.block_size + 1)


def _check_work(config: Config, requests: tuple[Request, ...], events: tuple[Event, ...]) -> None:
    tokens = reads = 0
    forks = Counter(event.id for event in events if event.op == "fork")
    for request in requests:
        if request.prompt_tokens <= config.num_gpu_blocks * config.block_size:
            length, sequences = reach(config, request), request.n + forks[request.id]
            tokens += length * sequences
            reads += length * (length - request.prompt_tokens) * sequences
    if tokens > TOKENS_MAX:
        raise ScenarioError(f"requests: {tokens} tokens in all are too many to replay, the limit is {TOKENS_MAX}")
    if reads > READS_MAX:
        raise ScenarioError(f"requests: reading {reads} slots in all is too much to replay, the limit is {READS_MAX}")


def _requests(values: list[Any]) -> tuple[Request, ...]:
    requests = []
    first: dict[str, int] = {}
    for i, value in enumerate(values):
        request = Request(**record(value, f"requests[{i}]", REQUEST))
        if request.id in first:
            raise ScenarioError(f"requests[{i}].id: {show(request.id)} is the id of requests[{first[request.id]}] already")
        first[request.id] = i
        requests.append(request)
    return tuple(requests)


def _events(values: list[Any], requests: tuple[Request, ...]) -> tuple[Event, ...]:
    known = {request.id for request in requests}
    events = []
    for i, value in enumerate(values):
        path = f"events[{i}]"
        fields = EVENT
        if isinstance(value, dict) and "op" in value:  # first: each operation has fields of its own
            fields = EVENT | OPS[EVENT["op"].check(value["op"], f"{path}.op")]
        event = Event(**record(value, path, fields))
        if event.id not in known:
            raise ScenarioError(f"{path}.id: no request has the id {show(event.id)}")
        events.append(event)
    return tuple(events)


def _expected(values: list[Any] | None) -> tuple[dict[str, Any], ...] | None:
    """Decision records. Their values are compared, not checked: a wrong one is a difference."""
    if values is None:
        return None
    for i, value in enumerate(values):
        path = f"expected[{i}]"
        if not isinstance(value, dict):
            wrong(path, "an object", value)
        record({key: part for key, part in value.items() if key not in RECORD_FIELDS}, path, {})
        record({"step": value["step"]} if "step" in value else {}, path, {"step": Field(integer(i, i))})
    return tuple(values)


def parse_scenario(value: Any, overrides: Mapping[str, Any] | None = None, default_name: str = "") -> Scenario:
    """A scenario from its JSON value. `overrides` replace fields of its config before it is checked."""
    s = record(value, "", SCENARIO)
    raw = s["config"]
    if overrides and isinstance(raw, dict):
        raw = {**raw, **overrides}
        if "watermark" in overrides and "watermark_blocks" not in overrides:
            raw.pop("watermark_blocks", None)
    config, how = parse_config(raw)
    requests = _requests(s["requests"])
    events = _events(s["events"], requests)
    _check_work(config, requests, events)
    expected = _expected(s["expected"])
    return Scenario(s["name"] or default_name, config, requests=requests, events=events, expected=expected, **how)


def load_scenario(path: Path, overrides: Mapping[str, Any] | None = None) -> Scenario:
    """A scenario from its file. Raises `ScenarioError`."""
    return parse_scenario(read(path), overrides, path.stem)


def parse_override(text: str) -> tuple[str, Any]:
    """`FIELD=VALUE` of `--set`: the value is JSON, or else a string."""
    field, equals, value = text.partition("=")
    if not equals or not field:
        raise ScenarioError(f"--set: must be FIELD=VALUE, got {show(text)}")
    try:
        return field, parse(value)
    except ScenarioError:
        return field, value
