"""What every run must do, whatever the scenario: the general outcomes of the case log, checked on the records of `--maps`.

They are recounted from the records alone, so a fault of the scheduler cannot hide in its own counters; what needs a memory of
the steps before is in `ledger.py`, the maps of a step are followed in `moves.py`.
"""

from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path

from ledger import Ledger, up
from moves import check_moves

from kvproof.formats import Request, Scenario
from kvproof.replay import Replay, spec_violations

HERE = Path(__file__).parent


def run(scenario: Scenario, check: Callable = spec_violations, backend: Callable | None = None):
    """(decision records, last line) of a replay with maps. `check`: state -> violations."""
    *records, last = Replay(scenario, maps=True, check=check, backend=backend).lines()
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
    victims = [name for name, _ in record["preempted"]]
    assert len(set(victims)) == len(victims)
    assert not set(scheduled) & set(victims)
    assert set(scheduled) <= set(record["queues"]["running"])


def check_budget(scenario: Scenario, record) -> None:
    """I6: tokens and sequences, recounted from the plan: a decode is one token for each sequence of the group."""
    config = scenario.config
    prefills, decodes = record["scheduled"][: record["num_prefills"]], record["scheduled"][record["num_prefills"] :]
    decoding = sum(len(record["tables"][name]) for name, _ in decodes)
    assert sum(tokens for _, tokens in prefills) + decoding <= config.max_num_batched_tokens
    assert sum(len(record["tables"][name]) for name in record["queues"]["running"]) <= config.max_num_seqs


def check_progress(scenario: Scenario, records) -> None:
    """I4: a step with work left schedules a token, swaps something in, or ends a request.

    If events forced somebody out that may be all that the step does; V0 preempts itself for nothing.
    """
    denials = sum(event.count for event in scenario.events if event.op == "deny_append")
    artificial = getattr(scenario.config, "artificial_preemption", None)
    denials += artificial.max_count if artificial else 0
    forced = {(event.step, event.id) for event in scenario.events if event.op == "preempt"}
    denied = 0
    for record in records:
        if any(record["queues"].values()) and not (record["scheduled"] or record["swap_in"] or record["ignored"]):
            victims = {name for name, _ in record["preempted"]}
            if not any((record["step"], name) in forced for name in victims):
                assert victims or scenario.config.vllm_v0, f"step {record['step']} did nothing"
                denied += 1
    assert denied <= denials or scenario.config.vllm_v0


def blocks_at(request: Request, tokens: int, size: int) -> int:
    """Distinct blocks of a request whose sequences all decode at this length: they share the full blocks of the prompt."""
    shared = request.prompt_tokens // size
    return shared + request.n * (up(tokens, size) - shared)


def fate(scenario: Scenario, request: Request) -> tuple[str, int]:
    """Profile kvproof: how a request ends, and its tokens. Only the sizes decide, never who else is there."""
    config, prompt = scenario.config, request.prompt_tokens
    blocks, size = config.num_gpu_blocks, config.block_size
    if prompt > config.max_model_len or up(prompt, size) > blocks or request.n > config.max_num_seqs:
        return "ignored", 0
    limit = max(1, min(request.output_tokens, config.max_model_len - prompt))
    if config.max_preemptions_per_request == 0 and request.n == 1 and up(prompt + limit - 1, size) > blocks:
        return "ignored", 0
    for made in range(1, limit):
        if blocks_at(request, prompt + made, size) > blocks:
            return "capacity", made
    return "finished", limit


def check_fates(scenario: Scenario, last) -> None:
    """Refused or ended for capacity exactly if the pool cannot hold it; events may end it otherwise."""
    others = {event.id for event in scenario.events if event.op in ("abort", "fork", "finish_seq")}
    for request in scenario.requests:
        end = last["requests"][request.id]
        unwell = (end["reason"] or "").endswith("they cannot be recomputed")  # until groups can be
        if request.id not in others and not unwell:
            most, count = scenario.config.max_preemptions_per_request, sum(end["preemptions"].values())
            outcome, made = fate(scenario, request)
            if most and outcome == "capacity" and count == most:  # its whole need exceeds the pool: it does not come in again
                assert end["outcome"] == "capacity" and 0 < max(end["output_tokens"]) <= made
                continue
            assert (end["outcome"], max(end["output_tokens"])) == (outcome, made)
            assert end["outcome"] == "ignored" or len(end["output_tokens"]) == request.n or max(end["output_tokens"]) == 1


def check_end(scenario: Scenario, records, last) -> None:
    """I3, I5: everybody ended once, with a reason unless it got its output; tokens as alone; pools whole."""
    assert last.get("end"), last
    assert last["tokens_match"] and last["violations"] == []
    assert last["steps"] == len(records)
    assert (last["free_gpu"], last["free_cpu"]) == (scenario.config.num_gpu_blocks, scenario.config.num_cpu_blocks)
    assert last["requests"].keys() == {request.id for request in scenario.requests}
    for request in scenario.requests:
        end = last["requests"][request.id]
        made = max(end["output_tokens"])
        if end["outcome"] == "finished":
            dropped = any(event.op == "finish_seq" and event.id == request.id for event in scenario.events)
            assert dropped or made == request.output_tokens or end["reason"].startswith("reached max_model_len")
            assert dropped or len(set(end["output_tokens"])) == 1
            assert made <= request.output_tokens
        else:
            assert end["reason"] and made < request.output_tokens
            assert made == 0 or end["outcome"] != "ignored"
            assert made > 0 or end["outcome"] != "capacity"
        for mode, count in end["preemptions"].items():
            assert count == sum([request.id, mode] in record["preempted"] for record in records)
    if not scenario.config.vllm_v0:
        check_fates(scenario, last)


def check_run(scenario: Scenario, check: Callable = spec_violations):
    """Run it, check all of the above; returns (records, last line). A run of V0 may end in an error record: that it stalled."""
    records, last = run(scenario, check)
    ledger = Ledger(scenario)
    for previous, record in pairwise([None, *records]):
        check_blocks(scenario, record)
        check_queues(record)
        check_budget(scenario, record)
        check_moves(record, previous, scenario.config.num_lookahead_slots > 0 and not scenario.config.vllm_v0)
        ledger.step(record, previous)
    check_progress(scenario, records)
    if "error" in last:
        assert scenario.config.vllm_v0 and last["error"] == "stalled" and "violations" not in last, last
    else:
        check_end(scenario, records, last)
        ledger.close(last)
    return records, last
