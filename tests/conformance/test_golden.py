"""Recorded decisions of vLLM V0 are reproduced field by field; under profile kvproof the same loads simply finish."""

from itertools import count

import pytest
from outcomes import HERE, check_run

from kvproof.formats import load_scenario
from kvproof.spec import check
from kvproof.strictjson import ScenarioError

FAMILIES = ("recompute", "swap", "budget", "large", "groups")
FILES = sorted((HERE / "golden").glob("*.json"))
REPLAYED = [path for path in FILES if path.stem.startswith(FAMILIES)]
LATER = [path for path in FILES if path not in REPLAYED]


def test_every_family_is_there():
    assert {path.stem.split("-")[0] for path in REPLAYED} == set(FAMILIES)
    assert len(REPLAYED) == 24 and len(LATER) == 13


@pytest.fixture
def sampled(path, monkeypatch):
    """In a large recording every 25th state is checked (each costs 20 ms there); `kvproof replay` checks every state."""
    if path.stem.startswith("large"):
        whole, calls = check.violations, count()
        monkeypatch.setattr(check, "violations", lambda state: whole(state) if next(calls) % 25 == 0 else [])


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize("path", REPLAYED, ids=lambda path: path.stem)
def test_vllm_v0_decides_as_recorded(path, program):
    status, out, err = program("replay", path, "--check")
    assert (status, err) == (0, "")
    assert '"tokens_match": true, "violations": []' in out.splitlines()[-1]


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize("path", REPLAYED, ids=lambda path: path.stem)
def test_kvproof_finishes_everybody(path):
    scenario = load_scenario(path, {"profile": "kvproof"})
    _, last = check_run(scenario)
    for request in scenario.requests:
        fits = request.prompt_tokens <= scenario.config.max_model_len
        assert last["requests"][request.id]["outcome"] == ("finished" if fits else "ignored")


@pytest.mark.parametrize("path", LATER, ids=lambda path: path.stem)
def test_a_later_feature_is_refused_by_name(path):
    with pytest.raises(ScenarioError, match=r"^[\w.\[\]]+: .* is not supported yet, only [^\n]*$"):
        load_scenario(path)
