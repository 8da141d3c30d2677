"""Bounded preemption: what is kept for those that were preempted as often as they may be, and how preemptions are counted.

Clauses over one state, or over the state before (`e`) and after it (`d`).
"""

from typing import Any

from kvproof.spec.logic import Truth, both, choose, either, implies, negate
from kvproof.spec.ownership import Clause, Exempt, R, nobody, unfinished


def may_go(d: Any, g: Any) -> Truth:
    """May g be preempted? Not if it was so often already as it may be; what events force is not counted."""
    return either(negate(d.bounded), d.preemptions[g] < d.most_preemptions)


def most(d: Any, g: Any) -> Any:
    """GPU blocks that g may come to hold: those of whole tables for all its sequences, or all there are."""
    whole, pool = d.ceiling(g), d.config.num_gpu_blocks
    return choose(whole > pool, pool, whole)


def whole(d: Any, g: Any) -> Any:
    """Blocks without which protected g does not come in. Several sequences share some: for them the pool will do."""
    return choose(d.seats[g] == 1, d.ceiling(g), most(d, g))


def needed(d: Any, g: Any, blocks: Any) -> Any:
    """Blocks that must be free for g to come in, of which it takes `blocks` at once."""
    return choose(either(may_go(d, g), whole(d, g) <= blocks), blocks, whole(d, g))


def free(d: Any, g: Any) -> Any:
    """Blocks that are free for g."""
    return d.gpu.n - d.owing + d.owed[g]


def promised(d: Any, g: Any) -> Any:
    """What is to be kept for running g."""
    held = d.table.held[g]
    return choose(either(may_go(d, g), most(d, g) <= held), 0, most(d, g) - held)


def kept(d: Any, exempt: Exempt = nobody) -> list[Clause]:
    """Blocks are kept for protected groups that run, each as many as it may still take; they are free, all together."""

    def clause(g: Any) -> Truth:
        runs = both(d.status[g] == R, negate(may_go(d, g)))
        return either(
            exempt(g),
            both(
                d.owed[g] >= 0,
                either(d.owed[g] == 0, runs),
                implies(runs, lambda: d.owed[g] >= most(d, g) - d.table.held[g]),
            ),
        )

    each = d.forall("group", clause, lambda g: [[d.owed[g]], [d.status[g]]])
    return [
        ("bounded_preemptions: blocks are kept for who may not be preempted", each),
        ("bounded_preemptions: counted", both(d.owing == d.owed.total, d.owing >= 0)),
        ("bounded_preemptions: they are free", d.owing <= d.gpu.n),
    ]


def bounded(d: Any) -> Truth:
    """Nobody unfinished was preempted more often than it may be."""

    def clause(g: Any) -> Truth:
        few = either(negate(d.bounded), d.preemptions[g] <= d.most_preemptions)
        return implies(unfinished(d, g), both(d.preemptions[g] >= 0, few))

    return d.forall("group", clause, lambda g: [[d.preemptions[g]], [d.status[g]]])


def counted(d: Any, e: Any) -> Clause:
    """Each preemption since e is counted, and nothing else is."""
    p, o = d.plan, e.plan

    def clause(g: Any) -> Truth:
        one = choose(both(p.victim[g], negate(o.victim[g])), 1, 0)
        return implies(unfinished(d, g), d.preemptions[g] == e.preemptions[g] + one)

    return (
        "bounded_preemptions: each preemption counts",
        d.forall("group", clause, lambda g: [[d.preemptions[g]], [p.victim[g]]]),
    )


def protected_stay(d: Any, e: Any) -> Clause:
    """Who ran and was preempted as often as it may be runs on, or has ended."""

    def clause(g: Any) -> Truth:
        stays = either(d.status[g] == R, negate(unfinished(d, g)))
        return implies(both(e.status[g] == R, negate(may_go(e, g))), stays)

    return (
        "bounded_preemptions: who was preempted as often as it may be runs on",
        d.forall("group", clause, lambda g: [[d.status[g]], [e.status[g]]]),
    )


def nobody_protected_but(d: Any, g: Any) -> Truth:
    """Does nobody but g run that may not be preempted?"""

    def clause(t: Any) -> Truth:
        return implies(both(d.status[t] == R, negate(may_go(d, t))), t == g)

    return d.forall("group", clause, lambda t: [[d.status[t]]])
