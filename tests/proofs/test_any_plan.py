"""Contracts and single steps are proved in the middle of a pass: whatever it has planned before."""

import pytest

from kvproof.proofs import cases, decisions, sym
from kvproof.proofs.contracts import Contract
from kvproof.proofs.solving import check
from kvproof.proofs.sym import forall, fresh, run
from kvproof.spec.logic import both, negate

EMPTY = {
    "victims": lambda d: d.plan.victims == 0,
    "a victim": lambda d: forall(1, lambda g: negate(d.plan.victim[g])),
    "pieces": lambda d: forall(1, lambda g: d.plan.piece[g] == 0),
    "resumed": lambda d: forall(1, lambda g: negate(d.plan.back[g])),
    "swaps": lambda d: forall(1, lambda b: both(d.plan.in_of[b] == -1, d.plan.out_of[b] == -1)),
    "copies": lambda d: forall(1, lambda b: d.plan.copy_of[b] == -1),
}


def verdicts(go) -> list[str]:
    return [check(r.log[:k], goal, rlimit=100_000, attempts=1) for r in sym.explore(go) for _, k, goal in r.goals]


@pytest.mark.parametrize("what", EMPTY)
def test_a_contract_does_not_begin_with_an_empty_plan(what):
    contract = Contract(
        "groups", "unfinished", (), lambda d, g: [], lambda d, e, g: [("no plan", EMPTY[what](d))], lambda d: (fresh("g"),)
    )
    found = verdicts(cases._of(contract).run)
    assert found and "unsat" not in found


@pytest.mark.parametrize("what", EMPTY)
def test_a_step_does_not_begin_with_an_empty_plan(what):
    def go():
        d = decisions.state(lambda d: [])
        run().prove("no plan", EMPTY[what](d))

    found = verdicts(go)
    assert found and "unsat" not in found
