"""What every run must do, whatever the scenario: the general outcomes of the case log, checked on the records of `--maps`.

They are recounted from the records alone, so a fault of the scheduler cannot hide in its own counters.
"""

from itertools import chain
from pathlib import Path

from kvproof.formats import Scenario
from kvproof.replay import Replay

HERE = Path(__file__).parent


def run(scenario: Scenario):
    """(decision records, last line) of a replay with maps."""
    *records, last = Replay(scenario, maps=True).lines()
    return records, last


def check_blocks(scenario: Scenario, record) -> None:
    """I1, I2: free + held = total on both devices, and no block in tables of two groups or twice in one table."""
    config, queues = scenario.config, record["queues"]
    for device, total, free in (("running", config.num_gpu_blocks, "free_gpu"), ("swapped", config.num_cpu_blocks, "free_cpu")):
        tables = [record["tables"][name] for name in queues[device]]
        assert all(len(set(blocks)) == len(blocks) for rows in tables for blocks in rows)
        held = list(chain.from_iterable(set(chain.from_iterable(rows)) for rows in tables))
        assert len(set(held)) == len(held), f"a block in two tables: {held}"
        assert set(held) <= set(range(total))
        assert record[free] + len(held) == total
    assert record["tables"].keys() == {*queues["running"], *queues["swapped"]}, "who waits owns nothing"


def check_queues(record) -> None:
    """I8: each request in one queue; a victim is not in the plan; only who runs is scheduled."""
    names = list(chain.from_iterable(record["queues"].values()))
    assert len(set(names)) == len(names)
    scheduled = [name for name, _ in record["scheduled"]]
    assert len(set(scheduled)) == len(scheduled)
    assert not set(scheduled) & {name for name, _ in record["preempted"]}
    assert set(scheduled) <= set(record["queues"]["running"])


def check_budget(scenario: Scenario, record) -> None:
    """I6: tokens and sequences, recounted from the plan."""
    config = scenario.config
    prefills, decodes = record["scheduled"][: record["num_prefills"]], record["scheduled"][record["num_prefills"] :]
    decoding = sum(len(record["tables"][name]) for name, _ in decodes)
    assert sum(tokens for _, tokens in prefills) + decoding <= config.max_num_batched_tokens
    assert len(record["scheduled"]) <= len(record["queues"]["running"])
    assert sum(len(record["tables"][name]) for name in record["queues"]["running"]) <= config.max_num_seqs


def check_progress(record, left: bool) -> None:
    """I4: a step with work left schedules a token, swaps something in, or ends a request."""
    if left:
        assert record["scheduled"] or record["swap_in"] or record["ignored"], f"step {record['step']} did nothing"


def check_end(scenario: Scenario, last) -> None:
    """I3, I5: everybody ended once, with a reason unless it got its output; tokens as alone; pools whole."""
    assert last.get("end"), last
    assert last["tokens_match"] and last["violations"] == []
    assert (last["free_gpu"], last["free_cpu"]) == (scenario.config.num_gpu_blocks, scenario.config.num_cpu_blocks)
    assert last["requests"].keys() == {request.id for request in scenario.requests}
    for request in scenario.requests:
        end = last["requests"][request.id]
        made = max(end["output_tokens"])
        if end["outcome"] == "finished":
            dropped = any(event.op == "finish_seq" and event.id == request.id for event in scenario.events)
            assert dropped or made == request.output_tokens or end["reason"].startswith("reached max_model_len")
            assert dropped or len(set(end["output_tokens"])) == 1
        else:
            assert end["reason"] and made < request.output_tokens
            assert made == 0 or end["outcome"] != "ignored"
            assert made > 0 or end["outcome"] != "capacity"


def check_run(scenario: Scenario):
    """Run it, check all of the above; returns (records, last line)."""
    records, last = run(scenario)
    for record in records:
        check_blocks(scenario, record)
        check_queues(record)
        check_budget(scenario, record)
        check_progress(record, left=any(record["queues"].values()))
    check_end(scenario, last)
    return records, last
