"""The scenario format: defaults, and every kind of bad input, refused by its path in one line."""

import json

import pytest

from kvproof.cli import InputError
from kvproof.formats import BLOCKS_MAX, Scenario, load_scenario, parse_override, parse_scenario
from kvproof.strictjson import BYTES_MAX, ScenarioError


def message(value, overrides=None) -> str:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(value, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def minimal(**config) -> dict:
    return {"format": 1, "config": {"num_gpu_blocks": 100, **config}, "requests": []}


def test_defaults():
    s = parse_scenario(minimal(), default_name="from the file")
    c = s.config
    assert (c.num_gpu_blocks, c.num_cpu_blocks, c.block_size, c.watermark_blocks) == (100, 100, 16, 1)
    assert (c.max_num_seqs, c.max_num_batched_tokens, c.max_model_len, c.vllm_v0) == (256, 2048, 2048, False)
    assert (s.name, s.preemption_mode, s.requests, s.events, s.expected) == ("from the file", None, (), (), None)


def test_defaults_that_depend_on_other_fields():
    assert parse_scenario(minimal(max_model_len=5000)).config.max_num_batched_tokens == 5000
    assert parse_scenario(minimal(max_num_batched_tokens=8, max_model_len=8)).config.max_num_seqs == 8
    assert parse_scenario(minimal(watermark=0.055)).config.watermark_blocks == 5
    assert parse_scenario(minimal(watermark=0.055, watermark_blocks=0)).config.watermark_blocks == 0


def test_request_defaults():
    value = minimal() | {"requests": [{"id": "x", "prompt_tokens": 1, "output_tokens": 2}]}
    (request,) = parse_scenario(value).requests
    assert (request.id, request.arrival_step, request.n, request.priority) == ("x", 0, 1, 0)


def test_all_defaults_may_be_given():
    value = minimal(
        enable_chunked_prefill=False,
        policy="fcfs",
        preemption_mode=None,
        num_lookahead_slots=0,
        delay_factor=0.0,
        max_preemptions_per_request=None,
        artificial_preemption=None,
        transfers="ordered",
        transfer_latency_steps=0,
        transfer_order_seed=None,
        profile="kvproof",
    )
    assert isinstance(parse_scenario(value), Scenario)


CONFIG = [
    ({"block_size": 0}, "config.block_size: must be >= 1, got 0"),
    ({"block_size": True}, "config.block_size: must be an integer, got true"),
    ({"block_size": 4.0}, "config.block_size: must be an integer, got 4.0"),
    ({"block_size": "4"}, 'config.block_size: must be an integer, got "4"'),
    ({"block_size": None}, "config.block_size: must be an integer, got null"),
    ({"num_gpu_blocks": -3}, "config.num_gpu_blocks: must be >= 1, got -3"),
    ({"num_gpu_blocks": BLOCKS_MAX + 1}, f"config.num_gpu_blocks: must be <= {BLOCKS_MAX}, got {BLOCKS_MAX + 1}"),
    ({"num_cpu_blocks": -1}, "config.num_cpu_blocks: must be >= 0, got -1"),
    ({"max_model_len": 2**40 + 1}, f"config.max_model_len: must be <= {2**40}, got {2**40 + 1}"),
    ({"block_size": 2**30}, "config: (num_gpu_blocks + num_cpu_blocks) x block_size must be <= 67108864 slots, got 214748364800"),
    ({"watermark": 1.5}, "config.watermark: must be <= 1, got 1.5"),
    ({"watermark": True}, "config.watermark: must be a number, got true"),
    ({"watermark": float("nan")}, "config.watermark: must be a finite number, got NaN"),
    ({"delay_factor": float("inf")}, "config.delay_factor: must be a finite number, got Infinity"),
    ({"profile": "vllm"}, 'config.profile: must be one of "kvproof", "vllm_v0", got "vllm"'),
    ({"preemption_mode": "drop"}, 'config.preemption_mode: must be one of null, "recompute", "swap", "auto", got "drop"'),
    ({"preemption_mode": False}, 'config.preemption_mode: must be one of null, "recompute", "swap", "auto", got false'),
    ({"preemption_mode": ["swap"]}, 'config.preemption_mode: must be one of null, "recompute", "swap", "auto", got ["swap"]'),
    ({"enable_chunked_prefill": 0}, "config.enable_chunked_prefill: must be true or false, got 0"),
    ({"policy": 3}, 'config.policy: must be one of "fcfs", "priority", "srpt", "mlfq", "fair", got 3'),
    (
        {"policy": "srpt", "profile": "vllm_v0"},
        'config.policy: "srpt" needs the profile kvproof, vllm_v0 has only "fcfs" or "pri',
    ),
    ({"preemption_mode": "auto", "profile": "vllm_v0"}, 'config.preemption_mode: "auto" needs the profile kvproof, vllm_v0 has'),
    ({"costs": {}}, 'config.costs: are for the preemption_mode "auto" only'),
    ({"costs": {"s": 1}, "preemption_mode": "auto"}, "config.costs.s: unknown field, known are s_per_token, s_per_pair, "),
    ({"costs": {"s_per_pair": -1}, "preemption_mode": "auto"}, "config.costs.s_per_pair: must be >= 0, got -1"),
    ({"costs": [], "preemption_mode": "auto"}, "config.costs: must be an object, got []"),
    ({"max_num_batched_tokens": 8}, "config.max_num_seqs: must be <= max_num_batched_tokens (8), got 9", {"max_num_seqs": 9}),
    (
        {"profile": "vllm_v0", "max_num_batched_tokens": 8, "max_model_len": 32},
        "config.max_num_batched_tokens: without chunked prefill must be >= max_model_len (32) in profile vllm_v0, got 8",
    ),
    ({"artificial_preemption": {"seed": 0, "chance": 1}}, "config.artificial_preemption.chance: unknown field, known are"),
    ({"max_preemptions_per_request": -1}, "config.max_preemptions_per_request: must be >= 0, got -1"),
    ({"max_preemptions_per_request": "2"}, 'config.max_preemptions_per_request: must be an integer, got "2"'),
    (
        {"max_preemptions_per_request": 2, "profile": "vllm_v0"},
        "config.max_preemptions_per_request: must not be set in profile vllm_v0, which preempts without a limit",
    ),
    ({"artificial_preemption": {"probability": 2}}, "config.artificial_preemption.probability: must be <= 1, got 2"),
    ({"gpu_blocks": 3}, "config.gpu_blocks: unknown field, known are profile, block_size, "),
    ({"näme": 3}, 'config."n\\u00e4me": unknown field'),
]

LATER = [
    ({"enable_chunked_prefill": 1}, "config.enable_chunked_prefill: must be true or false, got 1"),
    ({"policy": "lottery"}, 'config.policy: must be one of "fcfs", "priority", "srpt", "mlfq", "fair", got "lottery"'),
    ({"watermark_blocks": 100}, "config.watermark_blocks: must be < num_gpu_blocks (100), got 100"),
    ({"num_lookahead_slots": 1025}, "config.num_lookahead_slots: must be <= 1024, got 1025"),
    ({"delay_factor": -0.5}, "config.delay_factor: must be >= 0, got -0.5"),
    ({"artificial_preemption": {"probability": 2}}, "config.artificial_preemption.probability: must be <= 1, got 2"),
    ({"transfers": "fenced"}, 'config.transfers: "fenced" is not supported yet, only "ordered"'),
    ({"transfer_latency_steps": 2}, "config.transfer_latency_steps: 2 is not supported yet, only 0"),
    ({"transfer_order_seed": 2}, "config.transfer_order_seed: 2 is not supported yet, only null"),
]


@pytest.mark.parametrize("row", CONFIG + LATER, ids=lambda row: row[1][:60])
def test_bad_config(row):
    fields, expected, *more = row
    assert message(minimal(**fields, **(more[0] if more else {}))).startswith(expected)
    assert message(minimal(), {**fields, **(more[0] if more else {})}).startswith(expected)  # --set is as strict


def request(**fields) -> dict:
    return {"id": "x", "prompt_tokens": 4, "output_tokens": 2, **fields}


REQUESTS = [
    ([request()] * 3 + [request(prompt_tokens=0)], "requests[1].id: "),
    ([request(id=str(i)) for i in range(3)] + [request(prompt_tokens=0)], "requests[3].prompt_tokens: must be >= 1, got 0"),
    ([request(output_tokens=0)], "requests[0].output_tokens: must be >= 1, got 0"),
    ([request(output_tokens=False)], "requests[0].output_tokens: must be an integer, got false"),
    ([request(arrival_step=-1)], "requests[0].arrival_step: must be >= 0, got -1"),
    ([request(arrival_step=2**21)], "requests[0].arrival_step: must be <= 1048576, got 2097152"),
    ([request(id=7)], "requests[0].id: must be a string, got 7"),
    ([request(id="")], 'requests[0].id: must be a string that is not empty, got ""'),
    ([request(id="x" * 300)], "requests[0].id: must have at most 256 characters, has 300"),
    ([request(), request()], 'requests[1].id: "x" is the id of requests[0] already'),
    ([request(n=0)], "requests[0].n: must be >= 1, got 0"),
    ([request(n=1025)], "requests[0].n: must be <= 1024, got 1025"),
    ([request(n=1024, prompt_tokens=100, output_tokens=1500)], "requests: reading "),
    ([request(priority=0.5)], "requests[0].priority: must be an integer, got 0.5"),
    ([request(tokens=3)], "requests[0].tokens: unknown field, known are id, arrival_step, "),
    ([{"id": "x", "output_tokens": 2}], "requests[0].prompt_tokens: is required"),
    (["x"], 'requests[0]: must be an object, got "x"'),
    ({"id": "x"}, 'requests: must be an array, got {"id": "x"}'),
    ([request(prompt_tokens=10**400)], "requests[0].prompt_tokens: must be <= 1099511627776, got 1000"),
]


@pytest.mark.parametrize(("requests", "expected"), REQUESTS, ids=lambda x: x[:60] if isinstance(x, str) else "")
def test_bad_requests(requests, expected):
    assert message(minimal() | {"requests": requests}).startswith(expected)


EVENTS = [
    ({"step": 0, "op": "abort", "id": "y"}, 'events[0].id: no request has the id "y"'),
    ({"step": -1, "op": "abort", "id": "x"}, "events[0].step: must be >= 0, got -1"),
    ({"op": "abort", "id": "x"}, "events[0].step: is required"),
    ({"step": 0, "op": "abort"}, "events[0].id: is required"),
    ({"step": 0, "id": "x"}, "events[0].op: is required"),
    ({"step": 0, "op": "abort", "id": "x", "seq": 1}, "events[0].seq: unknown field"),
    ({"step": 0, "op": "kill", "id": "x"}, 'events[0].op: must be one of "abort", "fork", '),
    ({"step": 4, "op": "fork", "id": "x"}, "events[0].parent: is required"),
    ({"step": 4, "op": "fork", "id": "x", "parent": -1}, "events[0].parent: must be >= 0, got -1"),
    ({"step": 4, "op": "fork", "id": "x", "parent": 0, "seq": 1}, "events[0].seq: unknown field"),
    ({"step": 5, "op": "finish_seq", "id": "x"}, "events[0].seq: is required"),
    ({"step": 6, "op": "accept", "id": "x", "tokens": 0}, "events[0].tokens: must be >= 1, got 0"),
    ({"step": 7, "op": "preempt", "id": "x", "mode": "drop"}, "events[0].mode: must be one of null, "),
    ({"step": 8, "op": "deny_append", "id": "x"}, "events[0].count: is required"),
    ({"step": 8, "op": ["abort"], "id": "x"}, 'events[0].op: must be one of "abort", '),
    (3, "events[0]: must be an object, got 3"),
]


@pytest.mark.parametrize(("event", "expected"), EVENTS, ids=lambda x: x[:60] if isinstance(x, str) else "")
def test_bad_events(event, expected):
    assert message(minimal() | {"requests": [request()], "events": [event]}).startswith(expected)


WHOLE = [
    ([], "scenario: must be an object, got []"),
    (3, "scenario: must be an object, got 3"),
    ({}, "format: is required"),
    (minimal() | {"format": 2}, "format: must be <= 1, got 2"),
    (minimal() | {"format": True}, "format: must be an integer, got true"),
    (minimal() | {"comment": ""}, "comment: unknown field, known are format, name, "),
    (minimal() | {"name": 3}, "name: must be a string, got 3"),
    (minimal() | {"config": []}, "config: must be an object, got []"),
    ({"format": 1, "config": {}, "requests": []}, "config.num_gpu_blocks: is required"),
    ({"format": 1, "config": {"num_gpu_blocks": 1}}, "requests: is required"),
    (minimal() | {"expected": {}}, "expected: must be an array, got {}"),
    (minimal() | {"expected": [3]}, "expected[0]: must be an object, got 3"),
    (minimal() | {"expected": [{"step": 0, "plan": 1}]}, "expected[0].plan: unknown field"),
    (minimal() | {"expected": [{"step": 1}]}, "expected[0].step: must be <= 0, got 1"),
]


@pytest.mark.parametrize(("value", "expected"), WHOLE, ids=lambda x: x[:60] if isinstance(x, str) else "")
def test_bad_whole(value, expected):
    assert message(value).startswith(expected)


def test_work_is_limited_as_far_as_it_can_get():
    """What is refused or ended early costs nothing, so it does not count."""
    long = request(prompt_tokens=2**40, output_tokens=2**40)
    assert parse_scenario(minimal() | {"requests": [long]}).requests
    roomy = minimal(num_gpu_blocks=2**21, num_cpu_blocks=0, max_model_len=2**40)
    assert parse_scenario(roomy | {"requests": [request(output_tokens=20_000)]}).requests
    text = message(roomy | {"requests": [request(output_tokens=2**24)]})
    assert text.startswith("requests: 16777220 tokens in all are too many to replay")
    text = message(roomy | {"requests": [request(output_tokens=100_000)]})
    assert text.startswith("requests: reading ") and "too much to replay" in text


FILES = {
    "empty": (b"", "is empty"),
    "blank": (b" \n", "is empty"),
    "binary": (b"\x7fELF\x02\x01\x01\x00\xff", "is not UTF-8 text: byte 8 is 0xff"),
    "no JSON": (b"format: 1", "not JSON: Expecting value at line 1, column 1"),
    "cut short": (b'{"format": 1, "config"', "not JSON: Expecting ':' delimiter at line 1, column 23"),
    "two values": (b"{} {}", "not JSON: Extra data at line 1, column 4"),
    "a key twice": (b'{"format": 1, "format": 1}', "format: given twice"),
    "a key twice inside": (
        b'{"format": 1, "config": {"num_gpu_blocks": 1}, "requests": [{"id": "a", "id": "b"}]}',
        "requests[0].id: given twice",
    ),
    "NaN": (b'{"format": NaN}', "format: must be a finite number, got NaN"),
    "a float too large": (b'{"config": {"watermark": 1e999}}', "config.watermark: must be a finite number, got Infinity"),
    "a huge integer": (b'{"format": ' + b"9" * 5000 + b"}", "a number has 5000 digits (9999999999...), at most 1000 are read"),
    "nested deeply": (b"[" * 200_000, "not a scenario: nested too deeply"),
    "nested deeply and closed": (b"[" * 100_000 + b"]" * 100_000, "not a scenario: nested too deeply"),
    "a lone surrogate": (b'{"\\ud800": 1}', '"\\ud800": unknown field'),
}


@pytest.mark.parametrize(("data", "expected"), FILES.values(), ids=FILES.keys())
def test_bad_files(tmp_path, program, data, expected):
    path = tmp_path / "bad.json"
    path.write_bytes(data)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    assert str(caught.value).startswith(expected)
    status, out, err = program("replay", path)
    assert (status, out) == (2, "") and err.startswith("kvproof: ") and err.count("\n") == 1 and expected in err


def test_files_that_are_none(tmp_path, program):
    for path, expected in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory"), ("\udcff", "No such file")):
        status, out, err = program("replay", path)
        assert (status, out) == (2, "") and expected in err and err.count("\n") == 1


def test_a_file_without_end(tmp_path):
    path = tmp_path / "long.json"
    with path.open("wb") as file:
        file.truncate(BYTES_MAX + 1)
    with pytest.raises(ScenarioError, match="is larger than"):
        load_scenario(path)


def test_overrides():
    assert parse_override("num_gpu_blocks=7") == ("num_gpu_blocks", 7)
    assert parse_override("profile=vllm_v0") == ("profile", "vllm_v0")
    assert parse_override("preemption_mode=null") == ("preemption_mode", None)
    assert parse_override("policy=a=b") == ("policy", "a=b")
    assert parse_override("policy=") == ("policy", "")
    for bad in ("profile", "=3", ""):
        with pytest.raises(ScenarioError, match="must be FIELD=VALUE"):
            parse_override(bad)


def test_an_override_of_the_watermark_replaces_its_number():
    value = minimal(watermark_blocks=7)
    assert parse_scenario(value, {"watermark": 0.5}).config.watermark_blocks == 50
    assert value["config"]["watermark_blocks"] == 7


def test_an_input_error_is_one_line(capsys):
    InputError("config.x: unknown field").show()
    assert capsys.readouterr().err == "kvproof: config.x: unknown field\n"


def test_long_values_are_cut():
    text = message(minimal() | {"name": json.loads("[" * 50 + "]" * 50)})
    assert len(text) < 120 and text.endswith("...")
