"""`kvproof fuzz`: what it prints, what it writes when it finds a fault, and how it ends."""

import json
import signal
import subprocess
import sys
import time

import pytest
from broken_cores import give_back_forgets_host, recompute_keeps_computed, switch_in
from hypothesis import settings

from kvproof.cli import fuzz as command
from kvproof.formats import parse_scenario
from kvproof.fuzz.happened import EVENTS
from kvproof.fuzz.loop import a_round, fuzz
from kvproof.fuzz.machine import RULES, Machine
from kvproof.fuzz.profiles import ROUND
from kvproof.fuzz.report import script, write
from kvproof.fuzz.scenario import scenarios
from kvproof.fuzz.scenes import begin
from kvproof.fuzz.setup import setup
from kvproof.fuzz.shrink import Failure, fails, shrink, without_group
from kvproof.fuzz.world import World, rerun


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """A fault is written where one stands."""
    monkeypatch.chdir(tmp_path)


def test_a_short_run_finds_nothing_and_says_how_often_each_rule_fired(program):
    status, out, err = program("fuzz", "--seconds", "0", "--seed", "3", "--json")
    report = json.loads(out)
    assert status == 0 and report["fault"] is None and report["files"] == []
    assert report["rounds"] == 1 and set(RULES) <= set(report["rules"]) | set(report["never_fired"])
    assert err.startswith("kvproof fuzz: ") and err.count("\n") == 1


def test_equal_seeds_give_equal_rounds():
    first, second = (fuzz(0, 11, one_round=settings(ROUND, max_examples=5)) for _ in range(2))
    assert (first.fired, first.by) == (second.fired, second.by) and sum(first.fired.values()) > 100


def test_a_long_run_in_which_something_never_happened_fails(monkeypatch, program):
    monkeypatch.setattr(command, "ENOUGH_SECONDS", 0.0)
    monkeypatch.setitem(EVENTS, "a blue moon", ("kvproof", "vllm_v0"))
    status, out, err = program("fuzz", "--seconds", "0", "--seed", "3")
    assert status == 1 and "no fault in 1 round" in out
    assert err.splitlines()[-1].startswith("kvproof fuzz: in ") and "kvproof: a blue moon" in err.splitlines()[-1]


@pytest.mark.parametrize("arguments", [("--seconds", "-1"), ("--seed", "x"), ("--output", "/does/not/exist")])
def test_bad_input_is_one_line(program, arguments):
    status, out, err = program("fuzz", *arguments)
    assert (status, out) == (2, "") and err.count("\n") == 1


def test_a_fault_is_shrunk_and_written_as_files_that_fail_again(monkeypatch, program, tmp_path):
    switch_in(monkeypatch, recompute_keeps_computed)
    status, out, _ = program("fuzz", "--seconds", "60", "--seed", "1", "--output", tmp_path)
    assert status == 1 and "FAULT: Fault in invariants: ['helper: token counts']" in out
    source = (tmp_path / "kvproof-fuzz-1.py").read_text()
    assert source.count("world.do(") <= 12
    with pytest.raises(AssertionError, match="token counts"):
        exec(compile(source, "script", "exec"), {})
    status, _, _ = program("replay", tmp_path / "kvproof-fuzz-1.json")
    assert status == 1
    monkeypatch.undo()
    exec(compile(source, "script", "exec"), {})  # with the real core the same operations are fine


START = setup("swap", num_gpu_blocks=4, num_cpu_blocks=4, block_size=2, max_model_len=40)
STEP = (("schedule", ()), ("commit", ()))


def told(*log, start=START):
    """The scenarios of this log."""
    return scenarios(Failure(start, log, "x"))


def test_what_a_scenario_cannot_say_is_a_script_only(tmp_path):
    for last in (("add", (1, 2, 1, 2, 0)), ("commit", ((0,),))):
        failure = Failure(START, (("add", (1, 2)), ("schedule", ()), last), "x")
        assert scenarios(failure) == [] and [p.suffix for p in write(failure, tmp_path, "f")] == [".py"]
    assert "world.do('commit', (0,))" in script(failure)


def test_a_scenario_says_all_events():
    (story,) = told(
        *(("add", (3, 9, 2, None, -1)), *STEP, ("preempt", (0, "swap")), ("deny", (0, 2)), ("fork", (0, 1))),
        *(("schedule", (1,)), ("commit", ((), ((0, 1),), (), False, ((0, 3), (10**6, 2)))), ("finish", (0, 0)), ("abort", (0,))),
    )
    assert story["requests"] == [
        {"id": "0", "arrival_step": 0, "prompt_tokens": 3, "output_tokens": 9, "n": 2, "priority": -1},
    ]
    assert [(e["step"], e["op"]) for e in story["events"]] == [
        *((1, "preempt"), (1, "deny_append"), (1, "fork"), (1, "accept"), (2, "finish_seq"), (2, "finish_seq"), (2, "abort")),
    ]
    assert story["config"]["profile"] == "kvproof" and story["config"]["preemption_mode"] == "swap"
    assert parse_scenario(story).requests[0].n == 2


def test_a_scenario_goes_back_with_the_run():
    log = (("add", (3, 9)), *STEP, ("keep", ()), *STEP, ("abort", (0,)), ("back", (0,)), ("add", (1, 1)))
    (story,) = told(*log)
    assert story["events"] == [] and [r["arrival_step"] for r in story["requests"]] == [0, 1]


def test_a_policy_that_no_scenario_has_is_tried_in_every_mode():
    start = setup("any", num_gpu_blocks=4, num_cpu_blocks=4, artificial_preemption={"seed": 3}, priority=True)
    stories = told(("add", (3, 9)), start=start)
    assert [story["config"]["preemption_mode"] for story in stories] == [None, "recompute", "swap"]
    assert all(parse_scenario(story).config == start.config for story in stories)


def test_a_scenario_has_the_order_and_the_costs():
    start = setup("auto", num_gpu_blocks=4, num_cpu_blocks=4, order="fair", costs={"s_per_token": 2})
    (story,) = told(("add", (3, 9)), ("add", (3, 8)), start=start)
    assert [(r["tenant"], r["expected_tokens"]) for r in story["requests"]] == [("a", None), ("b", None)]
    scenario = parse_scenario(story)
    assert (scenario.policy, scenario.preemption_mode, scenario.costs) == ("fair", "auto", start.costs)
    assert told(("add", (3, 9)), start=setup(None, num_gpu_blocks=4, num_cpu_blocks=4, order="restless")) == []
    source = script(Failure(start, (("add", (3, 9)),), "x"))
    assert "order='fair', costs={'s_per_token': 2" in source
    exec(compile(source, "script", "exec"), {})


def test_a_rank_that_is_not_heeded_is_a_fault(monkeypatch):
    """What the order says is heard apart from the scheduler."""
    start, log = begin("ranks change", None, False)
    assert fails(start, log) is None
    monkeypatch.setattr("kvproof.ordered.Ordered._rank", lambda self, order, d, g, priority: None)
    found = fails(start, log)
    assert found is not None and found.check in ("Fault in policy order", "Fault in pass")


def test_victims_named_by_auto_are_counted(monkeypatch):
    start, log = begin("the cheapest makes way", None, False)
    monkeypatch.setattr("kvproof.policies.auto.Auto.victim", lambda self, need: need.candidates[0].group)
    world = World(start)
    rerun(world, log)
    assert not world.events["victims named by auto"]


def test_a_log_that_does_not_fail_is_no_failure():
    log = (("add", (2, 2)), ("schedule", ()), ("commit", ()), ("drain", ()))
    assert fails(START, log) is None
    found = fails(START, (*log, ("schedule", ()), ("schedule", ()), ("commit", ())))
    assert found is not None and found.error.startswith("Rejected in ") and len(found.log) == 6


def test_a_shrunk_run_fails_in_the_same_check(monkeypatch):
    switch_in(monkeypatch, give_back_forgets_host)
    failure = fuzz(60, 1, shrinking=0.0).failure
    assert failure is not None
    small = shrink(failure, 20.0)
    assert small.check == failure.check and len(small.log) <= len(failure.log)


def test_a_log_without_a_request():
    log = (("add", (1, 1)), ("add", (2, 2)), ("abort", (0,)), ("commit", ((0, 1), ((1, 0), (10**6, 0)))), ("fork", (1, 0)))
    assert without_group(log, 0) == (("add", (2, 2)), ("commit", ((0,), ((0, 0), (10**6, 0)))), ("fork", (0, 0)))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_ends_it_cleanly(number, status):
    def heed() -> None:  # whoever runs the tests in the background has told them to ignore it
        signal.signal(signal.SIGINT, signal.default_int_handler)

    command = [sys.executable, "-m", "kvproof", "fuzz", "--seconds", "120"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed) as process:
        assert process.stderr is not None
        process.stderr.readline()  # the first round is over
        time.sleep(0.2)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == status and err.endswith("kvproof: interrupted\n") and "Traceback" not in err


def test_what_ctrl_c_leaves_half_done_is_no_fault(monkeypatch):
    def strike(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("kvproof.store.draft.Draft.__init__", strike)  # the scheduler believes that a call is in progress
    Machine.failure = None
    with pytest.raises(KeyboardInterrupt):
        a_round(1, settings.get_profile("ci"))
    assert Machine.failure is None
