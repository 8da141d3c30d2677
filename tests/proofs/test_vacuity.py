"""No proof is vacuous: what a case assumes cannot be refuted where it ends, nor at the end of a step of any of its loops."""

import re
from collections import defaultdict

import pytest
import z3

from kvproof.proofs import block_rules, cases, sym
from kvproof.proofs.contracts import installed
from kvproof.proofs.solving import check

LIMIT = 300_000
"""Solver steps: a contradiction that matters is found in far fewer."""
SLOW = {"schedule", "commit", "schedule_prefills"}


def ends(name: str) -> dict[str, list[sym.Run]]:
    """The paths of a case by where they end: in a step of a loop, or after the function."""
    case = cases.ALL[name]

    def go() -> None:
        with installed([block_rules.CONTRACTS[u] for u in case.uses]):
            case.run()

    found = defaultdict(list)
    for r in sym.explore(go):
        if r.goals:
            label = r.goals[-1][0]
            place = re.search(r"\[(.*)\]$", label)
            found[place.group(1) if place else label].append(r)
    return found


def test_a_contradiction_is_seen():
    x = z3.Int("x")
    assert check([x > 1, x < 0], z3.BoolVal(False), rlimit=LIMIT, attempts=1) == "unsat"


@pytest.mark.parametrize("name", sorted(set(cases.ALL) - SLOW))
def test_every_end_of_a_case_can_be_reached(name):
    for place, runs in ends(name).items():
        verdicts = [check(r.log, z3.BoolVal(False), rlimit=LIMIT, attempts=1) for r in runs[:3]]
        assert "unknown" in verdicts or "sat" in verdicts, f"{name}: no path reaches {place}"
