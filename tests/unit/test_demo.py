"""The guided tour: both kinds of preemption are visible, and whatever is wrong makes its exit status 1."""

import json
import sys
import types
from types import SimpleNamespace

import pytest

import kvproof.proofs
from kvproof.cli import demo


def report(*statuses):
    theorems = [SimpleNamespace(name=f"t{i}", status=s, obligations=2, seconds=0.5) for i, s in enumerate(statuses)]
    return SimpleNamespace(theorems=theorems, seconds=1.0)


@pytest.fixture
def prover(monkeypatch):
    """prover(*statuses): the theorems that the prover is to find."""
    module = types.ModuleType("kvproof.proofs.prove")
    monkeypatch.setitem(sys.modules, "kvproof.proofs.prove", module)
    monkeypatch.setattr(kvproof.proofs, "prove", module, raising=False)

    def find(*statuses):
        def run(only, jobs, seeds, progress):
            assert (only, seeds) == (None, 1) and jobs >= 1
            for i in range(3):
                progress(i + 1, 3, "a label")
            return report(*statuses)

        module.run = run

    return find


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(demo, "REQUESTS", 12)
    monkeypatch.setattr(demo, "GPU_BLOCKS", 14)


@pytest.fixture
def quick(small, monkeypatch):
    """Without the checks, which take most of the time."""
    monkeypatch.setattr("kvproof.spec.check.violations", lambda state: [])


def test_both_modes_are_seen_and_every_state_is_checked(program, small):
    status, out, err = program("demo", "--no-prove", "--json", "--seed", "3")
    found = json.loads(out)
    calm, recompute, swap = found["runs"]
    assert status == 0 and found["good"] and found["proofs"] is None and "request" in err
    assert calm["by_recompute"] == calm["by_swap"] == 0
    assert recompute["by_recompute"] > 0 and recompute["recomputed_tokens"] > 0 and recompute["by_swap"] == 0
    assert swap["by_swap"] > 0 and swap["swapped_blocks"] > 0 and swap["recomputed_tokens"] == 0
    for run in (calm, recompute, swap):
        assert run["states_checked"] == 1 + run["requests"] + 2 * run["steps"]
        assert run["blocks_back"] and run["tokens_equal"] and run["violations"] == [] and run["error"] is None
    assert program("demo", "--no-prove", "--json", "--seed", "3")[1] == out  # by seed, nothing else


def test_the_table_and_the_theorems(program, quick, prover):
    prover("proved", "proved")
    status, out, _ = program("demo", "--jobs", "1")
    assert status == 0
    assert "t0" in out and "violations" in out and "preemptions by swap" in out and "go to the host" in out


@pytest.mark.parametrize("statuses", [("proved", "unknown"), ("refuted",), ()])
def test_what_is_not_proved_is_an_error(program, quick, prover, statuses):
    prover(*statuses)
    assert program("demo", "--json")[0] == 1


def test_a_violation_is_an_error(program, small, monkeypatch):
    monkeypatch.setattr("kvproof.spec.check.violations", lambda state: ["conservation: free + used = size"])
    status, out, _ = program("demo", "--no-prove")
    assert status == 1 and "conservation: free + used = size" in out


def test_a_pool_in_which_nobody_is_preempted_is_an_error(program, quick, monkeypatch):
    monkeypatch.setattr(demo, "GPU_BLOCKS", 400)
    status, out, _ = program("demo", "--no-prove")
    assert status == 1 and "nobody was preempted by recompute" in out
