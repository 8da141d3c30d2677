"""Real failures of other engines as scenarios: `cases/C..-....json`, and the right outcome beside it in `....outcome.json`.

`....vllm_v0.outcome.json` is the outcome under profile vllm_v0. Each runs as it is, against its outcomes, and then its whole
kind: smaller and larger pools, both preemption modes, with and without a host pool, against the general outcomes.
"""

import json
import re
from itertools import count, product

import attrs
import pytest
from outcomes import HERE, check_run

from kvproof.formats import Event, Scenario, load_scenario
from kvproof.replay import spec_violations
from kvproof.strictjson import ScenarioError

PROFILES = ("kvproof", "vllm_v0")
CASES = sorted(path.stem for path in (HERE / "cases").glob("*.json") if not path.stem.endswith(".outcome"))


def outcome_file(case: str, profile: str):
    return HERE / "cases" / (f"{case}.outcome.json" if profile == "kvproof" else f"{case}.{profile}.outcome.json")


def load(case: str, profile: str, **config) -> Scenario:
    return load_scenario(HERE / "cases" / f"{case}.json", {"profile": profile, **config})


OUTCOMES = [(case, profile) for case, profile in product(CASES, PROFILES) if outcome_file(case, profile).exists()]


def test_every_case_has_its_outcome():
    assert [case for case, profile in OUTCOMES if profile == "kvproof"] == CASES
    names = {file.name for run in OUTCOMES for file in (HERE / "cases" / f"{run[0]}.json", outcome_file(*run))}
    assert names == {path.name for path in (HERE / "cases").glob("*.json")}


def check_ends(outcome, last) -> None:
    """How each request ended: its tokens, of each sequence where there are several, and a part of the reason."""
    assert outcome["requests"].keys() == last["requests"].keys()
    for name, (end, tokens, reason) in outcome["requests"].items():
        got = last["requests"][name]
        assert (got["outcome"], got["output_tokens"]) == (end, tokens if isinstance(tokens, list) else [tokens])
        assert (got["reason"] is None) == (reason is None)
        assert reason is None or reason in got["reason"]


def check_error(error, last) -> None:
    """The error record that ends a run of V0: every field as wanted, of its sentence a part."""
    assert last.keys() >= error.keys()
    for field, value in error.items():
        assert value in last[field] if field == "lacks" else value == last[field]


def check_preemptions(outcome, last) -> None:
    if "preemptions" in outcome:
        got = {
            name: {mode: times for mode, times in end["preemptions"].items() if times} for name, end in last["requests"].items()
        }
        assert {name: modes for name, modes in got.items() if modes} == outcome["preemptions"]
    for name, most in outcome.get("preempted_at_most", {}).items():
        assert sum(last["requests"][name]["preemptions"].values()) <= most
    for name, modes in outcome.get("modes", {}).items():
        assert [mode for mode, times in last["requests"][name]["preemptions"].items() if times] == modes


def pieces(records, name) -> list[int]:
    """The tokens of each piece of the prefills of a request."""
    return [tokens for record in records for who, tokens in record["scheduled"][: record["num_prefills"]] if who == name]


def computed_again(records) -> int:
    """Tokens of all prefills but the first of each request, where no prompt is cut."""
    first = {name: tokens for record in reversed(records) for name, tokens in record["scheduled"][: record["num_prefills"]]}
    return sum(sum(pieces(records, name)) - tokens for name, tokens in first.items())


def shares(scenario, records) -> list[int]:
    """By how much the tokens that two tenants were given (prompts once, and output) differ after each step in which both wait."""
    tenant = {request.id: request.tenant for request in scenario.requests}
    served, begun, differ = dict.fromkeys(sorted(set(tenant.values())), 0), set(), []
    for record in records:
        for i, (name, tokens) in enumerate(record["scheduled"]):
            served[tenant[name]] += 1 if i >= record["num_prefills"] or name in begun else tokens + 1
            begun.add(name)
        if {tenant[name] for name in record["queues"]["waiting"]} == served.keys():
            differ.append(max(served.values()) - min(served.values()))
    return differ


def distinct(rows) -> int:
    return len({block for row in rows for block in row})


def check_course(outcome, records) -> None:
    for wanted in outcome.get("records", ()):
        record = {"skipped_events": [], **records[wanted["step"]]}
        assert {field: record[field] for field in wanted} == wanted
    names = [name for record in records for name, _ in record["scheduled"]]
    for name in outcome.get("never_scheduled", ()):
        assert name not in names
    for name, tokens in outcome.get("pieces", {}).items():
        assert pieces(records, name) == tokens
    for name, most in outcome.get("prefilled_at_most", {}).items():
        assert sum(pieces(records, name)) <= most
    for name, counts in outcome.get("held", {}).items():
        assert [distinct(record["tables"][name]) for record in records if name in record["tables"]] == counts
    if "copies" in outcome:
        maps = [(record["step"], record["copy_map"]) for record in records if record["copy"]]
        assert [[step, len({a for a, _ in pairs}), len(pairs)] for step, pairs in maps] == outcome["copies"]
    if "host_at_most" in outcome:
        held = [sum(distinct(record["tables"][name]) for name in record["queues"]["swapped"]) for record in records]
        assert max(held) <= outcome["host_at_most"]
        assert max(held) > 0 or outcome["host_at_most"] == 0
    if "computed_again" in outcome:
        assert computed_again(records) == outcome["computed_again"]
    if "order" in outcome:
        first, second = outcome["order"]
        back = max(record["step"] for record in records if first in record["queues"]["swapped"])
        assert all(second not in dict(record["scheduled"]) for record in records[: back + 1])
    assert len(records) == outcome.get("steps", len(records))


ENDS = {"requests", "config_error", "error"}
PREEMPTIONS = {"preemptions", "preempted_at_most", "modes"}
COURSE = {"records", "never_scheduled", "pieces", "prefilled_at_most", "held", "copies", "host_at_most", "order", "steps"}
COURSE |= {"computed_again", "shares_differ_at_most"}


def check_case(case: str, profile: str) -> None:
    outcome = json.loads(outcome_file(case, profile).read_text())
    assert outcome.keys() <= {"right"} | ENDS | PREEMPTIONS | COURSE
    assert len(outcome.keys() & ENDS) == 1
    if "config_error" in outcome:
        with pytest.raises(ScenarioError, match=re.escape(outcome["config_error"])):
            load(case, profile)
        return
    records, last = check_run(load(case, profile))
    if "error" in outcome:
        check_error(outcome["error"], last)
    else:
        assert last.get("end"), last
        check_ends(outcome, last)
        check_preemptions(outcome, last)
    check_course(outcome, records)
    if "shares_differ_at_most" in outcome:
        differ = shares(load(case, profile), records)
        assert differ and max(differ) <= outcome["shares_differ_at_most"]


@pytest.mark.parametrize(("case", "profile"), OUTCOMES)
def test_case(case, profile):
    check_case(case, profile)


def runs(case: str, profile: str) -> bool:
    """Is it there, and does the profile take the configuration?"""
    try:
        load(case, profile)
    except ScenarioError:
        return False
    return True


def every_tenth(first: int):
    """Checks a tenth of the states (they cost most of a run; `test_case` checks all); which ones, differs from run to run."""
    calls = count(first)
    return lambda state: spec_violations(state) if next(calls) % 10 == 0 else []


MODES = (("recompute", 1), ("swap", 0), ("swap", 1), ("swap", 8))
"""Preemption modes, and host blocks. Profile kvproof has one more."""
AUTO = ("auto", 2)


@pytest.mark.parametrize(("case", "profile"), [run for run in product(CASES, PROFILES) if runs(*run)])
def test_kind(case, profile):
    scenario = load(case, profile)
    modes = MODES if profile == "vllm_v0" else (*MODES, AUTO)
    for i, (more, (mode, host)) in enumerate(product((-2, -1, 0, 1, 2), modes)):
        blocks, watermark = scenario.config.num_gpu_blocks + more, (i + i // 4) % 2
        if blocks > watermark:
            config = attrs.evolve(scenario.config, num_gpu_blocks=blocks, num_cpu_blocks=host, watermark_blocks=watermark)
            costs = scenario.costs if mode == "auto" else None
            check_run(attrs.evolve(scenario, config=config, preemption_mode=mode, costs=costs), every_tenth(i))


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("mode", ("recompute", "swap"))
def test_every_pool_gives_the_same(mode, profile):
    """W15: from the pool that all fit in down to the smallest that holds the largest of them."""
    for blocks in range(4, 17):
        scenario = load("W15-a-pool-for-all", profile, num_gpu_blocks=blocks, preemption_mode=mode)
        _, last = check_run(scenario, every_tenth(blocks))
        assert all(end["outcome"] == "finished" and end["output_tokens"] == [9] for end in last["requests"].values())


@pytest.mark.parametrize("more", range(-2, 8))
def test_least_computed_work_is_never_worse_on_this_trace(more):
    """W03: tokens computed again, against the last admitted first."""
    by_cost = load("W03-least-computed-work-goes", "kvproof", num_gpu_blocks=10 + more)
    by_rank = attrs.evolve(by_cost, preemption_mode="recompute", costs=None)
    again = [computed_again(check_run(scenario)[0]) for scenario in (by_cost, by_rank)]
    assert again[0] <= again[1] and (more or again == [9, 49])


def test_shares_are_those_of_the_order():
    """W08: by arrival the same two tenants get shares that differ by far more."""
    scenario = load("W08-two-tenants", "kvproof", policy="fcfs")
    assert max(shares(scenario, check_run(scenario)[0])) > 200


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("mode", ("recompute", "swap"))
def test_a_forced_preemption_at_any_step(mode, profile):
    scenario = load("C20-swap-by-force", profile)
    for step, request in product(range(1, 9), scenario.requests):
        records, last = check_run(attrs.evolve(scenario, events=(Event(step, "preempt", request.id, mode=mode),)))
        runs = step < 8 and request.id in records[step - 1]["queues"]["running"]
        assert [request.id, mode] in records[step]["preempted"] if runs else last["requests"][request.id]["outcome"] == "finished"


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("seed", range(10))
def test_artificial_preemption_of_any_seed(seed, profile):
    artificial = {"seed": seed, "probability": 0.5, "max_count": 20}
    check_run(load("C20-swap-at-random", profile, artificial_preemption=artificial))
