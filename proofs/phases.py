"""A pass goes through its phases as `kvproof.spec.phases` says, whatever the phases do.

Each function that strings phases together is run with stand-ins for them, which only note that they were called, and forget what
they may change. So nothing is assumed of a phase, and nothing of the state.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kvproof.core import schedule
from kvproof.proofs.block_rules import CONTRACTS
from kvproof.proofs.draft import ZDraft
from kvproof.proofs.pass_frames import SERVE
from kvproof.proofs.phase_rules import SWAP
from kvproof.proofs.record import PARTS
from kvproof.proofs.rules import RULES
from kvproof.proofs.sym import ZMap, run
from kvproof.spec import phases
from kvproof.spec.logic import implies, negate


def note(name: str, d: Any, changes: tuple[str, ...]) -> None:
    """The phase was called here."""
    run().notes.setdefault("phases", []).append((name, d.snap()))
    d.havoc(changes)


class Loops:
    """Loops that are noted."""

    def repeat(self, name: str, d: Any, *_: Any, **__: Any) -> None:
        """While a step does something."""
        note(name, d, RULES[name].modifies)

    sweep = each = each_pair = repeat


class Arranged(ZDraft):
    """A draft that notes when V0's running queue is put in order."""

    def arrange_running(self, standing: Any) -> None:
        """What runs, in any order."""
        note("arrange_running", self, ("key", "ticket"))


@contextmanager
def standing_in(names: tuple[str, ...]) -> Iterator[None]:
    """In core/schedule.py these functions are noted, not run."""

    def stand_in(name: str) -> Callable[..., None]:
        changes = CONTRACTS[name].modifies if name in CONTRACTS else (*SERVE, *SWAP)
        return lambda d, *_: note(name, d, changes)

    real = {name: getattr(schedule, name) for name in names}
    for name in names:
        setattr(schedule, name, stand_in(name))
    try:
        yield
    finally:
        for name, f in real.items():
            setattr(schedule, name, f)


def case(name: str) -> Callable[[], None]:
    """The proof about one function."""

    def go() -> None:
        d: Any = Arranged(Loops()).midway()
        arguments: tuple[Any, ...] = ()
        if name == "schedule":
            run().assume(negate(d.issued))
            arguments = (ZMap("forced", 2, truth=True),)
        elif name == "schedule_either":
            run().assume(d.spent == 0)
        else:
            run().assume(implies(d.config.enable_chunked_prefill, negate(d.prefilled)))
        e = d.snap()
        with standing_in(PARTS[name]):
            getattr(schedule, name)(d, *arguments)
        for label, clause in getattr(phases, name)(d, e, run().notes.get("phases", [])):
            run().prove(f"{label} [phases of {name}]", clause)

    return go


CASES: dict[str, Any] = {
    f"phases_of_{name}": (case(name), tuple(part for part in parts if part in CONTRACTS), name) for name, parts in PARTS.items()
}
