"""Replay: the record field by field, events, refusals with their reasons, hangs of V0, faults that it must report."""

import json
import sys

import attrs
import pytest

from kvproof.backend_fake import BackendError, FakeBackend, Misuse
from kvproof.fake_engine import FakeEngine, alone
from kvproof.formats import parse_scenario
from kvproof.replay import Replay
from kvproof.scheduler import Scheduler


def lines(value, maps=False, **options):
    return list(Replay(parse_scenario(value), maps, **options).lines())


def test_record_byte_for_byte(program, scenario, write):
    scenario["requests"] = [
        {"id": "a", "prompt_tokens": 7, "output_tokens": 2},
        {"id": "é", "prompt_tokens": 20, "output_tokens": 1},
    ]
    status, out, err = program("replay", write(scenario))
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        '{"step": 0, "scheduled": [["a", 7]], "num_prefills": 1, "preempted": [], "swap_out": 0, "swap_in": 0, "copy": 0, '
        '"ignored": ["\\u00e9"], "finished": [], "queues": {"waiting": [], "running": ["a"], "swapped": []}, '
        '"free_gpu": 2, "free_cpu": 4}',
        '{"step": 1, "scheduled": [["a", 1]], "num_prefills": 0, "preempted": [], "swap_out": 0, "swap_in": 0, "copy": 0, '
        '"ignored": [], "finished": ["a"], "queues": {"waiting": [], "running": ["a"], "swapped": []}, '
        '"free_gpu": 2, "free_cpu": 4}',
        '{"end": true, "steps": 2, "requests": {"a": {"outcome": "finished", "reason": null, "output_tokens": [2], '
        '"preemptions": {"recompute": 0, "swap": 0}}, "\\u00e9": {"outcome": "ignored", "reason": '
        '"prompt of 20 tokens needs 5 blocks, the pool has 4", "output_tokens": [0], '
        '"preemptions": {"recompute": 0, "swap": 0}}}, "free_gpu": 4, "free_cpu": 4, "tokens_match": true, "violations": []}',
    ]


def test_nothing_to_do(scenario):
    scenario["requests"] = []
    assert lines(scenario) == [
        {"end": True, "steps": 0, "requests": {}, "free_gpu": 4, "free_cpu": 4, "tokens_match": True, "violations": []}
    ]


def test_a_late_arrival_is_awaited_with_empty_records(scenario):
    scenario["requests"] = [{"id": "a", "arrival_step": 3, "prompt_tokens": 4, "output_tokens": 1}]
    *records, last = lines(scenario)
    assert [record["scheduled"] for record in records] == [[], [], [], [["a", 4]]]
    assert last["steps"] == 4


def test_requests_arrive_in_the_order_of_the_scenario(scenario):
    scenario["requests"] = [
        {"id": "late", "arrival_step": 1, "prompt_tokens": 4, "output_tokens": 1},
        {"id": "b", "prompt_tokens": 4, "output_tokens": 1},
        {"id": "a", "prompt_tokens": 4, "output_tokens": 1},
    ]
    *records, last = lines(scenario)
    assert [record["scheduled"] for record in records] == [[["b", 4], ["a", 4]], [["late", 4]]]
    assert list(last["requests"]) == ["late", "b", "a"]


def test_events_are_applied_skipped_and_listed(scenario):
    scenario["requests"].append({"id": "c", "arrival_step": 5, "prompt_tokens": 4, "output_tokens": 1})
    events = [("b", 2), ("b", 2), ("c", 2), ("a", 90), ("b", 1)]
    scenario["events"] = [{"step": step, "op": "abort", "id": name} for name, step in events]
    *records, last = lines(scenario)
    assert {r["step"]: r["skipped_events"] for r in records if "skipped_events" in r} == {2: [0, 1, 2]}
    assert last["requests"]["b"] == {
        "outcome": "aborted",
        "reason": "aborted while running",
        "output_tokens": [1],
        "preemptions": {"recompute": 0, "swap": 0},
    }
    assert last["requests"]["c"]["outcome"] == "finished"
    assert last["skipped_events"] == [3]  # of a step that the run did not reach


def test_aborting_the_last_request_ends_the_run(scenario):
    scenario["requests"] = scenario["requests"][:1]
    scenario["events"] = [{"step": 2, "op": "abort", "id": "a"}]
    *records, last = lines(scenario)
    assert last["steps"] == 3 and records[2]["scheduled"] == [] and last["free_gpu"] == 4


def test_maps(scenario):
    scenario["config"]["preemption_mode"] = "swap"
    *records, last = lines(scenario, maps=True)
    first, out, back = records[0], *(r for r in records if r["swap_out_map"] or r["swap_in_map"])
    assert first["tables"] == {"a": [[0]], "b": [[1]]} and first["new_blocks"] == {"a": [[0]], "b": [[1]]}
    assert out["preempted"] == [["b", "swap"]] and out["queues"]["swapped"] == ["b"]
    sources, targets = zip(*out["swap_out_map"], strict=True)
    assert list(sources) == records[out["step"] - 1]["tables"]["b"][0] and list(targets) == out["tables"]["b"][0]
    assert all(0 <= block < 4 for block in targets)  # host ids count from 0
    assert [pair[0] for pair in back["swap_in_map"]] == list(targets)
    assert back["tables"]["b"][0][:2] == [pair[1] for pair in back["swap_in_map"]] == back["new_blocks"]["b"][0][:2]
    assert last["requests"]["b"]["preemptions"] == {"recompute": 0, "swap": 1}


REASONS = [
    ({}, (20, 1), "ignored", 0, "prompt of 20 tokens needs 5 blocks, the pool has 4"),
    ({}, (65, 1), "ignored", 0, "prompt of 65 tokens exceeds max_model_len 64"),
    ({}, (8, 20), "capacity", 9, "needs 5 blocks for its next token, the pool has 4"),
    ({"num_gpu_blocks": 1}, (4, 2), "capacity", 1, "needs 2 blocks for its next token, the pool has 1"),
    ({"max_model_len": 10}, (8, 20), "finished", 2, "reached max_model_len 10"),
    ({"max_model_len": 10}, (10, 20), "finished", 1, "reached max_model_len 10"),
    ({"max_model_len": 10}, (8, 2), "finished", 2, None),
    (
        {"profile": "vllm_v0", "watermark_blocks": 1},
        (16, 1),
        *("ignored", 0, "prompt of 16 tokens needs 4 blocks, the pool has 4, of which 1 are kept as watermark"),
    ),
    ({"profile": "vllm_v0"}, (8, 20), "capacity", 9, "needs 5 blocks for its next token, the pool has 4"),
    ({"profile": "vllm_v0", "max_model_len": 10}, (11, 1), "ignored", 0, "prompt of 11 tokens exceeds max_model_len 10"),
    (
        {"profile": "vllm_v0", "max_model_len": 10, "num_gpu_blocks": 3},
        (8, 20),
        *("capacity", 3, "prompt and output of 11 tokens exceed max_model_len 10 after a recompute"),
    ),
]


@pytest.mark.parametrize(("config", "request_", "outcome", "made", "reason"), REASONS, ids=lambda x: str(x)[:50])
def test_reasons(scenario, config, request_, outcome, made, reason):
    scenario["config"] |= config
    scenario["requests"] = [{"id": "a", "prompt_tokens": request_[0], "output_tokens": request_[1]}]
    end = lines(scenario)[-1]["requests"]["a"]
    assert (end["outcome"], end["output_tokens"], end["reason"]) == (outcome, [made], reason)


@pytest.fixture
def hang(scenario):
    """V0 waits for ever: r0 is swapped out with 3 blocks, needs 4, and 1 of 4 is kept as watermark (fault 2)."""
    scenario["config"] |= {"profile": "vllm_v0", "watermark_blocks": 1, "preemption_mode": "swap"}
    scenario["requests"] = [{"id": "r0", "prompt_tokens": 9, "output_tokens": 7}]
    return scenario


def test_where_v0_hangs_the_replay_says_who_blocks(hang, program, write):
    status, out, err = program("replay", write(hang))
    *records, last = map(json.loads, out.splitlines())
    assert (status, err) == (1, "")
    assert last == {
        "error": "stalled",
        "step": records[-1]["step"],
        "blocking": "r0",
        "lacks": "needs 4 blocks of the GPU pool, 4 of 4 are free, of which 1 are kept as watermark",
    }
    assert records[-1]["scheduled"] == [] and records[-1]["queues"]["swapped"] == ["r0"]


def test_kvproof_does_not_hang_there(hang):
    hang["config"]["profile"] = "kvproof"
    assert lines(hang)[-1]["requests"]["r0"]["outcome"] == "finished"


def test_a_stalled_run_waits_for_arrivals_and_events(hang):
    hang["requests"].append({"id": "r1", "arrival_step": 30, "prompt_tokens": 4, "output_tokens": 1})
    assert lines(hang)[-1]["step"] == 30
    hang["events"] = [{"step": 40, "op": "abort", "id": "r0"}]
    *records, last = lines(hang)
    assert last["requests"]["r1"]["outcome"] == "finished" and records[40]["scheduled"] == [["r1", 4]]


def test_a_run_without_end_meets_the_step_limit(scenario):
    run = Replay(parse_scenario(scenario))
    assert run.step_limit == 20 + 20 * 24
    run.step_limit = 3
    *records, last = run.lines()
    assert len(records) == 3
    assert last == {
        "error": "stalled",
        "step": 2,
        "blocking": "a",
        "lacks": "has not ended after 3 steps, the limit for this scenario",
    }
    assert run.failed


def test_check_finds_the_first_difference(program, scenario, write):
    _, out, _ = program("replay", write(scenario), "--maps")
    scenario["expected"] = [json.loads(line) for line in out.splitlines()[:-1]]
    status, plain, err = program("replay", write(scenario), "--check")
    assert (status, err) == (0, "") and "tables" not in plain

    changes = [
        (3, "free_gpu", 9, "step 3, field free_gpu: expected 9, got 0"),
        (2, "scheduled", [["a", 1]], "step 2, field scheduled: expected [['a', 1]], got [['a', 1], ['b', 1]]"),
        (1, "copy", False, "step 1, field copy: expected False, got 0"),
        (2, "new_blocks", {"a": [[0]]}, "step 2, field new_blocks: expected {'a': [[0]]}, got {}"),
    ]
    for step, field, value, message in changes:
        edited = json.loads(json.dumps(scenario))
        edited["expected"][step][field] = value
        status, _, err = program("replay", write(edited), "--check")
        assert status == 1 and err.splitlines()[0] == message
        assert "before: step" in err and "running ['a', 'b']" in err


def test_check_finds_missing_and_surplus_records(program, scenario, write):
    _, out, _ = program("replay", write(scenario))
    records = [json.loads(line) for line in out.splitlines()[:-1]]
    n = len(records)
    for expected, message in (
        (records[:-1], f"step {n - 1}, field step: expected nothing, got {n - 1}"),
        ([*records, records[0] | {"step": n}], f"step {n}, field step: expected {n}, got nothing"),
        ([{k: v for k, v in records[0].items() if k != "copy"}, *records[1:]], "step 0, field copy: expected nothing, got 0"),
        ([records[0] | {"skipped_events": [0]}, *records[1:]], "step 0, field skipped_events: expected [0], got nothing"),
    ):
        status, _, err = program("replay", write(scenario | {"expected": expected}), "--check")
        assert status == 1 and err.splitlines()[0] == message


def test_check_needs_expected(program, scenario, write):
    status, out, err = program("replay", write(scenario), "--check")
    assert (status, out) == (2, "") and "expected: is required for --check" in err


def test_settings_override_the_config(program, scenario, write):
    path = write(scenario)
    _, out, _ = program("replay", path, "--set", "num_gpu_blocks=40", "--set", "preemption_mode=swap", "--json")
    assert json.loads(out.splitlines()[-1])["free_gpu"] == 40
    for setting, message in (("x=1", "config.x: unknown field"), ("block_size=0", "config.block_size: must be >= 1, got 0")):
        status, out, err = program("replay", path, "--set", setting)
        assert (status, out) == (2, "") and message in err and err.count("\n") == 1


def test_violations_are_reported_once_and_fail(program, scenario, write, monkeypatch):
    def violations(state):
        return [f"too many at {state.clock}"] if state.clock in (3, 4) else []

    monkeypatch.setattr(sys.modules["kvproof.spec.check"], "violations", violations)
    status, out, _ = program("replay", write(scenario))
    assert status == 1
    assert json.loads(out.splitlines()[-1])["violations"] == ["too many at 3", "too many at 4"]


def test_every_state_is_checked(scenario):
    seen = []
    lines(scenario, check=lambda state: seen.append(state) or [])
    steps = sum(state.issued for state in seen)
    assert len({id(state) for state in seen}) == len(seen) == 1 + len(scenario["requests"]) + 2 * steps


def test_wrong_tokens_fail(program, scenario, write, monkeypatch):
    run = FakeEngine.step

    def step(self, *arguments):
        done = run(self, *arguments)
        if len(self.model.sequences) > 1 and self.model.output(1):
            self.model.sequences[1, 0].output[-1] ^= 1
        return done

    monkeypatch.setattr(FakeEngine, "step", step)
    status, out, _ = program("replay", write(scenario))
    assert (status, json.loads(out.splitlines()[-1])["tokens_match"]) == (1, False)


def test_a_miscounted_token_fails(scenario, monkeypatch):
    commit = Scheduler.commit
    monkeypatch.setattr(
        Scheduler,
        "commit",
        lambda self, *x: [attrs.evolve(outcome, outputs=(outcome.output_tokens - 1,)) for outcome in commit(self, *x)],
    )
    assert lines(scenario)[-1]["tokens_match"] is False


def test_a_plan_that_the_backend_refuses_ends_the_run(program, scenario, write, monkeypatch):
    schedule = Scheduler.schedule

    def double(self, *arguments):
        plan = schedule(self, *arguments)
        return attrs.evolve(plan, slots=plan.slots * 2) if plan.prefills else plan

    monkeypatch.setattr(Scheduler, "schedule", double)
    status, out, _ = program("replay", write(scenario | {"requests": scenario["requests"][:1]}))
    last = json.loads(out.splitlines()[-1])
    assert status == 1
    assert (last["error"], last["step"], last["kind"]) == ("backend", 0, "two_owners")


def test_a_backend_that_is_not_told_is_noticed(scenario, monkeypatch):
    """The backend and the scheduler count their blocks separately."""
    monkeypatch.setattr(FakeEngine, "abort", lambda self, g: self.scheduler.abort(g))
    monkeypatch.setattr(FakeBackend, "release", lambda self, g: None)
    scenario["config"]["num_gpu_blocks"] = 40
    scenario["events"] = [{"step": 2, "op": "abort", "id": "b"}]
    last = lines(scenario, check=lambda state: [])[-1]
    assert last["violations"][0] == "step 2: the backend has 4 GPU blocks in use, the scheduler 2"


def test_alone_is_what_a_run_gives(scenario):
    engine = FakeEngine(parse_scenario(scenario).config)
    g = engine.add("a", 4, 8)
    while engine.scheduler.unfinished:
        engine.step()
    (longer,) = alone("a", 4, 9, 4)
    assert (tuple(engine.model.output(g)),) == alone("a", 4, 8, 4) == alone("a", 4, 8, 16) == (longer[:8],)
    assert alone("b", 4, 8, 4) != alone("a", 4, 8, 4) and alone("a", 4, 0, 4) == ((),)
    first, child, grandchild = alone("a", 4, 8, 4, ((5, 0), (7, 1)))
    assert first == longer[:8] and child[:1] == first[:1] and child[1] != first[1] and grandchild[:3] == child[:3]
    assert grandchild[3:] != child[3:]


def test_interrupt(program, scenario, write, monkeypatch):
    def interrupt(self, *arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeEngine, "step", interrupt)
    status, _, err = program("replay", write(scenario))
    assert status == 130 and err.strip() == "kvproof: interrupted"


def test_the_backend_error_says_where():
    assert str(BackendError(Misuse.FREE_BLOCK, "copy[0] reads block 4")) == "use of a free block: copy[0] reads block 4"
