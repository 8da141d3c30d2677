"""The lines of the logger `kvproof.scheduler`, and that silence costs nothing."""

import logging
import subprocess
import sys

import pytest
from calls import everything, pressed

from kvproof import Config, Outcome, Scheduler
from kvproof.logs import held, log


def lines(caplog, level: int) -> list[tuple[int, str]]:
    """(level, text) of the lines of at least this level; then forget them."""
    assert all(record.name == "kvproof.scheduler" for record in caplog.records)
    found = [(record.levelno, record.getMessage()) for record in caplog.records if record.levelno >= level]
    caplog.clear()
    return found


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_each_preemption_is_a_line(mode, caplog):
    caplog.set_level(logging.INFO, "kvproof.scheduler")
    s = pressed(mode)
    assert any("preempted by" in text for _, text in lines(caplog, logging.INFO))
    seen = 0
    while s.unfinished:
        before = s.state
        plan = s.schedule()
        told = [text for level, text in lines(caplog, logging.INFO) if level == logging.INFO]
        assert len(told) == len(plan.preempted)
        for (g, how), text in zip(plan.preempted, told, strict=True):
            n = held(before, g)
            blocks = f"{n} block" if n == 1 else f"{n} blocks"
            did = "freed" if how == "recompute" else "moved to the host"
            assert text == f"pass {plan.epoch}: request {g} preempted by {how}, cause blocks: {blocks} {did}"
        if mode == "swap":
            assert sum(held(before, g) for g, _ in plan.preempted) == len(plan.swap_out)
        seen += len(told)
        s.commit()
    assert seen >= 2


def test_siblings_are_counted_once(caplog):
    caplog.set_level(logging.INFO)
    s = Scheduler(Config(num_gpu_blocks=8, num_cpu_blocks=8, block_size=4), "swap")
    g = s.add_request(6, 9)
    s.schedule()
    s.commit()
    s.fork(g)
    assert held(s.state, g) == 2
    s.abort(g)
    assert lines(caplog, logging.INFO) == [
        (logging.INFO, "request 0 ended as FINISHED_ABORTED with 7 tokens, 2 blocks freed, cause: aborted while running")
    ]


def test_ends_before_their_time_are_lines_and_others_are_not(caplog):
    caplog.set_level(logging.INFO)
    s = Scheduler(Config(num_gpu_blocks=2, num_cpu_blocks=0, block_size=4))
    s.add_request(9, 1)
    s.add_request(4, 9)
    s.add_request(1, 1)
    everything(s)
    assert lines(caplog, logging.INFO) == [
        (
            logging.WARNING,
            "request 0 ended as FINISHED_IGNORED with 9 tokens, 0 blocks freed, cause: "
            "prompt of 9 tokens needs 3 blocks, the pool has 2",
        ),
        (
            logging.WARNING,
            "request 1 ended as FINISHED_CAPACITY with 9 tokens, 2 blocks freed, cause: "
            "needs 3 blocks for its next token, the pool has 2",
        ),
    ]


def test_each_pass_is_a_line_for_who_debugs(caplog):
    caplog.set_level(logging.DEBUG)
    s = Scheduler(Config(num_gpu_blocks=6, num_cpu_blocks=0, block_size=4))
    s.add_request(4, 9)
    s.add_request(2, 9)
    plans = []
    for _ in range(4):
        plans.append(s.schedule())
        s.commit()
    told = [text for level, text in lines(caplog, logging.DEBUG) if level == logging.DEBUG]
    assert [text.split(":")[0] for text in told] == [f"pass {plan.epoch}" for plan in plans]
    assert told[0] == (
        "pass 1: prefill 6 tokens of 2 requests, decode 0 requests, 0 resumed, 0 preempted, 0 ended; "
        "blocks 0 out, 0 in, 0 copied, free 4 + 0; waiting 0, running 2, swapped 0"
    )
    assert "prefill 0 tokens of 0 requests, decode 2 requests" in told[1]


def test_a_silent_logger_is_asked_once_per_pass_and_told_nothing(monkeypatch):
    asked = []
    monkeypatch.setattr(log, "isEnabledFor", lambda level: asked.append(level))
    monkeypatch.setattr("kvproof.logs.held", None)  # nobody counts blocks
    s = pressed()
    asked.clear()
    before = s.metrics().passes
    outcomes = [o for answer in everything(s) if isinstance(answer, list) for o in answer]
    assert all(isinstance(o, Outcome) for o in outcomes) and len(asked) == s.metrics().passes - before


def test_a_program_that_has_not_set_up_logging_hears_nothing():
    code = """
import kvproof
s = kvproof.Scheduler(kvproof.Config(num_gpu_blocks=1, num_cpu_blocks=0))
s.add_request(99, 1)
s.schedule()
print(s.commit()[0].status.name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("FINISHED_IGNORED\n", "")
