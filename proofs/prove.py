"""Runs the obligations: every contract and transition is a case; cases run in parallel processes; results are kept by content.

A theorem is proved when every obligation that carries its name is, and with it the invariants that all proofs assume. A time or
resource limit gives "unknown", which is never shown as proved; a failed obligation is "refuted" only when the solver has a model.
"""

import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import z3

from kvproof.proofs import block_rules, cases, lemmas, sym, workers
from kvproof.proofs.contracts import installed
from kvproof.proofs.premises import Premises

RLIMIT = 60_000_000
"""Solver steps for one obligation: about ten times what the worst one needs. No wall clock is involved."""

THEOREMS = {
    "conservation": "every block of each pool is exactly one of free or used",
    "refcount_exact": "a reference count is the number of table entries that point to the block",
    "no_double_free": "no block is given back twice or while referenced",
    "ownership_by_status": "waiting and ended own nothing, running GPU blocks only, swapped host blocks only",
    "status_graph": "only legal status moves happen",
    "one_queue": "a group is in exactly the queue that its status says; nobody is skipped",
    "table_length": "the table holds exactly the blocks of the tokens that must have slots",
    "no_shared_write": "a written slot lies in a block with one reference, or is filled once for all who expect the same",
    "recompute_keeps_output": "preemption keeps all tokens; exactly who has a result advances",
    "fork_shares": "a fork costs no block and both tables read the same",
    "group_together": "the sequences of a group are on one device",
    "swap_map_bijective": "swap maps are injective, from blocks of the group to free ones; sharing is kept",
    "swap_preserves_view": "after the plan everybody reads the same contents as before",
    "copy_target_exclusive": "a copy-on-write target is fresh and its writer's alone",
    "no_swap_both_ways": "no plan swaps out and in; kvproof swaps nothing in after a preemption",
    "no_hazard_ordered": "no effect of a plan overwrites what a later one must read",
    "plan_reports_tables": "announced block deltas, applied in order, are the tables",
    "budget_exact": "the budget is the sum over the plan, never above the limits",
    "victim_is_last": "nobody who runs on and may be preempted ranks below a victim; one that is named ranks below the asking",
    "preempt_terminates": "the preemption loop ends, with a decreasing measure",
    "victim_not_in_plan": "a victim is not scheduled, admitted or swapped in by its pass",
    "infeasible_refused": "refused or ended for capacity exactly when it can never fit",
    "total": "schedule returns; every handler returns or raises Rejected and changes nothing",
    "no_deadlock": "with work left, a pass schedules a token or ends a request",
    "head_advances": "the first that runs goes on, and stays while others run that may be preempted; nobody is passed in line",
    "bounded_preemptions": "with a limit, no request is preempted more often (what events force does not count)",
    "every_request_ends": "with all results committed, who is first comes nearer to its end in each pass",
}
BASE = ("helper", "requires", "calendar", "lemma")


@attrs.frozen
class Failure:
    """An obligation that was not proved."""

    case: str
    label: str
    path: str
    verdict: str


@attrs.frozen
class CaseResult:
    """A case: per theorem the number of obligations, the failures, the seconds."""

    name: str
    counts: dict[str, int]
    failures: list[Failure]
    seconds: float
    cached: bool = False


@attrs.frozen
class TheoremResult:
    """A theorem and what became of it: "proved", "refuted" or "unknown"."""

    name: str
    status: str
    obligations: int
    seconds: float


@attrs.frozen
class Report:
    """All of it."""

    theorems: list[TheoremResult]
    failures: list[Failure]
    seconds: float
    cases: int = 0
    kept: int = 0
    """Cases, and how many of them were proved of the same sources by an earlier run."""

    @property
    def proved(self) -> bool:
        """Everything?"""
        return bool(self.theorems) and all(t.status == "proved" for t in self.theorems)


def theorem_of(label: str) -> str:
    """The part of a label before the colon."""
    return label.split(":", 1)[0]


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


def prove_case(name: str, seed: int = 0, first_failure: bool = False) -> CaseResult:
    """Explore a case and check its obligations."""
    begin = time.perf_counter()
    counts: dict[str, int] = {}
    failures: list[Failure] = []
    if name == "lemmas":
        for label, verdict in lemmas.prove_all(seed):
            counts["lemma"] = counts.get("lemma", 0) + 1
            if verdict != "unsat":
                failures.append(Failure(name, label, "", verdict))
        return CaseResult(name, counts, failures, time.perf_counter() - begin)
    case = cases.ALL[name]

    def go() -> None:
        with installed([block_rules.CONTRACTS[u] for u in case.uses]):
            case.run()

    premises = Premises()
    for r in sym.explore(go):
        for label, verdict in verdicts(r.log, r.goals, seed, premises):
            theorem = theorem_of(label)
            counts[theorem] = counts.get(theorem, 0) + 1
            if verdict != "unsat":
                failures.append(Failure(name, label, "".join("TF"[not b] for b in r.trail), verdict))
                if first_failure:
                    return CaseResult(name, counts, failures, time.perf_counter() - begin)
    return CaseResult(name, counts, failures, time.perf_counter() - begin)


# --- results are kept by content ------------------------------------------------------------------------------------------------
def sources_digest() -> str:
    """A hash of everything that the proofs depend on: core, spec, proofs, the plan's vocabulary, and the solver."""
    import kvproof.core
    import kvproof.proofs
    import kvproof.spec

    h = hashlib.sha256(z3.get_version_string().encode())
    for package in (kvproof.core, kvproof.spec, kvproof.proofs):
        for path in sorted(Path(next(iter(package.__path__))).glob("*.py")):
            h.update(path.name.encode())
            h.update(path.read_bytes())
    return h.hexdigest()


def cache_dir() -> Path:
    """Where results are kept: $KVPROOF_CACHE, else the user's cache folder."""
    base = os.environ.get("KVPROOF_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvproof"


def _cache_file(digest: str, name: str, seed: int) -> Path:
    return cache_dir() / "proofs" / f"{digest[:24]}-{name}-{seed}.json"


def _load(digest: str, name: str, seed: int) -> CaseResult | None:
    try:
        data = json.loads(_cache_file(digest, name, seed).read_text())
        if data.pop("digest") != digest or data["failures"]:
            return None
        return CaseResult(data["name"], data["counts"], [], data["seconds"], cached=True)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _store(digest: str, seed: int, result: CaseResult) -> None:
    if result.failures:
        return
    path = _cache_file(digest, result.name, seed)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps({"digest": digest, **attrs.asdict(result)}))
        part.replace(path)
    except OSError:
        return  # a cache that cannot be written only costs time


def _job(name: str, seed: int, digest: str | None) -> CaseResult:
    if digest is not None and (kept := _load(digest, name, seed)) is not None:
        return kept
    result = prove_case(name, seed)
    if digest is not None:
        _store(digest, seed, result)
    return result


def run(
    only: list[str] | None = None,
    jobs: int | None = None,
    seeds: int = 1,
    progress: Callable[[int, int, str], None] | None = None,
    cache: bool = True,
) -> Report:
    """Prove the theorems (all, or those in `only`) with seeds 0 .. seeds - 1.

    Every case is run whatever `only` says, for a theorem stands on the invariants that all cases keep.
    """
    begin = time.perf_counter()
    digest = sources_digest() if cache else None
    names = ["lemmas", *sorted(cases.ALL, key=lambda n: -cases.ALL[n].weight)]
    names.sort(key=lambda n: -cases.ALL[n].weight if n in cases.ALL else 0)
    todo = [(n, s) for s in range(seeds) for n in names]
    results: list[CaseResult] = []
    tasks = [(n, s, digest) for n, s in todo]
    for done, (task, result) in enumerate(workers.each(_job, tasks, jobs or os.cpu_count() or 1), 1):
        results.append(result)
        if progress is not None:
            progress(done, len(todo), task[0])
    return _report(results, only, time.perf_counter() - begin)


def _report(results: list[CaseResult], only: list[str] | None, seconds: float) -> Report:
    failures = [f for r in results for f in r.failures]
    base_failed = [f for f in failures if theorem_of(f.label) in BASE or f.case == "lemmas"]
    theorems = []
    for name in THEOREMS:
        if only and name not in only:
            continue
        own = [f for f in failures if theorem_of(f.label) == name and f.case != "lemmas"]
        count = sum(r.counts.get(name, 0) for r in results)
        spent = sum(r.seconds * r.counts.get(name, 0) / max(1, sum(r.counts.values())) for r in results)
        if count == 0 or base_failed:
            status = "unknown"
        elif own:
            status = "refuted" if any(f.verdict == "sat" for f in own) else "unknown"
        else:
            status = "proved"
        theorems.append(TheoremResult(name, status, count, round(spent, 3)))
    return Report(theorems, failures, round(seconds, 3), len(results), sum(r.cached for r in results))
