"""Runs the obligations: every contract and transition is a case; cases run in parallel processes; results are kept by content.

A theorem is proved when every obligation that carries its name is, and with it the invariants that all proofs assume. A time or
resource limit gives "unknown", which is never shown as proved; a failed obligation is "refuted" only when the solver has a model.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import z3

from kvproof.proofs import block_rules, cases, lemmas, sym, workers
from kvproof.proofs.contracts import installed
from kvproof.proofs.premises import Premises
from kvproof.proofs.solving import verdicts

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
