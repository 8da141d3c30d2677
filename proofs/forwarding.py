"""Several passes at once (`core.schedule.forward`), each with the commit of its results: from what is proved of either."""

from typing import Any

import z3

from kvproof.core import schedule
from kvproof.proofs.block_rules import CONTRACTS
from kvproof.proofs.contracts import Clauses, Contract
from kvproof.proofs.events import guarded, prove, start
from kvproof.proofs.pass_frames import laws
from kvproof.proofs.rules import RULES, Rule, Straight, check_frame
from kvproof.proofs.shapes import ZResults
from kvproof.proofs.sym import SBool, forall, fresh, run, same_version
from kvproof.proofs.transitions import COMMIT, PASS
from kvproof.spec import decisions, effects
from kvproof.spec.logic import both, either, negate


def _between(d: Any) -> Clauses:
    """What a pass and a commit begin with, and what case_schedule and case_commit assume: the invariants, and an empty plan."""
    return [*effects.everything(d), ("helper: nothing is planned", d.plan.untouched())]


CONTRACTS["schedule"] = Contract(
    "schedule",
    "schedule",
    PASS,
    lambda d, forced=(): [*_between(d), ("total: no step is in flight", negate(d.issued))],
    lambda d, e, forced=(): [*effects.everything(d), ("total: a step is issued", both(d.issued, d.epoch == e.epoch + 1))],
    lambda d: (),
)
"""Not proved of its own: `case_schedule` proves all this, from any state between two transitions."""
CONTRACTS["commit"] = Contract(
    "schedule",
    "commit",
    COMMIT,
    lambda d, results, ended: [*_between(d), ("total: a step is in flight", d.issued)],
    lambda d, e, results, ended: [*effects.everything(d), ("total: no step is in flight", negate(d.issued))],
    lambda d: (),
)
"""As for `schedule`: by `case_commit`."""
RULES["forward"] = Rule(
    tuple(dict.fromkeys((*PASS, *COMMIT))),
    lambda d, e, last, results: [
        *_between(d),
        ("total: no step is in flight", negate(d.issued)),
        ("total: no more passes than asked for", both(d.epoch >= e.epoch, d.epoch <= last)),
    ],
    lambda d, last, results: (last - d.epoch, 0),
    laws,
)


def case_forward() -> None:
    """Several passes in one draft, each with the commit of its results: each begins as it would in a draft of its own."""
    d, passes, results = start(), fresh("passes"), ZResults()
    e = d.snap()
    guarded(both(negate(d.issued), passes >= 1), schedule.forward, d, passes, results)
    when = "after forward"
    prove(effects.everything(d), when)
    most = both(d.epoch >= e.epoch, d.epoch <= e.epoch + passes)
    stopped = either(d.epoch == e.epoch + passes, negate(decisions.quiet(d)))
    prove(
        [
            ("total: no more passes than asked for", most),
            ("total: no step is in flight", negate(d.issued)),
            ("total: it stops only where there is something to decide", stopped),
        ],
        when,
    )


def case_forward_step() -> None:
    """One step of it: made exactly if there is nothing to decide."""
    d, last, results = start(), fresh("last"), ZResults()
    run().assume(negate(d.issued))
    e = d.snap()
    step: Any = schedule.forward_next
    went_on = bool(step(d, last, results))
    prove(decisions.forward_step(d, e, last, went_on, run().notes.get("idle_steps", 0)), "forward_next")


class Everybody(ZResults):
    """All results."""

    def has(self, g: Any) -> Any:
        """It has one."""
        return SBool(z3.BoolVal(True))


def case_idle() -> None:
    """A pass in which there is nothing to decide and nobody to look at, and its commit: the clock moves on, and nothing else."""
    d, results = start(Straight()), Everybody()
    run().assume(both(schedule.quiet(d), negate(d.issued)))
    run().assume(forall(1, lambda g: negate(d.due.has_[d.clock, g]), lambda g: [[d.status[g]]]))
    run().assume(forall(1, lambda g: negate(d.expiry.has_[d.clock + 1, g]), lambda g: [[d.status[g]]]))
    e, before = d.snap(), d.versions()
    schedule.schedule(d)
    d.next_plan()
    commit: Any = schedule.commit
    commit(d, results, schedule.NOBODY)
    d.next_plan()
    when = "after a pass with nothing to do, and its commit"
    gone = forall(1, lambda g: negate(either(d.sampling.has_[g], d.idle.has_[g])), lambda g: [[d.status[g]]])
    steps = both(d.clock == e.clock + 1, d.epoch == e.epoch + 1, negate(d.issued), negate(d.prefilled))
    told = both(same_version(d.plan.told.read, e.plan.told.read), same_version(d.plan.told_n.read, e.plan.told_n.read))
    prove([("total: a step", steps), ("total: nobody samples or is idle", gone), ("total: nothing is announced", told)], when)
    check_frame("idle pass", d, before, ("clock", "epoch", "issued", "prefilled", "spent", "charged", "sampling", "idle", "plan"))


CASES: dict[str, Any] = {
    "idle": (case_idle, (), "schedule", "commit"),
    "forward": (case_forward, ("schedule", "commit"), "forward"),
    "forward_step": (case_forward_step, ("schedule", "commit"), "forward_next"),
}
