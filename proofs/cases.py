"""The registry: every contract and transition that is proved, and which public function and named loop it covers."""

from collections.abc import Callable

import attrs

from kvproof.proofs import (
    block_rules,
    decisions,
    displaced,
    lookahead_rules,
    pass_rules,
    phase_rules,
    phases,
    rebuild_rules,
    step_rules,
    swap_rules,
    transitions,
    way_rules,
)
from kvproof.proofs.contracts import Contract
from kvproof.proofs.draft import ZDraft
from kvproof.proofs.rules import Hoare
from kvproof.proofs.sym import fresh, run


@attrs.frozen
class Case:
    """One proof: `run` under `sym.explore`, with the summaries in `uses` installed.

    `roots` are the functions of the core that it calls; `weight` is about its seconds: long ones start first.
    """

    name: str
    run: Callable[[], None]
    uses: tuple[str, ...]
    roots: tuple[str, ...]
    weight: float = 1.0


WEIGHTS = {
    "schedule_either": 60.0,
    "step_of_prefills": 26.0,
    "displace": 60.0,
    "admit_waiting": 40.0,
    "schedule_mixed": 50.0,
    "commit": 30.0,
    "schedule": 29.0,
    "move_group_in": 18.0,
    "append_slots": 16.0,
    "evict": 16.0,
    "serve": 13.0,
    "serve_v0": 20.0,
    "move_group_out": 12.0,
}


def _of(contract: Contract) -> Case:
    def go() -> None:
        run().notes.update(head=fresh("head"), line=fresh("line"), ahead=fresh("ahead"))
        contract.prove(ZDraft(Hoare()).midway())

    return Case(contract.function, go, contract.uses, (contract.function,), WEIGHTS.get(contract.function, 1.0))


ALL: dict[str, Case] = {name: _of(c) for name, c in block_rules.CONTRACTS.items() if name not in transitions.CASES}
OTHERS = transitions.CASES | decisions.CASES | displaced.CASES | phases.CASES
ALL.update({name: Case(name, fn, uses, tuple(roots), WEIGHTS.get(name, 1.0)) for name, (fn, uses, *roots) in OTHERS.items()})

TRANSITIONS = ("add", "fork", "finish_sequence", "deny_append", "rerank", "forward", "abort", "forget", "schedule", "commit")
"""The public transitions: each must be a case."""

__all__ = [
    "ALL",
    "TRANSITIONS",
    "Case",
    "lookahead_rules",
    "pass_rules",
    "phase_rules",
    "rebuild_rules",
    "step_rules",
    "swap_rules",
    "way_rules",
]
