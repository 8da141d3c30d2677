"""Are the proofs strong enough to notice faults? Every small change of the core must make one fail.

A mutant is killed when an obligation fails and the bounded refuter shows a counterexample on the functions that run. A failure
without a counterexample is unconfirmed; neither: it survives, unless it is equivalent (`equivalence.py`). Running out of solver
steps is no failure.
"""

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import cache
from multiprocessing import get_context
from typing import Any

import attrs
import z3

from kvproof.proofs import bank, block_rules, cases, equivalence, mutate, prove, refute, solving, sym, workers
from kvproof.proofs.bank import Endless
from kvproof.proofs.contracts import installed
from kvproof.proofs.keeping import kept
from kvproof.proofs.mutate import Mutant

RLIMIT = 6_000_000
"""Solver steps for an obligation about a mutant of which no counterexample is known."""
TIMES, LEAST = 4, 30_000
PROOF_SECONDS = 240
"""Of processor time, for the obligations of one case about a mutant."""
GOAL = 0.95
LIMIT = "not proved in"
TASKS = 60
"""Mutants a process judges before a new one takes its place: terms of the solver pile up."""


@attrs.frozen
class Verdict:
    """What became of a mutant."""

    where: str
    change: str
    status: str
    """killed, unconfirmed, equivalent or survived"""
    obligation: str | None
    """The first that failed: case: label (verdict)."""
    counterexample: str | None
    """Broken clause and call."""
    reason: str
    seconds: float
    named: bool = False


@attrs.frozen
class Report:
    """All verdicts."""

    verdicts: list[Verdict]
    seconds: float

    def of(self, status: str) -> list[Verdict]:
        """Those with this status."""
        return [v for v in self.verdicts if v.status == status]

    @property
    def share(self) -> float:
        """Killed of those that are not equivalent."""
        rest = len(self.verdicts) - len(self.of("equivalent"))
        return len(self.of("killed")) / rest if rest else 1.0

    @property
    def by_limit(self) -> int:
        """Killed by an obligation that the solver neither refuted nor gave up: not proved in TIMES the steps it needs."""
        return sum(LIMIT in (v.obligation or "") for v in self.of("killed"))

    @property
    def good(self) -> bool:
        """Enough are killed, and each survivor has a reason."""
        return bool(self.verdicts) and self.share >= GOAL and all(v.reason for v in self.of("survived"))

    def to_json(self) -> dict[str, Any]:
        """The form of formats.md."""
        survivors = [{"where": v.where, "change": v.change, "reason": v.reason} for v in self.of("survived")]
        counts = {s: len(self.of(s)) for s in ("killed", "unconfirmed", "equivalent")}
        return {"mutants": len(self.verdicts), **counts, "survivors": survivors, "killed_by_step_limit": self.by_limit}


# --- the proofs of one mutant ---------------------------------------------------------------------------------------------------
def reaching(function: str, clause: str = "") -> list[str]:
    """The cases that run this function: those with an obligation of this name, the one that noticed a mutant of it last, then the
    cheap ones first."""
    some = [n for n, c in cases.ALL.items() if any(function in mutate.reach(root, c.uses) for root in c.roots)]

    def order(n: str) -> tuple[bool, bool, float]:
        named = bool(clause) and any(label.startswith(clause) for label in needed(n)[0])
        return not named, n != _NOTICED.get(function), cases.ALL[n].weight

    return sorted(some, key=order)


_NOTICED: dict[str, str] = {}


def goals(name: str) -> Iterator[tuple[str, list[Any], Any]]:
    """The obligations of a case: label, what is assumed, what is to be shown."""
    return ((label, log, goal) for _, _, label, log, goal in marked(name))


def marked(name: str) -> Iterator[tuple[int, int, str, list[Any], Any]]:
    """The same, each with a mark of what is assumed and one of the whole obligation: others (of a mutant, say) have others."""
    case = cases.ALL[name]

    def go() -> None:
        with installed([block_rules.CONTRACTS[u] for u in case.uses]):
            case.run()

    for r in sym.explore(go):
        before = list(itertools.accumulate((e.hash() for e in r.log), lambda a, b: hash((a, b)), initial=0))
        for label, k, goal in r.goals:
            if k >= 0:
                yield before[k], hash((before[k], goal.hash())), label, r.log[:k], goal


def steps(s: z3.Solver) -> int:
    """Solver steps so far, in this process."""
    statistics = s.statistics()
    return int(statistics.get_key_value("rlimit count")) if "rlimit count" in list(statistics.keys()) else 0


def need(name: str) -> tuple[dict[str, int], list[int]]:
    """What the obligations of a case of the real core need (label -> solver steps, the most), and the marks of those proved."""
    out: dict[str, int] = {}
    proved = []
    for _, mark, label, log, goal in marked(name):
        s = z3.Solver()
        s.set("smt.mbqi", False)
        s.set("rlimit", solving.RLIMIT)
        s.add(*log, z3.Not(goal))
        begin = steps(s)
        if s.check() == z3.unsat:
            proved.append(mark)
        out[label] = max(out.get(label, 0), steps(s) - begin)
    return out, proved


def needed(name: str) -> tuple[dict[str, int], frozenset[int]]:
    """The same, kept: in the process and in a file."""
    if name not in _NEEDED:
        needs, proved = kept("need", name, lambda: need(name))
        _NEEDED[name] = needs, frozenset(proved)
    return _NEEDED[name]


def prepare(name: str) -> None:
    """See to it that it is kept."""
    needed(name)


_NEEDED: dict[str, tuple[dict[str, int], frozenset[int]]] = {}


def decide(log: list[Any], goal: Any, rlimit: int) -> str:
    """proved, failed, or resources."""
    s = z3.Solver()
    s.set("smt.mbqi", False)
    s.set("rlimit", rlimit)
    s.add(*log, z3.Not(goal))
    verdict = s.check()
    if verdict == z3.unsat:
        return "proved"
    return "failed" if verdict == z3.sat or "incomplete" in s.reason_unknown() else "resources"


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    def ring(number: int, frame: Any) -> None:
        raise Endless("the proofs take too long")

    old = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)


Goal = tuple[str, list[Any], Any]
"""An obligation: label, what is assumed, what is to be shown."""


def places(new: Iterator[tuple[int, Goal]]) -> Iterator[list[Goal]]:
    """Obligations, a few of one place at a time."""
    for _, some in itertools.groupby(new, key=lambda x: x[0]):
        place = [goal for _, goal in some]
        yield from (place[i : i + solving.TOGETHER] for i in range(0, len(place), solving.TOGETHER))


def failing(name: str, clause: str | None, known: frozenset[int]) -> Iterator[tuple[str, str]]:
    """The obligations of a case that are not proved, without those that are `known` to be: verdict, and where it stands.

    `clause`: what a counterexample breaks; obligations of this name come first.
    """
    needs, _ = needed(name)

    def limit(goal: Goal) -> int:
        return RLIMIT if clause is None else TIMES * max(needs.get(goal[0], 0), LEAST)

    def verdict(goal: Goal) -> Iterator[tuple[str, str]]:
        label, log, claim = goal
        answer = decide(log, claim, limit(goal))
        if answer != "proved":
            how = f" ({LIMIT} {limit(goal):,} steps)" if answer == "resources" and clause is not None else ""
            yield answer, f"{name}: {label}{how}"

    later: list[tuple[int, Goal]] = []
    for place, mark, label, log, claim in marked(name):
        if mark not in known:
            if clause and label.startswith(clause):
                yield from verdict((label, log, claim))
            else:
                later.append((place, (label, log, claim)))
    for some in places(iter(later)):
        together = z3.And(*[claim for _, _, claim in some])
        if len(some) == 1 or decide(some[0][1], together, max(map(limit, some))) != "proved":
            for goal in some:
                yield from verdict(goal)


def first_failure(mutant: Mutant, clause: str | None) -> str | None:
    """The first obligation that fails, or what the core does that the proofs cannot follow. None: all are proved.

    `clause`: what a counterexample breaks. Then an obligation that is not proved in TIMES what it needs of the real core is
    false. None: no counterexample is known. Obligations that the mutant leaves as they are, by their marks, are not tried again,
    unless nothing else fails: z3's hashes, of which the marks are made, of 1 and of -1 are one.
    """
    found = _first(mutant, clause, True)
    return _first(mutant, clause, False) if found is None and clause is not None else found


def _first(mutant: Mutant, clause: str | None, skip: bool) -> str | None:
    for name in reaching(mutant.function, clause or ""):
        _, known = needed(name)
        try:
            with mutate.switched(mutant), _limited(PROOF_SECONDS):
                for verdict, text in failing(name, clause, known if skip else frozenset()):
                    _NOTICED[mutant.function] = name
                    return text if verdict == "failed" or clause is not None else f"resources: {text}"
        except Endless as error:
            return f"resources: {name}: {error}"
        except Exception as error:
            sym._depth = 0
            return f"{name}: {type(error).__name__}: {error}"[:160]
    return None


def shown_equivalent(mutant: Mutant) -> str | None:
    """How a machine shows that the mutant does the same; None if none does."""
    if mutant.module != "config" and equivalence.same_code(mutant):
        return "the compiler makes the same code of it"
    if mutant.both is None or mutant.module == "config" or "." in mutant.function:
        return None
    equivalence.install(mutant.module)
    count = 0
    with mutate.switched(mutant, mutant.both), _limited(PROOF_SECONDS):
        try:
            for name in reaching(mutant.function):
                for label, log, goal in goals(name):
                    if label.startswith("equivalent:"):
                        count += 1
                        if decide(log, goal, RLIMIT) != "proved":
                            return None
        except Exception:
            sym._depth = 0
            return None
    return f"proved: both expressions have one value wherever they are evaluated ({count} obligations)" if count else None


@cache
def trials() -> tuple[list[bank.Trial], refute.Bench]:
    """The bank, once in a process."""
    return bank.load(prove.cache_dir() / "audit"), refute.Bench()


def counterexample(mutant: Mutant) -> str | None:
    """One line about a counterexample, if there is one."""
    some, bench = trials() if mutant.module != "config" else ([], refute.Bench())
    found = refute.refute(mutant, some, bench=bench)
    if found is None or isinstance(found, str):
        return found
    return f"{found.clause} after {found.action}"


def judge(mutant: Mutant) -> Verdict:
    """All that is to be known of a mutant."""
    begin = time.perf_counter()
    name = (f"{mutant.module}.{mutant.function}", mutant.change)
    found = kept("refute", mutant, lambda: counterexample(mutant))
    failed, reason, status = None, "", "survived"
    if found is None:
        reason = kept("same", mutant, lambda: shown_equivalent(mutant)) or equivalence.ARGUMENTS.get(name, "")
    if reason:
        status = "equivalent"
    else:
        failed = kept("prove", mutant, lambda: first_failure(mutant, None if found is None else found.partition(" after (")[0]))
        if failed is not None and failed.startswith("resources:"):
            status, reason = "unconfirmed", "the solver ran out of steps"
        elif failed is not None:
            status = "killed" if found else "unconfirmed"
        reason = reason or equivalence.REASONS.get(name, "")
    seconds = round(time.perf_counter() - begin, 2)
    return Verdict(mutant.where, mutant.change, status, failed, found, reason, seconds, mutant.named)


def stop(pool: ProcessPoolExecutor) -> None:
    """End its processes now, in the middle of what they do."""
    workers = dict(getattr(pool, "_processes", None) or {})
    pool.shutdown(wait=False, cancel_futures=True)
    for process in workers.values():
        process.terminate()


def run(
    only: str | None = None,
    jobs: int | None = None,
    limit: int | None = None,
    progress: Callable[[int, int, Verdict], None] | None = None,
    prepared: Callable[[int, int, str], None] | None = None,
) -> Report:
    """Judge all mutants, or those of one function; `limit`: so many of them, evenly chosen.

    First the real core is proved, for the steps that it needs: `prepared` is told how far that is.
    """
    begin = time.perf_counter()
    todo = mutate.mutants(only)
    if limit is not None and limit < len(todo):
        todo = [todo[i * len(todo) // limit] for i in range(limit)]
    if todo and any(m.module != "config" for m in todo):
        trials()  # made once, before the workers ask for it
    jobs = jobs or os.cpu_count() or 1
    names = sorted({n for m in todo for n in reaching(m.function)}, key=lambda n: -cases.ALL[n].weight)
    for done, (task, _) in enumerate(workers.each(prepare, [(n,) for n in names], jobs), 1):
        if prepared is not None:
            prepared(done, len(names), task[0])
    verdicts: list[Verdict] = []
    size = TASKS * jobs
    for part in (todo[i : i + size] for i in range(0, len(todo), size)):
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            futures = [pool.submit(judge, m) for m in part]
            try:
                for future in as_completed(futures):
                    verdicts.append(future.result())
                    if progress is not None:
                        progress(len(verdicts), len(todo), verdicts[-1])
            except BaseException:
                stop(pool)
                raise
    order = {(m.where, m.change): i for i, m in enumerate(todo)}
    verdicts.sort(key=lambda v: order[v.where, v.change])
    return Report(verdicts, round(time.perf_counter() - begin, 1))
