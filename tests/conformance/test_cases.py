"""Real failures of other engines as scenarios: `cases/C..-....json`, and the right outcome beside it in `....outcome.json`.

Each runs as it is, against its outcome, and then its whole kind: smaller and larger pools, both preemption modes, with and
without a host pool, against the general outcomes.
"""

import json
from itertools import product

import attrs
import pytest
from outcomes import HERE, check_run

from kvproof.formats import load_scenario

CASES = sorted(path.stem for path in (HERE / "cases").glob("*.json") if not path.stem.endswith(".outcome"))


def check_preemptions(outcome, last) -> None:
    for name, most in outcome.get("preempted_at_most", {}).items():
        assert sum(last["requests"][name]["preemptions"].values()) <= most
    for name, modes in outcome.get("modes", {}).items():
        assert [mode for mode, count in last["requests"][name]["preemptions"].items() if count] == modes


def pieces(records, name) -> list[int]:
    """The tokens of each piece of the prefills of a request."""
    return [tokens for record in records for who, tokens in record["scheduled"][: record["num_prefills"]] if who == name]


def check_course(outcome, records) -> None:
    for wanted in outcome.get("records", ()):
        record = records[wanted["step"]]
        assert {field: record[field] for field in wanted} == wanted
    names = [name for record in records for name, _ in record["scheduled"]]
    for name in outcome.get("never_scheduled", ()):
        assert name not in names
    for name, tokens in outcome.get("pieces", {}).items():
        assert pieces(records, name) == tokens
    for name, counts in outcome.get("held", {}).items():
        assert [len(record["tables"][name][0]) for record in records if name in record["tables"]] == counts
    if "host_at_most" in outcome:
        held = [
            sum(len(blocks) for name in record["queues"]["swapped"] for blocks in record["tables"][name]) for record in records
        ]
        assert 0 < max(held) <= outcome["host_at_most"]
    if "order" in outcome:
        first, second = outcome["order"]
        back = max(record["step"] for record in records if first in record["queues"]["swapped"])
        assert all(second not in dict(record["scheduled"]) for record in records[: back + 1])


KEYS = {
    "right",
    "requests",
    "records",
    "preempted_at_most",
    "modes",
    "never_scheduled",
    "pieces",
    "held",
    "host_at_most",
    "order",
}


@pytest.mark.parametrize("case", CASES)
def test_case(case):
    scenario = load_scenario(HERE / "cases" / f"{case}.json")
    outcome = json.loads((HERE / "cases" / f"{case}.outcome.json").read_text())
    assert outcome.keys() <= KEYS
    records, last = check_run(scenario)
    for name, (end, tokens, reason) in outcome["requests"].items():
        got = last["requests"][name]
        assert (got["outcome"], got["output_tokens"]) == (end, [tokens])
        assert (got["reason"] is None) == (reason is None)
        assert reason is None or reason in got["reason"]
    assert outcome["requests"].keys() == last["requests"].keys()
    check_preemptions(outcome, last)
    check_course(outcome, records)


@pytest.mark.parametrize("case", CASES)
def test_kind(case):
    scenario = load_scenario(HERE / "cases" / f"{case}.json")
    blocks = scenario.config.num_gpu_blocks
    for more, mode, host, watermark in product((-2, -1, 0, 1, 2), ("recompute", "swap"), (0, 1, 8), (0, 1)):
        if blocks + more < 1:
            continue
        config = attrs.evolve(scenario.config, num_gpu_blocks=blocks + more, num_cpu_blocks=host, watermark_blocks=watermark)
        check_run(attrs.evolve(scenario, config=config, preemption_mode=mode))
