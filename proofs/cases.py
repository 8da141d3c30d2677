"""The registry: every contract and transition that is proved, and which public function and named loop it covers."""

from collections.abc import Callable

import attrs

from kvproof.proofs import (
    block_rules,
    decisions,
    displaced,
    forwarding,
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
    "schedule_mixed": 42.0,
    "schedule_either": 42.0,
    "schedule_swapped": 30.0,
    "admit_waiting": 26.0,
    "comeback": 22.0,
    "commit": 18.0,
    "schedule": 14.0,
    "fork": 12.0,
    "find_blocks": 12.0,
    "schedule_running": 11.0,
    "way": 11.0,
    "serve_v0": 10.0,
    "swap_in": 9.0,
    "evict": 9.0,
    "step_of_prefills": 8.0,
    "move_group_in": 8.0,
    "displace": 6.0,
    "way_v0": 6.0,
    "append_slots": 6.0,
    "service": 5.0,
    "rerank": 5.0,
    "mode": 4.0,
    "rebuild": 4.0,
    "look_ahead": 4.0,
    "serve": 4.0,
    "config": 4.0,
}


def _of(contract: Contract) -> Case:
    def go() -> None:
        run().notes.update(head=fresh("head"), line=fresh("line"), ahead=fresh("ahead"))
        contract.prove(ZDraft(Hoare()).midway())

    return Case(contract.function, go, contract.uses, (contract.function,), WEIGHTS.get(contract.function, 1.0))


ALL: dict[str, Case] = {name: _of(c) for name, c in block_rules.CONTRACTS.items() if name not in transitions.CASES}
OTHERS = transitions.CASES | forwarding.CASES | decisions.CASES | displaced.CASES | phases.CASES
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
