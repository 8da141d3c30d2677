"""Recorded decisions of vLLM V0 are reproduced field by field; under profile kvproof the same loads simply finish."""

from itertools import count

import pytest
from outcomes import HERE, check_run

from kvproof.formats import load_scenario
from kvproof.spec import check

FAMILIES = ("recompute", "swap", "budget", "large", "groups", "chunked", "priority", "lookahead")
FILES = sorted((HERE / "golden").glob("*.json"))


def test_every_family_is_there():
    assert {path.stem.split("-")[0] for path in FILES} == set(FAMILIES)
    assert len(FILES) == 37


@pytest.fixture
def sampled(path, monkeypatch):
    """In a large recording every 25th state is checked (each costs 20 ms there); `kvproof replay` checks every state."""
    if path.stem.startswith("large"):
        whole, calls = check.violations, count()
        monkeypatch.setattr(check, "violations", lambda state: whole(state) if next(calls) % 25 == 0 else [])


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_vllm_v0_decides_as_recorded(path, program):
    status, out, err = program("replay", path, "--check")
    assert (status, err) == (0, "")
    assert '"tokens_match": true, "violations": []' in out.splitlines()[-1]


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_kvproof_finishes_everybody(path):
    scenario = load_scenario(path, {"profile": "kvproof"})
    _, last = check_run(scenario)
    for request in scenario.requests:
        fits = request.prompt_tokens <= scenario.config.max_model_len
        assert last["requests"][request.id]["outcome"] == ("finished" if fits else "ignored")
