"""How one obligation, or a few of one place, are put to the solver: in which orders, with how many steps, of which facts.

Nothing here decides what is to be proved; "unsat" of the negation, from facts of the path, is the only yes.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import z3

from kvproof.proofs import sym
from kvproof.proofs.premises import Premises

RLIMIT = 60_000_000
"""Solver steps for one obligation: about ten times what the worst one needs. No wall clock is involved."""
ATTEMPTS = 5
"""Orders in which the solver may try a hard obligation, each with four times the steps of the one before, the last with all.

A proof found in any of them is one. In every other one it splits first the cases that the goal led to first (CASE_SPLIT).
"""
CASE_SPLIT = 5


def check(log: list[Any], goal: Any, seed: int = 0, rlimit: int = RLIMIT, attempts: int = ATTEMPTS) -> str:
    """One obligation: "unsat" (proved), "sat" or "unknown". Each attempt has a fresh solver and a random seed of its own."""
    verdict = "unknown"
    for attempt in range(attempts):
        s = z3.Solver()
        s.set("smt.random_seed", seed + 1000 * attempt)
        s.set("smt.mbqi", False)
        s.set("rlimit", rlimit >> 2 * (attempts - 1 - attempt))
        if attempt % 2:
            s.set("smt.auto_config", False)
            s.set("smt.case_split", CASE_SPLIT)
        s.add(*log, z3.Not(goal))
        verdict = str(s.check())
        if verdict != "unknown":
            break
    return verdict


TOGETHER = 8
"""So many obligations of one place are tried at once: they share the facts, which take longer to read than most to prove."""
SOON = RLIMIT // 200
"""Solver steps after which it is worth while to find out which facts are needed."""
TRACED = (4 * SOON, 16 * SOON)
"""Solver steps of the attempts to find that out, each in an order of its own."""
ORDERS = 5
"""So many pairs of orders are tried with few steps before one has many, and thrice as many after it: most proofs are short."""


def parts(goals: list[sym.Goal]) -> Iterator[list[sym.Goal]]:
    """Goals of one place, a few at a time."""
    for _, some in itertools.groupby(goals, key=lambda goal: goal[1]):
        place = list(some)
        yield from (place[i : i + TOGETHER] for i in range(0, len(place), TOGETHER))


def traced(log: list[Any], goal: Any, seed: int, rlimit: int) -> list[Any] | None:
    """The facts that a proof of the goal used; None if none was found."""
    s = z3.Solver()
    s.set("smt.random_seed", seed)
    s.set("smt.mbqi", False)
    s.set("rlimit", rlimit)
    s.set("unsat_core", True)
    marks = [z3.Bool(f"fact {i}") for i in range(len(log))]
    for mark, fact in zip(marks, log, strict=True):
        s.assert_and_track(fact, mark)
    s.add(z3.Not(goal))
    if str(s.check()) != "unsat":
        return None
    core = {mark.get_id() for mark in s.unsat_core()}
    return [fact for mark, fact in zip(marks, log, strict=True) if mark.get_id() in core]


def verdicts(log: list[Any], goals: list[sym.Goal], seed: int, premises: Premises | None = None) -> Iterator[tuple[str, str]]:
    """(label, verdict) of each goal of a path, in order. What cannot be proved together is tried one by one."""
    premises = Premises() if premises is None else premises
    for part in parts(goals):
        k = part[0][1]
        if k < 0 or together(log[:k], part, seed, premises):
            yield from ((label, "unsat") for label, _, _ in part)
        else:
            yield from one_by_one(log[:k], part, seed, premises)


def together(log: list[Any], part: list[sym.Goal], seed: int, premises: Premises) -> bool:
    """Are these goals proved at once, of the facts that others of their names needed or of all, in few steps?"""
    claim = z3.And(*[goal for _, _, goal in part])
    some = premises.chosen(log, [label for label, _, _ in part])
    if some is not None and check(some, claim, seed, SOON, 1) == "unsat":
        return True
    return check(log, claim, seed, SOON, 1) == "unsat"


def one_by_one(log: list[Any], part: list[sym.Goal], seed: int, premises: Premises) -> Iterator[tuple[str, str]]:
    """(label, verdict) of each. Once one of them is hard, it is tried with the rest: hard ones share much of a proof."""
    whole = True
    for i, (label, _, goal) in enumerate(part):
        rest = part[i:]
        if easy(log, label, goal, seed, premises):
            yield label, "unsat"
        elif whole and len(rest) > 1 and check(log, z3.And(*[g for _, _, g in rest]), seed, TRACED[1], 2) == "unsat":
            yield from ((label, "unsat") for label, _, _ in rest)
            return
        else:
            whole = False
            yield label, alone(log, label, goal, seed, premises)


def easy(log: list[Any], label: str, goal: Any, seed: int, premises: Premises) -> bool:
    """Is it proved of the facts that others of its name needed, or in so few steps that it can be found out what it needs?"""
    some = premises.chosen(log, [label])
    if some is not None and check(some, goal, seed, SOON, 1) == "unsat":
        return True
    return learnt(log, label, goal, seed, TRACED[0], premises)


def learnt(log: list[Any], label: str, goal: Any, seed: int, rlimit: int, premises: Premises) -> bool:
    """Is this proved, and known which facts it needed?"""
    used = traced(log, goal, seed, rlimit)
    if used is not None:
        premises.learn(label, used)
    return used is not None


def alone(log: list[Any], label: str, goal: Any, seed: int, premises: Premises) -> str:
    """The verdict on a goal that is not easy."""

    def few(orders: range) -> bool:
        return any(check(log, goal, seed + i, TRACED[0], 2) == "unsat" for i in orders)

    if few(range(2)) or check(log, goal, seed, TRACED[1], 1) == "unsat":
        return "unsat"
    if learnt(log, label, goal, seed + 1, TRACED[1], premises) or few(range(2, ORDERS)):
        return "unsat"
    verdict = check(log, goal, seed)
    return "unsat" if verdict == "unknown" and few(range(ORDERS, 4 * ORDERS)) else verdict
