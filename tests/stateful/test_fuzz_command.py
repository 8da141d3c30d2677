"""`kvproof fuzz`: what it prints, what it writes when it finds a fault, and how it ends."""

import json
import signal
import subprocess
import sys
import time

import pytest
from broken_cores import give_back_forgets_host, recompute_keeps_computed, switch_in

from kvproof.fuzz.loop import fuzz
from kvproof.fuzz.machine import RULES
from kvproof.fuzz.profiles import HUNT
from kvproof.fuzz.report import script, write
from kvproof.fuzz.scenario import scenarios
from kvproof.fuzz.setup import setup
from kvproof.fuzz.shrink import Failure, fails, shrink


def test_a_short_run_finds_nothing_and_says_how_often_each_rule_fired(program):
    status, out, err = program("fuzz", "--seconds", "0", "--seed", "3", "--json")
    report = json.loads(out)
    assert status == 0 and report["fault"] is None and report["files"] == []
    assert report["rounds"] == 1 and set(RULES) <= set(report["rules"]) | set(report["never_fired"])
    assert err.startswith("kvproof fuzz: ") and err.count("\n") == 1


def test_equal_seeds_give_equal_rounds():
    first, second = fuzz(0, 11), fuzz(0, 11)
    assert (first.fired, first.events) == (second.fired, second.events) and sum(first.fired.values()) > 100


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


def test_what_a_scenario_cannot_say_is_a_script_only(monkeypatch, tmp_path):
    switch_in(monkeypatch, give_back_forgets_host)
    failure = fuzz(60, 1, one_round=HUNT, shrinking=0.0).failure
    assert failure is not None
    small = shrink(failure, 20.0)
    assert small.check == failure.check and len(small.log) <= len(failure.log)
    fork = Failure(small.start, (*small.log[:1], ("fork", (0, 0))), "x")
    assert all(not value["events"] or value["events"][0]["op"] for value in scenarios(fork))
    assert [p.suffix for p in write(fork, tmp_path, "f")] == [".py"]
    assert "world.do('fork', 0, 0)" in script(fork)


def test_a_log_that_does_not_fail_is_no_failure():
    start = setup("swap", num_gpu_blocks=4, num_cpu_blocks=4, block_size=2, max_model_len=40)
    log = (("add", (2, 2)), ("schedule", ()), ("commit", ()), ("drain", ()))
    assert fails(start, log) is None
    found = fails(start, (*log, ("schedule", ()), ("schedule", ()), ("commit", ())))
    assert found is not None and found.error.startswith("Rejected in ") and len(found.log) == 6


def test_ctrl_c_ends_it_cleanly():
    with subprocess.Popen(
        [sys.executable, "-m", "kvproof", "fuzz", "--seconds", "120"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()  # the first round is over
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err.endswith("kvproof: interrupted\n") and "Traceback" not in err
