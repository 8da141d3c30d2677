"""Scenarios under every policy and in auto mode: the same decisions every time, the right tokens, what the policy is told."""

import copy

import pytest

from kvproof.formats import parse_scenario
from kvproof.order import BUILT_IN, PolicyError
from kvproof.policies.costs import Costs
from kvproof.replay import Replay, spec_violations


def scenario(**config):
    """Twelve requests of three tenants in a pool for three or so."""
    requests = [
        {
            "id": str(k),
            "arrival_step": 2 * k,
            "prompt_tokens": 3 + 5 * k % 11,
            "output_tokens": 4 + 7 * k % 17,
            "priority": k % 3,
            "tenant": "abc"[k % 3],
            "n": 1 + (k == 4),
            **({"expected_tokens": 3} if k % 2 else {}),
        }
        for k in range(12)
    ]
    sizes = {"num_gpu_blocks": 12, "num_cpu_blocks": 10, "block_size": 2, "max_num_seqs": 4, "watermark": 0, "max_model_len": 40}
    return {"format": 1, "config": {**sizes, **config}, "requests": requests}


def unchecked(state) -> list[str]:
    return []


def run(value, check=unchecked) -> list:
    replay = Replay(parse_scenario(copy.deepcopy(value)), maps=True, check=check)
    lines = list(replay.lines())
    assert not replay.failed and lines[-1]["violations"] == [] and lines[-1]["tokens_match"]
    return lines


@pytest.mark.parametrize("mode", [None, "recompute", "swap", "auto"])
@pytest.mark.parametrize("policy", BUILT_IN)
def test_decisions_are_repeatable_and_tokens_right(policy, mode):
    value = scenario(policy=policy, preemption_mode=mode)
    assert run(value, spec_violations) == run(value)


def order_of_ends(lines) -> list:
    return [name for line in lines for name in line.get("finished", ())]


def test_policies_differ():
    ends = {policy: tuple(order_of_ends(run(scenario(policy=policy)))) for policy in BUILT_IN}
    assert len(set(ends.values())) == len(BUILT_IN)


def test_costs_decide_the_mode():
    modes = []
    for costs in ({"out_s_per_block": 9}, {"s_per_token": 9}):
        lines = run(scenario(preemption_mode="auto", costs=costs))
        modes.append({mode for line in lines for _, mode in line.get("preempted", ())})
    assert modes[0] == {"recompute"} and "swap" in modes[1]


def test_tenants_and_expectations_are_told():
    plain = scenario(policy="fair")
    for request in plain["requests"]:
        request["tenant"] = None
    assert order_of_ends(run(plain)) != order_of_ends(run(scenario(policy="fair")))
    blind = scenario(policy="srpt")
    for request in blind["requests"]:
        request.pop("expected_tokens", None)
    assert order_of_ends(run(blind)) != order_of_ends(run(scenario(policy="srpt")))
    s = parse_scenario(scenario(policy="srpt"))
    assert (s.policy, s.costs, s.requests[1].expected_tokens, s.requests[1].tenant) == ("srpt", None, 3, "b")
    assert parse_scenario(scenario(preemption_mode="auto", costs={"s_per_pair": 2})).costs == Costs(s_per_pair=2)


def test_an_order_that_breaks_its_word_ends_the_run():
    replay = Replay(parse_scenario(scenario(policy="fair")))

    def schedule(now):
        raise PolicyError("fair", "it does not")

    replay.engine.scheduler.schedule = schedule
    assert list(replay.lines()) == [{"error": "policy", "step": 0, "detail": 'policy "fair": it does not'}]
    assert replay.failed


@pytest.mark.parametrize(
    ("request_fields", "message"),
    [
        ({"tenant": 3}, "requests[0].tenant: must be a string, got 3"),
        ({"expected_tokens": 0}, "requests[0].expected_tokens: must be >= 1, got 0"),
    ],
)
def test_hints_that_are_none(request_fields, message):
    value = scenario()
    value["requests"][0].update(request_fields)
    with pytest.raises(ValueError) as caught:
        parse_scenario(value)
    assert str(caught.value) == message
